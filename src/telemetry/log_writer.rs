//! Where log lines go, without anybody on the request path ever waiting for it.
//!
//! Each thread appends to a buffer of its own; each destination has a thread that empties the buffers a few
//! dozen times a second. A thread per destination rather than one for all: a standard output that nobody
//! reads blocks its writer, and must not take the error log along. When a buffer is full its lines are
//! dropped and counted, because memory is bounded and traffic goes first.
//!
//! The lines of one thread on their way to one log.
//!
//! A lock per thread rather than a shared queue: its owner is alone with it but for the moment in which the
//! writing thread swaps the full buffer for an empty one.
//!
//! The thread that writes one log.
//!
//! Woken by the first line, it waits a moment for more, so that a busy proxy makes a few dozen writes a
//! second, not one a request. No failure ends it: a full disk has room again some day.

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
            let labels = [log.shared.name];
            page.sample(
                &LOG_LINES_DROPPED_TOTAL,
                &labels,
                log.shared.dropped.load(Ordering::Relaxed),
            );
            page.sample(
                &LOG_LINES_FAILED_TOTAL,
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

/// The buffers of one log, one for each thread that ever wrote to it.
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

/// What became of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PushResult {
    /// It waits behind others.
    Added,
    /// Nobody empties this buffer any more.
    Closed,
    /// It is the first to wait: somebody has to be told.
    First,
    /// There was no room.
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
            // Held by nobody but this thread: its log is gone.
            mine.retain(|(_, buffer)| Arc::strong_count(buffer) > 1);
            let buffer = self.register();
            let taken = buffer.push(lines);
            mine.push((self.id, buffer));
            taken
        });
        // A thread that is ending has lost its buffers already; one made for a single line goes the same way.
        taken.unwrap_or_else(|_| self.register().push(lines))
    }

    /// Fills `turn` with the buffers to be emptied, forgetting those whose threads are gone.
    fn collect(&self, turn: &mut Vec<Arc<LogBuffer>>) {
        if let Some(all) = &mut *self.all.lock() {
            all.retain(|buffer| {
                Arc::strong_count(buffer) > 1 || !buffer.lines.lock().bytes.is_empty()
            });
            turn.extend(all.iter().map(Arc::clone));
        }
    }

    /// As [`LogBuffers::collect`], for the last time: no thread gets a buffer after this.
    fn close(&self, turn: &mut Vec<Arc<LogBuffer>>) {
        turn.extend(self.all.lock().take().into_iter().flatten());
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
    /// Takes what is there, leaving the empty `spare` with its memory in place of it.
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
    /// The last write broke off inside a line.
    torn: bool,
    /// What the last failure was.
    error: Option<io::Error>,
    turn: Vec<Arc<LogBuffer>>,
    spare: Vec<u8>,
    clock: Clock,
    losses: DroppedLines,
}

/// What was lost and not told yet.
#[derive(Debug, Default)]
struct DroppedLines {
    told_at: Option<Millis>,
    told: DroppedCount,
    seen: DroppedCount,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct DroppedCount {
    dropped: u64,
    failed: u64,
}

/// What has to be done this time.
#[derive(Debug)]
struct LogTask {
    reopen: bool,
    stop: bool,
    flushes: u64,
}

impl LogThread {
    fn new(shared: Arc<LogShared>, file: File) -> Self {
        Self {
            shared,
            file,
            torn: false,
            error: None,
            turn: Vec::new(),
            spare: Vec::new(),
            clock: Clock::machine(),
            losses: DroppedLines::default(),
        }
    }

    /// Writes until it is told to stop and nothing is left.
    fn run(&mut self) {
        loop {
            let task = self.wait();
            self.empty_buffers(task.stop);
            if task.reopen {
                self.reopen();
            }
            self.tell_losses(task.stop);
            let mut orders = self.shared.orders.lock();
            orders.flushes_done = task.flushes;
            orders.stopped = task.stop;
            self.shared.done.notify_all();
            if task.stop {
                return;
            }
        }
    }

    fn wait(&self) -> LogTask {
        let mut orders = self.shared.orders.lock();
        let bell = &self.shared.bell;
        match self.losses.due_in(self.clock.now()) {
            Some(due) => {
                bell.wait_while_for(&mut orders, |orders| !orders.write && !orders.urgent(), due);
            }
            None => bell.wait_while(&mut orders, |orders| !orders.write && !orders.urgent()),
        }
        bell.wait_while_for(&mut orders, |orders| !orders.urgent(), GATHER);
        // Before the buffers are emptied: a line that comes after that gives the order anew.
        orders.write = false;
        LogTask {
            reopen: std::mem::take(&mut orders.reopen),
            stop: orders.stop,
            flushes: orders.flushes_asked,
        }
    }

    fn empty_buffers(&mut self, last: bool) {
        let mut turn = std::mem::take(&mut self.turn);
        if last {
            self.shared.buffers.close(&mut turn);
        } else {
            self.shared.buffers.collect(&mut turn);
        }
        let mut spare = std::mem::take(&mut self.spare);
        for buffer in turn.drain(..) {
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
        self.turn = turn;
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

    fn tell_losses(&mut self, last: bool) {
        let total = DroppedCount {
            dropped: self.shared.dropped.load(Ordering::Relaxed),
            failed: self.shared.failed.load(Ordering::Relaxed),
        };
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
    /// Whether there is something that cannot wait for more lines.
    fn urgent(&self) -> bool {
        self.reopen || self.stop || self.flushes_asked > self.flushes_done
    }
}

impl DroppedLines {
    /// What is to be told now, if anything: at most once a minute, but for the `last` time.
    fn take(&mut self, total: DroppedCount, now: Millis, last: bool) -> Option<DroppedCount> {
        self.seen = total;
        let due = self.due_in(now)?;
        if !due.is_zero() && !last {
            return None;
        }
        let lost = DroppedCount {
            dropped: total.dropped - self.told.dropped,
            failed: total.failed - self.told.failed,
        };
        self.told = total;
        self.told_at = Some(now);
        Some(lost)
    }

    /// In how long something has to be told, if there is anything.
    fn due_in(&self, now: Millis) -> Option<Duration> {
        if self.seen == self.told {
            return None;
        }
        Some(self.told_at.map_or(Duration::ZERO, |told_at| {
            TELL_EVERY.saturating_sub(now.since(told_at))
        }))
    }
}

/// Writes everything, or says what went wrong and what was left by then.
fn write_all<'a>(file: &mut File, mut bytes: &'a [u8]) -> Result<(), (io::Error, &'a [u8])> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err((io::ErrorKind::WriteZero.into(), bytes)),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A terminal or pipe that somebody else has made non-blocking: we have the time to wait.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(GATHER),
            Err(error) => return Err((error, bytes)),
        }
    }
    Ok(())
}

/// How long the first line waits for others.
const GATHER: Duration = Duration::from_millis(25);

/// Memory a buffer keeps when it is empty, in bytes: what a busy thread fills while lines are gathered.
const KEEP: usize = 1 << 20;

/// How often losses are told at most.
const TELL_EVERY: Duration = Duration::from_secs(60);
