//! A stream inside TLS.
//!
//! rustls decrypts and encrypts in memory that is ours, so that a stream on which nothing passes holds none: what is
//! read goes into a buffer that all connections of an event loop share, unless a record has come in part.
//!
//! What is written counts as written when the socket has taken it: whoever limits how long a write may take, and whoever
//! closes when all is written, need not know that there is something in between. The price is that a write that had to
//! wait has to be repeated with the same bytes, which all do that write here.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::io::poll_read_buf;

use super::bare::Bare;
use super::session::{SessionStep, TlsSession};

/// A stream inside TLS.
#[derive(Debug)]
pub struct TlsStream<IO> {
    io: IO,
    session: TlsSession,
    /// What was read and is not a whole record yet.
    read: BytesMut,
    /// What is decrypted, and more than was asked for.
    plain: BytesMut,
    /// What is encrypted and has not left.
    sealed: BytesMut,
    /// Bytes that are encrypted, and not told yet that they are written.
    taken: usize,
    ended: bool,
    /// Whether the session has failed. It is not asked anything any more.
    failed: bool,
    ending: CloseMode,
}

/// What it means that the other side goes without saying so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseMode {
    /// Nothing: a request has a length, and what is missing of it is missed anyway.
    Taken,
    /// That somebody may have cut off the end of an answer that has no length.
    Told,
}

thread_local! {
    // Whoever reads takes it, and puts it back empty: nearly always all of it is used at once.
    static SPARE: Cell<BytesMut> = Cell::new(BytesMut::new());
    static SEALED: Cell<BytesMut> = Cell::new(BytesMut::new());
}

impl<IO: AsyncRead + AsyncWrite + Unpin> TlsStream<IO> {
    /// With what was read of the other side's first words.
    pub(super) fn new(io: IO, session: TlsSession, words: &[u8], ending: CloseMode) -> Self {
        let mut read = SPARE.take();
        read.extend_from_slice(words);
        Self {
            io,
            session,
            read,
            plain: BytesMut::new(),
            sealed: BytesMut::new(),
            taken: 0,
            ended: false,
            failed: false,
            ending,
        }
    }

    /// What was agreed on.
    pub(super) fn session(&self) -> &TlsSession {
        &self.session
    }

    /// Ready when both sides have agreed. Of what is to be said, some may still be on its way: the other side may
    /// have begun to write by now, and not read before that is taken.
    pub(super) fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut nothing = ReadBuf::new(&mut []);
        loop {
            self.process(&mut nothing, context)?;
            if !self.session.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            if ready!(self.poll_fill(context))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Says goodbye, as far as the socket takes it without waiting.
    pub fn farewell(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        // Nobody waits for whether it arrives.
        let _tried = self.poll_goodbye(&mut context);
    }

    fn poll_goodbye(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.failed && !self.session.is_handshaking() {
            self.session.goodbye(&mut self.read, &mut self.sealed)?;
        }
        self.poll_drain(context)
    }

    /// Reads from the socket.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.read.capacity() == 0 {
            self.read = SPARE.take();
        }
        let room = self.read.capacity() - self.read.len();
        if room < RECORD / 4 {
            self.read.reserve(RECORD);
        }
        let filled = poll_read_buf(Pin::new(&mut self.io), context, &mut self.read);
        if filled.is_pending() {
            self.rest();
        }
        filled
    }

    /// Gives memory back that holds nothing.
    fn rest(&mut self) {
        if self.read.is_empty() {
            SPARE.set(mem::take(&mut self.read));
        }
    }

    /// Decrypts what was read, into `buffer` as far as it goes.
    fn process(&mut self, buffer: &mut ReadBuf<'_>, context: &mut Context<'_>) -> io::Result<()> {
        let done = loop {
            let plain = &mut self.plain;
            let mut take = |bytes: &[u8]| {
                let count = match plain.is_empty() {
                    true => bytes.len().min(buffer.remaining()),
                    false => 0,
                };
                let (now, later) = bytes.split_at(count);
                buffer.put_slice(now);
                plain.extend_from_slice(later);
            };
            match self
                .session
                .step(&mut self.read, &mut self.sealed, &mut take)
            {
                Ok(SessionStep::Again | SessionStep::Said) => {}
                Ok(SessionStep::Ended) => self.ended = true,
                Ok(SessionStep::Waits) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if done.is_err() {
            // Nothing that follows can be trusted.
            self.ended = true;
            self.failed = true;
            // rustls may remember where in the buffer the messages are that it has not looked at yet: the buffer stays
            // as it is until the alert is out, and the session is not used after that.
            self.session.last_words(&mut self.read, &mut self.sealed);
            self.read.clear();
        }
        self.rest();
        // What is to be said is said as soon as it can be; what is wrong is told to the other side, too.
        match self.poll_drain(context) {
            Poll::Ready(Err(error)) if done.is_ok() => Err(error),
            _ => done,
        }
    }

    /// Writes what is encrypted; ready when all of it has left.
    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.sealed.is_empty() {
            let written = Pin::new(&mut self.io).poll_write(context, &self.sealed);
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sealed.advance(count),
            }
        }
        if self.sealed.capacity() > 0 {
            SEALED.set(mem::take(&mut self.sealed));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_encrypt(
        &mut self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.failed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if self.taken == 0 {
            ready!(self.poll_drain(context))?;
            self.sealed = SEALED.take();
            self.taken = self
                .session
                .encrypt(slices, &mut self.read, &mut self.sealed)?;
        }
        ready!(self.poll_drain(context))?;
        Poll::Ready(Ok(mem::take(&mut self.taken)))
    }
}

impl<IO: Bare> Bare for TlsStream<IO> {
    fn poll_waiting(&self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if !self.plain.is_empty() {
            return Poll::Ready(Ok(true));
        }
        if self.ended {
            return Poll::Ready(Ok(false));
        }
        self.io.poll_waiting(context)
    }

    fn is_hung_up(&self) -> bool {
        self.io.is_hung_up()
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.plain.is_empty() {
            let count = this.plain.len().min(buffer.remaining());
            buffer.put_slice(&this.plain[..count]);
            this.plain.advance(count);
            if this.plain.is_empty() {
                this.plain = BytesMut::new();
            }
            return Poll::Ready(Ok(()));
        }
        // What the other side waits for may still be here.
        if let Poll::Ready(Err(error)) = this.poll_drain(context) {
            return Poll::Ready(Err(error));
        }
        let before = buffer.filled().len();
        while !this.ended && buffer.filled().len() == before && buffer.remaining() > 0 {
            if ready!(this.poll_fill(context))? == 0 {
                this.ended = true;
                return Poll::Ready(match this.ending {
                    CloseMode::Taken => Ok(()),
                    CloseMode::Told => Err(io::ErrorKind::UnexpectedEof.into()),
                });
            }
            this.process(buffer, context)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_encrypt(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_encrypt(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(context))?;
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_goodbye(context))?;
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

/// Read at once: the longest record with all that is around it.
const RECORD: usize = 17 * 1024;
