//! The body of an answer, and what waits for its end.
//!
//! An enum, never boxed: every answer passes through here. Whatever must last as long as the answer —
//! the place in a `limit_conn`, the access-log line — travels with it as its [`ResponseGuard`], and is let go when
//! the last byte has left the socket or the client is gone, in every way an answer can end.

#[cfg(test)]
mod tests;
mod throttle;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};

use super::{ClientConnection, ResponseEnd};
pub use throttle::Throttle;

/// What lasts as long as an answer.
pub trait ResponseGuard: std::fmt::Debug + Send {
    /// So many bytes of the body were handed to the connection.
    fn sent(&mut self, bytes: usize);
    /// So many bytes came from the client, through a tunnel.
    fn received(&mut self, _bytes: usize) {}
    /// The connection has all of the answer and is about to write it.
    fn taken(&mut self) {}
    /// The connection it belongs to.
    fn peer(&self) -> &Arc<ClientConnection>;
    /// It is over.
    fn finish(self: Box<Self>, ending: ResponseEnd);
}

/// The body of an answer; `D` is how one from upstream is read.
#[derive(Debug)]
pub struct ResponseBody<D: http_body::Body<Error: std::fmt::Debug>> {
    source: BodySource<D>,
    // Boxed: hardly any answer has one, and all are moved about.
    failure: Option<Box<D::Error>>,
    // Boxed for the same reason.
    throttle: Option<Box<Throttle>>,
    tail: Option<Box<dyn ResponseGuard>>,
}

#[derive(Debug)]
enum BodySource<D> {
    Download(D),
    /// So many bytes that lie ready at the connection.
    Stocked(usize),
    Whole(Bytes),
}

impl<D: http_body::Body<Error: std::fmt::Debug>> ResponseBody<D> {
    /// A body that is all here.
    #[must_use]
    pub fn whole(bytes: Bytes) -> Self {
        Self {
            source: BodySource::Whole(bytes),
            failure: None,
            throttle: None,
            tail: None,
        }
    }

    /// A body of this length, with which the connection completes the answer.
    #[must_use]
    pub fn stocked(length: usize) -> Self {
        Self {
            source: BodySource::Stocked(length),
            failure: None,
            throttle: None,
            tail: None,
        }
    }

    /// A body that comes from upstream.
    #[must_use]
    pub fn download(download: D) -> Self {
        Self {
            source: BodySource::Download(download),
            failure: None,
            throttle: None,
            tail: None,
        }
    }

    /// Gives it what has to last as long as it does.
    pub fn set_tail(&mut self, tail: Box<dyn ResponseGuard>) {
        self.tail = Some(tail);
    }

    /// It leaves no faster than this.
    pub fn set_throttle(&mut self, throttle: Throttle) {
        self.throttle = Some(Box::new(throttle));
    }

    fn has_ended(&self) -> bool {
        let all_taken = match &self.source {
            BodySource::Download(download) => download.is_end_stream(),
            BodySource::Stocked(_) => true,
            BodySource::Whole(bytes) => bytes.is_empty(),
        };
        all_taken && self.held_back() == 0
    }

    /// Bytes that were taken from the source and may not leave yet.
    fn held_back(&self) -> u64 {
        self.throttle.as_ref().map_or(0, |it| it.held_back())
    }

    fn end(&mut self, ending: ResponseEnd) {
        let Some(mut tail) = self.tail.take() else {
            return;
        };
        match ending {
            ResponseEnd::Complete => {
                if let BodySource::Stocked(length) = self.source {
                    tail.sent(length);
                }
                tail.taken();
                let peer = Arc::clone(tail.peer());
                peer.line.finish_when_flushed(tail);
            }
            ResponseEnd::Aborted => tail.finish(ResponseEnd::Aborted),
        }
    }
}

impl<D> http_body::Body for ResponseBody<D>
where
    D: http_body::Body<Data = Bytes, Error: std::fmt::Debug + Unpin> + Unpin,
{
    type Data = Bytes;
    type Error = D::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        if let Some(failure) = this.failure.take() {
            // What came before it is still on its way to a client that reads slowly: this is asked again then.
            if this
                .tail
                .as_ref()
                .is_some_and(|tail| tail.peer().line.unsent())
            {
                this.failure = Some(failure);
                return Poll::Pending;
            }
            this.end(ResponseEnd::Aborted);
            return Poll::Ready(Some(Err(*failure)));
        }
        let frame = match &mut this.throttle {
            None => ready!(this.source.poll_frame(context)),
            Some(throttle) => {
                let frame = throttle.poll_frame(&mut this.source, context);
                if frame.is_pending()
                    && let Some(tail) = &this.tail
                {
                    tail.peer().line.refill.run(context);
                }
                ready!(frame)
            }
        };
        match frame {
            Some(Ok(frame)) => {
                if let (Some(data), Some(tail)) = (frame.data_ref(), &mut this.tail) {
                    tail.sent(data.remaining());
                }
                Poll::Ready(Some(Ok(frame)))
            }
            // hyper would let go of the connection with all it has not written yet, perhaps the head. It
            // writes when there is nothing more for now: then the client sees how far the answer came.
            Some(Err(failure)) => {
                this.failure = Some(Box::new(failure));
                context.waker().wake_by_ref();
                Poll::Pending
            }
            None => {
                this.end(ResponseEnd::Complete);
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = match &self.source {
            BodySource::Download(download) => download.size_hint(),
            BodySource::Stocked(_) => SizeHint::with_exact(0),
            BodySource::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
        };
        let held_back = self.held_back();
        if held_back > 0 {
            if let Some(upper) = hint.upper() {
                hint.set_upper(upper.saturating_add(held_back));
            }
            hint.set_lower(hint.lower().saturating_add(held_back));
        }
        hint
    }
}

impl<D> BodySource<D>
where
    D: http_body::Body<Data = Bytes> + Unpin,
{
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, D::Error>>> {
        match self {
            Self::Download(download) => Pin::new(download).poll_frame(context),
            Self::Stocked(_) => Poll::Ready(None),
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
        }
    }
}

impl<D: http_body::Body<Error: std::fmt::Debug>> Drop for ResponseBody<D> {
    fn drop(&mut self) {
        // hyper lets go of a body it knows to be finished without asking for the end.
        self.end(if self.has_ended() {
            ResponseEnd::Complete
        } else {
            ResponseEnd::Aborted
        });
    }
}
