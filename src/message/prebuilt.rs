//! Prebuilt responses: headers and body are assembled as bytes, and replace what hyper writes for an empty response.
//!
//! hyper takes the headers of a response as a map and writes them out again. A refusal is the same for thousands of requests
//! in a row, and what a backend sends is mostly passed on as it came: neither needs a map, and the way through it costs more
//! than all the rest of writing a small response. So hyper is given the status alone. It decides what only it can decide,
//! whether the connection is kept open, and writes the headers of an empty response; on the way to the socket
//! (`downstream/http1_io.rs`) its last two lines, `content-length: 0` and `date`, are replaced by the assembled bytes.
//!
//! This depends on the bytes hyper writes. [`check`] compares them once at start with what is expected here; if hyper writes
//! anything else, a warning is logged, a counter rises, and all responses go through the map. A test in
//! `downstream/tests/requests.rs` makes the same check, so an upgrade of hyper that changes its output fails there first.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{Method, StatusCode};

/// The headers of a response as bytes, its length among them.
#[derive(Debug)]
pub struct RawHeaders {
    bytes: Vec<u8>,
    has_date: bool,
}

/// The headers and the body of a response.
#[derive(Debug)]
pub struct PrebuiltResponse {
    headers: RawHeaders,
    body: Bytes,
}

/// A prebuilt response, for one request or for many.
#[derive(Debug)]
pub enum Prebuilt {
    /// It was assembled for one request.
    Owned(PrebuiltResponse),
    /// It is the response to other requests, too.
    Shared(Arc<PrebuiltResponse>),
}

/// Whether hyper writes empty responses as expected.
// Until that is checked, too: tests serve connections without a start.
pub(super) static ENABLED: AtomicBool = AtomicBool::new(true);

/// Checks the empty response that hyper has written; if it is not as expected, prebuilt responses are off from now on.
pub fn check(empty: &[u8]) -> bool {
    let is_expected = split(empty).is_some();
    if !is_expected {
        ENABLED.store(false, Ordering::Relaxed);
    }
    is_expected
}

/// The bytes of an empty response before its `content-length`, and those after it.
fn split(empty: &[u8]) -> Option<(&[u8], &[u8])> {
    let (begin, end) = empty.split_at_checked(empty.len().checked_sub(END)?)?;
    let date = end.strip_prefix(NO_BODY)?;
    let is_expected = begin.ends_with(b"\r\n") && date.starts_with(b"date: ");
    (is_expected && date.ends_with(b"\r\n\r\n")).then_some((begin, date))
}

thread_local! {
    // The memory of the last headers, reused for the next.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl RawHeaders {
    /// None yet.
    pub fn empty() -> Self {
        Self {
            bytes: SPARE.take(),
            has_date: false,
        }
    }

    /// Adds a header; returns its name in lower case.
    pub fn add(&mut self, name: &[u8], value: &[u8]) -> &[u8] {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        let end = self.bytes.len();
        self.bytes[start..].make_ascii_lowercase();
        self.bytes.extend_from_slice(b": ");
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(b"\r\n");
        let name = &self.bytes[start..end];
        self.has_date |= name == b"date";
        name
    }

    /// Whether these headers with a body of this length are short enough to be copied.
    pub fn fits(&self, body: usize) -> bool {
        self.bytes.len() + body <= LARGEST
    }
}

impl Drop for RawHeaders {
    fn drop(&mut self) {
        if self.bytes.capacity() <= LARGEST {
            self.bytes.clear();
            let bytes = std::mem::take(&mut self.bytes);
            // Not where an event loop ends: the thread's memory may be gone before the last shared response.
            let _kept = SPARE.try_with(|spare| spare.set(bytes));
        }
    }
}

impl PrebuiltResponse {
    /// A response of these headers, none of which concerns the connection, and this body.
    pub fn new(headers: RawHeaders, body: Bytes) -> Self {
        Self { headers, body }
    }

    /// Whether hyper ends the response to this method with this status as an empty one, so that it can be completed.
    pub fn can_complete(method: &Method, status: StatusCode) -> bool {
        let is_bodiless = status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        !is_bodiless && !matches!(*method, Method::CONNECT | Method::HEAD)
    }

    /// How long the body is.
    pub fn length(&self) -> usize {
        self.body.len()
    }

    /// Appends hyper's empty response with the headers and the body put in; appends nothing and returns false where the
    /// empty one is not as expected.
    pub fn complete(&self, empty: &[u8], out: &mut Vec<u8>) -> bool {
        let Some((begin, date)) = split(empty) else {
            return false;
        };
        out.extend_from_slice(begin);
        out.extend_from_slice(&self.headers.bytes);
        out.extend_from_slice(match self.headers.has_date {
            true => b"\r\n",
            false => date,
        });
        out.extend_from_slice(&self.body);
        true
    }
}

impl std::ops::Deref for Prebuilt {
    type Target = PrebuiltResponse;

    fn deref(&self) -> &PrebuiltResponse {
        match self {
            Self::Owned(response) => response,
            Self::Shared(response) => response,
        }
    }
}

/// What hyper writes last in an empty response: that there is no body, then the date.
const NO_BODY: &[u8] = b"content-length: 0\r\n";
const END: usize = NO_BODY.len() + b"date: Mon, 16 Nov 2026 10:05:48 GMT\r\n\r\n".len();

/// Longer responses are left to hyper, which copies nothing.
const LARGEST: usize = 8192;

#[cfg(test)]
mod tests {

    use super::*;

    fn completed(fields: &[(&str, &str)], empty: &str) -> String {
        let mut headers = RawHeaders::empty();
        for (name, value) in fields {
            headers.add(name.as_bytes(), value.as_bytes());
        }
        let response = PrebuiltResponse::new(headers, Bytes::from_static(b"no\n"));
        let mut out = Vec::new();
        assert!(response.complete(empty.as_bytes(), &mut out));
        String::from_utf8(out).unwrap()
    }

    const EMPTY: &str = "HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\ncontent-length: 0\r\n\
                         date: Mon, 16 Nov 2026 10:05:48 GMT\r\n\r\n";

    #[test]
    fn what_hyper_has_written_is_kept() {
        let fields = [("Content-Length", "3"), ("Server", "Weir")];
        assert_eq!(
            completed(&fields, EMPTY),
            "HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\ncontent-length: 3\r\nserver: Weir\r\n\
             date: Mon, 16 Nov 2026 10:05:48 GMT\r\n\r\nno\n"
        );
    }

    #[test]
    fn the_date_of_the_response_replaces_hypers() {
        let fields = [("Date", "now"), ("content-length", "3")];
        assert_eq!(
            completed(&fields, EMPTY),
            "HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\ndate: now\r\ncontent-length: 3\r\n\r\nno\n"
        );
    }

    #[test]
    fn an_empty_response_of_another_form_is_not_completed() {
        let response = PrebuiltResponse::new(RawHeaders::empty(), Bytes::from_static(b"no\n"));
        for other in [
            String::new(),
            "HTTP/1.1 429 No\r\ncontent-length: 0\r\n\r\n".to_owned(),
            EMPTY.replace("content-length", "Content-Length"),
            EMPTY.replace("date", "Date"),
            EMPTY.replace(" GMT\r\n", " GMT\r\nserver: h\r\n"),
        ] {
            let mut out = Vec::new();
            let completed = response.complete(other.as_bytes(), &mut out);
            assert!(!completed && out.is_empty(), "{other}");
        }
    }

    #[test]
    fn a_long_response_is_not_prebuilt() {
        let mut headers = RawHeaders::empty();
        headers.add(b"a", b"b");
        assert!(headers.fits(LARGEST - 6));
        assert!(!headers.fits(LARGEST - 5));
    }
}
