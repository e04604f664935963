//! Prebuilt responses: header fields and a body that lie ready before hyper writes its part of a response.
//!
//! hyper takes the fields of a response as a map and writes them out again. A refusal is the same for thousands in a row,
//! and what a backend sends is mostly passed on as it came: neither needs a map. So hyper is given the status alone. It
//! decides what only it can decide, whether the connection goes on, and writes the head of an empty response; on the way
//! to the socket the ready fields and the body are put where hyper has said that there is nothing.
//!
//! This depends on how hyper ends the head of an empty response. It is checked once at start against the hyper that is
//! linked, see [`check`]; where it writes anything else, every response takes the way through the map.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{Method, StatusCode};
use parking_lot::Mutex;

/// The fields of an answer, written out, its length among them.
#[derive(Debug)]
pub struct RawHeaders {
    text: Vec<u8>,
    dated: bool,
}

/// The fields and the body of an answer.
#[derive(Debug)]
pub struct PrebuiltResponse {
    lines: RawHeaders,
    body: Bytes,
}

/// What completes an answer.
#[derive(Debug)]
pub enum Prebuilt {
    /// It completes others, too.
    Kept(Arc<PrebuiltResponse>),
    /// It was made for this one.
    Own(PrebuiltResponse),
}

/// Whether hyper ends the head of an empty response as it is known here.
// Until it is checked, too: tests serve connections without a start.
static KNOWN: AtomicBool = AtomicBool::new(true);

/// Checks the head of an empty response that hyper has written; if it is not as expected, prebuilt responses are off from
/// now on.
pub fn check(empty: &[u8]) -> bool {
    let known = split(empty).is_some();
    if !known {
        KNOWN.store(false, Ordering::Relaxed);
    }
    known
}

/// The head of an empty response before the line that says so, and after it.
fn split(empty: &[u8]) -> Option<(&[u8], &[u8])> {
    let (begin, end) = empty.split_at_checked(empty.len().checked_sub(END)?)?;
    let date = end.strip_prefix(NOTHING)?;
    let known = begin.ends_with(b"\r\n") && date.starts_with(b"date: ");
    (known && date.ends_with(b"\r\n\r\n")).then_some((begin, date))
}

/// Where it waits for the server's part.
#[derive(Debug, Default)]
pub struct PrebuiltSlot {
    // Somebody looks here.
    used: AtomicBool,
    // A load instead of a lock for every write.
    any: AtomicBool,
    waiting: Mutex<Option<Prebuilt>>,
}

thread_local! {
    // The room that lines are written in, for one answer after the other.
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl RawHeaders {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            text: ROOM.take(),
            dated: false,
        }
    }

    /// Adds a field; says its name, in lower case.
    pub fn add(&mut self, name: &[u8], value: &[u8]) -> &[u8] {
        let start = self.text.len();
        self.text.extend_from_slice(name);
        let end = self.text.len();
        self.text[start..].make_ascii_lowercase();
        self.text.extend_from_slice(b": ");
        self.text.extend_from_slice(value);
        self.text.extend_from_slice(b"\r\n");
        let name = &self.text[start..end];
        self.dated |= name == b"date";
        name
    }

    /// Whether this and so long a body are little enough to be copied.
    #[must_use]
    pub fn fit(&self, body: usize) -> bool {
        self.text.len() + body <= LARGEST
    }
}

impl Default for RawHeaders {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for RawHeaders {
    fn drop(&mut self) {
        if self.text.capacity() <= LARGEST {
            self.text.clear();
            let text = std::mem::take(&mut self.text);
            // Not where an event loop ends: the room may be gone before the last answer that was kept.
            let _kept = ROOM.try_with(|room| room.set(text));
        }
    }
}

impl PrebuiltResponse {
    /// These fields, which say nothing of the connection, and this body.
    #[must_use]
    pub fn new(lines: RawHeaders, body: Bytes) -> Self {
        Self { lines, body }
    }

    /// Whether the answer to this method with this status can be completed: the server says of it that it is empty.
    #[must_use]
    pub fn may_complete(method: &Method, status: StatusCode) -> bool {
        let empty = status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        !empty && !matches!(*method, Method::CONNECT | Method::HEAD)
    }

    /// How long the body is.
    #[must_use]
    pub fn length(&self) -> usize {
        self.body.len()
    }

    /// Appends the response: hyper's empty one, with what it lacks. Appends nothing where the empty one is not as it is
    /// known here.
    pub fn complete(&self, empty: &[u8], out: &mut Vec<u8>) -> bool {
        let Some((begin, date)) = split(empty) else {
            return false;
        };
        out.extend_from_slice(begin);
        out.extend_from_slice(&self.lines.text);
        out.extend_from_slice(match self.lines.dated {
            true => b"\r\n",
            false => date,
        });
        out.extend_from_slice(&self.body);
        true
    }
}

impl Prebuilt {
    /// What it completes an answer with.
    #[must_use]
    pub fn stock(&self) -> &PrebuiltResponse {
        match self {
            Self::Kept(stock) => stock,
            Self::Own(stock) => stock,
        }
    }
}

impl PrebuiltSlot {
    /// From now on, whatever waits here is taken with the next response, unless prebuilt responses are off.
    pub fn open(&self) {
        self.used
            .store(KNOWN.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether somebody takes what waits here.
    pub fn is_open(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Completes the next answer, where it is open.
    pub fn put(&self, completion: Prebuilt) {
        *self.waiting.lock() = Some(completion);
        self.any.store(true, Ordering::Relaxed);
    }

    /// What completes the answer that leaves now.
    pub fn take(&self) -> Option<Prebuilt> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        self.any.store(false, Ordering::Relaxed);
        self.waiting.lock().take()
    }
}

/// What hyper says last: that there is no body, then the date.
const NOTHING: &[u8] = b"content-length: 0\r\n";
const END: usize = NOTHING.len() + b"date: Mon, 16 Nov 2026 10:05:48 GMT\r\n\r\n".len();

/// More than this is worth the server's own care, which copies nothing.
const LARGEST: usize = 8192;

#[cfg(test)]
mod tests {

    use super::*;

    fn completed(fields: &[(&str, &str)], empty: &str) -> String {
        let mut lines = RawHeaders::new();
        for (name, value) in fields {
            lines.add(name.as_bytes(), value.as_bytes());
        }
        let stock = PrebuiltResponse::new(lines, Bytes::from_static(b"no\n"));
        let mut out = Vec::new();
        assert!(stock.complete(empty.as_bytes(), &mut out));
        String::from_utf8(out).unwrap()
    }

    const EMPTY: &str = "HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\ncontent-length: 0\r\n\
                         date: Mon, 16 Nov 2026 10:05:48 GMT\r\n\r\n";

    #[test]
    fn what_the_server_decides_stays() {
        let fields = [("Content-Length", "3"), ("Server", "Weir")];
        assert_eq!(
            completed(&fields, EMPTY),
            "HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\ncontent-length: 3\r\nserver: Weir\r\n\
             date: Mon, 16 Nov 2026 10:05:48 GMT\r\n\r\nno\n"
        );
    }

    #[test]
    fn there_is_one_date() {
        let fields = [("Date", "now"), ("content-length", "3")];
        assert_eq!(
            completed(&fields, EMPTY),
            "HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\ndate: now\r\ncontent-length: 3\r\n\r\nno\n"
        );
    }

    #[test]
    fn a_head_that_hyper_ends_differently_is_not_completed() {
        let stock = PrebuiltResponse::new(RawHeaders::new(), Bytes::from_static(b"no\n"));
        for other in [
            String::new(),
            "HTTP/1.1 429 No\r\ncontent-length: 0\r\n\r\n".to_owned(),
            EMPTY.replace("content-length", "Content-Length"),
            EMPTY.replace("date", "Date"),
            EMPTY.replace(" GMT\r\n", " GMT\r\nserver: h\r\n"),
        ] {
            let mut out = Vec::new();
            let completed = stock.complete(other.as_bytes(), &mut out);
            assert!(!completed && out.is_empty(), "{other}");
        }
    }

    #[test]
    fn a_long_page_does_not_lie_ready() {
        let mut lines = RawHeaders::new();
        lines.add(b"a", b"b");
        assert!(lines.fit(LARGEST - 6));
        assert!(!lines.fit(LARGEST - 5));
    }
}
