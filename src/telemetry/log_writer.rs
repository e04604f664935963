//! Writes log lines to files, standard error and standard output; a thread that logs never waits.
//!
//! Each thread appends to a buffer of its own; each destination has a thread that empties the buffers a few dozen times a
//! second. Each destination has its own thread, because a standard output without a reader blocks the thread that writes to
//! it, and must not block the error log. When a buffer is full, its lines are dropped and counted: memory is bounded, and
//! traffic goes first.
//!
//! A buffer is locked by its owner alone but for the moment in which the writing thread swaps it for an empty one. The
//! writing thread is woken by the first line and waits a moment for more, so that a busy proxy makes a few dozen writes a
//! second instead of one a request. No error ends it: a full disk may have room again.

#[cfg(test)]
#[path = "tests/log_writer.rs"]
mod tests;

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::background::{BackgroundTask, supervise_thread};
use super::metrics::{Exposition, metrics};
use crate::clock::{Clock, Millis};

metrics! {
    /// The metrics of logs.
    pub LOG_METRICS:
    LOG_LINES_DROPPED_TOTAL = counter("weir_log_lines_dropped_total", ["log"], "Log lines dropped because they could not be written fast enough.");
    LOG_LINES_FAILED_TOTAL = counter("weir_log_lines_failed_total", ["log"], "Log lines lost because writing them failed.");
}

/// All open logs of the process.
#[derive(Debug, Clone, Default)]
pub struct LogWriter {
    open: Arc<Mutex<Vec<OpenLog>>>,
}

/// A handle to write lines to one log, which is closed with the last handle.
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

/// What the writing thread and the handles of a log share.
#[derive(Debug)]
struct LogShared {
    name: &'static str,
    destination: Destination,
    buffers: LogBuffers,
    commands: Mutex<LogCommands>,
    /// Wakes the writing thread.
    wake: Condvar,
    /// Wakes the threads that wait for a flush.
    done: Condvar,
    dropped: AtomicU64,
    failed: AtomicU64,
}

/// What the writing thread has to do.
#[derive(Debug, Clone, Copy, Default)]
struct LogCommands {
    write: bool,
    reopen: bool,
    stop: bool,
    flushes_asked: u64,
    flushes_done: u64,
    stopped: bool,
}

impl LogWriter {
    /// Opens a log. `name` is its name in messages and metrics (`access`, `error`); a destination that is open already is
    /// shared.
    ///
    /// # Errors
    /// When the file cannot be opened, or no thread can be started.
    pub fn open(&self, name: &'static str, destination: Destination) -> io::Result<LogSink> {
        let mut open = self.open.lock();
        open.retain(|log| !log.shared.commands.lock().stopped);
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

    /// Opens every file again by its path, as after log rotation. Lines from before this call go to the old file; none is
    /// lost.
    pub fn reopen(&self) {
        for log in self.open.lock().iter() {
            log.shared.command(|commands| commands.reopen = true);
        }
    }

    /// Waits until all lines from before this call are written; `false` if that takes longer than `within`.
    pub fn flush(&self, within: Duration) -> bool {
        let clock = Clock::machine();
        let asked: Vec<_> = (self.open.lock().iter())
            .map(|log| {
                let asked = log.shared.command(|commands| {
                    commands.flushes_asked += 1;
                    commands.flushes_asked
                });
                (Arc::clone(&log.shared), asked)
            })
            .collect();
        asked.iter().all(|(shared, asked)| {
            let left = within.saturating_sub(Duration::from_millis(clock.now().0));
            shared.wait(left, |commands| {
                commands.flushes_done >= *asked || commands.stopped
            })
        })
    }

    /// Writes the lines that are left and closes all logs; `false` if that takes longer than `within`.
    pub fn flush_and_stop(&self, within: Duration) -> bool {
        let clock = Clock::machine();
        let logs: Vec<_> = std::mem::take(&mut *self.open.lock());
        // The last opened goes first: the error log was opened before all others and logs their errors.
        logs.iter().rev().fold(true, |all, log| {
            log.shared.command(|commands| commands.stop = true);
            let left = within.saturating_sub(Duration::from_millis(clock.now().0));
            // A blocked log must not cost the others their last lines.
            let stopped = log
                .shared
                .wait(left.max(LAST_CHANCE), |commands| commands.stopped);
            if !stopped {
                let (name, to) = (log.shared.name, &log.shared.destination);
                tracing::warn!("the {name} log's last lines could not be written to {to} in time");
            }
            all & stopped
        })
    }

    /// Lines lost so far by the open logs: dropped, or failed to be written.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let open = self.open.lock();
        let lost = open.iter().map(|log| log.shared.lost());
        lost.map(|lost| lost.dropped + lost.failed).sum()
    }

    /// Writes the metrics of all open logs.
    pub fn describe(&self, page: &mut Exposition) {
        let open = self.open.lock();
        // A closed log may have a successor of the same name, and no series may be written twice.
        let open = open
            .iter()
            .filter(|log| !log.shared.commands.lock().stopped);
        for log in open {
            let (labels, lost) = ([log.shared.name], log.shared.lost());
            page.sample(&LOG_LINES_DROPPED_TOTAL, &labels, lost.dropped);
            page.sample(&LOG_LINES_FAILED_TOTAL, &labels, lost.failed);
        }
    }
}

impl LogSink {
    /// Writes whole lines, each with its newline. Never waits; lines without room are dropped and counted.
    ///
    /// `false` once the log is closed.
    pub fn push(&self, lines: &[u8]) -> bool {
        let shared = &self.0.0;
        let pushed = shared.buffers.push(lines);
        match pushed {
            PushResult::Added => {}
            PushResult::First => shared.command(|commands| commands.write = true),
            PushResult::Closed | PushResult::Full => {
                let lines = count_lines(lines);
                shared.dropped.fetch_add(lines, Ordering::Relaxed);
            }
        }
        pushed != PushResult::Closed
    }
}

impl Drop for LogHandle {
    fn drop(&mut self) {
        self.0.command(|commands| commands.stop = true);
    }
}

impl LogShared {
    fn command<R>(&self, change: impl FnOnce(&mut LogCommands) -> R) -> R {
        let result = change(&mut self.commands.lock());
        self.wake.notify_one();
        result
    }

    fn wait(&self, within: Duration, until: impl Fn(&LogCommands) -> bool) -> bool {
        let mut commands = self.commands.lock();
        self.done
            .wait_while_for(&mut commands, |commands| !until(commands), within);
        until(&commands)
    }

    fn lost(&self) -> LostLines {
        LostLines {
            dropped: self.dropped.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
        }
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
            // Descriptors of our own: std's handles hold a lock while they write, and a blocked one would block every
            // thread that prints.
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
        commands: Mutex::default(),
        wake: Condvar::new(),
        done: Condvar::new(),
        dropped: AtomicU64::new(0),
        failed: AtomicU64::new(0),
    });
    let mut thread = LogThread::new(Arc::clone(&shared), file);
    std::thread::Builder::new()
        .name(format!("log-{name}"))
        .spawn(move || supervise_thread(BackgroundTask::Log, || thread.run()))?;
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

/// The most that waits to be written for each thread and log, in bytes.
const BOUND: usize = 4 << 20;

/// The least time that every log has for its last lines.
const LAST_CHANCE: Duration = Duration::from_millis(100);

/// The buffers of one log, one for each thread that has written to it.
#[derive(Debug)]
struct LogBuffers {
    id: u64,
    bound: usize,
    /// `None` once closed.
    all: Mutex<Option<Vec<Arc<LogBuffer>>>>,
}

#[derive(Debug)]
struct LogBuffer {
    bound: usize,
    lines: Mutex<PendingLines>,
}

#[derive(Debug, Default)]
struct PendingLines {
    bytes: Vec<u8>,
    closed: bool,
}

/// The result of appending lines to a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PushResult {
    /// The buffer has lines already.
    Added,
    /// The log is closed.
    Closed,
    /// The buffer was empty: the writing thread has to be woken.
    First,
    /// There is no room.
    Full,
}

impl LogBuffers {
    fn new(bound: usize) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            bound,
            all: Mutex::new(Some(Vec::new())),
        }
    }

    /// Appends to this thread's buffer.
    fn push(&self, lines: &[u8]) -> PushResult {
        thread_local! {
            static MINE: RefCell<Vec<(u64, Arc<LogBuffer>)>> = const { RefCell::new(Vec::new()) };
        }
        let taken = MINE.try_with(|mine| {
            let mut mine = mine.borrow_mut();
            if let Some((_, buffer)) = mine.iter().find(|(id, _)| *id == self.id) {
                return buffer.push(lines);
            }
            // A buffer that only this thread holds belongs to a log that is gone.
            mine.retain(|(_, buffer)| Arc::strong_count(buffer) > 1);
            let buffer = self.register();
            let taken = buffer.push(lines);
            mine.push((self.id, buffer));
            taken
        });
        // A thread that is ending has lost its buffers already and gets one for a single line.
        taken.unwrap_or_else(|_| self.register().push(lines))
    }

    /// Collects the buffers to be emptied, and drops those whose threads are gone.
    fn collect(&self, batch: &mut Vec<Arc<LogBuffer>>) {
        if let Some(all) = &mut *self.all.lock() {
            all.retain(|buffer| {
                Arc::strong_count(buffer) > 1 || !buffer.lines.lock().bytes.is_empty()
            });
            batch.extend(all.iter().map(Arc::clone));
        }
    }

    /// As [`LogBuffers::collect`], for the last time: no thread gets a buffer after this.
    fn close(&self, batch: &mut Vec<Arc<LogBuffer>>) {
        batch.extend(self.all.lock().take().into_iter().flatten());
    }

    fn register(&self) -> Arc<LogBuffer> {
        let mut all = self.all.lock();
        let buffer = Arc::new(LogBuffer {
            bound: self.bound,
            lines: Mutex::new(PendingLines {
                bytes: Vec::new(),
                closed: all.is_none(),
            }),
        });
        if let Some(all) = &mut *all {
            all.push(Arc::clone(&buffer));
        }
        buffer
    }
}

impl LogBuffer {
    /// Takes the lines, and leaves the empty `spare` with its memory in their place.
    fn swap(&self, spare: &mut Vec<u8>) {
        std::mem::swap(&mut self.lines.lock().bytes, spare);
    }

    /// As [`LogBuffer::swap`], for the last time.
    fn close(&self, spare: &mut Vec<u8>) {
        let mut lines = self.lines.lock();
        lines.closed = true;
        std::mem::swap(&mut lines.bytes, spare);
    }

    fn push(&self, more: &[u8]) -> PushResult {
        let mut lines = self.lines.lock();
        if lines.closed {
            return PushResult::Closed;
        }
        if lines.bytes.len() + more.len() > self.bound {
            return PushResult::Full;
        }
        let first = lines.bytes.is_empty();
        lines.bytes.extend_from_slice(more);
        if first {
            PushResult::First
        } else {
            PushResult::Added
        }
    }
}

/// Writes one log.
#[derive(Debug)]
struct LogThread {
    shared: Arc<LogShared>,
    file: File,
    /// The last write ended inside a line.
    torn: bool,
    /// The last error.
    error: Option<io::Error>,
    batch: Vec<Arc<LogBuffer>>,
    spare: Vec<u8>,
    clock: Clock,
    losses: LossReport,
}

/// Which lost lines were logged, and when.
#[derive(Debug, Default)]
struct LossReport {
    logged_at: Option<Millis>,
    logged: LostLines,
    seen: LostLines,
}

/// Lines that were not written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct LostLines {
    dropped: u64,
    failed: u64,
}

impl LogThread {
    fn new(shared: Arc<LogShared>, file: File) -> Self {
        Self {
            shared,
            file,
            torn: false,
            error: None,
            batch: Vec::new(),
            spare: Vec::new(),
            clock: Clock::machine(),
            losses: LossReport::default(),
        }
    }

    /// Writes until it has to stop and nothing is left.
    fn run(&mut self) {
        loop {
            let task = self.wait();
            self.empty_buffers(task.stop);
            if task.reopen {
                self.reopen();
            }
            self.log_losses(task.stop);
            let mut commands = self.shared.commands.lock();
            commands.flushes_done = task.flushes_asked;
            commands.stopped = task.stop;
            self.shared.done.notify_all();
            if task.stop {
                return;
            }
        }
    }

    fn wait(&self) -> LogCommands {
        let mut commands = self.shared.commands.lock();
        let wake = &self.shared.wake;
        match self.losses.due_in(self.clock.now()) {
            Some(due) => {
                wake.wait_while_for(
                    &mut commands,
                    |commands| !commands.write && !commands.urgent(),
                    due,
                );
            }
            None => wake.wait_while(&mut commands, |commands| {
                !commands.write && !commands.urgent()
            }),
        }
        wake.wait_while_for(&mut commands, |commands| !commands.urgent(), GATHER);
        // Before the buffers are emptied: a line that comes after that sets it again.
        commands.write = false;
        let task = *commands;
        commands.reopen = false;
        task
    }

    fn empty_buffers(&mut self, last: bool) {
        let mut batch = std::mem::take(&mut self.batch);
        if last {
            self.shared.buffers.close(&mut batch);
        } else {
            self.shared.buffers.collect(&mut batch);
        }
        let mut spare = std::mem::take(&mut self.spare);
        for buffer in batch.drain(..) {
            if last {
                buffer.close(&mut spare);
            } else {
                buffer.swap(&mut spare);
            }
            self.write(&spare);
            spare.clear();
            spare.shrink_to(KEEP);
        }
        self.spare = spare;
        self.batch = batch;
    }

    fn write(&mut self, lines: &[u8]) {
        if lines.is_empty() {
            return;
        }
        if self.torn && write_all(&mut self.file, b"\n").is_ok() {
            self.torn = false;
        }
        if let Err((error, rest)) = write_all(&mut self.file, lines) {
            let written = &lines[..lines.len() - rest.len()];
            self.torn |= written.last().is_some_and(|byte| *byte != b'\n');
            self.error = Some(error);
            self.shared
                .failed
                .fetch_add(count_lines(rest), Ordering::Relaxed);
        }
    }

    fn reopen(&mut self) {
        match self.shared.destination.open() {
            Ok(file) => {
                self.file = file;
                self.torn = false;
            }
            // As nginx does, the old file stays: better there than nowhere.
            Err(error) => tracing::error!(
                "cannot reopen the {} log {}, the old file stays open: {error}",
                self.shared.name,
                self.shared.destination,
            ),
        }
    }

    fn log_losses(&mut self, last: bool) {
        let total = self.shared.lost();
        let Some(lost) = self.losses.take(total, self.clock.now(), last) else {
            return;
        };
        let name = self.shared.name;
        if lost.dropped > 0 {
            tracing::warn!("{} {name}-log lines dropped", lost.dropped);
        }
        if lost.failed > 0 {
            let cause: &dyn std::fmt::Display = match &self.error {
                Some(error) => error,
                None => &"unknown error",
            };
            let to = &self.shared.destination;
            tracing::error!(
                "{} {name}-log lines could not be written to {to}: {cause}",
                lost.failed
            );
        }
    }
}

impl LogCommands {
    /// Whether there is a command that cannot wait for more lines.
    fn urgent(&self) -> bool {
        self.reopen || self.stop || self.flushes_asked > self.flushes_done
    }
}

impl LossReport {
    /// The lost lines to log now, if any: at most once a minute, but for the `last` time.
    fn take(&mut self, total: LostLines, now: Millis, last: bool) -> Option<LostLines> {
        self.seen = total;
        let due = self.due_in(now)?;
        if !due.is_zero() && !last {
            return None;
        }
        let lost = LostLines {
            dropped: total.dropped - self.logged.dropped,
            failed: total.failed - self.logged.failed,
        };
        self.logged = total;
        self.logged_at = Some(now);
        Some(lost)
    }

    /// How long until there are lost lines to log, if there are any.
    fn due_in(&self, now: Millis) -> Option<Duration> {
        if self.seen == self.logged {
            return None;
        }
        Some(self.logged_at.map_or(Duration::ZERO, |logged_at| {
            LOG_EVERY.saturating_sub(now.since(logged_at))
        }))
    }
}

/// Writes all bytes; the error comes with the bytes that were not written.
fn write_all<'a>(file: &mut File, mut bytes: &'a [u8]) -> Result<(), (io::Error, &'a [u8])> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err((io::ErrorKind::WriteZero.into(), bytes)),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A terminal or pipe that another process has made non-blocking: this thread has the time to wait.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(GATHER),
            Err(error) => return Err((error, bytes)),
        }
    }
    Ok(())
}

/// How long the first line waits for more.
const GATHER: Duration = Duration::from_millis(25);

/// The memory that an empty buffer keeps, in bytes: what a busy thread fills between two writes.
const KEEP: usize = 1 << 20;

/// The least time between two log lines about lost lines.
const LOG_EVERY: Duration = Duration::from_secs(60);
