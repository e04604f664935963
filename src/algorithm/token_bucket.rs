//! The token bucket: full at the start, refilled at a rate, and a request takes what it costs or is refused.
//!
//! What is remembered is what has been taken and not come back yet. A bucket that is full again is one that nothing
//! is missing from, so that forgetting it gives nobody anything, and there is no moment at which a refill could be
//! lost or come twice.

#[cfg(test)]
#[path = "tests/token_bucket.rs"]
mod tests;

use std::time::Duration;

use super::core::{Algorithm, AlgorithmInfo, BurstMeaning};
use super::level::{self, Level, Meter};
use super::quantities::{Cost, Delay, Excess, KeyStatus, Rate, Spent, Verdict};
use super::script::ScriptArgs;
use crate::clock::Millis;

/// The numbers a key is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    /// How fast tokens come back.
    pub rate: Rate,
    /// How many there are at most.
    pub capacity: Excess,
}

impl Algorithm for TokenBucket {
    const INFO: AlgorithmInfo = AlgorithmInfo {
        burst: BurstMeaning::Capacity,
        ordered: true,
        ..AlgorithmInfo::new("token_bucket", include_str!("lua/token_bucket.lua"))
    };

    type State = Level;

    fn fresh(&self, now: Millis) -> Level {
        Level::empty(now)
    }

    fn ask(&self, taken: &Level, now: Millis, cost: Cost) -> Verdict {
        let excess = taken.with(now, cost, self.rate).excess();
        let left = taken.with(now, Cost(0), self.rate).height;
        if left.0.saturating_add(cost.0) > self.capacity.0 {
            return Verdict::Refuse {
                excess,
                retry_after: taken.room_after(now, cost, self.capacity, self.rate),
            };
        }
        Verdict::Pass { excess }
    }

    fn refund(&self, taken: &mut Level, _: Millis, cost: Cost, _: Spent) {
        *taken = taken.without(cost);
    }

    fn debit(&self, taken: &mut Level, now: Millis, cost: Cost) {
        *taken = taken.with(now, cost, self.rate);
    }

    fn count_refused(&self, taken: &mut Level, now: Millis, cost: Cost) {
        *taken = self.meter().filled(*taken, now, cost);
    }

    fn drained_at(&self, taken: &Level) -> Millis {
        taken.falls_to(Excess(0), self.rate)
    }

    fn key_status(&self, taken: &Level, now: Millis) -> KeyStatus {
        self.meter().key_status(*taken, now)
    }

    fn quota(&self) -> u64 {
        self.meter().quota()
    }

    fn period(&self) -> Duration {
        self.meter().period()
    }

    fn slower(self, other: Self) -> Self {
        if other.rate < self.rate { other } else { self }
    }

    fn script_args(&self, cost: Cost) -> ScriptArgs {
        ScriptArgs::levelled("token_bucket", cost, self.rate, self.capacity.0, None)
    }

    fn later(&self, _: Excess, more: Cost) -> Option<Duration> {
        Some(level::drained_in(more, self.rate))
    }
}

impl TokenBucket {
    pub(super) fn for_rule(rate: Rate, burst: Excess, _: Delay) -> Self {
        Self {
            rate,
            capacity: burst,
        }
    }

    fn meter(&self) -> Meter {
        Meter {
            rate: self.rate,
            capacity: self.capacity,
        }
    }
}
