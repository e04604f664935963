//! A backend that behaves or misbehaves as the path says, and records the requests that reach it.
//!
//! One thread a connection and plain blocking reads: nothing here shares code with what is tested.

mod behaviour;

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::gates::Gates;
use super::message::{Head, Reader};
use super::{Client, PATIENCE, eventually};

/// A backend.
#[derive(Debug)]
pub(crate) struct Origin {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    /// Behaves like this whatever the path says.
    always: Mutex<Option<String>>,
    /// Behaves like this where it is asked for that.
    scripts: Mutex<Vec<(String, String)>>,
    gates: Gates,
    connections: AtomicUsize,
    closed: AtomicUsize,
    seen: Mutex<Vec<ReceivedRequest>>,
}

/// A request that reached the backend.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedRequest {
    pub(crate) head: Head,
    /// The first of it; see `length` for how much there was.
    pub(crate) body: Vec<u8>,
    pub(crate) length: usize,
    pub(crate) trailers: Vec<(String, String)>,
    /// Whether all of it was read.
    pub(crate) complete: bool,
}

impl Origin {
    pub(crate) fn start() -> Self {
        Self::named("origin")
    }

    /// One that says its name in `X-Origin`.
    pub(crate) fn named(name: &str) -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0).into(), name)
    }

    /// The same at an address of the test's choice.
    pub(crate) fn at(address: SocketAddr, name: &str) -> Self {
        let listener = TcpListener::bind(address).expect("the port is free");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            always: Mutex::default(),
            scripts: Mutex::default(),
            gates: Gates::default(),
            connections: AtomicUsize::new(0),
            closed: AtomicUsize::new(0),
            seen: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                accepting.connections.fetch_add(1, Ordering::SeqCst);
                let shared = Arc::clone(&accepting);
                std::thread::spawn(move || {
                    // A peer that goes away is what many tests are about.
                    Connection::new(Arc::clone(&shared), stream).run().ok();
                    shared.closed.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, shared }
    }

    /// Makes it behave like `path` whatever it is asked for.
    pub(crate) fn always(self, path: &str) -> Self {
        self.behave(path);
        self
    }

    /// The same, from now on.
    pub(crate) fn behave(&self, path: &str) {
        *self.shared.always.lock() = Some(path.to_owned());
    }

    /// Makes it behave like `path` where it is asked for `asked`.
    pub(crate) fn script(&self, asked: &str, path: &str) {
        let mut scripts = self.shared.scripts.lock();
        scripts.retain(|(known, _)| known != asked);
        scripts.push((asked.to_owned(), path.to_owned()));
    }

    /// Makes it do again what the path asks for.
    pub(crate) fn recover(&self) {
        *self.shared.always.lock() = None;
        self.shared.scripts.lock().clear();
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn gates(&self) -> &Gates {
        &self.shared.gates
    }

    /// Sends a request that waits behind `gate`, and waits until it does. A place in a `limit_conn` comes free a moment
    /// after the client has its last byte, so one that is refused is sent again.
    pub(crate) fn hold(&self, gate: &str, begin: impl Fn() -> Client) -> Client {
        let before = self.gates().waiting(gate);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut client = begin();
            while client.is_quiet(Duration::from_millis(2)) {
                if self.gates().waiting(gate) > before {
                    return client;
                }
            }
            assert!(Instant::now() < deadline, "nothing comes to gate {gate}");
        }
    }

    /// How many connections were made to it.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// How many of them are open.
    pub(crate) fn open_connections(&self) -> usize {
        self.connections() - self.shared.closed.load(Ordering::SeqCst)
    }

    /// Every request that reached it.
    pub(crate) fn seen(&self) -> Vec<ReceivedRequest> {
        self.shared.seen.lock().clone()
    }

    /// How many requests reached it.
    pub(crate) fn count(&self) -> usize {
        self.shared.seen.lock().len()
    }

    /// The only request that reached it.
    pub(crate) fn only(&self) -> ReceivedRequest {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.into_iter().next().expect("there is one")
    }

    /// Waits until so many requests have reached it.
    pub(crate) fn await_count(&self, count: usize) {
        eventually(&format!("{count} requests at the backend"), || {
            self.count() >= count
        });
    }
}

/// One connection to the backend.
#[derive(Debug)]
struct Connection {
    shared: Arc<Shared>,
    reader: Reader<TcpStream>,
    /// How many requests it has carried.
    requests: usize,
}

/// Whether a connection goes on after an answer.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Close,
    Keep,
}

impl Connection {
    fn new(shared: Arc<Shared>, stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("it is a socket");
        stream
            .set_read_timeout(Some(PATIENCE * 2))
            .expect("not zero");
        Self {
            shared,
            reader: Reader::new(stream),
            requests: 0,
        }
    }

    fn run(&mut self) -> io::Result<()> {
        while let Some(head) = self.reader.head()? {
            self.requests += 1;
            let index = {
                let mut seen = self.shared.seen.lock();
                seen.push(ReceivedRequest {
                    head: head.clone(),
                    body: Vec::new(),
                    length: 0,
                    trailers: Vec::new(),
                    complete: false,
                });
                seen.len() - 1
            };
            if self.answer(&head, index)? == Next::Close {
                break;
            }
        }
        Ok(())
    }

    /// What it is made to behave like when asked for `target`.
    fn scripted(&self, target: &str) -> String {
        if let Some(always) = &*self.shared.always.lock() {
            return always.clone();
        }
        let scripts = self.shared.scripts.lock();
        let script = scripts.iter().find(|(asked, _)| asked == target);
        script.map_or(target, |(_, path)| path).to_owned()
    }

    /// Reads the body of request `index`, so that a test can watch it arrive.
    fn read_body(&mut self, head: &Head, index: usize) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let mut take = |piece: &[u8]| {
            let seen = &mut shared.seen.lock()[index];
            seen.length += piece.len();
            let room = REMEMBERED.saturating_sub(seen.body.len());
            seen.body.extend_from_slice(&piece[..room.min(piece.len())]);
        };
        let trailers = if head.is_chunked() {
            self.reader.chunked(&mut take)?
        } else {
            let length = head.content_length().unwrap_or(0);
            self.reader.exactly(length, &mut take)?;
            Vec::new()
        };
        let seen = &mut self.shared.seen.lock()[index];
        seen.trailers = trailers;
        seen.complete = true;
        Ok(())
    }

    fn write(&self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        let mut stream = self.reader.source();
        stream.write_all(bytes.as_ref())
    }

    /// A whole answer with its length.
    fn reply(&self, status: &str, body: &[u8]) -> io::Result<()> {
        let name = &self.shared.name;
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nX-Origin: {name}\r\n\r\n");
        self.write([head.as_bytes(), body].concat())
    }
}

/// How much of a body is kept.
const REMEMBERED: usize = 1 << 20;
