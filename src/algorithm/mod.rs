//! The ways of counting, one file each: pure functions from a state, the time and a cost to an answer.
//!
//! An algorithm is the numbers a key is held to: its [`Algorithm`] functions take what is remembered of a key and the
//! time, and nothing else. So the live path, replay and the tests ask the same code, and a zone is typed by its
//! algorithm: nobody can hand it the state of another. [`LimitSpec`] is all of them behind one word.

mod core;
mod fixed_window;
mod gcra;
mod leaky_bucket;
mod level;
mod paced;
mod sliding_log;
mod sliding_window;
mod smooth;
#[cfg(test)]
#[path = "tests/testing.rs"]
mod testing;
mod token_bucket;

use std::time::Duration;

use crate::clock::Millis;

pub use self::core::{AlgorithmParams, Cost, Delay, Excess, Rate};
pub use self::fixed_window::FixedWindow;
pub use self::gcra::Gcra;
pub use self::leaky_bucket::LeakyBucket;
pub use self::level::Level;
pub use self::paced::Paced;
pub use self::sliding_log::SlidingLog;
pub use self::sliding_window::{Blocks, SlidingWindow};
pub use self::smooth::{Bursty, Smooth, SmoothNanos, WarmUp};
pub use self::token_bucket::TokenBucket;

/// The numbers that keys are held to by one way of counting.
pub trait Algorithm: Copy {
    /// What is remembered of one key.
    type State: std::fmt::Debug;

    /// What is known of a key that nobody has charged yet.
    fn fresh(&self, now: Millis) -> Self::State;

    /// What becomes of a request of this cost; changes nothing.
    ///
    /// A cost of nothing asks whether the key is in debt. One that is more than a key can ever have is refused, and
    /// no time is named to come back at; where the next one pays for the last there is no such cost.
    fn ask(&self, state: &Self::State, now: Millis, cost: Cost) -> Verdict;

    /// Decides about a request and charges the key with it, unless it is refused.
    fn charge(&self, state: &mut Self::State, now: Millis, cost: Cost) -> (Verdict, Spent);

    /// Takes back a charge with the same arguments that gave `spent`; others may have come in between.
    fn refund(&self, state: &mut Self::State, now: Millis, cost: Cost, spent: Spent);

    /// Charges what was found to be owed after the fact: never refuses, and may leave the key in debt.
    fn debit(&self, state: &mut Self::State, now: Millis, cost: Cost);

    /// Charges a refused request as far as the key has something left, so that who goes on asking stays out.
    fn count_refused(&self, state: &mut Self::State, now: Millis, cost: Cost);

    /// From when on forgetting the key gives nobody anything.
    fn drained_at(&self, state: &Self::State) -> Millis;

    /// Where a key stands.
    fn standing(&self, state: &Self::State, now: Millis) -> KeyStatus;

    /// What a key may have at one moment, in whole requests.
    fn quota(&self) -> u64;

    /// In which time a whole quota comes back.
    fn period(&self) -> Duration;

    /// The numbers of whichever of both takes longer to drain, and more room to remember.
    #[must_use]
    fn slower(self, other: Self) -> Self;

    /// What a key of these numbers may take besides its state, in bytes.
    fn most_heap(&self) -> usize {
        0
    }

    /// What a key takes besides its state.
    fn heap(_: &Self::State) -> usize {
        0
    }
}

/// What the allocator keeps for itself of each piece, in bytes.
const ALLOCATION: usize = 16;

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

/// What a charge took, for those algorithms that cannot tell from the state and the cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent(u64);

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

/// The numbers a key is held to, whichever way its zone counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitSpec {
    /// A sliding window in blocks.
    Blocks(Blocks),
    /// Guava's `SmoothBursty`.
    Bursty(Smooth<Bursty>),
    /// A counter that starts over.
    FixedWindow(FixedWindow),
    /// redis-cell's.
    Gcra(Gcra),
    /// nginx's.
    LeakyBucket(LeakyBucket),
    /// A queue that is emptied at a constant rate.
    Paced(Paced),
    /// When each request came.
    SlidingLog(SlidingLog),
    /// Cloudflare's two counters.
    SlidingWindow(SlidingWindow),
    /// Full at the start.
    TokenBucket(TokenBucket),
    /// Guava's `SmoothWarmingUp`.
    WarmUp(Smooth<WarmUp>),
}

/// Does the same with the numbers of every algorithm.
macro_rules! each {
    ($terms:expr, $numbers:ident => $act:expr) => {
        match $terms {
            LimitSpec::Blocks($numbers) => $act,
            LimitSpec::Bursty($numbers) => $act,
            LimitSpec::FixedWindow($numbers) => $act,
            LimitSpec::Gcra($numbers) => $act,
            LimitSpec::LeakyBucket($numbers) => $act,
            LimitSpec::Paced($numbers) => $act,
            LimitSpec::SlidingLog($numbers) => $act,
            LimitSpec::SlidingWindow($numbers) => $act,
            LimitSpec::TokenBucket($numbers) => $act,
            LimitSpec::WarmUp($numbers) => $act,
        }
    };
}

impl LimitSpec {
    /// What a rule with this `burst` and `delay` asks of a key in a zone that counts like this.
    #[must_use]
    pub fn new(algorithm: &AlgorithmParams, burst: Excess, delay: Delay) -> Self {
        use core::AlgorithmParams as Plan;
        match *algorithm {
            Plan::Bursty { rate, max_wait } => Self::Bursty(Smooth::bursty(rate, max_wait, burst)),
            Plan::FixedWindow { limit, window } => Self::FixedWindow(FixedWindow {
                limit: Excess::requests(limit),
                window,
            }),
            Plan::Gcra { rate } => Self::Gcra(Gcra::new(rate, burst)),
            Plan::LeakyBucket { rate } => Self::LeakyBucket(LeakyBucket { rate, burst, delay }),
            Plan::Paced { rate, max_wait } => Self::Paced(Paced { rate, max_wait }),
            Plan::SlidingLog { limit, window } => Self::SlidingLog(SlidingLog {
                limit: Excess::requests(limit),
                window,
            }),
            Plan::SlidingWindow {
                limit,
                window,
                precision,
            } => {
                let limit = Excess::requests(limit);
                match precision {
                    Some(precision) => Self::Blocks(Blocks {
                        limit,
                        window,
                        precision,
                    }),
                    None => Self::SlidingWindow(SlidingWindow { limit, window }),
                }
            }
            Plan::TokenBucket { rate } => Self::TokenBucket(TokenBucket {
                rate,
                capacity: burst,
            }),
            Plan::WarmUp {
                rate,
                warm_up,
                max_wait,
            } => Self::WarmUp(Smooth::warm_up(rate, max_wait, warm_up)),
        }
    }

    /// Of two for the same zone, those that take longer to drain.
    #[must_use]
    pub fn slower(self, other: Self) -> Self {
        match (self, other) {
            (Self::Blocks(one), Self::Blocks(other)) => Self::Blocks(one.slower(other)),
            (Self::Bursty(one), Self::Bursty(other)) => Self::Bursty(one.slower(other)),
            (Self::FixedWindow(one), Self::FixedWindow(other)) => {
                Self::FixedWindow(one.slower(other))
            }
            (Self::Gcra(one), Self::Gcra(other)) => Self::Gcra(one.slower(other)),
            (Self::LeakyBucket(one), Self::LeakyBucket(other)) => {
                Self::LeakyBucket(one.slower(other))
            }
            (Self::Paced(one), Self::Paced(other)) => Self::Paced(one.slower(other)),
            (Self::SlidingLog(one), Self::SlidingLog(other)) => Self::SlidingLog(one.slower(other)),
            (Self::SlidingWindow(one), Self::SlidingWindow(other)) => {
                Self::SlidingWindow(one.slower(other))
            }
            (Self::TokenBucket(one), Self::TokenBucket(other)) => {
                Self::TokenBucket(one.slower(other))
            }
            (Self::WarmUp(one), Self::WarmUp(other)) => Self::WarmUp(one.slower(other)),
            // Those of another zone say nothing about this one.
            (one, _) => one,
        }
    }

    /// Whether it counts in windows, which begin at moments of the clock.
    #[must_use]
    pub fn is_windowed(&self) -> bool {
        matches!(
            self,
            Self::Blocks(_) | Self::FixedWindow(_) | Self::SlidingLog(_) | Self::SlidingWindow(_)
        )
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
