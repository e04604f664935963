//! Answers that stand in for hyper's own, and what hyper's own say.

/// The status in a status line.
pub(super) fn status(head: &[u8]) -> Option<u16> {
    std::str::from_utf8(head.get(9..12)?).ok()?.parse().ok()
}

/// What to say instead of hyper.
pub(super) fn refusal(status: u16) -> Option<&'static [u8]> {
    match status {
        414 => Some(
            b"HTTP/1.1 414 URI Too Long\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        ),
        505 => Some(
            b"HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        ),
        _ => None,
    }
}

/// What to say where hyper says nothing: the head did not come in time.
pub(super) const TOO_SLOW: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
