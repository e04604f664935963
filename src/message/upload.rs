//! The body of a request on its way upstream: bounded in size, and in how long the client may take.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};

use super::{Incoming, incoming};
use crate::clock::{Clock, Late, Least, Millis, Pace};

/// A request's body.
#[derive(Debug)]
pub struct Upload(Option<Box<Inner>>);

#[derive(Debug)]
struct Inner {
    incoming: Incoming,
    left: u64,
    pause: Duration,
    least: Least,
    pace: Pace,
    progress: Arc<Progress>,
    /// What tells when it ends, where somebody wants to know.
    clock: Option<Clock>,
}

/// How far an [`Upload`] has come; outlives it, so that a failed attempt can be judged.
#[derive(Debug, Default)]
pub struct Progress {
    received: AtomicU64,
    touched: AtomicBool,
    ended: AtomicBool,
    /// In milliseconds, once it has.
    ended_at: AtomicU64,
}

/// Why a request's body could not be read to its end. Each is the client's doing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection broke, or what came was not well-formed.
    #[error("the client's request body could not be read")]
    Broken(#[source] incoming::Error),
    /// The client paused for longer than `client_body_timeout`.
    #[error("the client paused too long while sending its request body")]
    Paused,
    /// It came so slowly, for so long, that it fell behind `client_body_min_rate`.
    #[error("the client sent its request body too slowly")]
    Slow,
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

    /// What the client sends, at most `limit` bytes of it, with no pause longer than `pause` and, measured over that
    /// time, not slower than `least`.
    #[must_use]
    pub fn new(incoming: Incoming, limit: Option<u64>, pause: Duration, least: Least) -> Self {
        if incoming.is_end_stream() {
            return Self::none();
        }
        Self(Some(Box::new(Inner {
            incoming,
            left: limit.unwrap_or(u64::MAX),
            pause,
            least,
            pace: Pace::default(),
            progress: Arc::new(Progress::default()),
            clock: None,
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

    /// The same, and from now on it knows when it ends.
    pub fn timed(&mut self, clock: &Clock) -> Option<Arc<Progress>> {
        let inner = self.0.as_mut()?;
        inner.clock = Some(clock.clone());
        Some(Arc::clone(&inner.progress))
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

    /// When it was read to its end: the beginning of time, if nobody wanted to know.
    #[must_use]
    pub fn ended_at(&self) -> Option<Millis> {
        let ended_at = Millis(self.ended_at.load(Ordering::Relaxed));
        self.ended().then_some(ended_at)
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
            let late = ready!(inner.pace.poll_late(inner.pause, inner.least, context));
            return Poll::Ready(Some(Err(match late {
                Late::Paused => Error::Paused,
                Late::Slow => Error::Slow,
            })));
        };
        let come = frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref());
        inner.pace.moved(come.map_or(0, Bytes::len), inner.least);
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
            if let Some(clock) = &inner.clock {
                let ended_at = &inner.progress.ended_at;
                ended_at.store(clock.now().0, Ordering::Relaxed);
            }
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::{BodyExt, Empty};
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use parking_lot::Mutex;
    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    /// What becomes of a request's body that reads like this on the wire, and how far it came.
    async fn read(wire: &str, limit: Option<u64>) -> (Result<Bytes, Error>, Arc<Progress>) {
        let (mut client, server) = duplex(4096);
        client.write_all(wire.as_bytes()).await.unwrap();
        let seen = Mutex::new(None);
        let service = service_fn(|request: http::Request<hyper::body::Incoming>| {
            let upload = Upload::new(
                request.into_body().into(),
                limit,
                Duration::from_secs(60),
                Least(100),
            );
            let progress = upload.progress().unwrap_or_default();
            assert!(!progress.touched());
            let seen = &seen;
            async move {
                let result = upload.collect().await.map(|body| body.to_bytes());
                *seen.lock() = Some((result, progress));
                Ok::<_, Infallible>(http::Response::new(Empty::<Bytes>::new()))
            }
        });
        let connection = http1::Builder::new()
            .keep_alive(false)
            .serve_connection(TokioIo::new(server), service);
        // How the connection itself ends is hyper's affair.
        drop(connection.await);
        drop(client);
        seen.into_inner().expect("the request was seen")
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_within_its_bounds_is_read_to_its_end() {
        let (result, progress) = read(
            "POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nhello",
            Some(5),
        )
        .await;
        assert_eq!(result.unwrap(), "hello");
        assert_eq!(progress.received(), 5);
        assert!(progress.touched() && progress.ended());
    }

    #[tokio::test(start_paused = true)]
    async fn a_chunked_body_is_counted_as_it_comes() {
        let wire = "POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n";
        let (result, progress) = read(wire, Some(5)).await;
        assert!(matches!(result, Err(Error::TooLarge)), "{result:?}");
        assert!(!progress.ended());
        assert_eq!(read(wire, None).await.0.unwrap(), "abcdef");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_pauses_too_long_is_given_up() {
        let (result, progress) = read(
            "POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nhe",
            None,
        )
        .await;
        assert!(matches!(result, Err(Error::Paused)), "{result:?}");
        assert_eq!(progress.received(), 2);
        assert!(!progress.ended());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_not_well_formed_is_broken() {
        let wire = "POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n";
        let (result, _) = read(wire, None).await;
        assert!(matches!(result, Err(Error::Broken(_))), "{result:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_a_body_has_no_progress_to_follow() {
        let (result, progress) = read("GET / HTTP/1.1\r\nhost: h\r\n\r\n", None).await;
        assert!(result.unwrap().is_empty());
        assert!(!progress.touched());
    }
}
