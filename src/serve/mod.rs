//! A stream becomes requests.
//!
//! hyper reads heads and writes answers; what it does not know — how long a client may take, how to close
//! without losing the answer, interim answers, a client that leaves while its request waits — is added
//! around the socket it is given. One connection is one task on one event loop, and it never leaves it.

mod heads;
mod held;
mod http1;
mod linger;
mod socket;
mod stream;
#[cfg(test)]
mod tests;
mod tunnel;
mod wait;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;

use crate::clock::Deadline;
use crate::config::plan::{ClientTimeouts, Server};
use crate::message::{Line, NoAnswer, Peer};
pub use socket::Socket;
use stream::Stream;

/// Answers requests.
pub trait Handler: Clone + Send + Sync + 'static {
    /// What its answers carry.
    type Body: http_body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + Unpin
        + 'static;

    /// Answers one request; dropped when the client goes away meanwhile.
    fn handle(
        &self,
        peer: Arc<Peer>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Self::Body>, NoAnswer>> + Send;

    /// What came was not a request, and was answered with 400, 408, 414, 431 or 505; for the log.
    fn refused_head(&self, _peer: &Peer, _status: u16) {}
}

/// What holds for a connection before its first request is known.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// How long the client may take.
    pub timeouts: ClientTimeouts,
    /// How long a request's head may be, in bytes.
    pub max_head: usize,
}

impl From<&Server> for Settings {
    /// From a listener's default server.
    fn from(server: &Server) -> Self {
        Self {
            timeouts: server.timeouts,
            max_head: server.max_head,
        }
    }
}

/// Serves one client until it leaves, is too slow, or `stop` is cancelled and its last answer is out.
///
/// `stop` is looked at whenever the connection wakes, behind a lock: give each event loop a child token of its own.
// Not an `async fn`: that keeps room for every argument twice, and most connections are idle.
pub fn connection<H: Handler>(
    socket: impl Into<Socket>,
    peer: Arc<Peer>,
    settings: Settings,
    handler: H,
    stop: CancellationToken,
) -> impl Future<Output = ()> + Send {
    let mut socket = socket.into();
    async move {
        // Borrowed: a copy would be kept for as long as the connection lasts.
        let (line, timeouts) = (&peer.line, &settings.timeouts);
        line.set_timeouts(timeouts);
        let _gone = Gone(line);
        let mut cancelled = pin!(stop.cancelled());
        let mut patience = Deadline::default();
        patience.start(timeouts.header);
        let mut word = Bytes::new();
        // Once is enough, for this and for `cancelled`: a connection stays in its task.
        poll_fn(|context| {
            line.driven_by(context.waker());
            Poll::Ready(())
        })
        .await;
        loop {
            if word.is_empty() {
                let wait = poll_fn(|context| {
                    wait::poll_word(
                        &mut socket,
                        line,
                        &mut patience,
                        cancelled.as_mut(),
                        context,
                    )
                });
                let Some(first) = wait.await else { return };
                word = first;
            }
            let stream = Stream::new(socket, word, Arc::clone(&peer), &settings, patience);
            // Boxed: while a connection waits, there is not even room for it.
            let serving = Box::pin(http1::serve(stream, &peer, &settings, &handler, &stop));
            let Some(idle) = serving.await else { return };
            (socket, word, patience) = (idle.socket, idle.word, idle.patience);
        }
    }
}

/// Tells the line when the connection is gone.
struct Gone<'a>(&'a Line);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.0.closed();
    }
}

/// How long a connection that is idle when told to stop may still turn out not to be: its client may have
/// sent a request before it could know. Whoever stops weir does not notice.
pub const LAST_CALL: Duration = Duration::from_millis(100);
