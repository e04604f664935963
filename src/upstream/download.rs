//! The body of an answer on its way to the client.
//!
//! It owns the connection it is read from. Read to its end, the connection is kept for the next request; let go
//! before, it is closed on the spot, because what is left on it belongs to nobody.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::ask::Answer;
use super::backend::Lease;
use super::connect::Connection;
use super::error::{Error, Stage};
use super::pool;
use super::sending::Watch;
use crate::clock::{Clock, Deadline, Millis};
use crate::message::Peer;

/// An answer's body.
#[derive(Debug)]
pub struct Download {
    incoming: Incoming,
    // `None` once the answer is over, in whatever way.
    source: Option<Source>,
    keep: Keep,
    pause: Duration,
    deadline: Deadline,
    complete: bool,
    started: Millis,
    taken: Option<Duration>,
    stopwatch: Option<Stopwatch>,
    clock: Clock,
    peer: Arc<Peer>,
}

#[derive(Debug)]
struct Source {
    connection: Connection,
    watch: Option<Arc<Watch>>,
    lease: Lease,
}

/// Whether a connection is kept when its answer is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// Not one to a backend of HTTP/1.0, as in nginx: hyper would speak 1.0 too from then on, which has no way to
    /// send a body of unknown length.
    Never,
    /// If request and answer are whole.
    Whole,
}

/// Tells how long an answer took after its [`Download`] has been handed to somebody else.
#[derive(Debug, Clone)]
pub struct Stopwatch(Arc<AtomicU64>);

impl Download {
    pub(super) fn begin(
        answer: Answer,
        lease: Lease,
        pause: Duration,
        clock: &Clock,
        peer: &Arc<Peer>,
    ) -> Response<Self> {
        let old = answer.response.version() == Version::HTTP_10;
        answer.response.map(|incoming| {
            let mut download = Self {
                incoming,
                source: Some(Source {
                    connection: answer.connection,
                    watch: answer.watch,
                    lease,
                }),
                keep: if old { Keep::Never } else { Keep::Whole },
                pause,
                deadline: Deadline::default(),
                complete: false,
                started: answer.started,
                taken: None,
                stopwatch: None,
                clock: clock.clone(),
                peer: Arc::clone(peer),
            };
            if download.incoming.is_end_stream() {
                download.complete();
            }
            download
        })
    }

    /// How long the answer took from the try's beginning to its last byte; `None` while it goes on.
    #[must_use]
    pub fn finished_after(&self) -> Option<Duration> {
        self.taken
    }

    /// Something to ask [`Download::finished_after`] when this is out of reach.
    // Only made when asked for: an answer whose times nobody logs does without.
    pub fn stopwatch(&mut self) -> Stopwatch {
        let taken = self.taken;
        self.stopwatch
            .get_or_insert_with(|| {
                let stopwatch = Stopwatch(Arc::new(AtomicU64::new(RUNNING)));
                if let Some(taken) = taken {
                    stopwatch.stop(taken);
                }
                stopwatch
            })
            .clone()
    }

    /// All of it was read.
    fn complete(&mut self) {
        self.complete = true;
        self.stop();
        let Some(source) = self.source.take() else {
            return;
        };
        // An answer that came before its request was all sent leaves a connection nobody can use.
        let sent = source
            .watch
            .is_none_or(|watch| watch.ended().is_some() && !watch.has_failed());
        if sent && self.keep == Keep::Whole {
            pool::put(&source.lease, source.connection, &self.clock);
        }
    }

    /// It ends here, too early.
    fn fail(&mut self, error: Option<hyper::Error>) -> Error {
        self.stop();
        let Some(source) = self.source.take() else {
            return Error::Timeout(Stage::Body);
        };
        let client_failed = source.watch.is_some_and(|watch| watch.has_failed());
        let error = match error {
            Some(error) if client_failed => Error::Client(error),
            Some(_) if source.connection.has_stalled() => Error::Timeout(Stage::Send),
            Some(error) => Error::Truncated(error),
            None => Error::Timeout(Stage::Body),
        };
        let (client, upstream) = (self.peer.text(), &*source.lease.name);
        if client_failed {
            tracing::info!(client, upstream, "{error}");
        } else {
            tracing::error!(client, upstream, "{error}");
        }
        error
    }

    fn stop(&mut self) {
        if self.taken.is_none() {
            let taken = self.clock.now().since(self.started);
            self.taken = Some(taken);
            if let Some(stopwatch) = &self.stopwatch {
                stopwatch.stop(taken);
            }
        }
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
        if this.source.is_none() {
            return Poll::Ready(None);
        }
        let Poll::Ready(frame) = Pin::new(&mut this.incoming).poll_frame(context) else {
            this.deadline.start(this.pause);
            ready!(this.deadline.poll_passed(context));
            return Poll::Ready(Some(Err(this.fail(None))));
        };
        this.deadline.clear();
        Poll::Ready(match frame {
            Some(Ok(frame)) => {
                if this.incoming.is_end_stream() {
                    this.complete();
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => Some(Err(this.fail(Some(error)))),
            None => {
                this.complete();
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.complete
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
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
        match self.0.load(Ordering::Relaxed) {
            RUNNING => None,
            millis => Some(Duration::from_millis(millis)),
        }
    }

    fn stop(&self, taken: Duration) {
        let millis = u64::try_from(taken.as_millis()).unwrap_or(RUNNING);
        self.0.store(millis, Ordering::Relaxed);
    }
}

const RUNNING: u64 = u64::MAX;
