//! What fails is left alone for a while: a circuit breaker.
//!
//! One for each server of an upstream that asks for it, and one for each location that does; shared by all event
//! loops. While all is well, asking one costs a look at a word and reporting to it a short lock; who has none pays
//! for neither.
//!
//! The calls of the last while, counted in buckets: what is old falls out a tenth of the window at a time.

pub(super) mod machine;
#[cfg(test)]
pub(super) mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;

use self::machine::StateMachine;
use super::error::Error;
use crate::clock::{Clock, Millis};
use crate::config::plan;
use crate::message::{RequestBody, UploadProgress, grpc};

pub use self::machine::{CallTicket, TURNED_OFF};

/// A circuit breaker.
#[derive(Debug)]
pub struct Breaker {
    /// Whom it protects, for the log.
    name: Box<str>,
    plan: plan::Breaker,
    /// The epoch, and in the last bit whether all are let through: what a call needs to know while all is well.
    gate: AtomicU32,
    opened: AtomicU64,
    machine: Mutex<StateMachine>,
}

/// What a breaker lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Everybody.
    Closed,
    /// A few, to see.
    HalfOpen,
    /// Nobody.
    Open,
}

/// What an operator may want of a breaker, whatever it has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForcedState {
    /// Everybody is let through.
    Closed,
    /// Nobody is.
    Open,
}

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    /// It was answered, after this time.
    Answer(Duration),
    /// Nobody will know: the client left, or it was never made.
    Cancelled,
    /// It failed.
    Failure,
}

/// Nobody is let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the circuit breaker is open")]
pub struct BreakerOpen {
    /// When it may be worth another try.
    pub retry_after: Duration,
}

/// A call that was let through. Dropped without a [report](CallPermit::report), it counts as never made; one that is
/// [watched](CallPermit::watch) and was slow by then counts as slow.
// Not `Clone`: a probe's place would be given back twice.
#[derive(Debug)]
pub struct CallPermit<'b> {
    breaker: &'b Breaker,
    ticket: CallTicket,
    since: Millis,
    watch: Option<CallTimer<'b>>,
    reported: bool,
}

/// What tells how long a call has lasted.
#[derive(Debug)]
struct CallTimer<'b> {
    clock: &'b Clock,
    /// The client's part of it: the backend has no answer to what it has not heard.
    upload: Option<Arc<UploadProgress>>,
}

impl Breaker {
    /// A closed one; `name` is for the log.
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

    /// Lets a call through, or does not.
    ///
    /// # Errors
    ///
    /// It is open, or half-open and enough are on their way to see.
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
            watch: None,
            reported: false,
        })
    }

    /// A call that was let through with this ticket and reported as answered has come to nothing after all.
    pub fn regret(&self, ticket: CallTicket, now: Millis) {
        self.change(|machine| machine.regret(&self.plan, ticket, now));
    }

    /// An operator decides; `None` lets it decide for itself again.
    pub fn force(&self, forced: Option<ForcedState>) {
        self.change(|machine| machine.force(forced));
    }

    /// Lets the first calls through again if it has been open for long enough; until when it is open, if it has not.
    pub fn wake(&self, now: Millis) -> Option<Millis> {
        self.change(|machine| {
            machine.wake(&self.plan, now);
            machine.open_until()
        })
    }

    /// Until when nobody is let through.
    #[must_use]
    pub fn open_until(&self) -> Option<Millis> {
        match self.gate.load(Ordering::Acquire) & CLOSED {
            CLOSED => None,
            _ => self.machine.lock().open_until(),
        }
    }

    /// How long nobody is let through, as far as that is known.
    #[must_use]
    pub fn wait(&self, now: Millis) -> Option<Duration> {
        self.machine.lock().wait(now)
    }

    /// What it lets through at present.
    #[must_use]
    pub fn state(&self) -> BreakerState {
        self.machine.lock().state()
    }

    /// What an operator wants of it.
    #[must_use]
    pub fn forced(&self) -> Option<ForcedState> {
        self.machine.lock().forced()
    }

    /// How often it has opened.
    #[must_use]
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// What it goes by.
    #[must_use]
    pub fn plan(&self) -> &plan::Breaker {
        &self.plan
    }

    /// Whom it protects.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
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
            self.tell(after);
        }
        result
    }

    fn tell(&self, state: BreakerState) {
        let breaker = &*self.name;
        match state {
            BreakerState::Closed => tracing::info!(breaker, "circuit breaker closed"),
            BreakerState::HalfOpen => tracing::info!(breaker, "circuit breaker half-open"),
            BreakerState::Open => {
                self.opened.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(breaker, "circuit breaker open");
            }
        }
    }
}

impl BreakerState {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Closed, Self::HalfOpen, Self::Open];

    /// As metrics and programs know it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}

impl CallOutcome {
    /// What an error means to a breaker.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        match error {
            Error::Client(_) | Error::Unavailable { .. } => Self::Cancelled,
            error if error.is_ours() => Self::Cancelled,
            _ => Self::Failure,
        }
    }
}

impl BreakerOpen {
    fn for_a_while(retry_after: Duration) -> Self {
        Self { retry_after }
    }
}

impl<'b> CallPermit<'b> {
    /// Who let it through.
    #[must_use]
    pub fn breaker(&self) -> &'b Breaker {
        self.breaker
    }

    /// What it was let through as.
    #[must_use]
    pub fn ticket(&self) -> CallTicket {
        self.ticket
    }

    /// From now on this clock tells how long it lasts, where that matters; what the client needs to send its body is
    /// not the backend's time.
    #[must_use]
    pub fn watch(mut self, clock: &'b Clock, upload: &mut RequestBody) -> Self {
        if self.breaker.plan.slow.is_some() {
            let upload = upload.timed(clock);
            self.watch = Some(CallTimer { clock, upload });
        }
        self
    }

    /// What an answer means to the breaker whose head has come just now.
    #[must_use]
    pub fn outcome(&self, status: StatusCode, headers: &HeaderMap, now: Millis) -> CallOutcome {
        match self.breaker.plan.statuses.contains(&status) || grpc::failed(headers) {
            true => CallOutcome::Failure,
            false => CallOutcome::Answer(self.taken(now)),
        }
    }

    /// How long the backend has had by now, since all of the request was there.
    fn taken(&self, now: Millis) -> Duration {
        let upload = self.watch.as_ref().and_then(|watch| watch.upload.as_ref());
        match upload.map(|upload| upload.ended_at()) {
            None => now.since(self.since),
            Some(Some(ended)) => now.since(ended.max(self.since)),
            Some(None) => Duration::ZERO,
        }
    }

    /// What became of it if nobody waits for it any more.
    fn abandoned(&self) -> (CallOutcome, Millis) {
        // The time makes no difference to what is not counted.
        let Some(watch) = &self.watch else {
            return (CallOutcome::Cancelled, Millis::default());
        };
        let now = watch.clock.now();
        let taken = self.taken(now);
        let slow = self
            .breaker
            .plan
            .slow
            .is_some_and(|(limit, _)| taken >= limit);
        match slow {
            true => (CallOutcome::Answer(taken), now),
            false => (CallOutcome::Cancelled, now),
        }
    }

    /// What became of it.
    pub fn report(mut self, outcome: CallOutcome, now: Millis) {
        self.reported = true;
        self.settle(outcome, now);
    }

    fn settle(&self, outcome: CallOutcome, now: Millis) {
        let (breaker, ticket) = (self.breaker, self.ticket);
        breaker.change(|machine| machine.report(&breaker.plan, ticket, outcome, now));
    }
}

impl Drop for CallPermit<'_> {
    fn drop(&mut self) {
        if !self.reported {
            let (outcome, now) = self.abandoned();
            self.settle(outcome, now);
        }
    }
}

/// What calls look at first.
fn gate(machine: &StateMachine) -> u32 {
    machine.epoch() << 1 | u32::from(machine.state() == BreakerState::Closed)
}

const CLOSED: u32 = 1;

/// A sliding window over calls.
#[derive(Debug)]
struct CallWindow {
    /// Of a bucket.
    width: u64,
    buckets: [CallBucket; BUCKETS],
}

/// Calls of a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CallCounts {
    calls: u32,
    failures: u32,
    slow: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct CallBucket {
    /// Which stretch of time it counts, from the beginning of the clock.
    number: u64,
    tally: CallCounts,
}

impl CallWindow {
    fn new(length: Duration) -> Self {
        let length = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        Self {
            width: (length / BUCKETS as u64).max(1),
            buckets: [CallBucket::default(); BUCKETS],
        }
    }

    /// Counts these with what happens `now`.
    fn add(&mut self, now: Millis, more: CallCounts) {
        let number = now.0 / self.width;
        let bucket = &mut self.buckets[(number % BUCKETS as u64) as usize];
        if bucket.number != number {
            *bucket = CallBucket {
                number,
                tally: CallCounts::default(),
            };
        }
        bucket.tally = bucket.tally.and(more);
    }

    /// All that has happened within the window that ends `now`.
    fn total(&self, now: Millis) -> CallCounts {
        let newest = now.0 / self.width;
        self.buckets
            .iter()
            .filter(|bucket| newest.saturating_sub(bucket.number) < BUCKETS as u64)
            .fold(CallCounts::default(), |sum, bucket| sum.and(bucket.tally))
    }

    fn clear(&mut self) {
        self.buckets = [CallBucket::default(); BUCKETS];
    }
}

impl CallCounts {
    fn and(self, more: Self) -> Self {
        Self {
            calls: self.calls.saturating_add(more.calls),
            failures: self.failures.saturating_add(more.failures),
            slow: self.slow.saturating_add(more.slow),
        }
    }
}

const BUCKETS: usize = 10;

#[cfg(test)]
mod window_tests {

    use proptest::prelude::*;

    use super::*;

    const CALL: CallCounts = CallCounts {
        calls: 1,
        failures: 0,
        slow: 0,
    };

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let mut window = CallWindow::new(Duration::from_secs(10));
        window.add(Millis(500), CALL);
        window.add(Millis(9_999), CALL);
        assert_eq!(window.total(Millis(9_999)).calls, 2);
        assert_eq!(window.total(Millis(10_000)).calls, 1);
        assert_eq!(window.total(Millis(18_999)).calls, 1);
        assert_eq!(window.total(Millis(19_000)).calls, 0);
    }

    proptest! {
        /// Against a list of all that ever happened.
        #[test]
        fn a_window_counts_what_a_list_would(steps in proptest::collection::vec(0u64..3_000, 0..200)) {
            let mut window = CallWindow::new(Duration::from_secs(10));
            let (mut now, mut list) = (0, Vec::new());
            for step in steps {
                now += step;
                list.push(now);
                window.add(Millis(now), CALL);
                let since = (now / 1000).saturating_sub(9) * 1000;
                let expected = list.iter().filter(|at| **at >= since).count();
                prop_assert_eq!(window.total(Millis(now)).calls as usize, expected);
            }
        }
    }
}
