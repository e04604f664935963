//! A client that asks again and again at a steady pace, and knows what the answer has to be.

use std::io::{BufRead, BufReader, Error, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

/// What became of a client's requests.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) answered: u64,
    /// Answers that ended before their end.
    pub(crate) cut: u64,
    /// What came instead of the others, the first few.
    pub(crate) lost: Vec<String>,
    pub(crate) lost_count: u64,
    /// How long each took, in tenths of a millisecond.
    pub(crate) times: Vec<u32>,
}

/// What came of one request.
enum Outcome {
    Answered,
    Cut,
    Lost(String),
}

/// Asks for something under `path`, so many times a second, until told to stop.
pub(crate) fn run(
    address: SocketAddr,
    path: &str,
    pause: Duration,
    number: usize,
    stop: &AtomicBool,
) -> Tally {
    let mut tally = Tally::default();
    let mut connection = None;
    let started = Instant::now();
    let mut next = started;
    let mut count = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let target = format!("{path}{number}/{count}");
        count += 1;
        let began = Instant::now();
        match ask(&mut connection, address, &target) {
            Outcome::Answered => tally.answered += 1,
            Outcome::Cut => tally.cut += 1,
            Outcome::Lost(what) => {
                tally.lost_count += 1;
                if tally.lost.len() < 5 {
                    let at = began.duration_since(started).as_secs_f32();
                    tally.lost.push(format!("{at:.1} s, {target}: {what}"));
                }
            }
        }
        let taken = began.elapsed().as_micros() / 100;
        tally.times.push(u32::try_from(taken).unwrap_or(u32::MAX));
        // From one to the next, not from the end of one: who waits does not ask less for it, as far as one can.
        next = (next + pause).max(began);
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    tally
}

/// The metrics of this name, each with its labels.
pub(crate) fn metrics(address: SocketAddr, name: &str) -> Result<Vec<String>> {
    let mut stream = TcpStream::connect(address)?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    let lines = page.lines().filter_map(|line| line.strip_prefix(name));
    Ok(lines.map(str::to_owned).collect())
}

fn ask(
    connection: &mut Option<BufReader<TcpStream>>,
    address: SocketAddr,
    target: &str,
) -> Outcome {
    let kept = connection.is_some();
    match exchange(connection, address, target) {
        // A kept connection may be closed just as it is used again.
        Err(_) if kept => {
            *connection = None;
            exchange(connection, address, target)
        }
        tried => tried,
    }
    .unwrap_or_else(|error| {
        *connection = None;
        Outcome::Lost(error.to_string())
    })
}

fn exchange(
    connection: &mut Option<BufReader<TcpStream>>,
    address: SocketAddr,
    target: &str,
) -> Result<Outcome> {
    let mut reader = match connection.take() {
        Some(reader) => reader,
        None => {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            BufReader::new(stream)
        }
    };
    let request = format!("GET {target} HTTP/1.1\r\nHost: soak\r\n\r\n");
    reader.get_mut().write_all(request.as_bytes())?;
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Err(Error::other("closed without an answer"));
        }
    }
    let head = head.to_ascii_lowercase();
    let status = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let field = |name: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim)
    };
    let length = field("content-length:").and_then(|length| length.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    if reader.read_exact(&mut body).is_err() {
        return Ok(Outcome::Cut);
    }
    if field("connection:") != Some("close") {
        *connection = Some(reader);
    }
    Ok(match (status.as_str(), body == target.as_bytes()) {
        ("200", true) => Outcome::Answered,
        ("200", false) => Outcome::Lost("another request's response".to_owned()),
        (status, _) => Outcome::Lost(status.to_owned()),
    })
}

const PATIENCE: Duration = Duration::from_secs(30);
