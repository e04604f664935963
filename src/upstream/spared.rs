//! Servers that are not asked for a while: what their breakers say becomes a bar on them, and when nobody is left, the
//! client is told when to come back.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Upstream;
use super::ask::AttemptResponse;
use super::backend::Backend;
use super::breaker::{Breaker, BreakerOpen, BreakerState, CallOutcome, CallPermit, ForcedState};
use super::condition::UnavailableReason;
use super::error::Error;
use super::failed::AttemptError;
use crate::clock::{Clock, Millis};
use crate::message::RequestBody;

impl Upstream {
    /// Why nobody is asked and for how long, if health checks and breakers are the reason.
    #[must_use]
    pub fn unavailable(&self, now: Millis) -> Option<Duration> {
        self.wake(now);
        self.spared(now, |backend| {
            backend.is_barred_by(UnavailableReason::Breaker)
        })
    }

    /// Has the breaker of a server do what an operator wants, or lets it judge again; whether there is such a server.
    pub fn force(&self, server: &str, forced: Option<ForcedState>) -> bool {
        let backends = self.backends();
        let mut backends = backends.iter().filter(|backend| *backend.name == *server);
        let Some((backend, breaker)) =
            backends.find_map(|backend| Some((backend, backend.breaker.as_deref()?)))
        else {
            return false;
        };
        breaker.force(forced);
        match breaker.open_until() {
            Some(until) => self.spare(backend, until),
            None => backend.unbar(UnavailableReason::Breaker),
        }
        true
    }

    /// Lets those be asked again whose breaker has been open for long enough.
    pub(super) fn wake(&self, now: Millis) {
        if now.0 < self.wakes.load(Ordering::Relaxed) {
            return;
        }
        // First this: a breaker that opens meanwhile is seen now, or brings the time forward after this.
        self.wakes.store(u64::MAX, Ordering::Relaxed);
        for backend in &self.backends() {
            match backend.breaker.as_deref().map(|breaker| breaker.wake(now)) {
                Some(Some(until)) => self.spare(backend, until),
                Some(None) => backend.unbar(UnavailableReason::Breaker),
                None => {}
            }
        }
    }

    /// Leave to ask a backend; `None` where nobody has to be asked for it.
    pub(super) fn admit<'b>(
        &self,
        backend: &'b Backend,
        upload: &mut RequestBody,
        clock: &'b Clock,
        now: Millis,
    ) -> Result<Option<CallPermit<'b>>, BreakerOpen> {
        let Some(breaker) = &backend.breaker else {
            return Ok(None);
        };
        let admitted = breaker.admit(now).inspect_err(|_| {
            // It opened when nobody was there to bar it.
            if let Some(until) = breaker.open_until() {
                self.spare(backend, until);
            }
        });
        admitted.map(|pass| Some(pass.watch(clock, upload)))
    }

    /// Tells a backend's breaker what came of a try.
    pub(super) fn book(
        &self,
        backend: &Backend,
        pass: Option<CallPermit<'_>>,
        tried: &mut Result<AttemptResponse, AttemptError>,
        now: Millis,
    ) {
        let Some(pass) = pass else { return };
        let breaker = pass.breaker();
        let outcome = match tried {
            Ok(answer) => {
                answer.ticket = Some(pass.ticket());
                pass.outcome(answer.head.status, &answer.head.headers, answer.came)
            }
            Err(failed) if failed.is_stale() => CallOutcome::Cancelled,
            Err(failed) => CallOutcome::of(&failed.error),
        };
        pass.report(outcome, now);
        if let Some(until) = breaker.open_until() {
            self.spare(backend, until);
        }
    }

    /// What to say when nobody could be asked.
    pub(super) fn why_nobody(&self, now: Millis) -> Error {
        // Half-open, with enough on their way to see.
        let is_open = |breaker: &Breaker| breaker.state() != BreakerState::Closed;
        let spared = self.spared(now, |backend| {
            backend.breaker.as_deref().is_some_and(is_open)
        });
        match spared {
            Some(retry_after) => Error::Unavailable { retry_after },
            None => Error::NoLiveBackend,
        }
    }

    /// How long until the first of them may be asked, if it is for their health or their breaker that none is.
    fn spared(&self, now: Millis, is_open: impl Fn(&Backend) -> bool) -> Option<Duration> {
        let mut soonest = None;
        for backend in &self.backends() {
            let left = [
                UnavailableReason::Down,
                UnavailableReason::Drained,
                UnavailableReason::Draining,
            ];
            if left.into_iter().any(|bar| backend.is_barred_by(bar)) {
                continue;
            }
            let health = backend.health.as_ref();
            let wait = if let Some(health) = health.filter(|health| !health.is_healthy()) {
                health.interval()
            } else if is_open(backend) {
                let breaker = backend.breaker.as_ref();
                let wait = breaker.and_then(|breaker| breaker.wait(now));
                wait.unwrap_or_default()
            } else {
                return None;
            };
            soonest = Some(soonest.map_or(wait, |soonest: Duration| soonest.min(wait)));
        }
        soonest
    }

    fn spare(&self, backend: &Backend, until: Millis) {
        backend.bar(UnavailableReason::Breaker);
        self.wakes.fetch_min(until.0, Ordering::Relaxed);
    }
}
