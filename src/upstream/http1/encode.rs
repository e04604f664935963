//! What a request looks like on the wire. Plain copying: nothing is formatted, nothing allocated.

use http::{HeaderMap, HeaderName, header};

use crate::message::headers::speaks_for_client;

/// Writes the line before a chunk of this length.
pub(super) fn size(length: usize, out: &mut Vec<u8>) {
    let digits = length.checked_ilog(16).unwrap_or_default();
    for digit in (0..=digits).rev() {
        out.push(b"0123456789abcdef"[length >> (4 * digit) & 0xf]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the last chunk and what follows it.
pub(super) fn end(trailers: Option<&HeaderMap>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.into_iter().flatten() {
        if may_trail(name) {
            field(name, value.as_bytes(), out);
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn field(name: &HeaderName, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Whether a field may come after the body. Not one that says how to read the message, whom it is for or who
/// sent it: a backend that takes trailers for more of the head would believe the client what only we may say.
pub(in crate::upstream) fn may_trail(name: &HeaderName) -> bool {
    const NEVER: [HeaderName; 16] = [
        header::AUTHORIZATION,
        header::CACHE_CONTROL,
        header::CONNECTION,
        header::CONTENT_ENCODING,
        header::CONTENT_LENGTH,
        header::CONTENT_RANGE,
        header::CONTENT_TYPE,
        header::COOKIE,
        header::EXPECT,
        header::HOST,
        header::MAX_FORWARDS,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        header::VIA,
    ];
    !NEVER.contains(name)
        && !speaks_for_client(name)
        && !["keep-alive", "proxy-connection"].contains(&name.as_str())
}
