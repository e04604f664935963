//! A client that sends exactly the bytes it is given, from the source address it is given.

use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::ops::Deref;
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

use super::PATIENCE;
use super::message::{Head, Reader};

/// One connection.
#[derive(Debug)]
pub(crate) struct Client {
    reader: Reader<TcpStream>,
}

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    pub(crate) head: Head,
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    /// Whether the body came to its end.
    pub(crate) complete: bool,
}

impl Response {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Deref for Response {
    type Target = Head;

    fn deref(&self) -> &Head {
        &self.head
    }
}

/// One GET on a connection of its own.
pub(crate) fn get(address: SocketAddr, path: &str) -> Response {
    get_from(LOCALHOST, address, path)
}

/// One GET from a source address, on a connection of its own.
pub(crate) fn get_from(source: impl Into<IpAddr>, address: SocketAddr, path: &str) -> Response {
    let mut client = Client::connect_from(source, address);
    client.get(path);
    client.response()
}

/// Several GETs in one write on one connection: nothing of the machine comes between them but the answers.
pub(crate) fn pipelined<const N: usize>(address: SocketAddr, paths: [&str; N]) -> [Response; N] {
    let mut client = Client::connect(address);
    client.send(paths.map(asking).concat());
    paths.map(|_| client.response())
}

fn asking(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let source = match address {
            SocketAddr::V4(_) => LOCALHOST.into(),
            SocketAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
        };
        Self::connect_from(source, address)
    }

    /// A connection from this source address.
    pub(crate) fn connect_from(source: impl Into<IpAddr>, address: SocketAddr) -> Self {
        Self::try_connect_from(source, address).expect("the server accepts connections")
    }

    pub(crate) fn try_connect(address: SocketAddr) -> io::Result<Self> {
        Self::try_connect_from(LOCALHOST, address)
    }

    fn try_connect_from(source: impl Into<IpAddr>, address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.bind(&SocketAddr::new(source.into(), 0).into())?;
        socket.connect_timeout(&address.into(), PATIENCE)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            reader: Reader::new(socket.into()),
        })
    }

    pub(crate) fn try_send(&self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream().write_all(bytes.as_ref())
    }

    pub(crate) fn send(&self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).expect("the server reads");
    }

    /// Sends a GET without waiting for the answer.
    pub(crate) fn get(&self, path: &str) {
        self.send(asking(path));
    }

    /// The next final or interim answer to a GET.
    pub(crate) fn response(&mut self) -> Response {
        self.try_response().expect("an answer")
    }

    pub(crate) fn response_to_head(&mut self) -> Response {
        self.read(true).expect("an answer")
    }

    pub(crate) fn try_response(&mut self) -> io::Result<Response> {
        self.read(false)
    }

    /// The head of the next answer; its body stays unread.
    pub(crate) fn head(&mut self) -> Head {
        self.reader.head().expect("a head").expect("an answer")
    }

    /// At most `most` bytes of a body whose head was read with [`Client::head`].
    pub(crate) fn some(&mut self, most: usize) -> Vec<u8> {
        self.try_some(most).expect("more of the body")
    }

    pub(crate) fn try_some(&mut self, most: usize) -> io::Result<Vec<u8>> {
        self.reader.some(most)
    }

    /// Whether the server closes without another byte.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.reader.some(1) {
            Ok(bytes) => bytes.is_empty(),
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    /// Whether nothing comes and nothing closes for this long.
    pub(crate) fn is_quiet(&mut self, during: Duration) -> bool {
        self.set_read_timeout(during);
        let quiet = self.reader.some(1).is_err_and(|error| {
            matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
        });
        self.set_read_timeout(PATIENCE);
        quiet
    }

    /// Closes our sending side.
    pub(crate) fn finish_sending(&self) {
        self.stream().shutdown(Shutdown::Write).expect("it is open");
    }

    /// Closes our sending side, if the server has not closed all of it.
    pub(crate) fn try_finish_sending(&self) {
        self.stream().shutdown(Shutdown::Write).ok();
    }

    /// Closes with a reset instead of an orderly end.
    pub(crate) fn reset(self) {
        SockRef::from(self.stream())
            .set_linger(Some(Duration::ZERO))
            .expect("it is a socket");
    }

    /// Keeps the kernel from taking in an answer on our behalf.
    pub(crate) fn with_small_receive_buffer(self) -> Self {
        SockRef::from(self.stream())
            .set_recv_buffer_size(16 * 1024)
            .expect("it is a socket");
        self
    }

    pub(crate) fn set_write_timeout(&self, timeout: Duration) {
        self.stream()
            .set_write_timeout(Some(timeout))
            .expect("not zero");
    }

    fn set_read_timeout(&self, timeout: Duration) {
        self.stream()
            .set_read_timeout(Some(timeout))
            .expect("not zero");
    }

    fn stream(&self) -> &TcpStream {
        self.reader.source()
    }

    fn read(&mut self, to_head: bool) -> io::Result<Response> {
        let head = self.reader.head()?.ok_or(ErrorKind::UnexpectedEof)?;
        let status = head
            .word(1)
            .parse()
            .map_err(|_| io::Error::new(ErrorKind::InvalidData, head.line.clone()))?;
        let bodyless = to_head || status < 200 || status == 204 || status == 304;
        let mut body = Vec::new();
        let mut take = |piece: &[u8]| body.extend_from_slice(piece);
        let outcome = match (bodyless, head.is_chunked(), head.content_length()) {
            (true, ..) => Ok(Vec::new()),
            (_, true, _) => self.reader.chunked(&mut take),
            (_, _, Some(length)) => self.reader.exactly(length, &mut take).map(|()| Vec::new()),
            _ => self.until_close(&mut take).map(|()| Vec::new()),
        };
        let cut = |error: &io::Error| {
            matches!(
                error.kind(),
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
            )
        };
        let (complete, trailers) = match outcome {
            Ok(trailers) => (true, trailers),
            Err(error) if cut(&error) => (false, Vec::new()),
            Err(error) => return Err(error),
        };
        Ok(Response {
            head,
            status,
            body,
            trailers,
            complete,
        })
    }

    fn until_close(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        loop {
            let piece = self.reader.some(usize::MAX)?;
            if piece.is_empty() {
                return Ok(());
            }
            take(&piece);
        }
    }
}

const LOCALHOST: Ipv4Addr = Ipv4Addr::LOCALHOST;
