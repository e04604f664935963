//! A client that says nothing, for the first time or between two requests.
//!
//! Most connections are here most of the time, so nothing is kept for them but the socket and a timer.

use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead as _, ReadBuf};

use super::{LAST_CALL, Protocol, Settings, Socket};
use crate::clock::Deadline;
use crate::message::Line;

/// Ready with the first bytes the client says, or with nothing when it has left, took too long, or had nothing to say
/// when told that we stop.
// Read at once instead of asked whether there is anything to read: that would be another system call.
pub(super) fn poll_word(
    socket: &mut Socket,
    line: &Line,
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

/// What somebody speaks who says this first; `None` while it could be either.
pub(super) fn protocol(word: &[u8], settings: &Settings) -> Option<Protocol> {
    match settings.streams {
        Some(_) if word.starts_with(PREFACE) => Some(Protocol::Http2),
        Some(_) if PREFACE.starts_with(word) => None,
        _ => Some(Protocol::Http1),
    }
}

/// What an HTTP/2 client says first, so that nobody takes it for HTTP/1.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// As much as hyper reads at first.
const MOST: usize = 8192;
