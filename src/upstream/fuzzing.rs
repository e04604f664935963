//! Answers read from their bytes alone, without a connection: for tests, and the way in for the fuzzer.

use bytes::BytesMut;
use http::{HeaderMap, Method, StatusCode};

use super::RequestHeadForm;
use super::http1::{BodyChunk, HeadReader};

pub use super::dns::addresses_in;

/// An answer that was read to its end.
#[derive(Debug, PartialEq, Eq)]
pub struct FuzzedResponse {
    /// Its status.
    pub status: StatusCode,
    /// Its header fields.
    pub headers: HeaderMap,
    /// Its body, decoded.
    pub body: Vec<u8>,
    /// What came after the body.
    pub trailers: Option<HeaderMap>,
    /// Whether its connection could carry another request.
    pub reusable: bool,
}

/// Reads an answer to `method` that comes in pieces and ends with the connection; `None` if it is not one, or not
/// all of one.
pub fn read<'p>(
    method: &Method,
    pieces: impl IntoIterator<Item = &'p [u8]>,
) -> Option<FuzzedResponse> {
    let mut pieces = pieces.into_iter();
    let (mut heads, mut read) = (HeadReader::default(), BytesMut::new());
    let mut head = loop {
        match heads
            .next(&mut read, method, RequestHeadForm::Fields, 1000)
            .ok()?
        {
            // Nobody asked for it.
            Some(head) if head.status == StatusCode::SWITCHING_PROTOCOLS => return None,
            Some(head) if head.status.is_informational() => {}
            Some(head) => break head,
            None => read.extend_from_slice(pieces.next()?),
        }
    };
    let mut body = Vec::new();
    let trailers = loop {
        match head.reading.next(&mut read).ok()? {
            Some(BodyChunk::Data(data)) => body.extend_from_slice(&data),
            Some(BodyChunk::End(trailers)) => break trailers,
            None => match pieces.next() {
                Some(piece) => read.extend_from_slice(piece),
                None if head.reading.ends_with_connection() => break None,
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
