//! What becomes of a request's body that nobody wants.
//!
//! An answer given before the body was read (429, 413) leaves the rest of it on the connection, where it
//! must never be taken for the next request. A little is read and thrown away so that the connection
//! stays usable, as nginx does; with more, the connection is closed after the answer, and slowly, so
//! that the answer is not lost. hyper alone would try a single read and then close.

use std::sync::Arc;

use bytes::Buf;
use http_body::Body as _;
use http_body_util::BodyExt as _;

use super::{ClientConnection, IncomingBody};

/// Discards the rest of a request's body, in a task of its own. False when the connection will not carry
/// another request, and the answer should say `Connection: close`.
///
/// `expects_continue`: the client waits to be told before it sends the body.
pub fn drain(peer: &Arc<ClientConnection>, incoming: IncomingBody, expects_continue: bool) -> bool {
    // An HTTP/2 stream ends without the others noticing.
    if incoming.is_end_stream() || matches!(incoming, IncomingBody::Http2(_)) {
        return true;
    }
    // Reading a body that is waited to be asked for would ask for it, after the answer was decided.
    if expects_continue || incoming.size_hint().lower() > MOST {
        peer.line.linger_on_close();
        return false;
    }
    let draining = DrainGuard::begin(Arc::clone(peer));
    tokio::spawn(discard(draining, incoming));
    true
}

async fn discard(draining: DrainGuard, mut incoming: IncomingBody) {
    let line = &draining.0.line;
    let mut taken = 0;
    let most = match incoming.size_hint().exact() {
        Some(_) => MOST,
        None => MOST_UNTOLD,
    };
    let ended = tokio::time::timeout(line.lingering_timeout(), async {
        // hyper does not tell the end of a body with a length until the next head has come, once the
        // answer is out; the body itself knows.
        while taken <= most {
            if incoming.is_end_stream() {
                return true;
            }
            match incoming.frame().await {
                Some(Ok(frame)) => {
                    taken += frame.data_ref().map_or(0, |data| data.remaining() as u64);
                }
                Some(Err(_)) | None => return true,
            }
        }
        false
    });
    if !ended.await.unwrap_or(false) {
        line.linger_on_close();
    }
}

struct DrainGuard(Arc<ClientConnection>);

impl DrainGuard {
    fn begin(peer: Arc<ClientConnection>) -> Self {
        peer.line.draining();
        Self(peer)
    }
}

impl Drop for DrainGuard {
    fn drop(&mut self) {
        self.0.line.drained();
    }
}

/// How much is worth reading to keep a connection, in bytes: about what is on its way anyhow.
const MOST: u64 = 64 * 1024;

/// The same where nobody could know how long the body would be when the answer did not say `close`: whoever sends it
/// counts on the connection. It costs no memory, and no more time than the lingering does.
const MOST_UNTOLD: u64 = 16 * 1024 * 1024;
