//! What buffers take up in memory and in files: the bounds over all requests, temporary files, and the threads that touch
//! them.
//!
//! Temporary files have no name, so they are gone when the process is, however it ends. tokio has a pool of threads for each
//! event loop, and each pool grows to hundreds of threads before a disk that hangs. The threads here serve all event loops;
//! there are at most [`MOST`], and idle ones end.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fs, io, thread};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::config::plan::{BufferBounds, Plan};
use crate::config::{Report, Severity};
use crate::telemetry::{self, BackgroundTask, Exposition, RateLimitedLog, metrics};

metrics! {
    /// The metrics of all buffers.
    pub BUFFER_METRICS:
    BUFFER_BYTES = gauge("weir_buffer_bytes", ["resource"], "What slow clients have yet to send or to take, as it is buffered in memory and in files.");
    BUFFER_LIMIT_BYTES = gauge("weir_buffer_limit_bytes", ["resource"], "How much may be buffered in memory and in files.");
    BUFFER_FULL_TOTAL = counter("weir_buffer_full_total", ["reason"], "Requests and responses that were not buffered any further: memory or disk was used up, or a file could not be written.");
}

/// The bounds of all buffers of a process, and how much of them is in use. One for all generations.
#[derive(Debug)]
pub struct BufferPool {
    memory: PoolUsage,
    disk: PoolUsage,
    disk_failed: RateLimitedLog,
    clock: Clock,
}

#[derive(Debug, Default)]
struct PoolUsage {
    limit: AtomicU64,
    used: AtomicU64,
    full: RateLimitedLog,
}

/// What a buffer takes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BufferResource {
    Disk,
    Memory,
}

/// How much of a resource one buffer has in use, given back when dropped.
// Not `Clone`: two owners would give it back twice.
#[derive(Debug)]
pub(super) struct BufferCharge {
    pub(super) pool: Arc<BufferPool>,
    resource: BufferResource,
    bytes: u64,
}

impl BufferPool {
    /// A pool with nothing in use.
    pub fn new(plan: BufferBounds) -> Arc<Self> {
        let pool = Self {
            memory: PoolUsage::default(),
            disk: PoolUsage::default(),
            disk_failed: RateLimitedLog::new(),
            clock: Clock::machine(),
        };
        pool.set(plan);
        Arc::new(pool)
    }

    /// Changes the bounds. What is in use stays in use, even if it is more.
    pub fn set(&self, plan: BufferBounds) {
        self.memory.limit.store(plan.memory, Ordering::Relaxed);
        self.disk.limit.store(plan.disk, Ordering::Relaxed);
    }

    /// Adds the metrics of all buffers to a page.
    pub fn describe(&self, page: &mut Exposition) {
        for (resource, usage) in [("disk", &self.disk), ("memory", &self.memory)] {
            let labels = [resource];
            page.sample(&BUFFER_BYTES, &labels, usage.used.load(Ordering::Relaxed));
            page.sample(
                &BUFFER_LIMIT_BYTES,
                &labels,
                usage.limit.load(Ordering::Relaxed),
            );
        }
        for (reason, warning) in [
            ("disk", &self.disk.full),
            ("error", &self.disk_failed),
            ("memory", &self.memory.full),
        ] {
            page.sample(&BUFFER_FULL_TOTAL, &[reason], warning.total());
        }
    }

    /// Counts a buffer that grows no further for want of `resource`, and logs it once a minute.
    pub(super) fn note_full(&self, resource: BufferResource) {
        let (usage, name) = match resource {
            BufferResource::Disk => (&self.disk, "disk"),
            BufferResource::Memory => (&self.memory, "memory"),
        };
        let limit = usage.limit.load(Ordering::Relaxed);
        // A limit of 0 was configured, and is no news.
        if limit == 0 {
            return;
        }
        if let Some(times) = usage.full.note(self.clock.now()) {
            tracing::warn!(
                times,
                limit,
                "`{name}` of `buffers` is used up: slow clients slow upstreams down"
            );
        }
    }

    /// Counts a file that could not be written, and logs it once a minute.
    pub(super) fn note_failed(&self, directory: &Path, error: &io::Error) {
        if let Some(times) = self.disk_failed.note(self.clock.now()) {
            let directory = directory.display();
            tracing::warn!(
                times,
                %directory,
                "temporary file cannot be written: {error}; slow clients slow upstreams down"
            );
        }
    }
}

impl BufferCharge {
    /// A charge of nothing yet.
    pub(super) fn new(pool: &Arc<BufferPool>, resource: BufferResource) -> Self {
        Self {
            pool: Arc::clone(pool),
            resource,
            bytes: 0,
        }
    }

    /// Whether any of the resource is left.
    pub(super) fn has_room(&self) -> bool {
        let usage = self.usage();
        usage.used.load(Ordering::Relaxed) < usage.limit.load(Ordering::Relaxed)
    }

    /// Whether most of the resource is in use.
    pub(super) fn is_short(&self) -> bool {
        let usage = self.usage();
        let limit = usage.limit.load(Ordering::Relaxed);
        usage.used.load(Ordering::Relaxed) > limit - limit / 4
    }

    /// Sets how much is in use, whether there is room for it or not.
    pub(super) fn set(&mut self, bytes: u64) {
        let used = &self.usage().used;
        if bytes > self.bytes {
            used.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }

    /// Raises how much is in use to this many bytes, if there is room for them.
    pub(super) fn raise(&mut self, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let usage = self.usage();
        let limit = usage.limit.load(Ordering::Relaxed);
        // Counted first: two that come at once are both in the number.
        let before = usage.used.fetch_add(more, Ordering::Relaxed);
        if more > 0 && before.saturating_add(more) > limit {
            usage.used.fetch_sub(more, Ordering::Relaxed);
            return false;
        }
        self.bytes += more;
        true
    }

    fn usage(&self) -> &PoolUsage {
        match self.resource {
            BufferResource::Disk => &self.pool.disk,
            BufferResource::Memory => &self.pool.memory,
        }
    }
}

impl Drop for BufferCharge {
    fn drop(&mut self) {
        self.set(0);
    }
}

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

/// Reads what follows `at` of a file that is `length` bytes long, at most [`PIECE`] bytes.
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
    /// The file, once something has been written to it.
    pub(super) file: Option<Arc<File>>,
    disk: BufferCharge,
    /// How many bytes of the file have been written.
    pub(super) length: u64,
    pending: Option<PendingDiskWrite>,
    failed: bool,
    // It has been logged that there is no room.
    noted: bool,
}

/// What is being written, or could not be: kept, so that its reader need not wait for the disk.
#[derive(Debug)]
struct PendingDiskWrite {
    pieces: VecDeque<Bytes>,
    length: u64,
    read: u64,
    // `None` once it has failed.
    job: Option<DiskJob<Arc<File>>>,
}

impl TempFile {
    pub(super) fn new(path: &Arc<Path>, pool: &Arc<BufferPool>) -> Self {
        Self {
            path: Arc::clone(path),
            file: None,
            disk: BufferCharge::new(pool, BufferResource::Disk),
            length: 0,
            pending: None,
            failed: false,
            noted: false,
        }
    }

    /// Bytes in memory that are being written, or could not be.
    pub(super) fn held(&self) -> u64 {
        self.pending.as_ref().map_or(0, |write| match write.job {
            Some(_) => write.length,
            None => write.length - write.read,
        })
    }

    /// Those of them that have not been read.
    pub(super) fn unread(&self) -> u64 {
        let pending = self.pending.as_ref();
        pending.map_or(0, |write| write.length - write.read)
    }

    /// Whether something is being written.
    pub(super) fn is_busy(&self) -> bool {
        let pending = self.pending.as_ref();
        pending.is_some_and(|write| write.job.is_some())
    }

    /// Whether so many bytes more can be written now, to a file of at most `most` bytes.
    pub(super) fn has_room(&mut self, bytes: u64, most: u64) -> bool {
        let length = self.length.saturating_add(bytes);
        if self.pending.is_some() || self.failed || length > most {
            return false;
        }
        let has_room = self.disk.raise(length);
        if !has_room && !std::mem::replace(&mut self.noted, true) {
            self.disk.pool.note_full(BufferResource::Disk);
        }
        has_room
    }

    /// Appends this to the file, for which [`TempFile::has_room`] has found room.
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
        self.pending = Some(PendingDiskWrite {
            length: pieces.iter().map(|piece| piece.len() as u64).sum(),
            pieces,
            read: 0,
            job: Some(job),
        });
    }

    /// Ready when nothing is being written; with how many bytes of what was written had been read meanwhile.
    pub(super) fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<u64> {
        let Some(pending) = &mut self.pending else {
            return Poll::Ready(0);
        };
        let Some(job) = &mut pending.job else {
            return Poll::Ready(0);
        };
        match ready!(job.poll(context)) {
            Ok(file) => {
                let read = pending.read;
                self.file = Some(file);
                self.length += pending.length;
                self.pending = None;
                Poll::Ready(read)
            }
            Err(error) => {
                pending.job = None;
                self.failed = true;
                self.disk.pool.note_failed(&self.path, &error);
                self.drop_read();
                Poll::Ready(0)
            }
        }
    }

    /// Takes some bytes off the front of what is being written, or could not be.
    pub(super) fn pop_pending(&mut self) -> Option<Bytes> {
        let pending = self.pending.as_mut()?;
        let piece = pending.pieces.pop_front();
        pending.read += piece.as_ref().map_or(0, |piece| piece.len() as u64);
        self.drop_read();
        piece
    }

    /// Forgets what could not be written when all of it has been read.
    fn drop_read(&mut self) {
        let is_read = |write: &mut PendingDiskWrite| write.job.is_none() && write.pieces.is_empty();
        self.pending.take_if(is_read);
    }

    /// What could not be written.
    pub(super) fn take_unwritten(&mut self) -> VecDeque<Bytes> {
        let pending = self.pending.take();
        pending.map_or_else(VecDeque::new, |write| write.pieces)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // Elsewhere, as it may take its time: closing a long file frees what it takes on the disk.
            DISK_THREADS.add(Box::new(move || drop(file)));
        }
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
    /// Does `work` as soon as a thread is free.
    pub(super) fn start(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Self {
        let (done, is_done) = oneshot::channel();
        // Where its result is not awaited any more, it is dropped on the disk thread.
        DISK_THREADS.add(Box::new(move || drop(done.send(work()))));
        Self(is_done)
    }

    /// Ready with the result.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let done = Pin::new(&mut self.0).poll(context);
        done.map(|done| {
            done.unwrap_or_else(|_| Err(io::Error::other("no disk thread completed the work")))
        })
    }
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
                // Dropped, so that what waits for them gets an error.
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

static DISK_THREADS: DiskThreads = DiskThreads {
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

/// Tries every directory for temporary files, and adds an error to the report where no file can be made.
pub fn check_buffers(plan: &Plan, report: &mut Report) {
    for directory in &plan.temp_paths {
        if let Err(error) = open(&directory.path) {
            let path = directory.path.display();
            let sentence = format!("no file can be made in `{path}`: {error}");
            let hint = "name a directory that is there and that weir may write to";
            report.note(Severity::Error, directory.span, sentence, Some(hint));
        }
    }
}

#[cfg(test)]
mod tests {

    use std::future::poll_fn;

    use super::*;

    fn used(pool: &BufferPool) -> (u64, u64) {
        let used = |usage: &PoolUsage| usage.used.load(Ordering::Relaxed);
        (used(&pool.memory), used(&pool.disk))
    }

    #[test]
    fn what_is_dropped_is_given_back() {
        let pool = BufferPool::new(BufferBounds {
            memory: 100,
            disk: 50,
        });
        let mut memory = BufferCharge::new(&pool, BufferResource::Memory);
        let mut disk = BufferCharge::new(&pool, BufferResource::Disk);
        memory.set(70);
        assert!(memory.has_room() && !memory.is_short());
        memory.set(120);
        assert!(!memory.has_room() && memory.is_short());
        assert!(disk.raise(50) && !disk.raise(51) && disk.raise(10));
        assert_eq!(used(&pool), (120, 50));
        drop((memory, disk));
        assert_eq!(used(&pool), (0, 0));
    }

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
