//! What a body is read from: a connection of its own, or a stream on a shared one.

use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::HeaderMap;
use http_body::SizeHint;

use crate::clock::{Clock, Millis};
use crate::upstream::backend::ActiveRequest;
use crate::upstream::breaker::CallTicket;
use crate::upstream::error::{Error, Stage};
use crate::upstream::http1::{BodyChunk, BodyFraming, RequestWriter};
use crate::upstream::http2::StreamReader;
use crate::upstream::pool;
use crate::upstream::wire::UpstreamConnection;

/// Where a body comes from.
#[derive(Debug)]
pub(super) enum StreamSource {
    /// HTTP/2.
    Stream(Http2Source),
    /// HTTP/1.
    Wire(Http1Source),
}

/// A body that is read from a connection of its own.
#[derive(Debug)]
pub(super) struct Http1Source {
    pub(super) wire: Box<UpstreamConnection>,
    pub(super) reading: BodyFraming,
    /// What is left to send of the request, which the answer overtook.
    pub(super) sending: Option<Box<RequestWriter>>,
    pub(super) reusable: bool,
    pub(super) lease: ActiveRequest,
    pub(super) read_timeout: Duration,
    pub(super) send_timeout: Duration,
}

/// A body that is read from a stream.
#[derive(Debug)]
pub(super) struct Http2Source {
    pub(super) receiving: Box<StreamReader>,
    pub(super) lease: ActiveRequest,
    pub(super) read_timeout: Duration,
    pub(super) send_timeout: Duration,
}

impl StreamSource {
    /// Prepares for what is known to come.
    pub(super) fn prepare(&mut self) {
        if let Self::Wire(wired) = self
            && let Some(length) = wired.reading.size_hint().exact()
        {
            wired.wire.expect(length);
        }
    }

    /// The next piece, as soon as there is one.
    pub(super) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<BodyChunk, Error>> {
        match self {
            Self::Stream(streamed) => {
                let (read, send) = (streamed.read_timeout, streamed.send_timeout);
                streamed.receiving.poll_next(read, send, context)
            }
            Self::Wire(wired) => wired.poll_next(context),
        }
    }

    /// The end, if nothing but it comes next and it is there already.
    pub(super) fn end(&mut self) -> Option<Option<HeaderMap>> {
        match self {
            Self::Stream(streamed) => streamed.receiving.is_over().then_some(None),
            Self::Wire(wired) => wired.reading.end(&mut wired.wire.read),
        }
    }

    /// All of it was read: what it came over may carry another.
    pub(super) fn keep(self, clock: &Clock) {
        let Self::Wire(mut wired) = self else { return };
        // An answer that came before its request was all sent leaves a connection nobody can use.
        let sent = wired
            .sending
            .take()
            .is_none_or(|sending| sending.has_arrived());
        if sent && wired.reusable {
            pool::put(&wired.lease, wired.wire, clock.now(), clock);
        }
    }

    /// Its answer was booked as one and has come to nothing.
    pub(super) fn blame(&self, ticket: CallTicket, now: Millis) {
        if let Some(breaker) = &self.lease().breaker {
            breaker.regret(ticket, now);
        }
    }

    /// Whether its backend has said at the end that it failed.
    pub(super) fn has_failed(&self) -> bool {
        match self {
            Self::Stream(streamed) => streamed.receiving.has_failed(),
            Self::Wire(_) => false,
        }
    }

    fn lease(&self) -> &ActiveRequest {
        match self {
            Self::Stream(streamed) => &streamed.lease,
            Self::Wire(wired) => &wired.lease,
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            Self::Stream(streamed) => streamed.receiving.size_hint(),
            Self::Wire(wired) => wired.reading.size_hint(),
        }
    }
}

impl Http1Source {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<BodyChunk, Error>> {
        loop {
            match self.reading.next(&mut self.wire.read) {
                Ok(None) => {}
                Ok(Some(piece)) => return Poll::Ready(Ok(piece)),
                Err(malformed) => {
                    let error = io::Error::new(io::ErrorKind::InvalidData, malformed);
                    return Poll::Ready(Err(Error::Truncated(error)));
                }
            }
            if let Some(sending) = &mut self.sending
                && let Poll::Ready(sent) = sending.poll(&mut self.wire, self.send_timeout, context)
            {
                sent.map_err(after_head)?;
            }
            match self.wire.poll_read(context).map_err(Error::Truncated)? {
                Poll::Ready(0) if self.reading.ends_with_connection() => {
                    return Poll::Ready(Ok(BodyChunk::End(None)));
                }
                Poll::Ready(0) => {
                    let end = io::ErrorKind::UnexpectedEof;
                    return Poll::Ready(Err(Error::Truncated(end.into())));
                }
                Poll::Ready(_) => self.wire.patience.clear(),
                Poll::Pending => {
                    self.wire.patience.start(self.read_timeout);
                    ready!(self.wire.patience.poll_passed(context));
                    return Poll::Ready(Err(Error::Timeout(Stage::Body)));
                }
            }
        }
    }
}

/// What breaks a connection whose answer has begun leaves that answer short.
fn after_head(error: Error) -> Error {
    match error {
        Error::Broken(error) => Error::Truncated(error),
        error => error,
    }
}
