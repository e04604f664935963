//! When a store is given up for a while, and when it is trusted again.
//!
//! A late answer costs points and a timely one gives some back, so that a server that is late now and then is kept,
//! and one that is late with every request is left alone after a handful. What will not heal by waiting, such as a
//! refused connection or a wrong password, ends it at once. Coming back is not decided by requests: one probe at a
//! time asks, and all others go on without.

use std::sync::atomic::{AtomicU32, Ordering};

/// Whether a store is asked.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Points against it; [`GIVEN_UP`] while it is left alone.
    points: AtomicU32,
}

impl Breaker {
    /// Whether it is left alone.
    pub(super) fn is_open(&self) -> bool {
        self.points.load(Ordering::Relaxed) == GIVEN_UP
    }

    /// An answer came in time.
    pub(super) fn hit(&self) {
        // Nearly always nothing: no write, and nothing for threads to fight over.
        if self.points.load(Ordering::Relaxed) != 0 {
            self.update(|points| points.saturating_sub(1));
        }
    }

    /// None came in time; whether that was the one too many.
    pub(super) fn miss(&self) -> bool {
        self.update(|points| match points + MISS {
            points if points >= MOST => GIVEN_UP,
            points => points,
        })
    }

    /// Something went wrong that waiting does not heal; whether this is news.
    pub(super) fn fail(&self) -> bool {
        self.update(|_| GIVEN_UP)
    }

    /// A probe was answered; whether this is news.
    pub(super) fn recover(&self) -> bool {
        self.points.swap(0, Ordering::Relaxed) == GIVEN_UP
    }

    /// Whether this gave it up; what is given up stays so.
    fn update(&self, change: impl Fn(u32) -> u32) -> bool {
        let changed = self
            .points
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |points| {
                (points != GIVEN_UP).then(|| change(points))
            });
        changed.is_ok_and(|before| change(before) == GIVEN_UP)
    }
}

/// What a miss costs.
const MISS: u32 = 10;

/// So many points are too many: five misses in a row, or more than one in ten for long.
const MOST: u32 = 50;

const GIVEN_UP: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_misses_in_a_row_are_too_many() {
        let breaker = Breaker::default();
        assert_eq!(
            (0..5)
                .map(|_| breaker.miss())
                .filter(|tripped| *tripped)
                .count(),
            1
        );
        assert!(breaker.is_open());
        assert!(!breaker.miss(), "it is no news");
        breaker.hit();
        assert!(
            breaker.is_open(),
            "late answers of others bring nothing back"
        );
        assert!(breaker.recover());
        assert!(!breaker.is_open());
        assert!(!breaker.recover());
    }

    #[test]
    fn one_miss_in_a_hundred_is_forgiven() {
        let breaker = Breaker::default();
        for _ in 0..1_000 {
            assert!(!breaker.miss());
            (0..99).for_each(|_| breaker.hit());
        }
    }

    #[test]
    fn every_other_miss_is_too_many() {
        let breaker = Breaker::default();
        let tripped = (0..10).any(|_| {
            breaker.hit();
            breaker.miss()
        });
        assert!(tripped);
    }

    #[test]
    fn an_error_is_one_too_many() {
        let breaker = Breaker::default();
        assert!(breaker.fail());
        assert!(!breaker.fail());
        assert!(breaker.is_open());
    }
}
