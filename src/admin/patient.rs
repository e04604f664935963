//! A connection that is given up when its other end does not send what it began, or does not take what it asked for.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use super::connections::AdminConnection;

/// A socket whose other end may be slow, and not dead.
#[derive(Debug)]
pub(super) struct TimeoutIo {
    stream: TcpStream,
    connection: Arc<AdminConnection>,
    /// Until when something has to leave; set while nothing does.
    until: Pin<Box<Sleep>>,
    waiting: bool,
    /// Until when the head has to be complete; set from its first byte on, for the first head from the beginning.
    head: Pin<Box<Sleep>>,
    in_head: bool,
}

impl TimeoutIo {
    pub(super) fn new(stream: TcpStream, connection: Arc<AdminConnection>) -> Self {
        Self {
            stream,
            connection,
            until: Box::pin(tokio::time::sleep(PATIENCE)),
            waiting: false,
            head: Box::pin(tokio::time::sleep(HEAD)),
            in_head: true,
        }
    }

    fn within<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = false;
            self.connection.advance();
            return written;
        }
        if !std::mem::replace(&mut self.waiting, true) {
            self.until.as_mut().reset(Instant::now() + PATIENCE);
            self.connection.stall();
        }
        ready!(self.until.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for TimeoutIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if !self.connection.is_idle() {
            // What is read is a body, or comes too early.
            self.in_head = false;
            return read;
        }
        if read.is_ready() && !std::mem::replace(&mut self.in_head, true) {
            self.head.as_mut().reset(Instant::now() + HEAD);
        }
        if read.is_pending() && self.in_head {
            ready!(self.head.as_mut().poll(context));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for TimeoutIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.within(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() && self.connection.flushed() {
            self.in_head = false;
        }
        self.within(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// How long nothing may leave.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(5);
