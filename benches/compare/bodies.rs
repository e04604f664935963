//! Bodies and slow clients: what they cost a proxy, and for how long each of them holds the backend.
//!
//! The backend is a thread of this program, because it is the one to ask how long it was held: from the first byte of a
//! request until the last of its response has left it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, sleep};
use std::time::Duration;

use tokio::time::Instant;

use crate::Result;
use crate::cases::{Contender, Job};
use crate::machine::Cores;
use crate::proxies::Proxy;
use crate::report::{Ratio, median};

/// What clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exchange {
    Download,
    Post,
    Upload,
}

/// What one proxy used in one round for each exchange of a kind, and how long it held the backend.
#[derive(Debug, Clone, Copy)]
struct Used {
    /// Microseconds on a core.
    cpu: f64,
    /// Seconds, the median.
    held: f64,
}

/// All exchanges with one proxy.
#[derive(Debug)]
pub(crate) struct Bodies {
    contender: Contender,
    /// The rounds of each exchange.
    used: [Vec<Used>; EXCHANGES.len()],
}

/// Everyone in turn, in each of so many rounds.
pub(crate) fn measure(rounds: usize, weir: &Path, cores: &Cores) -> Result<Vec<Bodies>> {
    let (backend, held) = Backend::start()?;
    let mut proxies = Vec::new();
    for contender in [Contender::Nginx, Contender::Haproxy, Contender::Weir] {
        proxies.extend(Proxy::start(contender, Job::Bodies, weir, cores, backend)?);
    }
    let bodies = |proxy: &Proxy| Bodies {
        contender: proxy.contender,
        used: EXCHANGES.map(|_| Vec::new()),
    };
    let mut measured: Vec<_> = proxies.iter().map(bodies).collect();
    for (kind, exchange) in EXCHANGES.into_iter().enumerate() {
        for proxy in &proxies {
            run(proxy.address(), exchange, exchange.clients().0, 1)?;
        }
        for number in 0..rounds {
            for place in 0..proxies.len() {
                let turn = (number + place) % proxies.len();
                let used = used(&proxies[turn], exchange, &held)?;
                measured[turn].used[kind].push(used);
            }
        }
    }
    Ok(measured)
}

fn used(proxy: &Proxy, exchange: Exchange, held: &Receiver<Duration>) -> Result<Used> {
    let (clients, times) = exchange.clients();
    // What the one before left behind is not to be charged to this one.
    sleep(Duration::from_millis(150));
    while held.try_recv().is_ok() {}
    let before = proxy.process.cpu();
    run(proxy.address(), exchange, clients, times)?;
    sleep(Duration::from_millis(50));
    let cpu = proxy.process.cpu().saturating_sub(before);
    let held = held.try_iter().map(|held| held.as_secs_f64());
    let held: Vec<_> = held.collect();
    if held.len() != clients * times {
        return Err(format!("the backend saw {} requests", held.len()).into());
    }
    Ok(Used {
        cpu: cpu as f64 / 1e3 / (clients * times) as f64,
        held: median(held),
    })
}

impl Exchange {
    /// How many clients there are at once, and how often each of them does it.
    fn clients(self) -> (usize, usize) {
        match self {
            Self::Post => (8, 500),
            Self::Download | Self::Upload => (16, 1),
        }
    }
}

/// So many clients at once, each so many times.
fn run(address: SocketAddr, exchange: Exchange, clients: usize, times: usize) -> Result<()> {
    let clients: Vec<_> = (0..clients)
        .map(|_| thread::spawn(move || client(address, exchange, times)))
        .collect();
    for client in clients {
        client.join().map_err(|_| "a client panicked")??;
    }
    Ok(())
}

fn client(address: SocketAddr, exchange: Exchange, times: usize) -> std::io::Result<()> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    socket2::SockRef::from(&stream).set_recv_buffer_size(PIECE)?;
    let mut reader = BufReader::with_capacity(PIECE, &stream);
    for _ in 0..times {
        let length = match exchange {
            Exchange::Download => 0,
            Exchange::Post => POST,
            Exchange::Upload => LONG,
        };
        let path = match exchange {
            Exchange::Download => "/long",
            Exchange::Post | Exchange::Upload => "/",
        };
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
        let mut message = head.into_bytes();
        message.resize(message.len() + length, b'x');
        for piece in message.chunks(PIECE) {
            (&stream).write_all(piece)?;
            if exchange == Exchange::Upload {
                sleep(PAUSE);
            }
        }
        let mut left = head_of(&mut reader)?.1;
        let mut piece = vec![0; PIECE];
        while left > 0 {
            let most = left.min(PIECE);
            reader.read_exact(&mut piece[..most])?;
            left -= most;
            if exchange == Exchange::Download {
                sleep(PAUSE);
            }
        }
    }
    Ok(())
}

/// The first line of a head, and how long its body is.
fn head_of(reader: &mut impl BufRead) -> std::io::Result<(String, usize)> {
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            return Ok((first, length));
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or_default();
        }
    }
}

/// A backend that tells how long each request held it.
#[derive(Debug)]
struct Backend;

impl Backend {
    fn start() -> Result<(u16, Receiver<Duration>)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let (tell, held) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(std::io::Result::ok) {
                let tell = tell.clone();
                // A proxy that hangs up has its reasons.
                thread::spawn(move || drop(Self::serve(&stream, &tell)));
            }
        });
        Ok((port, held))
    }

    fn serve(stream: &TcpStream, tell: &Sender<Duration>) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::with_capacity(PIECE, stream);
        loop {
            if reader.fill_buf()?.is_empty() {
                return Ok(());
            }
            let began = Instant::now();
            let (first, length) = head_of(&mut reader)?;
            std::io::copy(&mut (&mut reader).take(length as u64), &mut std::io::sink())?;
            let length = if first.contains("/long") { LONG } else { 2 };
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            let mut answer = head.into_bytes();
            answer.resize(answer.len() + length, b'x');
            let mut stream = stream;
            stream.write_all(&answer)?;
            if tell.send(began.elapsed()).is_err() {
                return Ok(());
            }
        }
    }
}

/// All of them as Markdown.
pub(crate) fn section(measured: &[Bodies]) -> String {
    let mut text = "## Bodies and slow clients\n\n\
        CPU for each request, and how long it held the backend. A POST of 2 KB as fast as it goes over 8 \
        connections; an upload and a download of 1 MB by 16 clients at once, 1 MB/s each. All as they come: nginx and weir buffer, \
        HAProxy does not.\n\n\
        | | POST of 2 KB | held | upload of 1 MB | held | download of 1 MB | held |\n"
        .to_owned();
    text += &"| --- ".repeat(1 + 2 * EXCHANGES.len());
    text += "|\n";
    let base = measured
        .iter()
        .find(|bodies| bodies.contender == Contender::BASE);
    for bodies in measured {
        text += &format!("| {} |", bodies.contender.label());
        for (kind, rounds) in bodies.used.iter().enumerate() {
            let cpu = |used: &Used| used.cpu;
            text += &format!(" {:.0} µs", median(rounds.iter().map(cpu).collect()));
            let base = base.filter(|base| base.contender != bodies.contender);
            let base = base.map(|base| base.used[kind].iter().map(cpu));
            if let Some(ratio) = base.and_then(|base| Ratio::of(rounds.iter().map(cpu), base)) {
                text += &format!(" · {ratio}");
            }
            let held = rounds.iter().map(|used| used.held).collect();
            text += &format!(" | {:.1?} |", Duration::from_secs_f64(median(held)));
        }
        text.push('\n');
    }
    text
}

const EXCHANGES: [Exchange; 3] = [Exchange::Post, Exchange::Upload, Exchange::Download];

const POST: usize = 2 << 10;
const LONG: usize = 1 << 20;

/// What a slow client sends or takes before it pauses.
const PIECE: usize = 16 << 10;
const PAUSE: Duration = Duration::from_millis(16);
