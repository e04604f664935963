//! An answer's body while hyper holds it.
//!
//! That hyper has let go of the body is the only sign that it has taken all of an answer, whoever made
//! the answer and whether or not it had a tail.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};

use crate::message::ClientConnection;

/// A body, and the connection it goes to.
#[derive(Debug)]
pub(super) struct TrackedBody<B> {
    body: B,
    peer: Arc<ClientConnection>,
}

impl<B> TrackedBody<B> {
    pub(super) fn new(body: B, peer: Arc<ClientConnection>) -> Self {
        Self { body, peer }
    }
}

impl<B: Body + Unpin> Body for TrackedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for TrackedBody<B> {
    fn drop(&mut self) {
        self.peer.line.answered();
    }
}
