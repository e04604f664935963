//! A connection to a backend: made within a time limit, spoken by hyper, closed the moment it is let go.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;

use super::backend::{Address, Backend};
use super::error::{Error, Stage};
use super::sending::Sending;
use super::wire::{Socket, State, Wire};

/// A connection that carries one request at a time.
#[derive(Debug)]
pub(super) struct Connection {
    sender: SendRequest<Sending>,
    wire: Arc<State>,
    task: AbortHandle,
    requests: u64,
}

impl Connection {
    /// Connects to a backend.
    pub(super) async fn open(backend: &Backend, timeout: Duration) -> Result<Self, Error> {
        let socket = tokio::time::timeout(timeout, connect(&backend.address))
            .await
            .map_err(|_| Error::Timeout(Stage::Connect))?
            .map_err(Error::Connect)?;
        backend.count_opened();
        let (wire, state) = Wire::new(socket);
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(MAX_BUFFER)
            .max_header_size(MAX_BUFFER)
            .handshake(TokioIo::new(wire))
            .await
            .map_err(Error::Broken)?;
        let task = tokio::spawn(async move {
            // Whoever waits for the answer is told of the failure; nobody else needs to know.
            drop(connection.await);
        });
        Ok(Self {
            sender,
            wire: state,
            task: task.abort_handle(),
            requests: 0,
        })
    }

    /// Sends a request. It comes back with the failure if nothing of it was written.
    pub(super) fn send(
        &mut self,
        request: Request<Sending>,
        send_timeout: Duration,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Sending>>>> {
        self.requests += 1;
        self.wire.set_send_timeout(send_timeout);
        self.sender.try_send_request(request)
    }

    /// Whether it can carry a request now.
    pub(super) fn is_ready(&self) -> bool {
        self.sender.is_ready() && !self.sender.is_closed() && !self.wire.is_deaf()
    }

    /// Whether it can ever carry another one.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed() || self.wire.is_deaf()
    }

    /// Whether the backend took too long to accept what was sent.
    pub(super) fn has_stalled(&self) -> bool {
        self.wire.has_stalled()
    }

    /// How many requests it has carried.
    pub(super) fn requests(&self) -> u64 {
        self.requests
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // hyper waits for the backend's next byte before it finds out that nobody reads its answer any more;
        // a client that has left must release the backend at once.
        self.task.abort();
    }
}

async fn connect(address: &Address) -> io::Result<Socket> {
    match address {
        Address::Tcp(address) => {
            let socket = TcpStream::connect(address).await?;
            socket.set_nodelay(true)?;
            Ok(Socket::Tcp(socket))
        }
        Address::Unix(path) => Ok(Socket::Unix(UnixStream::connect(path).await?)),
    }
}

/// Bytes of an answer's head, and of its body held for a client that reads slowly. nginx's default for a head is 4k
/// or 8k; a backend that needs more than this is broken. The number of fields stays at hyper's own limit of
/// 100: asking for more would make it allocate for every answer.
const MAX_BUFFER: usize = 64 * 1024;
