//! A backend's socket as h2 sees it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::pool::Load;
use crate::upstream::wire::Socket;

/// A socket, and whom to tell that it was heard of.
#[derive(Debug)]
pub(super) struct Io {
    pub(super) socket: Socket,
    pub(super) load: Arc<Load>,
}

macro_rules! each {
    ($io:expr, $socket:ident => $do:expr) => {
        match &mut $io.socket {
            Socket::Tcp($socket) => $do,
            Socket::Unix($socket) => $do,
            #[cfg(test)]
            Socket::Test($socket) => $do,
        }
    };
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(each!(self, socket => Pin::new(socket).poll_read(context, buffer)))?;
        self.load.hear();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self, socket => Pin::new(socket).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, socket => Pin::new(socket).poll_write_vectored(context, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, socket => Pin::new(socket).poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, socket => Pin::new(socket).poll_shutdown(context))
    }
}
