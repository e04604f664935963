//! A queue that is emptied at a constant rate: each request waits for its turn, and nothing is saved while idle.
//!
//! What is remembered is what is still ahead of the next request. It waits until that has gone, however much it
//! weighs itself: those after it wait for that. Who would have to wait for longer than is allowed is refused.

#[cfg(test)]
#[path = "tests/paced.rs"]
mod tests;

use std::time::Duration;

use super::core::{self, Algorithm, AlgorithmInfo, BurstMeaning};
use super::level::{self, Level};
use super::quantities::{Cost, Delay, Excess, KeyStatus, Rate, Spent, Verdict};
use super::script::ScriptArgs;
use crate::clock::Millis;

/// The numbers a key is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paced {
    /// How fast requests are let out.
    pub rate: Rate,
    /// How long one may have to wait for its turn.
    pub max_wait: Duration,
}

impl Algorithm for Paced {
    const INFO: AlgorithmInfo = AlgorithmInfo {
        burst: BurstMeaning::Nothing(
            "nothing is saved while idle; how many may wait is a matter of `max_wait`",
        ),
        next_pays: true,
        ..AlgorithmInfo::new("paced", include_str!("lua/paced.lua"))
    };

    type State = Level;

    fn fresh(&self, now: Millis) -> Level {
        Level::empty(now)
    }

    fn ask(&self, ahead: &Level, now: Millis, _: Cost) -> Verdict {
        let Level { height: excess, .. } = ahead.with(now, Cost(0), self.rate);
        if excess > self.depth() {
            let retry_after = Some(ahead.falls_to(self.depth(), self.rate).since(now));
            return Verdict::Refuse {
                excess,
                retry_after,
            };
        }
        // Less than a millisecond is no wait, as in nginx.
        match excess.0 / level::units(self.rate) {
            0 => Verdict::Pass { excess },
            millis => Verdict::Delay {
                excess,
                wait: Duration::from_millis(millis),
            },
        }
    }

    fn refund(&self, ahead: &mut Level, _: Millis, cost: Cost, _: Spent) {
        *ahead = ahead.without(cost);
    }

    fn debit(&self, ahead: &mut Level, now: Millis, cost: Cost) {
        *ahead = ahead.with(now, cost, self.rate);
    }

    fn count_refused(&self, ahead: &mut Level, now: Millis, cost: Cost) {
        let left = ahead.with(now, Cost(0), self.rate);
        // As if it had come when the line was just short enough.
        let most = Excess(self.depth().0.saturating_add(cost.0));
        let height = Excess(left.height.0.saturating_add(cost.0)).min(most);
        *ahead = Level {
            height: left.height.max(height),
            last: left.last,
        };
    }

    fn drained_at(&self, ahead: &Level) -> Millis {
        ahead.falls_to(Excess(0), self.rate)
    }

    fn key_status(&self, ahead: &Level, now: Millis) -> KeyStatus {
        let left = ahead.with(now, Cost(0), self.rate);
        let room = self.depth().0.checked_sub(left.height.0);
        KeyStatus {
            excess: left.height,
            limit: self.quota(),
            remaining: room.map_or(0, |room| room / Excess::ONE.0 + 1),
            retry_after: left.falls_to(self.depth(), self.rate).since(now),
            reset_after: self.drained_at(&left).since(now),
        }
    }

    fn quota(&self) -> u64 {
        self.depth().0 / Excess::ONE.0 + 1
    }

    fn period(&self) -> Duration {
        let whole = Cost(self.quota().saturating_mul(Excess::ONE.0));
        level::drained_in(whole, self.rate)
    }

    fn slower(self, other: Self) -> Self {
        if other.rate < self.rate { other } else { self }
    }

    fn script_args(&self, cost: Cost) -> ScriptArgs {
        ScriptArgs::levelled("paced", cost, self.rate, self.depth().0, None)
    }

    fn queued(&self, queue: Level, now: Millis, cost: Cost) -> (Verdict, Level) {
        core::queued(self, queue, now, cost)
    }
}

impl Paced {
    pub(super) fn for_rule(rate: Rate, max_wait: Duration, _: Excess, _: Delay) -> Self {
        Self { rate, max_wait }
    }

    /// How much may be ahead of a request.
    fn depth(&self) -> Excess {
        let millis = u64::try_from(self.max_wait.as_millis()).unwrap_or(u64::MAX);
        Excess(millis.saturating_mul(self.rate.units_per_milli()))
    }
}
