//! So many requests in a window, and windows follow each other: a counter that starts over.
//!
//! Windows are counted from when the clock began, the same for all keys. Cheap and easy to explain, and its flaw is
//! known: around the edge of two windows, twice the limit passes in no time. Only what was charged after the fact
//! can stand above the limit; that is owed to the windows that follow.

#[cfg(test)]
#[path = "tests/fixed_window.rs"]
mod tests;

use std::time::Duration;

use super::core::{Algorithm, AlgorithmInfo};
use super::quantities::{Cost, Delay, Excess, KeyStatus, Spent, Verdict};
use super::script::ScriptArgs;
use super::time::{KeyTime, millis, window_start};
use crate::clock::Millis;

/// The numbers a key is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedWindow {
    /// How many in a window.
    pub limit: Excess,
    /// How long it is.
    pub window: Duration,
}

/// What is remembered of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowCount {
    /// When the window began.
    start: Millis,
    /// How much of its limit is gone.
    used: Excess,
}

impl FixedWindow {
    pub(super) fn for_rule(limit: u32, window: Duration, _: Excess, _: Delay) -> Self {
        Self {
            limit: Excess::requests(limit),
            window,
        }
    }

    fn millis(&self) -> u64 {
        millis(self.window)
    }

    /// The key in the window of now.
    fn at(&self, window: &WindowCount, now: Millis) -> WindowCount {
        let length = self.millis();
        let moment = KeyTime::of(window.start, now);
        let start = window_start(moment.now, length);
        let passed = start.0.saturating_sub(moment.taken(window.start).0) / length;
        WindowCount {
            start,
            // Nothing, unless more than the limit was owed.
            used: Excess(
                window
                    .used
                    .0
                    .saturating_sub(passed.saturating_mul(self.limit.0)),
            ),
        }
    }

    /// When so much of what is used has been made up for.
    fn freed_at(&self, window: &WindowCount, surplus: u64) -> Millis {
        let windows = surplus.div_ceil(self.limit.0.max(1));
        Millis(
            window
                .start
                .0
                .saturating_add(windows.saturating_mul(self.millis())),
        )
    }
}

impl Algorithm for FixedWindow {
    const INFO: AlgorithmInfo =
        AlgorithmInfo::windowed("fixed_window", include_str!("lua/fixed_window.lua"));

    type State = WindowCount;

    fn fresh(&self, now: Millis) -> WindowCount {
        WindowCount {
            start: window_start(now, self.millis()),
            used: Excess(0),
        }
    }

    fn ask(&self, window: &WindowCount, now: Millis, cost: Cost) -> Verdict {
        let window = self.at(window, now);
        let with_this = window.used.0.saturating_add(cost.0);
        let surplus = with_this.saturating_sub(self.limit.0);
        if surplus > 0 {
            let freed = self.freed_at(&window, surplus);
            return Verdict::Refuse {
                excess: Excess(surplus),
                retry_after: (cost.0 <= self.limit.0).then(|| freed.since(now)),
            };
        }
        Verdict::Pass { excess: Excess(0) }
    }

    fn refund(&self, window: &mut WindowCount, now: Millis, cost: Cost, _: Spent) {
        // Of an earlier window there is nothing left to give back.
        if self.at(window, now).start == window.start {
            window.used.0 = window.used.0.saturating_sub(cost.0);
        }
    }

    fn debit(&self, window: &mut WindowCount, now: Millis, cost: Cost) {
        *window = self.at(window, now);
        window.used.0 = window.used.0.saturating_add(cost.0);
    }

    fn count_refused(&self, window: &mut WindowCount, now: Millis, cost: Cost) {
        *window = self.at(window, now);
        let filled = window.used.0.saturating_add(cost.0).min(self.limit.0);
        window.used.0 = window.used.0.max(filled);
    }

    fn drained_at(&self, window: &WindowCount) -> Millis {
        self.freed_at(window, window.used.0)
    }

    fn key_status(&self, window: &WindowCount, now: Millis) -> KeyStatus {
        let window = self.at(window, now);
        let surplus = window.used.0.saturating_add(Cost::ONE.0);
        let surplus = surplus.saturating_sub(self.limit.0);
        KeyStatus {
            excess: Excess(window.used.0.saturating_sub(self.limit.0)),
            limit: self.quota(),
            remaining: self.limit.0.saturating_sub(window.used.0) / Excess::ONE.0,
            retry_after: match surplus {
                0 => Duration::ZERO,
                surplus => self.freed_at(&window, surplus).since(now),
            },
            reset_after: self.drained_at(&window).since(now),
        }
    }

    fn quota(&self) -> u64 {
        self.limit.0 / Excess::ONE.0
    }

    fn period(&self) -> Duration {
        self.window
    }

    fn slower(self, other: Self) -> Self {
        Self {
            limit: self.limit.min(other.limit),
            window: self.window.max(other.window),
        }
    }

    fn script_args(&self, cost: Cost) -> ScriptArgs {
        ScriptArgs::windowed("fixed_window", cost, self.limit, self.window, 0)
    }

    fn later(&self, excess: Excess, more: Cost) -> Option<Duration> {
        // `excess` is what has to be made up for, a limit with each window.
        let windows = |surplus: u64| surplus.div_ceil(self.limit.0.max(1));
        let all = windows(excess.0.saturating_add(more.0)) - windows(excess.0);
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        Some(self.window.saturating_mul(all))
    }
}
