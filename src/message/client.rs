//! Whose request it is: an address in every form in which it is asked for.
//!
//! Made once per connection, so that no request formats an address or builds a key again; and once more for each
//! client that a trusted proxy names.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteAddr {
    /// An address; one of IPv4 mapped into IPv6 is kept as IPv4.
    Ip(SocketAddr),
    /// Somebody on a unix socket.
    Unix,
}

/// Somebody who asks.
// Text and bytes stand inside: behind a proxy every request may bring somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientAddr {
    remote: RemoteAddr,
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
    /// Somebody at this end.
    #[must_use]
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
            // nginx's text for both variables: all who come over a unix socket share one key.
            RemoteAddr::Unix => Self {
                remote,
                text: AddrText::of(b"unix:"),
                binary: AddrText::of(b"unix:"),
            },
        }
    }

    /// Where it is.
    #[must_use]
    pub fn remote(&self) -> RemoteAddr {
        self.remote
    }

    /// Its address, if it has one.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        match self.remote {
            RemoteAddr::Ip(address) => Some(address.ip()),
            RemoteAddr::Unix => None,
        }
    }

    /// Its port, where there is one and it is known.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match self.remote {
            RemoteAddr::Ip(address) => Some(address.port()).filter(|port| *port != 0),
            RemoteAddr::Unix => None,
        }
    }

    /// `$remote_addr`
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// The same for those who only pass it on.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.text.as_slice()
    }

    /// `$binary_remote_addr`
    #[must_use]
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
