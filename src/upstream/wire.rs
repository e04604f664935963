//! The socket to a backend, and the two things hyper's client does not do with one: a limit to how long a
//! write may wait, and patience with a backend that has answered and stopped listening.
//!
//! A backend may answer a large upload early and close its side. The next write fails then, and hyper would
//! drop the answer that is on its way for it. So a failed write is not reported: what follows is thrown away,
//! and whether there is an answer is for reading to find out.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::clock::Deadline;

/// A connected socket.
#[derive(Debug)]
pub(super) struct Wire {
    socket: Socket,
    state: Arc<State>,
    deadline: Deadline,
}

#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What those who use the connection and the socket under hyper tell each other.
#[derive(Debug, Default)]
pub(super) struct State {
    send_millis: AtomicU64,
    deaf: AtomicBool,
    stalled: AtomicBool,
}

impl Wire {
    pub(super) fn new(socket: Socket) -> (Self, Arc<State>) {
        let state = Arc::new(State::default());
        let wire = Self {
            socket,
            state: Arc::clone(&state),
            deadline: Deadline::default(),
        };
        (wire, state)
    }

    fn written(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
        offered: usize,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Pending => {
                self.deadline.start(self.state.send_timeout());
                std::task::ready!(self.deadline.poll_passed(context));
                self.state.stalled.store(true, Ordering::Relaxed);
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            Poll::Ready(Err(error)) if is_hangup(&error) => {
                self.state.deaf.store(true, Ordering::Relaxed);
                Poll::Ready(Ok(offered))
            }
            Poll::Ready(result) => {
                self.deadline.clear();
                Poll::Ready(result)
            }
        }
    }
}

impl State {
    /// Sets how long a write may wait from now on.
    pub(super) fn set_send_timeout(&self, timeout: Duration) {
        let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.send_millis.store(millis, Ordering::Relaxed);
    }

    /// Whether the backend no longer takes what is sent.
    pub(super) fn is_deaf(&self) -> bool {
        self.deaf.load(Ordering::Relaxed)
    }

    /// Whether a write has waited too long.
    pub(super) fn has_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    fn send_timeout(&self) -> Duration {
        Duration::from_millis(self.send_millis.load(Ordering::Relaxed))
    }
}

fn is_hangup(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_read(context, buffer),
            Socket::Unix(socket) => Pin::new(socket).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.state.is_deaf() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_write(context, bytes),
            Socket::Unix(socket) => Pin::new(socket).poll_write(context, bytes),
        };
        self.written(context, written, bytes.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let offered = pieces.iter().map(|piece| piece.len()).sum();
        if self.state.is_deaf() {
            return Poll::Ready(Ok(offered));
        }
        let written = match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_write_vectored(context, pieces),
            Socket::Unix(socket) => Pin::new(socket).poll_write_vectored(context, pieces),
        };
        self.written(context, written, offered)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_shutdown(context),
            Socket::Unix(socket) => Pin::new(socket).poll_shutdown(context),
        }
    }
}
