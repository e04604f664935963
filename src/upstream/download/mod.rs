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

use self::buffered::Buffered;
use self::source::{Source, Streamed, Wired};
use self::stream::Stream;
use super::ask::{Answer, Carrier};
use super::backend::Lease;
use super::breaker::{Breaker, Ticket};
use super::error::Error;
use super::http1::Reading;
use super::pool;
use super::switched::Switched;
use crate::clock::Clock;
use crate::config::plan::{Forward, SendProxy};
use crate::message::{Lines, Peer};
use crate::spool::Backlog;

/// An answer's body.
#[derive(Debug)]
pub struct Download(Body);

// Kept small: it is moved from hand to hand.
#[derive(Debug)]
enum Body {
    Buffered(Box<Buffered>),
    Stream(Box<Stream>),
    /// None: what follows the head is not HTTP.
    Switched(Box<Switched>),
    Whole {
        bytes: Bytes,
        lines: Option<Lines>,
        taken: Duration,
    },
}

/// A body that was read with its head.
#[derive(Debug)]
pub struct Whole {
    /// All of it.
    pub bytes: Bytes,
    /// The answer's fields, where they were written out instead of put in its head.
    pub lines: Option<Lines>,
}

/// Somebody who wants a copy of an answer that goes to somebody else.
pub trait Tee: std::fmt::Debug + Send {
    /// The next piece of its body; false if no more is wanted.
    fn piece(&mut self, data: &[u8]) -> bool;
    /// That was all of it. An answer that breaks off never comes to this.
    fn complete(self: Box<Self>);
}

/// Tells how long an answer took, and why it ended too early, after its [`Download`] has been handed to somebody else.
#[derive(Debug, Clone)]
pub struct Stopwatch(Time);

#[derive(Debug, Clone)]
enum Time {
    Known(Duration),
    Running(Arc<Course>),
}

/// How a response that was passed on goes on.
#[derive(Debug)]
struct Course {
    /// How long it took in milliseconds, once it is known.
    millis: AtomicU64,
    /// Why it ended too early, for the log.
    failure: OnceLock<BodyFailure>,
}

/// Why a response's body ended too early.
#[derive(Debug)]
pub struct BodyFailure {
    /// In nginx's words.
    pub message: Box<str>,
    /// Whether it was the client's doing.
    pub is_clients: bool,
}

impl Download {
    pub(super) fn begin(
        answer: Answer,
        lease: Lease,
        forward: &Forward,
        clock: &Clock,
    ) -> Response<Self> {
        let Answer {
            mut head,
            carrier,
            started,
            came,
            ticket,
        } = answer;
        let (mut wire, sending, heard) = match carrier {
            Carrier::Stream(receiving) => {
                let source = Source::Stream(Streamed {
                    receiving,
                    lease,
                    read_timeout: forward.read_timeout,
                    send_timeout: forward.send_timeout,
                });
                let stream = Stream::new(source, ticket, started, clock);
                return head.into_response(Self(Body::Stream(Box::new(stream))));
            }
            Carrier::Wire {
                wire,
                sending,
                heard,
            } => (wire, sending, heard),
        };
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            let switched = Switched::new(wire, lease, started, clock);
            return head.into_response(Self(Body::Switched(Box::new(switched))));
        }
        let mut reading = std::mem::replace(&mut head.reading, Reading::nothing());
        let shared = forward.proxy_protocol == SendProxy::Off;
        let reusable = head.reusable && heard && shared;
        if sending.is_none()
            && let Some(bytes) = reading.take_all(&mut wire.read)
        {
            if reusable {
                pool::put(&lease, wire, came, clock);
            }
            let taken = came.since(started);
            let lines = head.lines.take();
            return head.into_response(Self(Body::Whole {
                bytes,
                lines,
                taken,
            }));
        }
        debug_assert!(head.lines.is_none(), "only a whole answer is written out");
        let source = Source::Wire(Wired {
            wire,
            reading,
            sending,
            reusable,
            lease,
            read_timeout: forward.read_timeout,
            send_timeout: forward.send_timeout,
        });
        let stream = Stream::new(source, ticket, started, clock);
        head.into_response(Self(Body::Stream(Box::new(stream))))
    }

    /// All of it, if it was read with the head and nothing was taken yet.
    ///
    /// # Errors
    ///
    /// Itself, if more is to come.
    pub fn into_whole(self) -> Result<Whole, Self> {
        match self.0 {
            Body::Whole { bytes, lines, .. } => Ok(Whole { bytes, lines }),
            Body::Buffered(_) | Body::Stream(_) | Body::Switched(_) => Err(self),
        }
    }

    /// The connection itself, where the answer was to switch protocols; there is no body then.
    pub fn take_switched(&mut self) -> Option<Box<Switched>> {
        if !matches!(self.0, Body::Switched(_)) {
            return None;
        }
        let nothing = Body::Whole {
            bytes: Bytes::new(),
            lines: None,
            taken: Duration::ZERO,
        };
        match std::mem::replace(&mut self.0, nothing) {
            Body::Switched(switched) => Some(switched),
            Body::Buffered(_) | Body::Stream(_) | Body::Whole { .. } => None,
        }
    }

    /// Reads it as fast as the backend sends it; what this client cannot take yet waits in the backlog.
    #[must_use]
    pub fn buffered(self, backlog: Backlog, client: &Arc<Peer>) -> Self {
        Self(match self.0 {
            Body::Stream(stream) => {
                Body::Buffered(Box::new(Buffered::new(stream, backlog, client)))
            }
            other => other,
        })
    }

    /// Shows all of it to somebody else, too; nothing of one that was read with its head.
    pub fn tee(&mut self, tee: Box<dyn Tee>) {
        if let Body::Stream(stream) = &mut self.0 {
            stream.tee(tee);
        }
    }

    /// Tells this breaker, too, which let it through, if it comes to nothing; one that was read with its head has come
    /// to something.
    pub fn judged_by(&mut self, breaker: &Arc<Breaker>, ticket: Ticket) {
        if let Body::Stream(stream) = &mut self.0 {
            stream.judged_by(breaker, ticket);
        }
    }

    /// How long the answer took from the try's beginning to its last byte; `None` while it goes on.
    #[must_use]
    pub fn finished_after(&self) -> Option<Duration> {
        match &self.0 {
            Body::Buffered(buffered) => buffered.finished_after(),
            Body::Stream(stream) => stream.finished_after(),
            Body::Switched(_) => None,
            Body::Whole { taken, .. } => Some(*taken),
        }
    }

    /// Something to ask [`Download::finished_after`] when this is out of reach.
    pub fn stopwatch(&mut self) -> Stopwatch {
        match &mut self.0 {
            Body::Buffered(buffered) => buffered.stopwatch(),
            Body::Stream(stream) => stream.stopwatch(),
            Body::Switched(switched) => switched.stopwatch(),
            Body::Whole { taken, .. } => Stopwatch::stopped(*taken),
        }
    }
}

impl http_body::Body for Download {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match &mut self.0 {
            Body::Buffered(buffered) => buffered.poll_frame(context),
            Body::Stream(stream) => Pin::new(&mut **stream).poll_frame(context),
            Body::Switched(_) => Poll::Ready(None),
            Body::Whole { bytes, .. } if bytes.is_empty() => Poll::Ready(None),
            Body::Whole { bytes, .. } => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Body::Buffered(buffered) => buffered.is_end_stream(),
            Body::Stream(stream) => stream.is_end_stream(),
            Body::Switched(_) => true,
            Body::Whole { bytes, .. } => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Body::Buffered(buffered) => buffered.size_hint(),
            Body::Stream(stream) => stream.size_hint(),
            Body::Switched(_) => SizeHint::with_exact(0),
            Body::Whole { bytes, .. } => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}

impl Stopwatch {
    fn stopped(after: Duration) -> Self {
        Self(Time::Known(after))
    }

    /// One that runs until [`Stopwatch::stop`].
    pub(super) fn begin() -> Self {
        Self::running(&Arc::default())
    }

    /// It took so long.
    pub(super) fn stop(&self, taken: Duration) {
        if let Time::Running(course) = &self.0 {
            course.stop(taken);
        }
    }

    fn running(course: &Arc<Course>) -> Self {
        Self(Time::Running(Arc::clone(course)))
    }

    /// Why the body ended too early, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<&BodyFailure> {
        match &self.0 {
            Time::Known(_) => None,
            Time::Running(course) => course.failure.get(),
        }
    }

    /// How long the answer took; `None` while it goes on.
    #[must_use]
    pub fn finished_after(&self) -> Option<Duration> {
        match &self.0 {
            Time::Known(taken) => Some(*taken),
            Time::Running(course) => match course.millis.load(Ordering::Relaxed) {
                Course::RUNNING => None,
                millis => Some(Duration::from_millis(millis)),
            },
        }
    }
}

impl Default for Course {
    fn default() -> Self {
        Self {
            millis: AtomicU64::new(Self::RUNNING),
            failure: OnceLock::new(),
        }
    }
}

impl Course {
    fn stop(&self, taken: Duration) {
        let taken = u64::try_from(taken.as_millis()).unwrap_or(Self::RUNNING);
        self.millis.store(taken, Ordering::Relaxed);
    }

    fn fail(&self, error: &Error) {
        self.failure.get_or_init(|| BodyFailure {
            message: error.to_string().into(),
            is_clients: error.client_fault().is_some(),
        });
    }

    /// What stands for a time that is not known yet.
    const RUNNING: u64 = u64::MAX;
}
