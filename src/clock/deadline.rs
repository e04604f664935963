//! A timer that costs nothing while it is not needed.
//!
//! Every read and every write of a connection has a time limit, and nearly none is ever reached. So
//! moving the limit only writes a number; the runtime's timer is armed when somebody really has to
//! wait, and when it fires too early because the limit has moved since, it is armed again.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// A time limit that can be moved cheaply and awaited by polling.
#[derive(Debug, Default)]
pub struct Deadline {
    due: Option<Instant>,
    // Boxed so that what holds a deadline stays small and movable; made on the first real wait.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Deadline {
    /// Sets the limit to `after` from now, unless one is already running.
    pub fn start(&mut self, after: Duration) {
        if self.due.is_none() {
            self.due = Instant::now().checked_add(after);
        }
    }

    /// Sets the limit to an absolute moment.
    pub fn set(&mut self, due: Instant) {
        self.due = Some(due);
    }

    /// There is no limit until the next [`Deadline::start`].
    pub fn clear(&mut self) {
        self.due = None;
    }

    /// Ready once the limit has passed; registers the task to be woken when it does.
    pub fn poll_passed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(due) = self.due else {
            return Poll::Pending;
        };
        loop {
            let sleep = self
                .sleep
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
            // Armed for later than the limit: it must be pulled in. Armed for earlier is fine, it
            // fires, finds the limit moved and is armed again: one timer operation instead of one a read.
            if sleep.deadline() > due {
                sleep.as_mut().reset(due);
            }
            ready!(sleep.as_mut().poll(context));
            if Instant::now() >= due {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(due);
        }
    }
}
