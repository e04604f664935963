//! Where a request ends, said in one way only.
//!
//! Whatever a client or a `proxy_set_header` said of the body's length does not count: the length we know, or chunks
//! where we know none. Two readers that disagree on where a request ends are how smuggling starts.

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method};
use http_body::Body;

use crate::message::Upload;

/// Makes the header fields say how long the body is, whatever they said before.
pub(super) fn declare(headers: &mut HeaderMap, method: &Method, upload: &Upload) {
    headers.remove(TRANSFER_ENCODING);
    if upload.is_none() {
        // A method that usually has a body says that it has none; and no other may promise one.
        let usual = [Method::POST, Method::PUT, Method::PATCH].contains(method);
        if usual || headers.contains_key(CONTENT_LENGTH) {
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
    } else if let Some(length) = upload.size_hint().exact() {
        headers.insert(CONTENT_LENGTH, length.into());
    } else {
        headers.remove(CONTENT_LENGTH);
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_a_body_promises_none() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("7"));
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        declare(&mut headers, &Method::GET, &Upload::none());
        assert_eq!(headers[CONTENT_LENGTH], "0");
        assert!(!headers.contains_key(TRANSFER_ENCODING));
        let mut headers = HeaderMap::new();
        declare(&mut headers, &Method::GET, &Upload::none());
        assert!(headers.is_empty());
        declare(&mut headers, &Method::POST, &Upload::none());
        assert_eq!(headers[CONTENT_LENGTH], "0");
    }
}
