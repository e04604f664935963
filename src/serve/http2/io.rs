//! A client's socket as h2 sees it: every frame that passes is noted, and nobody blocks it for ever.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::roster::StreamTable;
use crate::clock::MinRateTimer;
use crate::message::ClientConnection;
use crate::message::frames::FrameScanner;
use crate::serve::DownstreamSocket;
use crate::serve::linger::LingeringClose;
use crate::serve::sent::limit;

/// A socket that carries frames.
#[derive(Debug)]
pub(super) struct Http2Io {
    socket: DownstreamSocket,
    // What was read from the socket before h2 was there to read it.
    ahead: Bytes,
    peer: Arc<ClientConnection>,
    roster: Arc<StreamTable>,
    received: FrameScanner,
    sent: FrameScanner,
    writing: MinRateTimer,
    linger: Option<LingeringClose>,
}

impl Http2Io {
    pub(super) fn new(
        socket: DownstreamSocket,
        ahead: Bytes,
        peer: Arc<ClientConnection>,
        roster: Arc<StreamTable>,
    ) -> Self {
        Self {
            socket,
            ahead,
            peer,
            roster,
            received: FrameScanner::from_client(),
            sent: FrameScanner::from_server(),
            writing: MinRateTimer::default(),
            linger: None,
        }
    }

    /// Notes what was written, which is the front of these; ends waits as over HTTP/1.
    fn written<'b>(
        &mut self,
        written: Poll<io::Result<usize>>,
        slices: impl Iterator<Item = &'b [u8]>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let written = ready!(limit(&mut self.writing, &self.peer, written, context));
        let mut left = *written.as_ref().unwrap_or(&0);
        for slice in slices {
            let mut bytes = &slice[..left.min(slice.len())];
            left -= bytes.len();
            while let Some(frame) = self.sent.next(&mut bytes) {
                self.roster.send(frame);
            }
            if left == 0 {
                break;
            }
        }
        Poll::Ready(written)
    }
}

impl AsyncRead for Http2Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        if this.ahead.is_empty() {
            ready!(Pin::new(&mut this.socket).poll_read(context, buffer))?;
            this.peer.line.add_received(buffer.filled().len() - before);
        } else {
            let length = this.ahead.len().min(buffer.remaining());
            buffer.put_slice(&this.ahead.split_to(length));
        }
        let mut bytes = &buffer.filled()[before..];
        while let Some(frame) = this.received.next(&mut bytes) {
            this.roster.receive(frame);
        }
        this.roster.set_within_head(this.received.is_within_head());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Http2Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.written(written, std::iter::once(bytes), context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.written(written, slices.iter().map(|slice| &**slice), context)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    /// Closes slowly, so that the last answers are not lost to a reset; at once on those who have done wrong.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.roster.has_told_off() {
            return Poll::Ready(Ok(()));
        }
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.socket).poll_shutdown(context))?;
            this.linger = Some(LingeringClose::new(this.peer.line.lingering_timeout()));
        }
        match &mut this.linger {
            Some(linger) => linger.poll_over(&mut this.socket, context).map(Ok),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl Drop for Http2Io {
    fn drop(&mut self) {
        self.roster.close();
    }
}
