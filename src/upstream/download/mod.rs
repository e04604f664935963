//! The body of an answer on its way to the client.
//!
//! Most answers have been read whole with their head. Such a body is a piece of what was read and nothing else: the
//! connection is kept for the next request before the client hears of this one.

mod buffered;
mod source;
mod stream;

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Frame, SizeHint};

use self::buffered::BufferedBody;
use self::source::{Http1Source, Http2Source, StreamSource};
use self::stream::StreamingBody;
use super::ask::{AttemptResponse, ResponseSource};
use super::backend::ActiveRequest;
use super::breaker::{Breaker, CallTicket};
use super::error::Error;
use super::http1::BodyFraming;
use super::pool;
use super::switched::UpgradedConnection;
use crate::clock::Clock;
use crate::config::plan::{ProxyPass, ProxyProtocolVersion};
use crate::message::{ClientConnection, RawHeaders};
use crate::spool::ResponseBuffer;

/// An answer's body.
#[derive(Debug)]
pub struct UpstreamBody(UpstreamBodyKind);

// Kept small: it is moved from hand to hand.
#[derive(Debug)]
enum UpstreamBodyKind {
    Buffered(Box<BufferedBody>),
    Stream(Box<StreamingBody>),
    /// None: what follows the head is not HTTP.
    Switched(Box<UpgradedConnection>),
    Whole {
        bytes: Bytes,
        lines: Option<RawHeaders>,
        taken: Duration,
    },
}

/// A body that was read with its head.
#[derive(Debug)]
pub struct CompleteBody {
    /// All of it.
    pub bytes: Bytes,
    /// The answer's fields, where they were written out instead of put in its head.
    pub lines: Option<RawHeaders>,
}

/// Somebody who wants a copy of an answer that goes to somebody else.
pub trait BodyObserver: std::fmt::Debug + Send {
    /// The next piece of its body; false if no more is wanted.
    fn piece(&mut self, data: &[u8]) -> bool;
    /// That was all of it. An answer that breaks off never comes to this.
    fn complete(self: Box<Self>);
}

/// Tells how long an answer took, and why it ended too early, after its [`UpstreamBody`] has been handed to somebody else.
#[derive(Debug, Clone)]
pub struct ResponseTimer(TimerState);

#[derive(Debug, Clone)]
enum TimerState {
    Known(Duration),
    Running(Arc<ResponseProgress>),
}

/// How a response that was passed on goes on.
#[derive(Debug)]
struct ResponseProgress {
    /// How long it took in milliseconds, once it is known.
    millis: AtomicU64,
    /// Why it ended too early, for the log.
    failure: OnceLock<BodyError>,
}

/// Why a response's body ended too early.
#[derive(Debug)]
pub struct BodyError {
    /// In nginx's words.
    pub message: Box<str>,
    /// Whether it was the client's doing.
    pub is_clients: bool,
}

impl UpstreamBody {
    pub(super) fn begin(
        answer: AttemptResponse,
        lease: ActiveRequest,
        forward: &ProxyPass,
        clock: &Clock,
    ) -> Response<Self> {
        let AttemptResponse {
            mut head,
            carrier,
            started,
            came,
            ticket,
        } = answer;
        let (mut wire, sending, heard) = match carrier {
            ResponseSource::Stream(receiving) => {
                let source = StreamSource::Stream(Http2Source {
                    receiving,
                    lease,
                    read_timeout: forward.read_timeout,
                    send_timeout: forward.send_timeout,
                });
                let stream = StreamingBody::new(source, ticket, started, clock);
                return head.into_response(Self(UpstreamBodyKind::Stream(Box::new(stream))));
            }
            ResponseSource::Wire {
                wire,
                sending,
                heard,
            } => (wire, sending, heard),
        };
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            let switched = UpgradedConnection::new(wire, lease, started, clock);
            return head.into_response(Self(UpstreamBodyKind::Switched(Box::new(switched))));
        }
        let mut reading = std::mem::replace(&mut head.reading, BodyFraming::nothing());
        let shared = forward.proxy_protocol == ProxyProtocolVersion::Off;
        let reusable = head.reusable && heard && shared;
        if sending.is_none()
            && let Some(bytes) = reading.take_all(&mut wire.read)
        {
            if reusable {
                pool::put(&lease, wire, came, clock);
            }
            let taken = came.since(started);
            let lines = head.lines.take();
            return head.into_response(Self(UpstreamBodyKind::Whole {
                bytes,
                lines,
                taken,
            }));
        }
        debug_assert!(head.lines.is_none(), "only a whole answer is written out");
        let source = StreamSource::Wire(Http1Source {
            wire,
            reading,
            sending,
            reusable,
            lease,
            read_timeout: forward.read_timeout,
            send_timeout: forward.send_timeout,
        });
        let stream = StreamingBody::new(source, ticket, started, clock);
        head.into_response(Self(UpstreamBodyKind::Stream(Box::new(stream))))
    }

    /// All of it, if it was read with the head and nothing was taken yet.
    ///
    /// # Errors
    ///
    /// Itself, if more is to come.
    pub fn into_whole(self) -> Result<CompleteBody, Self> {
        match self.0 {
            UpstreamBodyKind::Whole { bytes, lines, .. } => Ok(CompleteBody { bytes, lines }),
            UpstreamBodyKind::Buffered(_)
            | UpstreamBodyKind::Stream(_)
            | UpstreamBodyKind::Switched(_) => Err(self),
        }
    }

    /// The connection itself, where the answer was to switch protocols; there is no body then.
    pub fn take_switched(&mut self) -> Option<Box<UpgradedConnection>> {
        if !matches!(self.0, UpstreamBodyKind::Switched(_)) {
            return None;
        }
        let nothing = UpstreamBodyKind::Whole {
            bytes: Bytes::new(),
            lines: None,
            taken: Duration::ZERO,
        };
        match std::mem::replace(&mut self.0, nothing) {
            UpstreamBodyKind::Switched(switched) => Some(switched),
            UpstreamBodyKind::Buffered(_)
            | UpstreamBodyKind::Stream(_)
            | UpstreamBodyKind::Whole { .. } => None,
        }
    }

    /// Reads it as fast as the backend sends it; what this client cannot take yet waits in the backlog.
    #[must_use]
    pub fn buffered(self, backlog: ResponseBuffer, client: &Arc<ClientConnection>) -> Self {
        Self(match self.0 {
            UpstreamBodyKind::Stream(stream) => {
                UpstreamBodyKind::Buffered(Box::new(BufferedBody::new(stream, backlog, client)))
            }
            other => other,
        })
    }

    /// Shows all of it to somebody else, too; nothing of one that was read with its head.
    pub fn tee(&mut self, tee: Box<dyn BodyObserver>) {
        if let UpstreamBodyKind::Stream(stream) = &mut self.0 {
            stream.tee(tee);
        }
    }

    /// Tells this breaker, too, which let it through, if it comes to nothing; one that was read with its head has come
    /// to something.
    pub fn judged_by(&mut self, breaker: &Arc<Breaker>, ticket: CallTicket) {
        if let UpstreamBodyKind::Stream(stream) = &mut self.0 {
            stream.judged_by(breaker, ticket);
        }
    }

    /// How long the answer took from the try's beginning to its last byte; `None` while it goes on.
    #[must_use]
    pub fn finished_after(&self) -> Option<Duration> {
        match &self.0 {
            UpstreamBodyKind::Buffered(buffered) => buffered.finished_after(),
            UpstreamBodyKind::Stream(stream) => stream.finished_after(),
            UpstreamBodyKind::Switched(_) => None,
            UpstreamBodyKind::Whole { taken, .. } => Some(*taken),
        }
    }

    /// Something to ask [`UpstreamBody::finished_after`] when this is out of reach.
    pub fn stopwatch(&mut self) -> ResponseTimer {
        match &mut self.0 {
            UpstreamBodyKind::Buffered(buffered) => buffered.stopwatch(),
            UpstreamBodyKind::Stream(stream) => stream.stopwatch(),
            UpstreamBodyKind::Switched(switched) => switched.stopwatch(),
            UpstreamBodyKind::Whole { taken, .. } => ResponseTimer::stopped(*taken),
        }
    }
}

impl http_body::Body for UpstreamBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match &mut self.0 {
            UpstreamBodyKind::Buffered(buffered) => buffered.poll_frame(context),
            UpstreamBodyKind::Stream(stream) => Pin::new(&mut **stream).poll_frame(context),
            UpstreamBodyKind::Switched(_) => Poll::Ready(None),
            UpstreamBodyKind::Whole { bytes, .. } if bytes.is_empty() => Poll::Ready(None),
            UpstreamBodyKind::Whole { bytes, .. } => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes)))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            UpstreamBodyKind::Buffered(buffered) => buffered.is_end_stream(),
            UpstreamBodyKind::Stream(stream) => stream.is_end_stream(),
            UpstreamBodyKind::Switched(_) => true,
            UpstreamBodyKind::Whole { bytes, .. } => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            UpstreamBodyKind::Buffered(buffered) => buffered.size_hint(),
            UpstreamBodyKind::Stream(stream) => stream.size_hint(),
            UpstreamBodyKind::Switched(_) => SizeHint::with_exact(0),
            UpstreamBodyKind::Whole { bytes, .. } => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}

impl ResponseTimer {
    fn stopped(after: Duration) -> Self {
        Self(TimerState::Known(after))
    }

    /// One that runs until [`ResponseTimer::stop`].
    pub(super) fn begin() -> Self {
        Self::running(&Arc::default())
    }

    /// It took so long.
    pub(super) fn stop(&self, taken: Duration) {
        if let TimerState::Running(course) = &self.0 {
            course.stop(taken);
        }
    }

    fn running(course: &Arc<ResponseProgress>) -> Self {
        Self(TimerState::Running(Arc::clone(course)))
    }

    /// Why the body ended too early, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<&BodyError> {
        match &self.0 {
            TimerState::Known(_) => None,
            TimerState::Running(course) => course.failure.get(),
        }
    }

    /// How long the answer took; `None` while it goes on.
    #[must_use]
    pub fn finished_after(&self) -> Option<Duration> {
        match &self.0 {
            TimerState::Known(taken) => Some(*taken),
            TimerState::Running(course) => match course.millis.load(Ordering::Relaxed) {
                ResponseProgress::RUNNING => None,
                millis => Some(Duration::from_millis(millis)),
            },
        }
    }
}

impl Default for ResponseProgress {
    fn default() -> Self {
        Self {
            millis: AtomicU64::new(Self::RUNNING),
            failure: OnceLock::new(),
        }
    }
}

impl ResponseProgress {
    fn stop(&self, taken: Duration) {
        let taken = u64::try_from(taken.as_millis()).unwrap_or(Self::RUNNING);
        self.millis.store(taken, Ordering::Relaxed);
    }

    fn fail(&self, error: &Error) {
        self.failure.get_or_init(|| BodyError {
            message: error.to_string().into(),
            is_clients: error.client_fault().is_some(),
        });
    }

    /// What stands for a time that is not known yet.
    const RUNNING: u64 = u64::MAX;
}
