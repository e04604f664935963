//! The body of a request on its way upstream: bounded in size, and in how long the client may pause.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::clock::Deadline;

/// A request's body.
#[derive(Debug)]
pub struct Upload(Option<Box<Inner>>);

#[derive(Debug)]
struct Inner {
    incoming: Incoming,
    left: u64,
    pause: Duration,
    deadline: Deadline,
    progress: Arc<Progress>,
}

/// How far an [`Upload`] has come; outlives it, so that a failed attempt can be judged.
#[derive(Debug, Default)]
pub struct Progress {
    received: AtomicU64,
    touched: AtomicBool,
    ended: AtomicBool,
}

/// Why a request's body could not be read to its end. Each is the client's doing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection broke, or what came was not well-formed.
    #[error("the client's request body could not be read")]
    Broken(#[source] hyper::Error),
    /// The client paused for longer than `client_body_timeout`.
    #[error("the client paused too long while sending its request body")]
    Paused,
    /// More came than `client_max_body_size` allows.
    #[error("the client's request body is larger than allowed")]
    TooLarge,
}

impl Upload {
    /// No body.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }

    /// What the client sends, at most `limit` bytes of it, with no pause longer than `pause`.
    #[must_use]
    pub fn new(incoming: Incoming, limit: Option<u64>, pause: Duration) -> Self {
        if incoming.is_end_stream() {
            return Self::none();
        }
        Self(Some(Box::new(Inner {
            incoming,
            left: limit.unwrap_or(u64::MAX),
            pause,
            deadline: Deadline::default(),
            progress: Arc::new(Progress::default()),
        })))
    }

    /// Whether there is no body at all.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// How far it has come; `None` without a body.
    #[must_use]
    pub fn progress(&self) -> Option<Arc<Progress>> {
        self.0.as_ref().map(|inner| Arc::clone(&inner.progress))
    }
}

impl Progress {
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
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Some(inner) = &mut self.0 else {
            return Poll::Ready(None);
        };
        inner.progress.touched.store(true, Ordering::Relaxed);
        let Poll::Ready(frame) = Pin::new(&mut inner.incoming).poll_frame(context) else {
            inner.deadline.start(inner.pause);
            ready!(inner.deadline.poll_passed(context));
            return Poll::Ready(Some(Err(Error::Paused)));
        };
        inner.deadline.clear();
        let frame = match frame {
            None => None,
            Some(Err(error)) => Some(Err(Error::Broken(error))),
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, |data| data.remaining() as u64);
                inner.progress.received.fetch_add(length, Ordering::Relaxed);
                match inner.left.checked_sub(length) {
                    Some(left) => inner.left = left,
                    None => return Poll::Ready(Some(Err(Error::TooLarge))),
                }
                Some(Ok(frame))
            }
        };
        if frame.is_none() || inner.incoming.is_end_stream() {
            inner.progress.ended.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.0
            .as_ref()
            .is_none_or(|inner| inner.incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(
            || SizeHint::with_exact(0),
            |inner| inner.incoming.size_hint(),
        )
    }
}
