//! The body of an answer on its way to the client.
//!
//! Most answers have been read whole with their head. Such a body is a piece of what was read and nothing else: the
//! connection is kept for the next request before the client hears of this one.
//!
//! What a body is read from: a connection of its own, or a stream on a shared one.
//!
//! A connection to a backend that has agreed to speak something else than HTTP.
//!
//! It is the backend's end of a tunnel: bytes in, bytes out, beginning with those that came behind the 101. The backend
//! counts it as a request in progress for as long as it lasts, and nobody else will ever use it.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{HeaderMap, Response, StatusCode};
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::attempt::{AttemptResponse, ResponseSource};
use super::backend::ActiveRequest;
use super::body_stream::{BufferedBody, StreamingBody};
use super::breaker::Breaker;
use super::connection::UpstreamConnection;
use super::error::{Error, Stage};
use super::http1::{BodyChunk, BodyFraming};
use super::pool;
use crate::clock::{Clock, Millis};
use crate::config::plan::{ProxyPass, ProxyProtocolVersion};
use crate::message::{ClientConnection, RawHeaders};
use crate::spool::ResponseBuffer;
use crate::upstream::breaker::machine::CallTicket;
use crate::upstream::http1::request::RequestWriter;
use crate::upstream::http2::stream::StreamReader;

/// An answer's body.
#[derive(Debug)]
pub struct UpstreamBody(UpstreamBodyKind);

// Kept small: it is moved from hand to hand.
#[derive(Debug)]
enum UpstreamBodyKind {
    Buffered(Box<BufferedBody>),
    Stream(Box<StreamingBody>),
    /// None: what follows the head is not HTTP.
    Switched(Box<UpgradedConnection>),
    Whole {
        bytes: Bytes,
        lines: Option<RawHeaders>,
        taken: Duration,
    },
}

/// A body that was read with its head.
#[derive(Debug)]
pub struct CompleteBody {
    /// All of it.
    pub bytes: Bytes,
    /// The answer's fields, where they were written out instead of put in its head.
    pub lines: Option<RawHeaders>,
}

/// Somebody who wants a copy of an answer that goes to somebody else.
pub trait BodyObserver: std::fmt::Debug + Send {
    /// The next piece of its body; false if no more is wanted.
    fn piece(&mut self, data: &[u8]) -> bool;
    /// That was all of it. An answer that breaks off never comes to this.
    fn complete(self: Box<Self>);
}

/// Tells how long an answer took, and why it ended too early, after its [`UpstreamBody`] has been handed to somebody else.
#[derive(Debug, Clone)]
pub struct ResponseTimer(TimerState);

#[derive(Debug, Clone)]
enum TimerState {
    Known(Duration),
    Running(Arc<ResponseProgress>),
}

/// How a response that was passed on goes on.
#[derive(Debug)]
pub(super) struct ResponseProgress {
    /// How long it took in milliseconds, once it is known.
    millis: AtomicU64,
    /// Why it ended too early, for the log.
    failure: OnceLock<BodyError>,
}

/// Why a response's body ended too early.
#[derive(Debug)]
pub struct BodyError {
    /// In nginx's words.
    pub message: Box<str>,
    /// Whether it was the client's doing.
    pub is_clients: bool,
}

impl UpstreamBody {
    pub(super) fn begin(
        answer: AttemptResponse,
        lease: ActiveRequest,
        proxy_pass: &ProxyPass,
        clock: &Clock,
    ) -> Response<Self> {
        let AttemptResponse {
            mut head,
            carrier,
            started,
            came,
            ticket,
        } = answer;
        let (mut wire, sending, heard) = match carrier {
            ResponseSource::Stream(receiving) => {
                let source = StreamSource::Stream(Http2Source {
                    receiving,
                    lease,
                    read_timeout: proxy_pass.settings.proxy_read_timeout,
                    send_timeout: proxy_pass.settings.proxy_send_timeout,
                });
                let stream = StreamingBody::new(source, ticket, started, clock);
                return head.into_response(Self(UpstreamBodyKind::Stream(Box::new(stream))));
            }
            ResponseSource::Wire {
                wire,
                sending,
                heard,
            } => (wire, sending, heard),
        };
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            let switched = UpgradedConnection::new(wire, lease, started, clock);
            return head.into_response(Self(UpstreamBodyKind::Switched(Box::new(switched))));
        }
        let mut reading = std::mem::replace(&mut head.reading, BodyFraming::nothing());
        let shared = proxy_pass.proxy_protocol == ProxyProtocolVersion::Off;
        let reusable = head.reusable && heard && shared;
        if sending.is_none()
            && let Some(bytes) = reading.take_all(&mut wire.read)
        {
            if reusable {
                pool::put(&lease, wire, came, clock);
            }
            let taken = came.since(started);
            let lines = head.lines.take();
            return head.into_response(Self(UpstreamBodyKind::Whole {
                bytes,
                lines,
                taken,
            }));
        }
        debug_assert!(head.lines.is_none(), "only a whole answer is written out");
        let source = StreamSource::Wire(Http1Source {
            wire,
            reading,
            sending,
            reusable,
            lease,
            read_timeout: proxy_pass.settings.proxy_read_timeout,
            send_timeout: proxy_pass.settings.proxy_send_timeout,
        });
        let stream = StreamingBody::new(source, ticket, started, clock);
        head.into_response(Self(UpstreamBodyKind::Stream(Box::new(stream))))
    }

    /// All of it, if it was read with the head and nothing was taken yet.
    ///
    /// # Errors
    ///
    /// Itself, if more is to come.
    pub fn into_whole(self) -> Result<CompleteBody, Self> {
        match self.0 {
            UpstreamBodyKind::Whole { bytes, lines, .. } => Ok(CompleteBody { bytes, lines }),
            UpstreamBodyKind::Buffered(_)
            | UpstreamBodyKind::Stream(_)
            | UpstreamBodyKind::Switched(_) => Err(self),
        }
    }

    /// The connection itself, where the answer was to switch protocols; there is no body then.
    pub fn take_switched(&mut self) -> Option<Box<UpgradedConnection>> {
        if !matches!(self.0, UpstreamBodyKind::Switched(_)) {
            return None;
        }
        let nothing = UpstreamBodyKind::Whole {
            bytes: Bytes::new(),
            lines: None,
            taken: Duration::ZERO,
        };
        match std::mem::replace(&mut self.0, nothing) {
            UpstreamBodyKind::Switched(switched) => Some(switched),
            UpstreamBodyKind::Buffered(_)
            | UpstreamBodyKind::Stream(_)
            | UpstreamBodyKind::Whole { .. } => None,
        }
    }

    /// Reads it as fast as the backend sends it; what this client cannot take yet waits in the backlog.
    #[must_use]
    pub fn buffered(self, backlog: ResponseBuffer, client: &Arc<ClientConnection>) -> Self {
        Self(match self.0 {
            UpstreamBodyKind::Stream(stream) => {
                UpstreamBodyKind::Buffered(Box::new(BufferedBody::new(stream, backlog, client)))
            }
            other => other,
        })
    }

    /// Shows all of it to somebody else, too; nothing of one that was read with its head.
    pub fn tee(&mut self, tee: Box<dyn BodyObserver>) {
        if let UpstreamBodyKind::Stream(stream) = &mut self.0 {
            stream.tee(tee);
        }
    }

    /// Tells this breaker, too, which let it through, if it comes to nothing; one that was read with its head has come
    /// to something.
    pub fn judged_by(&mut self, breaker: &Arc<Breaker>, ticket: CallTicket) {
        if let UpstreamBodyKind::Stream(stream) = &mut self.0 {
            stream.judged_by(breaker, ticket);
        }
    }

    /// How long the answer took from the try's beginning to its last byte; `None` while it goes on.
    #[must_use]
    pub fn finished_after(&self) -> Option<Duration> {
        match &self.0 {
            UpstreamBodyKind::Buffered(buffered) => buffered.finished_after(),
            UpstreamBodyKind::Stream(stream) => stream.finished_after(),
            UpstreamBodyKind::Switched(_) => None,
            UpstreamBodyKind::Whole { taken, .. } => Some(*taken),
        }
    }

    /// Something to ask [`UpstreamBody::finished_after`] when this is out of reach.
    pub fn stopwatch(&mut self) -> ResponseTimer {
        match &mut self.0 {
            UpstreamBodyKind::Buffered(buffered) => buffered.stopwatch(),
            UpstreamBodyKind::Stream(stream) => stream.stopwatch(),
            UpstreamBodyKind::Switched(switched) => switched.stopwatch(),
            UpstreamBodyKind::Whole { taken, .. } => ResponseTimer::stopped(*taken),
        }
    }
}

impl http_body::Body for UpstreamBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match &mut self.0 {
            UpstreamBodyKind::Buffered(buffered) => buffered.poll_frame(context),
            UpstreamBodyKind::Stream(stream) => Pin::new(&mut **stream).poll_frame(context),
            UpstreamBodyKind::Switched(_) => Poll::Ready(None),
            UpstreamBodyKind::Whole { bytes, .. } if bytes.is_empty() => Poll::Ready(None),
            UpstreamBodyKind::Whole { bytes, .. } => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes)))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            UpstreamBodyKind::Buffered(buffered) => buffered.is_end_stream(),
            UpstreamBodyKind::Stream(stream) => stream.is_end_stream(),
            UpstreamBodyKind::Switched(_) => true,
            UpstreamBodyKind::Whole { bytes, .. } => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            UpstreamBodyKind::Buffered(buffered) => buffered.size_hint(),
            UpstreamBodyKind::Stream(stream) => stream.size_hint(),
            UpstreamBodyKind::Switched(_) => SizeHint::with_exact(0),
            UpstreamBodyKind::Whole { bytes, .. } => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}

impl ResponseTimer {
    pub(super) fn stopped(after: Duration) -> Self {
        Self(TimerState::Known(after))
    }

    /// One that runs until [`ResponseTimer::stop`].
    pub(super) fn begin() -> Self {
        Self::running(&Arc::default())
    }

    /// It took so long.
    pub(super) fn stop(&self, taken: Duration) {
        if let TimerState::Running(course) = &self.0 {
            course.stop(taken);
        }
    }

    pub(super) fn running(course: &Arc<ResponseProgress>) -> Self {
        Self(TimerState::Running(Arc::clone(course)))
    }

    /// Why the body ended too early, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<&BodyError> {
        match &self.0 {
            TimerState::Known(_) => None,
            TimerState::Running(course) => course.failure.get(),
        }
    }

    /// How long the answer took; `None` while it goes on.
    #[must_use]
    pub fn finished_after(&self) -> Option<Duration> {
        match &self.0 {
            TimerState::Known(taken) => Some(*taken),
            TimerState::Running(course) => match course.millis.load(Ordering::Relaxed) {
                ResponseProgress::RUNNING => None,
                millis => Some(Duration::from_millis(millis)),
            },
        }
    }
}

impl Default for ResponseProgress {
    fn default() -> Self {
        Self {
            millis: AtomicU64::new(Self::RUNNING),
            failure: OnceLock::new(),
        }
    }
}

impl ResponseProgress {
    pub(super) fn stop(&self, taken: Duration) {
        let taken = u64::try_from(taken.as_millis()).unwrap_or(Self::RUNNING);
        self.millis.store(taken, Ordering::Relaxed);
    }

    pub(super) fn fail(&self, error: &Error) {
        self.failure.get_or_init(|| BodyError {
            message: error.to_string().into(),
            is_clients: error.client_fault().is_some(),
        });
    }

    /// What stands for a time that is not known yet.
    const RUNNING: u64 = u64::MAX;
}

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

/// The backend's end of a tunnel.
#[derive(Debug)]
pub struct UpgradedConnection {
    wire: Box<UpstreamConnection>,
    stopwatch: ResponseTimer,
    started: Millis,
    clock: Clock,
    _lease: ActiveRequest,
}

impl UpgradedConnection {
    pub(super) fn new(
        wire: Box<UpstreamConnection>,
        lease: ActiveRequest,
        started: Millis,
        clock: &Clock,
    ) -> Self {
        Self {
            wire,
            stopwatch: ResponseTimer::begin(),
            started,
            clock: clock.clone(),
            _lease: lease,
        }
    }

    /// Tells how long it took when it is over.
    #[must_use]
    pub fn stopwatch(&self) -> ResponseTimer {
        self.stopwatch.clone()
    }
}

impl AsyncRead for UpgradedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let wire = &mut self.wire;
        if wire.read.is_empty() && ready!(wire.poll_read(context))? == 0 {
            return Poll::Ready(Ok(()));
        }
        let length = wire.read.len().min(buffer.remaining());
        buffer.put_slice(&wire.read[..length]);
        wire.read.advance(length);
        // A tunnel in which nothing moves holds no memory.
        if wire.read.is_empty() {
            wire.rest();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for UpgradedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.wire.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wire.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wire.poll_shutdown(context)
    }
}

impl Drop for UpgradedConnection {
    fn drop(&mut self) {
        self.stopwatch.stop(self.clock.now().since(self.started));
    }
}
