//! A body that is still coming.
//!
//! It owns the connection it is read from. Read to its end, the connection is kept for the next request; let go
//! before, it is closed on the spot, because what is left on it belongs to nobody.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::source::StreamSource;
use super::{BodyObserver, ResponseProgress, ResponseTimer};
use crate::clock::{Clock, Millis};
use crate::upstream::breaker::{Breaker, CallOutcome, CallTicket};
use crate::upstream::error::Error;
use crate::upstream::http1::BodyChunk;

/// The rest of an answer.
#[derive(Debug)]
pub(super) struct StreamingBody {
    // `None` once the answer is over, in whatever way.
    source: Option<StreamSource>,
    // Those of an answer that is over and was asked for its last data only.
    trailers: Option<HeaderMap>,
    complete: bool,
    started: Millis,
    taken: Option<Duration>,
    // Whoever has passed the response on hears here how it goes.
    course: Option<Arc<ResponseProgress>>,
    tee: Option<Box<dyn BodyObserver>>,
    // What the backend's breaker let it through as.
    ticket: Option<CallTicket>,
    // Another that wants to know, and what that let it through as.
    judge: Option<(Arc<Breaker>, CallTicket)>,
    clock: Clock,
}

impl StreamingBody {
    /// A body of which this much is known, of an answer asked for at `started`.
    pub(super) fn new(
        mut source: StreamSource,
        ticket: Option<CallTicket>,
        started: Millis,
        clock: &Clock,
    ) -> Self {
        source.prepare();
        let mut stream = Self {
            source: Some(source),
            trailers: None,
            complete: false,
            started,
            taken: None,
            course: None,
            tee: None,
            ticket,
            judge: None,
            clock: clock.clone(),
        };
        stream.end_if_over();
        stream
    }

    /// How long the answer took from the try's beginning to its last byte; `None` while it goes on.
    pub(super) fn finished_after(&self) -> Option<Duration> {
        self.taken
    }

    pub(super) fn stopwatch(&mut self) -> ResponseTimer {
        match self.taken {
            Some(taken) => ResponseTimer::stopped(taken),
            None => ResponseTimer::running(self.course.get_or_insert_default()),
        }
    }

    /// All that comes is shown to this, too.
    pub(super) fn tee(&mut self, tee: Box<dyn BodyObserver>) {
        self.tee = Some(tee);
    }

    /// This hears, too, if it comes to nothing.
    pub(super) fn judged_by(&mut self, breaker: &Arc<Breaker>, ticket: CallTicket) {
        self.judge = Some((Arc::clone(breaker), ticket));
    }

    /// It was booked as an answer, and is none.
    fn blame(&self, source: &StreamSource) {
        let now = self.clock.now();
        if let Some(ticket) = self.ticket {
            source.blame(ticket, now);
        }
        if let Some((judge, ticket)) = &self.judge {
            judge.regret(*ticket, now);
        }
    }

    /// Ends it if its end was read already.
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
        if let Some(tee) = self.tee.take() {
            tee.complete();
        }
        if let Some(source) = self.source.take() {
            if source.has_failed() {
                self.blame(&source);
            }
            source.keep(&self.clock);
        }
    }

    /// It ends here, too early.
    fn fail(&mut self, error: Error) -> Error {
        self.stop();
        // What will never be complete need not be held until this is dropped.
        self.tee = None;
        error.count();
        if let Some(source) = self.source.take() {
            if CallOutcome::of(&error) == CallOutcome::Failure {
                self.blame(&source);
            }
            if let Some(course) = &self.course {
                course.fail(&error);
            }
        }
        error
    }

    fn stop(&mut self) {
        if self.taken.is_none() {
            let taken = self.clock.now().since(self.started);
            self.taken = Some(taken);
            if let Some(course) = &self.course {
                course.stop(taken);
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
                if let Some(tee) = &mut this.tee
                    && !tee.piece(&data)
                {
                    this.tee = None;
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
