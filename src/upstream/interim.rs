//! Interim (1xx) answers, passed on to clients that can know them.
//!
//! 100 is not among them: the client got its own from us when its body was asked for. Neither is 101, which is no
//! interim answer at all.

use http::header::{CONTENT_LENGTH, TRAILER};
use http::{HeaderMap, StatusCode, Version};

use crate::message::headers::{ConnectionOptions, passes};
use crate::message::{InterimResponse, RequestRecord};

/// Passes interim answers on to the client that `exchange` is with.
#[derive(Debug)]
pub(super) struct InterimRelay<'e> {
    exchange: &'e RequestRecord,
    seen: bool,
    passed: usize,
}

impl<'e> InterimRelay<'e> {
    pub(super) fn new(exchange: &'e RequestRecord) -> Self {
        Self {
            exchange,
            seen: false,
            passed: 0,
        }
    }

    pub(super) fn pass(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.seen = true;
        // An HTTP/1.0 client would take one for the answer.
        if status != StatusCode::CONTINUE
            && self.passed < MOST
            && self.exchange.head.version >= Version::HTTP_11
        {
            self.passed += 1;
            let line = &self.exchange.peer.line;
            line.send_interim(passed_on(status, headers));
        }
    }

    /// Whether there have been any.
    pub(super) fn is_used(&self) -> bool {
        self.seen
    }
}

fn passed_on(status: StatusCode, headers: &HeaderMap) -> InterimResponse {
    let options = ConnectionOptions::of(headers);
    let mut kept = HeaderMap::new();
    for (name, value) in headers {
        // There is no body for the last two to say anything of.
        if passes(name.as_ref()) && !options.list(name) && ![CONTENT_LENGTH, TRAILER].contains(name)
        {
            kept.append(name, value.clone());
        }
    }
    InterimResponse {
        status,
        headers: kept,
    }
}

/// How many go to a client for one request. A backend that sends them without end is cut off by
/// `proxy_read_timeout`; until then the client is spared them.
const MOST: usize = 16;

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn only_fields_meant_for_the_client_are_passed() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("link", "</a.css>; rel=preload"),
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("keep-alive", "5"),
            ("content-length", "5"),
            ("x-accel-buffering", "no"),
        ] {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, HeaderValue::from_static(value));
        }
        let mut head = Vec::new();
        passed_on(StatusCode::EARLY_HINTS, &headers).encode(&mut head);
        assert_eq!(
            String::from_utf8(head).unwrap(),
            "HTTP/1.1 103 Early Hints\r\nlink: </a.css>; rel=preload\r\n\r\n"
        );
    }
}
