//! The thread that writes one log.
//!
//! Woken by the first line, it waits a moment for more, so that a busy proxy makes a few dozen writes a
//! second, not one a request. No failure ends it: a full disk has room again some day.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::buffer::LogBuffer;
use super::{LogShared, count_lines};
use crate::clock::{Clock, Millis};

/// Writes one log.
#[derive(Debug)]
pub(super) struct LogThread {
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
pub(super) struct DroppedLines {
    told_at: Option<Millis>,
    told: DroppedCount,
    seen: DroppedCount,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DroppedCount {
    pub(super) dropped: u64,
    pub(super) failed: u64,
}

/// What has to be done this time.
#[derive(Debug)]
struct LogTask {
    reopen: bool,
    stop: bool,
    flushes: u64,
}

impl LogThread {
    pub(super) fn new(shared: Arc<LogShared>, file: File) -> Self {
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
    pub(super) fn run(&mut self) {
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

impl super::LogCommands {
    /// Whether there is something that cannot wait for more lines.
    fn urgent(&self) -> bool {
        self.reopen || self.stop || self.flushes_asked > self.flushes_done
    }
}

impl DroppedLines {
    /// What is to be told now, if anything: at most once a minute, but for the `last` time.
    pub(super) fn take(
        &mut self,
        total: DroppedCount,
        now: Millis,
        last: bool,
    ) -> Option<DroppedCount> {
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
    pub(super) fn due_in(&self, now: Millis) -> Option<Duration> {
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
