//! Guava's `SmoothWarmingUp`: who was idle is cold, and begins at a third of the rate.
//!
//! As in Guava, with its cold factor of three: what is saved while idle is not a right to a burst but a measure of
//! how cold a key is. Half of `warm_up` can be spent at the rate; what is beyond it costs the more the colder it
//! is, up to three times as much. Spending all that is beyond takes exactly `warm_up`, and going cold again takes
//! as long. Sentinel's warm up is the same line.

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::nanos::Nanos;
use super::reserve::{Length, PermitCost, Smooth};
use crate::config::plan::Rate;

/// What is saved is dearer the colder it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmUp;

impl PermitCost for WarmUp {
    const STARTS_SAVED: bool = true;

    // The area under Guava's line: level up to the half, rising from there to three times that height.
    fn of(saved: Length, spent: Length, most: Length) -> Length {
        let beyond = |saved: u64| u128::from(saved.saturating_sub(most.0 / 2));
        let square = |side: u128| side.saturating_mul(side);
        let (from, to) = (beyond(saved.0), beyond(saved.0.saturating_sub(spent.0)));
        let rise = (square(from) - square(to)).saturating_mul(2) / u128::from(most.0.max(1));
        Length(
            u64::try_from(rise)
                .unwrap_or(u64::MAX)
                .saturating_add(spent.0),
        )
    }
}

impl Smooth<WarmUp> {
    /// At this rate once warm.
    #[must_use]
    pub fn warm_up(rate: Rate, max_wait: Duration, warm_up: Duration) -> Self {
        Self::new(rate, max_wait, Nanos::of_duration(warm_up))
    }
}
