//! The ways of counting, one file each: pure functions from a state, the time and a cost to an answer.
//!
//! An algorithm is the numbers a key is held to: its [`Algorithm`] functions take what is remembered of a key and the
//! time, and nothing else. So the live path, replay and the tests ask the same code, and a zone is typed by its
//! algorithm: nobody can hand it the state of another. [`Terms`] is all of them behind one word.

pub mod leaky_bucket;
mod level;

use std::time::Duration;

use self::leaky_bucket::LeakyBucket;
use crate::clock::Millis;
use crate::config::plan::{self, Cost, Delay, Excess};

/// The numbers that keys are held to by one way of counting.
pub trait Algorithm: Copy {
    /// What is remembered of one key.
    type State: std::fmt::Debug;

    /// What is known of a key that nobody has charged yet.
    fn fresh(&self, now: Millis) -> Self::State;

    /// What becomes of a request of this cost, and what its charge takes from the key; changes nothing.
    ///
    /// A cost of nothing asks whether the key is in debt. One that is more than a key can ever have is refused, and
    /// no time is named to come back at.
    fn ask(&self, state: &Self::State, now: Millis, cost: Cost) -> Outcome;

    /// Decides about a request and charges the key with it, unless it is refused.
    fn charge(&self, state: &mut Self::State, now: Millis, cost: Cost) -> (Outcome, Spent);

    /// Takes back a charge with the same arguments that gave `spent`; others may have come in between.
    fn refund(&self, state: &mut Self::State, now: Millis, cost: Cost, spent: Spent);

    /// Charges what was found to be owed after the fact: never refuses, and may leave the key in debt.
    fn debit(&self, state: &mut Self::State, now: Millis, cost: Cost);

    /// Charges a refused request as far as the key has something left, so that who goes on asking stays out.
    fn count_refused(&self, state: &mut Self::State, now: Millis, cost: Cost);

    /// From when on forgetting the key gives nobody anything.
    fn drained_at(&self, state: &Self::State) -> Millis;

    /// Where a key stands.
    fn standing(&self, state: &Self::State, now: Millis) -> Standing;

    /// What a key may have at one moment, in whole requests.
    fn quota(&self) -> u64;

    /// In which time a whole quota comes back.
    fn period(&self) -> Duration;

    /// The numbers of whichever of both takes longer to drain, and more room to remember.
    #[must_use]
    fn slower(self, other: Self) -> Self;
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
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

/// What a charge took, for those algorithms that cannot tell from the state and the cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent(pub(super) u64);

/// Where a key stands, in whole requests: what header fields and people are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
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

/// The numbers a key is held to, whichever way its zone counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terms {
    /// nginx's.
    LeakyBucket(LeakyBucket),
}

/// Does the same with the numbers of every algorithm.
macro_rules! each {
    ($terms:expr, $numbers:ident => $act:expr) => {
        match $terms {
            Terms::LeakyBucket($numbers) => $act,
        }
    };
}

impl Terms {
    /// What a rule with this `burst` and `delay` asks of a key in a zone that counts like this.
    #[must_use]
    pub fn new(algorithm: &plan::Algorithm, burst: Excess, delay: Delay) -> Self {
        match *algorithm {
            plan::Algorithm::LeakyBucket { rate } => {
                Self::LeakyBucket(LeakyBucket { rate, burst, delay })
            }
        }
    }

    /// The same for a key with other numbers; what is not given stays.
    #[must_use]
    pub fn with(&self, algorithm: &plan::Algorithm, burst: Option<Excess>) -> Self {
        match *self {
            Self::LeakyBucket(LeakyBucket {
                burst: rule, delay, ..
            }) => Self::new(algorithm, burst.unwrap_or(rule), delay),
        }
    }

    /// Of two for the same zone, those that take longer to drain.
    #[must_use]
    pub fn slower(self, other: Self) -> Self {
        match (self, other) {
            (Self::LeakyBucket(one), Self::LeakyBucket(other)) => {
                Self::LeakyBucket(one.slower(other))
            }
        }
    }

    /// What a key may have at one moment, in whole requests.
    #[must_use]
    pub fn quota(&self) -> u64 {
        each!(self, numbers => numbers.quota())
    }

    /// In which time a whole quota comes back.
    #[must_use]
    pub fn period(&self) -> Duration {
        each!(self, numbers => numbers.period())
    }
}
