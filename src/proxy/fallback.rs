//! `fallback`: another response where the location's own content has failed.
//!
//! A location may name another upstream, serve the last good response again, or have a fixed one; they are tried in this
//! order. Where none of them helps, the client gets the response it would get without a fallback.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::content::{Content, ProxyPass, respond_return};
use super::context::RequestContext;
use super::error::{Outcome, ProxyError};
use super::filter::Filters;
use super::stale_cache::StaleRules;
use crate::config::plan::{self, DegradeMode};
use crate::message::headers::MaxForwards;
use crate::message::{IncomingBody, grpc, headers};
use crate::upstream;

/// A location's `fallback`.
#[derive(Debug)]
pub(super) struct Fallback {
    pub(super) plan: plan::Fallback,
    pub(super) proxy_pass: Option<ProxyPass>,
    pub(super) stale: Option<Arc<StaleRules>>,
}

/// The source of a fallback response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FallbackKind {
    Return,
    Stale,
    Upstream,
}

impl Fallback {
    /// Whether this outcome is replaced, if there is something to replace it with.
    fn replaces(&self, outcome: &Outcome) -> bool {
        let on = &self.plan.on;
        match outcome {
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

    /// Replaces an outcome that `fallback` is for by the first available response; `filters` and `content` are the
    /// location's.
    pub(super) async fn replace(
        &self,
        cx: &mut RequestContext,
        (filters, content): (&Filters, &Content),
        outcome: Outcome,
        unread: &mut Option<IncomingBody>,
    ) -> Outcome {
        if !self.replaces(&outcome) || filters.degrade_mode() == DegradeMode::Off {
            return outcome;
        }
        // A request that was refused before `allow` and `deny` must not evade them.
        if !filters.admits(cx.record.client()) {
            return Err(ProxyError::Forbidden);
        }
        if let Some(proxy_pass) = &self.proxy_pass
            && may_use_other_upstream(cx)
        {
            let second = proxy_pass.respond_as_fallback(cx, unread).await?;
            if second.is_ok() && !self.replaces(&second) {
                return FallbackKind::Upstream.count(second);
            }
        }
        let record = &mut cx.record;
        if grpc::is_call(&record.head) {
            return outcome;
        }
        if let Some(stale) = &self.stale
            && let Some(mut cached) = stale.response(record, cx.clock.now())
        {
            if let Content::ProxyPass(proxy_pass) = content {
                headers::rewrite_redirects(cached.headers_mut(), record, &proxy_pass.conf);
            }
            return FallbackKind::Stale.count(Ok(cached));
        }
        match &self.plan.answer {
            Some(fixed) => FallbackKind::Return.count(respond_return(fixed, record)),
            None => outcome,
        }
    }
}

/// Whether a request can be sent to another upstream: its body was not begun or is at hand, and the request has had no
/// effect yet that must not happen twice.
fn may_use_other_upstream(cx: &RequestContext) -> bool {
    let record = &cx.record;
    let sent = record
        .attempts
        .iter()
        .any(|attempt| attempt.connect.is_some());
    let max_forwards = headers::max_forwards(&record.head);
    matches!(max_forwards, MaxForwards::Any | MaxForwards::Left(1..))
        && (cx.progress.is_none() || cx.spare_body.is_some())
        && (!sent || upstream::is_idempotent(&record.head.method))
}

impl FallbackKind {
    fn count(self, outcome: Outcome) -> Outcome {
        COUNTS[self as usize].fetch_add(1, Ordering::Relaxed);
        outcome
    }
}

/// The number of responses of each kind of fallback.
pub fn fallback_counts() -> impl Iterator<Item = (&'static str, u64)> {
    let counts = COUNTS.iter().map(|count| count.load(Ordering::Relaxed));
    ["return", "stale", "upstream"].into_iter().zip(counts)
}

static COUNTS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
