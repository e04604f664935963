//! The quantities of limits: rates, costs, excess and time, and the verdict on a request.

use std::fmt;
use std::time::Duration;

use crate::clock::Millis;

/// How fast a bucket drains, exactly.
///
/// In units of [`Excess`] per millisecond. One request is 86 400 000 000 units, the number of milliseconds in a day
/// times a thousand: any whole rate per second, minute, hour or day, with up to three decimals, then drains a whole
/// number of units in a millisecond, and nothing is lost to rounding.
///
/// ```
/// use weir::algorithm::{Excess, Rate};
///
/// let rate = Rate::per_minute(1_500);
/// assert_eq!(rate.to_string(), "1.5r/m");
/// assert_eq!(rate.units_per_milli() * 40_000, Excess::ONE.0, "a request every 40 seconds");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate {
    units_per_milli: u64,
    /// As the user wrote it: requests in thousandths, and the unit of the period.
    requests_milli: u64,
    period: char,
}

/// Requests above the rate, in 1/86 400 000 000 of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Excess(pub u64);

impl Excess {
    /// One request.
    pub const ONE: Self = Self(86_400_000_000);

    /// This number of requests.
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
    /// The highest rate accepted, in requests per second; far beyond what one machine can count.
    pub const MAX_PER_SECOND: u64 = 1_000_000_000;

    /// `milli` thousandths of a request per second.
    #[must_use]
    pub const fn per_second(milli: u64) -> Self {
        Self::new(milli, 86_400, 's')
    }

    /// `milli` thousandths of a request per minute.
    #[must_use]
    pub const fn per_minute(milli: u64) -> Self {
        Self::new(milli, 1_440, 'm')
    }

    /// `milli` thousandths of a request per hour.
    #[must_use]
    pub const fn per_hour(milli: u64) -> Self {
        Self::new(milli, 24, 'h')
    }

    /// `milli` thousandths of a request per day.
    #[must_use]
    pub const fn per_day(milli: u64) -> Self {
        Self::new(milli, 1, 'd')
    }

    const fn new(requests_milli: u64, periods_per_day: u64, period: char) -> Self {
        Self {
            units_per_milli: requests_milli * periods_per_day,
            requests_milli,
            period,
        }
    }

    /// What drains in a millisecond.
    #[must_use]
    pub const fn units_per_milli(self) -> u64 {
        self.units_per_milli
    }

    /// The divisor for everything that drains. The configuration accepts no rate of zero; if there were one, it must not
    /// bring down a thread.
    pub(super) fn divisor(self) -> u64 {
        self.units_per_milli.max(1)
    }

    /// How long it takes until `cost` has drained.
    pub(super) fn drain_time(self, cost: Cost) -> Duration {
        Duration::from_millis(cost.0.div_ceil(self.divisor()))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, thousandths) = (self.requests_milli / 1000, self.requests_milli % 1000);
        write!(f, "{whole}")?;
        if thousandths != 0 {
            write!(f, ".{}", format!("{thousandths:03}").trim_end_matches('0'))?;
        }
        write!(f, "r/{}", self.period)
    }
}

/// Which excess requests are delayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delay {
    /// Those beyond this excess; all of them if it is zero.
    After(Excess),
    /// None (`nodelay`).
    Never,
}

/// What a request costs its key, in the units of [`Excess`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(pub u64);

impl Cost {
    /// One request.
    pub const ONE: Self = Self(Excess::ONE.0);

    /// This number of thousandths of a request, or the highest cost there is.
    #[must_use]
    pub const fn milli(thousandths: u64) -> Self {
        Self(thousandths.saturating_mul(Self::ONE.0 / 1000))
    }

    /// This number of requests, or the highest cost there is.
    pub(super) const fn requests(count: u64) -> Self {
        Self(count.saturating_mul(Self::ONE.0))
    }
}

/// The verdict on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It passes after a wait.
    Delay {
        /// How far above its rate the key is with this request.
        excess: Excess,
        /// How long it waits.
        wait: Duration,
    },
    /// It passes at once.
    Pass {
        /// How far above its rate the key is with this request.
        excess: Excess,
    },
    /// It is refused.
    Refuse {
        /// How far above its rate the key would be with this request.
        excess: Excess,
        /// When the same request would pass, if none comes before it; `None` for one that never would.
        retry_after: Option<Duration>,
    },
}

impl Verdict {
    /// Refuses a request that has this surplus over the limit of a window.
    #[inline]
    pub(super) fn for_surplus(
        surplus: u64,
        retry_after: impl FnOnce() -> Option<Duration>,
    ) -> Self {
        match surplus {
            0 => Self::Pass { excess: Excess(0) },
            _ => Self::Refuse {
                excess: Excess(surplus),
                retry_after: retry_after(),
            },
        }
    }

    /// Delays a request by `millis`. Less than one is no delay, as in nginx.
    #[inline]
    pub(super) fn for_wait(excess: Excess, millis: u64) -> Self {
        match millis {
            0 => Self::Pass { excess },
            _ => Self::Delay {
                excess,
                wait: Duration::from_millis(millis),
            },
        }
    }
}

/// A verdict without its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerdictKind {
    /// The request passes after this wait.
    Delay(Duration),
    /// It passes at once.
    Pass,
    /// It is refused.
    Refuse,
}

impl VerdictKind {
    /// Its name in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delay(_) => "delay",
            Self::Pass => "pass",
            Self::Refuse => "refuse",
        }
    }

    /// How long the request waits.
    #[must_use]
    pub fn wait(self) -> Duration {
        match self {
            Self::Delay(wait) => wait,
            Self::Pass | Self::Refuse => Duration::ZERO,
        }
    }
}

impl From<&Verdict> for VerdictKind {
    fn from(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Delay { wait, .. } => Self::Delay(*wait),
            Verdict::Pass { .. } => Self::Pass,
            Verdict::Refuse { .. } => Self::Refuse,
        }
    }
}

/// What a charge took, where the state and the cost do not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent(pub(super) u64);

/// The status of a key, in whole requests, as header fields and the API show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyStatus {
    /// How far above its rate it is.
    pub excess: Excess,
    /// The most requests that it may have at one moment.
    pub limit: u64,
    /// How many more requests would pass at this moment.
    pub remaining: u64,
    /// When one more would pass.
    pub retry_after: Duration,
    /// When all of the limit is there again.
    pub reset_after: Duration,
}

/// A level that rises with every request and falls with time: the state of a key in half of the algorithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// How high it was when it was last charged.
    pub height: Excess,
    /// When that was.
    pub last: Millis,
}

impl Level {
    pub(super) fn empty(now: Millis) -> Self {
        Self {
            height: Excess(0),
            last: now,
        }
    }

    /// The level at a later moment, charged with a cost then.
    pub(super) fn charged(self, now: Millis, cost: Cost, rate: Rate) -> Self {
        let elapsed = elapsed(self.last, now);
        let left = self
            .height
            .0
            .saturating_sub(elapsed.saturating_mul(rate.units_per_milli()));
        Self {
            height: Excess(left.saturating_add(cost.0)),
            // Not when nothing has elapsed: a later moment, which another thread has read, must stay.
            last: if elapsed == 0 { self.last } else { now },
        }
    }

    /// The level without a cost that it was charged with.
    pub(super) fn refunded(self, cost: Cost) -> Self {
        Self {
            height: Excess(self.height.0.saturating_sub(cost.0)),
            ..self
        }
    }

    /// nginx's number: the height without the one request that is within the rate.
    pub(super) fn excess(self) -> Excess {
        Excess(self.height.0.saturating_sub(Excess::ONE.0))
    }

    /// When it has fallen to `height`.
    // Counted from when it was last charged: if that moment is still to come, nothing drains before it.
    pub(super) fn falls_to(self, height: Excess, rate: Rate) -> Millis {
        let above = self.height.0.saturating_sub(height.0);
        plus(self.last, above.div_ceil(rate.divisor()))
    }

    /// How long until it has fallen so far that `cost` fits under `capacity`; `None` if it never does.
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

/// The rate at which a level falls, and what fits under it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meter {
    pub(super) rate: Rate,
    pub(super) capacity: Excess,
}

impl Meter {
    /// The level charged with a refused request as far as there is room up to `most`.
    pub(super) fn filled(self, level: Level, now: Millis, cost: Cost, most: Excess) -> Level {
        let left = level.charged(now, Cost(0), self.rate);
        let height = left.height.0.saturating_add(cost.0).min(most.0);
        Level {
            height: left.height.max(Excess(height)),
            last: left.last,
        }
    }

    pub(super) fn key_status(self, level: Level, now: Millis) -> KeyStatus {
        let left = level.charged(now, Cost(0), self.rate);
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

    /// How long it takes until a whole quota has drained.
    pub(super) fn period(self) -> Duration {
        self.rate.drain_time(Cost::requests(self.quota()))
    }
}

/// The time for which something has drained, in milliseconds.
fn elapsed(last: Millis, now: Millis) -> u64 {
    match now.0.checked_sub(last.0) {
        Some(elapsed) => elapsed,
        // Another thread read the clock a little later: nothing has drained since.
        None if last.0 - now.0 <= MAX_AHEAD => 0,
        // The clock was set back: start again from its new time.
        None => 1,
    }
}

/// How far ahead of the clock a key's time may be before the clock counts as set back, in milliseconds; nginx's number.
const MAX_AHEAD: u64 = 60_000;

/// The time of one key, which stands still or jumps where the clock goes backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyTime {
    pub(super) now: Millis,
    /// How far the clock was set back, in milliseconds: all stored times count as so much earlier, so that a key gains and
    /// loses nothing.
    pub(super) set_back: u64,
}

impl KeyTime {
    /// The time of a key that was last used at `last`.
    pub(super) fn new(last: Millis, now: Millis) -> Self {
        match last.0.checked_sub(now.0) {
            None => Self { now, set_back: 0 },
            // Another thread read the clock a little later: no time has passed.
            Some(ahead) if ahead <= MAX_AHEAD => Self {
                now: last,
                set_back: 0,
            },
            Some(ahead) => Self {
                now,
                set_back: ahead,
            },
        }
    }

    /// A stored time, as the clock counts now.
    pub(super) fn shifted(self, at: Millis) -> Millis {
        Millis(at.0.saturating_sub(self.set_back))
    }
}

/// The window of a key at this moment: its start, how many windows it is after the one that started at `start`, and the
/// milliseconds since its start.
pub(super) fn window_at(start: Millis, now: Millis, length: u64) -> (Millis, u64, u64) {
    let time = KeyTime::new(start, now);
    let current = window_start(time.now, length);
    let passed = current.0.saturating_sub(time.shifted(start).0) / length;
    (current, passed, time.now.0 - current.0)
}

/// The start of the window that a moment is in.
pub(super) fn window_start(now: Millis, length: u64) -> Millis {
    Millis(now.0 - now.0 % length)
}

/// A length of time in milliseconds, at least one.
pub(super) fn millis(duration: Duration) -> u64 {
    narrow(duration.as_millis()).max(1)
}

pub(super) fn plus(at: Millis, millis: u64) -> Millis {
    Millis(at.0.saturating_add(millis))
}

/// A number, or the highest there is.
pub(super) fn narrow(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// A moment or a length of time in nanoseconds, at most five centuries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub(super) u64);

impl Nanos {
    pub(super) fn at(millis: Millis) -> Self {
        Self(millis.0.saturating_mul(NANOS_PER_MILLI))
    }

    /// How long a cost takes at a rate, rounded down.
    pub(super) fn for_cost(cost: Cost, rate: Rate) -> Self {
        let units = u128::from(rate.divisor());
        Self(narrow(
            u128::from(cost.0) * u128::from(NANOS_PER_MILLI) / units,
        ))
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Never below zero.
    pub(super) fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// As a moment of the clock, rounded up.
    pub(super) fn to_moment(self) -> Millis {
        Millis(self.0.div_ceil(NANOS_PER_MILLI))
    }

    /// As a duration in whole milliseconds, rounded up: the clock has no finer ones.
    pub(super) fn to_millis(self) -> Duration {
        Duration::from_millis(self.0.div_ceil(NANOS_PER_MILLI))
    }

    /// In whole milliseconds, rounded down.
    pub(super) fn whole_millis(self) -> u64 {
        self.0 / NANOS_PER_MILLI
    }

    /// How long a cost takes, where one request takes this long.
    pub(super) fn times(self, cost: Cost) -> Self {
        Self(narrow(
            u128::from(self.0) * u128::from(cost.0) / u128::from(Cost::ONE.0),
        ))
    }

    /// The cost that takes this long at a rate, in its units.
    pub(super) fn at_rate(self, rate: Rate) -> u64 {
        narrow(
            u128::from(self.0) * u128::from(rate.units_per_milli()) / u128::from(NANOS_PER_MILLI),
        )
    }

    /// The cost that takes this long where one request takes `interval`, in its units.
    pub(super) fn in_units_of(self, interval: Self) -> u64 {
        narrow(u128::from(self.0) * u128::from(Cost::ONE.0) / u128::from(interval.0.max(1)))
    }
}

impl From<Duration> for Nanos {
    fn from(duration: Duration) -> Self {
        Self(narrow(duration.as_nanos()))
    }
}

const NANOS_PER_MILLI: u64 = 1_000_000;

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn only_a_clock_that_was_set_back_shifts_stored_times() {
        let of = |last, now| {
            let time = KeyTime::new(Millis(last), Millis(now));
            (time.now.0, time.shifted(Millis(last)).0)
        };
        assert_eq!(of(1_000, 5_000), (5_000, 1_000));
        assert_eq!(of(100_000, 40_000), (100_000, 100_000));
        assert_eq!(of(100_000, 39_999), (39_999, 39_999));
        assert_eq!(of(u64::MAX, 0), (0, 0));
    }
}
