//! The leaky bucket, by nginx's rules and without its rounding.
//!
//! The rules are nginx's to the letter: what is compared with what, what a refusal leaves unchanged, what happens when the
//! clock goes backwards. Two numbers differ. nginx stores the excess, which is the level without the one request that is
//! within the rate: of a first request it stores nothing. We store the whole level, so that a first request may cost more
//! or less than one, and a charge can be taken back without a trace. And nginx counts in thousandths of a request and loses
//! a fraction with every one that passes; [`Rate`] and [`Excess`] are exact, so a rate of one per minute is one per minute.

#[cfg(test)]
#[path = "tests/leaky_bucket/mod.rs"]
mod tests;

use std::time::Duration;

use super::core::{self, Algorithm, AlgorithmInfo, ScriptArgs, filled_level, level_state};
use super::quantities::{Cost, Delay, Excess, KeyStatus, Level, Meter, Rate, Spent, Verdict};
use crate::clock::Millis;

/// The numbers of a leaky bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeakyBucket {
    /// How fast it drains.
    pub rate: Rate,
    /// How far a key may go above its rate.
    pub burst: Excess,
    /// Which excess requests are delayed.
    pub delay: Delay,
}

impl Algorithm for LeakyBucket {
    const INFO: AlgorithmInfo = AlgorithmInfo {
        delays: true,
        ordered: true,
        ..AlgorithmInfo::new("leaky_bucket", include_str!("lua/leaky_bucket.lua"))
    };

    level_state!();
    filled_level!();

    fn peek(&self, bucket: &Level, now: Millis, cost: Cost) -> Verdict {
        self.decide(*bucket, now, cost).0
    }

    #[inline]
    fn charge(&self, bucket: &mut Level, now: Millis, cost: Cost) -> (Verdict, Spent) {
        let (verdict, after) = self.decide(*bucket, now, cost);
        *bucket = after;
        (verdict, Spent::default())
    }

    fn script_args(&self, cost: Cost) -> ScriptArgs {
        let threshold = self.threshold().map(|threshold| threshold.0);
        ScriptArgs::levelled("leaky_bucket", cost, self.rate, self.burst.0, threshold)
    }

    fn queue_turn(&self, queue: Level, now: Millis, cost: Cost) -> (Verdict, Level) {
        core::queue_turn(self, queue, now, cost)
    }

    fn added_wait(&self, _: Excess, more: Cost) -> Option<Duration> {
        Some(self.rate.drain_time(more))
    }

    fn burst_wait(&self) -> Duration {
        self.threshold().map_or(Duration::ZERO, |threshold| {
            let above = self.burst.0.saturating_sub(threshold.0);
            Duration::from_millis(above / self.rate.divisor())
        })
    }

    fn class(&self) -> u64 {
        let threshold = self.threshold();
        let threshold = threshold.map_or(0, |threshold| threshold.0.wrapping_add(1));
        self.quota().wrapping_add(threshold.rotate_left(32))
    }
}

impl LeakyBucket {
    /// The excess beyond which requests are delayed; `None` where none is.
    fn threshold(&self) -> Option<Excess> {
        match self.delay {
            Delay::After(threshold) => Some(threshold),
            Delay::Never => None,
        }
    }

    /// The verdict on a request, and the level with that request. A refused request leaves the level unchanged.
    #[inline]
    fn decide(&self, bucket: Level, now: Millis, cost: Cost) -> (Verdict, Level) {
        let after = bucket.charged(now, cost, self.rate);
        let excess = after.excess();
        if excess > self.burst {
            let refuse = Verdict::Refuse {
                excess,
                retry_after: bucket.room_after(now, cost, self.meter().capacity, self.rate),
            };
            return (refuse, bucket);
        }
        let verdict = match self.threshold() {
            // Whole milliseconds, rounded down as in nginx.
            Some(threshold) => {
                let above = excess.0.saturating_sub(threshold.0);
                Verdict::for_wait(excess, above / self.rate.divisor())
            }
            None => Verdict::Pass { excess },
        };
        (verdict, after)
    }

    /// All that fits: the burst, and the one request that is within the rate. A burst of 5 admits 6 at once.
    fn meter(&self) -> Meter {
        Meter {
            rate: self.rate,
            capacity: Excess(self.burst.0.saturating_add(Excess::ONE.0)),
        }
    }
}
