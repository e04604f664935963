//! hyper's part of a connection: from the first byte of a request until the connection is over, or has
//! been idle for so long that hyper's buffers are worth more than the work to make them again.
//!
//! That hyper has dropped a response's body is the only sign that it has taken all of the response: [`TrackedBody`].

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future as _, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Empty;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio_util::sync::CancellationToken;

use super::http1_io::Http1Io;
use super::{ConnectionSettings, Handler, LAST_CALL, tunnel};
use crate::clock::Deadline;
use crate::message::{
    ClientConnection, CloseConnection, ConnectionPhase, ConnectionState, IncomingBody, prebuilt,
};
use crate::telemetry::COUNTERS;
use crate::tls::Socket;

/// Serves requests; ready with nothing when the connection is over. A connection on which nothing of the next request has come
/// for a while comes back as its socket, the bytes that hyper has read of the next request, and how long to wait for it.
pub(super) async fn serve<H: Handler>(
    stream: Http1Io,
    client: &Arc<ClientConnection>,
    settings: &ConnectionSettings,
    handler: &H,
    stop: &CancellationToken,
) -> Option<(Socket, Bytes, Deadline)> {
    let switching = AtomicBool::new(false);
    let service = service_fn(|request: Request<hyper::body::Incoming>| {
        client.state.begin_request();
        // Where a switch of protocols is asked for, and only there, hyper leaves the means for it.
        if !request.extensions().is_empty() {
            switching.store(true, Ordering::Relaxed);
        }
        answer(handler, client, request)
    });
    let mut builder = builder(settings);
    // Else hyper looks for the client's end itself, and takes a buffer for every request to do so.
    builder.half_close(!stream.socket.is_tls());
    let mut connection = builder.serve_connection(TokioIo::new(stream), service);
    let _served = ActiveHyper::count();
    let mut rest = IdleTimer::default();
    let mut refused = None;
    let mut stopping = false;
    let served = poll_fn(|context| {
        let mut hyper = Pin::new(&mut connection);
        let result = hyper.as_mut().poll(context);
        if refused.is_none() {
            refused = client.state.refused();
            if let Some(status) = refused {
                handler.refused_head(client, status);
            }
        }
        if result.is_ready() || stopping {
            return result;
        }
        if stop.is_cancelled() {
            // Busy connections close after their response, idle ones when the next request is not on its way.
            client.state.closes_after_response.set(true);
            ready!(rest.poll_last_call(&client.state, context));
        } else {
            let parks = ready!(rest.poll_over(&client.state, context));
            client.state.parking.set(parks);
        }
        stopping = true;
        // An idle connection is done with this. Where hyper knows of a request that we do not, it is not
        // idle, and will be closed after it.
        hyper.as_mut().graceful_shutdown();
        let result = hyper.poll(context);
        if result.is_pending() {
            client.state.parking.set(false);
        }
        result
    });
    if let Err(error) = served.await {
        tracing::debug!(connection = client.serial, client = client.addr.text(), %error, "connection ended");
        client.state.parking.set(false);
    }
    let parts = connection.into_parts();
    if client.state.parking.get() {
        client.state.parking.set(false);
        return Some(idle(parts, &client.state, rest.length));
    }
    if switching.load(Ordering::Relaxed) {
        switch(parts, client, stop).await;
    }
    None
}

/// The parts of a connection that hyper lets go of after it has been idle for so long.
fn idle<S>(
    parts: http1::Parts<TokioIo<Http1Io>, S>,
    state: &ConnectionState,
    rested: Duration,
) -> (Socket, Bytes, Deadline) {
    let (socket, ahead, mut deadline) = parts.io.into_inner().into_parts();
    deadline.clear();
    deadline.start(state.keepalive_timeout.get().saturating_sub(rested));
    (socket, begun(parts.read_buf, &ahead), deadline)
}

/// What becomes of a connection that was asked to switch protocols, when hyper lets go of it.
async fn switch<S>(
    parts: http1::Parts<TokioIo<Http1Io>, S>,
    client: &ClientConnection,
    stop: &CancellationToken,
) {
    let mut stream = parts.io.into_inner();
    let Some(tunnel) = client.state.take_tunnel() else {
        // The switch was not agreed on: it ends as others do, which hyper leaves to us then.
        let _ended = poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await;
        return;
    };
    // It may be silent for long, and is not idle.
    client.state.set_phase(ConnectionPhase::Busy);
    let (mut socket, ahead, _) = stream.into_parts();
    let early = joined(parts.read_buf, &ahead);
    let grace = tunnel.grace;
    let stopped = async {
        stop.cancelled().await;
        tokio::time::sleep(grace).await;
    };
    // Boxed: few connections come here, and all would keep room for it.
    Box::pin(tunnel::carry(
        &mut socket,
        early,
        tunnel,
        &client.state,
        stopped,
    ))
    .await;
}

async fn answer<H: Handler>(
    handler: &H,
    client: &Arc<ClientConnection>,
    request: Request<hyper::body::Incoming>,
) -> Result<Response<TrackedBody<H::Body>>, CloseConnection> {
    let request = request.map(IncomingBody::Http1);
    let response = handler.handle(Arc::clone(client), request).await?;
    client.state.final_response();
    Ok(response.map(|body| TrackedBody {
        body,
        client: Arc::clone(client),
    }))
}

fn builder(settings: &ConnectionSettings) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        // Ours runs in total and knows what phase the connection is in; hyper's would run beside it.
        .header_read_timeout(None)
        .max_header_size(settings.max_head as usize)
        .max_buf_size(settings.max_head.max(LEAST_BUFFER) as usize);
    // The number of fields stays at hyper's 100, which is Apache's and HAProxy's number too: any other
    // makes hyper allocate two tables for every request.
    builder
}

/// Checks once, at start, that the hyper which is linked writes empty responses as [`prebuilt`] knows them. Where it does
/// not, all responses are left to hyper: the same for clients, and dearer.
pub fn check_prebuilt() {
    if !prebuilt::check(&empty_response()) {
        COUNTERS.count_prebuilt_mismatch();
        tracing::warn!("hyper writes responses in an unknown way: prebuilt responses are off");
    }
}

/// What hyper writes for a response that has a status and nothing else.
// Polled by hand, as there is no runtime yet: nothing here has to wait.
pub(super) fn empty_response() -> Vec<u8> {
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let (client, server) = tokio::io::duplex(4096);
    let service = service_fn(|_| {
        let mut response = Response::new(Empty::<Bytes>::new());
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let mut connection = http1::Builder::new()
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(server), service);
    let mut client = pin!(client);
    let mut context = Context::from_waker(Waker::noop());
    let mut room = [0; 1024];
    let mut written = ReadBuf::new(&mut room);
    if client.as_mut().poll_write(&mut context, REQUEST).is_ready()
        && Pin::new(&mut connection).poll(&mut context).is_pending()
    {
        // Where nothing was written, nothing is what is checked.
        let _read = client.poll_read(&mut context, &mut written);
    }
    written.filled().to_vec()
}

/// The time between two requests.
#[derive(Default)]
struct IdleTimer {
    limit: Deadline,
    // How much had been received when it began: more since then is another request, and another rest.
    began: Option<u64>,
    length: Duration,
    last_call: Deadline,
}

impl IdleTimer {
    /// Ready when the connection has been idle for long enough; with whether it goes on without hyper, else it closes.
    fn poll_over(&mut self, state: &ConnectionState, context: &mut Context<'_>) -> Poll<bool> {
        if state.phase() != ConnectionPhase::Idle {
            self.began = None;
            return Poll::Pending;
        }
        let keepalive = state.keepalive_timeout.get();
        let received = state.received.get();
        if self.began != Some(received) {
            self.began = Some(received);
            self.length = keepalive.min(ActiveHyper::rest());
            self.limit.clear();
            self.limit.start(self.length);
        }
        ready!(self.limit.poll_passed(context));
        Poll::Ready(keepalive > self.length)
    }

    /// Ready when it stops and no request is on its way.
    fn poll_last_call(&mut self, state: &ConnectionState, context: &mut Context<'_>) -> Poll<()> {
        if state.phase() != ConnectionPhase::Idle {
            return Poll::Ready(());
        }
        self.last_call.start(LAST_CALL);
        self.last_call.poll_passed(context)
    }
}

/// The beginning of a request in what was read after the last one; line ends before it are skipped.
fn begun(read: Bytes, ahead: &[u8]) -> Bytes {
    let read = joined(read, ahead);
    match read.iter().position(|byte| !matches!(byte, b'\r' | b'\n')) {
        Some(start) => read.slice(start..),
        // Not an empty piece of it, which would hold all of hyper's buffer.
        None => Bytes::new(),
    }
}

/// What hyper has read, and what it has not.
fn joined(read: Bytes, ahead: &[u8]) -> Bytes {
    if ahead.is_empty() {
        return read;
    }
    [&read, ahead].concat().into()
}

/// A connection that hyper has; counted for each event loop.
pub(super) struct ActiveHyper;

impl ActiveHyper {
    fn count() -> Self {
        SERVED.set(Self::now() + 1);
        Self
    }

    /// How many there are.
    pub(super) fn now() -> usize {
        SERVED.get()
    }

    /// How long one of them may be idle.
    fn rest() -> Duration {
        if Self::now() > FEW { SHORT } else { LONG }
    }
}

impl Drop for ActiveHyper {
    fn drop(&mut self) {
        SERVED.set(Self::now().saturating_sub(1));
    }
}

thread_local! {
    static SERVED: Cell<usize> = const { Cell::new(0) };
}

/// How long a connection is idle before hyper is taken off it. A client with a request a second never pays for making it anew;
/// others pay some two microseconds a request.
const LONG: Duration = Duration::from_secs(1);

/// The same when hyper has many connections. What the allocator was once asked for by all of them together
/// it hardly ever gives back to the system, so those that are idle must not pile up beside those that work.
const SHORT: Duration = Duration::from_millis(10);

/// So many connections of an event loop may keep hyper, each with 16 KB, while they are idle for a while.
pub(super) const FEW: usize = 128;

/// hyper refuses to work with less.
const LEAST_BUFFER: u32 = 8192;

/// A body, and the connection it goes to.
#[derive(Debug)]
struct TrackedBody<B> {
    body: B,
    client: Arc<ClientConnection>,
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
        self.client.state.body_taken.set(true);
    }
}
