//! What of a response has come and cannot leave yet, first in, first out.
//!
//! From the front to the back: what is in the file, what is being written to it, what is in memory. Nothing goes to the
//! file before there is more than may be in memory, and nothing that the client can take waits for a write.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use super::bounds::{BufferCharge, BufferPool, BufferResource};
use super::disk;
use super::pieces::ByteQueue;
use super::spill::TempFile;
use super::threads::DiskJob;
use crate::config::plan::ResponseBuffering;

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
