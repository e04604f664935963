//! What slow clients are allowed: limits on how long a response may take to leave, and a close that does not lose it.
//!
//! A socket that is closed with input unread sends a reset for everything that still comes, and a reset makes the client's
//! system discard the response that the client has not read yet. So our side is shut down first, and what the client still
//! sends is read and discarded until it has noticed: nginx's `lingering_close`. Unlike in nginx, a client that never stops
//! sending is slowed down.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::time::Instant;

use crate::clock::{Deadline, MinRate, MinRateTimer, TooSlow};
use crate::message::ClientConnection;
use crate::telemetry::{COUNTERS, SlowPart, about_connection};
use crate::tls::Socket;

/// Bounds how long a client may take to accept what is sent to it, by `send_timeout` and `send_min_rate`.
#[derive(Debug, Default)]
pub(super) struct SendLimit(MinRateTimer);

impl SendLimit {
    /// Counts what was written, or fails when the client has taken too long.
    pub(super) fn poll_written(
        &mut self,
        client: &ClientConnection,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                client.state.sent.add(bytes);
                self.sent(client, bytes);
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                client.state.read_ahead(context);
                ready!(self.poll_too_slow(client, context));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }

    /// The client has accepted this many bytes.
    pub(super) fn sent(&mut self, client: &ClientConnection, bytes: usize) {
        self.0.moved(bytes, MinRate(client.state.send_rate.get()));
    }

    /// Ready when the client has accepted nothing for too long, or too little.
    pub(super) fn poll_too_slow(
        &mut self,
        client: &ClientConnection,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let timeout = client.state.send_timeout.get();
        let rate = MinRate(client.state.send_rate.get());
        if ready!(self.0.poll_late(timeout, rate, context)) == TooSlow::Slow {
            COUNTERS.slow_client(SlowPart::Answer);
            let message =
                format_args!("client takes its answer too slowly while sending to client");
            tracing::info!("{}", about_connection(message, client));
        }
        Poll::Ready(())
    }
}

/// A connection of which only the client's side is still open.
#[derive(Debug)]
pub(super) struct LingeringClose {
    began: Instant,
    pause: Duration,
    paused: Deadline,
    total: Deadline,
    pace: Deadline,
    discarded: u64,
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
            discarded: 0,
        }
    }

    /// Shuts our side down, then waits for the client; `linger` keeps how far this has come.
    pub(super) fn poll_close(
        linger: &mut Option<Self>,
        socket: &mut Socket,
        client: &ClientConnection,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let linger = match linger {
            Some(linger) => linger,
            None => {
                if ready!(Pin::new(&mut *socket).poll_shutdown(context)).is_err() {
                    return Poll::Ready(());
                }
                linger.insert(Self::new(client.state.lingering_timeout.get()))
            }
        };
        linger.poll_over(socket, context)
    }

    /// Ready when the client has gone, or has been waited for long enough.
    pub(super) fn poll_over(&mut self, socket: &mut Socket, context: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [0; 8192];
        loop {
            if self.total.poll_passed(context).is_ready() {
                return Poll::Ready(());
            }
            if self.discarded > AT_ONCE + self.began.elapsed().as_secs() * PER_SECOND {
                self.pace.start(PACE);
                ready!(self.pace.poll_passed(context));
                self.pace.clear();
                continue;
            }
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut *socket).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.discarded += buffer.filled().len() as u64;
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
}

/// nginx's `lingering_time`.
const LONGEST: Duration = Duration::from_secs(30);

/// Bytes that are discarded as fast as they come: a client that sends first and reads afterwards still gets its response
/// after an upload of this size.
const AT_ONCE: u64 = 16 * 1024 * 1024;

/// Bytes a second after that.
const PER_SECOND: u64 = 1024 * 1024;

/// How long reading pauses once that is used up.
const PACE: Duration = Duration::from_millis(100);
