//! The sockets a client may come over.
//!
//! An enum rather than a type parameter: hyper's connection is compiled once, and a branch costs nothing
//! beside a system call.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::tls::{self, Bare as _};

/// A client's connection as the system knows it.
#[derive(Debug)]
pub enum DownstreamSocket {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over TCP, inside TLS.
    TlsTcp(Box<tls::TlsStream<TcpStream>>),
    /// Over a unix socket, inside TLS.
    TlsUnix(Box<tls::TlsStream<UnixStream>>),
    /// Over a unix socket.
    Unix(UnixStream),
}

impl From<TcpStream> for DownstreamSocket {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl From<UnixStream> for DownstreamSocket {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

impl From<Box<tls::TlsStream<TcpStream>>> for DownstreamSocket {
    fn from(stream: Box<tls::TlsStream<TcpStream>>) -> Self {
        Self::TlsTcp(stream)
    }
}

impl From<Box<tls::TlsStream<UnixStream>>> for DownstreamSocket {
    fn from(stream: Box<tls::TlsStream<UnixStream>>) -> Self {
        Self::TlsUnix(stream)
    }
}

macro_rules! each {
    ($socket:expr, $stream:ident => $do:expr) => {
        match $socket {
            DownstreamSocket::Tcp($stream) => $do,
            DownstreamSocket::TlsTcp($stream) => $do,
            DownstreamSocket::TlsUnix($stream) => $do,
            DownstreamSocket::Unix($stream) => $do,
        }
    };
}

impl DownstreamSocket {
    /// Whether the client has ended its side, even with bytes before that end still unread.
    pub(super) fn is_hung_up(&self) -> bool {
        each!(self, stream => stream.is_hung_up())
    }

    /// Whether what comes over the wire is what the client says.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Self::Tcp(_) | Self::Unix(_))
    }

    /// Ready when there is something to read, or nothing will come any more; only for a plain one.
    pub(super) fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(context).map(|_| ()),
            Self::Unix(stream) => stream.poll_read_ready(context).map(|_| ()),
            Self::TlsTcp(_) | Self::TlsUnix(_) => Poll::Ready(()),
        }
    }

    /// Tells the client that nothing was cut off, where there is a way to.
    pub(super) fn farewell(&mut self) {
        match self {
            Self::TlsTcp(stream) => stream.farewell(),
            Self::TlsUnix(stream) => stream.farewell(),
            // Dropping the socket says all that a shutdown would.
            Self::Tcp(_) | Self::Unix(_) => {}
        }
    }
}

impl AsyncRead for DownstreamSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for DownstreamSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(context))
    }
}
