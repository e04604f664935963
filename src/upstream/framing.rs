//! Where a message ends: said in one way only when we send, and believed in one way only when we read.
//!
//! hyper is kinder than a gateway may be. It sends what lengths it is given, drops the body of a GET whose length is
//! not known, lets Transfer-Encoding win over Content-Length, takes several equal lengths for one, and does not
//! look at all where an answer has no body (HEAD, 204, 304). Two readers that disagree on where an answer ends are
//! how smuggling starts, so here it is nginx's way: one length, or `chunked` alone, or the answer is refused.

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version, response};
use http_body::Body;

use super::error::Invalid;
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

/// Refuses an answer whose end could be read in two ways, or that is none.
pub(super) fn check(head: &response::Parts) -> Result<(), Invalid> {
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        return Err(Invalid::Upgrade);
    }
    let mut encodings = head.headers.get_all(TRANSFER_ENCODING).iter();
    let mut lengths = head.headers.get_all(CONTENT_LENGTH).iter();
    let (encoding, length) = (encodings.next(), lengths.next());
    if encoding.is_some() && length.is_some() {
        return Err(Invalid::BothLengths);
    }
    let chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    if let Some(encoding) = encoding
        && (!chunked(encoding) || encodings.next().is_some() || head.version != Version::HTTP_11)
    {
        return Err(Invalid::TransferEncoding);
    }
    if let Some(length) = length
        && (!is_number(length) || lengths.next().is_some())
    {
        return Err(Invalid::ContentLength);
    }
    Ok(())
}

fn is_number(value: &HeaderValue) -> bool {
    // `u64::from_str` alone would take a sign.
    value.as_bytes().iter().all(u8::is_ascii_digit)
        && value.to_str().is_ok_and(|text| text.parse::<u64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(version: Version, fields: &[(&str, &str)]) -> Result<(), Invalid> {
        let mut answer = http::Response::builder().version(version);
        for (name, value) in fields {
            answer = answer.header(*name, *value);
        }
        check(&answer.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn one_length_or_chunked_or_nothing_is_an_answer() {
        for fields in [
            &[][..],
            &[("content-length", "0")],
            &[("content-length", "18446744073709551615")],
            &[("transfer-encoding", "Chunked")],
        ] {
            assert!(verdict(Version::HTTP_11, fields).is_ok(), "{fields:?}");
        }
    }

    #[test]
    fn two_ways_to_read_the_end_are_none() {
        for fields in [
            &[("content-length", "5"), ("transfer-encoding", "chunked")][..],
            &[("content-length", "5"), ("content-length", "5")],
            &[("content-length", "5"), ("content-length", "6")],
            &[("content-length", "5, 5")],
            &[("content-length", "+5")],
            &[("content-length", "-1")],
            &[("content-length", "")],
            &[("content-length", "18446744073709551616")],
            &[("transfer-encoding", "gzip, chunked")],
            &[("transfer-encoding", "identity")],
            &[
                ("transfer-encoding", "chunked"),
                ("transfer-encoding", "chunked"),
            ],
        ] {
            assert!(verdict(Version::HTTP_11, fields).is_err(), "{fields:?}");
        }
        assert!(verdict(Version::HTTP_10, &[("transfer-encoding", "chunked")]).is_err());
    }

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
