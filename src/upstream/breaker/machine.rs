//! The states of a circuit breaker and its transitions. Pure: the time is an argument.
//!
//! ```text
//!            too many calls fail or are slow
//!   closed ----------------------------> open  <--.
//!     ^                                   |       | a probe fails: the open
//!     |              the open time is over|       | time doubles
//!     |                                   v       |
//!     '------------------------------- half-open -'
//!         the probes succeed, or the ramp is over
//! ```
//!
//! A call belongs to the state it was admitted in: its outcome says nothing about the next one. Each transition begins
//! an epoch, and the outcome of a call from an earlier epoch is ignored.

use std::time::Duration;

use crate::clock::Millis;
use crate::config::plan;
use crate::upstream::error::Error;

/// What a breaker admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// All calls.
    Closed,
    /// A few, as probes.
    HalfOpen,
    /// None.
    Open,
}

/// A state that an operator forces, whatever the breaker has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForcedState {
    /// All calls are admitted.
    Closed,
    /// None is.
    Open,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    /// With a response, after this time.
    Response(Duration),
    /// The client left, or the call was never made: it does not count.
    Cancelled,
    /// With a failure.
    Failure,
}

/// The call is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the circuit breaker is open")]
pub struct BreakerOpen {
    /// When to try again.
    pub retry_after: Duration,
}

/// What an admitted call was admitted as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallTicket {
    pub(super) epoch: u32,
    /// Its slot is among those given after so many lapses.
    pub(super) lapses: u32,
}

impl BreakerState {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Closed, Self::HalfOpen, Self::Open];

    /// Its name in metrics and in the API.
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
    /// The outcome of a call that ended with this error.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        match error {
            Error::Client(_) | Error::Unavailable { .. } => Self::Cancelled,
            error if error.is_ours() => Self::Cancelled,
            _ => Self::Failure,
        }
    }
}

/// The state of a breaker.
#[derive(Debug)]
pub(super) struct StateMachine {
    phase: BreakerPhase,
    window: CallWindow,
    /// How often in a row it has opened without having recovered in between.
    relapses: u32,
    /// When it closed last after being open.
    recovered: Option<Millis>,
    pub(super) forced: Option<ForcedState>,
    pub(super) epoch: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BreakerPhase {
    Closed,
    Open {
        until: Millis,
    },
    Probing(ProbeSlots),
    Ramping {
        since: Millis,
        /// What is saved towards admitting the next call, in thousandths of a call.
        credit: u32,
    },
}

/// The probes of a half-open breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProbeSlots {
    /// Those in progress that hold a slot.
    active: u32,
    /// Those that succeeded.
    passed: u32,
    /// When the latest was admitted.
    latest: Millis,
    /// How often those in progress have lost their slots.
    lapses: u32,
}

impl StateMachine {
    pub(super) fn new(plan: &plan::Breaker) -> Self {
        Self {
            phase: BreakerPhase::Closed,
            window: CallWindow::new(plan.window),
            relapses: 0,
            recovered: None,
            forced: None,
            epoch: 0,
        }
    }

    /// Admits a call or refuses it.
    pub(super) fn admit(
        &mut self,
        plan: &plan::Breaker,
        now: Millis,
    ) -> Result<CallTicket, BreakerOpen> {
        let refused = |retry_after| Err(BreakerOpen { retry_after });
        match self.forced {
            Some(ForcedState::Closed) => return Ok(self.ticket()),
            Some(ForcedState::Open) => return refused(TURNED_OFF),
            None => self.wake(plan, now),
        }
        match &mut self.phase {
            BreakerPhase::Closed => {}
            BreakerPhase::Open { until } => return refused(until.since(now)),
            BreakerPhase::Probing(probes) => {
                let plan::Recovery::Probes(most) = plan.recovery else {
                    return refused(SHORTEST_WAIT);
                };
                if !probes.admit(most, plan.open_for, now) {
                    return refused(SHORTEST_WAIT);
                }
            }
            BreakerPhase::Ramping { since, credit } => {
                let share = ramp_share(*since, plan, now);
                if share >= WHOLE {
                    self.close(now);
                    return Ok(self.ticket());
                }
                *credit += share.max(LEAST_SHARE);
                if *credit < WHOLE {
                    return refused(SHORTEST_WAIT);
                }
                *credit -= WHOLE;
            }
        }
        Ok(self.ticket())
    }

    /// Takes in the outcome of a call.
    pub(super) fn report(
        &mut self,
        plan: &plan::Breaker,
        ticket: CallTicket,
        outcome: CallOutcome,
        now: Millis,
    ) {
        if ticket.epoch != self.epoch {
            return;
        }
        let slow = matches!((plan.slow, outcome), (Some((limit, _)), CallOutcome::Response(taken)) if taken >= limit);
        let failed = outcome == CallOutcome::Failure;
        match (&mut self.phase, outcome) {
            (BreakerPhase::Probing(probes), CallOutcome::Cancelled) => probes.give_back(ticket),
            (_, CallOutcome::Cancelled) | (BreakerPhase::Open { .. }, _) => {}
            (BreakerPhase::Probing(_), _) if failed || slow => self.open(plan, now),
            (BreakerPhase::Probing(probes), _) => {
                probes.give_back(ticket);
                probes.passed += 1;
                if plan.recovery == plan::Recovery::Probes(probes.passed) {
                    self.close(now);
                }
            }
            (BreakerPhase::Closed | BreakerPhase::Ramping { .. }, _) => {
                self.window.add(now, 1, failed.into(), slow.into());
                if failed || slow {
                    self.open_if_failing(plan, now);
                }
            }
        }
    }

    /// Turns a call that was reported with a response into a failure: its response was cut short.
    pub(super) fn revoke(&mut self, plan: &plan::Breaker, ticket: CallTicket, now: Millis) {
        if ticket.epoch != self.epoch {
            return;
        }
        match self.phase {
            BreakerPhase::Open { .. } => {}
            BreakerPhase::Probing(_) => self.open(plan, now),
            BreakerPhase::Closed | BreakerPhase::Ramping { .. } => {
                self.window.add(now, 0, 1, 0);
                self.open_if_failing(plan, now);
            }
        }
    }

    /// Becomes half-open if the open time is over.
    pub(super) fn wake(&mut self, plan: &plan::Breaker, now: Millis) {
        if let BreakerPhase::Open { until } = self.phase
            && until <= now
        {
            self.enter(match plan.recovery {
                plan::Recovery::Probes(_) => BreakerPhase::Probing(ProbeSlots {
                    active: 0,
                    passed: 0,
                    latest: now,
                    lapses: 0,
                }),
                // Enough credit for the first call.
                plan::Recovery::Ramp { .. } => BreakerPhase::Ramping {
                    since: now,
                    credit: WHOLE,
                },
            });
        }
    }

    /// Forces a state, or lets the breaker decide again from the beginning.
    pub(super) fn force(&mut self, forced: Option<ForcedState>) {
        self.forced = forced;
        self.relapses = 0;
        self.recovered = None;
        self.enter(BreakerPhase::Closed);
    }

    pub(super) fn state(&self) -> BreakerState {
        match (self.forced, self.phase) {
            (Some(ForcedState::Closed), _) | (None, BreakerPhase::Closed) => BreakerState::Closed,
            (Some(ForcedState::Open), _) | (None, BreakerPhase::Open { .. }) => BreakerState::Open,
            (None, BreakerPhase::Probing(_) | BreakerPhase::Ramping { .. }) => {
                BreakerState::HalfOpen
            }
        }
    }

    /// The end of the open time; none in sight where an operator forces it.
    pub(super) fn open_until(&self) -> Option<Millis> {
        match (self.forced, self.phase) {
            (Some(ForcedState::Open), _) => Some(Millis(u64::MAX)),
            (None, BreakerPhase::Open { until }) => Some(until),
            _ => None,
        }
    }

    /// How long it stays open, as far as that is known.
    pub(super) fn wait(&self, now: Millis) -> Option<Duration> {
        match self.forced {
            Some(ForcedState::Open) => Some(TURNED_OFF),
            _ => self.open_until().map(|until| until.since(now)),
        }
    }

    fn ticket(&self) -> CallTicket {
        CallTicket {
            epoch: self.epoch,
            lapses: match self.phase {
                BreakerPhase::Probing(probes) => probes.lapses,
                _ => 0,
            },
        }
    }

    /// Opens if too many calls of the window failed or were slow.
    fn open_if_failing(&mut self, plan: &plan::Breaker, now: Millis) {
        let counts = self.window.total(now);
        let least = match (self.phase, plan.recovery) {
            (BreakerPhase::Ramping { .. }, plan::Recovery::Ramp { min_calls, .. }) => {
                plan.min_calls.min(min_calls)
            }
            _ => plan.min_calls,
        };
        let reached = |share: plan::CallShare, count| {
            counts.calls >= least && count > 0 && share.is_reached(count, counts.calls)
        };
        let ratio = plan.failure_ratio;
        if plan.failures.is_some_and(|most| counts.failures >= most)
            || ratio.is_some_and(|share| reached(share, counts.failures))
            || plan
                .slow
                .is_some_and(|(_, share)| reached(share, counts.slow))
        {
            self.open(plan, now);
        }
    }

    fn open(&mut self, plan: &plan::Breaker, now: Millis) {
        // One that opens again soon after it closed has not recovered in between.
        let relapsed = match self.phase {
            BreakerPhase::Closed => self
                .recovered
                .is_some_and(|recovered| now.since(recovered) < plan.window),
            _ => true,
        };
        self.relapses = match relapsed {
            true => self.relapses.saturating_add(1),
            false => 0,
        };
        let times = 1u32.checked_shl(self.relapses).unwrap_or(u32::MAX);
        let time = plan.open_for.saturating_mul(times);
        self.enter(BreakerPhase::Open {
            until: now.after(time.min(plan.max_open_for)),
        });
    }

    fn close(&mut self, now: Millis) {
        self.recovered = Some(now);
        self.enter(BreakerPhase::Closed);
    }

    fn enter(&mut self, phase: BreakerPhase) {
        self.phase = phase;
        self.epoch = self.epoch.wrapping_add(1) & EPOCHS;
        self.window.buckets = [CallCounts::default(); BUCKETS];
    }
}

impl ProbeSlots {
    /// Gives a call one of `most` slots, if one is free. Probes that have not ended within `patience` of the latest one
    /// lose their slots: a client may take as long as it likes to send a body, and recovery must not wait for it.
    fn admit(&mut self, most: u32, patience: Duration, now: Millis) -> bool {
        let is_full = |probes: &Self| probes.active.saturating_add(probes.passed) >= most;
        if is_full(self) && now.since(self.latest) >= patience {
            self.active = 0;
            self.lapses = self.lapses.wrapping_add(1);
        }
        // Those that passed may be enough.
        if is_full(self) {
            return false;
        }
        self.active += 1;
        self.latest = now;
        true
    }

    /// Takes back the slot of a call, unless another call has it by now.
    fn give_back(&mut self, ticket: CallTicket) {
        if ticket.lapses == self.lapses {
            self.active = self.active.saturating_sub(1);
        }
    }
}

/// The share of calls that a ramp admits by now, in thousandths.
fn ramp_share(since: Millis, plan: &plan::Breaker, now: Millis) -> u32 {
    let plan::Recovery::Ramp { over, .. } = plan.recovery else {
        return WHOLE;
    };
    let share = now.since(since).as_millis() * u128::from(WHOLE) / over.as_millis().max(1);
    u32::try_from(share).unwrap_or(WHOLE)
}

const WHOLE: u32 = 1000;
/// The share at the beginning of a ramp.
const LEAST_SHARE: u32 = 20;
/// What a half-open breaker sends as `Retry-After`: when it closes is not known.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
/// What a breaker that an operator has opened sends as `Retry-After`.
pub const TURNED_OFF: Duration = Duration::from_secs(30);
/// Epochs share a word with a flag.
pub(super) const EPOCHS: u32 = u32::MAX >> 1;

/// A sliding window over calls, in buckets: old calls leave it a tenth of the window at a time.
#[derive(Debug)]
struct CallWindow {
    /// Milliseconds of a bucket.
    width: u64,
    buckets: [CallCounts; BUCKETS],
}

/// The calls of one bucket, or of all.
#[derive(Debug, Clone, Copy, Default)]
struct CallCounts {
    /// The bucket's number from the beginning of the clock.
    number: u64,
    calls: u32,
    failures: u32,
    slow: u32,
}

impl CallWindow {
    fn new(length: Duration) -> Self {
        let length = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        Self {
            width: (length / BUCKETS as u64).max(1),
            buckets: [CallCounts::default(); BUCKETS],
        }
    }

    /// Adds to the bucket of `now`.
    fn add(&mut self, now: Millis, calls: u32, failures: u32, slow: u32) {
        let number = now.0 / self.width;
        let bucket = &mut self.buckets[(number % BUCKETS as u64) as usize];
        if bucket.number != number {
            *bucket = CallCounts {
                number,
                ..CallCounts::default()
            };
        }
        bucket.add(calls, failures, slow);
    }

    /// The calls within the window that ends `now`.
    fn total(&self, now: Millis) -> CallCounts {
        let newest = now.0 / self.width;
        let mut total = CallCounts::default();
        for bucket in &self.buckets {
            if newest.saturating_sub(bucket.number) < BUCKETS as u64 {
                total.add(bucket.calls, bucket.failures, bucket.slow);
            }
        }
        total
    }
}

impl CallCounts {
    fn add(&mut self, calls: u32, failures: u32, slow: u32) {
        self.calls = self.calls.saturating_add(calls);
        self.failures = self.failures.saturating_add(failures);
        self.slow = self.slow.saturating_add(slow);
    }
}

const BUCKETS: usize = 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn calls_older_than_the_window_do_not_count() {
        let mut window = CallWindow::new(Duration::from_secs(10));
        window.add(Millis(500), 1, 0, 0);
        window.add(Millis(9_999), 1, 0, 0);
        assert_eq!(window.total(Millis(9_999)).calls, 2);
        assert_eq!(window.total(Millis(10_000)).calls, 1);
        assert_eq!(window.total(Millis(18_999)).calls, 1);
        assert_eq!(window.total(Millis(19_000)).calls, 0);
    }

    proptest! {
        /// Compared with a list of all calls.
        #[test]
        fn a_window_counts_what_a_list_would(steps in proptest::collection::vec(0u64..3_000, 0..200)) {
            let mut window = CallWindow::new(Duration::from_secs(10));
            let (mut now, mut list) = (0, Vec::new());
            for step in steps {
                now += step;
                list.push(now);
                window.add(Millis(now), 1, 0, 0);
                let since = (now / 1000).saturating_sub(9) * 1000;
                let expected = list.iter().filter(|at| **at >= since).count();
                prop_assert_eq!(window.total(Millis(now)).calls as usize, expected);
            }
        }
    }
}
