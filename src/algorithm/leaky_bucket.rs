//! The leaky bucket, by nginx's rules and without its rounding.
//!
//! The rules are nginx's to the letter: what is compared with what, what a refusal leaves alone, what happens when
//! time goes backwards. Two things are said differently. nginx remembers the excess, which is what stands in the
//! bucket less the one request that is within the rate: of the first request it remembers nothing. We remember all
//! that stands in it, so that a first request may weigh more or less than one, and a charge can be taken back
//! without a trace. And nginx counts in thousandths of a request and loses a fraction with every one it lets
//! pass; [`Rate`] and [`Excess`] are exact, so a rate of one a minute is one a minute.

#[cfg(test)]
#[path = "tests/leaky_bucket/mod.rs"]
mod tests;

use std::time::Duration;

use super::core::{self, Algorithm, AlgorithmInfo};
use super::level::{self, Level, Meter};
use super::quantities::{Cost, Delay, Excess, KeyStatus, Rate, Spent, Verdict};
use super::script::ScriptArgs;
use crate::clock::Millis;

/// The numbers a key is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeakyBucket {
    /// How fast its bucket drains.
    pub rate: Rate,
    /// How far it may go above its rate.
    pub burst: Excess,
    /// Which of the excess waits.
    pub delay: Delay,
}

impl Algorithm for LeakyBucket {
    const INFO: AlgorithmInfo = AlgorithmInfo {
        delays: true,
        ordered: true,
        ..AlgorithmInfo::new("leaky_bucket", include_str!("lua/leaky_bucket.lua"))
    };

    type State = Level;

    fn fresh(&self, now: Millis) -> Level {
        Level::empty(now)
    }

    fn ask(&self, bucket: &Level, now: Millis, cost: Cost) -> Verdict {
        self.decide(*bucket, now, cost).0
    }

    #[inline]
    fn charge(&self, bucket: &mut Level, now: Millis, cost: Cost) -> (Verdict, Spent) {
        let (outcome, after) = self.decide(*bucket, now, cost);
        *bucket = after;
        (outcome, Spent::default())
    }

    fn refund(&self, bucket: &mut Level, _: Millis, cost: Cost, _: Spent) {
        *bucket = bucket.without(cost);
    }

    fn debit(&self, bucket: &mut Level, now: Millis, cost: Cost) {
        *bucket = bucket.with(now, cost, self.rate);
    }

    fn count_refused(&self, bucket: &mut Level, now: Millis, cost: Cost) {
        *bucket = self.meter().filled(*bucket, now, cost);
    }

    fn drained_at(&self, bucket: &Level) -> Millis {
        bucket.falls_to(Excess(0), self.rate)
    }

    fn key_status(&self, bucket: &Level, now: Millis) -> KeyStatus {
        self.meter().key_status(*bucket, now)
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
        let threshold = self.threshold().map(|threshold| threshold.0);
        ScriptArgs::levelled("leaky_bucket", cost, self.rate, self.burst.0, threshold)
    }

    fn queued(&self, queue: Level, now: Millis, cost: Cost) -> (Verdict, Level) {
        core::queued(self, queue, now, cost)
    }

    fn later(&self, _: Excess, more: Cost) -> Option<Duration> {
        Some(level::drained_in(more, self.rate))
    }

    fn wait_in_burst(&self) -> Duration {
        self.threshold().map_or(Duration::ZERO, |threshold| {
            let above = self.burst.0.saturating_sub(threshold.0);
            Duration::from_millis(above / level::units(self.rate))
        })
    }

    fn class(&self) -> u64 {
        let threshold = self.threshold();
        let threshold = threshold.map_or(0, |threshold| threshold.0.wrapping_add(1));
        self.quota().wrapping_add(threshold.rotate_left(32))
    }
}

impl LeakyBucket {
    pub(super) fn for_rule(rate: Rate, burst: Excess, delay: Delay) -> Self {
        Self { rate, burst, delay }
    }

    /// The excess beyond which requests wait; `None` where none does.
    fn threshold(&self) -> Option<Excess> {
        match self.delay {
            Delay::After(threshold) => Some(threshold),
            Delay::Never => None,
        }
    }

    /// Decides about one request, and gives the bucket as it is with that request in it.
    ///
    /// A refused request changes nothing: the bucket given back is the one that came in.
    #[inline]
    fn decide(&self, bucket: Level, now: Millis, cost: Cost) -> (Verdict, Level) {
        let after = bucket.with(now, cost, self.rate);
        let excess = after.excess();
        if excess > self.burst {
            let refuse = Verdict::Refuse {
                excess,
                retry_after: bucket.room_after(now, cost, self.meter().capacity, self.rate),
            };
            return (refuse, bucket);
        }
        (self.accept(excess), after)
    }

    fn accept(&self, excess: Excess) -> Verdict {
        let Some(threshold) = self.threshold() else {
            return Verdict::Pass { excess };
        };
        // Whole milliseconds, the rest cut off as nginx does: less than one is no delay.
        match excess.0.saturating_sub(threshold.0) / level::units(self.rate) {
            0 => Verdict::Pass { excess },
            millis => Verdict::Delay {
                excess,
                wait: Duration::from_millis(millis),
            },
        }
    }

    /// All that fits: the burst, and the one request that is within the rate. A burst of 5 admits 6 at once.
    fn meter(&self) -> Meter {
        Meter {
            rate: self.rate,
            capacity: Excess(self.burst.0.saturating_add(Excess::ONE.0)),
        }
    }
}
