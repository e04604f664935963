//! An origin that does what a test tells it, byte by byte.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A listener whose connections follow a script.
pub(super) struct Origin {
    pub(super) address: SocketAddr,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    closed: AtomicUsize,
    heads: Mutex<Vec<String>>,
}

/// One connection, on the origin's side.
pub(super) struct Caller {
    /// Which one it is, from 0.
    pub(super) number: usize,
    stream: TcpStream,
    seen: Arc<Seen>,
}

impl Origin {
    pub(super) async fn start<F, Fut>(script: F) -> Self
    where
        F: Fn(Caller) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let shared = Arc::clone(&seen);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let caller = Caller {
                    number: shared.connections.fetch_add(1, Ordering::Relaxed),
                    stream,
                    seen: Arc::clone(&shared),
                };
                tokio::spawn(script(caller));
            }
        });
        Self { address, seen }
    }

    /// Answers every request on every connection with this.
    pub(super) async fn always(answer: &'static str) -> Self {
        Self::start(move |mut caller| async move {
            while caller.head().await.is_some() {
                caller.say(answer).await;
            }
        })
        .await
    }

    /// No server listens there.
    pub(super) async fn absent() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self {
            address: listener.local_addr().unwrap(),
            seen: Arc::default(),
        }
    }

    pub(super) fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::Relaxed)
    }

    /// The heads of the requests that have come.
    pub(super) fn heads(&self) -> Vec<String> {
        self.seen.heads.lock().clone()
    }

    /// Waits until so many connections were found closed by us; a test that waits in vain hangs visibly.
    pub(super) async fn until_closed(&self, connections: usize) {
        let closed = async {
            while self.seen.closed.load(Ordering::Relaxed) < connections {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), closed)
            .await
            .expect("the connection to the origin is still open");
    }
}

impl Caller {
    /// The next request's head; `None` once we hung up.
    pub(super) async fn head(&mut self) -> Option<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match self.stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => {
                    self.seen.closed.fetch_add(1, Ordering::Relaxed);
                    return None;
                }
            }
        }
        let head = String::from_utf8(head).unwrap();
        self.seen.heads.lock().push(head.clone());
        Some(head)
    }

    /// So many bytes of a body.
    pub(super) async fn body(&mut self, length: usize) -> String {
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.unwrap();
        String::from_utf8(body).unwrap()
    }

    pub(super) async fn say(&mut self, bytes: &str) {
        // We may have hung up already, which is what some tests want.
        drop(self.stream.write_all(bytes.as_bytes()).await);
    }

    /// Says nothing more, and waits for us to hang up.
    pub(super) async fn wait(mut self) {
        let mut rest = [0; 1024];
        while matches!(self.stream.read(&mut rest).await, Ok(1..)) {}
        self.seen.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// Stays connected and never reads again.
    pub(super) async fn ignore(self) {
        std::future::pending::<()>().await;
        drop(self);
    }

    /// Closes with a reset instead of an end.
    pub(super) fn reset(self) {
        socket2::SockRef::from(&self.stream)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
    }
}
