//! A client's socket as hyper sees it, and all of the connection that hyper leaves to us.
//!
//! Time limits for slow clients are enforced here: headers have a deadline in total, an idle connection and a blocked response
//! have theirs. Which of them applies is read from the connection's [`ConnectionState`](crate::message::ConnectionState), which
//! requests set. It implements tokio's traits and is handed to hyper through `TokioIo`, because counting what was read into
//! hyper's own uninitialised buffer would need unsafe code.
//!
//! Some of hyper's refusals are replaced here by responses that name the reason.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::ConnectionSettings;
use super::request_scan::RequestScanner;
use super::slow_client::{LingeringClose, SendLimit};
use crate::clock::Deadline;
use crate::message::{ClientConnection, ConnectionPhase};
use crate::telemetry::COUNTERS;
use crate::tls::Socket;

/// A socket with time limits.
#[derive(Debug)]
pub(super) struct Http1Io {
    pub(super) socket: Socket,
    // What was read from the socket before hyper was there to read it.
    ahead: Bytes,
    client: Arc<ClientConnection>,
    header_timeout: Duration,
    // For all headers of a request.
    reading: Deadline,
    writing: SendLimit,
    hang_up_timer: Deadline,
    // hyper waits for input, so it will see by itself that the client has gone.
    awaits_input: bool,
    scanner: RequestScanner,
    // What leaves before anything that hyper writes. Appended to: a client that pipelines and does not read has many
    // responses in here.
    interim: BytesMut,
    // What hyper writes is dropped: another response is sent in its place.
    is_replaced: bool,
    linger: Option<LingeringClose>,
}

impl Http1Io {
    /// A connection on which bytes have come; some of the time for the first headers may have passed.
    pub(super) fn new(
        socket: Socket,
        ahead: Bytes,
        client: Arc<ClientConnection>,
        settings: &ConnectionSettings,
        reading: Deadline,
    ) -> Self {
        client.state.prebuilt.open();
        Self {
            socket,
            ahead,
            scanner: RequestScanner::new(settings.max_head as usize, client.requests()),
            client,
            header_timeout: settings.header_timeout,
            reading,
            writing: SendLimit::default(),
            hang_up_timer: Deadline::default(),
            awaits_input: false,
            interim: BytesMut::new(),
            is_replaced: false,
            linger: None,
        }
    }

    /// The socket, what of its input has not been taken, and a timer.
    pub(super) fn into_parts(self) -> (Socket, Bytes, Deadline) {
        (self.socket, self.ahead, self.reading)
    }

    /// Nothing has come: ready when that has lasted too long, and the connection is over.
    fn poll_no_input(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.client.state.phase() {
            // The request's body has a limit of its own, and so has everything upstream. How long a
            // connection may be idle is measured around hyper.
            ConnectionPhase::Busy | ConnectionPhase::Idle => Poll::Pending,
            ConnectionPhase::Head => {
                self.reading.start(self.header_timeout);
                ready!(self.reading.poll_passed(context));
                if !self.refuse_slow_headers(context) {
                    return Poll::Ready(());
                }
                self.poll_linger(context)
            }
        }
    }

    fn refuse_slow_headers(&mut self, context: &mut Context<'_>) -> bool {
        let state = &self.client.state;
        // In the middle of an earlier response this one would be taken for a part of it, and a silent client
        // has requested nothing.
        if state.unsent.get() || state.received.get() == 0 {
            return false;
        }
        state.refuse(408);
        // All of it or nothing: the socket's buffer is empty, and nothing is awaited any more.
        let response = refusal(408).unwrap_or_default();
        if let Poll::Ready(Ok(sent)) = Pin::new(&mut self.socket).poll_write(context, response) {
            state.sent.add(sent);
        }
        true
    }

    /// Writes interim responses that wait. They may only stand between two responses, so they are taken
    /// only when all of the earlier one has left.
    fn poll_interim(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = &self.client.state;
        if self.interim.is_empty() && state.has_interim.get() && !state.unsent.get() {
            let mut scanner = Vec::new();
            for interim in state.take_interim() {
                interim.encode(&mut scanner);
            }
            self.interim.extend_from_slice(&scanner);
        }
        while !self.interim.is_empty() {
            state.unsent.set(true);
            let written = Pin::new(&mut self.socket).poll_write(context, &self.interim);
            let sent = ready!(self.writing.poll_written(&self.client, written, context))?;
            self.interim.advance(sent);
            if self.interim.is_empty() {
                // Its memory too: the connection may be idle for long.
                self.interim = BytesMut::new();
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        LingeringClose::poll_close(&mut self.linger, &mut self.socket, &self.client, context)
    }

    /// While a request is under way hyper does not read the socket, or only until something waits to be read; but the request
    /// must end when its client leaves.
    fn poll_hung_up(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        // An error is found by the next read.
        let _readable = ready!(self.socket.poll_readable(context));
        if self.socket.is_hung_up() {
            return Poll::Ready(io::ErrorKind::ConnectionAborted.into());
        }
        // A body or a pipelined request waits, and hides what comes after it.
        loop {
            self.hang_up_timer.start(HANG_UP_INTERVAL);
            ready!(self.hang_up_timer.poll_passed(context));
            self.hang_up_timer.clear();
            if self.socket.is_hung_up() {
                return Poll::Ready(io::ErrorKind::ConnectionAborted.into());
            }
        }
    }

    /// hyper begins to write. With no request under way it is its own refusal of what was not a request.
    fn begin_write(&mut self, first: &[u8]) {
        let state = &self.client.state;
        if state.unsent.get() {
            return;
        }
        state.unsent.set(true);
        if state.phase() != ConnectionPhase::Busy {
            let hyper_status = status(first).unwrap_or(400);
            let status = self.scanner.status(hyper_status, self.client.requests());
            state.refuse(status);
            if let Some(answer) = (status != hyper_status).then(|| refusal(status)).flatten() {
                self.interim.extend_from_slice(answer);
                self.is_replaced = true;
            }
        }
    }

    /// Scans what has come, before hyper reads it. Between two requests it begins the next one; a malformed chunk is kept from
    /// hyper.
    fn scan(&mut self, buffer: &mut ReadBuf<'_>, before: usize) -> io::Result<()> {
        let come = &buffer.filled()[before..];
        if come.is_empty() {
            return Ok(());
        }
        if self.client.state.phase() == ConnectionPhase::Idle {
            self.client.state.set_phase(ConnectionPhase::Head);
            self.reading.clear();
        }
        let sound = self.scanner.follow(come, &self.client);
        if sound == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        buffer.set_filled(before + sound);
        Ok(())
    }

    /// Writes a prebuilt response in one piece; `None` if the next response is not prebuilt. What does not leave at once leaves
    /// before the connection is flushed, as if it came before the response.
    /// Called first of all: hyper writes as soon as it has a response, and only then is this one the last it has.
    fn write_completed(
        &mut self,
        empty: &[u8],
        context: &mut Context<'_>,
    ) -> Option<io::Result<usize>> {
        let completion = self.client.state.prebuilt.take()?;
        let free = match self.poll_interim(context) {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(error)) => return Some(Err(error)),
            Poll::Pending => false,
        };
        self.client.state.unsent.set(true);
        COMPLETED.with_borrow_mut(|answer| {
            answer.clear();
            if !completion.complete(empty, answer) {
                // An empty response in its place would look whole to the client.
                COUNTERS.count_prebuilt_mismatch();
                return Some(Err(io::ErrorKind::InvalidData.into()));
            }
            let mut sent = 0;
            if free {
                let written = Pin::new(&mut self.socket).poll_write(context, answer);
                match self.writing.poll_written(&self.client, written, context) {
                    Poll::Ready(Ok(bytes)) => sent = bytes,
                    Poll::Ready(Err(error)) => return Some(Err(error)),
                    Poll::Pending => {}
                }
            }
            if sent < answer.len() {
                self.interim.extend_from_slice(&answer[sent..]);
            }
            Some(Ok(empty.len()))
        })
    }

    fn has_input(&mut self, context: &mut Context<'_>) -> bool {
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        let read = Pin::new(&mut self.socket).poll_read(context, &mut buffer);
        matches!(read, Poll::Ready(Ok(()))) && !buffer.filled().is_empty()
    }
}

impl AsyncRead for Http1Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger.is_some() {
            return this.poll_linger(context).map(Ok);
        }
        if this.scanner.is_broken() {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        let before = buffer.filled().len();
        if !this.ahead.is_empty() {
            let length = this.ahead.len().min(buffer.remaining());
            buffer.put_slice(&this.ahead.split_to(length));
            return Poll::Ready(this.scan(buffer, before));
        }
        let Poll::Ready(read) = Pin::new(&mut this.socket).poll_read(context, buffer) else {
            this.awaits_input = true;
            // Nothing read is the end, as if the client had closed.
            return this.poll_no_input(context).map(Ok);
        };
        this.awaits_input = false;
        let received = buffer.filled().len() - before;
        this.client.state.received.add(received);
        Poll::Ready(read.and_then(|()| this.scan(buffer, before)))
    }
}

impl AsyncWrite for Http1Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if let Some(written) = this.write_completed(bytes, context) {
            return Poll::Ready(written);
        }
        ready!(this.poll_interim(context))?;
        this.begin_write(bytes);
        if this.is_replaced {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut this.socket).poll_write(context, bytes);
        this.writing.poll_written(&this.client, written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let first = slices.first().map_or(&[][..], |slice| slice);
        if let Some(written) = this.write_completed(first, context) {
            return Poll::Ready(written);
        }
        ready!(this.poll_interim(context))?;
        this.begin_write(first);
        if this.is_replaced {
            return Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()));
        }
        let written = Pin::new(&mut this.socket).poll_write_vectored(context, slices);
        this.writing.poll_written(&this.client, written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    // hyper comes here at the end of every poll in which its own buffer is empty, also when the request
    // only waits: that is what makes interim responses leave and the watch tick.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.interim.is_empty() {
            this.client.state.unsent.set(false);
        }
        ready!(this.poll_interim(context))?;
        if this.linger.is_some() {
            return Poll::Ready(Ok(()));
        }
        let state = &this.client.state;
        if state.flushed() {
            this.hang_up_timer.clear();
        } else if state.phase() == ConnectionPhase::Busy
            && !this.awaits_input
            && let Poll::Ready(gone) = this.poll_hung_up(context)
        {
            return Poll::Ready(Err(gone));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let state = &this.client.state;
        // hyper is taken off the socket; the connection goes on.
        if state.parking.get() {
            return Poll::Ready(Ok(()));
        }
        // Unread input would make the close a reset.
        if this.linger.is_some()
            || state.lingers.get()
            || state.refused().is_some()
            || this.has_input(context)
        {
            return this.poll_linger(context).map(Ok);
        }
        this.socket.close_notify();
        Poll::Ready(Ok(()))
    }
}

thread_local! {
    // The buffer that prebuilt responses are completed in, one after the other.
    static COMPLETED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// How often a connection that is not read is checked for a hang-up.
const HANG_UP_INTERVAL: Duration = Duration::from_millis(250);

/// The status in a status line.
pub(super) fn status(head: &[u8]) -> Option<u16> {
    std::str::from_utf8(head.get(9..12)?).ok()?.parse().ok()
}

/// The response instead of hyper's.
pub(super) fn refusal(status: u16) -> Option<&'static [u8]> {
    macro_rules! empty_response {
        ($status:literal) => {
            concat!(
                "HTTP/1.1 ",
                $status,
                "\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
        };
    }
    let response = match status {
        408 => empty_response!("408 Request Timeout"),
        413 => empty_response!("413 Content Too Large"),
        414 => empty_response!("414 URI Too Long"),
        505 => empty_response!("505 HTTP Version Not Supported"),
        _ => return None,
    };
    Some(response.as_bytes())
}
