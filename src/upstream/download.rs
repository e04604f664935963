//! The body of an answer on its way to the client.
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
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};

use super::ask::Answer;
use super::backend::Lease;
use super::error::{Error, Stage};
use super::http1::{Piece, Reading, Sending};
use super::pool;
use super::wire::Wire;
use crate::clock::{Clock, Millis};
use crate::config::plan::Forward;
use crate::message::Caller;

/// An answer's body.
#[derive(Debug)]
pub struct Download {
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
struct Source {
    wire: Wire,
    reading: Reading,
    // What is left to send of the request, which the answer overtook. Boxed: it seldom does.
    sending: Option<Box<Sending>>,
    reusable: bool,
    lease: Lease,
    read_timeout: Duration,
    send_timeout: Duration,
}

/// Tells how long an answer took after its [`Download`] has been handed to somebody else.
#[derive(Debug, Clone)]
pub struct Stopwatch(Time);

#[derive(Debug, Clone)]
enum Time {
    Known(Duration),
    /// In milliseconds, once it is known.
    Running(Arc<AtomicU64>),
}

impl Download {
    pub(super) fn begin(
        mut answer: Answer,
        lease: Lease,
        forward: &Forward,
        clock: &Clock,
        caller: Caller,
    ) -> Response<Self> {
        let over = answer.sending.is_over();
        let reading = std::mem::replace(&mut answer.head.reading, Reading::nothing());
        let here = reading.is_within(&answer.wire.read);
        if let Some(length) = reading.size_hint().exact().filter(|_| !here) {
            answer.wire.expect(length);
        }
        let mut download = Self {
            source: Some(Source {
                reusable: answer.head.reusable && (!over || answer.sending.has_arrived()),
                wire: answer.wire,
                reading,
                sending: (!over).then(|| Box::new(answer.sending)),
                lease,
                read_timeout: forward.read_timeout,
                send_timeout: forward.send_timeout,
            }),
            trailers: None,
            complete: false,
            started: answer.started,
            // An answer that came whole has taken what it took, whenever it is passed on.
            taken: here.then(|| answer.came.since(answer.started)),
            stopwatch: None,
            clock: clock.clone(),
            caller,
        };
        download.end_if_over();
        answer.head.into_response(download)
    }

    /// How long the answer took from the try's beginning to its last byte; `None` while it goes on.
    #[must_use]
    pub fn finished_after(&self) -> Option<Duration> {
        self.taken
    }

    /// Something to ask [`Download::finished_after`] when this is out of reach.
    // Nothing is shared where the time is known already, as it is of most answers.
    pub fn stopwatch(&mut self) -> Stopwatch {
        Stopwatch(match self.taken {
            Some(taken) => Time::Known(taken),
            None => Time::Running(Arc::clone(
                self.stopwatch
                    .get_or_insert_with(|| Arc::new(AtomicU64::new(RUNNING))),
            )),
        })
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
            pool::put(&source.lease, source.wire, &self.clock);
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
                let millis = u64::try_from(taken.as_millis()).unwrap_or(RUNNING);
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

impl Body for Download {
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

impl Drop for Download {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Stopwatch {
    /// How long the answer took; `None` while it goes on.
    #[must_use]
    pub fn finished_after(&self) -> Option<Duration> {
        match &self.0 {
            Time::Known(taken) => Some(*taken),
            Time::Running(millis) => match millis.load(Ordering::Relaxed) {
                RUNNING => None,
                millis => Some(Duration::from_millis(millis)),
            },
        }
    }
}

const RUNNING: u64 = u64::MAX;
