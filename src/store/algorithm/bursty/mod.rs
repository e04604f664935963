//! Guava's `SmoothBursty`: what is saved while idle is free, and a second's worth is saved unless said otherwise.
//!
//! It begins with nothing saved. A request never waits for itself: it goes when the last one has been paid for, and
//! who comes after it pays.

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::nanos::Nanos;
use super::reserve::{Length, PermitCost, Smooth};
use crate::config::plan::{Cost, Excess, Rate};

/// What is saved is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bursty;

impl PermitCost for Bursty {
    const STARTS_SAVED: bool = false;

    fn of(_: Length, _: Length, _: Length) -> Length {
        Length(0)
    }
}

impl Smooth<Bursty> {
    /// At this rate, with so much saved at most.
    #[must_use]
    pub fn bursty(rate: Rate, max_wait: Duration, burst: Excess) -> Self {
        Self::new(rate, max_wait, Nanos::of(Cost(burst.0), rate))
    }
}
