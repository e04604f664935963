//! The addresses of a name from a DNS server of the operator's choice, with the time they hold.
//!
//! A client of our own, because little is needed and much would come with a library: addresses of both kinds over UDP,
//! over TCP where they do not fit. It blocks, as the system's does; who calls sees to it that nobody waits for it who
//! should not. Every question goes out from a port and with a number that nobody can guess.
//!
//! A question to a DNS server and what it answers, as bytes (RFC 1035).
//!
//! Strict: what is not an answer to the very question that was asked is not looked at any further, and of the records
//! only those count that lead from the name asked for, over aliases, to an address.

#[cfg(test)]
#[path = "tests/dns.rs"]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use tokio::time::Instant;

use crate::config::plan::Resolver;

/// The addresses of a host, and how long they hold by their own account. There may be none.
pub(super) fn look_up(resolver: &Resolver, host: &str) -> io::Result<(Vec<IpAddr>, Duration)> {
    let unfit = || io::Error::new(io::ErrorKind::InvalidInput, "it cannot be a name in DNS");
    let name = DnsName::new(host).ok_or_else(unfit)?;
    let end = Instant::now() + resolver.timeout;
    let mut found = Vec::new();
    let mut holds = u32::MAX;
    for (kind, wanted) in [
        (RecordType::A, resolver.ipv4),
        (RecordType::Aaaa, resolver.ipv6),
    ] {
        if !wanted {
            continue;
        }
        // Half of what is known is not known: whoever is missing would be taken for gone.
        let (addresses, seconds) = ask_in_turn(&resolver.servers, &name, kind, end)?;
        if !addresses.is_empty() {
            holds = holds.min(seconds);
        }
        found.extend(addresses);
    }
    Ok((found, Duration::from_secs(holds.into())))
}

/// Asks one server after the other, and all once more.
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
            // Keyed by what the system has for secrets.
            id: RandomState::new().hash_one(number) as u16,
            name: name.clone(),
            kind,
        };
        match ask(*server, &question, Instant::now() + share) {
            Ok(DnsReply::Addresses(addresses, holds)) => return Ok((addresses, holds)),
            Ok(DnsReply::Failure(code)) => {
                failed = io::Error::other(format!("{server} says {}", reason(code)));
            }
            Ok(DnsReply::Truncated) => {
                failed = io::Error::other(format!("{server} does not say all of it"));
            }
            Err(error) => {
                failed = io::Error::new(error.kind(), format!("{server}: {error}"));
            }
        }
    }
    Err(failed)
}

fn ask(server: SocketAddr, question: &DnsQuestion, end: Instant) -> io::Result<DnsReply> {
    match ask_briefly(server, question, end)? {
        DnsReply::Truncated => ask_at_length(server, question, end),
        reply => Ok(reply),
    }
}

/// Over UDP.
fn ask_briefly(server: SocketAddr, question: &DnsQuestion, end: Instant) -> io::Result<DnsReply> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    // From nobody else anything is taken.
    socket.connect(server)?;
    socket.send(&question.bytes())?;
    let mut message = [0; LONGEST_DATAGRAM];
    loop {
        socket.set_read_timeout(Some(left(end)?))?;
        let length = socket.recv(&mut message).map_err(in_time)?;
        match question.reply(&message[..length]) {
            Ok(reply) => return Ok(reply),
            // Somebody else's, or a late one.
            Err(DnsError::Stray) => {}
            Err(DnsError::Malformed) => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Over TCP.
fn ask_at_length(server: SocketAddr, question: &DnsQuestion, end: Instant) -> io::Result<DnsReply> {
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
        match stream.read(bytes).map_err(in_time)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => bytes = &mut bytes[length..],
        }
    }
    Ok(())
}

/// How long until then; there is no such thing as no time.
fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

/// A time-out by the name everybody knows.
fn in_time(error: io::Error) -> io::Error {
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
        code => format!("no, with code {code}"),
    }
}

/// What a message has to say of a host's IPv4 addresses, if it is an answer; to a question with whatever number it has.
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
/// More than a server sends to who has not said that it takes more, which is 512.
const LONGEST_DATAGRAM: usize = 4096;

/// A name as it stands in a message: labels with their lengths, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DnsName(Vec<u8>);

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
enum RecordType {
    /// IPv4 addresses.
    A = 1,
    /// IPv6 addresses.
    Aaaa = 28,
}

/// A question.
#[derive(Debug, Clone)]
struct DnsQuestion {
    /// What the answer has to say, too.
    id: u16,
    name: DnsName,
    kind: RecordType,
}

/// What a server answers.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DnsReply {
    /// The addresses of the name, and for how many seconds they hold. There may be none: the name is unknown, or has
    /// no address of this kind.
    Addresses(Vec<IpAddr>, u32),
    /// It would not or could not say, with this code.
    Failure(u8),
    /// It had more to say than fits.
    Truncated,
}

/// Why bytes are no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DnsError {
    /// To this question, but broken.
    Malformed,
    /// To another question, or no answer at all.
    Stray,
}

impl DnsName {
    /// A host's; `None` where it cannot be one.
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
    /// The question as it is sent.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.name.0.len() + 4);
        // One question, and the server is to find the answer wherever it is.
        for number in [self.id, RECURSE, 1, 0, 0, 0] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(&self.name.0);
        for number in [self.kind as u16, INTERNET] {
            bytes.extend(number.to_be_bytes());
        }
        bytes
    }

    /// What a message has to say to this question.
    fn reply(&self, message: &[u8]) -> Result<DnsReply, DnsError> {
        let mut reader = DnsReader { message, at: 0 };
        let flags = self.begin(&mut reader).ok_or(DnsError::Stray)?;
        if flags.truncated {
            return Ok(DnsReply::Truncated);
        }
        match flags.code {
            0 => {}
            UNKNOWN_NAME => return Ok(DnsReply::Addresses(Vec::new(), 0)),
            code => return Ok(DnsReply::Failure(code)),
        }
        let records = (0..flags.answers).map(|_| reader.record());
        let records: Option<Vec<_>> = records.collect();
        Ok(self.addresses(&records.ok_or(DnsError::Malformed)?))
    }

    /// Reads up to the answers; `None` if it is not to this question.
    fn begin(&self, reader: &mut DnsReader<'_>) -> Option<DnsFlags> {
        let (id, flags) = (reader.u16()?, reader.u16()?);
        let (questions, answers) = (reader.u16()?, reader.u16()?);
        // Authorities and the rest are of no use here.
        let (_, _) = (reader.u16()?, reader.u16()?);
        let is_answer = flags & RESPONSE != 0 && flags & OPERATION == 0;
        let own = id == self.id
            && is_answer
            && questions == 1
            && reader.name()? == self.name
            && reader.u16()? == self.kind as u16
            && reader.u16()? == INTERNET;
        own.then(|| DnsFlags {
            truncated: flags & TRUNCATED != 0,
            code: u8::try_from(flags & CODE).unwrap_or(u8::MAX),
            answers,
        })
    }

    /// Follows aliases from the name asked for to its addresses.
    fn addresses(&self, records: &[DnsRecord]) -> DnsReply {
        let mut name = &self.name;
        let mut holds = u32::MAX;
        for _ in 0..MOST_ALIASES {
            let own = || records.iter().filter(|record| record.owner == *name);
            let mut found = Vec::new();
            let mut alias = None;
            for record in own() {
                match &record.data {
                    RecordData::Address(kind, address) if *kind == self.kind => {
                        found.push(*address);
                        holds = holds.min(record.holds);
                    }
                    RecordData::Alias(other) => alias = Some((other, record.holds)),
                    RecordData::Address(..) | RecordData::Other => {}
                }
            }
            match alias {
                _ if !found.is_empty() => return DnsReply::Addresses(found, holds),
                Some((other, alias_holds)) => {
                    name = other;
                    holds = holds.min(alias_holds);
                }
                None => break,
            }
        }
        DnsReply::Addresses(Vec::new(), 0)
    }
}

struct DnsFlags {
    truncated: bool,
    code: u8,
    answers: u16,
}

struct DnsRecord {
    owner: DnsName,
    holds: u32,
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

    /// A name, which may go on in an earlier place of the message.
    fn name(&mut self) -> Option<DnsName> {
        let mut bytes = Vec::new();
        let mut place = Self {
            message: self.message,
            at: self.at,
        };
        // Where the reader goes on: behind the first reference to an earlier place.
        let mut behind = None;
        let mut began = self.at;
        let mut references = 0;
        loop {
            let length = place.u8()?;
            if length & REFERENCE == REFERENCE {
                let low = place.u8()?;
                behind.get_or_insert(place.at);
                let there = usize::from(u16::from_be_bytes([length & !REFERENCE, low]));
                // Always back, or it would never end; and not often, or each of many records could lead through all of
                // the message.
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
        let (kind, class, holds) = (self.u16()?, self.u16()?, self.u32()?);
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
            // More than so is nonsense, and means nothing.
            holds: if holds > LONGEST_HOLD { 0 } else { holds },
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
/// References in one name: no more than it can have labels.
const MOST_REFERENCES: usize = 127;
const LONGEST_LABEL: u8 = 63;
const LONGEST_NAME: usize = 255;
/// RFC 2181: 31 bits.
const LONGEST_HOLD: u32 = 0x7fff_ffff;
/// Longer chains are mistakes.
const MOST_ALIASES: usize = 16;
