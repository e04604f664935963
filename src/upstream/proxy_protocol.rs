//! The PROXY header that a connection to a backend begins with, where it wants to be told whose it is.
//!
//! Such a connection belongs to one client: it is made for a request and closed after it, because the next one may be
//! somebody else's.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};

use crate::config::plan::ProxyProtocolVersion;
use crate::message::{RemoteAddr, RequestRecord};

/// What to say first on a connection made for this request; nothing where nothing is to be said.
pub(super) fn proxy_header_for(record: &RequestRecord, version: ProxyProtocolVersion) -> Vec<u8> {
    let peer = &record.connection;
    let from = match record.client().remote() {
        RemoteAddr::Ip(address) => Some(address),
        RemoteAddr::Unix => None,
    };
    // Where the client connected to, if a proxy has told us; else where it reached us.
    let told = peer
        .proxy_header()
        .filter(|proxied| record.is_trusted() && Some(proxied.from) == from);
    let to = told.map(|proxied| proxied.to).or(peer.local);
    let ends = from.zip(to).map(|(from, to)| alike(from, to));
    match version {
        ProxyProtocolVersion::Off => Vec::new(),
        ProxyProtocolVersion::V1 => write_v1(ends),
        ProxyProtocolVersion::V2 => write_v2(ends),
    }
}

/// Both of one family: the header has room for one only.
fn alike(from: SocketAddr, to: SocketAddr) -> (SocketAddr, SocketAddr) {
    let wide = |address: SocketAddr| match address.ip() {
        IpAddr::V4(v4) => SocketAddr::new(v4.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    };
    let narrow = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    match (narrow(from), narrow(to)) {
        (from, to) if from.is_ipv4() == to.is_ipv4() => (from, to),
        (from, to) => (wide(from), wide(to)),
    }
}

fn write_v1(ends: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    let mut line = Vec::new();
    // Writing to a vector cannot fail.
    let _written = match ends {
        Some((from, to)) => write!(
            line,
            "PROXY TCP{} {} {} {} {}\r\n",
            if from.is_ipv4() { 4 } else { 6 },
            from.ip(),
            to.ip(),
            from.port(),
            to.port()
        ),
        None => write!(line, "PROXY UNKNOWN\r\n"),
    };
    line
}

fn write_v2(ends: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21".to_vec();
    let Some((from, to)) = ends else {
        header.extend([0, 0, 0]);
        return header;
    };
    let (family, length) = if from.is_ipv4() {
        (0x11, 12)
    } else {
        (0x21, 36)
    };
    header.extend([family, 0, length]);
    for address in [from.ip(), to.ip()] {
        match address {
            IpAddr::V4(v4) => header.extend(v4.octets()),
            IpAddr::V6(v6) => header.extend(v6.octets()),
        }
    }
    for port in [from.port(), to.port()] {
        header.extend(port.to_be_bytes());
    }
    header
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::clock::Millis;
    use crate::message::testing::{plan, request_in};
    use crate::message::{ClientConnection, ProxyHeader};

    fn said(peer: ClientConnection, version: ProxyProtocolVersion) -> Vec<u8> {
        proxy_header_for(&request_in(plan(), peer, "GET", "/", &[]), version)
    }

    fn peer(from: &str, to: &str) -> ClientConnection {
        let from = RemoteAddr::Ip(from.parse().unwrap());
        ClientConnection::new(from, to.parse().ok(), 1, Millis(0))
    }

    fn line(from: &str, to: &str) -> String {
        String::from_utf8(said(peer(from, to), ProxyProtocolVersion::V1)).unwrap()
    }

    #[test]
    fn a_line_says_who_and_where_in_one_family() {
        assert_eq!(
            line("192.0.2.7:50000", "127.0.0.1:8080"),
            "PROXY TCP4 192.0.2.7 127.0.0.1 50000 8080\r\n"
        );
        assert_eq!(
            line("[2001:db8::7]:1", "[::1]:2"),
            "PROXY TCP6 2001:db8::7 ::1 1 2\r\n"
        );
        assert_eq!(
            line("192.0.2.7:1", "[::1]:2"),
            "PROXY TCP6 ::ffff:192.0.2.7 ::1 1 2\r\n"
        );
        assert_eq!(
            line("192.0.2.7:1", "[::ffff:127.0.0.1]:2"),
            "PROXY TCP4 192.0.2.7 127.0.0.1 1 2\r\n"
        );
        let unix = ClientConnection::new(RemoteAddr::Unix, None, 1, Millis(0));
        assert_eq!(said(unix, ProxyProtocolVersion::V1), b"PROXY UNKNOWN\r\n");
    }

    #[test]
    fn version_2_says_the_same_in_binary() {
        assert_eq!(
            said(
                peer("192.0.2.7:258", "127.0.0.1:8080"),
                ProxyProtocolVersion::V2
            ),
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\x7f\0\0\x01\x01\x02\x1f\x90"
        );
        let v6 = said(peer("[2001:db8::7]:1", "[::1]:2"), ProxyProtocolVersion::V2);
        assert_eq!((v6.len(), &v6[12..16]), (52, &b"\x21\x21\0\x24"[..]));
        let unix = ClientConnection::new(RemoteAddr::Unix, None, 1, Millis(0));
        assert_eq!(
            said(unix, ProxyProtocolVersion::V2),
            b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\0"
        );
    }

    /// What an untrusted proxy says is passed on by nobody.
    #[test]
    fn what_was_not_believed_is_not_repeated() {
        let peer = peer("192.0.2.7:50000", "127.0.0.1:8080");
        peer.set_proxy_header(ProxyHeader {
            from: "1.1.1.1:1".parse().unwrap(),
            to: "2.2.2.2:2".parse().unwrap(),
            tlvs: Box::default(),
        });
        assert_eq!(
            said(peer, ProxyProtocolVersion::V1),
            b"PROXY TCP4 192.0.2.7 127.0.0.1 50000 8080\r\n"
        );
    }
}
