//! How event loops keep up: how much of its time each works, and how late it comes to what is due.
//!
//! A loop that is late makes everybody on it wait, and nothing that is measured per request shows it: a request's
//! time starts when its loop has got round to reading it. So each loop sets itself an alarm ten times a second and
//! looks how late it heard it. A loop that does too much at once, or a machine without a free core, shows here first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeMetrics};
use tokio::time::Instant;

use super::{Exposition, Histogram};

/// How late one event loop was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoopLag {
    /// At its latest alarm; `None` before the first.
    pub last: Option<Duration>,
    /// At most in the last minute.
    pub worst: Option<Duration>,
}

#[derive(Debug)]
struct LoopGauge {
    number: usize,
    late: LagGauge,
    all: Histogram,
    runtime: RuntimeMetrics,
}

/// In microseconds; [`UNKNOWN`] where nothing is known.
#[derive(Debug)]
struct LagGauge {
    last: AtomicU64,
    /// Of this half minute, and of the one before it.
    worst: [AtomicU64; 2],
}

/// Watches the event loop this runs in, for as long as that does.
pub async fn watch_lag(number: usize) {
    let own = Arc::new(LoopGauge {
        number,
        late: LagGauge::default(),
        all: Histogram::new(),
        runtime: Handle::current().metrics(),
    });
    enter(&own);
    let mut turn = Instant::now() + HALF_MINUTE;
    loop {
        let due = Instant::now() + PAUSE;
        tokio::time::sleep_until(due).await;
        let now = Instant::now();
        if now >= turn {
            turn = now + HALF_MINUTE;
            own.late.turn();
        }
        let late = now.saturating_duration_since(due);
        own.late.heard(late);
        own.all.observe(late);
    }
}

/// How late each event loop was, in their order.
#[must_use]
pub fn lags() -> Vec<LoopLag> {
    LOOPS.lock().iter().map(|it| it.late.read()).collect()
}

/// Writes what is known of them.
pub fn describe_loops(page: &mut Exposition) {
    for own in LOOPS.lock().iter() {
        let number = own.number.to_string();
        let labels = [("loop", &*number)];
        page.histogram(
            "weir_loop_lag_seconds",
            "How late an event loop came to what was due, looked at ten times a second.",
            &labels,
            &own.all.read(),
        );
        page.counter(
            "weir_loop_busy_seconds_total",
            "How long an event loop has worked and not waited.",
            &labels,
            own.runtime.worker_total_busy_duration(0).as_secs_f64(),
        );
    }
}

fn enter(own: &Arc<LoopGauge>) {
    let mut loops = LOOPS.lock();
    loops.push(Arc::clone(own));
    // Their threads start all at once.
    loops.sort_by_key(|it| it.number);
}

impl LagGauge {
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

    fn read(&self) -> LoopLag {
        let known = |micros: &AtomicU64| {
            let micros = micros.load(Ordering::Relaxed);
            (micros != UNKNOWN).then(|| Duration::from_micros(micros))
        };
        LoopLag {
            last: known(&self.last),
            worst: self.worst.iter().filter_map(known).max(),
        }
    }
}

impl Default for LagGauge {
    fn default() -> Self {
        let unknown = || AtomicU64::new(UNKNOWN);
        Self {
            last: unknown(),
            worst: [unknown(), unknown()],
        }
    }
}

static LOOPS: Mutex<Vec<Arc<LoopGauge>>> = Mutex::new(Vec::new());

const UNKNOWN: u64 = u64::MAX;

/// Between two alarms.
const PAUSE: Duration = Duration::from_millis(100);

const HALF_MINUTE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_is_remembered_for_a_minute() {
        let own = LagGauge::default();
        assert_eq!(own.read(), LoopLag::default());
        let micros = |lag: LoopLag| {
            (
                lag.last.unwrap().as_micros(),
                lag.worst.unwrap().as_micros(),
            )
        };
        for (late, expected) in [(700, (700, 700)), (20, (20, 700))] {
            own.heard(Duration::from_micros(late));
            assert_eq!(micros(own.read()), expected);
        }
        own.turn();
        own.heard(Duration::from_micros(30));
        assert_eq!(micros(own.read()), (30, 700));
        own.turn();
        assert_eq!(micros(own.read()), (30, 30));
    }

    /// A loop that something holds up for 400 ms is seen to be late, and to have been busy.
    #[test]
    fn a_loop_that_is_held_up_is_late() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let text = runtime.block_on(async {
            tokio::spawn(watch_lag(77));
            tokio::time::sleep(PAUSE / 2).await;
            std::thread::sleep(4 * PAUSE);
            tokio::time::sleep(PAUSE / 2).await;
            let mut page = Exposition::new();
            describe_loops(&mut page);
            page.finish()
        });
        let value = |series: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(series));
            let value = line.and_then(|line| line.rsplit(' ').next());
            value.and_then(|value| value.parse().ok()).expect(&text)
        };
        assert!(
            value("weir_loop_lag_seconds_sum{loop=\"77\"}") >= 0.2,
            "{text}"
        );
        assert!(
            value("weir_loop_lag_seconds_count{loop=\"77\"}") >= 1.0,
            "{text}"
        );
        assert!(
            value("weir_loop_busy_seconds_total{loop=\"77\"}") >= 0.3,
            "{text}"
        );
        assert!(lags().iter().any(|lag| lag.worst >= Some(2 * PAUSE)));
    }
}
