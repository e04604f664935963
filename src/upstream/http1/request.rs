//! A request on its way to a backend over HTTP/1.
//!
//! A backend may respond to a large upload early and close its side: the next write fails, and the response is already
//! on its way. So a write that fails because the peer has closed does not end the exchange. The rest of the body is
//! discarded, and reading shows whether there is a response.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderName, header};
use http_body::{Body, Frame};
use tokio::io::AsyncWrite as _;

use crate::clock::Deadline;
use crate::message::RequestBody;
use crate::message::headers::{belongs_to_connection, describes_client};
use crate::upstream::connection::UpstreamConnection;
use crate::upstream::error::{Error, Stage};

/// The body of a request that has to be sent.
#[derive(Debug)]
pub(in crate::upstream) struct PendingBody {
    pub(in crate::upstream) upload: RequestBody,
    /// A piece that has been taken out of it already.
    pub(in crate::upstream) first: Bytes,
}

/// A request that is being written.
#[derive(Debug)]
pub(in crate::upstream) struct RequestWriter {
    // To be written, in this order: the head or a chunk's size line, a piece of the body, the end of the chunk.
    front: Vec<u8>,
    passed: usize,
    piece: Bytes,
    back: &'static [u8],
    upload: RequestBody,
    // If it is not, the body has the announced length: hyper makes sure of that.
    chunked: bool,
    progress: WriteProgress,
    // Some bytes were written.
    begun: bool,
    // The backend reads no more.
    closed: bool,
    deadline: Deadline,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteProgress {
    /// More of the body is to be fetched.
    Body,
    /// The last of it is to be written.
    Last,
    /// All was written.
    Over,
}

thread_local! {
    // A buffer for the head, used by one request after the other.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl PendingBody {
    pub(in crate::upstream) fn new(upload: RequestBody) -> Self {
        Self {
            upload,
            first: Bytes::new(),
        }
    }

    /// No body.
    pub(in crate::upstream) fn none() -> Self {
        Self::new(RequestBody::none())
    }

    /// A copy, if all of it is in memory or on disk.
    pub(in crate::upstream) fn again(&self) -> Option<Self> {
        Some(Self {
            upload: self.upload.again()?,
            first: self.first.clone(),
        })
    }
}

impl RequestWriter {
    pub(in crate::upstream) fn new(head: &[u8], chunked: bool, body: PendingBody) -> Self {
        let mut front = BUFFER.take();
        front.extend_from_slice(head);
        let mut writer = Self {
            front,
            passed: 0,
            piece: Bytes::new(),
            back: b"",
            progress: match body.upload.is_none() {
                true => WriteProgress::Last,
                false => WriteProgress::Body,
            },
            upload: body.upload,
            chunked,
            begun: false,
            closed: false,
            deadline: Deadline::default(),
        };
        if !body.first.is_empty() {
            writer.add(body.first);
        }
        writer
    }

    /// Writes on; ready when all was written, or the backend reads no more.
    pub(in crate::upstream) fn poll(
        &mut self,
        connection: &mut UpstreamConnection,
        timeout: Duration,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        while self.progress != WriteProgress::Over {
            // The head is written together with the beginning of the body, if that is there.
            let free = self.piece.is_empty() && self.back.is_empty();
            let filled = if free && self.progress == WriteProgress::Body {
                self.poll_fill(context)?
            } else {
                Poll::Ready(())
            };
            if self.has_bytes() {
                ready!(self.poll_write(connection, timeout, context))?;
            } else if self.progress == WriteProgress::Last {
                self.progress = WriteProgress::Over;
                self.front.clear();
                self.passed = 0;
                BUFFER.set(std::mem::take(&mut self.front));
            } else {
                ready!(filled);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Whether nothing is left to write.
    pub(in crate::upstream) fn is_over(&self) -> bool {
        self.progress == WriteProgress::Over
    }

    /// Whether all of it was written, as far as is known.
    pub(in crate::upstream) fn has_arrived(&self) -> bool {
        self.is_over() && !self.closed
    }

    /// The body, if nothing of the request was written and all of it is still here.
    pub(in crate::upstream) fn into_unsent(self) -> Option<PendingBody> {
        let ended = self.chunked && self.progress != WriteProgress::Body;
        (!self.begun && !ended).then_some(PendingBody {
            upload: self.upload,
            first: self.piece,
        })
    }

    /// Fetches the next piece of the body.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Result<Poll<()>, Error> {
        let Poll::Ready(frame) = Pin::new(&mut self.upload).poll_frame(context) else {
            return Ok(Poll::Pending);
        };
        match frame
            .transpose()
            .map_err(Error::Client)?
            .map(Frame::into_data)
        {
            Some(Ok(data)) if data.is_empty() => {}
            Some(Ok(data)) => self.add(data),
            Some(Err(frame)) => self.finish(frame.into_trailers().ok().as_ref()),
            None => self.finish(None),
        }
        Ok(Poll::Ready(()))
    }

    fn add(&mut self, data: Bytes) {
        if self.chunked {
            write_chunk_size(data.len(), &mut self.front);
            self.back = b"\r\n";
        } else if self.upload.is_end_stream() {
            self.progress = WriteProgress::Last;
        }
        self.piece = data;
    }

    fn finish(&mut self, trailers: Option<&HeaderMap>) {
        if self.chunked {
            write_last_chunk(trailers, &mut self.front);
        }
        self.progress = WriteProgress::Last;
    }

    fn has_bytes(&self) -> bool {
        self.passed < self.front.len() || !self.piece.is_empty() || !self.back.is_empty()
    }

    fn poll_write(
        &mut self,
        connection: &mut UpstreamConnection,
        timeout: Duration,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let front = &self.front[self.passed..];
        let written = if self.closed {
            Poll::Ready(Ok(usize::MAX))
        } else if self.piece.is_empty() && self.back.is_empty() {
            Pin::new(&mut connection.socket).poll_write(context, front)
        } else {
            let all = [front, &self.piece, self.back].map(IoSlice::new);
            Pin::new(&mut connection.socket).poll_write_vectored(context, &all)
        };
        match written {
            Poll::Pending => {
                self.deadline.start(timeout);
                ready!(self.deadline.poll_passed(context));
                return Poll::Ready(Err(Error::Timeout(Stage::Send)));
            }
            Poll::Ready(Ok(0)) => {
                return Poll::Ready(Err(Error::Broken(io::ErrorKind::WriteZero.into())));
            }
            Poll::Ready(Ok(written)) => {
                self.deadline.clear();
                self.begun = true;
                self.pass(written);
            }
            Poll::Ready(Err(error)) if is_hangup(&error) && self.begun => self.closed = true,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(Error::Broken(error))),
        }
        Poll::Ready(Ok(()))
    }

    /// So many bytes were written.
    fn pass(&mut self, mut written: usize) {
        let front = (self.front.len() - self.passed).min(written);
        self.passed += front;
        written -= front;
        if self.passed == self.front.len() {
            self.front.clear();
            self.passed = 0;
        }
        let piece = self.piece.len().min(written);
        self.piece.advance(piece);
        if self.piece.is_empty() {
            self.piece = Bytes::new();
        }
        let back = self.back.len().min(written - piece);
        self.back = &self.back[back..];
    }
}

fn is_hangup(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

/// Writes the line before a chunk of this length.
pub(super) fn write_chunk_size(length: usize, out: &mut Vec<u8>) {
    let digits = length.checked_ilog(16).unwrap_or_default();
    for digit in (0..=digits).rev() {
        out.push(b"0123456789abcdef"[length >> (4 * digit) & 0xf]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the last chunk and the trailers.
pub(super) fn write_last_chunk(trailers: Option<&HeaderMap>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.into_iter().flatten() {
        if may_trail(name) {
            out.extend_from_slice(name.as_str().as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Whether a field may be a trailer. Not one about framing, routing or the client's identity: a backend that treats
/// trailers as headers would trust the client with what only a proxy may say.
pub(in crate::upstream) fn may_trail(name: &HeaderName) -> bool {
    const NEVER: [HeaderName; 12] = [
        header::AUTHORIZATION,
        header::CACHE_CONTROL,
        header::CONTENT_ENCODING,
        header::CONTENT_LENGTH,
        header::CONTENT_RANGE,
        header::CONTENT_TYPE,
        header::COOKIE,
        header::EXPECT,
        header::HOST,
        header::MAX_FORWARDS,
        header::TRAILER,
        header::VIA,
    ];
    !NEVER.contains(name) && !describes_client(name) && !belongs_to_connection(name)
}
