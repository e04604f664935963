//! Bodies that wait: a request's, which is read before a backend is asked and sent as often as needed, and a response's,
//! which its client cannot take yet.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};

use super::storage::{BufferCharge, BufferPool, BufferResource, DiskJob, TempFile, fetch};
use crate::config::plan::{RequestBuffering, ResponseBuffering};
use crate::message::ReplayableBody;

/// Bytes in a file, and behind them bytes in memory.
#[derive(Debug)]
struct Buffer {
    limit: usize,
    pieces: ByteQueue,
    memory: BufferCharge,
    file: TempFile,
}

impl Buffer {
    fn new(limit: usize, path: &Arc<Path>, pool: &Arc<BufferPool>) -> Self {
        Self {
            limit,
            pieces: ByteQueue::default(),
            memory: BufferCharge::new(pool, BufferResource::Memory),
            file: TempFile::new(path, pool),
        }
    }

    fn push(&mut self, data: Bytes) {
        self.pieces.push(data);
        self.charge();
    }

    /// Charges what is in memory now.
    fn charge(&mut self) {
        self.memory
            .set(self.pieces.length as u64 + self.file.held());
    }

    /// Writes what is in memory to a file of at most `most` bytes; false if that cannot be done now.
    fn write(&mut self, most: u64) -> bool {
        let has_room = self.file.has_room(self.pieces.length as u64, most);
        if has_room {
            self.file.write(self.pieces.take());
        }
        has_room
    }
}

/// Reads a request's body into a buffer.
#[derive(Debug)]
pub struct SpoolWriter(Buffer);

/// A body, or as much of it as there was room for.
#[derive(Debug)]
pub struct SpooledBody {
    shared: Arc<SpooledFile>,
    // How far the file was read, then how many of the pieces.
    at: u64,
    piece: usize,
    fetch: Option<DiskJob<Bytes>>,
}

/// What all copies of a body share: the file, and what came after it.
#[derive(Debug)]
struct SpooledFile {
    file: TempFile,
    pieces: Vec<Bytes>,
    _memory: BufferCharge,
}

impl SpoolWriter {
    /// An empty buffer.
    pub fn new(plan: &RequestBuffering, pool: &Arc<BufferPool>) -> Self {
        Self(Buffer::new(plan.memory, &plan.path, pool))
    }

    /// Ready with true when more may be added, with false when memory and disk are used up.
    pub fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let buffer = &mut self.0;
        let written = buffer.file.poll_written(context);
        buffer.charge();
        let bytes = buffer.pieces.length;
        let full = bytes > buffer.limit || !buffer.memory.has_room();
        // Where memory is short the disk has to do.
        if !full && (bytes == 0 || !buffer.memory.is_short()) {
            return Poll::Ready(true);
        }
        if written.is_pending() {
            return match bytes < MOST_AT_ONCE.max(buffer.limit) && buffer.memory.has_room() {
                true => Poll::Ready(true),
                false => Poll::Pending,
            };
        }
        if bytes > 0 && buffer.write(u64::MAX) || !full {
            return Poll::Ready(true);
        }
        if !buffer.memory.has_room() {
            buffer.memory.pool.note_full(BufferResource::Memory);
        }
        Poll::Ready(false)
    }

    /// Adds a piece, for which [`SpoolWriter::poll_room`] has found room.
    pub fn push(&mut self, data: Bytes) {
        self.0.push(data);
    }

    /// Ready when nothing is being written any more.
    pub fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let written = self.0.file.poll_written(context);
        written.map(|_| self.0.charge())
    }

    /// The body, when nothing is being written any more.
    #[must_use]
    pub fn finish(mut self) -> SpooledBody {
        let mut pieces = self.0.file.take_unwritten();
        pieces.extend(self.0.pieces.take());
        SpooledBody {
            shared: Arc::new(SpooledFile {
                file: self.0.file,
                pieces: pieces.into(),
                _memory: self.0.memory,
            }),
            at: 0,
            piece: 0,
            fetch: None,
        }
    }
}

impl ReplayableBody for SpooledBody {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let length = self.shared.file.length;
        if let (true, Some(file)) = (self.at < length, &self.shared.file.file) {
            let start = |at| fetch(file, at, length);
            let fetch = self.fetch.get_or_insert_with(|| start(self.at));
            let piece = ready!(fetch.poll(context));
            self.fetch = None;
            if let Ok(piece) = &piece {
                self.at += piece.len() as u64;
                // The next one is read while this one leaves.
                self.fetch = (self.at < length).then(|| start(self.at));
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
        self.shared.file.length - self.at + pieces
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

/// How many bytes may gather during a write, for fewer and larger writes.
const MOST_AT_ONCE: usize = 64 * 1024;

/// Bytes in order, in hardly more memory than they take.
// A piece of a message is a slice of what was read with it. A few bytes may keep all of a large read buffer, so small pieces
// are copied together and only large ones kept as they came.
#[derive(Debug, Default)]
struct ByteQueue {
    full: VecDeque<Bytes>,
    // What came last, while more may be added to it.
    open: BytesMut,
    length: usize,
}

impl ByteQueue {
    /// Adds bytes at the end.
    fn push(&mut self, mut data: Bytes) {
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
    fn pop(&mut self) -> Option<Bytes> {
        let piece = match self.full.pop_front() {
            Some(piece) => piece,
            None if self.open.is_empty() => return None,
            None => std::mem::take(&mut self.open).freeze(),
        };
        self.length -= piece.len();
        Some(piece)
    }

    /// Takes all of them.
    fn take(&mut self) -> VecDeque<Bytes> {
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

/// What a client cannot take yet of a response, first in, first out.
// From the front to the back: what is in the file, what is being written to it, what is in memory. Nothing goes to the file
// before there is more than may be in memory, and nothing that the client can take waits for a write.
#[derive(Debug)]
pub struct ResponseBuffer {
    buffer: Buffer,
    most_on_disk: u64,
    // How far the file was read.
    read: u64,
    fetch: Option<DiskJob<Bytes>>,
    // It has been logged that there is no room.
    noted: bool,
}

impl ResponseBuffer {
    /// An empty buffer.
    pub fn new(plan: &ResponseBuffering, pool: &Arc<BufferPool>) -> Self {
        Self {
            buffer: Buffer::new(plan.memory, &plan.path, pool),
            most_on_disk: plan.disk,
            read: 0,
            fetch: None,
            noted: false,
        }
    }

    /// How many bytes there are.
    pub fn len(&self) -> u64 {
        let Buffer { file, pieces, .. } = &self.buffer;
        file.length - self.read + file.unread() + pieces.length as u64
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a piece may be added now. Where not, the task is woken if it has to wait for a write; else there will be room
    /// when something has been read.
    pub fn has_room(&mut self, context: &mut Context<'_>) -> bool {
        self.settle(context);
        let buffer = &mut self.buffer;
        let length = buffer.pieces.length;
        let full = length >= buffer.limit;
        // Where memory is short the disk has to do.
        if full || length > 0 && buffer.memory.is_short() {
            if buffer.write(self.most_on_disk) {
                self.settle(context);
            } else if full {
                return false;
            }
        }
        let buffer = &mut self.buffer;
        let has_room = buffer.memory.has_room();
        if !has_room && !buffer.file.is_busy() && !std::mem::replace(&mut self.noted, true) {
            buffer.memory.pool.note_full(BufferResource::Memory);
        }
        has_room
    }

    /// Adds a piece at the end, for which [`ResponseBuffer::has_room`] has found room.
    pub fn push(&mut self, data: Bytes) {
        self.buffer.push(data);
    }

    /// Takes some bytes off the front; `None` if there is nothing.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn poll_pop(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        self.settle(context);
        if self.read < self.buffer.file.length {
            return self.poll_fetch(context).map(Some);
        }
        let buffer = &mut self.buffer;
        let piece = buffer.file.pop_pending().or_else(|| buffer.pieces.pop());
        buffer.charge();
        Poll::Ready(piece.map(Ok))
    }

    fn poll_fetch(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        self.fetch_next();
        let Some(fetch) = &mut self.fetch else {
            return Poll::Ready(Err(io::ErrorKind::NotFound.into()));
        };
        let piece = ready!(fetch.poll(context));
        self.fetch = None;
        let piece = piece?;
        self.read += piece.len() as u64;
        // The next one is read while this one leaves.
        self.fetch_next();
        self.rewind();
        Poll::Ready(Ok(piece))
    }

    /// Reads on in the file, where something is left.
    fn fetch_next(&mut self) {
        let file = &self.buffer.file;
        if self.fetch.is_none()
            && self.read < file.length
            && let Some(open) = &file.file
        {
            self.fetch = Some(fetch(open, self.read, file.length));
        }
    }

    /// Frees the memory of what has been written; the task is woken when more has been.
    pub fn settle(&mut self, context: &mut Context<'_>) {
        if let Poll::Ready(read) = self.buffer.file.poll_written(context) {
            // Some of it was read only if all before it had been.
            self.read += read;
            self.rewind();
            self.buffer.charge();
        }
    }

    /// Uses the file from its beginning when all of it has been read.
    fn rewind(&mut self) {
        let file = &mut self.buffer.file;
        if self.read > 0 && self.read == file.length && !file.is_busy() {
            file.length = 0;
            self.read = 0;
        }
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
        assert_eq!(pieces.length, expected.len());
        assert!(pieces.full.len() < 10, "{}", pieces.full.len());
        let mut all = Vec::new();
        while let Some(piece) = pieces.pop() {
            all.extend_from_slice(&piece);
        }
        assert!(all == expected && pieces.length == 0);
    }

    #[test]
    fn a_byte_holds_on_to_no_more_than_a_block() {
        let mut pieces = ByteQueue::default();
        let read = Bytes::from(vec![7; 2 * LARGE]);
        pieces.push(read.slice(..1));
        assert!(read.is_unique(), "the buffer it came in is free again");
    }
}
