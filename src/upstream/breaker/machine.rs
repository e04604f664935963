//! The states of a breaker and what leads from one to the other: pure, time is an argument.
//!
//! ```text
//!            too many fail, or are slow
//!   closed ----------------------------> open  <--.
//!     ^                                   |       | a probe fails, the time of
//!     |                 its time is over  |       | being open doubles
//!     |                                   v       |
//!     '------------------------------- half-open -'
//!         probes went well, or all are let through again
//! ```
//!
//! A call belongs to the state it was let through in: what becomes of it later says nothing about the next one. Each
//! change begins an epoch, and what comes from an earlier one is not listened to.

use std::time::Duration;

use super::{BreakerOpen, BreakerState, CallCounts, CallOutcome, CallWindow, ForcedState};
use crate::clock::Millis;
use crate::config::plan;

/// A breaker's memory.
#[derive(Debug)]
pub(super) struct StateMachine {
    phase: BreakerPhase,
    window: CallWindow,
    /// How often in a row it has opened without being well in between.
    relapses: u32,
    /// When it was closed last, having been open.
    recovered: Option<Millis>,
    forced: Option<ForcedState>,
    epoch: u32,
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
        /// What has been saved up towards letting the next call through, in thousandths of one.
        credit: u32,
    },
}

/// The calls that are let through to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProbeSlots {
    /// Those on their way that have a place.
    out: u32,
    /// Those that went well.
    passed: u32,
    /// When the last one was let through.
    latest: Millis,
    /// How often those on their way have lost their places.
    lapses: u32,
}

/// What a call that was let through was let through as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallTicket {
    pub(super) epoch: u32,
    /// Its place is among those given after so many lapses.
    pub(super) lapses: u32,
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

    /// Whether a call may be made now.
    pub(super) fn admit(
        &mut self,
        plan: &plan::Breaker,
        now: Millis,
    ) -> Result<CallTicket, BreakerOpen> {
        match self.forced {
            Some(ForcedState::Closed) => return Ok(self.ticket()),
            Some(ForcedState::Open) => return Err(BreakerOpen::for_a_while(TURNED_OFF)),
            None => {}
        }
        self.wake(plan, now);
        match &mut self.phase {
            BreakerPhase::Closed => {}
            BreakerPhase::Open { until } => return Err(BreakerOpen::for_a_while(until.since(now))),
            BreakerPhase::Probing(probes) => {
                let plan::Recovery::Probes(most) = plan.recovery else {
                    return Err(BreakerOpen::for_a_while(SHORTEST_WAIT));
                };
                if !probes.let_through(most, plan.open_for, now) {
                    return Err(BreakerOpen::for_a_while(SHORTEST_WAIT));
                }
            }
            BreakerPhase::Ramping { since, credit } => {
                let share = grown(*since, plan, now);
                if share >= WHOLE {
                    self.close(now);
                    return Ok(self.ticket());
                }
                *credit += share.max(LEAST_SHARE);
                if *credit < WHOLE {
                    return Err(BreakerOpen::for_a_while(SHORTEST_WAIT));
                }
                *credit -= WHOLE;
            }
        }
        Ok(self.ticket())
    }

    /// What became of a call.
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
        let slow = matches!((plan.slow, outcome), (Some((limit, _)), CallOutcome::Answer(taken)) if taken >= limit);
        let failed = outcome == CallOutcome::Failure;
        match (&mut self.phase, outcome) {
            (BreakerPhase::Probing(probes), CallOutcome::Cancelled) => probes.come_back(ticket),
            (_, CallOutcome::Cancelled) | (BreakerPhase::Open { .. }, _) => {}
            (BreakerPhase::Probing(_), _) if failed || slow => self.open(plan, now),
            (BreakerPhase::Probing(probes), _) => {
                probes.come_back(ticket);
                probes.passed += 1;
                if plan.recovery == plan::Recovery::Probes(probes.passed) {
                    self.close(now);
                }
            }
            (BreakerPhase::Closed | BreakerPhase::Ramping { .. }, _) => {
                self.window.add(
                    now,
                    CallCounts {
                        calls: 1,
                        failures: failed.into(),
                        slow: slow.into(),
                    },
                );
                if failed || slow {
                    self.judge(plan, now);
                }
            }
        }
    }

    /// A call that was reported as answered has come to nothing after all: its answer was cut short.
    pub(super) fn regret(&mut self, plan: &plan::Breaker, ticket: CallTicket, now: Millis) {
        if ticket.epoch != self.epoch {
            return;
        }
        match self.phase {
            BreakerPhase::Open { .. } => {}
            BreakerPhase::Probing(_) => self.open(plan, now),
            BreakerPhase::Closed | BreakerPhase::Ramping { .. } => {
                let failure = CallCounts {
                    failures: 1,
                    ..CallCounts::default()
                };
                self.window.add(now, failure);
                self.judge(plan, now);
            }
        }
    }

    /// Ends the time of being open if it is over.
    pub(super) fn wake(&mut self, plan: &plan::Breaker, now: Millis) {
        if let BreakerPhase::Open { until } = self.phase
            && until <= now
        {
            self.enter(match plan.recovery {
                plan::Recovery::Probes(_) => BreakerPhase::Probing(ProbeSlots {
                    out: 0,
                    passed: 0,
                    latest: now,
                    lapses: 0,
                }),
                // The first to come is let through.
                plan::Recovery::Ramp { .. } => BreakerPhase::Ramping {
                    since: now,
                    credit: WHOLE,
                },
            });
        }
    }

    /// An operator decides, or lets it decide for itself again, from the beginning.
    pub(super) fn force(&mut self, forced: Option<ForcedState>) {
        self.forced = forced;
        self.relapses = 0;
        self.recovered = None;
        self.enter(BreakerPhase::Closed);
    }

    pub(super) fn state(&self) -> BreakerState {
        match (self.forced, self.phase) {
            (Some(ForcedState::Closed), _) => BreakerState::Closed,
            (Some(ForcedState::Open), _) => BreakerState::Open,
            (None, BreakerPhase::Closed) => BreakerState::Closed,
            (None, BreakerPhase::Open { .. }) => BreakerState::Open,
            (None, BreakerPhase::Probing(_) | BreakerPhase::Ramping { .. }) => {
                BreakerState::HalfOpen
            }
        }
    }

    pub(super) fn forced(&self) -> Option<ForcedState> {
        self.forced
    }

    /// Until when nothing is let through; the end of time where an operator said so.
    pub(super) fn open_until(&self) -> Option<Millis> {
        match (self.forced, self.phase) {
            (Some(ForcedState::Open), _) => Some(Millis(u64::MAX)),
            (None, BreakerPhase::Open { until }) => Some(until),
            _ => None,
        }
    }

    /// How long nothing is let through, as far as that is known.
    pub(super) fn wait(&self, now: Millis) -> Option<Duration> {
        match self.forced {
            Some(ForcedState::Open) => Some(TURNED_OFF),
            _ => self.open_until().map(|until| until.since(now)),
        }
    }

    pub(super) fn epoch(&self) -> u32 {
        self.epoch
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

    /// Opens if what the window holds is too bad.
    fn judge(&mut self, plan: &plan::Breaker, now: Millis) {
        let tally = self.window.total(now);
        let least = match (self.phase, plan.recovery) {
            (BreakerPhase::Ramping { .. }, plan::Recovery::Ramp { min_calls, .. }) => {
                plan.min_calls.min(min_calls)
            }
            _ => plan.min_calls,
        };
        let enough = tally.calls >= least;
        let counted = plan.failures.is_some_and(|most| tally.failures >= most);
        let failing = enough
            && plan.failure_ratio.is_some_and(|share| {
                tally.failures > 0 && share.is_reached(tally.failures, tally.calls)
            });
        let slow = enough
            && plan.slow.is_some_and(|(_, share)| {
                tally.slow > 0 && share.is_reached(tally.slow, tally.calls)
            });
        if counted || failing || slow {
            self.open(plan, now);
        }
    }

    fn open(&mut self, plan: &plan::Breaker, now: Millis) {
        // Who opens again as soon as it was closed has not been well in between.
        let relapsed = match self.phase {
            BreakerPhase::Closed => self
                .recovered
                .is_some_and(|recovered| now.since(recovered) < plan.window),
            _ => true,
        };
        self.relapses = if relapsed {
            self.relapses.saturating_add(1)
        } else {
            0
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
        self.window.clear();
    }
}

impl ProbeSlots {
    /// Gives a call one of `most` places, if one is free. Who has not come back in `patience` since the last one was
    /// given loses its own: a client may take as long as it likes to send a body, and nobody is to wait for that.
    fn let_through(&mut self, most: u32, patience: Duration, now: Millis) -> bool {
        let is_full = |probes: &Self| probes.out.saturating_add(probes.passed) >= most;
        // Those on their way may already be enough.
        if is_full(self) && now.since(self.latest) >= patience {
            self.out = 0;
            self.lapses = self.lapses.wrapping_add(1);
        }
        if is_full(self) {
            return false;
        }
        self.out += 1;
        self.latest = now;
        true
    }

    /// Takes back the place of a call, unless another has it by now.
    fn come_back(&mut self, ticket: CallTicket) {
        if ticket.lapses == self.lapses {
            self.out = self.out.saturating_sub(1);
        }
    }
}

/// The share that is let through by now, in thousandths.
fn grown(since: Millis, plan: &plan::Breaker, now: Millis) -> u32 {
    let plan::Recovery::Ramp { over, .. } = plan.recovery else {
        return WHOLE;
    };
    let share = now.since(since).as_millis() * u128::from(WHOLE) / over.as_millis().max(1);
    u32::try_from(share).unwrap_or(WHOLE)
}

const WHOLE: u32 = 1000;
/// At the beginning of a ramp.
const LEAST_SHARE: u32 = 20;
/// What is said to those who come while nobody knows how long it will take.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
/// What is said of something that nobody knows the end of: an operator has turned it off.
pub const TURNED_OFF: Duration = Duration::from_secs(30);
/// Epochs are kept in one word with a flag.
pub(super) const EPOCHS: u32 = u32::MAX >> 1;
