//! A location's circuit breaker: asked before a request is sent on, told what came of it.

use std::sync::Arc;

use http::Response;

use super::failure::ProxyError;
use crate::clock::Millis;
use crate::config::plan::{LocationConf, Plan};
use crate::message::ResponseBody;
use crate::upstream::UpstreamBody;
use crate::upstream::breaker::{Breaker, CallOutcome, CallPermit};

/// A breaker, and whose it is.
#[derive(Debug)]
pub struct LocationBreaker {
    /// The first name of its server, or nothing.
    pub server: Box<str>,
    /// Its location as it is written, or nothing for what no location of its own matches.
    pub location: Box<str>,
    /// The breaker.
    pub breaker: Arc<Breaker>,
}

impl LocationBreaker {
    /// That of a site, if it asks for one: the one it had in the generation before, where its rules are the same.
    pub(super) fn build(
        plan: &Plan,
        site: &LocationConf,
        before: &[Arc<Self>],
    ) -> Option<Arc<Self>> {
        let rules = site.breaker.as_deref()?;
        let (server, location) = place(plan, site)?;
        let same = |old: &&Arc<Self>| {
            *old.server == *server && *old.location == *location && old.breaker.plan() == rules
        };
        if let Some(old) = before.iter().find(same) {
            return Some(Arc::clone(old));
        }
        let name = format!("{server} {location}");
        Some(Arc::new(Self {
            server: server.into(),
            location: location.into(),
            breaker: Arc::new(Breaker::new(name.trim(), rules)),
        }))
    }
}

/// Tells how a request went that was let through.
pub(super) fn report(
    pass: CallPermit<'_>,
    answered: &Result<Response<ResponseBody<UpstreamBody>>, ProxyError>,
    now: Millis,
) {
    let outcome = match answered {
        Ok(answer) => pass.outcome(answer.status(), answer.headers(), now),
        Err(ProxyError::Upstream(error)) => CallOutcome::of(error),
        Err(_) => CallOutcome::Cancelled,
    };
    pass.report(outcome, now);
}

/// What people know a site by: its server's name, and its path.
pub(super) fn place<'p>(plan: &'p Plan, site: &LocationConf) -> Option<(&'p str, &'p str)> {
    plan.servers.iter().find_map(|server| {
        let mut locations = server.locations.iter();
        if std::ptr::eq(&server.fallback, site) {
            return Some((&*server.name, ""));
        }
        let location = locations.find(|location| std::ptr::eq(&location.site, site))?;
        Some((&*server.name, &*location.path.text))
    })
}
