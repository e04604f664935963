//! A connection to a backend: a socket, and the bytes that were read and not used yet.
//!
//! It belongs to its user: the request that is being sent, then the response, then the pool. Dropped, it is closed at
//! once, so that a client that leaves releases the backend.
//!
//! Where the backend wants a PROXY header, a connection begins with it and belongs to one client: it is made for a
//! request and closed after it.

use std::cell::Cell;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use tokio::time::error::Elapsed;
use tokio_util::io::poll_read_buf;

use super::backend::{Backend, BackendAddress, RetiredFlag};
use super::error::{Error, Stage};
use crate::clock::Deadline;
use crate::config::plan::{ProxyPass, ProxyProtocolVersion};
use crate::message::{RemoteAddr, RequestRecord};
use crate::net::Stream;
use crate::tls::{Socket, TlsConnector};

/// A connection that carries one request at a time.
#[derive(Debug)]
pub(super) struct UpstreamConnection {
    pub(super) socket: Socket,
    /// Bytes that were read and not used yet.
    pub(super) read: BytesMut,
    /// How many requests it has carried.
    pub(super) requests: u64,
    /// How long the backend may stay silent. Kept from one request to the next: its timer is armed once and
    /// then only moved.
    pub(super) read_timeout: Deadline,
    /// See [`Backend::owner`].
    pub(super) owner: usize,
    /// That of its backend.
    pub(super) retired: RetiredFlag,
    read_size: usize,
}

thread_local! {
    // The buffer of the connection that became idle last. Most responses come whole and leave at once, so one
    // connection after the other reads into the same memory, and an idle one holds none.
    static BUFFER: Cell<BytesMut> = Cell::new(BytesMut::new());
}

impl UpstreamConnection {
    /// Boxed once for all the requests it carries: it moves from the pool to a request, to its response and back.
    pub(super) fn new(socket: Socket, owner: usize, retired: RetiredFlag) -> Box<Self> {
        Box::new(Self {
            socket,
            read: BytesMut::new(),
            requests: 0,
            read_timeout: Deadline::default(),
            owner,
            retired,
            read_size: SHORTEST_READ,
        })
    }

    /// Reads more; 0 is the end.
    pub(super) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.read.capacity() == 0 {
            ready!(self.socket.poll_readable(context))?;
            self.read = BUFFER.take();
        }
        // If all was taken, as much again, mostly in the same place. If some is left, little room is enough, rather than
        // move it.
        let room = self.read.capacity() - self.read.len();
        let wanted = if self.read.is_empty() { 1 } else { 4 };
        if room < self.read_size / wanted {
            self.read.reserve(self.read_size);
        }
        let read = &mut self.read;
        let count = ready!(poll_read_buf(Pin::new(&mut self.socket), context, read))?;
        if self.read.len() == self.read.capacity() {
            self.read_size = LONGEST_READ.min(self.read_size * 2);
        }
        Poll::Ready(Ok(count))
    }

    /// Prepares to read this many bytes.
    pub(super) fn expect(&mut self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(LONGEST_READ);
        self.read_size = bytes.clamp(SHORTEST_READ, LONGEST_READ);
    }

    /// Prepares it for the next request and gives its memory back; false if it cannot carry another, because more
    /// arrived than the response.
    pub(super) fn reset_for_reuse(&mut self) -> bool {
        if !self.read.is_empty() {
            return false;
        }
        let read = std::mem::take(&mut self.read);
        if self.read_size == SHORTEST_READ {
            BUFFER.set(read);
        }
        self.read_size = SHORTEST_READ;
        self.read_timeout.clear();
        true
    }
}

/// Bytes of the first read: most responses are no longer.
const SHORTEST_READ: usize = 8 * 1024;
/// Bytes of a read where responses are long: fewer system calls, and still little memory.
const LONGEST_READ: usize = 64 * 1024;

/// A socket connected to a backend, within `proxy_connect_timeout`.
pub(super) async fn socket(backend: &Backend, proxy_pass: &ProxyPass) -> Result<Socket, Error> {
    if backend.tls(proxy_pass).is_some() {
        return Box::pin(socket_with(backend, proxy_pass, &[])).await;
    }
    let tried = tokio::time::timeout(
        proxy_pass.settings.proxy_connect_timeout,
        connect(&backend.address),
    )
    .await;
    let socket = Socket::Plain(connected(tried)?);
    backend.counters.opened.fetch_add(1, Ordering::Relaxed);
    Ok(socket)
}

/// Connects for a health check: without a time limit of its own, and without being counted.
pub(super) async fn connect_for_check(
    address: &BackendAddress,
    client: Option<&Arc<TlsConnector>>,
) -> Result<Socket, Error> {
    let stream = connect(address).await.map_err(Error::Connect)?;
    match client {
        Some(client) => secure(client, stream).await,
        None => Ok(Socket::Plain(stream)),
    }
}

/// A socket connected to a backend over which `first` was sent, before the TLS handshake if there is one.
// Boxed by its callers: every other request would keep room for it.
pub(super) async fn socket_with(
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
    backend.counters.opened.fetch_add(1, Ordering::Relaxed);
    Ok(socket)
}

fn connected(tried: Result<io::Result<Stream>, Elapsed>) -> Result<Stream, Error> {
    tried
        .map_err(|_| Error::Timeout(Stage::Connect))?
        .map_err(Error::Connect)
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

/// The PROXY header of a connection for this request.
pub(super) fn proxy_header(record: &RequestRecord, version: ProxyProtocolVersion) -> Vec<u8> {
    let client = &record.connection;
    let from = match record.client().remote {
        RemoteAddr::Ip(address) => Some(address),
        RemoteAddr::Unix => None,
    };
    // The address that the client connected to as a trusted proxy reports it, else the local one.
    let reported = client
        .proxy_header()
        .filter(|proxied| record.trusted && Some(proxied.from) == from);
    let to = reported.map(|proxied| proxied.to).or(client.local);
    let ends = from.zip(to).map(|(from, to)| same_family(from, to));
    match version {
        ProxyProtocolVersion::Off => Vec::new(),
        ProxyProtocolVersion::V1 => write_v1(ends),
        ProxyProtocolVersion::V2 => write_v2(ends),
    }
}

/// Both addresses in one family: the header has room for one only.
fn same_family(from: SocketAddr, to: SocketAddr) -> (SocketAddr, SocketAddr) {
    let wide = |address: SocketAddr| match address.ip() {
        IpAddr::V4(v4) => SocketAddr::new(v4.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    };
    let narrow = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    match (narrow(from), narrow(to)) {
        (from, to) if from.is_ipv4() == to.is_ipv4() => (from, to),
        (from, to) => (wide(from), wide(to)),
    }
}

fn write_v1(ends: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    let mut line = Vec::new();
    // Writing to a vector cannot fail.
    let _written = match ends {
        Some((from, to)) => write!(
            line,
            "PROXY TCP{} {} {} {} {}\r\n",
            if from.is_ipv4() { 4 } else { 6 },
            from.ip(),
            to.ip(),
            from.port(),
            to.port()
        ),
        None => write!(line, "PROXY UNKNOWN\r\n"),
    };
    line
}

fn write_v2(ends: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21".to_vec();
    let Some((from, to)) = ends else {
        header.extend([0, 0, 0]);
        return header;
    };
    let (family, length) = if from.is_ipv4() {
        (0x11, 12)
    } else {
        (0x21, 36)
    };
    header.extend([family, 0, length]);
    for address in [from.ip(), to.ip()] {
        match address {
            IpAddr::V4(v4) => header.extend(v4.octets()),
            IpAddr::V6(v6) => header.extend(v6.octets()),
        }
    }
    for port in [from.port(), to.port()] {
        header.extend(port.to_be_bytes());
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Millis;
    use crate::message::testing::{plan, request_in};
    use crate::message::{ClientConnection, ProxyHeader};

    fn header(client: ClientConnection, version: ProxyProtocolVersion) -> Vec<u8> {
        proxy_header(&request_in(plan(), client, "GET", "/", &[]), version)
    }

    fn client(from: &str, to: &str) -> ClientConnection {
        let from = RemoteAddr::Ip(from.parse().unwrap());
        ClientConnection::new(from, to.parse().ok(), 1, Millis(0))
    }

    fn line(from: &str, to: &str) -> String {
        String::from_utf8(header(client(from, to), ProxyProtocolVersion::V1)).unwrap()
    }

    #[test]
    fn version_1_is_a_line_with_addresses_of_one_family() {
        assert_eq!(
            line("192.0.2.7:50000", "127.0.0.1:8080"),
            "PROXY TCP4 192.0.2.7 127.0.0.1 50000 8080\r\n"
        );
        assert_eq!(
            line("[2001:db8::7]:1", "[::1]:2"),
            "PROXY TCP6 2001:db8::7 ::1 1 2\r\n"
        );
        assert_eq!(
            line("192.0.2.7:1", "[::1]:2"),
            "PROXY TCP6 ::ffff:192.0.2.7 ::1 1 2\r\n"
        );
        assert_eq!(
            line("192.0.2.7:1", "[::ffff:127.0.0.1]:2"),
            "PROXY TCP4 192.0.2.7 127.0.0.1 1 2\r\n"
        );
        let unix = ClientConnection::new(RemoteAddr::Unix, None, 1, Millis(0));
        assert_eq!(header(unix, ProxyProtocolVersion::V1), b"PROXY UNKNOWN\r\n");
    }

    #[test]
    fn version_2_is_binary() {
        assert_eq!(
            header(
                client("192.0.2.7:258", "127.0.0.1:8080"),
                ProxyProtocolVersion::V2
            ),
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\x7f\0\0\x01\x01\x02\x1f\x90"
        );
        let v6 = header(
            client("[2001:db8::7]:1", "[::1]:2"),
            ProxyProtocolVersion::V2,
        );
        assert_eq!((v6.len(), &v6[12..16]), (52, &b"\x21\x21\0\x24"[..]));
        let unix = ClientConnection::new(RemoteAddr::Unix, None, 1, Millis(0));
        assert_eq!(
            header(unix, ProxyProtocolVersion::V2),
            b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\0"
        );
    }

    #[test]
    fn the_header_of_an_untrusted_proxy_is_not_passed_on() {
        let client = client("192.0.2.7:50000", "127.0.0.1:8080");
        client.set_proxy_header(ProxyHeader {
            from: "1.1.1.1:1".parse().unwrap(),
            to: "2.2.2.2:2".parse().unwrap(),
            tlvs: Box::default(),
        });
        assert_eq!(
            header(client, ProxyProtocolVersion::V1),
            b"PROXY TCP4 192.0.2.7 127.0.0.1 50000 8080\r\n"
        );
    }
}
