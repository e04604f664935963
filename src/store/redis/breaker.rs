//! When a store is given up for a while, and when it is trusted again.
//!
//! A late answer costs points and a timely one gives some back, so that a server that is late now and then is kept,
//! and one that is late with every request is left alone after a handful. What will not heal by waiting, such as a
//! refused connection or a wrong password, ends it at once. Coming back is not decided by requests: one probe at a
//! time asks, and all others go on without. A store is back after several probes in a row that were answered in time, and one
//! that goes again soon after is left alone for longer.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::clock::Millis;

/// Whether a store is asked.
#[derive(Debug, Default)]
pub(super) struct StoreBreaker {
    /// Points against it; [`GIVEN_UP`] while it is left alone.
    points: AtomicU32,
}

impl StoreBreaker {
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

/// The way back of a store that is away.
#[derive(Debug, Default)]
pub(super) struct RecoveryProbes {
    /// Probes in a row that were answered in time.
    timely: u32,
    /// When it was last back.
    back: Option<Millis>,
    /// How often it has gone again soon after.
    relapses: u32,
}

impl RecoveryProbes {
    /// It is away.
    pub(super) fn begin(&mut self, now: Millis) {
        self.timely = 0;
        self.relapses = match self.back.take() {
            Some(back) if now.since(back) < STEADY => (self.relapses + 1).min(MOST_RELAPSES),
            Some(_) | None => 0,
        };
    }

    /// A probe was answered, in time or not; whether the store is back.
    pub(super) fn answered(&mut self, now: Millis, in_time: bool) -> bool {
        self.timely = if in_time { self.timely + 1 } else { 0 };
        let is_back = self.timely >= TIMELY;
        if is_back {
            self.back = Some(now);
        }
        is_back
    }

    /// A probe was not answered.
    pub(super) fn missed(&mut self) {
        self.timely = 0;
    }

    /// How long to wait for the next probe.
    pub(super) fn pause(&self) -> Duration {
        match self.timely {
            0 => PROBE * 2u32.pow(self.relapses),
            _ => AGAIN,
        }
    }
}

/// How often a store that is away is asked.
const PROBE: Duration = Duration::from_millis(400);

/// How soon after a timely answer it is asked again.
const AGAIN: Duration = Duration::from_millis(50);

/// So many timely answers in a row are needed.
const TIMELY: u32 = 3;

/// A store that is away again within this time has relapsed.
const STEADY: Duration = Duration::from_secs(60);

/// Relapses that make the pause longer: at most 6.4 seconds.
const MOST_RELAPSES: u32 = 4;

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
        let breaker = StoreBreaker::default();
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
        let breaker = StoreBreaker::default();
        for _ in 0..1_000 {
            assert!(!breaker.miss());
            (0..99).for_each(|_| breaker.hit());
        }
    }

    #[test]
    fn every_other_miss_is_too_many() {
        let breaker = StoreBreaker::default();
        let tripped = (0..10).any(|_| {
            breaker.hit();
            breaker.miss()
        });
        assert!(tripped);
    }

    #[test]
    fn the_way_back_takes_several_timely_answers_in_a_row() {
        let mut way = RecoveryProbes::default();
        way.begin(Millis(0));
        for in_time in [true, true, false, true, true] {
            assert!(!way.answered(Millis(100), in_time));
        }
        way.missed();
        assert!(!way.answered(Millis(100), true));
        assert!(!way.answered(Millis(100), true));
        assert!(way.answered(Millis(100), true));
    }

    #[test]
    fn whoever_goes_again_soon_is_left_alone_for_longer() {
        let mut way = RecoveryProbes::default();
        let mut pauses = Vec::new();
        for outage in 0..7 {
            way.begin(Millis(outage * 10_000));
            pauses.push(way.pause().as_millis());
            while !way.answered(Millis(outage * 10_000 + 5_000), true) {}
        }
        assert_eq!(pauses, [400, 800, 1_600, 3_200, 6_400, 6_400, 6_400]);
        way.begin(Millis(200_000));
        assert_eq!(way.pause().as_millis(), 400, "it was well for a minute");
    }

    #[test]
    fn an_error_is_one_too_many() {
        let breaker = StoreBreaker::default();
        assert!(breaker.fail());
        assert!(!breaker.fail());
        assert!(breaker.is_open());
    }
}
