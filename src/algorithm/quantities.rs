//! The quantities of limits: rates, costs and excess, and the verdict on a request.

use std::fmt;
use std::time::Duration;

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

/// What a request costs its key, in the units of [`Excess`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(pub u64);

impl Cost {
    /// One plain request.
    pub const ONE: Self = Self(Excess::ONE.0);

    /// So many thousandths of a request; the most there can be where that is more.
    #[must_use]
    pub const fn milli(thousandths: u64) -> Self {
        Self(thousandths.saturating_mul(Self::ONE.0 / 1000))
    }
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It passes after a wait.
    Delay {
        /// How far above its rate the key stands with this request.
        excess: Excess,
        /// For how long it waits.
        wait: Duration,
    },
    /// It passes at once.
    Pass {
        /// How far above its rate the key stands with this request.
        excess: Excess,
    },
    /// It is turned away.
    Refuse {
        /// How far above its rate the key would stand with this request.
        excess: Excess,
        /// When the same request would pass, if none comes before it; `None` for one that never would.
        retry_after: Option<Duration>,
    },
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
    /// Its word in the API.
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

/// What a charge took, for those algorithms that cannot tell from the state and the cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent(pub(super) u64);

/// Where a key stands, in whole requests: what header fields and people are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyStatus {
    /// How far above its rate it is.
    pub excess: Excess,
    /// What a key may have at one moment.
    pub limit: u64,
    /// How many more requests would be let in at this moment.
    pub remaining: u64,
    /// When one more would be.
    pub retry_after: Duration,
    /// When all of the limit is there again.
    pub reset_after: Duration,
}
