//! A stream becomes requests.
//!
//! hyper reads heads and writes answers; what it does not know — how long a client may take, how to close
//! without losing the answer, interim answers, a client that leaves while its request waits — is added
//! around the socket it is given. One connection is one task on one event loop, and it never leaves it.
//!
//! A client that says nothing, for the first time or between two requests.
//!
//! Most connections are here most of the time, so nothing is kept for them but the socket and a timer.
//!
//! Connections that do not speak what was agreed on, or what is spoken here.

mod http1;
mod http1_io;
mod http2;
mod request_scan;
mod socket;
#[cfg(test)]
mod tests;
mod tunnel;

use std::future::{Future, poll_fn};
use std::mem::MaybeUninit;
use std::num::NonZeroU16;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use tokio::io::{AsyncRead as _, AsyncWriteExt as _, ReadBuf};
use tokio_util::sync::CancellationToken;

use self::http1_io::{Http1Io, LingeringClose, refusal};
use crate::clock::Deadline;
use crate::config::plan::{ClientSettings, Http2, Plan};
use crate::message::{
    AlpnProtocol, ClientConnection, CloseConnection, ConnectionState, IncomingBody,
};

pub use self::http1::check_prebuilt;
pub use self::http2::flood::FloodKind;
#[cfg(any(fuzzing, test))]
pub use self::http2::fuzzing;
pub use self::socket::DownstreamSocket;

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
    pub client: ClientSettings,
    /// How long it may take for the headers of a request.
    pub header_timeout: Duration,
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
            client: server.client,
            header_timeout: server.header_timeout,
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
        let line = &peer.line;
        line.set_timeouts(&settings.client);
        let _gone = CloseGuard(line);
        let mut cancelled = pin!(stop.cancelled());
        let mut patience = Deadline::default();
        patience.start(settings.header_timeout);
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
                    poll_word(
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
                speaks = speaks.or_else(|| protocol(&word, &peer, &settings));
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
                    header_timeout: settings.header_timeout,
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

/// Ready with the first bytes the client says, or with nothing when it has left, took too long, or had nothing to say
/// when told that we stop.
// Read at once instead of asked whether there is anything to read: that would be another system call.
fn poll_word(
    socket: &mut DownstreamSocket,
    line: &ConnectionState,
    patience: &mut Deadline,
    stopped: Pin<&mut impl Future>,
    context: &mut Context<'_>,
) -> Poll<Option<Bytes>> {
    let stopping = stopped.poll(context).is_ready();
    let mut scratch = [MaybeUninit::uninit(); MOST];
    let mut buffer = ReadBuf::uninit(&mut scratch);
    if let Poll::Ready(read) = Pin::new(socket).poll_read(context, &mut buffer) {
        let word = buffer.filled();
        if read.is_err() || word.is_empty() {
            return Poll::Ready(None);
        }
        line.add_received(word.len());
        if line.closes_after_answer() {
            // Its request has all the time that others have.
            patience.clear();
        }
        return Poll::Ready(Some(Bytes::copy_from_slice(word)));
    }
    if stopping && !line.closes_after_answer() {
        line.close_after_answer();
        patience.clear();
        patience.start(LAST_CALL);
    }
    patience.poll_passed(context).map(|()| None)
}

/// What a connection speaks that begins with `word`, or why it is refused; `None` while it could be either version.
///
/// Inside TLS, what ALPN has agreed on is what is spoken; where it has not, that is HTTP/1 (RFC 9113, 3.3). Without TLS
/// the first bytes tell, where the listener speaks both.
fn protocol(
    word: &[u8],
    peer: &ClientConnection,
    settings: &ConnectionSettings,
) -> Option<Result<HttpProtocol, ProtocolMismatch>> {
    let preface = match word {
        word if word.starts_with(PREFACE) => PrefaceMatch::Whole,
        word if PREFACE.starts_with(word) => return None,
        word if word.starts_with(PREFACE_LINE) => PrefaceMatch::Broken,
        _ => PrefaceMatch::Absent,
    };
    let http2 = match peer.tls() {
        Some(tls) => tls.inner == AlpnProtocol::Http2,
        None => settings.streams.is_some(),
    };
    Some(match (http2, preface) {
        (true, PrefaceMatch::Whole) => Ok(HttpProtocol::Http2),
        (true, PrefaceMatch::Broken) => Err(ProtocolMismatch::Preface),
        (true, PrefaceMatch::Absent) if peer.tls().is_some() => Err(ProtocolMismatch::Preface),
        (false, PrefaceMatch::Whole | PrefaceMatch::Broken) => Err(ProtocolMismatch::Version),
        (_, PrefaceMatch::Absent) => Ok(HttpProtocol::Http1),
    })
}

/// What the first bytes of a connection have of HTTP/2's preface.
#[derive(Debug, Clone, Copy)]
enum PrefaceMatch {
    Absent,
    /// Its first line, and then something else.
    Broken,
    Whole,
}

/// What an HTTP/2 client says first, so that nobody takes it for HTTP/1.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The first line of it: no request of HTTP/1 has it.
const PREFACE_LINE: &[u8] = b"PRI * HTTP/2.0\r\n";

/// As much as hyper reads at first.
const MOST: usize = 8192;

/// Why a connection ends before its first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProtocolMismatch {
    /// HTTP/2 was agreed on, or begun, and its preface did not come.
    Preface,
    /// It speaks HTTP/2, which is not spoken here, or not what was agreed on.
    Version,
}

impl ProtocolMismatch {
    /// Tells the client and closes the connection.
    async fn refuse<H: Handler>(
        self,
        mut socket: DownstreamSocket,
        peer: &Arc<ClientConnection>,
        handler: &H,
    ) {
        let (status, told) = match self {
            Self::Preface => (400, Some(GOAWAY)),
            Self::Version => (505, refusal(505)),
        };
        handler.refused_head(peer, status);
        let told = told.unwrap_or_default();
        let telling = async {
            socket.write_all(told).await?;
            peer.line.add_sent(told.len());
            socket.shutdown().await
        };
        let pause = peer.line.lingering_timeout();
        if let Ok(Ok(())) = tokio::time::timeout(pause, telling).await {
            let mut linger = LingeringClose::new(pause);
            poll_fn(|context| linger.poll_over(&mut socket, context)).await;
        }
    }
}

/// The server's preface, which is a SETTINGS frame without any, and a GOAWAY frame: no stream was looked at,
/// PROTOCOL_ERROR.
const GOAWAY: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x01";
