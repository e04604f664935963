//! How a zone counts, and what a request weighs.

use std::fmt;
use std::time::Duration;

use super::{Excess, Rate, Template};

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

/// Whether refused requests are charged, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CountRefused {
    /// A refusal costs nothing, as in nginx.
    #[default]
    No,
    /// Who goes on asking stays out.
    Yes,
}

/// What a request costs its key, in the units of [`Excess`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(pub u64);

/// Where the cost of a request comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CostSource {
    /// A text that is known once there is an answer, and says a number: charged then.
    After(Template),
    /// A text that is known when the request comes, and says a number.
    Before(Template),
    /// The same for all.
    Fixed(Cost),
    /// As many as its body has bytes: charged when it has come.
    RequestBytes,
    /// As many as its answer's body has bytes: charged then.
    ResponseBytes,
}

impl CostSource {
    /// The text that says it, if there is one.
    #[must_use]
    pub const fn template(&self) -> Option<&Template> {
        match self {
            Self::After(template) | Self::Before(template) => Some(template),
            Self::Fixed(_) | Self::RequestBytes | Self::ResponseBytes => None,
        }
    }

    /// Whether it is only known when the request is over.
    #[must_use]
    pub const fn is_late(&self) -> bool {
        matches!(
            self,
            Self::After(_) | Self::RequestBytes | Self::ResponseBytes
        )
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_is_said_as_it_was_written() {
        let fixed = |millis| {
            let window = Duration::from_millis(millis);
            AlgorithmParams::FixedWindow { limit: 100, window }.to_string()
        };
        assert_eq!(fixed(60_000), "100r/1m");
        assert_eq!(fixed(90_000), "100r/90s");
        assert_eq!(fixed(86_400_000), "100r/1d");
        assert_eq!(fixed(1_500), "100r/1500ms");
        let rate = Rate::per_minute(1_000);
        assert_eq!(AlgorithmParams::Gcra { rate }.to_string(), "1r/m");
    }
}
