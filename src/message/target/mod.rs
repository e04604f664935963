//! Host and path in the form that routing and keys use.
//!
//! Everybody who decides by host or path decides by these, so that `//api/%2e/x` and `/api/x`, `EXAMPLE.com.:80` and
//! `example.com` cannot have different rules or different buckets. The rules are nginx's. An ordinary request is
//! already in this form, and then nothing is copied: the head itself is looked at.

use std::net::Ipv6Addr;

use http::request::Parts;
use http::{Method, Version, header};

/// Host and path of a request, normalised.
#[derive(Debug, Default)]
pub struct Target {
    host: Host,
    // `None`: as it stands in the head.
    path: Option<Box<[u8]>>,
}

#[derive(Debug, Default)]
enum Host {
    #[default]
    Absent,
    /// So many bytes from the start of what the head says: port and last dot are all that may follow.
    InHead(usize),
    Lowered(Box<str>),
}

/// Why a request's target or Host field cannot be understood. Each is answered with 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// More `..` than segments before them: somebody tries to leave the root.
    #[error("the path climbs above the root")]
    AboveRoot,
    /// `example.com:443` without CONNECT, or `*` without OPTIONS.
    #[error("this form of target does not belong to this method")]
    Form,
    /// Not a name or an address, or its port is not a number.
    #[error("the host is not valid")]
    Host,
    /// Another host than the one in a target in absolute form: two readers would see two sites.
    #[error("the Host field is at odds with the target")]
    HostAtOdds,
    /// HTTP/1.1 asks for one, always.
    #[error("there is no Host field")]
    HostMissing,
    /// Two fields: whoever reads the other one would be fooled.
    #[error("there is more than one Host field")]
    HostTwice,
    /// A `%` without two hexadecimal digits, or `%00`.
    #[error("the path is not encoded well")]
    Encoding,
    /// A target with a scheme that is not ours to serve.
    #[error("the target's scheme is neither http nor https")]
    Scheme,
}

impl Target {
    /// Reads host and path out of a request's head.
    ///
    /// # Errors
    ///
    /// When the head leaves room for doubt about either.
    pub fn parse(head: &Parts) -> Result<Self, Error> {
        check_form(head)?;
        let mut fields = head.headers.get_all(header::HOST).iter();
        let field = fields.next();
        if fields.next().is_some() {
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
        let field = field
            .map(|value| value.to_str().map_err(|_| Error::Host))
            .transpose()?;
        // RFC 9112 lets the target win. Whoever sends both does not need that, unless to fool somebody.
        if let (Some(field), Some(authority)) = (field, authority)
            && !same_site(field, authority.as_str(), head.uri.scheme_str())
        {
            return Err(Error::HostAtOdds);
        }
        let host = match (authority, field) {
            (Some(authority), _) => parse_host(authority.as_str())?,
            (None, Some(field)) => parse_host(field)?,
            (None, None) => Host::Absent,
        };
        let path = match head.uri.path().as_bytes() {
            path if is_normal(path) => None,
            path => Some(normalise(path)?.into()),
        };
        Ok(Self { host, path })
    }

    /// The host: lower case, no port, no last dot, IPv6 in brackets; empty where the request names none.
    #[must_use]
    pub fn host<'a>(&'a self, head: &'a Parts) -> &'a str {
        match &self.host {
            Host::Absent => "",
            Host::InHead(length) => host_in(head).get(..*length).unwrap_or_default(),
            Host::Lowered(host) => host,
        }
    }

    /// The path: decoded, without `//`, `.` and `..`; always begins with a slash.
    #[must_use]
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

    /// Whether the path had to be changed, so that it has to be encoded again before it can be sent.
    pub(super) fn is_rewritten(&self) -> bool {
        self.path.is_some()
    }
}

/// Whether two authorities name the same site, the scheme's own port written out or not.
fn same_site(one: &str, other: &str, scheme: Option<&str>) -> bool {
    let port = match scheme {
        Some("http") => ":80",
        Some("https") => ":443",
        _ => "",
    };
    let plain = |text| str::strip_suffix(text, port).unwrap_or(text);
    plain(one).eq_ignore_ascii_case(plain(other))
}

/// Encodes a decoded path, byte for byte where nginx does (` `, `%`, `?`, `#`, what is not allowed in a target, and all
/// that is not ASCII).
#[must_use]
pub fn encode_path(path: &[u8]) -> String {
    let mut text = Vec::with_capacity(path.len() + path.len() / 4);
    push_encoded(path, &mut text);
    String::from_utf8(text).expect("what is not ASCII was escaped")
}

/// Appends what [`encode_path`] gives.
pub(super) fn push_encoded(path: &[u8], text: &mut Vec<u8>) {
    for &byte in path {
        if must_escape(byte) {
            push_escaped(byte, text);
        } else {
            text.push(byte);
        }
    }
}

/// Appends `%XX`.
pub(super) fn push_escaped(byte: u8, text: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    text.push(b'%');
    text.push(DIGITS[usize::from(byte >> 4)]);
    text.push(DIGITS[usize::from(byte & 15)]);
}

fn must_escape(byte: u8) -> bool {
    !byte.is_ascii_graphic() || b"\"#%<>?\\^`{|}".contains(&byte)
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

fn host_in(head: &Parts) -> &str {
    match head.uri.authority() {
        Some(authority) => authority.as_str(),
        None => head
            .headers
            .get(header::HOST)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default(),
    }
}

fn parse_host(text: &str) -> Result<Host, Error> {
    let bytes = text.as_bytes();
    let end = if bytes.first() == Some(&b'[') {
        let end = bytes.iter().position(|b| *b == b']').ok_or(Error::Host)?;
        let literal = text.get(1..end).unwrap_or_default();
        if literal.parse::<Ipv6Addr>().is_err() {
            return Err(Error::Host);
        }
        end + 1
    } else {
        name_length(bytes)?
    };
    let (host, port) = bytes.split_at(end);
    if !matches!(port, [] | [b':', ..]) || !port.iter().skip(1).all(u8::is_ascii_digit) {
        return Err(Error::Host);
    }
    let host = host.strip_suffix(b".").unwrap_or(host);
    if host.is_empty() {
        return Err(Error::Host);
    }
    if host
        .iter()
        .fold(false, |upper, byte| upper | byte.is_ascii_uppercase())
    {
        let host = text.get(..host.len()).unwrap_or_default();
        return Ok(Host::Lowered(host.to_ascii_lowercase().into()));
    }
    Ok(Host::InHead(host.len()))
}

/// How many bytes there are of a name before the port. Read once, with a table: every request has one.
fn name_length(bytes: &[u8]) -> Result<usize, Error> {
    let mut before = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if !IS_HOST_BYTE[usize::from(byte)] {
            return if byte == b':' {
                Ok(at)
            } else {
                Err(Error::Host)
            };
        }
        if byte == b'.' && before == b'.' {
            return Err(Error::Host);
        }
        before = byte;
    }
    Ok(bytes.len())
}

/// What RFC 3986 allows in a name. No `@`: who is asked for must not depend on whether a reader knows userinfo.
const IS_HOST_BYTE: [bool; 256] = {
    let mut allowed = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        allowed[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let marks = b"-._~%!$&'()*+,;=";
    let mut mark = 0;
    while mark < marks.len() {
        allowed[marks[mark] as usize] = true;
        mark += 1;
    }
    allowed
};

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

/// Decodes first and resolves then, as nginx does: `%2e%2e%2f` is `../` to whoever reads it behind us.
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
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let value = u8::try_from(digit(high?)? << 4 | digit(low?)?).ok()?;
    (value != 0).then_some(value)
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

#[cfg(test)]
mod tests;
