//! How a zone counts, and what a request weighs.

use std::fmt;

use super::{Excess, Rate, Template};

/// How a zone counts, and with which numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// nginx's.
    LeakyBucket {
        /// How fast a bucket drains.
        rate: Rate,
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
pub enum Weight {
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

impl Weight {
    /// Whether it is only known when the request is over.
    #[must_use]
    pub const fn is_late(&self) -> bool {
        matches!(
            self,
            Self::After(_) | Self::RequestBytes | Self::ResponseBytes
        )
    }
}

impl Algorithm {
    /// Its word in a configuration.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::LeakyBucket { .. } => "leaky_bucket",
        }
    }
}

/// What it allows, as the user wrote it.
impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeakyBucket { rate } => rate.fmt(f),
        }
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
