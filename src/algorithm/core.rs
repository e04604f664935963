//! The quantities of limits, and the parameters of each algorithm.
//!
//! What time it is for one key, when the clock does not only go forward.
//!
//! Times in nanoseconds, for those algorithms that remember moments instead of amounts.

use std::fmt;
use std::time::Duration;

use crate::clock::Millis;

/// How fast a bucket drains, exactly.
///
/// In units of [`Excess`] per millisecond. One request is 86 400 000 000 units, the number of milliseconds
/// in a day times a thousand: any whole rate a second, minute, hour or day, with up to three decimals,
/// then drains a whole number of units in a millisecond, and nothing is lost to rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate {
    units_per_milli: u64,
    /// As the user wrote it, for people: requests in thousandths, and the period.
    requests_milli: u64,
    period: RatePeriod,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RatePeriod {
    Second,
    Minute,
    Hour,
    Day,
}

/// Requests above the rate, in 1/86 400 000 000 of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Excess(pub u64);

impl Excess {
    /// One whole request.
    pub const ONE: Self = Self(86_400_000_000);

    /// So many whole requests.
    #[must_use]
    pub const fn requests(count: u32) -> Self {
        Self(count as u64 * Self::ONE.0)
    }

    /// In thousandths of a request, rounded up: what nginx reports for the same history.
    #[must_use]
    pub const fn milli(self) -> u64 {
        self.0.div_ceil(Self::ONE.0 / 1000)
    }
}

impl Rate {
    /// The largest rate accepted, in requests a second; far beyond what one machine can count.
    pub const MAX_PER_SECOND: u64 = 1_000_000_000;

    /// `milli` thousandths of a request in a second.
    #[must_use]
    pub const fn per_second(milli: u64) -> Self {
        Self {
            units_per_milli: milli * 86_400,
            requests_milli: milli,
            period: RatePeriod::Second,
        }
    }

    /// `milli` thousandths of a request in a minute.
    #[must_use]
    pub const fn per_minute(milli: u64) -> Self {
        Self {
            units_per_milli: milli * 1_440,
            requests_milli: milli,
            period: RatePeriod::Minute,
        }
    }

    /// `milli` thousandths of a request in an hour.
    #[must_use]
    pub const fn per_hour(milli: u64) -> Self {
        Self {
            units_per_milli: milli * 24,
            requests_milli: milli,
            period: RatePeriod::Hour,
        }
    }

    /// `milli` thousandths of a request in a day.
    #[must_use]
    pub const fn per_day(milli: u64) -> Self {
        Self {
            units_per_milli: milli,
            requests_milli: milli,
            period: RatePeriod::Day,
        }
    }

    /// What drains in a millisecond.
    #[must_use]
    pub const fn units_per_milli(self) -> u64 {
        self.units_per_milli
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, thousandths) = (self.requests_milli / 1000, self.requests_milli % 1000);
        write!(f, "{whole}")?;
        if thousandths != 0 {
            write!(f, ".{}", format!("{thousandths:03}").trim_end_matches('0'))?;
        }
        f.write_str(match self.period {
            RatePeriod::Second => "r/s",
            RatePeriod::Minute => "r/m",
            RatePeriod::Hour => "r/h",
            RatePeriod::Day => "r/d",
        })
    }
}

/// Which of the excess requests wait for their turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delay {
    /// Those beyond this excess; zero means every one of them.
    After(Excess),
    /// None (`nodelay`).
    Never,
}

/// How a zone counts, and with which numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlgorithmParams {
    /// Guava's `SmoothBursty`: the next caller pays for the last.
    Bursty {
        /// How fast permits come.
        rate: Rate,
        /// How long a request may have to wait.
        max_wait: Duration,
    },
    /// A counter that starts over with every window.
    FixedWindow {
        /// How many in a window.
        limit: u32,
        /// How long it is.
        window: Duration,
    },
    /// redis-cell's.
    Gcra {
        /// How fast requests may come.
        rate: Rate,
    },
    /// nginx's.
    LeakyBucket {
        /// How fast a bucket drains.
        rate: Rate,
    },
    /// A queue that is emptied at a constant rate.
    Paced {
        /// How fast requests are let out.
        rate: Rate,
        /// How long a request may have to wait.
        max_wait: Duration,
    },
    /// When each request came.
    SlidingLog {
        /// How many in any window.
        limit: u32,
        /// How long it is.
        window: Duration,
    },
    /// Two counters, or one for each block.
    SlidingWindow {
        /// How many in any window.
        limit: u32,
        /// How long it is.
        window: Duration,
        /// How long a block is.
        precision: Option<Duration>,
    },
    /// Full at the start; a rule's burst is its capacity.
    TokenBucket {
        /// How fast tokens come back.
        rate: Rate,
    },
    /// Guava's `SmoothWarmingUp`: who was idle begins at a third of the rate.
    WarmUp {
        /// How fast permits come once it is warm.
        rate: Rate,
        /// How long it takes to get warm.
        warm_up: Duration,
        /// How long a request may have to wait.
        max_wait: Duration,
    },
}

/// What a request costs its key, in the units of [`Excess`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(pub u64);

impl AlgorithmParams {
    /// Its word in a configuration.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Bursty { .. } => "bursty",
            Self::FixedWindow { .. } => "fixed_window",
            Self::Gcra { .. } => "gcra",
            Self::LeakyBucket { .. } => "leaky_bucket",
            Self::Paced { .. } => "paced",
            Self::SlidingLog { .. } => "sliding_log",
            Self::SlidingWindow { .. } => "sliding_window",
            Self::TokenBucket { .. } => "token_bucket",
            Self::WarmUp { .. } => "warm_up",
        }
    }

    /// The rate it goes by; those that count in windows have none.
    #[must_use]
    pub const fn rate(&self) -> Option<Rate> {
        match self {
            Self::Bursty { rate, .. }
            | Self::Gcra { rate }
            | Self::LeakyBucket { rate }
            | Self::Paced { rate, .. }
            | Self::TokenBucket { rate }
            | Self::WarmUp { rate, .. } => Some(*rate),
            Self::FixedWindow { .. } | Self::SlidingLog { .. } | Self::SlidingWindow { .. } => None,
        }
    }

    /// What it comes to in the long run, in requests a second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        match *self {
            Self::FixedWindow { limit, window }
            | Self::SlidingLog { limit, window }
            | Self::SlidingWindow { limit, window, .. } => f64::from(limit) / window.as_secs_f64(),
            Self::Bursty { rate, .. }
            | Self::Gcra { rate }
            | Self::LeakyBucket { rate }
            | Self::Paced { rate, .. }
            | Self::TokenBucket { rate }
            | Self::WarmUp { rate, .. } => {
                let units = rate.units_per_milli() as f64;
                units * 1000.0 / Excess::ONE.0 as f64
            }
        }
    }
}

/// What it allows, as the user wrote it.
impl fmt::Display for AlgorithmParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bursty { rate, .. }
            | Self::Gcra { rate }
            | Self::LeakyBucket { rate }
            | Self::Paced { rate, .. }
            | Self::TokenBucket { rate }
            | Self::WarmUp { rate, .. } => rate.fmt(f),
            Self::FixedWindow { limit, window }
            | Self::SlidingLog { limit, window }
            | Self::SlidingWindow { limit, window, .. } => {
                write!(f, "{limit}r/{}", Units(*window))
            }
        }
    }
}

/// A time as a configuration writes it, in the largest unit that says it exactly.
struct Units(Duration);

impl fmt::Display for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let units = [
            (86_400_000, "d"),
            (3_600_000, "h"),
            (60_000, "m"),
            (1_000, "s"),
        ];
        for (length, unit) in units {
            if millis >= length && millis.is_multiple_of(length) {
                return write!(f, "{}{unit}", millis / length);
            }
        }
        write!(f, "{millis}ms")
    }
}

impl Cost {
    /// One plain request.
    pub const ONE: Self = Self(Excess::ONE.0);

    /// So many thousandths of a request; the most there can be where that is more.
    #[must_use]
    pub const fn milli(thousandths: u64) -> Self {
        Self(thousandths.saturating_mul(Self::ONE.0 / 1000))
    }
}

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
