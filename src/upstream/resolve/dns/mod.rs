//! The addresses of a name from a DNS server of the operator's choice, with the time they hold.
//!
//! A client of our own, because little is needed and much would come with a library: addresses of both kinds over UDP,
//! over TCP where they do not fit. It blocks, as the system's does; who calls sees to it that nobody waits for it who
//! should not. Every question goes out from a port and with a number that nobody can guess.

mod message;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use tokio::time::Instant;

use self::message::{DnsError, DnsName, DnsQuestion, DnsReply, RecordType};
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
