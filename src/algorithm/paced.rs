//! A queue that is emptied at a constant rate: each request waits for its turn, and nothing is saved while idle.
//!
//! The state is what is ahead of the next request. A request waits until that has drained, whatever it costs itself: the
//! requests after it wait for that. A request that would wait longer than `max_wait` is refused.

#[cfg(test)]
#[path = "tests/paced.rs"]
mod tests;

use std::time::Duration;

use super::core::{self, Algorithm, AlgorithmInfo, BurstMeaning, ScriptArgs, level_state};
use super::quantities::{Cost, Excess, KeyStatus, Level, Meter, Rate, Spent, Verdict, narrow};
use crate::clock::Millis;

/// The numbers of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paced {
    /// How fast requests leave it.
    pub rate: Rate,
    /// How long a request may wait for its turn.
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

    level_state!();

    fn peek(&self, ahead: &Level, now: Millis, _: Cost) -> Verdict {
        let Level { height: excess, .. } = ahead.charged(now, Cost(0), self.rate);
        if excess > self.depth() {
            let retry_after = Some(ahead.falls_to(self.depth(), self.rate).since(now));
            return Verdict::Refuse {
                excess,
                retry_after,
            };
        }
        Verdict::for_wait(excess, excess.0 / self.rate.divisor())
    }

    fn count_refused(&self, ahead: &mut Level, now: Millis, cost: Cost) {
        // As if it had come when the queue was just short enough.
        let most = Excess(self.depth().0.saturating_add(cost.0));
        *ahead = self.meter().filled(*ahead, now, cost, most);
    }

    fn key_status(&self, ahead: &Level, now: Millis) -> KeyStatus {
        KeyStatus {
            excess: ahead.charged(now, Cost(0), self.rate).height,
            ..self.meter().key_status(*ahead, now)
        }
    }

    fn script_args(&self, cost: Cost) -> ScriptArgs {
        ScriptArgs::levelled("paced", cost, self.rate, self.depth().0, None)
    }

    fn queue_turn(&self, queue: Level, now: Millis, cost: Cost) -> (Verdict, Level) {
        core::queue_turn(self, queue, now, cost)
    }
}

impl Paced {
    /// How much may be ahead of a request.
    fn depth(&self) -> Excess {
        let millis = narrow(self.max_wait.as_millis());
        Excess(millis.saturating_mul(self.rate.units_per_milli()))
    }

    /// What may be ahead of a request, and that request.
    fn meter(&self) -> Meter {
        Meter {
            rate: self.rate,
            capacity: Excess(self.depth().0.saturating_add(Excess::ONE.0)),
        }
    }
}
