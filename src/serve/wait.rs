//! A client that says nothing, for the first time or between two requests.
//!
//! Most connections are here most of the time, so nothing is kept for them but the socket and a timer.

use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead as _, ReadBuf};

use super::refuse::ProtocolMismatch;
use super::{ConnectionSettings, DownstreamSocket, HttpProtocol, LAST_CALL};
use crate::clock::Deadline;
use crate::message::tls::AlpnProtocol;
use crate::message::{ClientConnection, ConnectionState};

/// Ready with the first bytes the client says, or with nothing when it has left, took too long, or had nothing to say
/// when told that we stop.
// Read at once instead of asked whether there is anything to read: that would be another system call.
pub(super) fn poll_word(
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
pub(super) fn protocol(
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
