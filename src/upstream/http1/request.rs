//! A request on its way out.
//!
//! A backend may answer a large upload early and close its side. The next write fails then, and the answer is already
//! on its way. So a write that fails because nobody listens does not end the exchange: what follows is
//! thrown away, and whether there is an answer is for reading to find out.
//!
//! What a request looks like on the wire. Plain copying: nothing is formatted, nothing allocated.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderName, header};
use http_body::{Body, Frame};

use crate::clock::Deadline;
use crate::message::RequestBody;
use crate::message::headers::{belongs_to_connection, speaks_for_client};
use crate::upstream::connection::UpstreamConnection;
use crate::upstream::error::{Error, Stage};

/// A request's body, perhaps with its first piece in hand already.
#[derive(Debug)]
pub(in crate::upstream) struct PendingBody {
    upload: RequestBody,
    first: Bytes,
}

/// A request that is being written.
#[derive(Debug)]
pub(in crate::upstream) struct RequestWriter {
    // What waits to be written, in this order: the head or a chunk's line, a piece of the body, the end of its line.
    front: Vec<u8>,
    passed: usize,
    piece: Bytes,
    back: &'static [u8],
    upload: RequestBody,
    coding: RequestFraming,
    progress: WriteProgress,
    // Something of it has left.
    begun: bool,
    // The backend takes nothing more.
    deaf: bool,
    deadline: Deadline,
}

/// How the end of a request's body is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::upstream) enum RequestFraming {
    Chunked,
    // hyper holds a body to the length it announced: what comes is as long as we said.
    Plain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteProgress {
    /// More of the body is to come.
    Body,
    /// What waits is the last of it.
    Last,
    /// All has left.
    Over,
}

thread_local! {
    // The room a head is written in, for one request after the other.
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl PendingBody {
    pub(in crate::upstream) fn new(upload: RequestBody) -> Self {
        Self {
            upload,
            first: Bytes::new(),
        }
    }

    /// A body, and the piece of it that is in hand already.
    pub(in crate::upstream) fn from_parts(upload: RequestBody, first: Bytes) -> Self {
        Self { upload, first }
    }

    /// What [`PendingBody::from_parts`] was given.
    pub(in crate::upstream) fn into_parts(self) -> (RequestBody, Bytes) {
        (self.upload, self.first)
    }

    /// The body but for that piece.
    pub(in crate::upstream) fn upload(&mut self) -> &mut RequestBody {
        &mut self.upload
    }

    /// No body.
    pub(in crate::upstream) fn none() -> Self {
        Self::new(RequestBody::none())
    }

    pub(in crate::upstream) fn is_none(&self) -> bool {
        self.upload.is_none()
    }

    /// The same once more, if all of it lies ready.
    pub(in crate::upstream) fn again(&self) -> Option<Self> {
        let upload = self.upload.again()?;
        Some(Self::from_parts(upload, self.first.clone()))
    }

    /// Whether there is a second time to it.
    pub(in crate::upstream) fn is_repeatable(&self) -> bool {
        self.upload.is_repeatable()
    }
}

impl RequestWriter {
    pub(in crate::upstream) fn new(
        head: &[u8],
        coding: RequestFraming,
        cargo: PendingBody,
    ) -> Self {
        let mut front = ROOM.take();
        front.extend_from_slice(head);
        let mut sending = Self {
            front,
            passed: 0,
            piece: Bytes::new(),
            back: b"",
            progress: if cargo.is_none() {
                WriteProgress::Last
            } else {
                WriteProgress::Body
            },
            upload: cargo.upload,
            coding,
            begun: false,
            deaf: false,
            deadline: Deadline::default(),
        };
        if !cargo.first.is_empty() {
            sending.add(cargo.first);
        }
        sending
    }

    /// Writes on; ready when all has left, or cannot leave any more.
    pub(in crate::upstream) fn poll(
        &mut self,
        wire: &mut UpstreamConnection,
        timeout: Duration,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        while self.progress != WriteProgress::Over {
            // A head that waits leaves with what comes first of the body, if that is there.
            let free = self.piece.is_empty() && self.back.is_empty();
            let filled = if free && self.progress == WriteProgress::Body {
                self.poll_fill(context)?
            } else {
                Poll::Ready(())
            };
            if self.waits() {
                ready!(self.poll_write(wire, timeout, context))?;
            } else if self.progress == WriteProgress::Last {
                self.progress = WriteProgress::Over;
                self.front.clear();
                self.passed = 0;
                ROOM.set(std::mem::take(&mut self.front));
            } else {
                ready!(filled);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Whether there is nothing more to write.
    pub(in crate::upstream) fn is_over(&self) -> bool {
        self.progress == WriteProgress::Over
    }

    /// Whether the backend has got all of it.
    pub(in crate::upstream) fn has_arrived(&self) -> bool {
        self.is_over() && !self.deaf
    }

    /// What was to be sent, if nothing of it has left and all of it is still here.
    pub(in crate::upstream) fn into_unsent(self) -> Option<PendingBody> {
        let ended = self.coding == RequestFraming::Chunked && self.progress != WriteProgress::Body;
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
        if self.coding == RequestFraming::Chunked {
            size(data.len(), &mut self.front);
            self.back = b"\r\n";
        } else if self.upload.is_end_stream() {
            self.progress = WriteProgress::Last;
        }
        self.piece = data;
    }

    fn finish(&mut self, trailers: Option<&HeaderMap>) {
        if self.coding == RequestFraming::Chunked {
            end(trailers, &mut self.front);
        }
        self.progress = WriteProgress::Last;
    }

    fn waits(&self) -> bool {
        self.passed < self.front.len() || !self.piece.is_empty() || !self.back.is_empty()
    }

    fn poll_write(
        &mut self,
        wire: &mut UpstreamConnection,
        timeout: Duration,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let front = &self.front[self.passed..];
        let written = if self.deaf {
            Poll::Ready(Ok(usize::MAX))
        } else if self.piece.is_empty() && self.back.is_empty() {
            wire.poll_write(context, front)
        } else {
            let all = [front, &self.piece, self.back].map(IoSlice::new);
            wire.poll_write_vectored(context, &all)
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
            Poll::Ready(Err(error)) if is_hangup(&error) && self.begun => self.deaf = true,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(Error::Broken(error))),
        }
        Poll::Ready(Ok(()))
    }

    /// So much has left.
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
pub(super) fn size(length: usize, out: &mut Vec<u8>) {
    let digits = length.checked_ilog(16).unwrap_or_default();
    for digit in (0..=digits).rev() {
        out.push(b"0123456789abcdef"[length >> (4 * digit) & 0xf]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the last chunk and what follows it.
pub(super) fn end(trailers: Option<&HeaderMap>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.into_iter().flatten() {
        if may_trail(name) {
            field(name, value.as_bytes(), out);
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn field(name: &HeaderName, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Whether a field may come after the body. Not one that says how to read the message, whom it is for or who
/// sent it: a backend that takes trailers for more of the head would believe the client what only we may say.
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
    !NEVER.contains(name) && !speaks_for_client(name) && !belongs_to_connection(name)
}
