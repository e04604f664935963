//! A request's body that is taken in before a backend is asked, and sent from here as often as it has to be.
//!
//! Bytes in memory, in the order they came in and in hardly more memory than they take.
//!
//! A piece of a message is a slice of what was read with it. A few bytes may hold on to all of a large read buffer, so
//! small pieces are copied together and only large ones kept as they came.
//!
//! What of a response has come and cannot leave yet, first in, first out.
//!
//! From the front to the back: what is in the file, what is being written to it, what is in memory. Nothing goes to the
//! file before there is more than may be in memory, and nothing that the client can take waits for a write.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};

use super::bounds::{BufferCharge, BufferPool, BufferResource};
use super::disk::{self, DiskJob, TempFile};
use crate::config::plan::{RequestBuffering, ResponseBuffering};
use crate::message::ReplayableBody;

/// Takes a body in.
#[derive(Debug)]
pub struct SpoolWriter {
    limit: usize,
    pieces: ByteQueue,
    memory: BufferCharge,
    spill: TempFile,
}

/// Whether there is room for more of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteSpace {
    /// There is.
    Free,
    /// There is none, in memory or on disk, and nobody knows when there will be.
    Full,
}

/// A body, or as much of it as there was room for.
#[derive(Debug)]
pub struct SpooledBody {
    shared: Arc<SpooledFile>,
    // How far the file was read, then how many of the pieces.
    at: u64,
    piece: usize,
    fetch: Option<DiskJob<Bytes>>,
}

/// What all copies of a body have in common: the file, and what came after it.
#[derive(Debug)]
struct SpooledFile {
    spill: TempFile,
    pieces: Vec<Bytes>,
    _memory: BufferCharge,
}

impl SpoolWriter {
    /// Nothing yet.
    #[must_use]
    pub fn new(plan: &RequestBuffering, bounds: &Arc<BufferPool>) -> Self {
        Self {
            limit: plan.memory,
            pieces: ByteQueue::default(),
            memory: BufferCharge::new(bounds, BufferResource::Memory),
            spill: TempFile::new(&plan.path, bounds),
        }
    }

    /// Ready when more may be added, or when it is known that nothing more can be.
    pub fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<WriteSpace> {
        let written = self.spill.poll_written(context);
        self.count();
        let bytes = self.pieces.len();
        let full = bytes > self.limit || !self.memory.has_room();
        // Where memory is short the disk has to do.
        if !full && (bytes == 0 || !self.memory.is_short()) {
            return Poll::Ready(WriteSpace::Free);
        }
        if written.is_pending() {
            return match bytes < MOST_AT_ONCE.max(self.limit) && self.memory.has_room() {
                true => Poll::Ready(WriteSpace::Free),
                false => Poll::Pending,
            };
        }
        if bytes > 0 && self.spill.takes(bytes as u64, u64::MAX) {
            self.spill.write(self.pieces.take());
            return Poll::Ready(WriteSpace::Free);
        }
        if !full {
            return Poll::Ready(WriteSpace::Free);
        }
        if !self.memory.has_room() {
            self.memory.bounds().note_full(BufferResource::Memory);
        }
        Poll::Ready(WriteSpace::Full)
    }

    /// Adds a piece; [`SpoolWriter::poll_room`] has said that there is room.
    pub fn push(&mut self, data: Bytes) {
        self.pieces.push(data);
        self.count();
    }

    /// Ready when nothing is being written any more.
    pub fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.spill.poll_written(context).map(|_| self.count())
    }

    /// What was taken in, when nothing is being written any more.
    #[must_use]
    pub fn finish(mut self) -> SpooledBody {
        let mut pieces = self.spill.take_unwritten();
        pieces.extend(self.pieces.take());
        SpooledBody {
            shared: Arc::new(SpooledFile {
                spill: self.spill,
                pieces: pieces.into(),
                _memory: self.memory,
            }),
            at: 0,
            piece: 0,
            fetch: None,
        }
    }

    fn count(&mut self) {
        self.memory
            .set(self.pieces.len() as u64 + self.spill.held());
    }
}

impl ReplayableBody for SpooledBody {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let spill = &self.shared.spill;
        if let (true, Some(file)) = (self.at < spill.length(), spill.file()) {
            let fetch = |at| disk::fetch(file, at, spill.length());
            let piece = ready!(
                self.fetch
                    .get_or_insert_with(|| fetch(self.at))
                    .poll(context)
            );
            self.fetch = None;
            if let Ok(piece) = &piece {
                self.at += piece.len() as u64;
                // The next one is read while this one leaves.
                self.fetch = (self.at < spill.length()).then(|| fetch(self.at));
            }
            return Poll::Ready(Some(piece));
        }
        let piece = self.shared.pieces.get(self.piece).cloned();
        self.piece += 1;
        Poll::Ready(piece.map(Ok))
    }

    fn left(&self) -> u64 {
        let pieces = self.shared.pieces.iter().skip(self.piece);
        let pieces: u64 = pieces.map(|piece| piece.len() as u64).sum();
        self.shared.spill.length() - self.at + pieces
    }

    fn again(&self) -> Box<dyn ReplayableBody> {
        Box::new(Self {
            shared: Arc::clone(&self.shared),
            at: self.at,
            piece: self.piece,
            fetch: None,
        })
    }
}

/// How much may gather while a write takes its time, in bytes: fewer and larger writes.
const MOST_AT_ONCE: usize = 64 * 1024;

/// Some bytes, in order.
#[derive(Debug, Default)]
pub(super) struct ByteQueue {
    full: VecDeque<Bytes>,
    // What came last, while more may be added to it.
    open: BytesMut,
    length: usize,
}

impl ByteQueue {
    /// How many bytes there are.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Adds bytes at the end.
    pub(super) fn push(&mut self, mut data: Bytes) {
        self.length += data.len();
        while !data.is_empty() {
            if data.len() >= LARGE {
                self.close();
                self.full.push_back(data);
                return;
            }
            if self.open.capacity() == self.open.len() {
                self.close();
                self.open = BytesMut::with_capacity(BLOCK);
            }
            let room = self.open.capacity() - self.open.len();
            let some = data.split_to(room.min(data.len()));
            self.open.extend_from_slice(&some);
        }
    }

    /// Takes some bytes off the front.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let piece = match self.full.pop_front() {
            Some(piece) => piece,
            None if self.open.is_empty() => return None,
            None => std::mem::take(&mut self.open).freeze(),
        };
        self.length -= piece.len();
        Some(piece)
    }

    /// Takes all of them.
    pub(super) fn take(&mut self) -> VecDeque<Bytes> {
        self.close();
        self.length = 0;
        std::mem::take(&mut self.full)
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            let full = std::mem::take(&mut self.open);
            self.full.push_back(full.freeze());
        }
    }
}

/// Copied bytes are gathered into blocks of this size.
const BLOCK: usize = 4096;

/// Read buffers are at most twice as large.
const LARGE: usize = 32 * 1024;

/// What a client cannot take yet.
#[derive(Debug)]
pub struct ResponseBuffer {
    limit: usize,
    most_on_disk: u64,
    back: ByteQueue,
    memory: BufferCharge,
    spill: TempFile,
    // How far the file was read.
    read: u64,
    fetch: Option<DiskJob<Bytes>>,
    // It has been said that there is no room.
    noted: bool,
}

impl ResponseBuffer {
    /// An empty one.
    #[must_use]
    pub fn new(plan: &ResponseBuffering, bounds: &Arc<BufferPool>) -> Self {
        Self {
            limit: plan.memory,
            most_on_disk: plan.disk,
            back: ByteQueue::default(),
            memory: BufferCharge::new(bounds, BufferResource::Memory),
            spill: TempFile::new(&plan.path, bounds),
            read: 0,
            fetch: None,
            noted: false,
        }
    }

    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.spill.length() - self.read + self.spill.untaken() + self.back.len() as u64
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a piece may be added now. Where not, the task is woken if a write is what it has to wait for; else there
    /// will be room when something has been taken.
    pub fn has_room(&mut self, context: &mut Context<'_>) -> bool {
        self.settle(context);
        let length = self.back.len();
        let full = length >= self.limit;
        // Where memory is short the disk has to do.
        if full || length > 0 && self.memory.is_short() {
            if self.spill.takes(length as u64, self.most_on_disk) {
                self.spill.write(self.back.take());
                self.settle(context);
            } else if full {
                return false;
            }
        }
        let has_room = self.memory.has_room();
        if !has_room && !self.spill.is_busy() && !std::mem::replace(&mut self.noted, true) {
            self.memory.bounds().note_full(BufferResource::Memory);
        }
        has_room
    }

    /// Adds a piece at the end; [`ResponseBuffer::has_room`] has said that there is room.
    pub fn push(&mut self, data: Bytes) {
        self.back.push(data);
        self.count();
    }

    /// Takes some bytes off the front; `None` if there is nothing.
    ///
    /// # Errors
    ///
    /// What is in the file cannot be read.
    pub fn poll_pop(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        self.settle(context);
        if self.read < self.spill.length() {
            return self.poll_fetch(context).map(Some);
        }
        let piece = self.spill.flight().and_then(|flight| flight.pop());
        self.spill.let_go_if_taken();
        let piece = piece.or_else(|| self.back.pop());
        self.count();
        Poll::Ready(piece.map(Ok))
    }

    fn poll_fetch(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        self.fetch_on();
        let Some(fetch) = &mut self.fetch else {
            return Poll::Ready(Err(io::ErrorKind::NotFound.into()));
        };
        let piece = ready!(fetch.poll(context));
        self.fetch = None;
        let piece = piece?;
        self.read += piece.len() as u64;
        // The next one is read while this one leaves.
        self.fetch_on();
        self.rewind();
        Poll::Ready(Ok(piece))
    }

    /// Reads on in the file, where something is left.
    fn fetch_on(&mut self) {
        if self.fetch.is_none()
            && self.read < self.spill.length()
            && let Some(file) = self.spill.file()
        {
            self.fetch = Some(disk::fetch(file, self.read, self.spill.length()));
        }
    }

    /// Lets go of what has been written; the task is woken when more has been.
    pub fn settle(&mut self, context: &mut Context<'_>) {
        if let Poll::Ready(taken) = self.spill.poll_written(context) {
            // Only where all before it had been read, something was taken of what was being written.
            self.read += taken;
            self.rewind();
            self.count();
        }
    }

    /// Uses the file from its beginning when all of it has been read.
    fn rewind(&mut self) {
        if self.read > 0 && self.read == self.spill.length() && !self.spill.is_busy() {
            self.spill.rewind();
            self.read = 0;
        }
    }

    fn count(&mut self) {
        self.memory.set(self.back.len() as u64 + self.spill.held());
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn small_pieces_are_gathered_and_the_order_stays() {
        let mut pieces = ByteQueue::default();
        let mut expected = Vec::new();
        for (number, length) in (0..).zip([1, 4095, 1, 5000, LARGE, 3, LARGE + 1, 9000]) {
            let data = vec![number; length];
            expected.extend_from_slice(&data);
            pieces.push(data.into());
        }
        assert_eq!(pieces.len(), expected.len());
        assert!(pieces.full.len() < 10, "{}", pieces.full.len());
        let mut all = Vec::new();
        while let Some(piece) = pieces.pop() {
            all.extend_from_slice(&piece);
        }
        assert!(all == expected && pieces.len() == 0);
    }

    #[test]
    fn a_byte_holds_on_to_no_more_than_a_block() {
        let mut pieces = ByteQueue::default();
        let read = Bytes::from(vec![7; 2 * LARGE]);
        pieces.push(read.slice(..1));
        assert!(read.is_unique(), "the buffer it came in is free again");
    }
}
