//! Sockets: a stream and a listener, each over TCP or a unix socket.
//!
//! They are enums rather than type parameters: what is built on them is compiled once, and a branch costs nothing beside a
//! system call.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use socket2::{Domain, SockRef, Socket};
use tokio::io::{Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// A connected socket of an event loop.
#[derive(Debug)]
pub enum Stream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a unix socket.
    Unix(UnixStream),
    /// A pipe whose other end is held by a test.
    #[cfg(test)]
    Test(tokio::io::DuplexStream),
}

macro_rules! each {
    ($stream:expr, $socket:ident => $do:expr) => {
        match $stream {
            Stream::Tcp($socket) => $do,
            Stream::Unix($socket) => $do,
            #[cfg(test)]
            Stream::Test($socket) => $do,
        }
    };
    ($stream:expr, $socket:ident => $do:expr, test: $test:expr) => {
        match $stream {
            Stream::Tcp($socket) => $do,
            Stream::Unix($socket) => $do,
            #[cfg(test)]
            Stream::Test(_) => $test,
        }
    };
}

impl Stream {
    /// Registers a connected socket with the event loop that calls this; a TCP socket is known by its `remote` address.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(socket: Socket, remote: Option<SocketAddr>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(match remote {
            Some(_) => Self::Tcp(TcpStream::from_std(socket.into())?),
            None => Self::Unix(UnixStream::from_std(socket.into())?),
        })
    }

    /// Takes the socket away from its event loop.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn into_socket(self) -> io::Result<Socket> {
        each!(self, socket => socket.into_std().map(Into::into), test: Err(io::ErrorKind::Unsupported.into()))
    }

    /// Ready when the event loop believes that there is something to read, or that the other end is closed.
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, socket => socket.poll_read_ready(context), test: Poll::Ready(Ok(())))
    }

    /// Ready with true when there is something to read, with false when the other end is closed.
    // The event loop calls a new socket readable before anything has come, so the socket itself is asked: one system call
    // for each connection, and a silent one costs no buffers.
    pub fn poll_waiting(&self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            ready!(self.poll_readable(context))?;
            let mut byte = [MaybeUninit::uninit()];
            let peeked = each!(
                self,
                socket => socket.try_io(Interest::READABLE, || SockRef::from(socket).peek(&mut byte)),
                test: Ok(1)
            );
            match peeked {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                peeked => return Poll::Ready(peeked.map(|count| count > 0)),
            }
        }
    }

    /// The next byte, which stays where it is; `None` over a unix socket, where tokio cannot peek.
    pub fn first_byte(&self) -> Option<u8> {
        let Self::Tcp(socket) = self else { return None };
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        match socket.poll_peek(&mut Context::from_waker(Waker::noop()), &mut buffer) {
            Poll::Ready(Ok(_)) => buffer.filled().first().copied(),
            _ => None,
        }
    }

    /// Reads what has come, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` when there is nothing to read.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        each!(self, socket => socket.try_read(buffer), test: Err(io::ErrorKind::WouldBlock.into()))
    }

    /// Whether the other end has closed its side, even when bytes before that end are unread.
    // The event loop records the hang-up when the kernel reports it; asking makes no system call.
    pub fn is_hung_up(&self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let ready = each!(
            self,
            socket => pin!(socket.ready(Interest::READABLE)).poll(&mut context),
            test: Poll::Pending
        );
        matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
    }
}

/// Implements reading and writing for an enum of sockets; `$each` evaluates an expression for whichever variant it is.
macro_rules! delegate_io {
    ($socket:ty, $each:ident) => {
        impl tokio::io::AsyncRead for $socket {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                $each!(self.get_mut(), socket => Pin::new(socket).poll_read(context, buffer))
            }
        }

        impl tokio::io::AsyncWrite for $socket {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                $each!(self.get_mut(), socket => Pin::new(socket).poll_write(context, bytes))
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                $each!(self.get_mut(), socket => Pin::new(socket).poll_write_vectored(context, slices))
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                $each!(self.get_mut(), socket => Pin::new(socket).poll_flush(context))
            }

            fn poll_shutdown(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                $each!(self.get_mut(), socket => Pin::new(socket).poll_shutdown(context))
            }
        }
    };
}

pub(crate) use delegate_io;

delegate_io!(Stream, each);

/// A listening socket of an event loop.
#[derive(Debug)]
pub enum Listener {
    /// Over TCP.
    Tcp(TcpListener),
    /// Over a unix socket.
    Unix(UnixListener),
}

impl Listener {
    /// Registers a listening socket with the event loop that calls this.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(socket: Socket) -> io::Result<Self> {
        Ok(match socket.domain()? {
            Domain::UNIX => Self::Unix(UnixListener::from_std(socket.into())?),
            _ => Self::Tcp(TcpListener::from_std(socket.into())?),
        })
    }

    /// Ready with the next connection and, over TCP, the client's address.
    pub fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(Stream, Option<SocketAddr>)>> {
        Poll::Ready(match self {
            Self::Tcp(listener) => ready!(listener.poll_accept(context))
                .map(|(stream, remote)| (Stream::Tcp(stream), Some(remote))),
            Self::Unix(listener) => ready!(listener.poll_accept(context))
                .map(|(stream, _)| (Stream::Unix(stream), None)),
        })
    }

    /// Accepts a connection that waits in the kernel, whether the event loop has heard of it or not.
    ///
    /// # Errors
    /// `WouldBlock` when none waits.
    pub fn accept_now(&self) -> io::Result<(Stream, Option<SocketAddr>)> {
        let listener = match self {
            Self::Tcp(listener) => SockRef::from(listener),
            Self::Unix(listener) => SockRef::from(listener),
        };
        let (socket, remote) = listener.accept()?;
        let remote = remote.as_socket();
        Ok((Stream::new(socket, remote)?, remote))
    }
}
