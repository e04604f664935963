//! A request's body that is taken in before a backend is asked, and sent from here as often as it has to be.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use super::bounds::{BufferCharge, BufferPool, BufferResource};
use super::disk;
use super::pieces::ByteQueue;
use super::spill::TempFile;
use super::threads::DiskJob;
use crate::config::plan::RequestBuffering;
use crate::message::upload::ReplayableBody;

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
