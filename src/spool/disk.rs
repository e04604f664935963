//! Files without a name: gone when the process is, however it ends.
//!
//! A file that what does not fit in memory is appended to, one write at a time.
//!
//! The threads that touch files, a few for all event loops.
//!
//! tokio has a pool for each event loop, and each of them grows to hundreds of threads before a disk that hangs. These
//! are at most [`MOST`], and those that have nothing to do for a while end.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fs, io, thread};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::sync::oneshot;

use super::bounds::{BufferCharge, BufferPool, BufferResource};
use crate::telemetry::{self, BackgroundTask};

/// A new file in this directory that only this process can reach. Blocks.
pub(super) fn open(directory: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(file.into()),
        // Not every file system can make one without a name.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => open_and_unlink(directory),
        Err(error) => Err(error.into()),
    }
}

fn open_and_unlink(directory: &Path) -> io::Result<File> {
    let name = format!("weir-{}-{:016x}", std::process::id(), fastrand::u64(..));
    let path = directory.join(name);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    let file = options.open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// Reads what follows `at` of a file that is `length` bytes long, as much as is worth it at once.
pub(super) fn fetch(file: &Arc<File>, at: u64, length: u64) -> DiskJob<Bytes> {
    let file = Arc::clone(file);
    let length = usize::try_from(length.saturating_sub(at)).map_or(PIECE, |left| left.min(PIECE));
    DiskJob::start(move || {
        let mut piece = vec![0; length];
        file.read_exact_at(&mut piece, at)?;
        Ok(piece.into())
    })
}

/// What is read at once, in bytes.
const PIECE: usize = 64 * 1024;

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
                None => Arc::new(open(&path)?),
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
            drop_elsewhere(file);
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

/// Work on a file, done by another thread.
#[derive(Debug)]
pub(super) struct DiskJob<T>(oneshot::Receiver<io::Result<T>>);

type DiskClosure = Box<dyn FnOnce() + Send>;

struct DiskThreads {
    state: Mutex<DiskThreadsState>,
    has_work: Condvar,
}

struct DiskThreadsState {
    waiting: VecDeque<DiskClosure>,
    threads: usize,
    idle: usize,
}

impl<T: Send + 'static> DiskJob<T> {
    /// Has it done as soon as a thread is free.
    pub(super) fn start(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Self {
        let (done, is_done) = oneshot::channel();
        // Where nobody waits any more, what was made goes where it was made.
        CREW.add(Box::new(move || drop(done.send(work()))));
        Self(is_done)
    }

    /// What came of it, when it is done.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let done = Pin::new(&mut self.0).poll(context);
        done.map(|done| {
            done.unwrap_or_else(|_| Err(io::Error::other("no disk thread completed the work")))
        })
    }
}

/// Lets go of something where that may take its time: closing a long file frees what it takes on the disk.
pub(super) fn drop_elsewhere<T: Send + 'static>(what: T) {
    CREW.add(Box::new(move || drop(what)));
}

impl DiskThreads {
    fn add(&'static self, work: DiskClosure) {
        let mut state = self.state.lock();
        state.waiting.push_back(work);
        if state.idle >= state.waiting.len() {
            self.has_work.notify_one();
        } else if state.threads < MOST {
            let thread = thread::Builder::new().name("weir-disk".to_owned());
            match thread.spawn(|| self.work()) {
                Ok(_) => state.threads += 1,
                // Whoever waits for it hears that nobody does it.
                Err(_) if state.threads == 0 => state.waiting.clear(),
                Err(_) => {}
            }
        }
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            while let Some(work) = state.waiting.pop_front() {
                drop(state);
                // The thread is counted, so it must survive a panic. The request that waits for the work gets an error.
                if let Err(panic) = telemetry::catch_panic(work) {
                    BackgroundTask::Disk.note(&panic, Duration::ZERO);
                }
                state = self.state.lock();
            }
            state.idle += 1;
            let waited = self.has_work.wait_for(&mut state, REST);
            state.idle -= 1;
            if waited.timed_out() && state.waiting.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

static CREW: DiskThreads = DiskThreads {
    state: Mutex::new(DiskThreadsState {
        waiting: VecDeque::new(),
        threads: 0,
        idle: 0,
    }),
    has_work: Condvar::new(),
};

/// Most of the time they copy to and from the page cache; more than a disk works on at once are of no use.
const MOST: usize = 4;

/// How long a thread waits for more to do.
const REST: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_file_has_no_name() {
        let directory = tempfile::tempdir().unwrap();
        for open in [open, open_and_unlink] {
            let file = open(directory.path()).unwrap();
            file.write_all_at(b"abc", 1).unwrap();
            let mut read = [0; 3];
            file.read_exact_at(&mut read, 1).unwrap();
            assert_eq!(&read, b"abc");
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        }
        assert!(open(&directory.path().join("missing")).is_err());
    }
}

#[cfg(test)]
mod threads_tests {

    use std::future::poll_fn;

    use super::*;

    /// As many panics as there are threads: whatever is asked for afterwards has to be done all the same.
    #[tokio::test]
    async fn work_that_panics_fails_alone() {
        let work = |fails: bool| {
            DiskJob::start(move || {
                assert!(!fails, "a file");
                Ok(())
            })
        };
        let mut panicking: Vec<_> = (0..MOST).map(|_| work(true)).collect();
        for job in &mut panicking {
            assert!(poll_fn(|context| job.poll(context)).await.is_err());
        }
        let mut sound = work(false);
        let done = poll_fn(|context| sound.poll(context));
        let done = tokio::time::timeout(Duration::from_secs(5), done).await;
        assert!(done.expect("a thread is left").is_ok());
    }
}
