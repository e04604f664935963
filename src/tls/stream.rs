//! A stream inside TLS.
//!
//! What is written counts as written when the socket has taken it: whoever limits how long a write may take, and whoever
//! closes when all is written, need not know that there is something in between. The price is that a write that had to
//! wait has to be repeated with the same bytes, which all do that write here.

use std::io::{self, BufRead as _, IoSlice, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use rustls::Connection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::bare::Bare;

/// A stream inside TLS.
#[derive(Debug)]
pub struct Stream<IO> {
    io: IO,
    tls: Connection,
    /// Bytes that are decrypted and not read yet.
    plain: usize,
    /// Bytes that are encrypted, and not told yet that they are written.
    taken: usize,
    ended: bool,
    ending: Ending,
}

/// What it means that the other side goes without saying so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Nothing: a request has a length, and what is missing of it is missed anyway.
    Taken,
    /// That somebody may have cut off the end of an answer that has no length.
    Told,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Stream<IO> {
    pub(super) fn new(io: IO, tls: impl Into<Connection>, ending: Ending) -> Self {
        Self {
            io,
            tls: tls.into(),
            plain: 0,
            taken: 0,
            ended: false,
            ending,
        }
    }

    /// The connection as rustls knows it.
    pub(super) fn tls(&self) -> &Connection {
        &self.tls
    }

    /// Ready when both sides have agreed. Of what is to be said, some may still be on its way: the other side may
    /// have begun to write by now, and not read before that is taken.
    pub(super) fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Poll::Ready(Err(error)) = self.poll_drain(context) {
                return Poll::Ready(Err(error));
            }
            if !self.tls.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            if ready!(self.poll_fill(context))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Says goodbye, as far as the socket takes it without waiting.
    pub fn farewell(&mut self) {
        self.tls.send_close_notify();
        // Nobody waits for whether it arrives.
        let _tried = self.poll_drain(&mut Context::from_waker(Waker::noop()));
    }

    /// Reads from the socket and decrypts.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // What the other side waits for may still be here.
        if let Poll::Ready(Err(error)) = self.poll_drain(context) {
            return Poll::Ready(Err(error));
        }
        let mut socket = Nonblocking {
            io: &mut self.io,
            context,
        };
        let read = ready!(polled(self.tls.read_tls(&mut socket)))?;
        let state = match self.tls.process_new_packets() {
            Ok(state) => state,
            Err(error) => {
                // What is wrong is told to the other side, too; it may be gone.
                let _told = self.poll_drain(context);
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
            }
        };
        self.plain = state.plaintext_bytes_to_read();
        self.ended |= state.peer_has_closed();
        if state.tls_bytes_to_write() > 0
            && let Poll::Ready(Err(error)) = self.poll_drain(context)
        {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(read))
    }

    /// Writes what is encrypted; ready when all of it has left.
    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.tls.wants_write() {
            let mut socket = Nonblocking {
                io: &mut self.io,
                context,
            };
            if ready!(polled(self.tls.write_tls(&mut socket)))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_encrypt(
        &mut self,
        context: &mut Context<'_>,
        encrypt: impl Fn(&mut dyn Write) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        if self.taken == 0 {
            ready!(self.poll_drain(context))?;
            self.taken = encrypt(&mut self.tls.writer())?;
        }
        ready!(self.poll_drain(context))?;
        Poll::Ready(Ok(std::mem::take(&mut self.taken)))
    }
}

impl<IO: Bare> Bare for Stream<IO> {
    fn poll_waiting(&self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.plain > 0 {
            return Poll::Ready(Ok(true));
        }
        self.io.poll_waiting(context)
    }

    fn is_hung_up(&self) -> bool {
        self.io.is_hung_up()
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if this.plain > 0 {
                let mut reader = this.tls.reader();
                let chunk = reader.fill_buf()?;
                let count = chunk.len().min(buffer.remaining());
                buffer.put_slice(&chunk[..count]);
                reader.consume(count);
                this.plain = this.plain.saturating_sub(count);
                return Poll::Ready(Ok(()));
            }
            if this.ended {
                return Poll::Ready(Ok(()));
            }
            if ready!(this.poll_fill(context))? == 0 {
                this.ended = true;
                return Poll::Ready(match this.ending {
                    Ending::Taken => Ok(()),
                    Ending::Told => Err(io::ErrorKind::UnexpectedEof.into()),
                });
            }
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_encrypt(context, |writer| writer.write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_encrypt(context, |writer| writer.write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(context))?;
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tls.send_close_notify();
        ready!(self.poll_drain(context))?;
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

/// A socket as rustls wants it: with `WouldBlock` where there is something to wait for.
pub(super) struct Nonblocking<'a, 'c, IO> {
    pub(super) io: &'a mut IO,
    pub(super) context: &'a mut Context<'c>,
}

impl<IO: AsyncRead + Unpin> Read for Nonblocking<'_, '_, IO> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(bytes);
        match Pin::new(&mut *self.io).poll_read(self.context, &mut buffer) {
            Poll::Ready(read) => read.map(|()| buffer.filled().len()),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl<IO: AsyncWrite + Unpin> Write for Nonblocking<'_, '_, IO> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match Pin::new(&mut *self.io).poll_write_vectored(self.context, slices) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn polled(done: io::Result<usize>) -> Poll<io::Result<usize>> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        done => Poll::Ready(done),
    }
}
