//! A connection to a backend that has agreed to speak something else than HTTP.
//!
//! It is the backend's end of a tunnel: bytes in, bytes out, beginning with those that came behind the 101. The backend
//! counts it as a request in progress for as long as it lasts, and nobody else will ever use it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::ResponseTimer;
use super::backend::ActiveRequest;
use super::wire::UpstreamConnection;
use crate::clock::{Clock, Millis};

/// The backend's end of a tunnel.
#[derive(Debug)]
pub struct UpgradedConnection {
    wire: Box<UpstreamConnection>,
    stopwatch: ResponseTimer,
    started: Millis,
    clock: Clock,
    _lease: ActiveRequest,
}

impl UpgradedConnection {
    pub(super) fn new(
        wire: Box<UpstreamConnection>,
        lease: ActiveRequest,
        started: Millis,
        clock: &Clock,
    ) -> Self {
        Self {
            wire,
            stopwatch: ResponseTimer::begin(),
            started,
            clock: clock.clone(),
            _lease: lease,
        }
    }

    /// Tells how long it took when it is over.
    #[must_use]
    pub fn stopwatch(&self) -> ResponseTimer {
        self.stopwatch.clone()
    }
}

impl AsyncRead for UpgradedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let wire = &mut self.wire;
        if wire.read.is_empty() && ready!(wire.poll_read(context))? == 0 {
            return Poll::Ready(Ok(()));
        }
        let length = wire.read.len().min(buffer.remaining());
        buffer.put_slice(&wire.read[..length]);
        wire.read.advance(length);
        // A tunnel in which nothing moves holds no memory.
        if wire.read.is_empty() {
            wire.rest();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for UpgradedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.wire.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wire.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wire.poll_shutdown(context)
    }
}

impl Drop for UpgradedConnection {
    fn drop(&mut self) {
        self.stopwatch.stop(self.clock.now().since(self.started));
    }
}
