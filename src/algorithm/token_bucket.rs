//! The token bucket: full at the start and refilled at a rate; a request takes tokens for its cost or is refused.
//!
//! The state is what was taken and has not come back yet. Nothing is missing from a full bucket, so forgetting it gives a
//! client nothing, and there is no moment at which a refill could be lost or come twice.

#[cfg(test)]
#[path = "tests/token_bucket.rs"]
mod tests;

use std::time::Duration;

use super::core::{Algorithm, AlgorithmInfo, BurstMeaning, ScriptArgs, filled_level, level_state};
use super::quantities::{Cost, Excess, KeyStatus, Level, Meter, Rate, Spent, Verdict};
use crate::clock::Millis;

/// The numbers of a token bucket.
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

    level_state!();
    filled_level!();

    fn peek(&self, taken: &Level, now: Millis, cost: Cost) -> Verdict {
        let level = taken.charged(now, cost, self.rate);
        let excess = level.excess();
        if level.height > self.capacity {
            return Verdict::Refuse {
                excess,
                retry_after: taken.room_after(now, cost, self.capacity, self.rate),
            };
        }
        Verdict::Pass { excess }
    }

    fn script_args(&self, cost: Cost) -> ScriptArgs {
        ScriptArgs::levelled("token_bucket", cost, self.rate, self.capacity.0, None)
    }

    fn added_wait(&self, _: Excess, more: Cost) -> Option<Duration> {
        Some(self.rate.drain_time(more))
    }
}

impl TokenBucket {
    fn meter(&self) -> Meter {
        Meter {
            rate: self.rate,
            capacity: self.capacity,
        }
    }
}
