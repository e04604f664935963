//! The generic cell rate algorithm, in redis-cell's arithmetic.
//!
//! One moment says it all: when the last request would have come if all had come exactly at the rate (`tat`, the
//! theoretical arrival time). A request moves it on by what it costs; who would move it farther ahead of now than
//! the tolerance is refused. Times are whole nanoseconds as in redis-cell, so 3 a second are 333 333 333 ns apart.

#[cfg(test)]
#[path = "tests/gcra.rs"]
mod tests;

use std::time::Duration;

use super::core::{Algorithm, AlgorithmInfo};
use super::quantities::{Cost, Delay, Excess, KeyStatus, Rate, Spent, Verdict};
use super::script::{ExcessScale, LARGEST, ScriptArgs};
use super::time::{KeyTime, Nanos};
use crate::clock::Millis;

/// The numbers a key is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gcra {
    /// Between two requests exactly at the rate.
    interval: Nanos,
    /// How far ahead of now the theoretical arrival time may be: the burst, and the one that is within the rate.
    tolerance: Nanos,
}

/// What is remembered of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TheoreticalArrival {
    /// The theoretical arrival time.
    tat: Nanos,
    /// When it was last moved.
    last: Millis,
}

impl Gcra {
    /// So many requests in a time, and so many more than that at once.
    #[must_use]
    pub fn new(rate: Rate, burst: Excess) -> Self {
        let interval = Nanos::of(Cost::ONE, rate);
        Self {
            interval,
            tolerance: interval.times(Cost(burst.0.saturating_add(Cost::ONE.0))),
        }
    }

    pub(super) fn for_rule(rate: Rate, burst: Excess, _: Delay) -> Self {
        Self::new(rate, burst)
    }

    /// The key's arrival time as of now, never before it.
    fn at(&self, arrival: &TheoreticalArrival, now: Millis) -> (Nanos, KeyTime) {
        let moment = KeyTime::of(arrival.last, now);
        let tat = arrival.tat.before(Nanos::at(Millis(moment.back)));
        (tat.max(Nanos::at(moment.now)), moment)
    }

    fn excess(&self, ahead: Nanos) -> Excess {
        let cost = ahead.in_units_of(self.interval);
        Excess(cost.saturating_sub(Excess::ONE.0))
    }
}

impl Algorithm for Gcra {
    const INFO: AlgorithmInfo = AlgorithmInfo {
        ordered: true,
        ..AlgorithmInfo::new("gcra", include_str!("lua/gcra.lua"))
    };

    type State = TheoreticalArrival;

    fn fresh(&self, now: Millis) -> TheoreticalArrival {
        TheoreticalArrival {
            tat: Nanos::at(now),
            last: now,
        }
    }

    fn ask(&self, arrival: &TheoreticalArrival, now: Millis, cost: Cost) -> Verdict {
        let (tat, moment) = self.at(arrival, now);
        let increment = self.interval.times(cost);
        let ahead = tat.after(increment).before(Nanos::at(moment.now));
        let excess = self.excess(ahead);
        if ahead > self.tolerance {
            // What is said of when to come back holds for the clock that is asked, not for the key's.
            let until = tat
                .after(increment)
                .before(self.tolerance)
                .before(Nanos::at(now));
            return Verdict::Refuse {
                excess,
                retry_after: (increment <= self.tolerance).then(|| until.to_millis()),
            };
        }
        Verdict::Pass { excess }
    }

    fn refund(&self, arrival: &mut TheoreticalArrival, _: Millis, cost: Cost, _: Spent) {
        arrival.tat = arrival.tat.before(self.interval.times(cost));
    }

    fn debit(&self, arrival: &mut TheoreticalArrival, now: Millis, cost: Cost) {
        let (tat, moment) = self.at(arrival, now);
        *arrival = TheoreticalArrival {
            tat: tat.after(self.interval.times(cost)),
            last: moment.now,
        };
    }

    fn count_refused(&self, arrival: &mut TheoreticalArrival, now: Millis, cost: Cost) {
        let (tat, moment) = self.at(arrival, now);
        let full = Nanos::at(moment.now).after(self.tolerance);
        *arrival = TheoreticalArrival {
            tat: tat.after(self.interval.times(cost)).min(full).max(tat),
            last: moment.now,
        };
    }

    fn drained_at(&self, arrival: &TheoreticalArrival) -> Millis {
        arrival.tat.passed_at()
    }

    fn key_status(&self, arrival: &TheoreticalArrival, now: Millis) -> KeyStatus {
        let (tat, moment) = self.at(arrival, now);
        let ahead = tat.before(Nanos::at(moment.now));
        let free = self.tolerance.before(ahead);
        let next = ahead.after(self.interval).before(self.tolerance);
        KeyStatus {
            excess: self.excess(ahead),
            limit: self.quota(),
            remaining: free.0 / self.interval.0.max(1),
            retry_after: next.to_millis(),
            reset_after: ahead.to_millis(),
        }
    }

    fn quota(&self) -> u64 {
        self.tolerance.0 / self.interval.0.max(1)
    }

    fn period(&self) -> Duration {
        self.tolerance.to_millis()
    }

    fn slower(self, other: Self) -> Self {
        if other.interval > self.interval {
            other
        } else {
            self
        }
    }

    fn script_args(&self, cost: Cost) -> ScriptArgs {
        ScriptArgs::timed(
            "gcra",
            self.interval.times(cost).0,
            [self.interval.0, self.tolerance.0, 0],
            LARGEST,
            ExcessScale::Nanos(self.interval.0),
        )
    }

    fn later(&self, _: Excess, more: Cost) -> Option<Duration> {
        Some(Duration::from_nanos(self.interval.times(more).0))
    }
}
