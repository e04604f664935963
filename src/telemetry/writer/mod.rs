//! Where log lines go, without anybody on the request path ever waiting for it.
//!
//! Each thread appends to a buffer of its own; each destination has a thread that empties the buffers a few
//! dozen times a second. A thread per destination rather than one for all: a standard output that nobody
//! reads blocks its writer, and must not take the error log along. When a buffer is full its lines are
//! dropped and counted, because memory is bounded and traffic goes first.

mod buffer;
mod pen;
#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use self::buffer::{LogBuffers, PushResult};
use self::pen::LogThread;
use super::Exposition;
use super::background::{BackgroundTask, supervise_thread};
use crate::clock::Clock;

/// All open logs of the process.
#[derive(Debug, Clone, Default)]
pub struct LogWriter {
    open: Arc<Mutex<Vec<OpenLog>>>,
}

/// One log, as seen by those who write lines to it. Closed when the last of its handles is dropped.
#[derive(Debug, Clone)]
pub struct LogSink(Arc<LogHandle>);

/// Where a log's lines end up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Appended to a file.
    File(PathBuf),
    /// Standard error.
    Stderr,
    /// Standard output.
    Stdout,
}

#[derive(Debug)]
struct OpenLog {
    handle: Weak<LogHandle>,
    shared: Arc<LogShared>,
}

#[derive(Debug)]
struct LogHandle(Arc<LogShared>);

/// What a log's writing thread and its users share.
#[derive(Debug)]
struct LogShared {
    name: &'static str,
    destination: Destination,
    buffers: LogBuffers,
    orders: Mutex<LogCommands>,
    /// Rings for the writing thread when there is something to do.
    bell: Condvar,
    /// Rings for those who wait until something is done.
    done: Condvar,
    dropped: AtomicU64,
    failed: AtomicU64,
}

/// What the writing thread is asked to do.
#[derive(Debug, Default)]
struct LogCommands {
    write: bool,
    reopen: bool,
    stop: bool,
    flushes_asked: u64,
    flushes_done: u64,
    stopped: bool,
}

impl LogWriter {
    /// Nothing is open yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a log. `name` is what it is called in messages and metrics (`access`, `error`); a destination that is
    /// open already is shared.
    ///
    /// # Errors
    /// When the file cannot be opened, or no thread can be started.
    pub fn open(&self, name: &'static str, destination: Destination) -> io::Result<LogSink> {
        let mut open = self.open.lock();
        open.retain(|log| !log.shared.orders.lock().stopped);
        let known = open
            .iter()
            .filter(|log| log.shared.destination == destination)
            .find_map(|log| log.handle.upgrade());
        if let Some(handle) = known {
            return Ok(LogSink(handle));
        }
        let file = destination.open()?;
        let (log, sink) = start(name, destination, file, BOUND)?;
        open.push(log);
        Ok(sink)
    }

    /// Opens every file again by its path, as after a log was rotated. Lines written before this call still go to the
    /// old file; none is lost.
    pub fn reopen(&self) {
        for log in self.open.lock().iter() {
            log.shared.order(|orders| orders.reopen = true);
        }
    }

    /// Waits until every line of before this call is written; `false` if that takes longer than `within`.
    pub fn flush(&self, within: Duration) -> bool {
        let clock = Clock::machine();
        let asked: Vec<_> = (self.open.lock().iter())
            .map(|log| {
                let asked = log.shared.order(|orders| {
                    orders.flushes_asked += 1;
                    orders.flushes_asked
                });
                (Arc::clone(&log.shared), asked)
            })
            .collect();
        asked.iter().all(|(shared, asked)| {
            let left = within.saturating_sub(Duration::from_millis(clock.now().0));
            shared.wait(left, |orders| {
                orders.flushes_done >= *asked || orders.stopped
            })
        })
    }

    /// Writes what is left and closes everything; `false` if that takes longer than `within`.
    pub fn flush_and_stop(&self, within: Duration) -> bool {
        let clock = Clock::machine();
        let logs: Vec<_> = std::mem::take(&mut *self.open.lock());
        // The last opened goes first: the error log, opened before all others, is there for what they report.
        logs.iter().rev().fold(true, |all, log| {
            log.shared.order(|orders| orders.stop = true);
            let left = within.saturating_sub(Duration::from_millis(clock.now().0));
            // One log that is stuck must not take the others' last lines with it.
            let stopped = log
                .shared
                .wait(left.max(LAST_CHANCE), |orders| orders.stopped);
            if !stopped {
                let (name, to) = (log.shared.name, &log.shared.destination);
                tracing::warn!("the {name} log's last lines could not be written to {to} in time");
            }
            all & stopped
        })
    }

    /// Lines lost so far by the logs that are open, because they came too fast or could not be written.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let lost = |log: &OpenLog| {
            let LogShared {
                dropped, failed, ..
            } = &*log.shared;
            dropped.load(Ordering::Relaxed) + failed.load(Ordering::Relaxed)
        };
        self.open.lock().iter().map(lost).sum()
    }

    /// Writes what was lost.
    pub fn describe(&self, page: &mut Exposition) {
        let open = self.open.lock();
        // One that was closed may have a namesake by now, and no metric may stand there twice.
        let open = open.iter().filter(|log| !log.shared.orders.lock().stopped);
        for log in open {
            let labels = [("log", log.shared.name)];
            page.counter(
                "weir_log_lines_dropped_total",
                "Log lines dropped because they could not be written fast enough.",
                &labels,
                log.shared.dropped.load(Ordering::Relaxed),
            );
            page.counter(
                "weir_log_lines_failed_total",
                "Log lines lost because writing them failed.",
                &labels,
                log.shared.failed.load(Ordering::Relaxed),
            );
        }
    }
}

impl LogSink {
    /// Hands over whole lines, each with its newline. Never waits; what does not fit is dropped and counted.
    ///
    /// `false` once the log is closed: nobody will write this.
    pub fn push(&self, lines: &[u8]) -> bool {
        let shared = &self.0.0;
        match shared.buffers.push(lines) {
            PushResult::Added => true,
            PushResult::Closed => {
                shared.drop_lines(lines);
                false
            }
            PushResult::First => {
                shared.order(|orders| orders.write = true);
                true
            }
            PushResult::Full => {
                shared.drop_lines(lines);
                true
            }
        }
    }

    /// Lines dropped so far: handed over faster than they could be written.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.0.0.dropped.load(Ordering::Relaxed)
    }

    /// Lines lost so far because writing failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.0.0.failed.load(Ordering::Relaxed)
    }
}

impl Drop for LogHandle {
    fn drop(&mut self) {
        self.0.order(|orders| orders.stop = true);
    }
}

impl LogShared {
    fn order<R>(&self, give: impl FnOnce(&mut LogCommands) -> R) -> R {
        let result = give(&mut self.orders.lock());
        self.bell.notify_one();
        result
    }

    fn wait(&self, within: Duration, until: impl Fn(&LogCommands) -> bool) -> bool {
        let mut orders = self.orders.lock();
        self.done
            .wait_while_for(&mut orders, |orders| !until(orders), within);
        until(&orders)
    }

    fn drop_lines(&self, lines: &[u8]) {
        self.dropped
            .fetch_add(count_lines(lines), Ordering::Relaxed);
    }
}

impl Destination {
    fn open(&self) -> io::Result<File> {
        match self {
            Self::File(path) => OpenOptions::new()
                .append(true)
                .create(true)
                .mode(0o644)
                .open(path),
            // Descriptors of our own: std's handles hold a lock while they write, and one blocked here would block
            // whoever prints a word.
            Self::Stderr => Ok(io::stderr().as_fd().try_clone_to_owned()?.into()),
            Self::Stdout => Ok(io::stdout().as_fd().try_clone_to_owned()?.into()),
        }
    }
}

impl std::fmt::Display for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Stderr => f.write_str("standard error"),
            Self::Stdout => f.write_str("standard output"),
        }
    }
}

fn start(
    name: &'static str,
    destination: Destination,
    file: File,
    bound: usize,
) -> io::Result<(OpenLog, LogSink)> {
    let shared = Arc::new(LogShared {
        name,
        destination,
        buffers: LogBuffers::new(bound),
        orders: Mutex::default(),
        bell: Condvar::new(),
        done: Condvar::new(),
        dropped: AtomicU64::new(0),
        failed: AtomicU64::new(0),
    });
    let mut pen = LogThread::new(Arc::clone(&shared), file);
    std::thread::Builder::new()
        .name(format!("log-{name}"))
        .spawn(move || supervise_thread(BackgroundTask::Log, || pen.run()))?;
    let handle = Arc::new(LogHandle(Arc::clone(&shared)));
    let log = OpenLog {
        handle: Arc::downgrade(&handle),
        shared,
    };
    Ok((log, LogSink(handle)))
}

fn count_lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Most that waits to be written, in bytes, for each thread and log.
const BOUND: usize = 4 << 20;

/// What every log gets for its last lines, however late it is.
const LAST_CHANCE: Duration = Duration::from_millis(100);
