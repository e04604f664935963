//! Where a request ends, said in one way only.
//!
//! Whatever a client or a `proxy_set_header` said of the body's length does not count: the length we know, or chunks
//! where we know none. Two readers that disagree on where a request ends are how smuggling starts.

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderValue, Method};
use http_body::Body;

use super::http1::RequestFraming;
use crate::message::RequestBody;

/// Appends the field that says how long the body is, if one is needed.
pub(super) fn declare(method: &Method, upload: &RequestBody, head: &mut Vec<u8>) -> RequestFraming {
    if upload.is_none() {
        // A method that usually has a body says that it has none.
        if [Method::POST, Method::PUT, Method::PATCH].contains(method) {
            head.extend_from_slice(b"content-length: 0\r\n");
        }
        return RequestFraming::Plain;
    }
    let Some(length) = upload.size_hint().exact() else {
        head.extend_from_slice(b"transfer-encoding: chunked\r\n");
        return RequestFraming::Chunked;
    };
    head.extend_from_slice(b"content-length: ");
    head.extend_from_slice(length.to_string().as_bytes());
    head.extend_from_slice(b"\r\n");
    RequestFraming::Plain
}

/// The same for HTTP/2, where the end is told in another way and the length only helps.
pub(super) fn announce(method: &Method, upload: &RequestBody, headers: &mut HeaderMap) {
    let length = match upload.size_hint().exact() {
        Some(0) if ![Method::POST, Method::PUT, Method::PATCH].contains(method) => return,
        Some(length) => length,
        None => return,
    };
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_a_body_promises_none() {
        for (method, says) in [
            (Method::GET, ""),
            (Method::DELETE, ""),
            (Method::POST, "content-length: 0\r\n"),
        ] {
            let mut head = Vec::new();
            declare(&method, &RequestBody::none(), &mut head);
            assert_eq!(head, says.as_bytes(), "{method}");
        }
    }
}
