//! When something that fails is left alone.

use std::time::Duration;

use http::StatusCode;

/// A part of a whole, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallShare(pub u32);

impl CallShare {
    /// Whether `part` is at least this share of `whole`.
    #[must_use]
    pub fn is_reached(self, part: u32, whole: u32) -> bool {
        u64::from(part) * 1000 >= u64::from(whole) * u64::from(self.0)
    }
}

/// `breaker`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breaker {
    /// `failure_ratio`: the share of calls that have to fail.
    pub failure_ratio: Option<CallShare>,
    /// `failures`: how many have to fail, however many do not.
    pub failures: Option<u32>,
    /// `slow_call` and `slow_ratio`: what is slow, and the share of calls that have to be.
    pub slow: Option<(Duration, CallShare)>,
    /// `window`: over which calls are counted.
    pub window: Duration,
    /// `min_calls`: without which no share means anything.
    pub min_calls: u32,
    /// `open_for`: how long it stays open the first time.
    pub open_for: Duration,
    /// `max_open_for`: and at most, when it does not get better.
    pub max_open_for: Duration,
    /// How it is found out whether things are well again.
    pub recovery: Recovery,
    /// `statuses`: answers that are failures.
    pub statuses: Vec<StatusCode>,
}

/// `recovery`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// `half_open` calls are let through; when all of them went well, everybody is.
    Probes(u32),
    /// A share that grows to all over `ramp_for`.
    Ramp {
        /// How long that takes.
        over: Duration,
        /// `half_open`: calls without which it is not judged.
        min_calls: u32,
    },
}
