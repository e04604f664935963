//! The body of a response that is still arriving.
//!
//! It owns the connection it is read from. At its end the connection is kept for the next request; dropped before, the
//! connection is closed at once, because it cannot carry another response.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::backend::ActiveRequest;
use super::breaker::{Breaker, CallOutcome, CallTicket};
use super::connection::UpstreamConnection;
use super::error::{Error, Stage};
use super::http1::request::RequestWriter;
use super::http1::{BodyChunk, BodyFraming};
use super::http2::StreamReader;
use super::pool;
use crate::clock::{Clock, Millis};
use crate::config::plan::ProxySettings;

/// Receives a copy of a body that is passed on.
pub trait BodyObserver: std::fmt::Debug + Send {
    /// The next piece; false if no more is wanted.
    fn piece(&mut self, data: &[u8]) -> bool;
    /// The body is complete. Not called for one that is cut short.
    fn complete(self: Box<Self>);
}

/// Tells how long a response took and why it was cut short, after its body has been passed on.
#[derive(Debug, Clone)]
pub enum ResponseTimer {
    /// It is over and took so long.
    Known(Duration),
    /// It goes on.
    Running(Arc<ResponseProgress>),
}

/// The progress of a response that is passed on.
#[derive(Debug)]
pub struct ResponseProgress {
    /// The time it took in milliseconds, once it is over.
    millis: AtomicU64,
    failure: OnceLock<BodyError>,
}

/// Why a body was cut short.
#[derive(Debug)]
pub struct BodyError {
    /// The message for the log, in nginx's words.
    pub message: Box<str>,
    /// Whether the client caused it.
    pub is_clients: bool,
}

impl ResponseTimer {
    /// Why the body was cut short, if it was.
    #[must_use]
    pub fn failure(&self) -> Option<&BodyError> {
        match self {
            Self::Known(_) => None,
            Self::Running(progress) => progress.failure.get(),
        }
    }

    /// The time from the beginning of the attempt to the last byte; `None` while the response goes on.
    #[must_use]
    pub fn finished_after(&self) -> Option<Duration> {
        match self {
            Self::Known(taken) => Some(*taken),
            Self::Running(progress) => match progress.millis.load(Ordering::Relaxed) {
                RUNNING => None,
                millis => Some(Duration::from_millis(millis)),
            },
        }
    }
}

impl Default for ResponseProgress {
    fn default() -> Self {
        Self {
            millis: AtomicU64::new(RUNNING),
            failure: OnceLock::new(),
        }
    }
}

impl ResponseProgress {
    pub(super) fn stop(&self, taken: Duration) {
        let taken = u64::try_from(taken.as_millis()).unwrap_or(RUNNING);
        self.millis.store(taken, Ordering::Relaxed);
    }

    fn fail(&self, error: &Error) {
        self.failure.get_or_init(|| BodyError {
            message: error.to_string().into(),
            is_clients: error.client_fault().is_some(),
        });
    }
}

/// Stands for a time that is not known yet.
const RUNNING: u64 = u64::MAX;

/// What a body is read from.
#[derive(Debug)]
pub(super) struct StreamSource {
    pub(super) connection: SourceConnection,
    pub(super) active: ActiveRequest,
    pub(super) read_timeout: Duration,
    pub(super) send_timeout: Duration,
}

#[derive(Debug)]
pub(super) enum SourceConnection {
    Http1 {
        connection: Box<UpstreamConnection>,
        framing: BodyFraming,
        /// The rest of the request, where the response came before it was sent.
        writer: Option<Box<RequestWriter>>,
        reusable: bool,
    },
    Http2(Box<StreamReader>),
}

impl StreamSource {
    pub(super) fn new(
        connection: SourceConnection,
        active: ActiveRequest,
        settings: &ProxySettings,
    ) -> Self {
        Self {
            connection,
            active,
            read_timeout: settings.proxy_read_timeout,
            send_timeout: settings.proxy_send_timeout,
        }
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<BodyChunk, Error>> {
        let (connection, framing, writer) = match &mut self.connection {
            SourceConnection::Http1 {
                connection,
                framing,
                writer,
                ..
            } => (connection, framing, writer),
            SourceConnection::Http2(reader) => {
                return reader.poll_next(self.read_timeout, self.send_timeout, context);
            }
        };
        loop {
            match framing.next(&mut connection.read) {
                Ok(None) => {}
                Ok(Some(chunk)) => return Poll::Ready(Ok(chunk)),
                Err(malformed) => {
                    let error = io::Error::new(io::ErrorKind::InvalidData, malformed);
                    return Poll::Ready(Err(Error::Truncated(error)));
                }
            }
            if let Some(writer) = writer
                && let Poll::Ready(sent) = writer.poll(connection, self.send_timeout, context)
            {
                // A connection that breaks after the headers cuts the response short.
                sent.map_err(|error| match error {
                    Error::Broken(error) => Error::Truncated(error),
                    error => error,
                })?;
            }
            match connection.poll_read(context).map_err(Error::Truncated)? {
                Poll::Ready(0) if framing.ends_with_connection() => {
                    return Poll::Ready(Ok(BodyChunk::End(None)));
                }
                Poll::Ready(0) => {
                    let end = io::ErrorKind::UnexpectedEof;
                    return Poll::Ready(Err(Error::Truncated(end.into())));
                }
                Poll::Ready(_) => connection.read_timeout.clear(),
                Poll::Pending => {
                    connection.read_timeout.start(self.read_timeout);
                    ready!(connection.read_timeout.poll_passed(context));
                    return Poll::Ready(Err(Error::Timeout(Stage::Body)));
                }
            }
        }
    }

    /// The end, if it comes next and has been read already.
    fn end(&mut self) -> Option<Option<HeaderMap>> {
        match &mut self.connection {
            SourceConnection::Http1 {
                connection,
                framing,
                ..
            } => framing.end(&mut connection.read),
            SourceConnection::Http2(reader) => reader.is_over().then_some(None),
        }
    }

    /// Keeps the connection for another request, after all of the body was read.
    fn keep(self, clock: &Clock) {
        // One whose request was not sent to the end cannot be used again.
        if let SourceConnection::Http1 {
            connection,
            writer,
            reusable: true,
            ..
        } = self.connection
            && writer.is_none_or(|writer| writer.has_arrived())
        {
            pool::put(&self.active, connection, clock.now(), clock);
        }
    }

    /// Whether the backend's trailers say that it failed.
    fn has_failed(&self) -> bool {
        matches!(&self.connection, SourceConnection::Http2(reader) if reader.failed)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.connection {
            SourceConnection::Http1 { framing, .. } => framing.size_hint(),
            SourceConnection::Http2(reader) => reader.size_hint(),
        }
    }
}

/// The rest of a response.
#[derive(Debug)]
pub(super) struct StreamingBody {
    // `None` once the response is over.
    source: Option<StreamSource>,
    // Trailers that were read together with the last data.
    trailers: Option<HeaderMap>,
    complete: bool,
    started: Millis,
    taken: Option<Duration>,
    progress: Option<Arc<ResponseProgress>>,
    pub(super) observer: Option<Box<dyn BodyObserver>>,
    // What the backend's breaker admitted the request as.
    ticket: Option<CallTicket>,
    /// The location's breaker, and what that admitted the request as.
    pub(super) location_breaker: Option<(Arc<Breaker>, CallTicket)>,
    clock: Clock,
}

impl StreamingBody {
    /// The body of a response to an attempt that began at `started`.
    pub(super) fn new(
        mut source: StreamSource,
        ticket: Option<CallTicket>,
        started: Millis,
        clock: &Clock,
    ) -> Self {
        if let SourceConnection::Http1 {
            connection,
            framing,
            ..
        } = &mut source.connection
            && let Some(length) = framing.size_hint().exact()
        {
            connection.expect(length);
        }
        let mut body = Self {
            source: Some(source),
            trailers: None,
            complete: false,
            started,
            taken: None,
            progress: None,
            observer: None,
            ticket,
            location_breaker: None,
            clock: clock.clone(),
        };
        body.end_if_over();
        body
    }

    pub(super) fn timer(&mut self) -> ResponseTimer {
        match self.taken {
            Some(taken) => ResponseTimer::Known(taken),
            None => ResponseTimer::Running(Arc::clone(self.progress.get_or_insert_default())),
        }
    }

    /// Tells the breakers that what was reported as a response has failed.
    fn revoke(&self, source: &StreamSource) {
        let now = self.clock.now();
        if let (Some(breaker), Some(ticket)) = (&source.active.breaker, self.ticket) {
            breaker.revoke(ticket, now);
        }
        if let Some((breaker, ticket)) = &self.location_breaker {
            breaker.revoke(*ticket, now);
        }
    }

    /// Ends the body if its end was read already.
    fn end_if_over(&mut self) {
        if let Some(source) = &mut self.source
            && let Some(trailers) = source.end()
        {
            self.finish();
            self.complete = trailers.is_none();
            self.trailers = trailers;
        }
    }

    /// All of it was read.
    fn finish(&mut self) {
        self.stop();
        if let Some(observer) = self.observer.take() {
            observer.complete();
        }
        if let Some(source) = self.source.take() {
            if source.has_failed() {
                self.revoke(&source);
            }
            source.keep(&self.clock);
        }
    }

    /// It is cut short.
    fn fail(&mut self, error: Error) -> Error {
        self.stop();
        // It need not hold a copy that will never be complete until it is dropped.
        self.observer = None;
        error.count();
        if let Some(source) = self.source.take() {
            if CallOutcome::of(&error) == CallOutcome::Failure {
                self.revoke(&source);
            }
            if let Some(progress) = &self.progress {
                progress.fail(&error);
            }
        }
        error
    }

    fn stop(&mut self) {
        if self.taken.is_none() {
            let taken = self.clock.now().since(self.started);
            self.taken = Some(taken);
            if let Some(progress) = &self.progress {
                progress.stop(taken);
            }
        }
    }
}

impl Body for StreamingBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        let Some(source) = &mut this.source else {
            let trailers = this.trailers.take();
            this.complete |= trailers.is_some();
            return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
        };
        Poll::Ready(match ready!(source.poll_next(context)) {
            Ok(BodyChunk::Data(data)) => {
                if let Some(observer) = &mut this.observer
                    && !observer.piece(&data)
                {
                    this.observer = None;
                }
                this.end_if_over();
                Some(Ok(Frame::data(data)))
            }
            Ok(BodyChunk::End(trailers)) => {
                this.finish();
                this.complete = true;
                trailers.map(|trailers| Ok(Frame::trailers(trailers)))
            }
            Err(error) => Some(Err(this.fail(error))),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.complete
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Some(source) => source.size_hint(),
            None if self.complete => SizeHint::with_exact(0),
            None => SizeHint::default(),
        }
    }
}

impl Drop for StreamingBody {
    fn drop(&mut self) {
        self.stop();
    }
}
