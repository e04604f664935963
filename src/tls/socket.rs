//! The socket of a connection, towards a client or a backend: plain or inside TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead as _, ReadBuf};

use super::stream::TlsStream;
use crate::net::{Stream, delegate_io};

/// A socket, plain or inside TLS.
#[derive(Debug)]
pub enum Socket {
    /// What is read is what the other end wrote.
    Plain(Stream),
    /// Encrypted. Boxed: a plain socket has no room for it.
    Tls(Box<TlsStream>),
}

macro_rules! each {
    ($socket:expr, $stream:ident => $do:expr) => {
        match $socket {
            Socket::Plain($stream) => $do,
            Socket::Tls($stream) => $do,
        }
    };
}

impl Socket {
    /// Whether it is inside TLS.
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Ready when a read would probably find something, or that the other end is closed.
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => stream.poll_readable(context))
    }

    /// Whether the other end has closed its side, even when bytes before that end are unread.
    pub fn is_hung_up(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_hung_up(),
            Self::Tls(stream) => stream.io.is_hung_up(),
        }
    }

    /// Whether there is nothing to read: no byte, no end. TLS records without data are processed and do not count.
    // Of a plain socket this costs a system call only where the event loop has seen something.
    pub fn is_quiet(&mut self) -> bool {
        let mut stray = [0];
        match self {
            Self::Plain(stream) => {
                let tried = stream.try_read(&mut stray);
                matches!(tried, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
            }
            Self::Tls(stream) => {
                let mut context = Context::from_waker(Waker::noop());
                let mut buffer = ReadBuf::new(&mut stray);
                Pin::new(&mut **stream)
                    .poll_read(&mut context, &mut buffer)
                    .is_pending()
            }
        }
    }

    /// Sends a close_notify alert, as far as the socket takes it without waiting.
    pub fn close_notify(&mut self) {
        // Dropping a plain socket has the effect of a shutdown.
        if let Self::Tls(stream) = self {
            stream.close_notify();
        }
    }
}

delegate_io!(Socket, each);
