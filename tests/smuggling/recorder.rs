//! A backend that records every byte it receives, and responds to what it parses as requests.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::support::PATIENCE;
use crate::support::message::Reader;

/// A backend.
#[derive(Debug)]
pub(super) struct Recorder {
    address: SocketAddr,
    connections: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// What passes is written down.
#[derive(Debug)]
struct Tee {
    stream: TcpStream,
    number: usize,
    connections: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Read for Tee {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.stream.read(buffer)?;
        self.connections.lock()[self.number].extend_from_slice(&buffer[..length]);
        Ok(length)
    }
}

impl Recorder {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let address = listener.local_addr().expect("it is bound");
        let connections: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let kept = Arc::clone(&connections);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut connections = kept.lock();
                let tee = Tee {
                    stream,
                    number: connections.len(),
                    connections: Arc::clone(&kept),
                };
                connections.push(Vec::new());
                // Its other end may go at any time.
                std::thread::spawn(move || answer(tee).ok());
            }
        });
        Self {
            address,
            connections,
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What came over each connection.
    pub(super) fn connections(&self) -> Vec<Vec<u8>> {
        self.connections.lock().clone()
    }

    /// All that came, and forgets it.
    pub(super) fn take(&self) -> String {
        let mut all = Vec::new();
        for connection in &mut *self.connections.lock() {
            all.append(connection);
        }
        String::from_utf8_lossy(&all).into_owned()
    }
}

fn answer(tee: Tee) -> io::Result<()> {
    tee.stream.set_nodelay(true)?;
    tee.stream.set_read_timeout(Some(PATIENCE * 2))?;
    let mut reader = Reader::new(tee);
    while let Some(head) = reader.head()? {
        if head.is_chunked() {
            reader.chunked(&mut |_| {})?;
        } else {
            reader.exactly(head.content_length().unwrap_or(0), &mut |_| {})?;
        }
        let mut stream = &reader.source().stream;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
    }
    Ok(())
}
