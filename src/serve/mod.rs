//! A stream becomes requests.
//!
//! hyper reads heads and writes answers; what it does not know — how long a client may take, how to close
//! without losing the answer, interim answers, a client that leaves while its request waits — is added
//! around the socket it is given. One connection is one task on one event loop, and it never leaves it.

mod canned;
mod heads;
mod held;
mod http1;
pub mod http2;
mod linger;
mod refuse;
mod sent;
mod socket;
mod stream;
#[cfg(test)]
mod tests;
mod tunnel;
mod wait;

use std::future::{Future, poll_fn};
use std::num::NonZeroU16;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use tokio_util::sync::CancellationToken;

use crate::clock::Deadline;
use crate::config::plan::{ClientTimeouts, Http2, Plan};
use crate::message::{ClientConnection, CloseConnection, ConnectionState, IncomingBody};
pub use http2::FloodKind;
pub use socket::DownstreamSocket;
use stream::Http1Io;

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
        peer: Arc<ClientConnection>,
        request: Request<IncomingBody>,
    ) -> impl Future<Output = Result<Response<Self::Body>, CloseConnection>> + Send;

    /// What came was not a request, and was answered with 400, 408, 413, 414, 431 or 505; for the log.
    fn refused_head(&self, _peer: &Arc<ClientConnection>, _status: u16) {}

    /// The client went too far and is sent away; for the log.
    fn flooded(&self, _peer: &ClientConnection, _flood: FloodKind) {}
}

/// What holds for a connection before its first request is known.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionSettings {
    /// How long the client may take.
    pub timeouts: ClientTimeouts,
    /// How long a request's head may be, in bytes.
    pub max_head: u32,
    /// How many requests a client may have under way at once over HTTP/2; `None` where that is not spoken.
    pub streams: Option<NonZeroU16>,
    /// How many of them it may reset.
    pub resets: u16,
}

impl ConnectionSettings {
    /// Those of a listener: its default server's.
    #[must_use]
    pub fn of(plan: &Plan, listener: usize) -> Self {
        let server = plan.listeners[listener].default_server;
        let http2 = plan.http2(listener, server);
        let server = &plan.servers[server];
        Self {
            timeouts: server.timeouts,
            max_head: u32::try_from(server.max_head).unwrap_or(u32::MAX),
            streams: match http2 {
                Http2::Off => None,
                Http2::On => NonZeroU16::new(narrow(server.max_streams)),
            },
            resets: narrow(server.max_resets),
        }
    }
}

/// Serves one client until it leaves, is too slow, or `stop` is cancelled and its last answer is out.
///
/// `stop` is looked at whenever the connection wakes, behind a lock: give each event loop a child token of its own.
// Not an `async fn`: that keeps room for every argument twice, and most connections are idle.
pub fn connection<H: Handler>(
    socket: impl Into<DownstreamSocket>,
    peer: Arc<ClientConnection>,
    settings: ConnectionSettings,
    handler: H,
    stop: CancellationToken,
) -> impl Future<Output = ()> + Send {
    let mut socket = socket.into();
    async move {
        // Borrowed: a copy would be kept for as long as the connection lasts.
        let (line, timeouts) = (&peer.line, &settings.timeouts);
        line.set_timeouts(timeouts);
        let _gone = CloseGuard(line);
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
        let mut speaks = None;
        loop {
            while word.is_empty() || speaks.is_none() {
                let wait = poll_fn(|context| {
                    wait::poll_word(
                        &mut socket,
                        line,
                        &mut patience,
                        cancelled.as_mut(),
                        context,
                    )
                });
                let Some(more) = wait.await else {
                    socket.farewell();
                    return;
                };
                word = joined(word, more);
                speaks = speaks.or_else(|| wait::protocol(&word, &peer, &settings));
            }
            if let Some(Err(mismatch)) = speaks {
                // Boxed, as all that few connections need.
                return Box::pin(mismatch.refuse(socket, &peer, &handler)).await;
            }
            if speaks == Some(Ok(HttpProtocol::Http2)) {
                let limits = http2::Http2Settings {
                    streams: settings.streams.map_or(1, NonZeroU16::get).into(),
                    resets: settings.resets.into(),
                    head: settings.max_head,
                    header_timeout: timeouts.header,
                };
                let serving = http2::serve(socket, word, &peer, limits, &handler, &stop);
                return Box::pin(serving).await;
            }
            let stream = Http1Io::new(socket, word, Arc::clone(&peer), &settings, patience);
            // Boxed: while a connection waits, there is not even room for it.
            let serving = Box::pin(http1::serve(stream, &peer, &settings, &handler, &stop));
            let Some(idle) = serving.await else { return };
            (socket, word, patience) = (idle.socket, idle.word, idle.patience);
        }
    }
}

/// Few bytes, because every connection keeps them; nobody says more.
fn narrow(number: u32) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

/// What a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HttpProtocol {
    /// One request after the other.
    Http1,
    /// Many at once.
    Http2,
}

fn joined(word: Bytes, more: Bytes) -> Bytes {
    match word.is_empty() {
        true => more,
        false => [word, more].concat().into(),
    }
}

/// Tells the line when the connection is gone.
struct CloseGuard<'a>(&'a ConnectionState);

impl Drop for CloseGuard<'_> {
    fn drop(&mut self) {
        self.0.closed();
    }
}

/// How long a connection that is idle when told to stop may still turn out not to be: its client may have
/// sent a request before it could know. Whoever stops weir does not notice.
pub const LAST_CALL: Duration = Duration::from_millis(100);
