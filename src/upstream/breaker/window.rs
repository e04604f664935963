//! The calls of the last while, counted in buckets: what is old falls out a tenth of the window at a time.

use std::time::Duration;

use crate::clock::Millis;

/// A sliding window over calls.
#[derive(Debug)]
pub(super) struct CallWindow {
    /// Of a bucket.
    width: u64,
    buckets: [CallBucket; BUCKETS],
}

/// Calls of a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CallCounts {
    pub(super) calls: u32,
    pub(super) failures: u32,
    pub(super) slow: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct CallBucket {
    /// Which stretch of time it counts, from the beginning of the clock.
    number: u64,
    tally: CallCounts,
}

impl CallWindow {
    pub(super) fn new(length: Duration) -> Self {
        let length = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        Self {
            width: (length / BUCKETS as u64).max(1),
            buckets: [CallBucket::default(); BUCKETS],
        }
    }

    /// Counts these with what happens `now`.
    pub(super) fn add(&mut self, now: Millis, more: CallCounts) {
        let number = now.0 / self.width;
        let bucket = &mut self.buckets[(number % BUCKETS as u64) as usize];
        if bucket.number != number {
            *bucket = CallBucket {
                number,
                tally: CallCounts::default(),
            };
        }
        bucket.tally = bucket.tally.and(more);
    }

    /// All that has happened within the window that ends `now`.
    pub(super) fn total(&self, now: Millis) -> CallCounts {
        let newest = now.0 / self.width;
        self.buckets
            .iter()
            .filter(|bucket| newest.saturating_sub(bucket.number) < BUCKETS as u64)
            .fold(CallCounts::default(), |sum, bucket| sum.and(bucket.tally))
    }

    pub(super) fn clear(&mut self) {
        self.buckets = [CallBucket::default(); BUCKETS];
    }
}

impl CallCounts {
    fn and(self, more: Self) -> Self {
        Self {
            calls: self.calls.saturating_add(more.calls),
            failures: self.failures.saturating_add(more.failures),
            slow: self.slow.saturating_add(more.slow),
        }
    }
}

const BUCKETS: usize = 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CALL: CallCounts = CallCounts {
        calls: 1,
        failures: 0,
        slow: 0,
    };

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let mut window = CallWindow::new(Duration::from_secs(10));
        window.add(Millis(500), CALL);
        window.add(Millis(9_999), CALL);
        assert_eq!(window.total(Millis(9_999)).calls, 2);
        assert_eq!(window.total(Millis(10_000)).calls, 1);
        assert_eq!(window.total(Millis(18_999)).calls, 1);
        assert_eq!(window.total(Millis(19_000)).calls, 0);
    }

    proptest! {
        /// Against a list of all that ever happened.
        #[test]
        fn a_window_counts_what_a_list_would(steps in proptest::collection::vec(0u64..3_000, 0..200)) {
            let mut window = CallWindow::new(Duration::from_secs(10));
            let (mut now, mut list) = (0, Vec::new());
            for step in steps {
                now += step;
                list.push(now);
                window.add(Millis(now), CALL);
                let since = (now / 1000).saturating_sub(9) * 1000;
                let expected = list.iter().filter(|at| **at >= since).count();
                prop_assert_eq!(window.total(Millis(now)).calls as usize, expected);
            }
        }
    }
}
