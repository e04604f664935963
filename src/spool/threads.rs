//! The threads that touch files, a few for all event loops.
//!
//! tokio has a pool for each event loop, and each of them grows to hundreds of threads before a disk that hangs. These
//! are at most [`MOST`], and those that have nothing to do for a while end.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::telemetry::{BackgroundTask, panics};

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
                if let Err(panic) = panics::catch(work) {
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
