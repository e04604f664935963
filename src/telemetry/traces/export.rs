//! Spans on their way to the collector: a bounded queue, and a thread of its own that empties it.
//!
//! An event loop never waits for a collector. Spans that find no room, and those that a collector does not take, are
//! dropped and counted.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc as here};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::post::{Collector, ExportError};
use super::{FATE, Spans};
use crate::config::plan::Tracing;
use crate::telemetry::background::{BackgroundTask, supervise};

/// The way to a collector.
#[derive(Debug)]
pub(super) struct Exporter {
    plan: Tracing,
    queue: Sender<ExportCommand>,
}

#[derive(Debug)]
enum ExportCommand {
    /// Answered when all before it are gone.
    Flush(here::Sender<()>),
    Spans(Spans),
}

impl Exporter {
    /// The way to this collector; the one that is there where nothing about it has changed.
    pub(super) fn of(plan: &Tracing) -> Option<Arc<Self>> {
        let mut present = PRESENT.lock();
        if let Some(known) = present.as_ref().filter(|known| known.plan == *plan) {
            return Some(Arc::clone(known));
        }
        match Self::start(plan) {
            Ok(exporter) => {
                let exporter = Arc::new(exporter);
                *present = Some(Arc::clone(&exporter));
                Some(exporter)
            }
            Err(error) => {
                tracing::error!("no traces are exported: {error}");
                None
            }
        }
    }

    fn start(plan: &Tracing) -> io::Result<Self> {
        let (queue, mut spans) = mpsc::channel(MOST_WAITING);
        let mut delivery = CollectorState {
            collector: Collector::new(plan)?,
            fails: false,
        };
        let (interval, size) = (plan.interval, u64::from(plan.batch_size));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::Builder::new()
            .name("weir-traces".to_owned())
            .spawn(move || {
                let run = async || run(&mut spans, &mut delivery, interval, size).await;
                runtime.block_on(supervise(BackgroundTask::Traces, run));
            })?;
        Ok(Self {
            plan: plan.clone(),
            queue,
        })
    }

    /// Hands spans over; never waits.
    pub(super) fn send(&self, count: u64, json: Vec<u8>) {
        let spans = ExportCommand::Spans(Spans { count, json });
        if self.queue.try_send(spans).is_err() {
            FATE.crowded.fetch_add(count, Ordering::Relaxed);
        }
    }
}

/// Waits until what was sent so far has gone to the collector, but not for longer than this; what is not taken at once
/// is given up.
pub fn flush(most: Duration) {
    let Some(exporter) = PRESENT.lock().clone() else {
        return;
    };
    let deadline = Instant::now() + most;
    ENDING.notify_one();
    let (done, gone) = here::channel();
    let mut parcel = ExportCommand::Flush(done);
    while let Err(TrySendError::Full(back)) = exporter.queue.try_send(parcel) {
        if Instant::now() >= deadline {
            return;
        }
        parcel = back;
        std::thread::sleep(Duration::from_millis(5));
    }
    if gone
        .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        .is_err()
    {
        tracing::warn!("the last spans have not reached the collector");
    }
}

/// Sends what comes, together with what comes soon after it, until nobody can send any more.
async fn run(
    queue: &mut Receiver<ExportCommand>,
    delivery: &mut CollectorState,
    interval: Duration,
    size: u64,
) {
    let mut open = true;
    while open {
        let Some(first) = queue.recv().await else {
            return;
        };
        let due = Instant::now() + interval;
        let mut batch = Vec::new();
        let mut count = 0;
        let mut flushed = None;
        let mut next = Some(first);
        loop {
            match next.take() {
                Some(ExportCommand::Spans(spans)) => {
                    if count > 0 {
                        batch.push(b',');
                    }
                    count += spans.count;
                    batch.extend_from_slice(&spans.json);
                }
                Some(ExportCommand::Flush(done)) => {
                    flushed = Some(done);
                    break;
                }
                None => open = false,
            }
            if count >= size || !open {
                break;
            }
            match tokio::time::timeout_at(due, queue.recv()).await {
                Ok(more) => next = more,
                Err(_) => break,
            }
        }
        if count > 0 {
            delivery.deliver(&batch, count).await;
        }
        // Whoever waited for it may have left.
        if let Some(done) = flushed {
            done.send(()).ok();
        }
    }
}

/// What is known of the collector.
struct CollectorState {
    collector: Collector,
    fails: bool,
}

impl CollectorState {
    async fn deliver(&mut self, spans: &[u8], count: u64) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.collector.post(spans).await {
                Ok(()) => {
                    FATE.exported.fetch_add(count, Ordering::Relaxed);
                    if std::mem::take(&mut self.fails) {
                        tracing::info!("the collector takes spans again");
                    }
                    return;
                }
                Err(refused) => {
                    if !std::mem::replace(&mut self.fails, true) {
                        tracing::warn!("the collector does not take spans: {}", refused.why);
                    }
                    if !self.waits(&refused, pause).await {
                        FATE.refused.fetch_add(count, Ordering::Relaxed);
                        return;
                    }
                    pause *= 2;
                }
            }
        }
    }

    /// Waits before it is tried again; false if it is not.
    async fn waits(&self, refused: &ExportError, pause: Duration) -> bool {
        if !refused.passes || pause > LAST_PAUSE {
            return false;
        }
        let pause = refused
            .retry_after
            .map_or(pause, |told| told.clamp(pause, LONGEST_PAUSE));
        tokio::select! {
            () = tokio::time::sleep(pause) => true,
            // For others who wait: it is not over for them either.
            () = ENDING.notified() => {
                ENDING.notify_one();
                false
            }
        }
    }
}

/// The one in use; one that another has taken the place of ends when its last request is over.
static PRESENT: Mutex<Option<Arc<Exporter>>> = Mutex::new(None);

/// We stop: nothing is tried twice any more.
static ENDING: Notify = Notify::const_new();

/// Requests whose spans wait: at 4 KB each, which is much, 8 MB.
const MOST_WAITING: usize = 2048;

/// Between two tries, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(4);
/// What a collector may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
