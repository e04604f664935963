//! A client's connection from its first byte: idle waits, and which version of HTTP it speaks.
//!
//! Most connections are idle most of the time. Between two requests nothing is kept for them but the socket and a timer.

use std::future::{Future, poll_fn};
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead as _, AsyncWriteExt as _, ReadBuf};
use tokio_util::sync::CancellationToken;

use super::http1_io::{Http1Io, refusal};
use super::slow_client::LingeringClose;
use super::{ConnectionSettings, Handler, LAST_CALL, http1, http2};
use crate::clock::Deadline;
use crate::message::{AlpnProtocol, ClientConnection, ConnectionState};
use crate::tls::Socket;

/// Serves one client until it leaves, is too slow, or `stop` is cancelled and its last response is out.
///
/// `stop` is looked at whenever the connection wakes, behind a lock: give each event loop a child token of its own.
// Not an `async fn`: that keeps room for every argument twice, and most connections are idle.
pub fn connection<H: Handler>(
    mut socket: Socket,
    client: Arc<ClientConnection>,
    settings: ConnectionSettings,
    handler: H,
    stop: CancellationToken,
) -> impl Future<Output = ()> + Send {
    let mut deadline = Deadline::default();
    deadline.start(settings.header_timeout);
    async move {
        // Borrowed: a copy would be kept for as long as the connection lasts.
        let state = &client.state;
        state.set_timeouts(&settings.client);
        let _gone = CloseGuard(state);
        let mut cancelled = pin!(stop.cancelled());
        let mut read = Bytes::new();
        // Once is enough, for this and for `cancelled`: a connection stays in its task.
        poll_fn(|context| {
            state.set_waker(context.waker());
            Poll::Ready(())
        })
        .await;
        let mut protocol = None;
        loop {
            while read.is_empty() || protocol.is_none() {
                let wait = poll_fn(|context| {
                    poll_first_bytes(
                        &mut socket,
                        state,
                        &mut deadline,
                        cancelled.as_mut(),
                        context,
                    )
                });
                let Some(more) = wait.await else {
                    socket.close_notify();
                    return;
                };
                read = match read.is_empty() {
                    true => more,
                    false => [read, more].concat().into(),
                };
                protocol = protocol.or_else(|| detect(&read, &client, &settings));
            }
            // Boxed, as all that few connections need.
            match protocol {
                Some(FirstBytes::Http2) => {
                    let serving = http2::serve(socket, read, &client, settings, &handler, &stop);
                    return Box::pin(serving).await;
                }
                Some(FirstBytes::NoPreface) => {
                    return Box::pin(refuse(socket, &client, &handler, 400, GOAWAY)).await;
                }
                Some(FirstBytes::WrongVersion) => {
                    let response = refusal(505).unwrap_or_default();
                    return Box::pin(refuse(socket, &client, &handler, 505, response)).await;
                }
                Some(FirstBytes::Http1) | None => {}
            }
            let stream = Http1Io::new(socket, read, Arc::clone(&client), &settings, deadline);
            // Boxed: while a connection waits, there is not even room for it.
            let serving = Box::pin(http1::serve(stream, &client, &settings, &handler, &stop));
            let Some(idle) = serving.await else { return };
            (socket, read, deadline) = idle;
        }
    }
}

/// Tells the connection's state when the connection is gone.
struct CloseGuard<'a>(&'a ConnectionState);

impl Drop for CloseGuard<'_> {
    fn drop(&mut self) {
        self.0.closed();
    }
}

/// Ready with the first bytes a client sends, or with nothing when it has left, took too long, or was idle at a stop.
// Read at once instead of asked whether there is anything to read: that would be another system call.
fn poll_first_bytes(
    socket: &mut Socket,
    state: &ConnectionState,
    deadline: &mut Deadline,
    stopped: Pin<&mut impl Future>,
    context: &mut Context<'_>,
) -> Poll<Option<Bytes>> {
    let stopping = stopped.poll(context).is_ready();
    let mut scratch = [MaybeUninit::uninit(); FIRST_READ];
    let mut buffer = ReadBuf::uninit(&mut scratch);
    if let Poll::Ready(read) = Pin::new(socket).poll_read(context, &mut buffer) {
        let bytes = buffer.filled();
        if read.is_err() || bytes.is_empty() {
            return Poll::Ready(None);
        }
        state.received.add(bytes.len());
        if state.closes_after_response.get() {
            // Its request has all the time that others have.
            deadline.clear();
        }
        return Poll::Ready(Some(Bytes::copy_from_slice(bytes)));
    }
    if stopping && !state.closes_after_response.get() {
        state.closes_after_response.set(true);
        deadline.clear();
        deadline.start(LAST_CALL);
    }
    deadline.poll_passed(context).map(|()| None)
}

/// What the first bytes of a connection are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FirstBytes {
    /// A request, or nonsense that is refused as one.
    Http1,
    /// The preface of HTTP/2.
    Http2,
    /// Not the preface, where HTTP/2 was agreed on or begun.
    NoPreface,
    /// HTTP/2 where it is off, or was not agreed on.
    WrongVersion,
}

/// The protocol of a connection that begins with `read`; `None` while it could be either version.
///
/// Inside TLS the protocol is the one that ALPN has agreed on; where it has not, that is HTTP/1 (RFC 9113, 3.3). Without TLS
/// the first bytes tell, where the listener speaks both.
fn detect(
    read: &[u8],
    client: &ClientConnection,
    settings: &ConnectionSettings,
) -> Option<FirstBytes> {
    let is_preface = read.starts_with(PREFACE);
    if !is_preface && PREFACE.starts_with(read) {
        return None;
    }
    let begins_preface = read.starts_with(PREFACE_LINE);
    let http2 = match client.tls() {
        Some(tls) => tls.alpn == AlpnProtocol::Http2,
        None => settings.streams.is_some(),
    };
    Some(match (http2, begins_preface) {
        (true, _) if is_preface => FirstBytes::Http2,
        (true, true) => FirstBytes::NoPreface,
        (true, false) if client.tls().is_some() => FirstBytes::NoPreface,
        (false, true) => FirstBytes::WrongVersion,
        (_, false) => FirstBytes::Http1,
    })
}

/// The first bytes of an HTTP/2 client, which no HTTP/1 server takes for a request.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The first line of it: no HTTP/1 request has it.
const PREFACE_LINE: &[u8] = b"PRI * HTTP/2.0\r\n";

/// As much as hyper reads at first.
const FIRST_READ: usize = 8192;

/// Sends a response to a connection that is not served, and closes it.
async fn refuse<H: Handler>(
    mut socket: Socket,
    client: &Arc<ClientConnection>,
    handler: &H,
    status: u16,
    response: &[u8],
) {
    handler.refused_head(client, status);
    let sending = async {
        socket.write_all(response).await?;
        client.state.sent.add(response.len());
        socket.shutdown().await
    };
    let pause = client.state.lingering_timeout.get();
    if let Ok(Ok(())) = tokio::time::timeout(pause, sending).await {
        let mut linger = LingeringClose::new(pause);
        poll_fn(|context| linger.poll_over(&mut socket, context)).await;
    }
}

/// The server's preface, which is a SETTINGS frame without any, and a GOAWAY frame: no stream was processed,
/// PROTOCOL_ERROR.
const GOAWAY: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x01";
