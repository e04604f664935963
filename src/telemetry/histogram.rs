//! How long something took, for many of them: so many took at most this, so many at most that.
//!
//! The same bounds for everything that is timed: two pictures of weir can then be laid over each other, and the bounds
//! people promise by (10 ms, 100 ms, a second) are among them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::cells::{PerLoop, count};

/// Times, counted by length.
#[derive(Debug)]
pub struct Histogram(PerLoop<HistogramCell>);

#[derive(Debug, Default)]
struct HistogramCell {
    // The last one is for those over all bounds.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

/// What a [`Histogram`] says at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramSnapshot {
    /// For each bound, as Prometheus writes it, how many took no longer.
    pub(super) within: Vec<(&'static str, u64)>,
    /// How long all took together, in seconds.
    pub(super) sum: f64,
}

impl Histogram {
    /// Nothing was timed yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(PerLoop::new())
    }

    /// Something took so long.
    #[inline]
    pub fn observe(&self, taken: Duration) {
        let micros = taken.as_secs().saturating_mul(1_000_000) + u64::from(taken.subsec_micros());
        let cell = self.0.mine();
        // Most are short: from below, the first step is mostly the last.
        let bucket = BOUNDS.iter().position(|(bound, _)| micros <= *bound);
        count(&cell.buckets[bucket.unwrap_or(BOUNDS.len())]);
        cell.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// What it says now.
    #[must_use]
    pub fn read(&self) -> HistogramSnapshot {
        let names = BOUNDS.iter().map(|(_, name)| *name).chain(["+Inf"]);
        let within = names.enumerate().scan(0, |total, (bucket, name)| {
            *total += self.0.sum(|cell| &cell.buckets[bucket]);
            Some((name, *total))
        });
        HistogramSnapshot {
            within: within.collect(),
            sum: Duration::from_micros(self.0.sum(|cell| &cell.micros)).as_secs_f64(),
        }
    }
}

impl HistogramSnapshot {
    /// For each bound, in seconds as it is written, how many took no longer; the last is for all.
    #[must_use]
    pub fn within(&self) -> &[(&'static str, u64)] {
        &self.within
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

/// In microseconds, and as they are written in seconds.
const BOUNDS: [(u64, &str); 15] = [
    (1_000, "0.001"),
    (2_500, "0.0025"),
    (5_000, "0.005"),
    (10_000, "0.01"),
    (25_000, "0.025"),
    (50_000, "0.05"),
    (100_000, "0.1"),
    (250_000, "0.25"),
    (500_000, "0.5"),
    (1_000_000, "1"),
    (2_500_000, "2.5"),
    (5_000_000, "5"),
    (10_000_000, "10"),
    (30_000_000, "30"),
    (60_000_000, "60"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_for_its_bound_and_all_above() {
        let histogram = Histogram::new();
        for millis in [0, 1, 2, 100, 101, 61_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let reading = histogram.read();
        let within = |bound| {
            let found = reading.within.iter().find(|(name, _)| *name == bound);
            found.unwrap().1
        };
        assert_eq!(within("0.001"), 2);
        assert_eq!(within("0.0025"), 3);
        assert_eq!(within("0.1"), 4);
        assert_eq!(within("0.25"), 5);
        assert_eq!(within("60"), 5);
        assert_eq!(within("+Inf"), 6);
        assert!((reading.sum - 61.204).abs() < 1e-9, "{}", reading.sum);
    }

    #[test]
    fn bounds_grow_and_are_written_as_the_seconds_they_are() {
        assert!(BOUNDS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for (micros, name) in BOUNDS {
            assert_eq!(
                Duration::from_micros(micros).as_secs_f64().to_string(),
                name
            );
        }
    }
}
