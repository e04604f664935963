//! A backend's socket as h2 sees it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::pool::ConnectionLoad;
use super::terms::SettingsReader;
use crate::message::frames::FrameScanner;
use crate::upstream::wire::UpstreamSocket;

/// A socket, and whom to tell that it was heard of.
#[derive(Debug)]
pub(super) struct UpstreamHttp2Io {
    socket: UpstreamSocket,
    load: Arc<ConnectionLoad>,
    // Its beginning, until that has been understood.
    preface: Option<SettingsReader>,
    frames: FrameScanner,
}

impl UpstreamHttp2Io {
    pub(super) fn new(socket: UpstreamSocket, load: Arc<ConnectionLoad>) -> Self {
        Self {
            socket,
            load,
            preface: Some(SettingsReader::default()),
            frames: FrameScanner::from_server(),
        }
    }
}

impl AsyncRead for UpstreamHttp2Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(context, buffer))?;
        self.load.hear();
        let this = &mut *self;
        let mut bytes = &buffer.filled()[before..];
        if let Some(preface) = &mut this.preface
            && let Some(largest_head) = preface.read(bytes)
        {
            this.load.terms.agree(largest_head);
            this.preface = None;
        }
        while let Some(frame) = this.frames.next(&mut bytes) {
            if frame.asks_for_calm() {
                this.load.calm();
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for UpstreamHttp2Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
