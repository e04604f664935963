//! Host and path in the form that routing and keys use.
//!
//! All decisions by host or path use these, so that `//api/%2e/x` and `/api/x`, `EXAMPLE.com.:80` and
//! `example.com` cannot have different rules or different buckets. The rules are nginx's. An ordinary request is
//! already in this form, and then nothing is copied: the head itself is looked at.

#[cfg(test)]
#[path = "tests/target.rs"]
mod tests;

use std::net::Ipv6Addr;

use http::request::Parts;
use http::{HeaderValue, Method, Version, header};

use crate::config::plan::ProxyPass;
use crate::text::{hex_byte, percent_encode};

/// Host and path of a request, normalised.
#[derive(Debug, Default)]
pub struct Target {
    host: Host,
    // `None`: as it stands in the request.
    path: Option<Box<[u8]>>,
}

#[derive(Debug, Default)]
enum Host {
    #[default]
    Absent,
    /// So many bytes from the start of the request's host: port and last dot are all that may follow.
    InHead {
        length: usize,
        /// The place of the field among all, where the target does not have it.
        field: usize,
    },
    Lowered(Box<[u8]>),
}

/// Why a request's target or Host field is refused, each with 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// More `..` than segments before them: the path would leave the root.
    #[error(
        "client sent invalid request (the path climbs above the root) while reading client request line"
    )]
    AboveRoot,
    /// `example.com:443` without CONNECT, or `*` without OPTIONS.
    #[error(
        "client sent invalid request (this form of target does not belong to this method) while reading client request line"
    )]
    Form,
    /// Not a name or an address, or its port is not a number.
    #[error("client sent invalid host header while reading client request headers")]
    Host,
    /// Another host than the one in a target in absolute form: two readers would see two sites.
    #[error(
        "client sent a host header at odds with the target while reading client request headers"
    )]
    HostAtOdds,
    /// HTTP/1.1 asks for one, always.
    #[error(
        "client sent HTTP/1.1 request without \"Host\" header while reading client request headers"
    )]
    HostMissing,
    /// Two fields: another server may read the other one.
    #[error("client sent duplicate host header while reading client request headers")]
    HostTwice,
    /// A `%` without two hexadecimal digits, or `%00`.
    #[error(
        "client sent invalid request (the path is not encoded well) while reading client request line"
    )]
    Encoding,
    /// A target with a scheme that is not ours to serve.
    #[error(
        "client sent invalid request (the target's scheme is neither http nor https) while reading client request line"
    )]
    Scheme,
}

impl Target {
    /// Reads host and path of a request.
    ///
    /// # Errors
    ///
    /// When either is ambiguous.
    pub fn parse(head: &Parts) -> Result<Self, Error> {
        check_form(head)?;
        // Mostly the first of few: looking at the names is cheaper than looking one up, and tells where it is.
        let fields = head.headers.iter().enumerate();
        let mut hosts = fields.filter(|(_, (name, _))| **name == header::HOST);
        let field = hosts.next();
        if hosts.next().is_some() {
            return Err(Error::HostTwice);
        }
        let authority = head.uri.authority();
        let needed = match head.version {
            Version::HTTP_09 | Version::HTTP_10 => false,
            Version::HTTP_11 => true,
            _ => authority.is_none(),
        };
        if needed && field.is_none() {
            return Err(Error::HostMissing);
        }
        let field = field.map(|(at, (_, value))| (at, value.as_bytes()));
        // RFC 9112 lets the target win. Honest clients do not send two different hosts.
        if let (Some((_, field)), Some(authority)) = (field, authority)
            && !same_site(field, authority.as_str().as_bytes(), head.uri.scheme_str())
        {
            return Err(Error::HostAtOdds);
        }
        let host = match (authority, field) {
            (Some(authority), _) => parse_host(authority.as_str().as_bytes(), 0)?,
            (None, Some((at, field))) => parse_host(field, at)?,
            (None, None) => Host::Absent,
        };
        let path = match head.uri.path().as_bytes() {
            path if is_normal(path) => None,
            path => Some(normalise(path)?.into()),
        };
        Ok(Self { host, path })
    }

    /// The host: lower case, no port, no last dot, IPv6 in brackets; empty where the request names none.
    pub fn host<'a>(&'a self, head: &'a Parts) -> &'a [u8] {
        match &self.host {
            Host::Absent => b"",
            Host::InHead { length, field } => {
                let host = host_in(head, *field);
                host.get(..*length).unwrap_or_default()
            }
            Host::Lowered(host) => host,
        }
    }

    /// The host with its port as the request has it, from the Host field before the target.
    pub(super) fn authority<'a>(&self, head: &'a Parts) -> Option<&'a [u8]> {
        let authority = head.uri.authority();
        match self.host {
            Host::Absent => None,
            Host::InHead { field, .. } if authority.is_none() => Some(host_in(head, field)),
            Host::InHead { .. } | Host::Lowered(_) => {
                let field = head.headers.get(header::HOST);
                let field = field.map(HeaderValue::as_bytes);
                field.or_else(|| authority.map(|authority| authority.as_str().as_bytes()))
            }
        }
    }

    /// The path: decoded, without `//`, `.` and `..`; always begins with a slash.
    pub fn path<'a>(&'a self, head: &'a Parts) -> &'a [u8] {
        if let Some(path) = &self.path {
            return path;
        }
        match head.uri.path() {
            // The whole server is meant: what holds at its root holds for these too.
            "" | "*" => b"/",
            path => path.as_bytes(),
        }
    }
}

/// Whether two authorities name the same site, the scheme's own port written out or not.
fn same_site(one: &[u8], other: &[u8], scheme: Option<&str>) -> bool {
    let port: &[u8] = match scheme {
        Some("http") => b":80",
        Some("https") => b":443",
        _ => b"",
    };
    let plain = |text| <[u8]>::strip_suffix(text, port).unwrap_or(text);
    plain(one).eq_ignore_ascii_case(plain(other))
}

/// Encodes a decoded path, byte for byte where nginx does (` `, `%`, `?`, `#`, what is not allowed in a target, and all
/// that is not ASCII).
pub fn encode_path(path: &[u8]) -> String {
    let mut text = Vec::with_capacity(path.len() + path.len() / 4);
    push_encoded(path, &mut text);
    String::from_utf8(text).expect("what is not ASCII was escaped")
}

/// Appends what [`encode_path`] gives.
pub fn push_encoded(path: &[u8], text: &mut Vec<u8>) {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"#%<>?\\^`{|}".contains(&byte);
    percent_encode(path, is_plain, text);
}

fn check_form(head: &Parts) -> Result<(), Error> {
    let uri = &head.uri;
    match (uri.scheme_str(), uri.authority()) {
        (Some(scheme), _) => {
            let ours = ["http", "https"]
                .iter()
                .any(|s| scheme.eq_ignore_ascii_case(s));
            if ours { Ok(()) } else { Err(Error::Scheme) }
        }
        (None, Some(_)) if head.method != Method::CONNECT => Err(Error::Form),
        (None, None) if head.method == Method::CONNECT => Err(Error::Form),
        (None, None) if uri.path() == "*" && head.method != Method::OPTIONS => Err(Error::Form),
        _ => Ok(()),
    }
}

fn host_in(head: &Parts, field: usize) -> &[u8] {
    match head.uri.authority() {
        Some(authority) => authority.as_str().as_bytes(),
        None => {
            let mut values = head.headers.values();
            values.nth(field).map_or(b"", HeaderValue::as_bytes)
        }
    }
}

fn parse_host(bytes: &[u8], field: usize) -> Result<Host, Error> {
    let (end, upper) = if bytes.first() == Some(&b'[') {
        let end = bytes.iter().position(|b| *b == b']').ok_or(Error::Host)?;
        let literal = std::str::from_utf8(&bytes[1..end]).map_err(|_| Error::Host)?;
        if literal.parse::<Ipv6Addr>().is_err() {
            return Err(Error::Host);
        }
        (
            end + 1,
            literal.bytes().any(|byte| byte.is_ascii_uppercase()),
        )
    } else {
        read_name(bytes)?
    };
    let (host, port) = bytes.split_at(end);
    if !matches!(port, [] | [b':', ..]) || !port.iter().skip(1).all(u8::is_ascii_digit) {
        return Err(Error::Host);
    }
    let host = host.strip_suffix(b".").unwrap_or(host);
    if host.is_empty() {
        return Err(Error::Host);
    }
    if upper {
        return Ok(Host::Lowered(host.to_ascii_lowercase().into()));
    }
    Ok(Host::InHead {
        length: host.len(),
        field,
    })
}

/// How many bytes there are of a name before the port, and whether any is a capital. Read once, with a table: every
/// request has one.
fn read_name(bytes: &[u8]) -> Result<(usize, bool), Error> {
    let (mut before, mut seen) = (0, 0);
    for (at, &byte) in bytes.iter().enumerate() {
        let kind = HOST_BYTES[usize::from(byte)];
        if kind == 0 && byte == b':' {
            return Ok((at, seen & CAPITAL != 0));
        }
        if kind == 0 || kind & before & DOT != 0 {
            return Err(Error::Host);
        }
        seen |= kind;
        before = kind;
    }
    Ok((bytes.len(), seen & CAPITAL != 0))
}

/// What RFC 3986 allows in a name. No `@`: the host must not depend on whether a reader knows userinfo.
const HOST_BYTES: [u8; 256] = {
    let mut kinds = [0; 256];
    let mut byte: u8 = 0;
    while byte < 128 {
        kinds[byte as usize] = match byte {
            b'A'..=b'Z' => CAPITAL,
            b'a'..=b'z' | b'0'..=b'9' => ALLOWED,
            b'-' | b'_' | b'~' | b'%' | b'!' | b'$' | b'&' | b'\'' => ALLOWED,
            b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' => ALLOWED,
            b'.' => DOT,
            _ => 0,
        };
        byte += 1;
    }
    kinds
};

const ALLOWED: u8 = 1;
const CAPITAL: u8 = 2;
const DOT: u8 = 4;

fn is_normal(path: &[u8]) -> bool {
    let mut after_slash = false;
    for &byte in path {
        if byte == b'%' || after_slash && matches!(byte, b'/' | b'.') {
            return false;
        }
        after_slash = byte == b'/';
    }
    true
}

/// Decodes first and resolves then, as nginx does: `%2e%2e%2f` is `../` to the backend.
fn normalise(path: &[u8]) -> Result<Vec<u8>, Error> {
    let mut normal = Vec::with_capacity(path.len());
    let mut bytes = path.iter();
    while let Some(&byte) = bytes.next() {
        let byte = if byte == b'%' {
            decode(bytes.next(), bytes.next()).ok_or(Error::Encoding)?
        } else {
            byte
        };
        if byte == b'/' {
            resolve_last(&mut normal)?;
            if normal.last() == Some(&b'/') {
                continue;
            }
        }
        normal.push(byte);
    }
    resolve_last(&mut normal)?;
    Ok(normal)
}

fn decode(high: Option<&u8>, low: Option<&u8>) -> Option<u8> {
    hex_byte(*high?, *low?).filter(|byte| *byte != 0)
}

/// Resolves a last segment of `.` or `..`.
fn resolve_last(path: &mut Vec<u8>) -> Result<(), Error> {
    if path.ends_with(b"/..") {
        path.truncate(path.len() - 3);
        let parent = path.iter().rposition(|b| *b == b'/');
        path.truncate(parent.ok_or(Error::AboveRoot)? + 1);
    } else if path.ends_with(b"/.") {
        path.pop();
    }
    Ok(())
}

/// The target that is sent upstream, as it is written there.
pub fn target_sent(head: &Parts, target: &Target, proxy_pass: &ProxyPass) -> Vec<u8> {
    let mut out = Vec::new();
    write_target(head, target, proxy_pass, &mut out);
    out
}

/// The target in origin form: as the client wrote it, or with the URI part of `proxy_pass` in place of the location's
/// prefix.
pub fn write_target(head: &Parts, target: &Target, proxy_pass: &ProxyPass, out: &mut Vec<u8>) {
    let asked = head.uri.path_and_query();
    let Some(uri) = &proxy_pass.uri else {
        let asked = asked.map_or("/", |asked| asked.as_str());
        // In absolute form with a query and no path, the path is the root.
        if asked.starts_with('?') {
            out.push(b'/');
        }
        out.extend_from_slice(asked.as_bytes());
        return;
    };
    out.extend_from_slice(uri.as_bytes());
    let path = target.path(head);
    let rest = path.get(proxy_pass.replaces..).unwrap_or_default();
    if target.path.is_some() {
        push_encoded(rest, out);
    } else {
        // It was never decoded, so what the client did not escape needs no escaping.
        out.extend_from_slice(rest);
    }
    if let Some(query) = asked.and_then(|asked| asked.query()) {
        out.push(b'?');
        out.extend_from_slice(query.as_bytes());
    }
}
