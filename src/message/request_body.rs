//! A request's body: as the client sends it over either version of HTTP, and on its way upstream, bounded in size and in how
//! long the client may take.
//!
//! A response sent before the body was read (429, 413) leaves the rest of the body on the connection, where it must never be
//! taken for the next request. [`drain`] discards a little of it, so that the connection stays usable, as nginx does; with
//! more, the connection is closed after the response, and slowly, so that the response is not lost. hyper alone would try a
//! single read and then close.

#[cfg(test)]
#[path = "tests/request_body.rs"]
mod tests;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use h2::RecvStream;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;

use super::connection::ClientConnection;
use super::connection_state::{InterimResponse, LoopCounter, LoopFlag};
use super::response_body::extended;
use crate::clock::{Clock, Millis, MinRate, MinRateTimer, TooSlow};

/// What a client sends after the headers of its request.
#[derive(Debug)]
pub enum IncomingBody {
    /// Over HTTP/1; hyper reads it.
    Http1(hyper::body::Incoming),
    /// Over HTTP/2.
    Http2(Http2Body),
}

/// The client's half of an HTTP/2 stream.
#[derive(Debug)]
pub struct Http2Body {
    receiving: RecvStream,
    // What is left of the length it announced; h2 holds it to that.
    left: Option<u64>,
    over: bool,
    // The client that is sent a 100 at the first read.
    awaits_100: Option<Arc<ClientConnection>>,
}

/// A request's body broke off, or was not well-formed.
#[derive(Debug, thiserror::Error)]
pub enum IncomingError {
    /// Over HTTP/1.
    #[error(transparent)]
    Http1(#[from] hyper::Error),
    /// Over HTTP/2; mostly a stream that the client has reset.
    #[error(transparent)]
    Http2(#[from] h2::Error),
}

impl IncomingBody {
    /// The body that follows on a stream, `length` bytes long if that was announced. `waits` is a client that holds
    /// it back until it is sent a 100.
    pub fn stream(
        receiving: RecvStream,
        length: Option<u64>,
        awaits_100: Option<Arc<ClientConnection>>,
    ) -> Self {
        Self::Http2(Http2Body {
            receiving,
            left: length,
            over: false,
            awaits_100,
        })
    }
}

impl Http2Body {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncomingError>>> {
        if let Some(connection) = self.awaits_100.take() {
            connection.state.send_interim(InterimResponse::proceed());
        }
        if !self.over {
            match ready!(self.receiving.poll_data(context)).transpose()? {
                Some(data) => {
                    // Only what can be sent on is read, so the client may send as much again.
                    self.receiving.flow_control().release_capacity(data.len())?;
                    self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                None => self.over = true,
            }
        }
        let trailers = ready!(self.receiving.poll_trailers(context))?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }
}

impl Body for IncomingBody {
    type Data = Bytes;
    type Error = IncomingError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncomingError>>> {
        match &mut *self {
            Self::Http1(incoming) => {
                let frame = ready!(Pin::new(incoming).poll_frame(context));
                Poll::Ready(frame.map(|frame| frame.map_err(IncomingError::Http1)))
            }
            Self::Http2(stream) => stream.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(incoming) => incoming.is_end_stream(),
            Self::Http2(stream) => stream.receiving.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(incoming) => incoming.size_hint(),
            Self::Http2(stream) => stream
                .left
                .map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

/// A request's body: what was buffered before it was sent upstream, then what the client still sends.
#[derive(Debug)]
pub struct RequestBody(Option<Box<BodyReader>>);

#[derive(Debug)]
struct BodyReader {
    buffered: Option<BufferedPart>,
    client: Option<UnreadBody>,
    progress: Arc<UploadProgress>,
    /// Measures when the body ends, where that is needed.
    clock: Option<Clock>,
}

/// The part of a body that was buffered.
#[derive(Debug)]
enum BufferedPart {
    /// As it came from the client, in one piece.
    Piece(Bytes),
    Stored(Box<dyn ReplayableBody>),
}

/// What the client still sends.
#[derive(Debug)]
struct UnreadBody {
    incoming: IncomingBody,
    left: u64,
    timeout: Duration,
    rate: MinRate,
    timer: MinRateTimer,
}

/// A buffered body, which can be sent more than once.
pub trait ReplayableBody: std::fmt::Debug + Send + Sync {
    /// The next piece; `None` at its end.
    ///
    /// # Errors
    ///
    /// It cannot be read any more.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>>;
    /// How many bytes are left.
    fn left(&self) -> u64;
    /// The same once more, with as much left.
    fn again(&self) -> Box<dyn ReplayableBody>;
}

/// How far a [`RequestBody`] has been read; outlives it, so that a failed attempt can be judged.
#[derive(Debug, Default)]
pub struct UploadProgress {
    /// Bytes of the body read from the client.
    pub received: LoopCounter,
    /// Reading has begun. Until then the body can still be sent to another server.
    pub touched: LoopFlag,
    /// The body was read to its end.
    pub ended: LoopFlag,
    // In milliseconds, where a clock was set before the body ended.
    ended_at: LoopCounter,
}

/// Why a request's body could not be read to its end. Each but the last is the client's doing.
#[derive(Debug, thiserror::Error)]
pub enum RequestBodyError {
    /// The connection broke, or what came was not well-formed.
    #[error("the client's request body could not be read")]
    Broken(#[source] IncomingError),
    /// The client paused for longer than `client_body_timeout`.
    #[error("the client paused too long while sending its request body")]
    Paused,
    /// It came so slowly, for so long, that it fell behind `client_body_min_rate`.
    #[error("the client sent its request body too slowly")]
    Slow,
    /// More came than `client_max_body_size` allows.
    #[error("the client's request body is larger than allowed")]
    TooLarge,
    /// What was buffered of it is on a disk that cannot be read. This error is ours.
    #[error("the request body that was taken in cannot be read")]
    Unreadable(#[source] io::Error),
}

impl RequestBodyError {
    /// The status of the response to a client whose body it is.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Broken(_) => StatusCode::BAD_REQUEST,
            Self::Paused | Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Unreadable(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl RequestBody {
    /// No body.
    pub fn none() -> Self {
        Self(None)
    }

    /// What the client sends, at most `limit` bytes of it, with no pause longer than `pause` and, measured over that
    /// time, not slower than `least`.
    pub fn new(
        incoming: IncomingBody,
        limit: Option<u64>,
        timeout: Duration,
        rate: MinRate,
    ) -> Self {
        if incoming.is_end_stream() {
            return Self::none();
        }
        Self(Some(Box::new(BodyReader {
            buffered: None,
            client: Some(UnreadBody {
                incoming,
                left: limit.unwrap_or(u64::MAX),
                timeout,
                rate,
                timer: MinRateTimer::default(),
            }),
            progress: Arc::new(UploadProgress::default()),
            clock: None,
        })))
    }

    /// All of it has been read, and this piece is what it was.
    #[must_use]
    pub fn into_piece(self, piece: Bytes) -> Self {
        self.with_buffered((!piece.is_empty()).then_some(BufferedPart::Piece(piece)))
    }

    /// This much of it has been read. If that was not all, the client sends the rest.
    #[must_use]
    pub fn into_stored(self, stored: Box<dyn ReplayableBody>) -> Self {
        self.with_buffered(Some(BufferedPart::Stored(stored)))
    }

    fn with_buffered(mut self, buffered: Option<BufferedPart>) -> Self {
        if let Some(inner) = &mut self.0 {
            inner.buffered = buffered;
            if inner.progress.ended.get() {
                inner.client = None;
            }
        }
        self
    }

    /// The same once more, if all that is left of it lies ready.
    pub fn again(&self) -> Option<Self> {
        let Some(inner) = &self.0 else {
            return Some(Self::none());
        };
        let buffered = match &inner.buffered {
            _ if inner.client.is_some() => return None,
            None => None,
            Some(BufferedPart::Piece(piece)) => Some(BufferedPart::Piece(piece.clone())),
            Some(BufferedPart::Stored(stored)) => Some(BufferedPart::Stored(stored.again())),
        };
        Some(Self(Some(Box::new(BodyReader {
            buffered,
            client: None,
            progress: Arc::clone(&inner.progress),
            clock: None,
        }))))
    }

    /// Whether there is a second time to what is left of it.
    pub fn is_repeatable(&self) -> bool {
        self.0.as_ref().is_none_or(|inner| inner.client.is_none())
    }

    /// Whether there is no body at all.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// How far it has come; `None` without a body.
    pub fn progress(&self) -> Option<Arc<UploadProgress>> {
        self.0.as_ref().map(|inner| Arc::clone(&inner.progress))
    }

    /// The same, and from now on it records when the body ends.
    pub fn timed(&mut self, clock: &Clock) -> Option<Arc<UploadProgress>> {
        let inner = self.0.as_mut()?;
        inner.clock = Some(clock.clone());
        Some(Arc::clone(&inner.progress))
    }
}

impl UploadProgress {
    /// When it was read to its end: 0 where no clock was set.
    pub fn ended_at(&self) -> Option<Millis> {
        self.ended.get().then_some(Millis(self.ended_at.get()))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let Some(inner) = &mut self.0 else {
            return Poll::Ready(None);
        };
        inner.progress.touched.set(true);
        if inner.buffered.is_some()
            && let Some(piece) = ready!(inner.poll_buffered(context))
        {
            return Poll::Ready(Some(
                piece.map(Frame::data).map_err(RequestBodyError::Unreadable),
            ));
        }
        let Some(client) = &mut inner.client else {
            return Poll::Ready(None);
        };
        let Poll::Ready(frame) = Pin::new(&mut client.incoming).poll_frame(context) else {
            let late = ready!(client.timer.poll_late(client.timeout, client.rate, context));
            return Poll::Ready(Some(Err(match late {
                TooSlow::Paused => RequestBodyError::Paused,
                TooSlow::Slow => RequestBodyError::Slow,
            })));
        };
        let data = frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref());
        let length = data.map_or(0, Bytes::len);
        client.timer.moved(length, client.rate);
        inner.progress.received.add(length);
        match client.left.checked_sub(length as u64) {
            Some(left) => client.left = left,
            None => return Poll::Ready(Some(Err(RequestBodyError::TooLarge))),
        }
        if frame.is_none() || client.incoming.is_end_stream() {
            if let Some(clock) = &inner.clock {
                inner.progress.ended_at.set(clock.now().0);
            }
            inner.progress.ended.set(true);
        }
        Poll::Ready(frame.map(|frame| frame.map_err(RequestBodyError::Broken)))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|inner| {
            let client = inner.client.as_ref();
            inner.left_over() == 0 && client.is_none_or(|client| client.incoming.is_end_stream())
        })
    }

    fn size_hint(&self) -> SizeHint {
        let Some(inner) = &self.0 else {
            return SizeHint::with_exact(0);
        };
        let (buffered, client) = (inner.left_over(), inner.client.as_ref());
        let hint = client.map_or_else(
            || SizeHint::with_exact(0),
            |client| client.incoming.size_hint(),
        );
        extended(hint, buffered)
    }
}

impl BodyReader {
    /// How many bytes are left of what was buffered.
    fn left_over(&self) -> u64 {
        match &self.buffered {
            None => 0,
            Some(BufferedPart::Piece(piece)) => piece.len() as u64,
            Some(BufferedPart::Stored(stored)) => stored.left(),
        }
    }

    /// The next piece of what was buffered; `None` when all of it was read.
    fn poll_buffered(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let piece = match &mut self.buffered {
            None => None,
            Some(BufferedPart::Piece(piece)) => Some(Ok(std::mem::take(piece))),
            Some(BufferedPart::Stored(stored)) => ready!(stored.poll_next(context)),
        };
        if self.left_over() == 0 {
            self.buffered = None;
        }
        Poll::Ready(piece)
    }
}

/// Discards the rest of a request's body, in a task of its own. False when the connection will not carry
/// another request, and the response should have `Connection: close`.
///
/// `expects_continue`: the client waits for a 100 before it sends the body.
pub fn drain(
    connection: &Arc<ClientConnection>,
    incoming: IncomingBody,
    expects_continue: bool,
) -> bool {
    // An HTTP/2 stream ends without the others noticing.
    if incoming.is_end_stream() || matches!(incoming, IncomingBody::Http2(_)) {
        return true;
    }
    // Reading the body would send the 100, after the response was decided.
    if expects_continue || incoming.size_hint().lower() > DRAIN_LIMIT {
        connection.state.lingers.set(true);
        return false;
    }
    connection.state.begin_drain();
    let drain = DrainGuard(Arc::clone(connection));
    tokio::spawn(discard(drain, incoming));
    true
}

async fn discard(drain: DrainGuard, mut incoming: IncomingBody) {
    let state = &drain.0.state;
    let mut discarded = 0;
    let most = match incoming.size_hint().exact() {
        Some(_) => DRAIN_LIMIT,
        None => DRAIN_LIMIT_UNKNOWN,
    };
    let ended = tokio::time::timeout(state.lingering_timeout.get(), async {
        // Once the response is out, hyper does not report the end of a body with a length until the next
        // request's headers have come; the body itself knows.
        while discarded <= most {
            if incoming.is_end_stream() {
                return true;
            }
            match incoming.frame().await {
                Some(Ok(frame)) => {
                    discarded += frame.data_ref().map_or(0, |data| data.remaining() as u64);
                }
                Some(Err(_)) | None => return true,
            }
        }
        false
    });
    if !ended.await.unwrap_or(false) {
        state.lingers.set(true);
    }
}

struct DrainGuard(Arc<ClientConnection>);

impl Drop for DrainGuard {
    fn drop(&mut self) {
        self.0.state.end_drain();
    }
}

/// How much is worth reading to keep a connection, in bytes: about what is on its way anyhow.
const DRAIN_LIMIT: u64 = 64 * 1024;

/// The same where the length was not known when the response was sent without `close`: the client counts on the connection.
/// It costs no memory, and no more time than the lingering close does.
const DRAIN_LIMIT_UNKNOWN: u64 = 16 * 1024 * 1024;
