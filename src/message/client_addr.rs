//! A client's address, in every form in which it is used, and the real address of a client behind trusted proxies.
//!
//! [`ClientAddr`] is made once per connection, so that no request formats an address or builds a key again; and once more for
//! each client that a trusted proxy names.
//!
//! The real address is found as by nginx's realip module: addresses are read from the right, where the nearest proxy has
//! written, and only as far as each was written by a trusted one. A client can have sent all that stands further left. Text
//! that is not an address ends the reading; the address found before it counts.
//!
//! `Forwarded` is RFC 7239: `for=192.0.2.7, for="[2001:db8::1]:4711";proto=https;by=_hidden`. It is cut from the right like any
//! list of addresses, quotes and all: a quote that a client left open must not swallow what a trusted proxy has added.

#[cfg(test)]
#[path = "tests/client_addr_real_ip.rs"]
mod real_ip_tests;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::{HeaderMap, HeaderValue, header};

use crate::config::plan::{RealIp, RealIpHeader};
use crate::text::is_escaped;

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteAddr {
    /// An address; one of IPv4 mapped into IPv6 is kept as IPv4.
    Ip(SocketAddr),
    /// A unix socket.
    Unix,
}

impl RemoteAddr {
    /// The address, if it has one.
    pub fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Ip(address) => Some(address),
            Self::Unix => None,
        }
    }
}

/// The address of a client.
/// Text and bytes are stored inline: behind a proxy every request may have another client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientAddr {
    /// The other end.
    pub remote: RemoteAddr,
    text: AddrText<LONGEST_TEXT>,
    binary: AddrText<16>,
}

/// The longest address there is, written out.
const LONGEST_TEXT: usize = "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255".len();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AddrText<const N: usize> {
    bytes: [u8; N],
    length: u8,
}

impl ClientAddr {
    /// The address of the other end of a connection.
    pub fn new(remote: RemoteAddr) -> Self {
        match remote {
            RemoteAddr::Ip(address) => {
                let address = SocketAddr::new(address.ip().to_canonical(), address.port());
                let (text, binary) = match address.ip() {
                    IpAddr::V4(v4) => (AddrText::digits(v4), AddrText::of(&v4.octets())),
                    IpAddr::V6(v6) => (AddrText::text(v6), AddrText::of(&v6.octets())),
                };
                Self {
                    remote: RemoteAddr::Ip(address),
                    text,
                    binary,
                }
            }
            // nginx's text for both variables: all clients on a unix socket share one key.
            RemoteAddr::Unix => Self {
                remote,
                text: AddrText::of(b"unix:"),
                binary: AddrText::of(b"unix:"),
            },
        }
    }

    /// Its address, if it has one.
    pub fn ip(&self) -> Option<IpAddr> {
        Some(self.remote.address()?.ip())
    }

    /// Its port, where there is one and it is known.
    pub fn port(&self) -> Option<u16> {
        let address = self.remote.address()?;
        Some(address.port()).filter(|port| *port != 0)
    }

    /// `$remote_addr`
    pub fn text(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// The same as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.text.as_slice()
    }

    /// `$binary_remote_addr`
    pub fn binary(&self) -> &[u8] {
        self.binary.as_slice()
    }
}

impl<const N: usize> AddrText<N> {
    fn of(bytes: &[u8]) -> Self {
        let mut short = Self::default();
        let length = bytes.len().min(N);
        short.bytes[..length].copy_from_slice(&bytes[..length]);
        short.length = u8::try_from(length).unwrap_or(0);
        short
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl AddrText<LONGEST_TEXT> {
    fn text(address: Ipv6Addr) -> Self {
        let mut short = Self::default();
        let mut room = &mut short.bytes[..];
        // There is room for the longest.
        let _all = write!(room, "{address}");
        short.length = u8::try_from(LONGEST_TEXT - room.len()).unwrap_or(0);
        short
    }

    /// Every connection needs it, and the standard library takes more instructions for it than for accepting one.
    fn digits(address: Ipv4Addr) -> Self {
        let mut short = Self::default();
        for (place, octet) in address.octets().into_iter().enumerate() {
            if place > 0 {
                short.push(b'.');
            }
            if octet >= 100 {
                short.push(b'0' + octet / 100);
            }
            if octet >= 10 {
                short.push(b'0' + octet / 10 % 10);
            }
            short.push(b'0' + octet % 10);
        }
        short
    }

    fn push(&mut self, byte: u8) {
        self.bytes[usize::from(self.length)] = byte;
        self.length += 1;
    }
}

impl<const N: usize> Default for AddrText<N> {
    fn default() -> Self {
        Self {
            bytes: [0; N],
            length: 0,
        }
    }
}

/// The client that a connection's other end names in `headers`, or has named as `introduced` in a PROXY header; `None` where
/// its own address is not trusted, `Some(None)` where it names none.
pub(super) fn find(
    rule: &RealIp,
    address: Option<IpAddr>,
    proxied: Option<SocketAddr>,
    headers: &HeaderMap,
) -> Option<Option<SocketAddr>> {
    if !trusts(rule, address) {
        return None;
    }
    Some(match &rule.header {
        RealIpHeader::Forwarded => {
            let lines = headers.get_all(header::FORWARDED).iter().rev();
            pick(rule, lines.map(HeaderValue::as_bytes).flat_map(forwarded))
        }
        RealIpHeader::Other(name) => {
            let line = headers.get(name).map(HeaderValue::as_bytes);
            pick(rule, line.into_iter().flat_map(split_list))
        }
        RealIpHeader::ProxyProtocol => proxied.map(canonical),
        RealIpHeader::XForwardedFor => {
            let lines = headers.get_all("x-forwarded-for").iter().rev();
            pick(rule, lines.map(HeaderValue::as_bytes).flat_map(split_list))
        }
    })
}

/// Whether this address is trusted to name the client; `None` is a unix socket.
pub(super) fn trusts(rule: &RealIp, address: Option<IpAddr>) -> bool {
    rule.from.iter().any(|network| network.contains(address))
}

/// Reads addresses from the right, the nearest first.
fn pick(rule: &RealIp, addresses: impl Iterator<Item = Option<SocketAddr>>) -> Option<SocketAddr> {
    let mut found: Option<SocketAddr> = None;
    for address in addresses {
        let Some(address) = address.map(canonical) else {
            break;
        };
        found = Some(address);
        if !rule.recursive || !trusts(rule, Some(address.ip())) {
            break;
        }
    }
    found
}

/// One form for each address: IPv4 mapped into IPv6 would otherwise be a second key for the same client.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The addresses of a list, from the right; `None` for what is none.
// nginx's way of cutting, to the byte: a comma or a blank separates, and a list's first byte never does.
fn split_list(line: &[u8]) -> impl Iterator<Item = Option<SocketAddr>> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let line = rest.take()?;
        let separates = |byte: &u8| matches!(byte, b' ' | b',');
        let end = line.iter().rposition(|byte| !separates(byte));
        let line = &line[..end.map_or_else(|| line.len().min(1), |end| end + 1)];
        let start = line
            .iter()
            .rposition(separates)
            .filter(|separator| *separator > 0);
        rest = start.map(|separator| &line[..separator]);
        Some(address(&line[start.map_or(0, |separator| separator + 1)..]))
    })
}

/// An address, with or without a port; one of IPv6 with a port stands in brackets.
fn address(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(address) = text.parse() {
        return Some(SocketAddr::new(address, 0));
    }
    let (host, behind) = match text.strip_prefix('[') {
        Some(inside) => inside.split_once("]:")?,
        None => text.split_once(':')?,
    };
    Some(SocketAddr::new(host.parse().ok()?, port(behind)?))
}

fn port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0)
}

/// The addresses of a line, from the right; `None` for an element that names none.
fn forwarded(line: &[u8]) -> impl Iterator<Item = Option<SocketAddr>> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        loop {
            let (left, element) = split_last(rest.take()?);
            rest = left;
            let element = element.trim_ascii();
            // Members of a list may be empty.
            if !element.is_empty() {
                return Some(for_address(element));
            }
        }
    })
}

/// Cuts at the last comma that is not quoted.
fn split_last(line: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let mut quoted = false;
    for (at, byte) in line.iter().enumerate().rev() {
        match byte {
            b'"' if !quoted => quoted = true,
            b'"' => quoted = is_escaped(&line[..at]),
            b',' if !quoted => return (Some(&line[..at]), &line[at + 1..]),
            _ => {}
        }
    }
    (None, line)
}

/// The address in an element's `for`, if it has exactly one.
fn for_address(element: &[u8]) -> Option<SocketAddr> {
    let mut found = None;
    let mut rest = element;
    while !rest.is_empty() {
        let (pair, behind) = split_first(rest);
        rest = behind;
        let pair = pair.trim_ascii();
        if pair.is_empty() {
            continue;
        }
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        if pair[..equals].eq_ignore_ascii_case(b"for")
            && found.replace(&pair[equals + 1..]).is_some()
        {
            return None;
        }
    }
    parse_node(found?)
}

/// Cuts at the first semicolon that is not quoted.
fn split_first(element: &[u8]) -> (&[u8], &[u8]) {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in element.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b';' if !quoted => return (&element[..at], &element[at + 1..]),
            _ => {}
        }
    }
    (element, &[])
}

/// A node's address; none for `unknown` and for names that were made up to hide it.
fn parse_node(value: &[u8]) -> Option<SocketAddr> {
    let mut plain = [0; LONGEST];
    let text = std::str::from_utf8(unquoted(value, &mut plain)?).ok()?;
    if let Ok(address) = text.parse() {
        return Some(SocketAddr::new(address, 0));
    }
    let (host, behind) = match text.strip_prefix('[') {
        Some(inside) => inside.split_once(']')?,
        None => text.split_at_checked(text.find(':')?)?,
    };
    let number = match behind.strip_prefix(':') {
        None if behind.is_empty() => 0,
        // A port may be hidden, too.
        Some(hidden) if hidden.starts_with('_') => 0,
        Some(number) => port(number)?,
        None => return None,
    };
    Some(SocketAddr::new(host.parse().ok()?, number))
}

/// A value without its quotes.
fn unquoted<'a>(value: &'a [u8], plain: &'a mut [u8; LONGEST]) -> Option<&'a [u8]> {
    let Some(inside) = value.strip_prefix(b"\"") else {
        return Some(value);
    };
    let inside = inside.strip_suffix(b"\"")?;
    let (mut length, mut escaped) = (0, false);
    for byte in inside {
        match byte {
            b'\\' if !escaped => escaped = true,
            b'"' if !escaped => return None,
            byte => {
                *plain.get_mut(length)? = *byte;
                (length, escaped) = (length + 1, false);
            }
        }
    }
    (!escaped).then_some(&plain[..length])
}

/// More than the longest address with the longest port.
const LONGEST: usize = 64;

#[cfg(test)]
mod tests {

    use super::*;

    fn at(address: &str) -> ClientAddr {
        ClientAddr::new(RemoteAddr::Ip(address.parse().unwrap()))
    }

    #[test]
    fn digits_are_those_of_the_standard_library() {
        for octet in 0..=255 {
            for octets in [[octet, 1, 22, 255], [255, octet, octet, octet]] {
                let address = SocketAddr::from((octets, 80));
                let client = ClientAddr::new(RemoteAddr::Ip(address));
                assert_eq!(client.text(), address.ip().to_string());
            }
        }
    }

    #[test]
    fn an_address_is_written_once_in_every_form() {
        let v4 = at("192.0.2.7:80");
        assert_eq!((v4.text(), v4.binary()), ("192.0.2.7", &[192, 0, 2, 7][..]));
        assert_eq!(v4.port(), Some(80));
        let v6 = at("[2001:DB8::0:1]:0");
        assert_eq!((v6.text(), v6.binary().len()), ("2001:db8::1", 16));
        assert_eq!(v6.port(), None);
        assert_eq!(at("[::ffff:192.0.2.7]:80"), v4);
        let longest = at("[1111:2222:3333:4444:5555:6666:7777:8888]:1");
        assert_eq!(longest.text(), "1111:2222:3333:4444:5555:6666:7777:8888");
        let unix = ClientAddr::new(RemoteAddr::Unix);
        assert_eq!(
            (unix.text(), unix.binary(), unix.ip()),
            ("unix:", &b"unix:"[..], None)
        );
    }
}
