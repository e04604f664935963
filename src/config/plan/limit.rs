//! Zones and the rules that use them, as compiled.

use std::time::Duration;

use http::StatusCode;
use ipnet::IpNet;

use super::{AlgorithmParams, CostSource, CountRefused, RefusalAction, Template};

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

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

/// A `limit_req` zone.
#[derive(Debug, Clone)]
pub struct ReqZone {
    /// Its name.
    pub name: Box<str>,
    /// What requests are told apart by.
    pub key: Template,
    /// The bound of its memory, in bytes.
    pub size: usize,
    /// How it counts, and with which numbers.
    pub algorithm: AlgorithmParams,
    /// Whether refused requests are charged, too.
    pub count_refused: CountRefused,
    /// Where it counts together with others; `None` for this process alone.
    pub store: Option<usize>,
    /// What to do with a request without a key.
    pub on_empty_key: OnEmptyKey,
    /// What to do with a request that gives a part of its key more than once.
    pub on_ambiguous_key: OnAmbiguousKey,
    /// How much of an IPv6 address tells clients apart, in bits; 128 for all of it.
    pub ipv6_prefix: u8,
    /// Keys with numbers of their own.
    pub overrides: Vec<Override>,
}

/// A `limit_conn` zone.
#[derive(Debug, Clone)]
pub struct ConnZone {
    /// Its name.
    pub name: Box<str>,
    /// What requests are told apart by.
    pub key: Template,
    /// The bound of its memory, in bytes.
    pub size: usize,
    /// Where its places are counted together with others; `None` for this process alone.
    pub store: Option<usize>,
    /// What to do with a request without a key.
    pub on_empty_key: OnEmptyKey,
    /// What to do with a request that gives a part of its key more than once.
    pub on_ambiguous_key: OnAmbiguousKey,
    /// How much of an IPv6 address tells clients apart, in bits; 128 for all of it.
    pub ipv6_prefix: u8,
}

/// What to do with a request that gives a part of its key more than once, with different values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnAmbiguousKey {
    /// Take what nginx takes: all lines of a header field, the first of several cookies or arguments.
    Join,
    /// Refuse it with 400.
    #[default]
    Refuse,
}

/// What to do with a request whose key is empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnEmptyKey {
    /// Count it under the client's address.
    Address,
    /// Turn it away, with this status in place of the rule's.
    Refuse(Option<StatusCode>),
    /// Do not limit it, as nginx does.
    #[default]
    Skip,
}

/// Numbers of its own for one key or for the clients of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    /// Whom it is for.
    pub key: OverrideKey,
    /// What holds for them; `None` for unlimited.
    pub own: Option<OverrideLimits>,
}

/// What holds for a key with numbers of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverrideLimits {
    /// Instead of the zone's; of the same kind.
    pub algorithm: AlgorithmParams,
    /// Instead of the rule's.
    pub burst: Option<Excess>,
}

/// Whom an [`Override`] is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverrideKey {
    /// Clients in this network.
    Network(IpNet),
    /// A key with exactly this text.
    Text(Box<str>),
}

/// One `limit_req` of a location.
#[derive(Debug, Clone)]
pub struct ReqRule {
    /// Index of its zone.
    pub zone: usize,
    /// How far a key may go above its rate.
    pub burst: Excess,
    /// Which of the excess waits.
    pub delay: Delay,
    /// What a request weighs.
    pub weight: CostSource,
    /// What becomes of the rest.
    pub sanction: RefusalAction,
}

/// Which of the excess requests wait for their turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delay {
    /// Those beyond this excess; zero means every one of them.
    After(Excess),
    /// None (`nodelay`).
    Never,
}

/// One `limit_conn` of a location.
#[derive(Debug, Clone)]
pub struct ConnRule {
    /// Index of its zone.
    pub zone: usize,
    /// How many requests at once.
    pub limit: u32,
    /// Where requests wait for a place; `None`: they are refused at once.
    pub queue: Option<ConnQueue>,
    /// What becomes of requests without a place.
    pub sanction: RefusalAction,
}

/// A waiting line before a `limit_conn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnQueue {
    /// How many may wait for one key.
    pub size: u32,
    /// How long each may wait.
    pub timeout: Duration,
}

/// Whether a limit is enforced or only reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DryRun {
    /// Enforced.
    #[default]
    Off,
    /// Only reported.
    On,
}

/// At which level a refusal is logged; a delay goes one lower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// The default.
    Error,
    /// Least severe.
    Info,
    /// Between the two below.
    Notice,
    /// One below error.
    Warn,
}

/// Which header fields tell clients of their limits besides `Retry-After`, and on which responses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitHeaders {
    /// Which fields.
    pub form: HeaderForm,
    /// On which responses.
    pub on: HeaderScope,
}

/// Which responses carry the fields of `limit_headers`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HeaderScope {
    /// Those to requests that were let in, too.
    All,
    /// Refusals.
    #[default]
    Refused,
}

/// How clients are told of their limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HeaderForm {
    /// `RateLimit-Policy` and `RateLimit`.
    #[default]
    Ietf,
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`.
    Legacy,
    /// None.
    Off,
}
