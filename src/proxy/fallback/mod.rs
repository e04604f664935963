//! The second-best answer, for when the best is not to be had.
//!
//! A location may name somebody else to ask, allow the last good answer to be given again, or have a fixed one; they
//! are tried in this order. What none of them can help is answered as if there were no fallback.

mod credentials;
mod group;
mod kept;
mod rules;
mod stale;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{Response, response};

pub use self::group::DegradeGroup;
pub(super) use self::kept::CacheWriter;
pub use self::kept::{StaleCache, skipped};
use self::stale::StaleRules;
use super::Proxy;
use super::failure::ProxyError;
use super::intake;
use super::site::{self, Location};
use super::visit::RequestContext;
use crate::clock::Clock;
use crate::config::plan::{self, Content, DegradeMode};
use crate::message::headers::{self, MaxForwards};
use crate::message::{IncomingBody, ResponseBody, grpc};
use crate::upstream::{self, RequestHeadForm, Upstream, UpstreamBody};

/// A location's fallback, ready to use.
#[derive(Debug)]
pub(super) struct Fallback {
    plan: plan::Fallback,
    upstream: Option<Arc<Upstream>>,
    stale: Option<StaleRules>,
}

/// Which way out was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FallbackKind {
    Return,
    Stale,
    Upstream,
}

type Outcome = Result<Response<ResponseBody<UpstreamBody>>, ProxyError>;

impl Fallback {
    pub(super) fn build(
        whole: &plan::Plan,
        site: &plan::LocationConf,
        upstreams: &[Arc<Upstream>],
        kept: &Arc<StaleCache>,
    ) -> Option<Box<Self>> {
        let plan = site.fallback.as_deref()?;
        let forward = plan.forward.as_deref();
        Some(Box::new(Self {
            upstream: forward.and_then(|forward| upstreams.get(forward.upstream).cloned()),
            stale: plan
                .stale
                .as_ref()
                .map(|stale| StaleRules::new(stale, whole, site, server(whole, site), kept)),
            plan: plan.clone(),
        }))
    }

    /// Whether somebody else would be asked.
    pub(super) fn asks_others(&self) -> bool {
        self.upstream.is_some()
    }

    /// What to keep this answer with, if it is to be had again.
    pub(super) fn keeper(
        &self,
        visit: &RequestContext,
        head: &response::Parts,
        clock: &Clock,
    ) -> Option<CacheWriter> {
        // What nobody will be given is not kept either, and what depends on a request's body is for that request.
        if grpc::is_call(&visit.exchange.head) || visit.progress.is_some() {
            return None;
        }
        self.stale.as_ref()?.keeper(&visit.exchange, head, clock)
    }

    /// Whether this is not the answer to give, if there is another.
    fn replaces(&self, answered: &Outcome) -> bool {
        let on = &self.plan.on;
        match answered {
            Ok(response) => on.statuses.contains(&response.status()),
            Err(ProxyError::Degraded) => true,
            Err(ProxyError::Open(_)) => on.open,
            Err(ProxyError::Refused(_)) => on.limited,
            Err(ProxyError::Upstream(error)) => match error {
                upstream::Error::Client(_) => false,
                upstream::Error::NoLiveBackend => on.no_server,
                upstream::Error::Timeout(_) => on.timeout,
                upstream::Error::Unavailable { .. } => on.open || on.no_server,
                _ => on.error,
            },
            Err(_) => false,
        }
    }
}

impl Proxy {
    /// The second-best answer where the best is not to be had.
    pub(super) async fn fall_back(
        &self,
        visit: &mut RequestContext,
        site: &Location,
        fallback: &Fallback,
        answered: Outcome,
        unread: &mut Option<IncomingBody>,
    ) -> Outcome {
        if !fallback.replaces(&answered) || site.mode() == DegradeMode::Off {
            return answered;
        }
        // What was turned away before this was asked must not come in by the back door.
        if !site.admits(visit.exchange.client()) {
            return Err(ProxyError::Forbidden);
        }
        if let (Some(forward), Some(upstream)) = (&fallback.plan.forward, &fallback.upstream)
            && may_go_elsewhere(visit)
        {
            let upload = match visit.spare_upload.take() {
                Some(upload) => upload,
                None => intake::take_in(visit, site, forward, unread).await?,
            };
            let second = self
                .forward(
                    visit,
                    forward,
                    upstream,
                    upload,
                    RequestHeadForm::Fields,
                    None,
                )
                .await;
            if second.is_ok() && !fallback.replaces(&second) {
                return FallbackKind::Upstream.taken(second);
            }
        }
        let exchange = &mut visit.exchange;
        if grpc::is_call(&exchange.head) {
            return answered;
        }
        if let Some(stale) = &fallback.stale
            && let Some(mut good) = stale.response(exchange, self.clock.now())
        {
            if let Content::Forward(forward) = &site.plan.action {
                headers::rewrite_redirects(good.headers_mut(), exchange, forward);
            }
            return FallbackKind::Stale.taken(Ok(good));
        }
        match &fallback.plan.answer {
            Some(answer) => FallbackKind::Return.taken(site::returned(answer, exchange)),
            None => answered,
        }
    }
}

/// What tells a site's virtual server from all others, in this plan and the next: its name, where it listens, and how
/// many before it have both in common with it.
fn server(plan: &plan::Plan, site: &plan::LocationConf) -> Box<str> {
    let address = |index: usize| {
        let mut listeners = plan.listeners.iter();
        let listener = listeners.find(|listener| listener.servers.contains(&index));
        listener.map(|listener| listener.address.to_string())
    };
    let holds = |server: &plan::Server| {
        let mut locations = server.locations.iter();
        std::ptr::eq(&server.fallback, site)
            || locations.any(|location| std::ptr::eq(&location.site, site))
    };
    let own = plan.servers.iter().position(holds).unwrap_or_default();
    let known_by = |index: usize| (plan.servers.get(index).map(|it| &*it.name), address(index));
    let (name, listens) = known_by(own);
    let before = (0..own).filter(|index| known_by(*index) == known_by(own));
    let (name, listens) = (name.unwrap_or_default(), listens.unwrap_or_default());
    format!("{name} {listens} {}", before.count()).into()
}

/// Whether a request can be sent to somebody else: its body was not begun or lies ready, and nothing may have come of it yet that must
/// not come of it twice.
fn may_go_elsewhere(visit: &RequestContext) -> bool {
    let exchange = &visit.exchange;
    let sent = exchange
        .attempts
        .iter()
        .any(|attempt| attempt.connect.is_some());
    let may_be_forwarded = match headers::hops(&exchange.head) {
        MaxForwards::Any | MaxForwards::Left(1..) => true,
        MaxForwards::Left(0) | MaxForwards::Malformed => false,
    };
    may_be_forwarded
        && (visit.progress.is_none() || visit.spare_upload.is_some())
        && (!sent || upstream::is_idempotent(&exchange.head.method))
}

impl FallbackKind {
    fn taken(self, answer: Outcome) -> Outcome {
        TAKEN[self as usize].fetch_add(1, Ordering::Relaxed);
        answer
    }
}

/// How often which way out was taken.
pub fn taken() -> impl Iterator<Item = (&'static str, u64)> {
    let counts = TAKEN.iter().map(|count| count.load(Ordering::Relaxed));
    ["return", "stale", "upstream"].into_iter().zip(counts)
}

static TAKEN: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
