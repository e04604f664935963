//! A body that is still coming.
//!
//! It owns the connection it is read from. Read to its end, the connection is kept for the next request; let go
//! before, it is closed on the spot, because what is left on it belongs to nobody.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::Stopwatch;
use crate::clock::{Clock, Millis};
use crate::message::Caller;
use crate::upstream::backend::Lease;
use crate::upstream::error::{Error, Stage};
use crate::upstream::http1::{Piece, Reading, Sending};
use crate::upstream::pool;
use crate::upstream::wire::Wire;

/// The rest of an answer.
#[derive(Debug)]
pub(super) struct Stream {
    // `None` once the answer is over, in whatever way.
    source: Option<Source>,
    // Those of an answer that is over and was asked for its last data only.
    trailers: Option<HeaderMap>,
    complete: bool,
    started: Millis,
    taken: Option<Duration>,
    stopwatch: Option<Arc<AtomicU64>>,
    clock: Clock,
    caller: Caller,
}

/// Where it comes from.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) wire: Box<Wire>,
    pub(super) reading: Reading,
    /// What is left to send of the request, which the answer overtook.
    pub(super) sending: Option<Box<Sending>>,
    pub(super) reusable: bool,
    pub(super) lease: Lease,
    pub(super) read_timeout: Duration,
    pub(super) send_timeout: Duration,
}

impl Stream {
    /// A body of which this much is known, of an answer asked for at `started`.
    pub(super) fn new(mut source: Source, started: Millis, clock: &Clock, caller: Caller) -> Self {
        if let Some(length) = source.reading.size_hint().exact() {
            source.wire.expect(length);
        }
        let mut stream = Self {
            source: Some(source),
            trailers: None,
            complete: false,
            started,
            taken: None,
            stopwatch: None,
            clock: clock.clone(),
            caller,
        };
        stream.end_if_over();
        stream
    }

    /// How long the answer took from the try's beginning to its last byte; `None` while it goes on.
    pub(super) fn finished_after(&self) -> Option<Duration> {
        self.taken
    }

    pub(super) fn stopwatch(&mut self) -> Stopwatch {
        match self.taken {
            Some(taken) => Stopwatch::stopped(taken),
            None => Stopwatch::running(
                self.stopwatch
                    .get_or_insert_with(|| Arc::new(AtomicU64::new(Stopwatch::RUNNING))),
            ),
        }
    }

    /// Ends it if its end was read already.
    fn end_if_over(&mut self) {
        if let Some(source) = &mut self.source
            && let Some(trailers) = source.reading.end(&mut source.wire.read)
        {
            self.finish();
            self.complete = trailers.is_none();
            self.trailers = trailers;
        }
    }

    /// All of it was read.
    fn finish(&mut self) {
        self.stop();
        let Some(mut source) = self.source.take() else {
            return;
        };
        // An answer that came before its request was all sent leaves a connection nobody can use.
        let sent = source
            .sending
            .take()
            .is_none_or(|sending| sending.has_arrived());
        if sent && source.reusable {
            pool::put(&source.lease, source.wire, self.clock.now(), &self.clock);
        }
    }

    /// It ends here, too early.
    fn fail(&mut self, error: Error) -> Error {
        self.stop();
        error.count();
        if let Some(source) = self.source.take() {
            let (client, upstream) = (self.caller.text(), &*source.lease.name);
            if let Error::Client(_) = error {
                tracing::info!(client, upstream, "{error}");
            } else {
                tracing::error!(client, upstream, "{error}");
            }
        }
        error
    }

    fn stop(&mut self) {
        if self.taken.is_none() {
            let taken = self.clock.now().since(self.started);
            self.taken = Some(taken);
            if let Some(stopwatch) = &self.stopwatch {
                let millis = u64::try_from(taken.as_millis()).unwrap_or(Stopwatch::RUNNING);
                stopwatch.store(millis, Ordering::Relaxed);
            }
        }
    }
}

impl Source {
    /// The next piece, as soon as there is one.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Piece, Error>> {
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
                    return Poll::Ready(Ok(Piece::End(None)));
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

impl Body for Stream {
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
            Ok(Piece::Data(data)) => {
                this.end_if_over();
                Some(Ok(Frame::data(data)))
            }
            Ok(Piece::End(trailers)) => {
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
            Some(source) => source.reading.size_hint(),
            None if self.complete => SizeHint::with_exact(0),
            None => SizeHint::default(),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop();
    }
}
