//! A complaint that may come a million times a second and is written once a minute.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Millis;

/// Counts what happens and says when to speak of it.
#[derive(Debug, Default)]
pub struct RateLimitedLog {
    total: AtomicU64,
    told: AtomicU64,
    next: AtomicU64,
}

impl RateLimitedLog {
    /// Of something that has not happened yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            total: AtomicU64::new(0),
            told: AtomicU64::new(0),
            next: AtomicU64::new(0),
        }
    }

    /// It happened so often elsewhere, and was spoken of there.
    pub fn add(&self, times: u64) {
        self.total.fetch_add(times, Ordering::Relaxed);
        self.told.fetch_add(times, Ordering::Relaxed);
    }

    /// It happened once more; `Some` with how often since it was last spoken of, when it is time to.
    pub fn note(&self, now: Millis) -> Option<u64> {
        let total = self.total.fetch_add(1, Ordering::Relaxed) + 1;
        let next = self.next.load(Ordering::Relaxed);
        if now.0 < next {
            return None;
        }
        // One thread of all that come here at the same time wins and speaks.
        self.next
            .compare_exchange(
                next,
                now.0.saturating_add(PAUSE),
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .ok()?;
        let told = self.told.swap(total, Ordering::Relaxed);
        Some(total.saturating_sub(told))
    }

    /// How often it happened in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}

/// Between two lines, in milliseconds.
const PAUSE: u64 = 60_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_speaks_at_once_and_then_once_a_minute_with_the_number() {
        let warning = RateLimitedLog::default();
        assert_eq!(warning.note(Millis(5)), Some(1));
        assert_eq!(warning.note(Millis(6)), None);
        assert_eq!(warning.note(Millis(60_004)), None);
        assert_eq!(warning.note(Millis(60_005)), Some(3));
        assert_eq!(warning.total(), 4);
    }
}
