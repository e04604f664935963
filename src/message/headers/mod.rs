//! Which header fields pass, and which belong to one connection only.
//!
//! What goes upstream is copied into a new map rather than cleaned in place: the client's head stays as it came, for
//! variables and the log. What we add is set after everything the client says has been carried out, so that no
//! `Connection` field can take it away again.

use bytes::Bytes;
use http::header::{self, HeaderName};
use http::uri::InvalidUri;
use http::{HeaderMap, HeaderValue, Uri, Version};

use super::Exchange;
use super::target::push_encoded;
use super::vars::{self, with_buffer};
use crate::config::plan::{Forward, Template, Variable, Via};

/// Copies the fields of a request that are meant for whoever answers it. Those that frame the body and `Host` are left
/// out too: whoever sends the request sets them anew.
pub fn end_to_end(headers: &HeaderMap, out: &mut HeaderMap) {
    out.reserve(headers.len());
    for (name, value) in headers {
        if !belongs_to_connection(name) && !is_rebuilt(name) {
            out.append(name, value.clone());
        }
    }
    remove_nominated(headers, out);
}

/// Whether a request's transfer coding is one that everybody reads alike: none, or `chunked` once. hyper takes others
/// that end in it, and would leave the rest of the decoding to the backend.
#[must_use]
pub fn is_plainly_coded(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match codings.next() {
        None => true,
        Some(coding) => {
            let coding = coding.as_bytes().trim_ascii();
            coding.eq_ignore_ascii_case(b"chunked") && codings.next().is_none()
        }
    }
}

/// Takes from an answer what is meant for us, and what nginx hides. `Date` and `Server` stay the backend's.
///
/// An upgrade has to be dealt with before: its fields go too.
pub fn clean_response(headers: &mut HeaderMap) {
    let (mut connection, mut hidden, mut lengths) = (false, false, 0);
    for (name, value) in headers.iter() {
        connection |= belongs_to_connection(name);
        hidden |= is_hidden(name);
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
    if hidden {
        let names: Vec<_> = headers
            .keys()
            .filter(|name| is_hidden(name))
            .cloned()
            .collect();
        for name in names {
            headers.remove(name);
        }
    }
}

/// The header fields to send upstream: the client's that pass, then what `proxy_set_header` says, then `Via`.
pub fn for_upstream(exchange: &Exchange, forward: &Forward, out: &mut HeaderMap) {
    let headers = &exchange.head.headers;
    end_to_end(headers, out);
    if wants_trailers(headers) {
        out.insert(header::TE, HeaderValue::from_static("trailers"));
        out.insert(header::CONNECTION, HeaderValue::from_static("te"));
    }
    for set in &forward.set_headers {
        if frames_body(&set.name) {
            continue;
        }
        match value_of(&set.value, exchange) {
            Some(value) => out.insert(&set.name, value),
            None => out.remove(&set.name),
        };
    }
    if forward.via == Via::On {
        out.append(header::VIA, via(exchange.head.version));
    }
}

/// The target to ask an upstream for, in origin form.
///
/// # Errors
///
/// When `proxy_pass` has a URI part and the target made with it is too long for one.
pub fn target_for(exchange: &Exchange, forward: &Forward) -> Result<Uri, InvalidUri> {
    let head = &exchange.head;
    let asked = head.uri.path_and_query();
    let Some(uri) = &forward.uri else {
        return Ok(asked.map_or_else(|| Uri::from_static("/"), |asked| asked.clone().into()));
    };
    let path = exchange.target.path(head);
    let rest = path.get(forward.replaces..).unwrap_or_default();
    let query = asked.and_then(|asked| asked.query());
    let length = uri.len() + rest.len() + query.map_or(0, |query| query.len() + 1);
    let mut target = String::with_capacity(length);
    target.push_str(uri);
    match std::str::from_utf8(rest) {
        // It was never decoded, so what the client did not escape needs no escaping.
        Ok(rest) if !exchange.target.is_rewritten() => target.push_str(rest),
        _ => push_encoded(rest, &mut target),
    }
    if let Some(query) = query {
        target.push('?');
        target.push_str(query);
    }
    Uri::from_maybe_shared(Bytes::from(target))
}

/// What a template says as a field's value; `None` where that is nothing, or nothing a field could carry.
fn value_of(template: &Template, exchange: &Exchange) -> Option<HeaderValue> {
    if let Some(value) = shared_value(template.as_variable(), exchange) {
        return Some(value);
    }
    with_buffer(|text| {
        vars::render(template, exchange, text);
        HeaderValue::from_bytes(text)
            .ok()
            .filter(|value| !value.is_empty())
    })
}

/// A value that is there already and need not be put together.
fn shared_value(variable: Option<&Variable>, exchange: &Exchange) -> Option<HeaderValue> {
    let headers = &exchange.head.headers;
    let only = |name: &HeaderName| {
        let mut values = headers.get_all(name).iter();
        values
            .next()
            .filter(|value| values.next().is_none() && !value.is_empty())
    };
    match variable? {
        Variable::Host => only(&header::HOST)
            .filter(|value| value.as_bytes() == exchange.target.host(&exchange.head).as_bytes())
            .cloned(),
        Variable::Http(name) => only(name).cloned(),
        Variable::ProxyAddXForwardedFor if headers.contains_key("x-forwarded-for") => None,
        Variable::ProxyAddXForwardedFor | Variable::RemoteAddr => {
            Some(exchange.peer.value().clone())
        }
        Variable::Scheme => Some(HeaderValue::from_static("http")),
        _ => None,
    }
}

fn via(version: Version) -> HeaderValue {
    HeaderValue::from_static(match version {
        Version::HTTP_09 | Version::HTTP_10 => "1.0 weir",
        Version::HTTP_2 => "2.0 weir",
        _ => "1.1 weir",
    })
}

/// Whether a client's TE says it will take trailers; all else in there is between it and us.
fn wants_trailers(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(header::TE).iter();
    lines.any(|line| {
        let mut codings = line.as_bytes().split(|b| *b == b',');
        codings.any(|coding| {
            let name = coding.split(|b| *b == b';').next().unwrap_or_default();
            name.trim_ascii().eq_ignore_ascii_case(b"trailers")
        })
    })
}

/// Removes from `out` what the `Connection` fields in `headers` name.
fn remove_nominated(headers: &HeaderMap, out: &mut HeaderMap) {
    for options in headers.get_all(header::CONNECTION) {
        for name in nominated(options) {
            out.remove(name);
        }
    }
}

fn remove_connection_fields(headers: &mut HeaderMap) {
    // Nearly always empty, and then it costs nothing.
    let nominating: Vec<_> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter(|options| nominated(options).next().is_some())
        .cloned()
        .collect();
    for name in nominating.iter().flat_map(nominated) {
        // How long the body is, is not a matter of the connection.
        if !name.eq_ignore_ascii_case(header::CONTENT_LENGTH.as_str()) {
            headers.remove(name);
        }
    }
    for name in &CONNECTION_FIELDS {
        headers.remove(name);
    }
}

/// The field names in a `Connection` field; none in the ordinary ones.
fn nominated(options: &HeaderValue) -> impl Iterator<Item = &str> {
    options
        .as_bytes()
        .split(|b| *b == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|option| {
            !option.eq_ignore_ascii_case(b"keep-alive") && !option.eq_ignore_ascii_case(b"close")
        })
        .filter_map(|option| std::str::from_utf8(option).ok())
        .filter(|option| !option.is_empty())
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

fn frames_body(name: &HeaderName) -> bool {
    matches!(name.as_str(), "content-length" | "transfer-encoding")
}

/// What whoever sends a request on sets anew: the length, whom it is for, and the promise to wait for a 100.
fn is_rebuilt(name: &HeaderName) -> bool {
    matches!(name.as_str(), "content-length" | "expect" | "host")
}

/// What concerns the connection it came on, whether `Connection` says so or not.
fn belongs_to_connection(name: &HeaderName) -> bool {
    // Asked of every field of every message: the length tells most of them apart.
    matches!(
        name.as_str(),
        "connection"
            | "http2-settings"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// What a backend says to nginx, not to the client.
fn is_hidden(name: &HeaderName) -> bool {
    let name = name.as_str();
    name == "x-pad" || name.starts_with("x-accel-")
}

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
