//! The sockets a client may come over.
//!
//! An enum rather than a type parameter: hyper's connection is compiled once, and a branch costs nothing
//! beside a system call.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::Protocol;
use crate::config::plan::Http2;

/// A client's connection as the system knows it.
#[derive(Debug)]
pub enum Socket {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a unix socket.
    Unix(UnixStream),
}

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

macro_rules! each {
    ($socket:expr, $stream:ident => $do:expr) => {
        match $socket {
            Socket::Tcp($stream) => $do,
            Socket::Unix($stream) => $do,
        }
    };
}

impl Socket {
    /// Ready once it is known what the client speaks, or nothing will come any more.
    // The event loop calls a new socket readable before anything has come, so it is tried here: one look
    // for each connection, and whoever stays silent costs no buffers.
    pub(super) fn poll_protocol(&self, http2: Http2, context: &mut Context<'_>) -> Poll<Protocol> {
        loop {
            let mut start = [0; PREFACE.len()];
            let mut start = ReadBuf::new(&mut start);
            let peeked = match self {
                Self::Tcp(stream) => ready!(stream.poll_peek(context, &mut start)),
                Self::Unix(stream) => ready!(poll_unix_peek(stream, context)),
            };
            let start = start.filled();
            let may_be = http2 == Http2::On && !start.is_empty() && PREFACE.starts_with(start);
            if peeked.is_err() || !may_be || self.is_hung_up() {
                return Poll::Ready(Protocol::Http1);
            }
            if start.len() == PREFACE.len() {
                return Poll::Ready(Protocol::Http2);
            }
            // More has to come, and what is there stays where it is: as if it were not.
            let _waits: io::Result<()> = each!(self, stream => stream
                .try_io(Interest::READABLE, || Err(io::ErrorKind::WouldBlock.into())));
        }
    }

    /// Whether the client has ended its side, even with bytes before that end still unread.
    // The event loop notes the hang-up when the kernel reports it; asking makes no system call.
    pub(super) fn is_hung_up(&self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let ready =
            each!(self, stream => pin!(stream.ready(Interest::READABLE)).poll(&mut context));
        matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for Socket {
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

/// Ready once there is something to read; what it is cannot be seen without taking it.
fn poll_unix_peek(stream: &UnixStream, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
    loop {
        ready!(stream.poll_read_ready(context))?;
        let mut byte = [MaybeUninit::uninit()];
        let peeked = stream.try_io(Interest::READABLE, || SockRef::from(stream).peek(&mut byte));
        if !matches!(&peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            return Poll::Ready(peeked);
        }
    }
}

/// What an HTTP/2 client says first, so that nobody takes it for HTTP/1.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
