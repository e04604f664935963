//! A request's body as the client sends it, over either version of HTTP.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use http_body::{Body, Frame, SizeHint};

use super::{ClientConnection, InterimResponse};

/// What comes from the client after the head of its request.
#[derive(Debug)]
pub enum IncomingBody {
    /// Over HTTP/1; hyper reads it.
    Http1(hyper::body::Incoming),
    /// Over HTTP/2.
    Http2(Http2Body),
}

/// The client's half of an HTTP/2 stream.
#[derive(Debug)]
pub struct Http2Body {
    receiving: RecvStream,
    // What is left of the length it announced; h2 holds it to that.
    left: Option<u64>,
    over: bool,
    // Whom to tell that its body is wanted.
    waits: Option<Arc<ClientConnection>>,
}

/// A request's body broke off, or was not well-formed.
#[derive(Debug, thiserror::Error)]
pub enum IncomingError {
    /// Over HTTP/1.
    #[error(transparent)]
    Http1(#[from] hyper::Error),
    /// Over HTTP/2; mostly a stream that the client has reset.
    #[error(transparent)]
    Http2(#[from] h2::Error),
}

impl IncomingBody {
    /// The body that follows on a stream, `length` bytes long if that was announced. `waits` is a client that holds
    /// it back until it is told to go on.
    #[must_use]
    pub fn stream(
        receiving: RecvStream,
        length: Option<u64>,
        waits: Option<Arc<ClientConnection>>,
    ) -> Self {
        Self::Http2(Http2Body {
            receiving,
            left: length,
            over: false,
            waits,
        })
    }
}

impl From<hyper::body::Incoming> for IncomingBody {
    fn from(incoming: hyper::body::Incoming) -> Self {
        Self::Http1(incoming)
    }
}

impl Http2Body {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncomingError>>> {
        if let Some(peer) = self.waits.take() {
            peer.line.send_interim(InterimResponse::go_on());
        }
        if !self.over {
            match ready!(self.receiving.poll_data(context)).transpose()? {
                Some(data) => {
                    // Nobody asks for more than can be sent on, so the client may send as much again.
                    self.receiving.flow_control().release_capacity(data.len())?;
                    self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                None => self.over = true,
            }
        }
        let trailers = ready!(self.receiving.poll_trailers(context))?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }
}

impl Body for IncomingBody {
    type Data = Bytes;
    type Error = IncomingError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncomingError>>> {
        match &mut *self {
            Self::Http1(incoming) => {
                let frame = ready!(Pin::new(incoming).poll_frame(context));
                Poll::Ready(frame.map(|frame| frame.map_err(IncomingError::Http1)))
            }
            Self::Http2(stream) => stream.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(incoming) => incoming.is_end_stream(),
            Self::Http2(stream) => stream.receiving.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(incoming) => incoming.size_hint(),
            Self::Http2(stream) => stream
                .left
                .map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}
