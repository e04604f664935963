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
use http_body::{Body as _, Frame, SizeHint};
use parking_lot::Mutex;

use super::ResponseTimer;
use super::stream::StreamingBody;
use crate::message::{ClientConnection, ReadAhead};
use crate::spool::ResponseBuffer;
use crate::upstream::error::Error;

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
            self.client.line.refill.set(Some(refill));
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
            self.client.line.refill.set(None);
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
