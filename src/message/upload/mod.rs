//! The body of a request on its way upstream: bounded in size, and in how long the client may take.

#[cfg(test)]
mod tests;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};

use super::{IncomingBody, incoming};
use crate::clock::{Clock, Millis, MinRate, MinRateTimer, TooSlow};

/// A request's body: what was taken in before anybody was asked, then what the client still sends.
#[derive(Debug)]
pub struct RequestBody(Option<Box<BodyReader>>);

#[derive(Debug)]
struct BodyReader {
    kept: Option<BufferedPart>,
    client: Option<UnreadBody>,
    progress: Arc<UploadProgress>,
    /// What tells when it ends, where somebody wants to know.
    clock: Option<Clock>,
}

/// The part of a body that was taken in before.
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
    pause: Duration,
    least: MinRate,
    pace: MinRateTimer,
}

/// A body that lies ready, to be sent more than once.
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

/// How far an [`RequestBody`] has come; outlives it, so that a failed attempt can be judged.
#[derive(Debug, Default)]
pub struct UploadProgress {
    received: AtomicU64,
    touched: AtomicBool,
    ended: AtomicBool,
    /// In milliseconds, once it has.
    ended_at: AtomicU64,
}

/// Why a request's body could not be read to its end. Each but the last is the client's doing.
#[derive(Debug, thiserror::Error)]
pub enum RequestBodyError {
    /// The connection broke, or what came was not well-formed.
    #[error("the client's request body could not be read")]
    Broken(#[source] incoming::IncomingError),
    /// The client paused for longer than `client_body_timeout`.
    #[error("the client paused too long while sending its request body")]
    Paused,
    /// It came so slowly, for so long, that it fell behind `client_body_min_rate`.
    #[error("the client sent its request body too slowly")]
    Slow,
    /// More came than `client_max_body_size` allows.
    #[error("the client's request body is larger than allowed")]
    TooLarge,
    /// What was taken in of it lies on a disk that cannot be read. This one is ours.
    #[error("the request body that was taken in cannot be read")]
    Unreadable(#[source] io::Error),
}

impl RequestBody {
    /// No body.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }

    /// What the client sends, at most `limit` bytes of it, with no pause longer than `pause` and, measured over that
    /// time, not slower than `least`.
    #[must_use]
    pub fn new(
        incoming: IncomingBody,
        limit: Option<u64>,
        pause: Duration,
        least: MinRate,
    ) -> Self {
        if incoming.is_end_stream() {
            return Self::none();
        }
        Self(Some(Box::new(BodyReader {
            kept: None,
            client: Some(UnreadBody {
                incoming,
                left: limit.unwrap_or(u64::MAX),
                pause,
                least,
                pace: MinRateTimer::default(),
            }),
            progress: Arc::new(UploadProgress::default()),
            clock: None,
        })))
    }

    /// All of it has been read, and this piece is what it was.
    #[must_use]
    pub fn into_piece(self, piece: Bytes) -> Self {
        self.into_kept((!piece.is_empty()).then_some(BufferedPart::Piece(piece)))
    }

    /// This much of it has been read. If that was not all, the client sends the rest.
    #[must_use]
    pub fn into_stored(self, stored: Box<dyn ReplayableBody>) -> Self {
        self.into_kept(Some(BufferedPart::Stored(stored)))
    }

    fn into_kept(mut self, kept: Option<BufferedPart>) -> Self {
        if let Some(inner) = &mut self.0 {
            inner.kept = kept;
            if inner.progress.ended() {
                inner.client = None;
            }
        }
        self
    }

    /// The same once more, if all that is left of it lies ready.
    #[must_use]
    pub fn again(&self) -> Option<Self> {
        let Some(inner) = &self.0 else {
            return Some(Self::none());
        };
        let kept = match &inner.kept {
            _ if inner.client.is_some() => return None,
            None => None,
            Some(BufferedPart::Piece(piece)) => Some(BufferedPart::Piece(piece.clone())),
            Some(BufferedPart::Stored(stored)) => Some(BufferedPart::Stored(stored.again())),
        };
        Some(Self(Some(Box::new(BodyReader {
            kept,
            client: None,
            progress: Arc::clone(&inner.progress),
            clock: None,
        }))))
    }

    /// Whether there is a second time to what is left of it.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        self.0.as_ref().is_none_or(|inner| inner.client.is_none())
    }

    /// Whether there is no body at all.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// How far it has come; `None` without a body.
    #[must_use]
    pub fn progress(&self) -> Option<Arc<UploadProgress>> {
        self.0.as_ref().map(|inner| Arc::clone(&inner.progress))
    }

    /// The same, and from now on it knows when it ends.
    pub fn timed(&mut self, clock: &Clock) -> Option<Arc<UploadProgress>> {
        let inner = self.0.as_mut()?;
        inner.clock = Some(clock.clone());
        Some(Arc::clone(&inner.progress))
    }
}

impl UploadProgress {
    /// Bytes of the body read from the client.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Whether anybody has begun to read it. Until then it can still be sent to another server.
    #[must_use]
    pub fn touched(&self) -> bool {
        self.touched.load(Ordering::Relaxed)
    }

    /// Whether it was read to its end.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// When it was read to its end: the beginning of time, if nobody wanted to know.
    #[must_use]
    pub fn ended_at(&self) -> Option<Millis> {
        let ended_at = Millis(self.ended_at.load(Ordering::Relaxed));
        self.ended().then_some(ended_at)
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
        inner.progress.touched.store(true, Ordering::Relaxed);
        if inner.kept.is_some()
            && let Some(piece) = ready!(inner.poll_kept(context))
        {
            return Poll::Ready(Some(
                piece.map(Frame::data).map_err(RequestBodyError::Unreadable),
            ));
        }
        let Some(client) = &mut inner.client else {
            return Poll::Ready(None);
        };
        let Poll::Ready(frame) = Pin::new(&mut client.incoming).poll_frame(context) else {
            let late = ready!(client.pace.poll_late(client.pause, client.least, context));
            return Poll::Ready(Some(Err(match late {
                TooSlow::Paused => RequestBodyError::Paused,
                TooSlow::Slow => RequestBodyError::Slow,
            })));
        };
        let come = frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref());
        client.pace.moved(come.map_or(0, Bytes::len), client.least);
        let frame = match frame {
            None => None,
            Some(Err(error)) => Some(Err(RequestBodyError::Broken(error))),
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, |data| data.remaining() as u64);
                inner.progress.received.fetch_add(length, Ordering::Relaxed);
                match client.left.checked_sub(length) {
                    Some(left) => client.left = left,
                    None => return Poll::Ready(Some(Err(RequestBodyError::TooLarge))),
                }
                Some(Ok(frame))
            }
        };
        if frame.is_none() || client.incoming.is_end_stream() {
            if let Some(clock) = &inner.clock {
                let ended_at = &inner.progress.ended_at;
                ended_at.store(clock.now().0, Ordering::Relaxed);
            }
            inner.progress.ended.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|inner| {
            let client = inner.client.as_ref();
            inner.kept_left() == 0 && client.is_none_or(|client| client.incoming.is_end_stream())
        })
    }

    fn size_hint(&self) -> SizeHint {
        let Some(inner) = &self.0 else {
            return SizeHint::with_exact(0);
        };
        let (kept, client) = (inner.kept_left(), inner.client.as_ref());
        let mut hint = client.map_or_else(
            || SizeHint::with_exact(0),
            |client| client.incoming.size_hint(),
        );
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(kept));
        }
        hint.set_lower(hint.lower().saturating_add(kept));
        hint
    }
}

impl BodyReader {
    /// How many bytes are left of what was taken in.
    fn kept_left(&self) -> u64 {
        match &self.kept {
            None => 0,
            Some(BufferedPart::Piece(piece)) => piece.len() as u64,
            Some(BufferedPart::Stored(stored)) => stored.left(),
        }
    }

    /// The next piece of what was taken in; `None` when all of it was read.
    fn poll_kept(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let piece = match &mut self.kept {
            None => None,
            Some(BufferedPart::Piece(piece)) => Some(Ok(std::mem::take(piece))),
            Some(BufferedPart::Stored(stored)) => ready!(stored.poll_next(context)),
        };
        if self.kept_left() == 0 {
            self.kept = None;
        }
        Poll::Ready(piece)
    }
}
