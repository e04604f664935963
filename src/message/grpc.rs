//! What differs for gRPC: deadlines, and how a call's failure is reported.
//!
//! A gRPC client does not read a response's status, which is always 200; it reads `grpc-status`, in the trailers or, where
//! there is nothing else to send, in the headers.

use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};

use super::record::RequestRecord;
use crate::clock::{Deadline, Millis};
use crate::text::percent_encode;

/// Why a call failed, in gRPC's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrpcStatus {
    /// The time the client gave has passed.
    DeadlineExceeded = 4,
    /// The client may not.
    PermissionDenied = 7,
    /// There is too much of something.
    ResourceExhausted = 8,
    /// There is no such method.
    Unimplemented = 12,
    /// Something is wrong with the request, or with us.
    Internal = 13,
    /// The server cannot be reached; a retry may succeed.
    Unavailable = 14,
    /// The client is not authenticated.
    Unauthenticated = 16,
}

impl GrpcStatus {
    /// The code for an HTTP status by gRPC's mapping, except that timeouts and sizes have codes of their own.
    pub fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 | 405 => Self::Unimplemented,
            408 | 504 => Self::DeadlineExceeded,
            413 | 429 | 431 => Self::ResourceExhausted,
            502 | 503 => Self::Unavailable,
            _ => Self::Internal,
        }
    }
}

/// Whether a request is a gRPC call.
pub fn is_call(head: &Parts) -> bool {
    // Every call is a POST; of others no field is looked for.
    if head.method != Method::POST {
        return false;
    }
    let kind = head.headers.get(header::CONTENT_TYPE);
    kind.and_then(|kind| kind.as_bytes().get(..KIND.len()))
        .is_some_and(|kind| kind.eq_ignore_ascii_case(KIND.as_bytes()))
}

/// When the client of a call has waited for long enough, counted from `now`; never for any other request.
pub fn due(record: &RequestRecord, now: Millis) -> Option<Deadline> {
    if !is_call(&record.head) {
        return None;
    }
    let given = record.head.headers.get(TIMEOUT)?.to_str().ok()?;
    let mut due = Deadline::default();
    due.start(timeout(given)?.saturating_sub(now.since(record.started)));
    Some(due)
}

/// `grpc-timeout`: up to eight digits and a unit.
fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// The trailers of a response that was not there in time.
pub fn too_late() -> HeaderMap {
    let mut trailers = HeaderMap::new();
    set_status(
        &mut trailers,
        GrpcStatus::DeadlineExceeded,
        "deadline exceeded",
    );
    trailers
}

/// A response that reports this status and nothing else; `kind` is the call's content type.
pub fn refusal(kind: Option<&HeaderValue>, code: GrpcStatus, why: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    // Browsers' clients know their own kind only.
    let web = kind.filter(|kind| kind.as_bytes().starts_with(b"application/grpc-web"));
    let kind = web.cloned().unwrap_or(HeaderValue::from_static(KIND));
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    set_status(response.headers_mut(), code, why);
    response
}

fn set_status(headers: &mut HeaderMap, code: GrpcStatus, why: &str) {
    headers.insert(STATUS, HeaderValue::from(code as u16));
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'%';
    let mut message = Vec::with_capacity(why.len());
    percent_encode(why.as_bytes(), is_plain, &mut message);
    if let Ok(message) = HeaderValue::try_from(message) {
        headers.insert(MESSAGE, message);
    }
}

/// Whether the headers or the trailers of a response report that the server failed.
pub fn failed(headers: &HeaderMap) -> bool {
    let code = headers.get(STATUS).map(HeaderValue::as_bytes);
    const FAILURES: [&[u8]; 3] = [b"4", b"13", b"14"];
    code.is_some_and(|code| FAILURES.contains(&code))
}

const KIND: &str = "application/grpc";
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// How long a client is to wait before it tries again, in milliseconds.
pub const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

#[cfg(test)]
mod tests {

    use http::Request;

    use super::*;

    #[test]
    fn timeouts_have_units() {
        for (text, expected) in [
            ("1H", Some(Duration::from_secs(3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("99999999S", Some(Duration::from_secs(99_999_999))),
            ("100m", Some(Duration::from_millis(100))),
            ("7u", Some(Duration::from_micros(7))),
            ("1n", Some(Duration::from_nanos(1))),
            ("123456789S", None),
            ("S", None),
            ("", None),
            ("1", None),
            ("-1S", None),
            ("1s", None),
            ("1\u{fc}", None),
        ] {
            assert_eq!(timeout(text), expected, "{text}");
        }
    }

    #[test]
    fn a_call_is_known_by_its_kind() {
        for (kind, call) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("Application/gRPC; x=y", true),
            ("application/grpc-web", true),
            ("application/json", false),
        ] {
            let request = Request::post("/").header(header::CONTENT_TYPE, kind);
            let (head, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(is_call(&head), call, "{kind}");
        }
        let (head, ()) = Request::post("/").body(()).unwrap().into_parts();
        assert!(!is_call(&head));
    }

    #[test]
    fn a_refusal_is_all_head() {
        let answer = refusal(None, GrpcStatus::ResourceExhausted, "100% \u{fc}ber\n");
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "application/grpc");
        assert_eq!(answer.headers()["grpc-status"], "8");
        assert_eq!(answer.headers()["grpc-message"], "100%25 %C3%BCber%0A");
        let web = HeaderValue::from_static("application/grpc-web+proto");
        let answer = refusal(Some(&web), GrpcStatus::Unavailable, "gone");
        assert_eq!(answer.headers()["content-type"], web);
    }
}
