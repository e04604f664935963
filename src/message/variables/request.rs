//! Values of variables that are found in the request line and the request headers.

use std::io::Write as _;

use http::request::Parts;
use http::{HeaderName, Version, header};

use crate::message::record::RequestRecord;
use crate::text::decode_base64;

/// `$arg_NAME`: the first of that name in any case, not decoded. Without a `=` there is no value.
pub(super) fn arg<'h>(head: &'h Parts, name: &str) -> Option<&'h [u8]> {
    let mut args = head.uri.query()?.split('&');
    args.find_map(|arg| {
        let (found, value) = arg.split_once('=')?;
        (found.eq_ignore_ascii_case(name)).then_some(value.as_bytes())
    })
}

/// `$cookie_NAME`: the first of that name in any case. A comma separates cookies before it, as in nginx.
pub(super) fn cookie<'h>(head: &'h Parts, name: &str) -> Option<&'h [u8]> {
    let mut lines = head.headers.get_all(header::COOKIE).iter();
    lines.find_map(|line| cookie_in(line.as_bytes(), name.as_bytes()))
}

fn cookie_in<'a>(mut line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    loop {
        line = trim_spaces(line);
        if let Some((found, rest)) = line.split_at_checked(name.len())
            && found.eq_ignore_ascii_case(name)
            && let [b'=', value @ ..] = trim_spaces(rest)
        {
            let value = trim_spaces(value);
            let end = value.iter().position(|b| *b == b';');
            return Some(&value[..end.unwrap_or(value.len())]);
        }
        let next = line.iter().position(|b| matches!(b, b';' | b','))?;
        line = &line[next + 1..];
    }
}

fn trim_spaces(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|b| *b != b' ');
    &text[start.unwrap_or(text.len())..]
}

/// `$request`: the request line as it came.
pub(super) fn line(head: &Parts, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(head.method.as_str().as_bytes());
    out.push(b' ');
    match head.uri.path_and_query() {
        // The ordinary form, spared the formatting.
        Some(target) if head.uri.authority().is_none() => {
            out.extend_from_slice(target.as_str().as_bytes());
        }
        // Writing to memory does not fail.
        _ => drop(write!(out, "{}", head.uri)),
    }
    out.push(b' ');
    out.extend_from_slice(protocol(head).as_bytes());
    true
}

/// `$host`: the host in the request, or else the server's name.
pub(super) fn host(record: &RequestRecord) -> &[u8] {
    match record.target.host(&record.head) {
        b"" => record.server().name.as_bytes(),
        host => host,
    }
}

/// `$is_args`
pub(super) fn is_args(head: &Parts) -> &'static str {
    match head.uri.query() {
        None | Some("") => "",
        Some(_) => "?",
    }
}

/// `$server_protocol`
pub(super) fn protocol(head: &Parts) -> &'static str {
    match head.version {
        Version::HTTP_09 => "HTTP/0.9",
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        Version::HTTP_3 => "HTTP/3.0",
        _ => "HTTP/1.1",
    }
}

/// `$request_uri`
pub(super) fn uri(head: &Parts) -> &str {
    let target = head.uri.path_and_query();
    target.map_or("", |target| target.as_str())
}

/// What `$proxy_add_x_forwarded_for` puts before the client's own address: the addresses that the client claims.
pub(super) fn forwarded_for(head: &Parts, out: &mut Vec<u8>) {
    // Looked for one by one: most requests have few headers, and the name would have to be hashed.
    for (name, claim) in &head.headers {
        if *name == X_FORWARDED_FOR && !claim.is_empty() {
            out.extend_from_slice(claim.as_bytes());
            out.extend_from_slice(b", ");
        }
    }
}

/// `$remote_user`: the name in a Basic Authorization field, the password unchecked.
pub(super) fn user(head: &Parts, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    let found = head
        .headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.as_bytes().split_at_checked(6))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"basic "))
        .is_some_and(|(_, encoded)| decode_base64(trim_spaces(encoded), out));
    match out[start..].iter().position(|b| *b == b':') {
        Some(colon) if found => out.truncate(start + colon),
        _ => {
            out.truncate(start);
            return false;
        }
    }
    true
}

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
