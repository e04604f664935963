//! Background tasks: what goes on beside the requests for as long as weir runs.
//!
//! None of them may end by a panic: a health check that is not made any more, or a certificate that is not renewed, is
//! noticed when it is too late. A task that panics is started again after a pause, which grows while it goes on panicking.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::Exposition;
use super::panics::{self, CaughtPanic};

macro_rules! tasks {
    ($($(#[$doc:meta])* $task:ident = $name:literal,)*) => {
        /// A kind of background task.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum BackgroundTask {
            $($(#[$doc])* $task,)*
        }

        const NAMES: &[&str] = &[$($name),*];
    };
}

tasks! {
    /// Accepts connections on one address.
    Accept = "accept",
    /// Accepts connections of the admin listener.
    Admin = "admin",
    /// Looks for certificates that have changed.
    Certificates = "certificates",
    /// Looks for configuration files that have changed.
    Configuration = "configuration",
    /// Reads and writes the files of slow clients.
    Disk = "disk",
    /// Checks the health of one server.
    HealthCheck = "health_check",
    /// Starts and ends health checks as servers come and go.
    HealthChecks = "health_checks",
    /// Tells systemd that weir is alive.
    Heartbeat = "heartbeat",
    /// Closes idle connections to servers of an upstream.
    IdleConnections = "idle_connections",
    /// Measures how late an event loop is.
    Lag = "lag",
    /// Writes a log.
    Log = "log",
    /// Follows what an event loop is told to do.
    Loop = "loop",
    /// Looks up names again.
    Resolver = "resolver",
    /// Keeps an event loop connected to a shared store, and its leases and places there.
    Store = "store",
    /// Sends spans to a collector.
    Traces = "traces",
}

static PANICS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// Runs a background task until it ends by itself; after a panic it is begun again.
pub async fn supervise(task: BackgroundTask, mut begin: impl AsyncFnMut()) {
    let mut pauses = RestartBackoff::default();
    loop {
        let began = Instant::now();
        let mut panicked = None;
        {
            let mut running = pin!(begin());
            poll_fn(|context| {
                panics::poll(running.as_mut(), context, |panic| panicked = Some(panic))
            })
            .await;
        }
        let Some(panic) = panicked else { return };
        let pause = pauses.next(began.elapsed());
        task.note(&panic, pause);
        tokio::time::sleep(pause).await;
    }
}

/// The same on a thread of its own.
pub fn supervise_thread(task: BackgroundTask, mut run: impl FnMut()) {
    let mut pauses = RestartBackoff::default();
    loop {
        let began = Instant::now();
        let Err(panic) = panics::catch(&mut run) else {
            return;
        };
        let pause = pauses.next(began.elapsed());
        task.note(&panic, pause);
        std::thread::sleep(pause);
    }
}

/// Does something that may block, on a thread for that. A panic in it goes on here; `None` where the process is about to
/// end.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let done = tokio::task::spawn_blocking(|| panics::catch(work)).await;
    match done.ok()? {
        Ok(value) => Some(value),
        Err(panic) => std::panic::resume_unwind(Box::new(panic.to_string())),
    }
}

impl BackgroundTask {
    /// Counts a panic of it that was caught, and logs it. It goes on after `pause`.
    pub fn note(self, panic: &CaughtPanic, pause: Duration) {
        PANICS[self as usize].fetch_add(1, Ordering::Relaxed);
        let task = NAMES[self as usize];
        tracing::error!(
            task,
            "background task panicked: {panic}; it goes on in {pause:?}"
        );
    }

    /// Writes how often each kind has panicked.
    pub fn describe_panics(page: &mut Exposition) {
        for (name, count) in NAMES.iter().zip(&PANICS) {
            page.counter(
                "weir_task_panics_total",
                "Panics of background tasks; each was started again.",
                &[("task", name)],
                count.load(Ordering::Relaxed),
            );
        }
    }
}

/// How long to wait before each new start.
#[derive(Debug, Default)]
struct RestartBackoff(u32);

impl RestartBackoff {
    /// The next pause, after a run that took this long.
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
/// After a run as long as this, the pauses begin anew.
const LONGEST: Duration = Duration::from_secs(30);
const DOUBLINGS: u32 = 9;

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
    async fn a_task_that_panics_is_begun_again_and_counted() {
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
    async fn a_panic_on_a_thread_for_what_blocks_is_one_of_the_task() {
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
    fn a_thread_goes_on_after_a_panic() {
        let mut runs = 0;
        supervise_thread(BackgroundTask::Log, || {
            runs += 1;
            assert!(runs > 1, "not yet");
        });
        assert_eq!(runs, 2);
    }

    #[test]
    fn pauses_grow_to_their_longest_and_begin_anew_after_a_long_run() {
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
