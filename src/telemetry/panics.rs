//! Panics: caught where something can go on without what was being done, and told in one line.
//!
//! A panic is a bug of weir or of a library. It costs what was being done and nothing else: the attempt, the connection
//! or the run of a background task in which it happened. Whoever catches it logs what was being done; the panic hook
//! supplies what was said and where.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

/// A panic that was caught: what was said, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaughtPanic(Box<str>);

thread_local! {
    /// Whether a panic on this thread will be caught by [`catch`].
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
    /// The last one that the hook left for [`catch`].
    static LAST: RefCell<Option<CaughtPanic>> = const { RefCell::new(None) };
}

/// From now on panics that are caught are told by whoever catches them, and all others in one line on standard error.
pub fn install_hook() {
    std::panic::set_hook(Box::new(|info| {
        let panic = CaughtPanic::new(info.payload(), info.location());
        if CAUGHT.get() {
            return LAST.set(Some(panic));
        }
        let thread = std::thread::current();
        let line = format!(
            "{} [error] thread {} panicked: {panic}\n",
            super::stamp::now().0.slashed,
            thread.name().unwrap_or("without a name"),
        );
        // Not through the log: one of its locks may be held here. Where standard error is closed, nobody can be told.
        let _written = io::stderr().write_all(line.as_bytes());
    }));
}

/// Does something; a panic in it is an error.
///
/// # Errors
/// When it panics.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, CaughtPanic> {
    let before = CAUGHT.replace(true);
    // What a panic leaves half done is dropped, or guarded by locks that are free again.
    let done = catch_unwind(AssertUnwindSafe(work));
    CAUGHT.set(before);
    done.map_err(|payload| {
        let told = LAST.take();
        told.unwrap_or_else(|| CaughtPanic::new(&*payload, None))
    })
}

/// Polls a future; after a panic in it the result is what `failed` makes of that, and the future must not be polled again.
pub fn poll<F: Future>(
    future: Pin<&mut F>,
    context: &mut Context<'_>,
    failed: impl FnOnce(CaughtPanic) -> F::Output,
) -> Poll<F::Output> {
    let mut polled = Poll::Pending;
    // Written in place: to return it would copy it once more.
    if let Err(panic) = catch(|| polled = future.poll(context)) {
        polled = Poll::Ready(failed(panic));
    }
    polled
}

/// Runs a task that others do not depend on, such as a connection; a panic ends only the task, and is logged by `tell`.
// Boxed by the caller: an `async fn` keeps room for its argument beside what it makes of it.
pub async fn isolated<F>(mut task: Pin<Box<F>>, tell: impl FnOnce(CaughtPanic))
where
    F: Future<Output = ()>,
{
    let mut panicked = None;
    poll_fn(|context| poll(task.as_mut(), context, |panic| panicked = Some(panic))).await;
    if let Some(panic) = panicked {
        tell(panic);
    }
}

impl CaughtPanic {
    fn new(payload: &(dyn Any + Send), location: Option<&Location<'_>>) -> Self {
        let said = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message")
            .replace('\n', " ");
        Self(match location {
            Some(location) => format!("{said} at {location}").into(),
            None => said.into(),
        })
    }
}

impl fmt::Display for CaughtPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CaughtPanic {}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[test]
    fn a_panic_is_an_error_and_says_what_it_said() {
        assert_eq!(catch(|| 5), Ok(5));
        let panic = catch(|| panic!("on line\n{}", 2)).unwrap_err().to_string();
        assert!(panic.starts_with("on line 2"), "{panic}");
        let nested = catch(|| catch(|| panic!("inner")).is_err());
        assert_eq!(nested, Ok(true));
        assert!(!CAUGHT.get());
    }

    #[tokio::test]
    async fn a_future_that_panics_is_ready_with_its_failure() {
        let mut future = pin!(async {
            tokio::task::yield_now().await;
            panic!("later")
        });
        let done: Result<(), CaughtPanic> =
            poll_fn(|context| poll(future.as_mut(), context, Err::<(), _>)).await;
        assert!(done.unwrap_err().to_string().starts_with("later"));
    }
}
