//! A file that what does not fit in memory is appended to, one write at a time.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::bounds::{BufferCharge, BufferPool, BufferResource};
use super::disk;
use super::threads::{self, DiskJob};

/// A temporary file, made with its first write.
#[derive(Debug)]
pub(super) struct TempFile {
    path: Arc<Path>,
    file: Option<Arc<File>>,
    disk: BufferCharge,
    length: u64,
    flight: Option<PendingDiskWrite>,
    broken: bool,
    // It has been said that there is no room.
    noted: bool,
}

/// What is being written, or could not be: still here, so that whoever comes to it need not wait for the disk.
#[derive(Debug)]
pub(super) struct PendingDiskWrite {
    pieces: VecDeque<Bytes>,
    length: u64,
    taken: u64,
    // `None` once it has failed.
    job: Option<DiskJob<Arc<File>>>,
}

impl TempFile {
    pub(super) fn new(path: &Arc<Path>, bounds: &Arc<BufferPool>) -> Self {
        Self {
            path: Arc::clone(path),
            file: None,
            disk: BufferCharge::new(bounds, BufferResource::Disk),
            length: 0,
            flight: None,
            broken: false,
            noted: false,
        }
    }

    /// How many bytes of the file have been written.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// The file, once something has been written to it.
    pub(super) fn file(&self) -> Option<&Arc<File>> {
        self.file.as_ref()
    }

    /// What is being written, or could not be.
    pub(super) fn flight(&mut self) -> Option<&mut PendingDiskWrite> {
        self.flight.as_mut()
    }

    /// Bytes in memory that are being written, or could not be.
    pub(super) fn held(&self) -> u64 {
        let held = self.flight.as_ref().map(|flight| match flight.job {
            Some(_) => flight.length,
            None => flight.left(),
        });
        held.unwrap_or_default()
    }

    /// Those of them that nobody has taken yet.
    pub(super) fn untaken(&self) -> u64 {
        self.flight.as_ref().map_or(0, PendingDiskWrite::left)
    }

    /// Whether something is being written.
    pub(super) fn is_busy(&self) -> bool {
        let flight = self.flight.as_ref();
        flight.is_some_and(|flight| flight.job.is_some())
    }

    /// Whether so many bytes more can be written now, to a file of at most `most` bytes.
    pub(super) fn takes(&mut self, bytes: u64, most: u64) -> bool {
        let length = self.length.saturating_add(bytes);
        if self.flight.is_some() || self.broken || length > most {
            return false;
        }
        let takes = self.disk.raise(length);
        if !takes && !std::mem::replace(&mut self.noted, true) {
            self.disk.bounds().note_full(BufferResource::Disk);
        }
        takes
    }

    /// Appends this to the file; [`TempFile::takes`] has said that it can be.
    pub(super) fn write(&mut self, pieces: VecDeque<Bytes>) {
        let (file, path, at) = (self.file.clone(), Arc::clone(&self.path), self.length);
        let copies = pieces.clone();
        let job = DiskJob::start(move || {
            let file = match file {
                Some(file) => file,
                None => Arc::new(disk::open(&path)?),
            };
            let mut at = at;
            for piece in &copies {
                file.write_all_at(piece, at)?;
                at += piece.len() as u64;
            }
            Ok(file)
        });
        self.flight = Some(PendingDiskWrite {
            length: pieces.iter().map(|piece| piece.len() as u64).sum(),
            pieces,
            taken: 0,
            job: Some(job),
        });
    }

    /// Ready when nothing is being written; with how many bytes of what was written had been taken meanwhile.
    pub(super) fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<u64> {
        let Some(flight) = &mut self.flight else {
            return Poll::Ready(0);
        };
        let Some(job) = &mut flight.job else {
            return Poll::Ready(0);
        };
        let Poll::Ready(written) = job.poll(context) else {
            return Poll::Pending;
        };
        match written {
            Ok(file) => {
                let taken = flight.taken;
                self.file = Some(file);
                self.length += flight.length;
                self.flight = None;
                Poll::Ready(taken)
            }
            Err(error) => {
                flight.job = None;
                self.broken = true;
                self.disk.bounds().note_broken(&self.path, &error);
                self.let_go_if_taken();
                Poll::Ready(0)
            }
        }
    }

    /// Forgets what could not be written when all of it has been taken.
    pub(super) fn let_go_if_taken(&mut self) {
        let flight = self.flight.as_ref();
        if flight.is_some_and(|flight| flight.job.is_none() && flight.pieces.is_empty()) {
            self.flight = None;
        }
    }

    /// Writes from the beginning again: nobody needs what is there.
    pub(super) fn rewind(&mut self) {
        self.length = 0;
    }

    /// What could not be written.
    pub(super) fn take_unwritten(&mut self) -> VecDeque<Bytes> {
        self.flight
            .take()
            .map_or_else(VecDeque::new, |it| it.pieces)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            threads::drop_elsewhere(file);
        }
    }
}

impl PendingDiskWrite {
    /// Takes some bytes off the front.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let piece = self.pieces.pop_front()?;
        self.taken += piece.len() as u64;
        Some(piece)
    }

    fn left(&self) -> u64 {
        self.length - self.taken
    }
}
