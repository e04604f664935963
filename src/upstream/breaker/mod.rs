//! Circuit breakers: servers and locations that fail receive no requests for a while.
//!
//! A server of an upstream and a location have one each where the configuration asks for it, shared by all event loops.
//! While it is closed, a request costs one atomic load and one short lock.

mod machine;
#[cfg(test)]
pub(super) mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;

use self::machine::StateMachine;
use crate::clock::{Clock, Millis};
use crate::config::plan;
use crate::message::{RequestBody, UploadProgress, grpc};

pub use self::machine::{
    BreakerOpen, BreakerState, CallOutcome, CallTicket, ForcedState, TURNED_OFF,
};

/// A circuit breaker.
#[derive(Debug)]
pub struct Breaker {
    /// The server or location it protects, for the log.
    name: Box<str>,
    /// Its settings.
    pub plan: plan::Breaker,
    /// The epoch, and in the last bit whether it is closed: all that a call has to read while it is.
    gate: AtomicU32,
    opened: AtomicU64,
    machine: Mutex<StateMachine>,
}

/// A call that was admitted. Dropped without a [report](CallPermit::report), it counts as cancelled, or as slow if it
/// is [timed](CallPermit::timed) and was slow by then.
// Not `Clone`: the slot of a probe would be given back twice.
#[derive(Debug)]
pub struct CallPermit<'b> {
    /// The breaker that admitted it.
    pub breaker: &'b Breaker,
    /// What it was admitted as.
    pub ticket: CallTicket,
    since: Millis,
    timer: Option<CallTimer<'b>>,
    reported: bool,
}

/// Measures how long a call has lasted.
#[derive(Debug)]
struct CallTimer<'b> {
    clock: &'b Clock,
    /// The time that the client takes to send the body: the backend cannot respond before it has the request.
    upload: Option<Arc<UploadProgress>>,
}

impl Breaker {
    /// A closed breaker; `name` is for the log.
    #[must_use]
    pub fn new(name: impl Into<Box<str>>, plan: &plan::Breaker) -> Self {
        let machine = StateMachine::new(plan);
        Self {
            name: name.into(),
            plan: plan.clone(),
            gate: AtomicU32::new(gate(&machine)),
            opened: AtomicU64::new(0),
            machine: Mutex::new(machine),
        }
    }

    /// Admits a call.
    ///
    /// # Errors
    ///
    /// The breaker is open, or half-open with enough probes on their way.
    pub fn admit(&self, now: Millis) -> Result<CallPermit<'_>, BreakerOpen> {
        let gate = self.gate.load(Ordering::Acquire);
        let ticket = match gate & CLOSED {
            CLOSED => CallTicket {
                epoch: gate >> 1,
                lapses: 0,
            },
            _ => self.change(|machine| machine.admit(&self.plan, now))?,
        };
        Ok(CallPermit {
            breaker: self,
            ticket,
            since: now,
            timer: None,
            reported: false,
        })
    }

    /// The response of a call that was reported was cut short: it counts as a failure.
    pub fn revoke(&self, ticket: CallTicket, now: Millis) {
        self.change(|machine| machine.revoke(&self.plan, ticket, now));
    }

    /// Forces a state, or with `None` lets the breaker decide again.
    pub fn force(&self, forced: Option<ForcedState>) {
        self.change(|machine| machine.force(forced));
    }

    /// Becomes half-open if the open time is over, else returns when that will be.
    pub fn wake(&self, now: Millis) -> Option<Millis> {
        self.change(|machine| {
            machine.wake(&self.plan, now);
            machine.open_until()
        })
    }

    /// The end of the open time.
    #[must_use]
    pub fn open_until(&self) -> Option<Millis> {
        match self.gate.load(Ordering::Acquire) & CLOSED {
            CLOSED => None,
            _ => self.machine.lock().open_until(),
        }
    }

    /// How long it stays open, as far as that is known.
    #[must_use]
    pub fn wait(&self, now: Millis) -> Option<Duration> {
        self.machine.lock().wait(now)
    }

    /// The present state.
    #[must_use]
    pub fn state(&self) -> BreakerState {
        self.machine.lock().state()
    }

    /// The state that an operator forces.
    #[must_use]
    pub fn forced(&self) -> Option<ForcedState> {
        self.machine.lock().forced
    }

    /// How often it has opened.
    #[must_use]
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    fn change<T>(&self, change: impl FnOnce(&mut StateMachine) -> T) -> T {
        let (before, after, result) = {
            let mut machine = self.machine.lock();
            let before = machine.state();
            let result = change(&mut machine);
            self.gate.store(gate(&machine), Ordering::Release);
            (before, machine.state(), result)
        };
        if before != after {
            let breaker = &*self.name;
            match after {
                BreakerState::Closed => tracing::info!(breaker, "circuit breaker closed"),
                BreakerState::HalfOpen => tracing::info!(breaker, "circuit breaker half-open"),
                BreakerState::Open => {
                    self.opened.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(breaker, "circuit breaker open");
                }
            }
        }
        result
    }
}

impl<'b> CallPermit<'b> {
    /// Measures the call from now on where slow calls count. The time that the client needs to send the body is not
    /// the backend's.
    #[must_use]
    pub fn timed(mut self, clock: &'b Clock, body: &mut RequestBody) -> Self {
        if self.breaker.plan.slow.is_some() {
            let upload = body.timed(clock);
            self.timer = Some(CallTimer { clock, upload });
        }
        self
    }

    /// The outcome of a call whose response headers have arrived just now.
    #[must_use]
    pub fn outcome(&self, status: StatusCode, headers: &HeaderMap, now: Millis) -> CallOutcome {
        match self.breaker.plan.statuses.contains(&status) || grpc::failed(headers) {
            true => CallOutcome::Failure,
            false => CallOutcome::Response(self.taken(now)),
        }
    }

    /// How long the backend has had the complete request.
    fn taken(&self, now: Millis) -> Duration {
        let upload = self.timer.as_ref().and_then(|timer| timer.upload.as_ref());
        match upload.map(|upload| upload.ended_at()) {
            None => now.since(self.since),
            Some(Some(ended)) => now.since(ended.max(self.since)),
            Some(None) => Duration::ZERO,
        }
    }

    /// Reports the outcome.
    pub fn report(mut self, outcome: CallOutcome, now: Millis) {
        self.reported = true;
        self.finish(outcome, now);
    }

    fn finish(&self, outcome: CallOutcome, now: Millis) {
        let (breaker, ticket) = (self.breaker, self.ticket);
        breaker.change(|machine| machine.report(&breaker.plan, ticket, outcome, now));
    }
}

impl Drop for CallPermit<'_> {
    fn drop(&mut self) {
        if self.reported {
            return;
        }
        let slow = self.timer.as_ref().zip(self.breaker.plan.slow);
        let slow = slow.and_then(|(timer, (limit, _))| {
            let now = timer.clock.now();
            let taken = self.taken(now);
            (taken >= limit).then_some((taken, now))
        });
        match slow {
            Some((taken, now)) => self.finish(CallOutcome::Response(taken), now),
            // The time makes no difference to a call that does not count.
            None => self.finish(CallOutcome::Cancelled, Millis::default()),
        }
    }
}

/// What calls read first.
fn gate(machine: &StateMachine) -> u32 {
    machine.epoch << 1 | u32::from(machine.state() == BreakerState::Closed)
}

const CLOSED: u32 = 1;
