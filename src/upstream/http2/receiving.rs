//! The body of an answer, off a shared connection.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::RecvStream;
use http::{HeaderMap, header};
use http_body::SizeHint;

use super::pool::StreamPermit;
use super::sending::StreamWriter;
use super::truncated;
use crate::clock::Deadline;
use crate::message::grpc;
use crate::upstream::error::{Error, Stage};
use crate::upstream::http1::BodyChunk;

/// An answer's body, still coming.
#[derive(Debug)]
pub(in crate::upstream) struct StreamReader {
    stream: RecvStream,
    // What is left to send of the request, which the answer overtook.
    sending: Option<StreamWriter>,
    left: Option<u64>,
    data_over: bool,
    failed: bool,
    patience: Deadline,
    due: Deadline,
    _ride: StreamPermit,
}

impl StreamReader {
    pub(super) fn new(
        stream: RecvStream,
        sending: Option<StreamWriter>,
        headers: &HeaderMap,
        due: Deadline,
        ride: StreamPermit,
    ) -> Self {
        let length = headers.get(header::CONTENT_LENGTH);
        Self {
            left: length.and_then(|length| length.to_str().ok()?.parse().ok()),
            stream,
            sending,
            data_over: false,
            failed: false,
            patience: Deadline::default(),
            due,
            _ride: ride,
        }
    }

    /// Whether nothing more comes.
    pub(in crate::upstream) fn is_over(&self) -> bool {
        self.stream.is_end_stream()
    }

    /// Whether its backend has said at the end that it failed.
    pub(in crate::upstream) fn has_failed(&self) -> bool {
        self.failed
    }

    pub(in crate::upstream) fn size_hint(&self) -> SizeHint {
        match self.left {
            _ if self.is_over() => SizeHint::with_exact(0),
            Some(left) => SizeHint::with_exact(left),
            None => SizeHint::default(),
        }
    }

    /// The next piece, as soon as there is one.
    pub(in crate::upstream) fn poll_next(
        &mut self,
        read_timeout: Duration,
        send_timeout: Duration,
        context: &mut Context<'_>,
    ) -> Poll<Result<BodyChunk, Error>> {
        if let Some(sending) = &mut self.sending
            && let Poll::Ready(sent) = sending.poll(send_timeout, context)
        {
            sent?;
        }
        if let Poll::Ready(piece) = self.poll_piece(context) {
            self.patience.clear();
            return Poll::Ready(piece.map_err(truncated));
        }
        if self.due.poll_passed(context).is_ready() {
            // The client has stopped waiting, or is about to: it is told in its own words.
            return Poll::Ready(Ok(BodyChunk::End(Some(grpc::too_late()))));
        }
        self.patience.start(read_timeout);
        ready!(self.patience.poll_passed(context));
        Poll::Ready(Err(Error::Timeout(Stage::Body)))
    }

    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Result<BodyChunk, h2::Error>> {
        if !self.data_over {
            match ready!(self.stream.poll_data(context)).transpose()? {
                Some(data) => {
                    // The client has taken what came before: the backend may send as much again.
                    self.stream.flow_control().release_capacity(data.len())?;
                    self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                    return Poll::Ready(Ok(BodyChunk::Data(data)));
                }
                None => self.data_over = true,
            }
        }
        let trailers = ready!(self.stream.poll_trailers(context))?;
        self.failed = trailers.as_ref().is_some_and(grpc::failed);
        Poll::Ready(Ok(BodyChunk::End(trailers)))
    }
}
