//! A generation: a plan and the living things built from it.

use std::sync::Arc;

use super::site::Site;
use crate::clock::Clock;
use crate::config::plan::Plan;
use crate::limits::Zones;
use crate::message::Exchange;
use crate::route::Table;
use crate::telemetry::{AccessLog, COUNTERS};
use crate::upstream::Upstream;

/// What requests are judged by and sent to.
#[derive(Debug)]
pub struct Live {
    /// What it was built from.
    pub plan: Arc<Plan>,
    /// Where requests and connections are counted.
    pub zones: Zones,
    /// In the plan's order.
    pub upstreams: Vec<Arc<Upstream>>,
    pub(super) sites: Table<Site>,
    access: Option<AccessLog>,
}

impl Live {
    /// Puts the rooms together.
    #[must_use]
    pub fn build(
        plan: Arc<Plan>,
        zones: Zones,
        upstreams: Vec<Arc<Upstream>>,
        access: Option<AccessLog>,
    ) -> Self {
        let sites = Table::build(&plan, |site| Site::build(site, &zones, &upstreams));
        Self {
            plan,
            zones,
            upstreams,
            sites,
            access,
        }
    }

    /// Whether a location that forwards is this very path with a slash at its end.
    pub(super) fn adds_slash(&self, exchange: &Exchange) -> bool {
        let path = exchange.target.path(&exchange.head);
        let site = self.sites.redirects_to_slash(exchange.server, path);
        site.is_some_and(|site| site.upstream.is_some())
    }

    /// Whether the access log wants to know the answer's header fields.
    pub(super) fn keeps_sent_headers(&self) -> bool {
        self.access
            .as_ref()
            .is_some_and(AccessLog::needs_sent_headers)
    }

    /// Books a request that is over.
    pub(super) fn conclude(&self, exchange: &mut Exchange, clock: &Clock) {
        COUNTERS.answer(exchange.status);
        if let Some(access) = &self.access {
            // Nobody else wants to know.
            exchange.ended = Some(clock.now());
            access.write(exchange);
        }
    }
}
