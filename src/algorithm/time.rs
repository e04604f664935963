//! The time of one key, which stands still or jumps where the clock goes backwards, and times in nanoseconds.

use std::time::Duration;

use super::quantities::{Cost, Rate};
use crate::clock::Millis;

/// How far ahead a key's time may lie before the clock is taken to have jumped, in milliseconds; nginx's number.
pub(super) const FARTHEST_AHEAD: u64 = 60_000;

/// When something happens to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyTime {
    pub(super) now: Millis,
    /// By how much the clock jumped back: all that the key remembers has to be taken as so much earlier, in
    /// milliseconds. Nothing is won by it and nothing lost.
    pub(super) back: u64,
}

impl KeyTime {
    /// For a key that was last seen at `last`.
    pub(super) fn of(last: Millis, now: Millis) -> Self {
        match last.0.checked_sub(now.0) {
            None => Self { now, back: 0 },
            // Another thread read the clock a little later than we did: no time has passed.
            Some(ahead) if ahead <= FARTHEST_AHEAD => Self { now: last, back: 0 },
            Some(ahead) => Self { now, back: ahead },
        }
    }

    /// Something the key remembers, in this moment's time.
    pub(super) fn taken(self, at: Millis) -> Millis {
        Millis(at.0.saturating_sub(self.back))
    }
}

/// A moment or a length of time, in nanoseconds; five centuries at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Nanos(pub(super) u64);

impl Nanos {
    /// A moment.
    pub(super) fn at(millis: Millis) -> Self {
        Self(millis.0.saturating_mul(NANOS_PER_MILLI))
    }

    pub(super) fn of_duration(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }

    /// How long so much takes at a rate, the rest cut off.
    pub(super) fn of(cost: Cost, rate: Rate) -> Self {
        let units = u128::from(rate.units_per_milli().max(1));
        Self::narrow(u128::from(cost.0) * u128::from(NANOS_PER_MILLI) / units)
    }

    pub(super) fn after(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Never before zero.
    pub(super) fn before(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// From when on this moment lies behind.
    pub(super) fn passed_at(self) -> Millis {
        Millis(self.0.div_ceil(NANOS_PER_MILLI))
    }

    /// In whole milliseconds, rounded up: the clock knows no others.
    pub(super) fn to_millis(self) -> Duration {
        Duration::from_millis(self.0.div_ceil(NANOS_PER_MILLI))
    }

    /// So many requests, one taking this long.
    pub(super) fn times(self, cost: Cost) -> Self {
        Self::narrow(u128::from(self.0) * u128::from(cost.0) / u128::from(Cost::ONE.0))
    }

    /// In whole milliseconds, the rest cut off.
    pub(super) fn whole_millis(self) -> Duration {
        Duration::from_millis(self.0 / NANOS_PER_MILLI)
    }

    /// How much that is at a rate, in the units of a cost.
    pub(super) fn at_rate(self, rate: Rate) -> u64 {
        let units = u128::from(self.0) * u128::from(rate.units_per_milli());
        u64::try_from(units / u128::from(NANOS_PER_MILLI)).unwrap_or(u64::MAX)
    }

    /// How many requests it is, one taking `interval`; in the units of a cost.
    pub(super) fn in_units_of(self, interval: Self) -> u64 {
        let units = u128::from(self.0) * u128::from(Cost::ONE.0) / u128::from(interval.0.max(1));
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    fn narrow(nanos: u128) -> Self {
        Self(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// A length of time in milliseconds, at least one.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX)
        .max(1)
}

/// The start of the window that this moment lies in.
pub(super) fn window_start(now: Millis, length: u64) -> Millis {
    Millis(now.0 - now.0 % length)
}

const NANOS_PER_MILLI: u64 = 1_000_000;

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn only_a_jump_moves_what_is_remembered() {
        let of = |last, now| {
            let moment = KeyTime::of(Millis(last), Millis(now));
            (moment.now.0, moment.taken(Millis(last)).0)
        };
        assert_eq!(of(1_000, 5_000), (5_000, 1_000));
        assert_eq!(of(100_000, 40_000), (100_000, 100_000));
        assert_eq!(of(100_000, 39_999), (39_999, 39_999));
        assert_eq!(of(u64::MAX, 0), (0, 0));
    }
}
