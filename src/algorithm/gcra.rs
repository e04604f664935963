//! The generic cell rate algorithm, in redis-cell's arithmetic.
//!
//! The state is one moment: when the last request would have come if all had come exactly at the rate (`tat`, the
//! theoretical arrival time). A request moves it on by its cost, and is refused if it would move it farther ahead of now than
//! the tolerance. Times are whole nanoseconds as in redis-cell, so 3 per second are 333 333 333 ns apart.

#[cfg(test)]
#[path = "tests/gcra.rs"]
mod tests;

use std::time::Duration;

use super::core::{Algorithm, AlgorithmInfo, ExcessScale, MAX_EXACT, ScriptArgs};
use super::quantities::{Cost, Excess, KeyStatus, KeyTime, Nanos, Rate, Spent, Verdict};
use crate::clock::Millis;

/// The numbers of the generic cell rate algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gcra {
    /// The time between two requests exactly at the rate.
    interval: Nanos,
    /// How far ahead of now the theoretical arrival time may be: the burst, and the one request that is within the rate.
    tolerance: Nanos,
}

/// The state of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TheoreticalArrival {
    /// The theoretical arrival time.
    tat: Nanos,
    /// When it was last moved on.
    last: Millis,
}

impl Gcra {
    /// At this rate, with this burst.
    #[must_use]
    pub fn new(rate: Rate, burst: Excess) -> Self {
        let interval = Nanos::for_cost(Cost::ONE, rate);
        Self {
            interval,
            tolerance: interval.times(Cost(burst.0.saturating_add(Cost::ONE.0))),
        }
    }

    /// The key's arrival time as of now, never before it.
    fn at(&self, arrival: &TheoreticalArrival, now: Millis) -> (Nanos, KeyTime) {
        let time = KeyTime::new(arrival.last, now);
        let tat = arrival.tat.minus(Nanos::at(Millis(time.set_back)));
        (tat.max(Nanos::at(time.now)), time)
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

    fn new_state(&self, now: Millis) -> TheoreticalArrival {
        TheoreticalArrival {
            tat: Nanos::at(now),
            last: now,
        }
    }

    fn peek(&self, arrival: &TheoreticalArrival, now: Millis, cost: Cost) -> Verdict {
        let (tat, time) = self.at(arrival, now);
        let increment = self.interval.times(cost);
        let ahead = tat.plus(increment).minus(Nanos::at(time.now));
        let excess = self.excess(ahead);
        if ahead > self.tolerance {
            // The time to retry is counted from the clock's time, not from the key's.
            let until = tat
                .plus(increment)
                .minus(self.tolerance)
                .minus(Nanos::at(now));
            return Verdict::Refuse {
                excess,
                retry_after: (increment <= self.tolerance).then(|| until.to_millis()),
            };
        }
        Verdict::Pass { excess }
    }

    fn refund(&self, arrival: &mut TheoreticalArrival, _: Millis, cost: Cost, _: Spent) {
        arrival.tat = arrival.tat.minus(self.interval.times(cost));
    }

    fn debit(&self, arrival: &mut TheoreticalArrival, now: Millis, cost: Cost) {
        let (tat, time) = self.at(arrival, now);
        *arrival = TheoreticalArrival {
            tat: tat.plus(self.interval.times(cost)),
            last: time.now,
        };
    }

    fn count_refused(&self, arrival: &mut TheoreticalArrival, now: Millis, cost: Cost) {
        let (tat, time) = self.at(arrival, now);
        let full = Nanos::at(time.now).plus(self.tolerance);
        *arrival = TheoreticalArrival {
            tat: tat.plus(self.interval.times(cost)).min(full).max(tat),
            last: time.now,
        };
    }

    fn drained_at(&self, arrival: &TheoreticalArrival) -> Millis {
        arrival.tat.to_moment()
    }

    fn key_status(&self, arrival: &TheoreticalArrival, now: Millis) -> KeyStatus {
        let (tat, time) = self.at(arrival, now);
        let ahead = tat.minus(Nanos::at(time.now));
        let free = self.tolerance.minus(ahead);
        let next = ahead.plus(self.interval).minus(self.tolerance);
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
            MAX_EXACT,
            ExcessScale::Nanos(self.interval.0),
        )
    }

    fn added_wait(&self, _: Excess, more: Cost) -> Option<Duration> {
        Some(Duration::from_nanos(self.interval.times(more).0))
    }
}
