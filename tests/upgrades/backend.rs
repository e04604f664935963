//! A backend that accepts every upgrade, and handles the bytes as the path says.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::support::PATIENCE;
use crate::support::message::{Head, Reader};

/// A backend.
#[derive(Debug)]
pub(super) struct Far {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    heads: Mutex<Vec<Head>>,
    heard: Mutex<Vec<u8>>,
    open: AtomicUsize,
    written: AtomicUsize,
}

impl Far {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared: Arc<Shared> = Arc::default();
        let kept = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&kept);
                std::thread::spawn(move || {
                    shared.open.fetch_add(1, Ordering::SeqCst);
                    // Its other end may go at any time.
                    shared.run(stream).ok();
                    shared.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, shared }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The heads of the requests that came.
    pub(super) fn heads(&self) -> Vec<Head> {
        self.shared.heads.lock().clone()
    }

    /// What came through tunnels.
    pub(super) fn heard(&self) -> String {
        String::from_utf8_lossy(&self.shared.heard.lock()).into_owned()
    }

    /// How many connections are open.
    pub(super) fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// How much a `/flood` has got rid of.
    pub(super) fn written(&self) -> usize {
        self.shared.written.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn run(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE * 2))?;
        let mut reader = Reader::new(stream);
        while let Some(head) = reader.head()? {
            self.heads.lock().push(head.clone());
            reader.exactly(head.content_length().unwrap_or(0), &mut |_| {})?;
            let mut out = reader.source();
            match head.word(1) {
                "/no" => out.write_all(b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: echo/2\r\nContent-Length: 2\r\n\r\nno")?,
                "/ok" => out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?,
                "/other" => out.write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n")?,
                "/silent" => out.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")?,
                path => {
                    let hello = if path == "/hello" { "hello" } else { "" };
                    out.write_all(format!("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade, x-hop\r\nX-Hop: 1\r\nX-End: 2\r\nUpgrade: ECHO/1\r\n\r\n{hello}").as_bytes())?;
                    return self.speak(path, reader);
                }
            }
        }
        Ok(())
    }

    fn speak(&self, path: &str, mut reader: Reader<TcpStream>) -> std::io::Result<()> {
        if path == "/flood" {
            let mut stream = reader.source();
            for _ in 0..FLOOD / 1024 {
                stream.write_all(&[b'x'; 1024])?;
                self.written.fetch_add(1024, Ordering::SeqCst);
            }
        }
        if path == "/bye" {
            reader.source().write_all(b"bye")?;
            reader.source().shutdown(Shutdown::Write)?;
        }
        if path == "/deaf" {
            std::thread::park_timeout(PATIENCE);
        }
        loop {
            let piece = reader.some(64 * 1024)?;
            if piece.is_empty() {
                break;
            }
            self.heard.lock().extend_from_slice(&piece);
            if path != "/bye" {
                reader.source().write_all(&piece)?;
            }
        }
        // The client has said all: one more word for it.
        if path != "/bye" {
            reader.source().write_all(b"!")?;
        }
        let mut rest = Vec::new();
        reader.source().shutdown(Shutdown::Write)?;
        let mut stream = reader.source();
        stream.read_to_end(&mut rest)?;
        Ok(())
    }
}

/// How much `/flood` writes.
pub(super) const FLOOD: usize = 64 * 1024 * 1024;
