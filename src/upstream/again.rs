//! Trying again: what `retry_budget` grants, and what is left to give where nobody else can be asked.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use http::Response;

use super::ask::AttemptResponse;
use super::backend::{ActiveRequest, Backend};
use super::budget::{self, RetryGrant};
use super::error::Error;
use super::retry::RetryState;
use super::{Upstream, UpstreamBody};
use crate::clock::{Clock, Millis};
use crate::config::plan;
use crate::message::RequestRecord;

/// What the last try of a request gave, while it is looked for somebody else to ask.
#[derive(Debug)]
pub(super) enum LastResult {
    // Without its lease: it must not keep its own backend from being asked again.
    Answer(Box<AttemptResponse>, Arc<Backend>),
    Error(Error),
}

impl Upstream {
    /// A request begins; whether it may ask all backends again when all have failed.
    pub(super) fn begin(&self, now: Millis) -> bool {
        self.budget.as_ref().is_some_and(|budget| {
            budget.earn(now);
            budget.backoff().is_some()
        })
    }

    /// Whether there is enough left for one more try.
    pub(super) fn may_retry(&self, now: Millis) -> bool {
        let Some(budget) = &self.budget else {
            return true;
        };
        let spent = budget.spend(now);
        if spent == (RetryGrant::Denied { is_news: true }) {
            let upstream = &*self.name;
            tracing::warn!(upstream, "retry budget is spent, requests are tried once");
        }
        spent == RetryGrant::Granted
    }

    /// All backends have failed: waits before they are asked again, if they may be.
    pub(super) async fn rest(&self, errand: &mut RetryState<'_>, now: Millis) -> bool {
        let Some(backoff) = self.budget.as_ref().and_then(|budget| budget.backoff()) else {
            return false;
        };
        let rounds = errand.rounds();
        let pause = budget::pause(backoff, rounds, RandomState::new().hash_one(rounds));
        // Whom checks and breakers keep away is not back in a moment.
        let may =
            errand.may_wait(pause, now) && matches!(self.why_nobody(now), Error::NoLiveBackend);
        if may {
            errand.go_round();
            tokio::time::sleep(pause).await;
        }
        may
    }

    /// Nobody else can be asked: the last word is what the last try gave; if there was none, `why` or what is known of it.
    pub(super) fn end(
        &self,
        why: Option<Error>,
        last: Option<LastResult>,
        forward: &plan::ProxyPass,
        clock: &Clock,
        exchange: &mut RequestRecord,
        now: Millis,
    ) -> Result<Response<UpstreamBody>, Error> {
        match last {
            Some(LastResult::Answer(answer, backend)) => {
                let lease = backend.resume();
                Ok(UpstreamBody::begin(*answer, lease, forward, clock))
            }
            Some(LastResult::Error(error)) => Err(error),
            None => {
                let why = why.unwrap_or_else(|| self.why_nobody(now));
                Err(self.untried(why, exchange))
            }
        }
    }
}

impl LastResult {
    pub(super) fn answer(answer: AttemptResponse, lease: &ActiveRequest) -> Self {
        Self::Answer(Box::new(answer), Arc::clone(lease))
    }
}
