//! Closing slowly.
//!
//! A socket that is closed with input unread answers everything that still comes with a reset, and a
//! reset makes the client's system throw away the answer it has not read yet. So our side is shut down
//! first, and what the client still sends is read and forgotten until it has noticed: nginx's
//! `lingering_close`. Unlike there, somebody who never stops sending is slowed down.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::time::Instant;

use super::DownstreamSocket;
use crate::clock::Deadline;

/// A connection of which only the client's side is still open.
#[derive(Debug)]
pub(super) struct LingeringClose {
    began: Instant,
    pause: Duration,
    paused: Deadline,
    total: Deadline,
    pace: Deadline,
    taken: u64,
}

impl LingeringClose {
    /// Begins, with at most `pause` between two reads.
    pub(super) fn new(pause: Duration) -> Self {
        let mut total = Deadline::default();
        total.start(LONGEST);
        Self {
            began: Instant::now(),
            pause,
            paused: Deadline::default(),
            total,
            pace: Deadline::default(),
            taken: 0,
        }
    }

    /// Ready when the client has gone, or has been waited for long enough.
    pub(super) fn poll_over(
        &mut self,
        socket: &mut DownstreamSocket,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let mut scratch = [0; 8192];
        loop {
            if self.total.poll_passed(context).is_ready() {
                return Poll::Ready(());
            }
            if self.is_ahead() {
                self.pace.start(PACE);
                ready!(self.pace.poll_passed(context));
                self.pace.clear();
                continue;
            }
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut *socket).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.taken += buffer.filled().len() as u64;
                    self.paused.clear();
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {
                    self.paused.start(self.pause);
                    return self.paused.poll_passed(context);
                }
            }
        }
    }

    fn is_ahead(&self) -> bool {
        self.taken > AT_ONCE + self.began.elapsed().as_secs() * PER_SECOND
    }
}

/// nginx's `lingering_time`.
const LONGEST: Duration = Duration::from_secs(30);

/// Bytes that are discarded as fast as they come: a client that sends first and reads afterwards still
/// gets its answer after an upload of this size.
const AT_ONCE: u64 = 16 * 1024 * 1024;

/// Bytes a second after that.
const PER_SECOND: u64 = 1024 * 1024;

/// How long reading rests once that is used up.
const PACE: Duration = Duration::from_millis(100);
