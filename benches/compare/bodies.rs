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

/// What clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exchange {
    Download,
    Post,
    Upload,
}

/// What one proxy used for each exchange of a kind, and how long it held the backend.
#[derive(Debug)]
struct Used {
    /// Microseconds on a core.
    cpu: f64,
    /// Milliseconds, the median.
    held: f64,
}

/// All exchanges with one proxy.
#[derive(Debug)]
pub(crate) struct Bodies {
    contender: Contender,
    used: [Used; 3],
}

/// Everyone in turn.
pub(crate) fn measure(weir: &Path, cores: &Cores) -> Result<Vec<Bodies>> {
    let (backend, held) = Backend::start()?;
    let mut measured = Vec::new();
    for contender in [Contender::Nginx, Contender::Haproxy, Contender::Weir] {
        let Some(proxy) = Proxy::start(contender, Job::Bodies, weir, cores, backend)? else {
            continue;
        };
        let each = |exchange| used(&proxy, exchange, &held);
        measured.push(Bodies {
            contender,
            used: [
                each(Exchange::Post)?,
                each(Exchange::Upload)?,
                each(Exchange::Download)?,
            ],
        });
    }
    Ok(measured)
}

fn used(proxy: &Proxy, exchange: Exchange, held: &Receiver<Duration>) -> Result<Used> {
    let (clients, times) = match exchange {
        Exchange::Post => (8, 500),
        Exchange::Download | Exchange::Upload => (16, 1),
    };
    run(proxy.address(), exchange, clients, 1)?;
    sleep(Duration::from_millis(150));
    while held.try_recv().is_ok() {}
    let before = proxy.process.cpu();
    run(proxy.address(), exchange, clients, times)?;
    sleep(Duration::from_millis(50));
    let cpu = proxy.process.cpu().saturating_sub(before);
    let mut held: Vec<_> = held.try_iter().collect();
    held.sort_unstable();
    let median = held.get(held.len() / 2).ok_or("the backend saw nothing")?;
    Ok(Used {
        cpu: cpu as f64 / 1e3 / (clients * times) as f64,
        held: median.as_secs_f64() * 1e3,
    })
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
        CPU for each request, and in brackets how long it held the backend (the median). A POST of 2 KB as fast as it goes over 8 \
        connections; an upload and a download of 1 MB by 16 clients at once, 1 MB/s each. All as they come: nginx and weir buffer, \
        HAProxy does not.\n\n\
        | | POST of 2 KB | upload of 1 MB | download of 1 MB |\n| --- | --- | --- | --- |\n"
        .to_owned();
    for bodies in measured {
        text += &format!("| {} |", bodies.contender.label());
        for used in &bodies.used {
            text += &format!(" {:.0} µs ({:.1} ms) |", used.cpu, used.held);
        }
        text.push('\n');
    }
    text
}

const POST: usize = 2 << 10;
const LONG: usize = 1 << 20;

/// What a slow client sends or takes before it pauses.
const PIECE: usize = 16 << 10;
const PAUSE: Duration = Duration::from_millis(16);
