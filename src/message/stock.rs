//! What of an answer lies ready before it is asked for.
//!
//! A refusal is the same for thousands in a row, and yet its fields would be copied into a map, read out of it again and
//! freed, every time. So the server is given the status alone. It decides what only it can decide, whether the
//! connection goes on, and writes its head; on the way to the socket the ready fields and the body are put where the
//! server has said that there is nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::HeaderMap;
use parking_lot::Mutex;

/// The fields and the body of an answer, written out.
#[derive(Debug)]
pub struct Stock {
    fields: Box<[u8]>,
    body: Bytes,
}

/// Where it waits for the server's part.
#[derive(Debug, Default)]
pub struct Ready {
    // Somebody looks here.
    used: AtomicBool,
    // A load instead of a lock for every write.
    any: AtomicBool,
    stock: Mutex<Option<Arc<Stock>>>,
}

impl Ready {
    /// From now on, whatever waits here is taken with the next answer.
    pub fn open(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    /// Completes the next answer; false where nobody would.
    #[must_use]
    pub fn put(&self, stock: &Arc<Stock>) -> bool {
        if !self.used.load(Ordering::Relaxed) {
            return false;
        }
        *self.stock.lock() = Some(Arc::clone(stock));
        self.any.store(true, Ordering::Relaxed);
        true
    }

    /// What completes the answer that leaves now.
    pub fn take(&self) -> Option<Arc<Stock>> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        self.any.store(false, Ordering::Relaxed);
        self.stock.lock().take()
    }
}

impl Stock {
    /// Of these fields, which say nothing of a length, a date or the connection; `None` if that is too much to copy for
    /// everybody.
    #[must_use]
    pub fn new(headers: &HeaderMap, body: &Bytes) -> Option<Self> {
        let mut fields = format!("content-length: {}\r\n", body.len()).into_bytes();
        for (name, value) in headers {
            fields.extend_from_slice(name.as_str().as_bytes());
            fields.extend_from_slice(b": ");
            fields.extend_from_slice(value.as_bytes());
            fields.extend_from_slice(b"\r\n");
        }
        (fields.len() + body.len() <= LARGEST).then(|| Self {
            fields: fields.into(),
            body: body.clone(),
        })
    }

    /// How long the body is.
    #[must_use]
    pub fn length(&self) -> usize {
        self.body.len()
    }

    /// Appends the answer: the server's empty one, with what it lacks.
    pub fn complete(&self, empty: &[u8], out: &mut Vec<u8>) {
        let end = empty.len().saturating_sub(END);
        match empty.split_at(end) {
            (begin, end) if end.starts_with(NOTHING) => {
                out.extend_from_slice(begin);
                out.extend_from_slice(&self.fields);
                out.extend_from_slice(&end[NOTHING.len()..]);
                out.extend_from_slice(&self.body);
            }
            // Not as we know it. An empty answer is one, too.
            _ => out.extend_from_slice(empty),
        }
    }
}

/// What the server says last: that there is no body, then the date.
const NOTHING: &[u8] = b"content-length: 0\r\n";
const END: usize = NOTHING.len() + b"date: Mon, 16 Nov 2026 10:05:48 GMT\r\n\r\n".len();

/// More than this is worth the server's own care, which copies nothing.
const LARGEST: usize = 4096;

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header};

    use super::*;

    fn stock() -> Stock {
        let mut headers = HeaderMap::new();
        headers.insert(header::SERVER, HeaderValue::from_static("weir"));
        Stock::new(&headers, &Bytes::from_static(b"no\n")).unwrap()
    }

    fn completed(empty: &str) -> String {
        let mut out = Vec::new();
        stock().complete(empty.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_the_server_decides_stays() {
        let empty = "HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\ncontent-length: 0\r\n\
                     date: Mon, 16 Nov 2026 10:05:48 GMT\r\n\r\n";
        assert_eq!(
            completed(empty),
            "HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\ncontent-length: 3\r\nserver: weir\r\n\
             date: Mon, 16 Nov 2026 10:05:48 GMT\r\n\r\nno\n"
        );
    }

    #[test]
    fn what_is_not_understood_is_left_alone() {
        for other in ["", "HTTP/1.1 429 No\r\ncontent-length: 0\r\n\r\n"] {
            assert_eq!(completed(other), other);
        }
    }

    #[test]
    fn a_long_page_does_not_lie_ready() {
        let long = Bytes::from(vec![b'x'; LARGEST]);
        assert!(Stock::new(&HeaderMap::new(), &long).is_none());
    }
}
