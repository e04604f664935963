//! The body of a response on its way to the client.
//!
//! Most responses are read complete with their headers. Such a body is a slice of what was read, and its connection is
//! kept for the next request before the client receives the response.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{HeaderMap, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::attempt::{AttemptResponse, ResponseSource};
use super::backend::ActiveRequest;
use super::body_stream::{
    BodyObserver, ResponseProgress, ResponseTimer, SourceConnection, StreamSource, StreamingBody,
};
use super::breaker::{Breaker, CallTicket};
use super::connection::UpstreamConnection;
use super::error::Error;
use super::http1::BodyFraming;
use super::pool;
use super::retry::AttemptContext;
use crate::clock::{Clock, Millis};
use crate::config::plan::ProxyProtocolVersion;
use crate::message::{ClientConnection, RawHeaders, ReadAhead};
use crate::spool::ResponseBuffer;

/// The body of a response.
#[derive(Debug)]
pub struct UpstreamBody(UpstreamBodyKind);

// Kept small: it is moved often.
#[derive(Debug)]
enum UpstreamBodyKind {
    Buffered(Box<BufferedBody>),
    Complete {
        body: CompleteBody,
        taken: Duration,
    },
    Streaming(Box<StreamingBody>),
    /// No body: what follows the headers is another protocol.
    Upgraded(Box<UpgradedConnection>),
}

/// A body that was read with its headers.
#[derive(Debug)]
pub struct CompleteBody {
    /// All of it.
    pub bytes: Bytes,
    /// The response's headers, where they are raw instead of a map.
    pub raw_headers: Option<RawHeaders>,
}

impl UpstreamBody {
    /// The response to pass on.
    pub(super) fn begin(
        response: AttemptResponse,
        active: ActiveRequest,
        cx: &AttemptContext<'_>,
    ) -> Response<Self> {
        let (proxy_pass, clock) = (cx.proxy_pass, cx.clock);
        let AttemptResponse {
            mut head,
            source,
            started,
            received,
            ticket,
        } = response;
        let connection = match source {
            ResponseSource::Http2(reader) => SourceConnection::Http2(reader),
            ResponseSource::Http1 { connection, .. }
                if head.status == StatusCode::SWITCHING_PROTOCOLS =>
            {
                let upgraded = UpgradedConnection {
                    connection,
                    progress: Arc::default(),
                    started,
                    clock: clock.clone(),
                    _active: active,
                };
                let upgraded = UpstreamBodyKind::Upgraded(Box::new(upgraded));
                return head.into_response(Self(upgraded));
            }
            ResponseSource::Http1 {
                mut connection,
                writer,
                arrived,
            } => {
                let mut framing = std::mem::replace(&mut head.framing, BodyFraming::Length(0));
                let shared = proxy_pass.proxy_protocol == ProxyProtocolVersion::Off;
                let reusable = head.reusable && arrived && shared;
                if writer.is_none()
                    && let Some(bytes) = framing.take_all(&mut connection.read)
                {
                    if reusable {
                        pool::put(&active, connection, received, clock);
                    }
                    let raw_headers = head.raw.take();
                    return head.into_response(Self(UpstreamBodyKind::Complete {
                        body: CompleteBody { bytes, raw_headers },
                        taken: received.since(started),
                    }));
                }
                SourceConnection::Http1 {
                    connection,
                    framing,
                    writer,
                    reusable,
                }
            }
        };
        debug_assert!(head.raw.is_none(), "only complete responses are raw");
        let source = StreamSource::new(connection, active, &proxy_pass.settings);
        let body = StreamingBody::new(source, ticket, started, clock);
        head.into_response(Self(UpstreamBodyKind::Streaming(Box::new(body))))
    }

    /// All of it, if it was read with the headers.
    ///
    /// # Errors
    ///
    /// The body itself, if more is to come.
    pub fn into_complete(self) -> Result<CompleteBody, Self> {
        match self.0 {
            UpstreamBodyKind::Complete { body, .. } => Ok(body),
            other => Err(Self(other)),
        }
    }

    /// The connection, where the response switches protocols; there is no body then.
    pub fn take_upgraded(&mut self) -> Option<Box<UpgradedConnection>> {
        if !matches!(self.0, UpstreamBodyKind::Upgraded(_)) {
            return None;
        }
        let empty = UpstreamBodyKind::Complete {
            body: CompleteBody {
                bytes: Bytes::new(),
                raw_headers: None,
            },
            taken: Duration::ZERO,
        };
        match std::mem::replace(&mut self.0, empty) {
            UpstreamBodyKind::Upgraded(upgraded) => Some(upgraded),
            _ => None,
        }
    }

    /// Reads the body as fast as the backend sends it; what the client cannot take yet waits in the backlog.
    #[must_use]
    pub fn buffered(self, backlog: ResponseBuffer, client: &Arc<ClientConnection>) -> Self {
        Self(match self.0 {
            UpstreamBodyKind::Streaming(body) => {
                UpstreamBodyKind::Buffered(Box::new(BufferedBody::new(body, backlog, client)))
            }
            other => other,
        })
    }

    /// Passes a copy to an observer, unless the body was read with the headers.
    pub fn observe(&mut self, observer: Box<dyn BodyObserver>) {
        if let UpstreamBodyKind::Streaming(body) = &mut self.0 {
            body.observer = Some(observer);
        }
    }

    /// Reports it to the location's breaker if the body is cut short.
    pub fn report_to(&mut self, breaker: &Arc<Breaker>, ticket: CallTicket) {
        if let UpstreamBodyKind::Streaming(body) = &mut self.0 {
            body.location_breaker = Some((Arc::clone(breaker), ticket));
        }
    }

    /// The timer, for when the body is out of reach.
    pub fn timer(&mut self) -> ResponseTimer {
        match &mut self.0 {
            UpstreamBodyKind::Buffered(body) => body.state.lock().stream.timer(),
            UpstreamBodyKind::Complete { taken, .. } => ResponseTimer::Known(*taken),
            UpstreamBodyKind::Streaming(body) => body.timer(),
            UpstreamBodyKind::Upgraded(upgraded) => upgraded.timer(),
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match &mut self.0 {
            UpstreamBodyKind::Buffered(body) => body.poll_frame(context),
            UpstreamBodyKind::Complete { body, .. } if !body.bytes.is_empty() => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut body.bytes)))))
            }
            UpstreamBodyKind::Complete { .. } | UpstreamBodyKind::Upgraded(_) => Poll::Ready(None),
            UpstreamBodyKind::Streaming(body) => Pin::new(&mut **body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            UpstreamBodyKind::Buffered(body) => body.is_end_stream(),
            UpstreamBodyKind::Complete { body, .. } => body.bytes.is_empty(),
            UpstreamBodyKind::Streaming(body) => body.is_end_stream(),
            UpstreamBodyKind::Upgraded(_) => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            UpstreamBodyKind::Buffered(body) => body.size_hint(),
            UpstreamBodyKind::Complete { body, .. } => {
                SizeHint::with_exact(body.bytes.len() as u64)
            }
            UpstreamBodyKind::Streaming(body) => body.size_hint(),
            UpstreamBodyKind::Upgraded(_) => SizeHint::with_exact(0),
        }
    }
}

/// A body that is read as fast as the backend sends it, however slow the client is.
///
/// While nothing waits, the client's connection takes each piece straight from the backend. When it can take nothing, it
/// calls [`ReadAhead`], and what the backend has sent is read into a backlog. Both happen in the task of the client's
/// connection: a client that keeps up costs no copy and no task.
#[derive(Debug)]
struct BufferedBody {
    state: Arc<Mutex<BufferedBodyState>>,
    client: Arc<ClientConnection>,
    // The client's connection has the state.
    registered: bool,
}

#[derive(Debug)]
struct BufferedBodyState {
    // Boxed before, and seldom read.
    stream: Box<StreamingBody>,
    backlog: ResponseBuffer,
    // What comes after the backlog, once that is known.
    end: Option<BufferedEnd>,
}

#[derive(Debug)]
enum BufferedEnd {
    Complete(Option<HeaderMap>),
    Failed(Error),
    /// It was passed on already.
    Passed,
}

impl BufferedBody {
    fn new(
        stream: Box<StreamingBody>,
        backlog: ResponseBuffer,
        client: &Arc<ClientConnection>,
    ) -> Self {
        Self {
            state: Arc::new(Mutex::new(BufferedBodyState {
                stream,
                backlog,
                end: None,
            })),
            client: Arc::clone(client),
            registered: false,
        }
    }

    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if !std::mem::replace(&mut self.registered, true) {
            let refill = Arc::clone(&self.state);
            self.client.state.set_read_ahead(Some(refill));
        }
        self.state.lock().poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        let state = self.state.lock();
        state.backlog.is_empty()
            && match &state.end {
                Some(end) => matches!(end, BufferedEnd::Passed | BufferedEnd::Complete(None)),
                None => state.stream.is_end_stream(),
            }
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.state.lock();
        let (mut hint, waiting) = (state.stream.size_hint(), state.backlog.len());
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(waiting));
        }
        hint.set_lower(hint.lower().saturating_add(waiting));
        hint
    }
}

impl Drop for BufferedBody {
    fn drop(&mut self) {
        if self.registered {
            self.client.state.set_read_ahead(None);
        }
    }
}

impl BufferedBodyState {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if !self.backlog.is_empty() {
            let Poll::Ready(piece) = self.backlog.poll_pop(context) else {
                // The client waits for the disk; the backend need not.
                self.refill(context);
                return Poll::Pending;
            };
            if let Some(piece) = piece {
                return Poll::Ready(Some(piece.map(Frame::data).map_err(Error::Truncated)));
            }
        }
        match self.end.replace(BufferedEnd::Passed) {
            Some(BufferedEnd::Complete(trailers)) => {
                Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
            }
            Some(BufferedEnd::Failed(error)) => Poll::Ready(Some(Err(error))),
            Some(BufferedEnd::Passed) => Poll::Ready(None),
            None => {
                self.end = None;
                let frame = ready!(Pin::new(&mut *self.stream).poll_frame(context));
                if frame.is_none() {
                    self.end = Some(BufferedEnd::Passed);
                }
                Poll::Ready(frame)
            }
        }
    }

    /// Reads what has arrived while there is room for it.
    fn refill(&mut self, context: &mut Context<'_>) {
        self.backlog.settle(context);
        while self.end.is_none() && self.backlog.has_room(context) {
            let Poll::Ready(frame) = Pin::new(&mut *self.stream).poll_frame(context) else {
                return;
            };
            match frame.transpose().map(|frame| frame.map(Frame::into_data)) {
                Ok(Some(Ok(data))) => {
                    self.backlog.push(data);
                    if self.stream.is_end_stream() {
                        self.end = Some(BufferedEnd::Complete(None));
                    }
                }
                Ok(Some(Err(frame))) => {
                    self.end = Some(BufferedEnd::Complete(frame.into_trailers().ok()));
                }
                Ok(None) => self.end = Some(BufferedEnd::Complete(None)),
                Err(error) => self.end = Some(BufferedEnd::Failed(error)),
            }
        }
    }
}

impl ReadAhead for Mutex<BufferedBodyState> {
    fn refill(&self, context: &mut Context<'_>) {
        self.lock().refill(context);
    }
}

/// A connection to a backend that has switched to another protocol: the backend's end of a tunnel, which begins with the
/// bytes behind the 101. It is an active request for as long as it lasts, and is not used again.
#[derive(Debug)]
pub struct UpgradedConnection {
    connection: Box<UpstreamConnection>,
    progress: Arc<ResponseProgress>,
    started: Millis,
    clock: Clock,
    _active: ActiveRequest,
}

impl UpgradedConnection {
    /// Tells how long it took when it is over.
    #[must_use]
    pub fn timer(&self) -> ResponseTimer {
        ResponseTimer::Running(Arc::clone(&self.progress))
    }
}

impl AsyncRead for UpgradedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let connection = &mut self.connection;
        if connection.read.is_empty() && ready!(connection.poll_read(context))? == 0 {
            return Poll::Ready(Ok(()));
        }
        let length = connection.read.len().min(buffer.remaining());
        buffer.put_slice(&connection.read[..length]);
        connection.read.advance(length);
        // An idle tunnel holds no memory.
        if connection.read.is_empty() {
            connection.reset_for_reuse();
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
        Pin::new(&mut self.connection.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection.socket).poll_shutdown(context)
    }
}

impl Drop for UpgradedConnection {
    fn drop(&mut self) {
        self.progress.stop(self.clock.now().since(self.started));
    }
}
