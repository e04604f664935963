//! An answer's body, taken off what was read: as slices of it, never as copies.

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::SizeHint;

use super::chunked::ChunkDecoder;
use crate::message::chunks::MalformedChunk;

/// What is left of a body.
#[derive(Debug)]
pub(in crate::upstream) enum BodyFraming {
    Chunked(ChunkDecoder),
    /// So many bytes.
    Length(u64),
    /// All that comes.
    UntilClose,
}

/// What comes next in a body.
#[derive(Debug)]
pub(in crate::upstream) enum BodyChunk {
    Data(Bytes),
    /// The end, with what came after the body.
    End(Option<HeaderMap>),
}

impl BodyFraming {
    /// No body.
    pub(in crate::upstream) fn nothing() -> Self {
        Self::Length(0)
    }

    pub(in crate::upstream) fn chunked() -> Self {
        Self::Chunked(ChunkDecoder::default())
    }

    /// The next piece, off the front of what was read; `None` if more has to be read first.
    pub(in crate::upstream) fn next(
        &mut self,
        read: &mut BytesMut,
    ) -> Result<Option<BodyChunk>, MalformedChunk> {
        Ok(match self {
            Self::Chunked(chunked) => return chunked.next(read),
            Self::Length(0) => Some(BodyChunk::End(None)),
            Self::Length(_) | Self::UntilClose if read.is_empty() => None,
            Self::Length(left) => Some(BodyChunk::Data(take(left, read))),
            Self::UntilClose => Some(BodyChunk::Data(read.split().freeze())),
        })
    }

    /// The end, if nothing but it comes next and it is there already.
    pub(in crate::upstream) fn end(&mut self, read: &mut BytesMut) -> Option<Option<HeaderMap>> {
        match self {
            Self::Chunked(chunked) => chunked.end(read),
            Self::Length(left) => (*left == 0).then_some(None),
            Self::UntilClose => None,
        }
    }

    /// Whether so many bytes are enough for all that is left, and that is known.
    pub(in crate::upstream) fn is_all_in(&self, bytes: usize) -> bool {
        matches!(self, Self::Length(left) if *left <= bytes as u64)
    }

    /// All that is left, if its length is known and all of it has been read.
    pub(in crate::upstream) fn take_all(&mut self, read: &mut BytesMut) -> Option<Bytes> {
        match self {
            Self::Length(left) if *left <= read.len() as u64 => Some(take(left, read)),
            _ => None,
        }
    }

    /// Whether the end of the connection is its end.
    pub(in crate::upstream) fn ends_with_connection(&self) -> bool {
        matches!(self, Self::UntilClose)
    }

    pub(in crate::upstream) fn size_hint(&self) -> SizeHint {
        match self {
            Self::Length(left) => SizeHint::with_exact(*left),
            Self::Chunked(_) | Self::UntilClose => SizeHint::default(),
        }
    }
}

/// Takes what is there of `left` bytes.
pub(super) fn take(left: &mut u64, read: &mut BytesMut) -> Bytes {
    let length = usize::try_from(*left).map_or(read.len(), |left| left.min(read.len()));
    *left -= length as u64;
    read.split_to(length).freeze()
}
