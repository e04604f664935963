//! A stream becomes requests.
//!
//! hyper reads heads and writes answers; what it does not know — how long a client may take, how to close
//! without losing the answer, interim answers, a client that leaves while its request waits — is added
//! around the socket it is given. One connection is one task on one event loop, and it never leaves it.

mod heads;
mod held;
mod linger;
mod socket;
mod stream;
#[cfg(test)]
mod tests;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;

use crate::clock::Deadline;
use crate::config::plan::{ClientTimeouts, Server};
use crate::message::{NoAnswer, Peer, Phase};
use held::Held;
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
pub async fn connection<H: Handler>(
    socket: impl Into<Socket>,
    peer: Arc<Peer>,
    settings: Settings,
    handler: H,
    stop: CancellationToken,
) {
    let timeouts = settings.timeouts;
    peer.line.set_timeouts(
        timeouts.keepalive.unwrap_or_default(),
        timeouts.send,
        timeouts.lingering,
    );
    let mut stream = Stream::new(socket.into(), Arc::clone(&peer), &settings);
    let mut cancelled = pin!(stop.cancelled());
    let mut last_call = Deadline::default();

    // hyper's buffers are not made for somebody who has not said anything yet.
    let speaks = poll_fn(|context| {
        // Once is enough, here and for `cancelled`: a connection stays in its task.
        peer.line.driven_by(context.waker());
        let stopping = cancelled.as_mut().poll(context).is_ready();
        if let Poll::Ready(speaks) = stream.poll_first_sign(context) {
            return Poll::Ready(speaks);
        }
        if !stopping {
            return Poll::Pending;
        }
        last_call.start(LAST_CALL);
        last_call.poll_passed(context).map(|()| false)
    });
    if !speaks.await {
        return;
    }

    let service = service_fn(|request| {
        peer.line.begin();
        answer(handler.clone(), Arc::clone(&peer), request)
    });
    let mut connection = pin!(builder(&settings).serve_connection(TokioIo::new(stream), service));
    let mut refused = None;
    let mut stopping = false;
    let served = poll_fn(|context| {
        let result = connection.as_mut().poll(context);
        if refused.is_none() {
            refused = peer.line.refused();
            if let Some(status) = refused {
                handler.refused_head(&peer, status);
            }
        }
        if result.is_ready() || stopping || !stop.is_cancelled() {
            return result;
        }
        // Busy connections close after their answer, idle ones when the next request is not on its way.
        peer.line.close_after_answer();
        if peer.line.phase() == Phase::Idle {
            last_call.start(LAST_CALL);
            ready!(last_call.poll_passed(context));
        }
        stopping = true;
        connection.as_mut().graceful_shutdown();
        connection.as_mut().poll(context)
    });
    if let Err(error) = served.await {
        tracing::debug!(connection = peer.connection, client = peer.text(), %error, "connection ended");
    }
}

async fn answer<H: Handler>(
    handler: H,
    peer: Arc<Peer>,
    request: Request<Incoming>,
) -> Result<Response<Held<H::Body>>, NoAnswer> {
    let response = handler.handle(Arc::clone(&peer), request).await?;
    peer.line.decide();
    Ok(response.map(|body| Held::new(body, peer)))
}

fn builder(settings: &Settings) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        // Ours runs in total and knows what phase the connection is in; hyper's would run beside it.
        .header_read_timeout(None)
        .max_header_size(settings.max_head)
        .max_buf_size(settings.max_head.max(LEAST_BUFFER));
    // The number of fields stays at hyper's 100, which is Apache's and HAProxy's number too: any other
    // makes hyper allocate two tables for every request.
    builder
}

/// How long a connection that is idle when told to stop may still turn out not to be: its client may have
/// sent a request before it could know. Whoever stops weir does not notice.
const LAST_CALL: Duration = Duration::from_millis(100);

/// hyper refuses to work with less.
const LEAST_BUFFER: usize = 8192;
