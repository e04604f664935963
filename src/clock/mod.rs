//! What time it is.
//!
//! Below `proxy` time is always an argument, so that limits can be tested, replayed and simulated
//! without sleeping. This is the one place that asks the machine.

mod deadline;
mod pace;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use deadline::Deadline;
pub use pace::{MinRate, MinRateTimer, TooSlow};

/// A moment, in whole milliseconds since the clock was started. Never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// The moment `later` than this one.
    #[must_use]
    pub fn after(self, later: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(later.as_millis()).unwrap_or(u64::MAX)),
        )
    }

    /// How long ago `earlier` was; zero when it lies ahead.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// Tells the time: the machine's, or one set by hand.
#[derive(Clone, Debug)]
pub struct Clock(TimeSource);

#[derive(Clone, Debug)]
enum TimeSource {
    // tokio's instant rather than std's: under a paused runtime it follows the paused time.
    Machine(tokio::time::Instant),
    Hand(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's monotonic clock, counted from now.
    #[must_use]
    pub fn machine() -> Self {
        Self(TimeSource::Machine(tokio::time::Instant::now()))
    }

    /// A clock that stands still until it is set.
    #[must_use]
    pub fn by_hand(start: Millis) -> Self {
        Self(TimeSource::Hand(Arc::new(AtomicU64::new(start.0))))
    }

    /// Moves a clock made with [`Clock::by_hand`]; the machine's cannot be moved.
    pub fn set(&self, now: Millis) {
        if let TimeSource::Hand(hand) = &self.0 {
            hand.store(now.0, Ordering::Relaxed);
        }
    }

    /// The present moment.
    #[must_use]
    pub fn now(&self) -> Millis {
        match &self.0 {
            TimeSource::Machine(start) => {
                Millis(u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX))
            }
            TimeSource::Hand(hand) => Millis(hand.load(Ordering::Relaxed)),
        }
    }

    /// The time of day, since the Unix epoch; for log lines, never for decisions.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that may ask"
    )]
    pub fn wall() -> Duration {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default()
    }
}
