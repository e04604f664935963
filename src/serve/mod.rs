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
mod tunnel;

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1::{self, Parts};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWrite as _;
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
    /// How long what cannot end by itself may go on when told to stop.
    pub grace: Duration,
}

impl Settings {
    /// From a listener's default server, and from `shutdown_timeout`.
    #[must_use]
    pub fn new(server: &Server, shutdown_timeout: Duration) -> Self {
        Self {
            timeouts: server.timeouts,
            max_head: server.max_head,
            // A little less: the end of a tunnel is told and logged, the end of the process is not.
            grace: shutdown_timeout - (shutdown_timeout / 10).min(FAREWELL),
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
        poll_speaks(&mut stream, cancelled.as_mut(), &mut last_call, context)
    });
    if !speaks.await {
        return;
    }

    let switching = AtomicBool::new(false);
    let service = service_fn(|request: Request<Incoming>| {
        peer.line.begin();
        if !request.extensions().is_empty() {
            switching.store(true, Ordering::Relaxed);
        }
        answer(handler.clone(), Arc::clone(&peer), request)
    });
    let mut connection = builder(&settings).serve_connection(TokioIo::new(stream), service);
    let mut refused = None;
    let mut stopping = false;
    let served = poll_fn(|context| {
        let result = Pin::new(&mut connection).poll(context);
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
        Pin::new(&mut connection).graceful_shutdown();
        Pin::new(&mut connection).poll(context)
    });
    if let Err(error) = served.await {
        tracing::debug!(connection = peer.connection, client = peer.text(), %error, "connection ended");
    }
    if switching.load(Ordering::Relaxed) {
        let parts = connection.into_parts();
        // Boxed: few connections come here, and all would keep room for it.
        Box::pin(switch(parts, &peer, settings.grace, &stop)).await;
    }
}

/// Ready at the first sign of the client with true, with false if there will be none.
fn poll_speaks(
    stream: &mut Stream,
    cancelled: Pin<&mut impl Future>,
    last_call: &mut Deadline,
    context: &mut Context<'_>,
) -> Poll<bool> {
    let stopping = cancelled.poll(context).is_ready();
    if let Poll::Ready(speaks) = stream.poll_first_sign(context) {
        return Poll::Ready(speaks);
    }
    if !stopping {
        return Poll::Pending;
    }
    last_call.start(LAST_CALL);
    last_call.poll_passed(context).map(|()| false)
}

/// What becomes of a connection that hyper lets go of because it was asked to switch protocols.
async fn switch<S>(
    parts: Parts<TokioIo<Stream>, S>,
    peer: &Peer,
    grace: Duration,
    stop: &CancellationToken,
) {
    let mut stream = parts.io.into_inner();
    let Some(tunnel) = peer.line.take_tunnel() else {
        // Nobody agreed: it ends as others do, which hyper left to us.
        let _ended = poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await;
        return;
    };
    let stopped = async {
        stop.cancelled().await;
        tokio::time::sleep(grace).await;
    };
    tunnel::carry(
        stream.leave_http(),
        parts.read_buf,
        tunnel,
        &peer.line,
        stopped,
    )
    .await;
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

/// How long before the end of everything a tunnel is ended.
const FAREWELL: Duration = Duration::from_millis(250);

/// hyper refuses to work with less.
const LEAST_BUFFER: usize = 8192;
