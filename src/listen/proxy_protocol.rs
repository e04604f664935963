//! The PROXY protocol, versions 1 and 2: a proxy that forwards a connection first sends the client's address.
//!
//! The header is read before anything else reads the socket, and not a byte beyond it, so that TLS or HTTP can read on from
//! there: the parser gives the number of bytes that certainly belong to the header, and only those are read. Of version 2
//! that is all of it at once, of a line of version 1 the least its fields can come to.
//!
//! A header of version 2 may carry a checksum of itself. It guards against errors of a proxy, not against intent, so few
//! send it; where it is there, it is checked.

#[cfg(test)]
#[path = "tests/proxy_protocol.rs"]
mod tests;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::message::ProxyHeader;
use crate::net::Stream;

/// Why a connection did not begin with a PROXY header.
#[derive(Debug, thiserror::Error)]
pub enum ProxyReadError {
    /// The connection broke, or ended before the header did.
    #[error("the connection ended before its PROXY header did")]
    Broken(#[source] io::Error),
    /// Something else came; usually from a client that speaks HTTP to a listener meant for a proxy.
    #[error("broken PROXY header: {0}")]
    Malformed(#[from] ProxyHeaderError),
    /// It took longer than request headers may.
    #[error("no whole PROXY header in time")]
    TimedOut,
}

/// Reads the header a connection begins with, within `timeout` in all; `None` where it names no client.
///
/// # Errors
/// When there is none, and the connection cannot be used.
pub async fn read_proxy_header(
    stream: &mut Stream,
    timeout: Duration,
) -> Result<Option<ProxyHeader>, ProxyReadError> {
    tokio::time::timeout(timeout, read_from(stream))
        .await
        .unwrap_or(Err(ProxyReadError::TimedOut))
}

async fn read_from(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Option<ProxyHeader>, ProxyReadError> {
    let mut header = Vec::new();
    loop {
        let wanted = match parse(&header)? {
            ParseOutcome::Whole { header, .. } => return Ok(header),
            ParseOutcome::Part { wanted } => wanted,
        };
        let read = header.len();
        header.resize(wanted, 0);
        let count = stream.read(&mut header[read..]).await;
        match count.map_err(ProxyReadError::Broken)? {
            0 => return Err(ProxyReadError::Broken(io::ErrorKind::UnexpectedEof.into())),
            count => header.truncate(read + count),
        }
    }
}

/// The meaning of the bytes at the beginning of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParseOutcome {
    /// The beginning of a header.
    Part {
        /// The least length it has: so much can be read without reading beyond it.
        wanted: usize,
    },
    /// A header.
    Whole {
        /// Its length.
        length: usize,
        /// The client it names; none where the proxy speaks for itself or does not know.
        header: Option<ProxyHeader>,
    },
}

/// What is wrong with a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProxyHeaderError {
    /// An address or a port that is none, or of another family than was announced.
    #[error("bad address")]
    Address,
    /// Its checksum does not fit: something was lost or changed on the way.
    #[error("wrong checksum")]
    Checksum,
    /// A command, a family or a protocol that the specification does not know.
    #[error("unknown kind")]
    Kind,
    /// It begins like neither version.
    #[error("something else came")]
    Other,
    /// Longer than any that is sent.
    #[error("too long")]
    TooLong,
}

/// The beginning of version 2.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// The beginning of a line of version 1.
const V1_PREFIX: &[u8; 6] = b"PROXY ";

/// The shortest header: `PROXY UNKNOWN` and the end of the line.
const MIN_HEADER: usize = 15;

/// The longest line of version 1 by the specification, CRLF included.
const V1_MAX: usize = 107;

/// The longest header of version 2 that is accepted, as in nginx. Real ones have a few hundred bytes.
const V2_MAX: usize = 4096;

/// Version 2 before its addresses.
const V2_HEAD: usize = 16;

/// Reads as much of a header as there is.
///
/// # Errors
/// As soon as it cannot become one any more.
pub fn parse(bytes: &[u8]) -> Result<ParseOutcome, ProxyHeaderError> {
    if may_begin(bytes, SIGNATURE) {
        parse_v2(bytes)
    } else if may_begin(bytes, V1_PREFIX) {
        parse_v1(bytes)
    } else {
        Err(ProxyHeaderError::Other)
    }
}

/// Whether one of these is the beginning of the other.
fn may_begin(bytes: &[u8], beginning: &[u8]) -> bool {
    bytes.iter().zip(beginning).all(|(one, other)| one == other)
}

fn parse_v1(bytes: &[u8]) -> Result<ParseOutcome, ProxyHeaderError> {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
        if bytes.len() >= V1_MAX {
            return Err(ProxyHeaderError::TooLong);
        }
        let wanted = (bytes.len() + min_left(bytes)?).clamp(MIN_HEADER, V1_MAX);
        return Ok(ParseOutcome::Part { wanted });
    };
    let length = end + 1;
    if length > V1_MAX {
        return Err(ProxyHeaderError::TooLong);
    }
    let line = bytes[..end].strip_suffix(b"\r");
    let line = line.and_then(|line| std::str::from_utf8(line.strip_prefix(V1_PREFIX)?).ok());
    let line = line.ok_or(ProxyHeaderError::Other)?;
    let mut words = line.split(' ');
    let header = match words.next() {
        Some("TCP4") => Some(addresses_of::<Ipv4Addr>(words)?),
        Some("TCP6") => Some(addresses_of::<Ipv6Addr>(words)?),
        Some("UNKNOWN") => None,
        _ => return Err(ProxyHeaderError::Kind),
    };
    Ok(ParseOutcome::Whole { length, header })
}

/// How many bytes a line without an end has to have more.
fn min_left(line: &[u8]) -> Result<usize, ProxyHeaderError> {
    let address = match line.get(V1_PREFIX.len()..V1_PREFIX.len() + 5) {
        None => 0,
        Some(b"TCP4 ") => "0.0.0.0".len(),
        Some(b"TCP6 ") => "::".len(),
        Some(b"UNKNO") => 0,
        Some(_) => return Err(ProxyHeaderError::Kind),
    };
    let spaces = line.iter().filter(|byte| **byte == b' ').count();
    let fields = match spaces {
        2 if address > 0 => " ".len() + address + " 0 0".len(),
        3 if address > 0 => " 0 0".len(),
        4 if address > 0 => " 0".len(),
        _ => 0,
    };
    let end = if line.ends_with(b"\r") { 1 } else { 2 };
    Ok(fields + end)
}

/// The two ends in a line, both of one family.
fn addresses_of<A: FromStr + Into<IpAddr>>(
    mut words: std::str::Split<'_, char>,
) -> Result<ProxyHeader, ProxyHeaderError> {
    let mut address = || words.next()?.parse::<A>().ok().map(Into::into);
    let (from, to) = (address(), address());
    let mut port = || {
        let word = words.next()?;
        let digits = word.bytes().all(|byte| byte.is_ascii_digit());
        word.parse::<u16>().ok().filter(|_| digits)
    };
    let (from_port, to_port) = (port(), port());
    match (from, to, from_port, to_port, words.next()) {
        (Some(from), Some(to), Some(from_port), Some(to_port), None) => Ok(ProxyHeader {
            from: SocketAddr::new(from, from_port),
            to: SocketAddr::new(to, to_port),
            tlvs: Box::default(),
        }),
        _ => Err(ProxyHeaderError::Address),
    }
}

fn parse_v2(bytes: &[u8]) -> Result<ParseOutcome, ProxyHeaderError> {
    let Some((head, rest)) = bytes.split_first_chunk::<V2_HEAD>() else {
        // It may still become a line of version 1, of which nothing has come.
        let wanted = if bytes.is_empty() {
            MIN_HEADER
        } else {
            V2_HEAD
        };
        return Ok(ParseOutcome::Part { wanted });
    };
    let (command, family) = (head[12], head[13]);
    let body = usize::from(u16::from_be_bytes([head[14], head[15]]));
    let length = V2_HEAD + body;
    let known = matches!(command, LOCAL | PROXY) && family >> 4 <= 3 && family & 0xf <= 2;
    if !known {
        return Err(ProxyHeaderError::Kind);
    }
    if length > V2_MAX {
        return Err(ProxyHeaderError::TooLong);
    }
    let Some(body) = rest.get(..body) else {
        return Ok(ParseOutcome::Part { wanted: length });
    };
    let header = match (command, family) {
        (PROXY, TCP4) => Some(binary::<4, Ipv4Addr>(body)?),
        (PROXY, TCP6) => Some(binary::<16, Ipv6Addr>(body)?),
        // The proxy itself, a datagram, a unix socket: no client with an address.
        _ => None,
    };
    let addresses = match family >> 4 {
        1 => 12,
        2 => 36,
        3 => 216,
        _ => 0,
    };
    if !has_valid_checksum(&bytes[..length], V2_HEAD + addresses) {
        return Err(ProxyHeaderError::Checksum);
    }
    Ok(ParseOutcome::Whole { length, header })
}

/// Version 2, the proxy speaks for itself.
const LOCAL: u8 = 0x20;
/// Version 2, the proxy speaks for a client.
const PROXY: u8 = 0x21;
/// Over IPv4 and TCP.
const TCP4: u8 = 0x11;
/// Over IPv6 and TCP.
const TCP6: u8 = 0x21;

fn binary<const N: usize, A: From<[u8; N]> + Into<IpAddr>>(
    body: &[u8],
) -> Result<ProxyHeader, ProxyHeaderError> {
    let split = || {
        let (from, rest) = body.split_first_chunk::<N>()?;
        let (to, rest) = rest.split_first_chunk::<N>()?;
        let (from_port, rest) = rest.split_first_chunk::<2>()?;
        let (to_port, tlvs) = rest.split_first_chunk::<2>()?;
        let end = |address: &[u8; N], port: &[u8; 2]| {
            SocketAddr::new(A::from(*address).into(), u16::from_be_bytes(*port))
        };
        Some(ProxyHeader {
            from: end(from, from_port),
            to: end(to, to_port),
            tlvs: tlvs.into(),
        })
    };
    split().ok_or(ProxyHeaderError::Address)
}

/// Whether a whole header, whose values begin at `values`, has no checksum or the right one.
fn has_valid_checksum(header: &[u8], values: usize) -> bool {
    let Some(checksum_position) = checksum_position(header, values) else {
        return true;
    };
    let (before, rest) = header.split_at(checksum_position);
    let (given, after) = rest.split_at(LENGTH);
    let parts = [before, &[0; LENGTH], after];
    let sum = !parts.into_iter().flatten().fold(u32::MAX, add);
    given == sum.to_be_bytes()
}

/// The position of the checksum.
fn checksum_position(header: &[u8], values: usize) -> Option<usize> {
    let mut at = values;
    loop {
        let (kind, length) = match header.get(at..at + 3)? {
            [kind, high, low] => (*kind, usize::from(*high) << 8 | usize::from(*low)),
            _ => return None,
        };
        let value = at + 3;
        header.get(value..value + length)?;
        if kind == CRC32C && length == LENGTH {
            return Some(value);
        }
        at = value + length;
    }
}

/// One more byte of CRC-32C. Bit by bit: a header has a few hundred bytes, once in a connection.
fn add(sum: u32, byte: &u8) -> u32 {
    (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
        (sum >> 1) ^ (POLYNOMIAL & (sum & 1).wrapping_neg())
    })
}

/// The type of the value that holds it.
const CRC32C: u8 = 3;
const LENGTH: usize = 4;
/// Castagnoli's, its bits in reverse.
const POLYNOMIAL: u32 = 0x82f6_3b78;

#[cfg(test)]
mod checksum_tests {

    use super::*;

    #[test]
    fn the_checksum_is_the_standard_one() {
        let sum = !b"123456789".iter().fold(u32::MAX, add);
        assert_eq!(sum, 0xe306_9283);
    }

    #[test]
    fn it_is_found_among_others() {
        let header = [1, 0, 1, b'x', 3, 0, 4, 9, 9, 9, 9];
        assert_eq!(checksum_position(&header, 0), Some(7));
        assert_eq!(checksum_position(&header[..10], 0), None);
        assert_eq!(checksum_position(&[3, 0, 1, 5], 0), None);
    }
}
