//! The lines of one thread on their way to one log.
//!
//! A lock per thread rather than a shared queue: its owner is alone with it but for the moment in which the
//! writing thread swaps the full buffer for an empty one.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The buffers of one log, one for each thread that ever wrote to it.
#[derive(Debug)]
pub(super) struct LogBuffers {
    id: u64,
    bound: usize,
    /// `None` once closed.
    all: Mutex<Option<Vec<Arc<LogBuffer>>>>,
}

#[derive(Debug)]
pub(super) struct LogBuffer {
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
pub(super) enum PushResult {
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
    pub(super) fn new(bound: usize) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            bound,
            all: Mutex::new(Some(Vec::new())),
        }
    }

    /// Appends to this thread's buffer.
    pub(super) fn push(&self, lines: &[u8]) -> PushResult {
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
    pub(super) fn collect(&self, turn: &mut Vec<Arc<LogBuffer>>) {
        if let Some(all) = &mut *self.all.lock() {
            all.retain(|buffer| {
                Arc::strong_count(buffer) > 1 || !buffer.lines.lock().bytes.is_empty()
            });
            turn.extend(all.iter().map(Arc::clone));
        }
    }

    /// As [`LogBuffers::collect`], for the last time: no thread gets a buffer after this.
    pub(super) fn close(&self, turn: &mut Vec<Arc<LogBuffer>>) {
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
    pub(super) fn swap(&self, spare: &mut Vec<u8>) {
        std::mem::swap(&mut self.lines.lock().bytes, spare);
    }

    /// As [`LogBuffer::swap`], for the last time.
    pub(super) fn close(&self, spare: &mut Vec<u8>) {
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
