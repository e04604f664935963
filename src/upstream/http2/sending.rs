//! A request's body on its way out, as fast as the backend takes it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::SendStream;
use http::HeaderMap;
use http_body::Body as _;

use crate::clock::Deadline;
use crate::message::RequestBody;
use crate::upstream::error::{Error, Stage};
use crate::upstream::http1::{PendingBody, may_trail};

/// What is left to send of a request.
#[derive(Debug)]
pub(super) struct StreamWriter {
    stream: SendStream<Bytes>,
    upload: RequestBody,
    piece: Bytes,
    begun: bool,
    over: bool,
    stalled: Deadline,
}

impl StreamWriter {
    pub(super) fn new(stream: SendStream<Bytes>, cargo: PendingBody) -> Self {
        let over = cargo.is_none();
        let (upload, piece) = cargo.into_parts();
        Self {
            stream,
            upload,
            piece,
            begun: false,
            over,
            stalled: Deadline::default(),
        }
    }

    /// Whether there is nothing more to send.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// What was to be sent, if nothing of it has left.
    pub(super) fn into_unsent(self) -> Option<PendingBody> {
        (!self.begun).then(|| PendingBody::from_parts(self.upload, self.piece))
    }

    /// Sends on; ready when all has left, or the backend wants no more.
    pub(super) fn poll(
        &mut self,
        timeout: Duration,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        while !self.over {
            if self.piece.is_empty() {
                ready!(self.poll_piece(context))?;
                continue;
            }
            if !ready!(self.poll_room(timeout, context))? {
                self.over = true;
                break;
            }
            self.begun = true;
            self.over = self.upload.is_end_stream();
            let piece = std::mem::take(&mut self.piece);
            self.over |= self.stream.send_data(piece, self.over).is_err();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let frame = ready!(Pin::new(&mut self.upload).poll_frame(context));
        match frame.transpose().map_err(Error::Client)? {
            None => self.end(None),
            Some(frame) => match frame.into_data() {
                Ok(data) => self.piece = data,
                Err(frame) => self.end(frame.into_trailers().ok()),
            },
        }
        Poll::Ready(Ok(()))
    }

    fn end(&mut self, trailers: Option<HeaderMap>) {
        self.begun = true;
        self.over = true;
        // A backend that takes no more has answered, or is gone: whoever reads finds out.
        drop(match trailers {
            Some(trailers) => self.stream.send_trailers(fit(trailers)),
            None => self.stream.send_data(Bytes::new(), true),
        });
    }

    /// Ready with whether the backend takes more.
    fn poll_room(
        &mut self,
        timeout: Duration,
        context: &mut Context<'_>,
    ) -> Poll<Result<bool, Error>> {
        if self.stream.capacity() == 0 {
            self.stream.reserve_capacity(1);
            let Poll::Ready(room) = self.stream.poll_capacity(context) else {
                self.stalled.start(timeout);
                ready!(self.stalled.poll_passed(context));
                return Poll::Ready(Err(Error::Timeout(Stage::Send)));
            };
            self.stalled.clear();
            return Poll::Ready(Ok(matches!(room, Some(Ok(_)))));
        }
        Poll::Ready(Ok(true))
    }
}

/// The trailers that may follow a request.
fn fit(trailers: HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::with_capacity(trailers.len());
    for (name, value) in &trailers {
        if may_trail(name) {
            kept.append(name, value.clone());
        }
    }
    kept
}
