//! A connection to a backend: a socket, and what was read from it and not used yet.
//!
//! It belongs to whoever uses it: the request that is being sent, then its answer, then the pool. Let go, it is closed
//! on the spot; a client that has left releases the backend at once.
//!
//! A connection to a backend, made within a time limit: with its handshake, where it is inside TLS.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncWrite as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use tokio::time::error::Elapsed;
use tokio_util::io::poll_read_buf;

use super::backend::{Backend, BackendAddress, RetiredFlag};
use super::error::{Error, Stage};
use crate::clock::Deadline;
use crate::config::plan::ProxyPass;
use crate::net::Stream;
use crate::tls::{Socket, TlsConnector};

/// A connection that carries one request at a time.
#[derive(Debug)]
pub(super) struct UpstreamConnection {
    socket: Socket,
    /// What was read and not used yet.
    pub(super) read: BytesMut,
    /// How many requests it has carried.
    pub(super) requests: u64,
    /// How long the backend may stay silent. Kept from one request to the next: its timer is armed once and
    /// then only moved.
    pub(super) patience: Deadline,
    /// Who may use it; see [`Backend::owner`](super::Backend::owner).
    pub(super) owner: usize,
    /// How long its backend belongs to those that are asked.
    pub(super) tenure: RetiredFlag,
    reach: usize,
}

thread_local! {
    // The buffer of the connection that went idle last. Answers mostly come whole and leave at once, so that one
    // connection after the other reads into the same memory, and none of them holds any while it waits.
    static SPARE: Cell<BytesMut> = Cell::new(BytesMut::new());
}

impl UpstreamConnection {
    /// Boxed once for all the requests it carries: it is handed from the pool to a request, to its answer and back.
    pub(super) fn new(socket: Socket, owner: usize, tenure: RetiredFlag) -> Box<Self> {
        Box::new(Self {
            socket,
            read: BytesMut::new(),
            requests: 0,
            patience: Deadline::default(),
            owner,
            tenure,
            reach: SHORTEST,
        })
    }

    /// Reads more; 0 is the end.
    pub(super) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.read.capacity() == 0 {
            ready!(self.socket.poll_readable(context))?;
            self.read = SPARE.take();
        }
        // All of it was taken: as much again, mostly in the same place. Some is left: what little room there
        // is will do, rather than move it.
        let room = self.read.capacity() - self.read.len();
        let wanted = if self.read.is_empty() { 1 } else { 4 };
        if room < self.reach / wanted {
            self.read.reserve(self.reach);
        }
        let read = &mut self.read;
        let count = ready!(poll_read_buf(Pin::new(&mut self.socket), context, read))?;
        if self.read.len() == self.read.capacity() {
            self.reach = LONGEST.min(self.reach * 2);
        }
        Poll::Ready(Ok(count))
    }

    pub(super) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    pub(super) fn poll_write_vectored(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, pieces)
    }

    pub(super) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    /// Ends what we say; the backend may go on.
    pub(super) fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }

    /// Prepares for this many bytes more.
    pub(super) fn expect(&mut self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(LONGEST);
        self.reach = bytes.clamp(SHORTEST, LONGEST);
    }

    /// Makes it ready to wait for its next request and gives its memory back; false if it cannot carry another,
    /// because more came than was asked for.
    pub(super) fn rest(&mut self) -> bool {
        if !self.read.is_empty() {
            return false;
        }
        let read = std::mem::take(&mut self.read);
        if self.reach == SHORTEST {
            SPARE.set(read);
        }
        self.reach = SHORTEST;
        self.patience.clear();
        true
    }

    /// Whether nothing has come that nobody asked for, not even its end. Costs a system call only where the
    /// event loop has seen something.
    pub(super) fn is_quiet(&mut self) -> bool {
        self.socket.is_quiet()
    }
}

/// What is read at once, first: most answers are no longer.
const SHORTEST: usize = 8 * 1024;
/// What is read at once where answers are long: fewer system calls, and still no memory to speak of.
const LONGEST: usize = 64 * 1024;

/// Connects to a backend.
pub(super) async fn open(
    backend: &Backend,
    proxy_pass: &ProxyPass,
) -> Result<Box<UpstreamConnection>, Error> {
    let socket = socket(backend, proxy_pass).await?;
    Ok(wire(socket, backend, proxy_pass))
}

/// The same, for those who speak over it in their own way.
pub(super) async fn socket(backend: &Backend, proxy_pass: &ProxyPass) -> Result<Socket, Error> {
    if backend.tls(proxy_pass).is_some() {
        return Box::pin(socket_with(backend, proxy_pass, &[])).await;
    }
    let tried = tokio::time::timeout(
        proxy_pass.settings.proxy_connect_timeout,
        connect(&backend.address),
    )
    .await;
    Ok(opened(backend, Socket::Plain(connected(tried)?)))
}

/// Connects for somebody who keeps the time themselves, and is not counted.
pub(super) async fn reach(
    address: &BackendAddress,
    client: Option<&Arc<TlsConnector>>,
) -> Result<Socket, Error> {
    let stream = connect(address).await.map_err(Error::Connect)?;
    match client {
        Some(client) => secure(client, stream).await,
        None => Ok(Socket::Plain(stream)),
    }
}

/// Connects to a backend, says `first`, and agrees with it if that is to be inside TLS.
// Apart, and boxed by whoever needs it: every other request would keep room for it.
pub(super) async fn open_with(
    backend: &Backend,
    proxy_pass: &ProxyPass,
    first: &[u8],
) -> Result<Box<UpstreamConnection>, Error> {
    let socket = socket_with(backend, proxy_pass, first).await?;
    Ok(wire(socket, backend, proxy_pass))
}

async fn socket_with(
    backend: &Backend,
    proxy_pass: &ProxyPass,
    first: &[u8],
) -> Result<Socket, Error> {
    let began = Instant::now();
    let timeout = proxy_pass.settings.proxy_connect_timeout;
    let connecting = async {
        let mut stream = connect(&backend.address).await?;
        stream.write_all(first).await?;
        Ok(stream)
    };
    let stream = connected(tokio::time::timeout(timeout, connecting).await)?;
    let socket = match backend.tls(proxy_pass) {
        Some(client) => {
            let left = timeout.saturating_sub(began.elapsed());
            tokio::time::timeout(left, secure(client, stream))
                .await
                .map_err(|_| Error::Timeout(Stage::Handshake))??
        }
        None => Socket::Plain(stream),
    };
    Ok(opened(backend, socket))
}

fn wire(socket: Socket, backend: &Backend, proxy_pass: &ProxyPass) -> Box<UpstreamConnection> {
    UpstreamConnection::new(socket, backend.owner(proxy_pass), backend.tenure.clone())
}

fn connected(tried: Result<io::Result<Stream>, Elapsed>) -> Result<Stream, Error> {
    tried
        .map_err(|_| Error::Timeout(Stage::Connect))?
        .map_err(Error::Connect)
}

fn opened(backend: &Backend, socket: Socket) -> Socket {
    backend.counts.count_opened();
    socket
}

async fn connect(address: &BackendAddress) -> io::Result<Stream> {
    match address {
        BackendAddress::Tcp(address) => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(Stream::Tcp(stream))
        }
        BackendAddress::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path).await?)),
    }
}

async fn secure(client: &Arc<TlsConnector>, stream: Stream) -> Result<Socket, Error> {
    client
        .connect(stream)
        .await
        .map_err(|source| Error::Handshake {
            name: client.name().into(),
            source,
        })
}
