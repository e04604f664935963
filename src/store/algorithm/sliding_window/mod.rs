//! The sliding window as Cloudflare estimates it: two counters, and the older one counts for less and less.
//!
//! Of the window before, as much is taken to lie in the last `window` as still overlaps with it: 42 requests, a
//! quarter of a window ago, count as 31.5. That is as if they had come evenly. Two counters a key, no edge at
//! which twice the limit passes, and an answer that is wrong for few.

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::fixed_window::{millis, start};
use super::moment::KeyTime;
use super::{Algorithm, KeyStatus, Spent, Verdict};
use crate::clock::Millis;
use crate::config::plan::{Cost, Excess};

/// The numbers a key is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingWindow {
    /// How many in any window.
    pub limit: Excess,
    /// How long it is.
    pub window: Duration,
}

/// What is remembered of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowCounters {
    /// When the current window began.
    start: Millis,
    /// What came in the one before.
    previous: Excess,
    /// What came in this one.
    current: Excess,
}

/// Requests times milliseconds: what estimates are compared in, so that nothing is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Area(u128);

impl Area {
    fn of(excess: Excess, millis: u64) -> Self {
        Self(u128::from(excess.0) * u128::from(millis))
    }

    fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// As many requests as make it in so many milliseconds.
    fn over(self, millis: u64) -> Excess {
        Excess(narrow(self.0 / u128::from(millis.max(1))))
    }

    /// In as many milliseconds as so many requests make it.
    fn by(self, excess: Excess) -> u64 {
        narrow(self.0 / u128::from(excess.0.max(1)))
    }
}

impl SlidingWindow {
    fn millis(&self) -> u64 {
        millis(self.window)
    }

    /// The key's counters in the window of now, and how much of it is still to come, in milliseconds.
    fn at(&self, counters: &WindowCounters, now: Millis) -> (WindowCounters, u64) {
        let length = self.millis();
        let moment = KeyTime::of(counters.start, now);
        let start = start(moment.now, length);
        let passed = start.0.saturating_sub(moment.taken(counters.start).0) / length;
        let (previous, current) = match passed {
            0 => (counters.previous, counters.current),
            1 => (counters.current, Excess(0)),
            _ => (Excess(0), Excess(0)),
        };
        let counters = WindowCounters {
            start,
            previous,
            current,
        };
        (counters, length - (moment.now.0 - start.0))
    }

    /// What is estimated to lie within a window's length before now.
    fn estimate(&self, counters: &WindowCounters, left: u64) -> Area {
        Area::of(counters.previous, left).plus(Area::of(counters.current, self.millis()))
    }

    /// When there is room for `cost`, if nobody comes before; `None` for more than there ever is.
    fn room_at(&self, counters: &WindowCounters, left: u64, cost: Cost) -> Option<Millis> {
        let length = self.millis();
        let room = Excess(self.limit.0.checked_sub(cost.0)?);
        let end = Millis(counters.start.0.saturating_add(length));
        // Of a window that counts for ever less, so many milliseconds may be left.
        let within = |counted: Excess, room: Excess| Area::of(room, length).by(counted);
        if let Some(room) = room.0.checked_sub(counters.current.0) {
            let left = left.min(within(counters.previous, Excess(room)));
            return Some(Millis(end.0.saturating_sub(left)));
        }
        let left = length.min(within(counters.current, room));
        Some(Millis(end.0.saturating_add(length).saturating_sub(left)))
    }
}

impl Algorithm for SlidingWindow {
    type State = WindowCounters;

    fn fresh(&self, now: Millis) -> WindowCounters {
        WindowCounters {
            start: start(now, self.millis()),
            previous: Excess(0),
            current: Excess(0),
        }
    }

    fn ask(&self, counters: &WindowCounters, now: Millis, cost: Cost) -> Verdict {
        let length = self.millis();
        let (counters, left) = self.at(counters, now);
        let with_this = self
            .estimate(&counters, left)
            .plus(Area::of(Excess(cost.0), length));
        let limit = Area::of(self.limit, length);
        if with_this > limit {
            let room_at = self.room_at(&counters, left, cost);
            return Verdict::Refuse {
                excess: with_this.minus(limit).over(length),
                retry_after: room_at.map(|at| at.since(now)),
            };
        }
        Verdict::Pass { excess: Excess(0) }
    }

    fn charge(&self, counters: &mut WindowCounters, now: Millis, cost: Cost) -> (Verdict, Spent) {
        let outcome = self.ask(counters, now, cost);
        if !matches!(outcome, Verdict::Refuse { .. }) {
            self.debit(counters, now, cost);
        }
        (outcome, Spent::default())
    }

    fn refund(&self, counters: &mut WindowCounters, now: Millis, cost: Cost, _: Spent) {
        // Of an earlier window there is nothing left to give back.
        if self.at(counters, now).0.start == counters.start {
            counters.current.0 = counters.current.0.saturating_sub(cost.0);
        }
    }

    fn debit(&self, counters: &mut WindowCounters, now: Millis, cost: Cost) {
        *counters = self.at(counters, now).0;
        counters.current.0 = counters.current.0.saturating_add(cost.0);
    }

    fn count_refused(&self, counters: &mut WindowCounters, now: Millis, cost: Cost) {
        *counters = self.at(counters, now).0;
        // Not past the limit: hammering for a while must not keep somebody out for long.
        let filled = counters.current.0.saturating_add(cost.0).min(self.limit.0);
        counters.current.0 = counters.current.0.max(filled);
    }

    fn drained_at(&self, counters: &WindowCounters) -> Millis {
        let windows = match counters {
            WindowCounters {
                current: Excess(1..),
                ..
            } => 2,
            WindowCounters {
                previous: Excess(1..),
                ..
            } => 1,
            _ => 0,
        };
        Millis(
            counters
                .start
                .0
                .saturating_add(self.millis().saturating_mul(windows)),
        )
    }

    fn standing(&self, counters: &WindowCounters, now: Millis) -> KeyStatus {
        let length = self.millis();
        let (counters, left) = self.at(counters, now);
        let (used, limit) = (self.estimate(&counters, left), Area::of(self.limit, length));
        let fits = used.plus(Area::of(Excess::ONE, length)) <= limit;
        let room_at = self.room_at(&counters, left, Cost::ONE);
        KeyStatus {
            excess: used.minus(limit).over(length),
            limit: self.quota(),
            remaining: limit.minus(used).over(length).0 / Excess::ONE.0,
            retry_after: room_at
                .filter(|_| !fits)
                .map_or(Duration::ZERO, |at| at.since(now)),
            reset_after: self.drained_at(&counters).since(now),
        }
    }

    fn quota(&self) -> u64 {
        self.limit.0 / Excess::ONE.0
    }

    fn period(&self) -> Duration {
        self.window
    }

    fn slower(self, other: Self) -> Self {
        if other.window > self.window {
            other
        } else {
            self
        }
    }
}

fn narrow(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
