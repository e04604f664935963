//! The chunked coding, decoded in place: data leaves as slices of what was read.
//!
//! As strict in its trailers as in its lines ([`ChunkScanner`]): each ends with CR LF.

use bytes::{Buf, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::block::HeadBlockScan;
use super::reading::{BodyChunk, take};
use crate::message::chunks::{ChunkEvent, ChunkScanner, MalformedChunk};

/// Where in the coding we are.
#[derive(Debug, Default)]
pub(in crate::upstream) struct ChunkDecoder {
    lines: ChunkScanner,
    end: ChunkEnd,
    trailers: HeadBlockScan,
}

/// What became of the trailers.
#[derive(Debug, Default, Clone, Copy)]
enum ChunkEnd {
    #[default]
    Ahead,
    /// Past the end.
    Done,
    /// Past what cannot be read.
    Lost,
}

impl ChunkDecoder {
    /// The next piece of what was read; `None` if more has to be read first.
    pub(super) fn next(
        &mut self,
        read: &mut BytesMut,
    ) -> Result<Option<BodyChunk>, MalformedChunk> {
        self.skip(read)?;
        Ok(match self.lines.next() {
            ChunkEvent::Data(left) if !read.is_empty() => {
                let mut rest = left;
                let data = take(&mut rest, read);
                self.lines.take(left - rest);
                Some(BodyChunk::Data(data))
            }
            ChunkEvent::Trailers => return self.trailers(read),
            ChunkEvent::Data(_) | ChunkEvent::Line => None,
        })
    }

    /// The end, if nothing but it comes next and it is there already.
    pub(super) fn end(&mut self, read: &mut BytesMut) -> Option<Option<HeaderMap>> {
        // What is wrong is found again by the next one to ask.
        self.skip(read).ok()?;
        if self.lines.next() != ChunkEvent::Trailers {
            return None;
        }
        match self.trailers(read) {
            Ok(Some(BodyChunk::End(trailers))) => Some(trailers),
            _ => None,
        }
    }

    fn skip(&mut self, read: &mut BytesMut) -> Result<(), MalformedChunk> {
        let skipped = self.lines.skip(read).map_err(|(_, malformed)| malformed)?;
        read.advance(skipped);
        Ok(())
    }

    fn trailers(&mut self, read: &mut BytesMut) -> Result<Option<BodyChunk>, MalformedChunk> {
        match self.end {
            ChunkEnd::Ahead => {}
            ChunkEnd::Done => return Ok(Some(BodyChunk::End(None))),
            ChunkEnd::Lost => return Err(MalformedChunk),
        }
        if read.starts_with(b"\r\n") {
            read.advance(2);
            self.end = ChunkEnd::Done;
            return Ok(Some(BodyChunk::End(None)));
        }
        if !self.trailers.is_due(read, MOST_OVERHEAD) {
            return Ok(None);
        }
        let found = trailers(read);
        match found {
            Ok(None) => {}
            Ok(Some(_)) => self.end = ChunkEnd::Done,
            Err(MalformedChunk) => self.end = ChunkEnd::Lost,
        }
        Ok(found?.map(|trailers| BodyChunk::End(Some(trailers))))
    }
}

/// Takes the trailers off what was read; `None` while they are incomplete.
fn trailers(read: &mut BytesMut) -> Result<Option<HeaderMap>, MalformedChunk> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_TRAILERS];
    let parsed = httparse::parse_headers(read, &mut fields).map_err(|_| MalformedChunk)?;
    let httparse::Status::Complete((length, fields)) = parsed else {
        let endless = read.len() > MOST_OVERHEAD;
        return if endless {
            Err(MalformedChunk)
        } else {
            Ok(None)
        };
    };
    let text = &read[..length];
    let bare = |(at, byte): (usize, &u8)| *byte == b'\n' && !text[..at].ends_with(b"\r");
    if length > MOST_OVERHEAD || text.iter().enumerate().any(bare) {
        return Err(MalformedChunk);
    }
    let mut trailers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| MalformedChunk)?;
        let value = HeaderValue::from_bytes(field.value).map_err(|_| MalformedChunk)?;
        trailers.append(name, value);
    }
    read.advance(length);
    Ok(Some(trailers))
}

/// Bytes of trailers in all.
const MOST_OVERHEAD: usize = 16 * 1024;
/// Trailer fields.
const MOST_TRAILERS: usize = 32;
