//! How an event loop keeps up: how much of its time it works, and how late it comes to what is due.
//!
//! A loop that is late makes everybody on it wait, and nothing that is measured per request shows it: a request's
//! time starts when its loop has got round to reading it. So a task of the loop's own asks to be woken ten times a
//! second and looks how late it is.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeMetrics};
use tokio::time::Instant;

use super::{Histogram, Page};

/// An event loop that is watched.
#[derive(Debug)]
pub struct Lag {
    number: usize,
    late: Histogram,
    runtime: RuntimeMetrics,
}

impl Lag {
    /// Watches the event loop this is spawned on, for as long as it runs.
    pub async fn watch(number: usize) {
        let lag = Arc::new(Self {
            number,
            late: Histogram::new(),
            runtime: Handle::current().metrics(),
        });
        enter(&lag);
        loop {
            let due = Instant::now() + EVERY;
            tokio::time::sleep_until(due).await;
            lag.late.observe(due.elapsed());
        }
    }

    /// Writes those of all loops.
    pub fn describe_all(page: &mut Page) {
        let mut all: Vec<_> = WATCHED.lock().iter().filter_map(Weak::upgrade).collect();
        all.sort_by_key(|lag| lag.number);
        for lag in all {
            let number = lag.number.to_string();
            let labels = [("loop", &*number)];
            page.histogram(
                "weir_loop_lag_seconds",
                "How late an event loop came to what was due, looked at ten times a second.",
                &labels,
                &lag.late.read(),
            );
            page.counter(
                "weir_loop_busy_seconds_total",
                "How long an event loop has worked and not waited.",
                &labels,
                lag.runtime.worker_total_busy_duration(0).as_secs_f64(),
            );
        }
    }
}

fn enter(lag: &Arc<Lag>) {
    let mut watched = WATCHED.lock();
    watched.retain(|other| other.strong_count() > 0);
    watched.push(Arc::downgrade(lag));
}

static WATCHED: Mutex<Vec<Weak<Lag>>> = Mutex::new(Vec::new());

const EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop that something holds up for 300 ms is seen to be late, and to have been busy.
    #[test]
    fn a_loop_that_is_held_up_is_late() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let text = runtime.block_on(async {
            let watch = tokio::spawn(Lag::watch(77));
            tokio::time::sleep(EVERY / 2).await;
            std::thread::sleep(3 * EVERY);
            tokio::time::sleep(EVERY / 2).await;
            let mut page = Page::new();
            Lag::describe_all(&mut page);
            watch.abort();
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
    }
}
