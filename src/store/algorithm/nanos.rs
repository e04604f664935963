//! Times in nanoseconds, for those algorithms that remember moments instead of amounts.

use std::time::Duration;

use crate::clock::Millis;
use crate::config::plan::{Cost, Rate};

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

const NANOS_PER_MILLI: u64 = 1_000_000;
