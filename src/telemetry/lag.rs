//! How late event loops are: what waits in one for its turn, waits so long.
//!
//! Each loop sets itself an alarm a few times a second and looks how late it heard it. A loop that does too much at
//! once, or a machine without a free core, shows here first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How late one event loop was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lag {
    /// At its latest alarm; `None` before the first.
    pub last: Option<Duration>,
    /// At most in the last minute.
    pub worst: Option<Duration>,
}

/// One loop, in microseconds; [`UNKNOWN`] where nothing is known.
#[derive(Debug)]
struct Loop {
    last: AtomicU64,
    /// Of this half minute, and of the one before it.
    worst: [AtomicU64; 2],
}

/// Watches the event loop this runs in, for as long as that does.
pub async fn watch_lag() {
    let own = Arc::new(Loop::default());
    LOOPS.lock().push(Arc::clone(&own));
    let mut turn = Instant::now() + HALF_MINUTE;
    loop {
        let due = Instant::now() + PAUSE;
        tokio::time::sleep_until(due).await;
        let now = Instant::now();
        if now >= turn {
            turn = now + HALF_MINUTE;
            own.turn();
        }
        own.heard(now.saturating_duration_since(due));
    }
}

/// How late each event loop was, in the order they were started.
#[must_use]
pub fn lags() -> Vec<Lag> {
    LOOPS.lock().iter().map(|it| it.lag()).collect()
}

impl Loop {
    fn heard(&self, late: Duration) {
        let late = u64::try_from(late.as_micros()).unwrap_or(UNKNOWN - 1);
        self.last.store(late, Ordering::Relaxed);
        let worst = &self.worst[0];
        if worst.load(Ordering::Relaxed) == UNKNOWN {
            worst.store(late, Ordering::Relaxed);
        } else {
            worst.fetch_max(late, Ordering::Relaxed);
        }
    }

    fn turn(&self) {
        let worst = self.worst[0].swap(UNKNOWN, Ordering::Relaxed);
        self.worst[1].store(worst, Ordering::Relaxed);
    }

    fn lag(&self) -> Lag {
        let known = |micros: &AtomicU64| {
            let micros = micros.load(Ordering::Relaxed);
            (micros != UNKNOWN).then(|| Duration::from_micros(micros))
        };
        Lag {
            last: known(&self.last),
            worst: self.worst.iter().filter_map(known).max(),
        }
    }
}

impl Default for Loop {
    fn default() -> Self {
        let unknown = || AtomicU64::new(UNKNOWN);
        Self {
            last: unknown(),
            worst: [unknown(), unknown()],
        }
    }
}

static LOOPS: Mutex<Vec<Arc<Loop>>> = Mutex::new(Vec::new());

const UNKNOWN: u64 = u64::MAX;

/// Between two alarms.
const PAUSE: Duration = Duration::from_millis(250);

const HALF_MINUTE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_is_remembered_for_a_minute() {
        let own = Loop::default();
        assert_eq!(own.lag(), Lag::default());
        let micros = |lag: Lag| {
            (
                lag.last.unwrap().as_micros(),
                lag.worst.unwrap().as_micros(),
            )
        };
        for (late, expected) in [(700, (700, 700)), (20, (20, 700))] {
            own.heard(Duration::from_micros(late));
            assert_eq!(micros(own.lag()), expected);
        }
        own.turn();
        own.heard(Duration::from_micros(30));
        assert_eq!(micros(own.lag()), (30, 700));
        own.turn();
        assert_eq!(micros(own.lag()), (30, 30));
    }
}
