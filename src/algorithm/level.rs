//! A level that rises with every request and falls with time: the one number under half of the algorithms.

use std::time::Duration;

use super::quantities::{Cost, Excess, KeyStatus, Rate};
use super::time::FARTHEST_AHEAD;
use crate::clock::Millis;

/// What is remembered of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// How much stood in it when it was last charged.
    pub height: Excess,
    /// When that was.
    pub last: Millis,
}

impl Level {
    /// Nothing in it.
    pub(super) fn empty(now: Millis) -> Self {
        Self {
            height: Excess(0),
            last: now,
        }
    }

    /// The level at a later moment, with what came in then.
    pub(super) fn with(self, now: Millis, cost: Cost, rate: Rate) -> Self {
        let elapsed = elapsed(self.last, now);
        let left = self
            .height
            .0
            .saturating_sub(elapsed.saturating_mul(rate.units_per_milli()));
        Self {
            height: Excess(left.saturating_add(cost.0)),
            // Not when nothing has elapsed: a moment that lies ahead, seen by a faster thread, must stay.
            last: if elapsed == 0 { self.last } else { now },
        }
    }

    /// The level without something that came in.
    pub(super) fn without(self, cost: Cost) -> Self {
        Self {
            height: Excess(self.height.0.saturating_sub(cost.0)),
            ..self
        }
    }

    /// nginx's number: what stands in it besides the one request that is within the rate.
    pub(super) fn excess(self) -> Excess {
        Excess(self.height.0.saturating_sub(Excess::ONE.0))
    }

    /// From when on it has fallen to `height`.
    // Counted from when it was last charged: should that moment lie ahead, nothing leaks before it.
    pub(super) fn falls_to(self, height: Excess, rate: Rate) -> Millis {
        let above = self.height.0.saturating_sub(height.0);
        Millis(self.last.0.saturating_add(above.div_ceil(units(rate))))
    }

    /// How long from now until it has fallen so far that `cost` fits under `capacity`; `None` if it never does.
    pub(super) fn room_after(
        self,
        now: Millis,
        cost: Cost,
        capacity: Excess,
        rate: Rate,
    ) -> Option<Duration> {
        let under = capacity.0.checked_sub(cost.0)?;
        Some(self.falls_to(Excess(under), rate).since(now))
    }
}

/// A level, the rate it falls with and what fits under it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meter {
    pub(super) rate: Rate,
    pub(super) capacity: Excess,
}

impl Meter {
    /// The level with a refused request in it, as far as there was room.
    pub(super) fn filled(self, level: Level, now: Millis, cost: Cost) -> Level {
        let left = level.with(now, Cost(0), self.rate);
        let height = left.height.0.saturating_add(cost.0).min(self.capacity.0);
        Level {
            height: left.height.max(Excess(height)),
            last: left.last,
        }
    }

    pub(super) fn key_status(self, level: Level, now: Millis) -> KeyStatus {
        let left = level.with(now, Cost(0), self.rate);
        let retry_after = left.room_after(now, Cost::ONE, self.capacity, self.rate);
        KeyStatus {
            excess: left.excess(),
            limit: self.quota(),
            remaining: self.capacity.0.saturating_sub(left.height.0) / Excess::ONE.0,
            retry_after: retry_after.unwrap_or_default(),
            reset_after: left.falls_to(Excess(0), self.rate).since(now),
        }
    }

    /// What fits, in whole requests.
    pub(super) fn quota(self) -> u64 {
        self.capacity.0 / Excess::ONE.0
    }

    /// In which time a whole quota drains.
    pub(super) fn period(self) -> Duration {
        drained_in(Cost(self.quota().saturating_mul(Excess::ONE.0)), self.rate)
    }
}

/// For how long something has leaked, in milliseconds.
pub(super) fn elapsed(last: Millis, now: Millis) -> u64 {
    match now.0.checked_sub(last.0) {
        Some(elapsed) => elapsed,
        // Another thread read the clock a little later than we did: nothing has leaked since.
        None if last.0 - now.0 <= FARTHEST_AHEAD => 0,
        // The clock really jumped: start over from its new time.
        None => 1,
    }
}

/// The divisor for everything that drains; a rate of nothing does not get past `config`, and must not
/// bring down a thread if it ever does.
pub(super) fn units(rate: Rate) -> u64 {
    rate.units_per_milli().max(1)
}

/// How long so much takes to drain.
pub(super) fn drained_in(cost: Cost, rate: Rate) -> Duration {
    Duration::from_millis(cost.0.div_ceil(units(rate)))
}
