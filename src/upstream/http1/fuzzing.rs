//! Responses read from bytes alone, without a connection: for tests and for the fuzzer.

use bytes::BytesMut;
use http::{HeaderMap, Method, StatusCode};

use super::{BodyChunk, HeadReader};

/// A response that was read to its end.
#[derive(Debug, PartialEq, Eq)]
pub struct FuzzedResponse {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: HeaderMap,
    /// The decoded body.
    pub body: Vec<u8>,
    /// The trailers.
    pub trailers: Option<HeaderMap>,
    /// Whether the connection could carry another request.
    pub reusable: bool,
}

/// Reads a response to `method` that comes in pieces and ends with the connection; `None` if it is malformed or
/// incomplete.
pub fn read<'p>(
    method: &Method,
    pieces: impl IntoIterator<Item = &'p [u8]>,
) -> Option<FuzzedResponse> {
    let mut pieces = pieces.into_iter();
    let (mut heads, mut read) = (HeadReader::default(), BytesMut::new());
    let mut head = loop {
        match heads.next(&mut read, method, false, 1000).ok()? {
            // It was not asked for.
            Some(head) if head.status == StatusCode::SWITCHING_PROTOCOLS => return None,
            Some(head) if head.status.is_informational() => {}
            Some(head) => break head,
            None => read.extend_from_slice(pieces.next()?),
        }
    };
    let mut body = Vec::new();
    let trailers = loop {
        match head.framing.next(&mut read).ok()? {
            Some(BodyChunk::Data(data)) => body.extend_from_slice(&data),
            Some(BodyChunk::End(trailers)) => break trailers,
            None => match pieces.next() {
                Some(piece) => read.extend_from_slice(piece),
                None if head.framing.ends_with_connection() => break None,
                None => return None,
            },
        }
    };
    Some(FuzzedResponse {
        status: head.status,
        headers: head.headers,
        body,
        trailers,
        reusable: head.reusable && read.is_empty(),
    })
}
