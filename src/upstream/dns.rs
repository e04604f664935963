//! A DNS client (RFC 1035): the addresses of a name from the configured servers, with their TTL.
//!
//! Our own, because little is needed: addresses of both kinds over UDP, and over TCP where they do not fit. It blocks, as
//! the system's does. Every question has a port and an id that cannot be guessed.
//!
//! Strict: a message that does not answer the question is ignored, and only records count that lead from the name, over
//! aliases, to an address.

#[cfg(test)]
#[path = "tests/dns.rs"]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use tokio::time::Instant;

use crate::config::plan::Resolver;

/// The addresses of a host and their TTL. There may be none.
pub(super) fn look_up(resolver: &Resolver, host: &str) -> io::Result<(Vec<IpAddr>, Duration)> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "not a valid DNS name");
    let name = DnsName::new(host).ok_or_else(invalid)?;
    let end = Instant::now() + resolver.timeout;
    let mut found = Vec::new();
    let mut ttl = u32::MAX;
    for (kind, wanted) in [
        (RecordType::A, resolver.ipv4),
        (RecordType::Aaaa, resolver.ipv6),
    ] {
        if !wanted {
            continue;
        }
        // Half of the addresses is not a result: the missing ones would be taken for gone.
        let (addresses, seconds) = ask_in_turn(&resolver.servers, &name, kind, end)?;
        if !addresses.is_empty() {
            ttl = ttl.min(seconds);
        }
        found.extend(addresses);
    }
    Ok((found, Duration::from_secs(ttl.into())))
}

/// Asks one server after the other, and all of them once more.
fn ask_in_turn(
    servers: &[SocketAddr],
    name: &DnsName,
    kind: RecordType,
    end: Instant,
) -> io::Result<(Vec<IpAddr>, u32)> {
    let tries = servers.len() * ROUNDS;
    let mut failed = io::Error::from(io::ErrorKind::TimedOut);
    for (number, server) in servers.iter().cycle().take(tries).enumerate() {
        let left = end.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(tries - number).unwrap_or(u32::MAX);
        let question = DnsQuestion {
            // Keyed by the system's random numbers.
            id: RandomState::new().hash_one(number) as u16,
            name: name.clone(),
            kind,
        };
        match ask(*server, &question, Instant::now() + share) {
            Ok(DnsReply::Addresses(addresses, ttl)) => return Ok((addresses, ttl)),
            Ok(DnsReply::Failure(code)) => {
                failed = io::Error::other(format!("{server} responded with {}", reason(code)));
            }
            Ok(DnsReply::Truncated) => {
                failed = io::Error::other(format!("{server} sent a truncated response"));
            }
            Err(error) => {
                failed = io::Error::new(error.kind(), format!("{server}: {error}"));
            }
        }
    }
    Err(failed)
}

fn ask(server: SocketAddr, question: &DnsQuestion, end: Instant) -> io::Result<DnsReply> {
    match ask_over_udp(server, question, end)? {
        DnsReply::Truncated => ask_over_tcp(server, question, end),
        reply => Ok(reply),
    }
}

fn ask_over_udp(server: SocketAddr, question: &DnsQuestion, end: Instant) -> io::Result<DnsReply> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    // Accepts datagrams of this server only.
    socket.connect(server)?;
    socket.send(&question.bytes())?;
    let mut message = [0; LONGEST_DATAGRAM];
    loop {
        socket.set_read_timeout(Some(left(end)?))?;
        let length = socket.recv(&mut message).map_err(timed_out)?;
        match question.reply(&message[..length]) {
            Ok(reply) => return Ok(reply),
            // To another question, or forged.
            Err(DnsError::Stray) => {}
            Err(DnsError::Malformed) => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn ask_over_tcp(server: SocketAddr, question: &DnsQuestion, end: Instant) -> io::Result<DnsReply> {
    let mut stream = TcpStream::connect_timeout(&server, left(end)?)?;
    stream.set_write_timeout(Some(left(end)?))?;
    let question_bytes = question.bytes();
    let length = u16::try_from(question_bytes.len()).unwrap_or(u16::MAX);
    stream.write_all(&[&length.to_be_bytes()[..], &question_bytes].concat())?;
    let mut length = [0; 2];
    read_all(&mut stream, &mut length, end)?;
    let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
    read_all(&mut stream, &mut message, end)?;
    let reply = question.reply(&message);
    reply.map_err(|_| io::ErrorKind::InvalidData.into())
}

fn read_all(stream: &mut TcpStream, mut bytes: &mut [u8], end: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_read_timeout(Some(left(end)?))?;
        match stream.read(bytes).map_err(timed_out)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => bytes = &mut bytes[length..],
        }
    }
    Ok(())
}

/// The time until then; an error if there is none.
fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

/// A socket's timeout as `TimedOut`.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

fn reason(code: u8) -> String {
    match code {
        1 => "FORMERR".to_owned(),
        2 => "SERVFAIL".to_owned(),
        4 => "NOTIMP".to_owned(),
        5 => "REFUSED".to_owned(),
        code => format!("code {code}"),
    }
}

/// The IPv4 addresses of a host in a message, if it is a response to a question with its own id.
#[cfg(any(fuzzing, test))]
#[must_use]
pub fn addresses_in(host: &str, message: &[u8]) -> Option<Vec<IpAddr>> {
    let question = DnsQuestion {
        id: u16::from_be_bytes(message.first_chunk().copied()?),
        name: DnsName::new(host)?,
        kind: RecordType::A,
    };
    match question.reply(message) {
        Ok(DnsReply::Addresses(addresses, _)) => Some(addresses),
        _ => None,
    }
}

/// How often each server is asked: a datagram may be lost.
const ROUNDS: usize = 2;
/// More than the 512 bytes that a server sends without EDNS.
const LONGEST_DATAGRAM: usize = 4096;

/// A name as in a message: labels with their lengths, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DnsName(Vec<u8>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
enum RecordType {
    /// IPv4 addresses.
    A = 1,
    /// IPv6 addresses.
    Aaaa = 28,
}

#[derive(Debug, Clone)]
struct DnsQuestion {
    /// The response has the same.
    id: u16,
    name: DnsName,
    kind: RecordType,
}

/// A server's response.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DnsReply {
    /// The addresses of the name, and their TTL in seconds. There are none if the name is unknown or has no address of
    /// this kind.
    Addresses(Vec<IpAddr>, u32),
    /// An error with this code.
    Failure(u8),
    /// The response does not fit.
    Truncated,
}

/// Why bytes are not a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DnsError {
    /// To this question, but malformed.
    Malformed,
    /// To another question, or no response at all.
    Stray,
}

impl DnsName {
    /// The name of a host; `None` if it is not valid.
    fn new(host: &str) -> Option<Self> {
        let mut bytes = Vec::with_capacity(host.len() + 2);
        for label in host.strip_suffix('.').unwrap_or(host).split('.') {
            let length = u8::try_from(label.len()).ok()?;
            if length == 0 || length > LONGEST_LABEL {
                return None;
            }
            bytes.push(length);
            bytes.extend(label.bytes().map(|byte| byte.to_ascii_lowercase()));
        }
        bytes.push(0);
        (bytes.len() <= LONGEST_NAME).then_some(Self(bytes))
    }
}

impl DnsQuestion {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.name.0.len() + 4);
        // One question, with recursion.
        for number in [self.id, RECURSE, 1, 0, 0, 0] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(&self.name.0);
        for number in [self.kind as u16, INTERNET] {
            bytes.extend(number.to_be_bytes());
        }
        bytes
    }

    /// The response in a message.
    fn reply(&self, message: &[u8]) -> Result<DnsReply, DnsError> {
        let mut reader = DnsReader { message, at: 0 };
        let (flags, records) = self.begin(&mut reader).ok_or(DnsError::Stray)?;
        if flags & TRUNCATED != 0 {
            return Ok(DnsReply::Truncated);
        }
        match u8::try_from(flags & CODE).unwrap_or(u8::MAX) {
            0 => {}
            UNKNOWN_NAME => return Ok(DnsReply::Addresses(Vec::new(), 0)),
            code => return Ok(DnsReply::Failure(code)),
        }
        let records = (0..records).map(|_| reader.record());
        let records: Option<Vec<_>> = records.collect();
        Ok(self.addresses(&records.ok_or(DnsError::Malformed)?))
    }

    /// Reads up to the records; returns the flags and the number of records, `None` if it is not to this question.
    fn begin(&self, reader: &mut DnsReader<'_>) -> Option<(u16, u16)> {
        let (id, flags) = (reader.u16()?, reader.u16()?);
        let (questions, answers) = (reader.u16()?, reader.u16()?);
        // The counts of authority and additional records.
        let (_, _) = (reader.u16()?, reader.u16()?);
        let is_response = flags & RESPONSE != 0 && flags & OPERATION == 0;
        let own = id == self.id
            && is_response
            && questions == 1
            && reader.name()? == self.name
            && reader.u16()? == self.kind as u16
            && reader.u16()? == INTERNET;
        own.then_some((flags, answers))
    }

    /// Follows aliases from the name to its addresses.
    fn addresses(&self, records: &[DnsRecord]) -> DnsReply {
        let mut name = &self.name;
        let mut ttl = u32::MAX;
        for _ in 0..MOST_ALIASES {
            let own = || records.iter().filter(|record| record.owner == *name);
            let mut found = Vec::new();
            let mut alias = None;
            for record in own() {
                match &record.data {
                    RecordData::Address(kind, address) if *kind == self.kind => {
                        found.push(*address);
                        ttl = ttl.min(record.ttl);
                    }
                    RecordData::Alias(other) => alias = Some((other, record.ttl)),
                    RecordData::Address(..) | RecordData::Other => {}
                }
            }
            match alias {
                _ if !found.is_empty() => return DnsReply::Addresses(found, ttl),
                Some((other, alias_ttl)) => {
                    name = other;
                    ttl = ttl.min(alias_ttl);
                }
                None => break,
            }
        }
        DnsReply::Addresses(Vec::new(), 0)
    }
}

struct DnsRecord {
    owner: DnsName,
    ttl: u32,
    data: RecordData,
}

enum RecordData {
    Address(RecordType, IpAddr),
    Alias(DnsName),
    Other,
}

struct DnsReader<'m> {
    message: &'m [u8],
    at: usize,
}

impl<'m> DnsReader<'m> {
    fn take(&mut self, length: usize) -> Option<&'m [u8]> {
        let taken = self.message.get(self.at..)?.get(..length)?;
        self.at += length;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        Some(*self.take(1)?.first()?)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    /// A name, which may go on at an earlier place of the message.
    fn name(&mut self) -> Option<DnsName> {
        let mut bytes = Vec::new();
        let mut place = Self {
            message: self.message,
            at: self.at,
        };
        // Where the reader goes on: after the first reference.
        let mut behind = None;
        let mut began = self.at;
        let mut references = 0;
        loop {
            let length = place.u8()?;
            if length & REFERENCE == REFERENCE {
                let low = place.u8()?;
                behind.get_or_insert(place.at);
                let there = usize::from(u16::from_be_bytes([length & !REFERENCE, low]));
                // Always backwards, or it would never end; and a few times only, or each of many records could lead through
                // all of the message.
                references += 1;
                if there >= began || references > MOST_REFERENCES {
                    return None;
                }
                began = there;
                place.at = there;
                continue;
            }
            if length > LONGEST_LABEL {
                return None;
            }
            bytes.push(length);
            bytes.extend(place.take(usize::from(length))?.to_ascii_lowercase());
            if bytes.len() > LONGEST_NAME {
                return None;
            }
            if length == 0 {
                break;
            }
        }
        self.at = behind.unwrap_or(place.at);
        Some(DnsName(bytes))
    }

    fn record(&mut self) -> Option<DnsRecord> {
        let owner = self.name()?;
        let (kind, class, ttl) = (self.u16()?, self.u16()?, self.u32()?);
        let length = usize::from(self.u16()?);
        let end = self.at + length;
        let data = match (class, kind) {
            (INTERNET, A) => {
                let bytes: [u8; 4] = self.take(length)?.try_into().ok()?;
                RecordData::Address(RecordType::A, Ipv4Addr::from(bytes).into())
            }
            (INTERNET, AAAA) => {
                let bytes: [u8; 16] = self.take(length)?.try_into().ok()?;
                RecordData::Address(RecordType::Aaaa, Ipv6Addr::from(bytes).into())
            }
            (INTERNET, CNAME) => RecordData::Alias(self.name()?),
            _ => {
                self.take(length)?;
                RecordData::Other
            }
        };
        (self.at == end).then_some(DnsRecord {
            owner,
            // RFC 2181: more than 31 bits count as 0.
            ttl: if ttl > LONGEST_TTL { 0 } else { ttl },
            data,
        })
    }
}

const HEADER: usize = 12;
const RECURSE: u16 = 0x0100;
const RESPONSE: u16 = 0x8000;
const OPERATION: u16 = 0x7800;
const TRUNCATED: u16 = 0x0200;
const CODE: u16 = 0x000f;
const UNKNOWN_NAME: u8 = 3;
const INTERNET: u16 = 1;
const A: u16 = RecordType::A as u16;
const AAAA: u16 = RecordType::Aaaa as u16;
const CNAME: u16 = 5;
const REFERENCE: u8 = 0xc0;
/// References in one name: as many as it can have labels.
const MOST_REFERENCES: usize = 127;
const LONGEST_LABEL: u8 = 63;
const LONGEST_NAME: usize = 255;
const LONGEST_TTL: u32 = 0x7fff_ffff;
/// Longer chains are errors.
const MOST_ALIASES: usize = 16;
