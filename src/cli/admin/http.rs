//! One call to a listener and its answer, on a plain socket: a verb has one thing to ask and then ends.
//!
//! It says HTTP/1.0, so that an answer is never in chunks: it has a length, or lasts until the connection ends, as the
//! stream of refusals does.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

/// What came back.
pub(super) struct HttpResponse {
    pub(super) status: u16,
    pub(super) body: Box<dyn BufRead + Send>,
}

/// Sends a head and a body, and reads the head of the answer.
pub(super) fn exchange(
    address: &str,
    request: &[u8],
    patience: Duration,
) -> io::Result<HttpResponse> {
    let mut stream = connect(address)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_nodelay(true)?;
    let sent = stream.write_all(request);
    let mut reader = BufReader::new(stream);
    // Whoever closes early may have said why: that says more than a broken pipe.
    match (head(&mut reader), sent) {
        (Ok((status, length)), _) => Ok(HttpResponse {
            status,
            body: match length {
                Some(length) => Box::new(reader.take(length)),
                None => Box::new(reader),
            },
        }),
        (Err(_), Err(sent)) => Err(sent),
        (Err(error), Ok(())) => Err(error),
    }
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The status, and how long the body is where that is told.
fn head(reader: &mut impl BufRead) -> io::Result<(u16, Option<u64>)> {
    let mut head = Vec::new();
    let mut limited = reader.take(HEAD_MAX);
    while !head.ends_with(b"\r\n\r\n") && !head.ends_with(b"\n\n") {
        if limited.read_until(b'\n', &mut head)? == 0 {
            return Err(not_http());
        }
    }
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    response.parse(&head).map_err(|_| not_http())?;
    let status = response.code.ok_or_else(not_http)?;
    let length = response
        .headers
        .iter()
        .find(|field| field.name.eq_ignore_ascii_case("content-length"))
        .and_then(|field| std::str::from_utf8(field.value).ok()?.trim().parse().ok());
    Ok((status, length))
}

fn not_http() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it does not speak HTTP")
}

/// How long connecting and sending may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// Ours are a few hundred bytes.
const HEAD_MAX: u64 = 16 * 1024;
const FIELDS_MAX: usize = 64;
