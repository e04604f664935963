//! The fixed window: a counter that starts again with every window.
//!
//! Windows are counted from the start of the clock, the same for all keys. Cheap and easy to explain, with a known flaw:
//! around the edge of two windows, twice the limit passes at once. Only costs that are known afterwards can take a key above
//! the limit; those are owed to the windows that follow.

#[cfg(test)]
#[path = "tests/fixed_window.rs"]
mod tests;

use std::time::Duration;

use super::core::{Algorithm, AlgorithmInfo, ScriptArgs, window_quota};
use super::quantities::{
    Cost, Excess, KeyStatus, Spent, Verdict, millis, plus, window_at, window_start,
};
use crate::clock::Millis;

/// The numbers of a fixed window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedWindow {
    /// How many requests may come in a window.
    pub limit: Excess,
    /// The length of a window.
    pub window: Duration,
}

/// The state of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowCount {
    /// When the window started.
    start: Millis,
    /// How much of its limit is used.
    used: Excess,
}

impl FixedWindow {
    /// The state in the window of now.
    fn at(&self, window: &WindowCount, now: Millis) -> WindowCount {
        let (start, passed, _) = window_at(window.start, now, millis(self.window));
        let forgotten = passed.saturating_mul(self.limit.0);
        WindowCount {
            start,
            // Zero, unless more than the limit was used.
            used: Excess(window.used.0.saturating_sub(forgotten)),
        }
    }

    /// The number of windows that free this much.
    fn windows(&self, surplus: u64) -> u64 {
        surplus.div_ceil(self.limit.0.max(1))
    }

    /// When this much of what is used is free again.
    fn freed_at(&self, window: &WindowCount, surplus: u64) -> Millis {
        let windows = self.windows(surplus);
        plus(window.start, windows.saturating_mul(millis(self.window)))
    }
}

impl Algorithm for FixedWindow {
    const INFO: AlgorithmInfo =
        AlgorithmInfo::windowed("fixed_window", include_str!("lua/fixed_window.lua"));

    window_quota!();

    type State = WindowCount;

    fn new_state(&self, now: Millis) -> WindowCount {
        WindowCount {
            start: window_start(now, millis(self.window)),
            used: Excess(0),
        }
    }

    fn peek(&self, window: &WindowCount, now: Millis, cost: Cost) -> Verdict {
        let window = self.at(window, now);
        let with_this = window.used.0.saturating_add(cost.0);
        let surplus = with_this.saturating_sub(self.limit.0);
        Verdict::for_surplus(surplus, || {
            (cost.0 <= self.limit.0).then(|| self.freed_at(&window, surplus).since(now))
        })
    }

    fn refund(&self, window: &mut WindowCount, now: Millis, cost: Cost, _: Spent) {
        // Of an earlier window there is nothing to give back.
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

    fn slower(self, other: Self) -> Self {
        Self {
            limit: self.limit.min(other.limit),
            window: self.window.max(other.window),
        }
    }

    fn script_args(&self, cost: Cost) -> ScriptArgs {
        ScriptArgs::windowed("fixed_window", cost, self.limit, self.window, 0)
    }

    fn added_wait(&self, excess: Excess, more: Cost) -> Option<Duration> {
        let all = self.windows(excess.0.saturating_add(more.0)) - self.windows(excess.0);
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        Some(self.window.saturating_mul(all))
    }
}
