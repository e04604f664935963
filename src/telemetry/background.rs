//! Background tasks, and what happens after a panic in one, in a connection or in an attempt.
//!
//! No background task may end by a panic: a certificate that is not renewed is noticed too late. A task that panics is
//! restarted after a pause, which grows with every panic. Elsewhere a panic costs the attempt or the connection in which it
//! happened and nothing else. The code that catches it logs what it was doing; the panic hook supplies message and place.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use tokio::time::Instant;

use super::metrics::{Exposition, labels, metrics};
use crate::clock::LogSecond;

metrics! {
    /// The metrics of background tasks.
    pub TASK_METRICS:
    TASK_PANICS_TOTAL = counter("weir_task_panics_total", ["task"], "Panics of background tasks; each was started again.");
}

labels! {
    /// A kind of background task.
    BackgroundTask:
    /// Accepts connections on one address.
    Accept = "accept",
    /// Accepts connections of the admin listener.
    Admin = "admin",
    /// Checks whether certificates have changed.
    Certificates = "certificates",
    /// Checks whether configuration files have changed.
    Configuration = "configuration",
    /// Reads and writes the files of slow clients.
    Disk = "disk",
    /// Checks the health of one server.
    HealthCheck = "health_check",
    /// Starts and ends health checks as servers come and go.
    HealthChecks = "health_checks",
    /// Notifies systemd that weir is alive.
    Heartbeat = "heartbeat",
    /// Closes idle connections to servers of an upstream.
    IdleConnections = "idle_connections",
    /// Measures how late an event loop is.
    Lag = "lag",
    /// Writes a log.
    Log = "log",
    /// Runs the commands to an event loop.
    Loop = "loop",
    /// Resolves names again.
    Resolver = "resolver",
    /// Keeps an event loop connected to a shared store, and renews its leases and slots there.
    Store = "store",
    /// Sends spans to a collector.
    Traces = "traces",
}

static PANICS: [AtomicU64; BackgroundTask::LABELS.len()] =
    [const { AtomicU64::new(0) }; BackgroundTask::LABELS.len()];

/// Runs a background task until it returns; after a panic it is restarted.
pub async fn supervise(task: BackgroundTask, mut run: impl AsyncFnMut()) {
    let mut pauses = RestartBackoff::default();
    loop {
        let began = Instant::now();
        let mut panicked = None;
        isolated(Box::pin(run()), |panic| panicked = Some(panic)).await;
        let Some(panic) = panicked else { return };
        let pause = pauses.next(began.elapsed());
        task.note(&panic, pause);
        tokio::time::sleep(pause).await;
    }
}

/// As [`supervise`], on a thread of its own.
pub(super) fn supervise_thread(task: BackgroundTask, mut run: impl FnMut()) {
    let mut pauses = RestartBackoff::default();
    loop {
        let began = Instant::now();
        let Err(panic) = catch_panic(&mut run) else {
            return;
        };
        let pause = pauses.next(began.elapsed());
        task.note(&panic, pause);
        std::thread::sleep(pause);
    }
}

/// Runs blocking work on a thread for that. A panic in it is resumed here; `None` if the process is about to end.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let done = tokio::task::spawn_blocking(|| catch_panic(work)).await;
    match done.ok()? {
        Ok(value) => Some(value),
        Err(panic) => std::panic::resume_unwind(Box::new(panic.to_string())),
    }
}

impl BackgroundTask {
    /// Counts and logs a panic of this task; it is restarted after `pause`.
    pub fn note(self, panic: &CaughtPanic, pause: Duration) {
        PANICS[self as usize].fetch_add(1, Ordering::Relaxed);
        let task = Self::LABELS[self as usize];
        tracing::error!(
            task,
            "background task panicked: {panic}; it goes on in {pause:?}"
        );
    }

    /// Writes the panics of all kinds of tasks.
    pub fn describe_panics(page: &mut Exposition) {
        for (name, count) in Self::LABELS.iter().zip(&PANICS) {
            page.sample(&TASK_PANICS_TOTAL, &[name], count.load(Ordering::Relaxed));
        }
    }
}

/// The pauses before restarts.
#[derive(Debug, Default)]
struct RestartBackoff(u32);

impl RestartBackoff {
    /// The next pause, after a run of this length.
    fn next(&mut self, ran: Duration) -> Duration {
        if ran >= LONGEST {
            self.0 = 0;
        }
        let pause = FIRST * 2_u32.pow(self.0);
        self.0 = (self.0 + 1).min(DOUBLINGS);
        pause.min(LONGEST)
    }
}

const FIRST: Duration = Duration::from_millis(100);
/// The longest pause; after a run as long as this, the pauses start over.
const LONGEST: Duration = Duration::from_secs(30);
const DOUBLINGS: u32 = 9;

/// The message and place of a panic that was caught.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaughtPanic(Box<str>);

thread_local! {
    /// Whether a panic on this thread will be caught by [`catch_panic`].
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
    /// The last panic, left by the hook for [`catch_panic`].
    static LAST: RefCell<Option<CaughtPanic>> = const { RefCell::new(None) };
}

/// Installs the panic hook: panics that are caught are logged where they are caught, all others on standard error.
pub fn install_hook() {
    std::panic::set_hook(Box::new(|info| {
        let panic = CaughtPanic::new(info.payload(), info.location());
        if CAUGHT.get() {
            return LAST.set(Some(panic));
        }
        let thread = std::thread::current();
        let line = format!(
            "{} [error] thread {} panicked: {panic}\n",
            LogSecond::now().0.slashed,
            thread.name().unwrap_or("without a name"),
        );
        // Not to the log: one of its locks may be held here. Nothing can be done where standard error is closed.
        let _written = io::stderr().write_all(line.as_bytes());
    }));
}

/// Runs `work`; a panic in it becomes an error.
///
/// # Errors
/// When it panics.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, CaughtPanic> {
    let before = CAUGHT.replace(true);
    // State that a panic leaves half changed is dropped, or guarded by locks that are free again.
    let done = catch_unwind(AssertUnwindSafe(work));
    CAUGHT.set(before);
    done.map_err(|payload| {
        let panic = LAST.take();
        panic.unwrap_or_else(|| CaughtPanic::new(&*payload, None))
    })
}

/// Polls a future. After a panic in it, `failed` makes the result, and the future must not be polled again.
pub fn poll_catching_panic<F: Future>(
    future: Pin<&mut F>,
    context: &mut Context<'_>,
    failed: impl FnOnce(CaughtPanic) -> F::Output,
) -> Poll<F::Output> {
    let mut polled = Poll::Pending;
    // Written in place, because a return value would be copied once more.
    if let Err(panic) = catch_panic(|| polled = future.poll(context)) {
        polled = Poll::Ready(failed(panic));
    }
    polled
}

/// Runs a task on which no other depends, such as a connection. A panic ends only the task; `log` is called with it.
// Boxed by the caller, because an `async fn` keeps room for its argument beside the pinned copy.
pub async fn isolated<F>(mut task: Pin<Box<F>>, log: impl FnOnce(CaughtPanic))
where
    F: Future<Output = ()>,
{
    let mut panicked = None;
    poll_fn(|context| poll_catching_panic(task.as_mut(), context, |panic| panicked = Some(panic)))
        .await;
    if let Some(panic) = panicked {
        log(panic);
    }
}

impl CaughtPanic {
    fn new(payload: &(dyn Any + Send), location: Option<&Location<'_>>) -> Self {
        let message = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message")
            .replace('\n', " ");
        Self(match location {
            Some(location) => format!("{message} at {location}").into(),
            None => message.into(),
        })
    }
}

impl fmt::Display for CaughtPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CaughtPanic {}

#[cfg(test)]
mod tests {

    use super::*;

    fn panics(task: &str) -> u64 {
        let mut page = Exposition::new();
        BackgroundTask::describe_panics(&mut page);
        let page = page.finish();
        let series = format!("weir_task_panics_total{{task=\"{task}\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&series));
        line.and_then(|count| count.parse().ok()).expect(&page)
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_restarted_and_counted() {
        let before = panics("heartbeat");
        let began = Instant::now();
        let mut starts = Vec::new();
        supervise(BackgroundTask::Heartbeat, async || {
            starts.push(began.elapsed().as_millis());
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(starts.len() > 4, "not yet");
        })
        .await;
        assert_eq!(starts, [0, 101, 302, 703, 1504]);
        assert_eq!(panics("heartbeat") - before, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_of_blocking_work_restarts_its_task() {
        let mut runs = 0;
        supervise(BackgroundTask::Certificates, async || {
            runs += 1;
            let fails = runs == 1;
            let done = blocking(move || assert!(!fails, "a file")).await;
            assert_eq!(done, Some(()));
        })
        .await;
        assert_eq!(runs, 2);
    }

    #[test]
    fn a_thread_is_restarted_after_a_panic() {
        let mut runs = 0;
        supervise_thread(BackgroundTask::Log, || {
            runs += 1;
            assert!(runs > 1, "not yet");
        });
        assert_eq!(runs, 2);
    }

    #[test]
    fn pauses_grow_and_start_over_after_a_long_run() {
        let mut pauses = RestartBackoff::default();
        let short = Duration::ZERO;
        let millis: Vec<_> = (0..11).map(|_| pauses.next(short).as_millis()).collect();
        assert_eq!(
            millis,
            [
                100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000
            ]
        );
        assert_eq!(pauses.next(LONGEST), FIRST);
    }
}

#[cfg(test)]
mod panics_tests {

    use std::pin::pin;

    use super::*;

    #[test]
    fn a_panic_becomes_an_error_with_its_message() {
        assert_eq!(catch_panic(|| 5), Ok(5));
        let panic = catch_panic(|| panic!("on line\n{}", 2))
            .unwrap_err()
            .to_string();
        assert!(panic.starts_with("on line 2"), "{panic}");
        let nested = catch_panic(|| catch_panic(|| panic!("inner")).is_err());
        assert_eq!(nested, Ok(true));
        assert!(!CAUGHT.get());
    }

    #[tokio::test]
    async fn a_future_that_panics_is_ready_with_an_error() {
        let mut future = pin!(async {
            tokio::task::yield_now().await;
            panic!("later")
        });
        let done: Result<(), CaughtPanic> =
            poll_fn(|context| poll_catching_panic(future.as_mut(), context, Err::<(), _>)).await;
        assert!(done.unwrap_err().to_string().starts_with("later"));
    }
}
