//! Which header fields pass, and which belong to one connection only.
//!
//! Requests are written anew ([`write_request`]), answers are cleaned in place.

mod hops;
mod identity;
mod options;
mod redirect;
mod request;
mod spare;
mod upgrade;

use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue};

pub use hops::{MaxForwards, hops};
pub use identity::speaks_for_client;
pub use options::ConnectionOptions;
pub use redirect::rewrite_redirects;
pub use request::{stream_request, target_sent, write_request};
pub use spare::{reuse, spare};
pub use upgrade::{Upgrade, restore_upgrade};

/// What a request's transfer coding is to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferCoding {
    /// None, or `chunked` once: everybody reads it alike.
    Plain,
    /// One that ends in `chunked` and would leave the rest of the decoding to the backend.
    Unknown,
    /// One that nobody can tell the end of.
    Invalid,
}

/// What a backend wants us to do with its answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccelHeaders {
    /// `X-Accel-Limit-Rate`: how fast it may leave, in bytes a second.
    pub limit_rate: Option<u64>,
    /// `X-Accel-Buffering`: whether it is buffered.
    pub buffering: Option<bool>,
    /// Whether there is an `X-Accel-Redirect`, which is left on the answer: without it nobody could tell why the body is empty.
    pub redirect: bool,
}

/// What a request's transfer coding is to us; hyper takes whatever ends in `chunked`.
#[must_use]
pub fn coding(headers: &HeaderMap) -> TransferCoding {
    let mut fields = headers.get_all(header::TRANSFER_ENCODING).iter();
    let Some(field) = fields.next() else {
        return TransferCoding::Plain;
    };
    let mut codings = field.as_bytes().split(|byte| *byte == b',').rev();
    let mut is_chunked = || {
        let coding = codings.next().map(<[u8]>::trim_ascii);
        coding.map(|coding| coding.eq_ignore_ascii_case(b"chunked"))
    };
    match (is_chunked(), is_chunked()) {
        _ if fields.next().is_some() => TransferCoding::Invalid,
        (Some(true), None) => TransferCoding::Plain,
        (Some(true), Some(false)) => TransferCoding::Unknown,
        _ => TransferCoding::Invalid,
    }
}

/// Takes from an answer what is meant for us, and what nginx hides. `Date` and `Server` stay the backend's.
///
/// An upgrade has to be dealt with before: its fields go too. What is left is what was told to us.
pub fn clean_response(headers: &mut HeaderMap) -> AccelHeaders {
    let (mut connection, mut hidden, mut lengths) = (false, false, 0);
    for (name, value) in headers.iter() {
        connection |= belongs_to_connection(name);
        hidden |= is_hidden(name.as_ref());
        if name == header::CONTENT_LENGTH {
            lengths += if is_length(value) { 1 } else { 2 };
        }
    }
    if lengths > 1 || connection && headers.contains_key(header::TRANSFER_ENCODING) {
        settle_length(headers);
    }
    if connection {
        remove_connection_fields(headers);
    }
    let mut wishes = AccelHeaders::default();
    if hidden {
        wishes = AccelHeaders {
            limit_rate: limit_rate(headers),
            buffering: buffering(headers),
            redirect: headers.contains_key(REDIRECT),
        };
        let names: Vec<_> = headers
            .keys()
            .filter(|name| is_hidden(name.as_ref()) && **name != REDIRECT)
            .cloned()
            .collect();
        for name in names {
            headers.remove(name);
        }
    }
    wishes
}

/// The last of the backend's wishes that is a number.
fn limit_rate(headers: &HeaderMap) -> Option<u64> {
    let wishes = headers.get_all("x-accel-limit-rate").into_iter().rev();
    wishes
        .filter(|wish| is_length(wish))
        .find_map(|wish| wish.to_str().ok()?.parse().ok())
}

/// The first of the backend's wishes that is one.
fn buffering(headers: &HeaderMap) -> Option<bool> {
    let mut wishes = headers.get_all("x-accel-buffering").into_iter();
    wishes.find_map(|wish| match wish.as_bytes() {
        wish if wish.eq_ignore_ascii_case(b"no") => Some(false),
        wish if wish.eq_ignore_ascii_case(b"yes") => Some(true),
        _ => None,
    })
}

/// Takes from an answer, or from what follows it, what HTTP/2 has no place for.
pub fn clean_for_streams(headers: &mut HeaderMap) {
    if headers.keys().any(belongs_to_connection) {
        remove_connection_fields(headers);
    }
}

fn remove_connection_fields(headers: &mut HeaderMap) {
    for name in ConnectionOptions::of(headers).into_names() {
        // How long the body is, is not a matter of the connection.
        if name != header::CONTENT_LENGTH {
            headers.remove(name);
        }
    }
    for name in &CONNECTION_FIELDS {
        headers.remove(name);
    }
}

/// Leaves one valid length, or none: next to a transfer coding it means nothing, and two that differ say nothing.
fn settle_length(headers: &mut HeaderMap) {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let first = lengths.next().filter(|first| is_length(first)).cloned();
    let agreed = !headers.contains_key(header::TRANSFER_ENCODING)
        && lengths.all(|other| Some(other) == first.as_ref());
    match first.filter(|_| agreed) {
        Some(length) => headers.insert(header::CONTENT_LENGTH, length),
        None => headers.remove(header::CONTENT_LENGTH),
    };
}

fn is_length(value: &HeaderValue) -> bool {
    !value.is_empty() && value.as_bytes().iter().all(u8::is_ascii_digit)
}

/// Whether there is no control character in it, not even a tab. Eight bytes at a time: every value is looked at.
fn is_plain(text: &[u8]) -> bool {
    const EACH: u64 = u64::MAX / 255;
    let (words, rest) = text.as_chunks::<8>();
    // A byte's highest bit is set where the byte was less than what is taken from it, and had no such bit before.
    let odd = words.iter().fold(0, |odd, word| {
        let word = u64::from_le_bytes(*word);
        let delete = word ^ (EACH * 0x7f);
        odd | (word.wrapping_sub(EACH * 0x20) & !word) | (delete.wrapping_sub(EACH) & !delete)
    });
    odd & (EACH * 0x80) == 0 && rest.iter().all(|byte| *byte >= 0x20 && *byte != 0x7f)
}

fn frames_body(name: &HeaderName) -> bool {
    matches!(name.as_str(), "content-length" | "transfer-encoding")
}

/// What whoever sends a request on sets anew: the length, whom it is for, and the promise to wait for a 100.
fn is_rebuilt(name: &HeaderName) -> bool {
    matches!(name.as_str(), "content-length" | "expect" | "host")
}

/// Whether a field of an answer, its name in lower case, is passed on whatever else the answer says; unless a field that
/// is not names it.
#[must_use]
pub fn passes(name: &[u8]) -> bool {
    !concerns_connection(name) && !is_hidden(name)
}

/// Whether a field of an answer is passed on with the value it came with, too.
#[must_use]
pub fn passes_unchanged(name: &[u8]) -> bool {
    passes(name) && !redirect::may_redirect(name)
}

/// What concerns the connection it came on, whether `Connection` says so or not.
fn belongs_to_connection(name: &HeaderName) -> bool {
    concerns_connection(name.as_ref())
}

fn concerns_connection(name: &[u8]) -> bool {
    // Asked of every field of every message: the length tells most of them apart.
    matches!(
        name,
        b"connection"
            | b"http2-settings"
            | b"keep-alive"
            | b"proxy-authenticate"
            | b"proxy-authorization"
            | b"proxy-connection"
            | b"te"
            | b"transfer-encoding"
            | b"upgrade"
    )
}

/// What a backend says to nginx, not to the client.
fn is_hidden(name: &[u8]) -> bool {
    name == b"x-pad" || name.starts_with(b"x-accel-")
}

const REDIRECT: &str = "x-accel-redirect";

/// Those of [`belongs_to_connection`].
const CONNECTION_FIELDS: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

#[cfg(test)]
mod tests;
