//! HTTP/2 frame by frame: a client that can break every rule.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::PATIENCE;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RESET: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) const PROTOCOL_ERROR: u32 = 1;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

/// One frame.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).expect("a test's frame is short");
        let mut bytes = length.to_be_bytes()[1..].to_vec();
        bytes.extend([self.kind, self.flags]);
        bytes.extend(self.stream.to_be_bytes());
        bytes.extend(&self.payload);
        bytes
    }

    /// The last number in a GOAWAY's or a reset's payload.
    pub(crate) fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        let code = self.payload[at..at + 4].try_into().expect("four bytes");
        u32::from_be_bytes(code)
    }

    pub(crate) fn ends_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }
}

/// Any frame, as bytes.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: impl Into<Vec<u8>>) -> Vec<u8> {
    let payload = payload.into();
    Frame {
        kind,
        flags,
        stream,
        payload,
    }
    .bytes()
}

/// Fields in the plainest of HPACK's spellings.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            let length = text.len();
            if length < 127 {
                block.push(u8::try_from(length).expect("it is"));
            } else {
                block.push(127);
                let mut rest = length - 127;
                while rest >= 128 {
                    block.push(u8::try_from(rest % 128 + 128).expect("it is"));
                    rest /= 128;
                }
                block.push(u8::try_from(rest).expect("it is"));
            }
            block.extend(text.as_bytes());
        }
    }
    block
}

/// The fields of a request, and these.
pub(crate) fn asking<'f>(
    method: &'f str,
    path: &'f str,
    more: &[(&'f str, &'f str)],
) -> Vec<(&'f str, &'f str)> {
    let mut fields = vec![
        (":method", method),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
    ];
    fields.extend(more);
    fields
}

/// A GET without a body.
pub(crate) fn get(stream: u32, path: &str) -> Vec<u8> {
    request(stream, END_STREAM, &asking("GET", path, &[]))
}

/// A whole head.
pub(crate) fn request(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream, block(fields))
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Framed {
    stream: TcpStream,
}

impl Framed {
    /// Connects and says hello.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::with_settings(address, &[])
    }

    /// Connects and says this first.
    pub(crate) fn saying(address: SocketAddr, first: &[u8]) -> Self {
        let stream = TcpStream::connect(address).expect("the server accepts connections");
        stream.set_nodelay(true).expect("it is a socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("not zero");
        stream.set_write_timeout(Some(PATIENCE)).expect("not zero");
        let framed = Self { stream };
        framed.send(first);
        framed
    }

    /// Connects and says hello with these settings.
    pub(crate) fn with_settings(address: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let framed = Self::saying(address, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let payload: Vec<u8> = settings
            .iter()
            .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
            .collect();
        framed.send(frame(SETTINGS, 0, 0, payload));
        framed
    }

    pub(crate) fn send(&self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).expect("the server reads");
    }

    pub(crate) fn try_send(&self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        (&self.stream).write_all(bytes.as_ref())
    }

    /// The next frame; `None` when the server has closed.
    pub(crate) fn frame(&self) -> Option<Frame> {
        let mut head = [0; 9];
        (&self.stream).read_exact(&mut head).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).expect("it fits")];
        (&self.stream).read_exact(&mut payload).ok()?;
        let [.., a, b, c, d] = head;
        Some(Frame {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([a, b, c, d]),
            payload,
        })
    }

    /// Frames up to and with the first that is like this; all of them if none is.
    pub(crate) fn until(&self, like: impl Fn(&Frame) -> bool) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.frame() {
            let last = like(&frame);
            frames.push(frame);
            if last {
                break;
            }
        }
        frames
    }

    /// The code of the GOAWAY that ends the connection.
    pub(crate) fn goes_away(&self) -> Option<u32> {
        let frames = self.until(|_| false);
        let last = frames.iter().rfind(|frame| frame.kind == GOAWAY);
        last.map(Frame::code)
    }

    /// The code that this stream is reset with; `None` if it is answered.
    pub(crate) fn reset(&self, stream: u32) -> Option<u32> {
        let ended =
            |frame: &Frame| frame.stream == stream && (frame.kind == RESET || frame.ends_stream());
        let frames = self.until(ended);
        let last = frames.last().filter(|frame| frame.kind == RESET);
        last.map(Frame::code)
    }
}
