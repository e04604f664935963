//! A body that is still coming.
//!
//! It owns the connection it is read from. Read to its end, the connection is kept for the next request; let go
//! before, it is closed on the spot, because what is left on it belongs to nobody.
//!
//! A body that is read as fast as the backend sends it, whatever its client takes.
//!
//! The client's connection asks for the next piece when it can take one, and that comes straight from the backend while
//! nothing waits. When the connection can take nothing, it says so ([`ReadAhead`]), and what the backend has sent is read into
//! a backlog. Both happen in the task of the connection: a client that keeps up costs no copy and no task. Read to its end,
//! the backend's connection is kept for others, however long the client still takes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;

use super::breaker::{Breaker, CallOutcome};
use super::error::Error;
use super::http1::BodyChunk;
use super::response::{BodyObserver, ResponseProgress, ResponseTimer, StreamSource};
use crate::clock::{Clock, Millis};
use crate::message::{ClientConnection, ReadAhead};
use crate::spool::ResponseBuffer;
use crate::upstream::breaker::machine::CallTicket;

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

/// The rest of an answer, and what of it has come already.
#[derive(Debug)]
pub(super) struct BufferedBody {
    state: Arc<BufferedBodyShared>,
    client: Arc<ClientConnection>,
    // The client's connection knows of it.
    known: bool,
}

#[derive(Debug)]
struct BufferedBodyShared(Mutex<BufferedBodyState>);

#[derive(Debug)]
struct BufferedBodyState {
    // Boxed before, and seldom looked at.
    stream: Box<StreamingBody>,
    backlog: ResponseBuffer,
    // What comes after the backlog, once that is known.
    end: Option<BufferedEnd>,
}

#[derive(Debug)]
enum BufferedEnd {
    Complete(Option<HeaderMap>),
    Failed(Error),
    /// It was told already.
    Told,
}

impl BufferedBody {
    pub(super) fn new(
        stream: Box<StreamingBody>,
        backlog: ResponseBuffer,
        client: &Arc<ClientConnection>,
    ) -> Self {
        Self {
            state: Arc::new(BufferedBodyShared(Mutex::new(BufferedBodyState {
                stream,
                backlog,
                end: None,
            }))),
            client: Arc::clone(client),
            known: false,
        }
    }

    pub(super) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if !std::mem::replace(&mut self.known, true) {
            let refill = Arc::clone(&self.state);
            self.client.state.set_read_ahead(Some(refill));
        }
        self.state.0.lock().poll_frame(context)
    }

    pub(super) fn finished_after(&self) -> Option<Duration> {
        self.state.0.lock().stream.finished_after()
    }

    pub(super) fn stopwatch(&self) -> ResponseTimer {
        self.state.0.lock().stream.stopwatch()
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let state = self.state.0.lock();
        state.backlog.is_empty()
            && match &state.end {
                Some(end) => matches!(end, BufferedEnd::Told | BufferedEnd::Complete(None)),
                None => state.stream.is_end_stream(),
            }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let state = self.state.0.lock();
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
        if self.known {
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
        match self.end.replace(BufferedEnd::Told) {
            Some(BufferedEnd::Complete(trailers)) => {
                Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
            }
            Some(BufferedEnd::Failed(error)) => Poll::Ready(Some(Err(error))),
            Some(BufferedEnd::Told) => Poll::Ready(None),
            None => {
                self.end = None;
                let frame = ready!(Pin::new(&mut *self.stream).poll_frame(context));
                if frame.is_none() {
                    self.end = Some(BufferedEnd::Told);
                }
                Poll::Ready(frame)
            }
        }
    }

    /// Reads what has come while there is room for it.
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
                    self.end = Some(BufferedEnd::Complete(frame.into_trailers().ok()))
                }
                Ok(None) => self.end = Some(BufferedEnd::Complete(None)),
                Err(error) => self.end = Some(BufferedEnd::Failed(error)),
            }
        }
    }
}

impl ReadAhead for BufferedBodyShared {
    fn refill(&self, context: &mut Context<'_>) {
        self.0.lock().refill(context);
    }
}
