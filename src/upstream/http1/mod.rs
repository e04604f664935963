//! HTTP/1.1 to backends: response headers and bodies are taken off the front of the bytes that were read.
//!
//! Nothing in here waits or owns a connection, so that an exchange is one future and needs no task, no channel and no
//! wake-up of its own.
//!
//! Framing is strict. A backend that sends two lengths, a length that is not a number, or a length and a transfer coding
//! is broken or used in an attack: where the next response begins is uncertain, so the response is refused and the
//! connection closed. That holds for responses without a body too (HEAD, 204, 304): the next reader may not know what
//! was asked.
//!
//! Header lines without a colon are skipped: a message that a script printed, or the status line twice, as IIS sends it.
//! nginx ignores them too; they say nothing about where the response ends. A line that begins with a space continues
//! the one before it, and one with a control character is not text: responses with those are refused.

#[cfg(any(fuzzing, test))]
pub(super) mod fuzzing;
pub(super) mod request;
#[cfg(test)]
mod tests;

use std::mem::MaybeUninit;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version};
use http_body::SizeHint;
use hyper::ext::ReasonPhrase;
use memchr::{memchr, memchr_iter};
use smallvec::SmallVec;

use super::error::InvalidResponse;
use crate::message::headers::{passes_unchanged, spare};
use crate::message::{ChunkEvent, ChunkScanner, MalformedChunk, PrebuiltResponse, RawHeaders};

/// The headers of a response.
#[derive(Debug)]
pub(super) struct ResponseHead {
    pub(super) status: StatusCode,
    /// Empty where they are raw.
    pub(super) headers: HeaderMap,
    /// The headers as bytes, where that was wanted and is possible.
    pub(super) raw: Option<RawHeaders>,
    /// How the body is read.
    pub(super) framing: BodyFraming,
    /// Whether the connection may carry another request after the body.
    pub(super) reusable: bool,
    version: Version,
    /// Unless it is the usual one.
    reason: Option<ReasonPhrase>,
}

/// Reads the headers of a response while they arrive.
#[derive(Debug, Default)]
pub(super) struct HeadReader {
    scan: HeadBlockScan,
    /// Something has arrived.
    pub(super) has_data: bool,
    /// Lines without a colon were skipped.
    pub(super) has_skipped: bool,
}

impl HeadReader {
    /// Takes the next headers, of a response to `method` and at most so many fields, off the front of what was read;
    /// `None` while they are incomplete.
    #[inline]
    pub(super) fn next(
        &mut self,
        read: &mut BytesMut,
        method: &Method,
        raw_headers: bool,
        most: usize,
    ) -> Result<Option<Box<ResponseHead>>, InvalidResponse> {
        self.has_data |= !read.is_empty();
        skip_empty_lines(read);
        if !self.scan.is_due(read, ResponseHead::LARGEST) {
            return Ok(None);
        }
        let parsed = ResponseHead::parse(read, method, raw_headers, most, &mut self.scan);
        if let Err(InvalidResponse::Unreadable(httparse::Error::HeaderName)) = parsed {
            return self.parse_without_stray_lines(read, method, raw_headers, most);
        }
        parsed
    }

    /// Parses headers in which a line may have no colon.
    #[cold]
    fn parse_without_stray_lines(
        &mut self,
        read: &mut BytesMut,
        method: &Method,
        raw_headers: bool,
        most: usize,
    ) -> Result<Option<Box<ResponseHead>>, InvalidResponse> {
        match remove_stray_lines(read, ResponseHead::LARGEST) {
            None => Ok(None),
            Some(false) => Err(InvalidResponse::Unreadable(httparse::Error::HeaderName)),
            Some(true) => {
                self.has_skipped = true;
                ResponseHead::parse(read, method, raw_headers, most, &mut self.scan)
            }
        }
    }
}

/// Takes empty lines off the front: the parser would skip them again each time.
fn skip_empty_lines(read: &mut BytesMut) {
    loop {
        match **read {
            [b'\n', ..] => read.advance(1),
            [b'\r', b'\n', ..] => read.advance(2),
            _ => return,
        }
    }
}

impl ResponseHead {
    /// Takes the headers of a response to `method` off the front of what was read; `None` while they are incomplete.
    /// After complete ones, `scan` is for the next.
    // Not inlined: it needs a large stack frame, and most calls of `next` find that nothing new has arrived.
    #[inline(never)]
    fn parse(
        read: &mut BytesMut,
        method: &Method,
        raw_headers: bool,
        most: usize,
        scan: &mut HeadBlockScan,
    ) -> Result<Option<Box<Self>>, InvalidResponse> {
        let mut few = [const { MaybeUninit::uninit() }; FEW_FIELDS];
        let mut many = Vec::new();
        let mut parsed = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        let fields = &mut few[..most.min(FEW_FIELDS)];
        let mut done = config.parse_response_with_uninit_headers(&mut parsed, read, fields);
        if matches!(done, Err(httparse::Error::TooManyHeaders)) && most > FEW_FIELDS {
            many.resize(most, MaybeUninit::uninit());
            parsed = httparse::Response::new(&mut []);
            done = config.parse_response_with_uninit_headers(&mut parsed, read, &mut many);
        }
        let length = match done {
            Ok(httparse::Status::Complete(length)) if length <= Self::LARGEST => length,
            Ok(httparse::Status::Partial) if read.len() <= Self::LARGEST => return Ok(None),
            Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err(InvalidResponse::TooLarge),
            Err(error) => return Err(InvalidResponse::Unreadable(error)),
        };
        *scan = HeadBlockScan::default();
        let status = status(parsed.code)?;
        let version = match parsed.version {
            Some(0) => Version::HTTP_10,
            _ => Version::HTTP_11,
        };
        let reason = parsed
            .reason
            .filter(|reason| Some(*reason) != status.canonical_reason())
            .and_then(|reason| ReasonPhrase::try_from(reason.as_bytes()).ok());

        let mut head = Box::new(Self {
            status,
            headers: spare(),
            raw: None,
            framing: BodyFraming::Length(0),
            reusable: false,
            version,
            reason,
        });
        if raw_headers
            && head.reason.is_none()
            && PrebuiltResponse::can_complete(method, status)
            && let Some((raw, fields)) = raw(parsed.headers)
        {
            (head.framing, head.reusable) = fields.framing(status, version, method)?;
            let body = read.len() - length;
            if head.framing.is_all_in(body) && raw.fits(body) {
                read.advance(length);
                head.raw = Some(raw);
                return Ok(Some(head));
            }
        }
        // The fields are noted as positions: they borrow what is about to be split.
        let start = read.as_ptr().addr();
        let fields = parsed.headers.iter();
        let spans: SmallVec<[FieldSpans; USUAL_FIELDS]> = fields
            .map(|field| (span(field.name.as_bytes(), start), span(field.value, start)))
            .collect();
        let fields = fill(&mut head.headers, &read.split_to(length).freeze(), &spans)?;
        (head.framing, head.reusable) = fields.framing(status, version, method)?;
        Ok(Some(head))
    }

    /// The headers of a response over HTTP/2, which frames bodies itself.
    pub(super) fn http2(status: StatusCode, headers: HeaderMap) -> Box<Self> {
        Box::new(Self {
            status,
            headers,
            raw: None,
            framing: BodyFraming::Length(0),
            reusable: false,
            version: Version::HTTP_2,
            reason: None,
        })
    }

    /// The response with this body.
    pub(super) fn into_response<B>(self, body: B) -> Response<B> {
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.version_mut() = self.version;
        *response.headers_mut() = self.headers;
        if let Some(reason) = self.reason {
            response.extensions_mut().insert(reason);
        }
        response
    }

    /// Bytes of headers. nginx's default is 4k or 8k; a backend that needs more than this is broken.
    pub(super) const LARGEST: usize = 64 * 1024;
}

fn status(code: Option<u16>) -> Result<StatusCode, InvalidResponse> {
    code.and_then(|code| StatusCode::from_u16(code).ok())
        .ok_or(InvalidResponse::Unreadable(httparse::Error::Status))
}

/// Adds the fields at these positions to a map; returns what they say about framing.
fn fill(
    headers: &mut HeaderMap,
    text: &Bytes,
    spans: &[FieldSpans],
) -> Result<FramingFields, InvalidResponse> {
    let mut framing = FramingFields::default();
    headers.reserve(spans.len() + ADDED_FIELDS);
    let range = |span: &Span| span.0 as usize..span.1 as usize;
    for (name, value) in spans {
        let name = HeaderName::from_bytes(&text[range(name)])
            .map_err(|_| InvalidResponse::Unreadable(httparse::Error::HeaderName))?;
        let value = HeaderValue::from_maybe_shared(text.slice(range(value)))
            .map_err(|_| InvalidResponse::Unreadable(httparse::Error::HeaderValue))?;
        framing.note(name.as_ref(), value.as_bytes());
        headers.append(name, value);
    }
    Ok(framing)
}

/// The fields as bytes, and what they say about framing; `None` if one of them is not passed on as it is.
fn raw(fields: &[httparse::Header<'_>]) -> Option<(RawHeaders, FramingFields)> {
    let (mut raw, mut framing) = (RawHeaders::empty(), FramingFields::default());
    for field in fields {
        let name = raw.add(field.name.as_bytes(), field.value);
        if !passes_unchanged(name) {
            return None;
        }
        framing.note(name, field.value);
    }
    Some((raw, framing))
}

/// What the fields say about where the response and the connection end.
#[derive(Debug, Default)]
struct FramingFields {
    length: Option<u64>,
    chunked: bool,
    close: bool,
    invalid: Option<InvalidResponse>,
}

impl FramingFields {
    /// Takes in a field, its name in lower case.
    fn note(&mut self, name: &[u8], value: &[u8]) {
        if name == b"content-length" {
            let length = number(value).filter(|_| self.length.is_none());
            if length.is_none() {
                self.invalid = Some(InvalidResponse::ContentLength);
            }
            self.length = length.or(self.length);
        } else if name == b"transfer-encoding" {
            let known = value.eq_ignore_ascii_case(b"chunked");
            // From a backend of HTTP/1.0 too: there is one way to read it, unless there is a length as well.
            if self.chunked || !known {
                self.invalid = Some(InvalidResponse::TransferEncoding);
            }
            self.chunked = true;
        } else if name == b"connection" {
            self.close |= value
                .split(|byte| *byte == b',')
                .any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"));
        }
    }

    /// How the body is read, and whether the connection can be used after it.
    fn framing(
        self,
        status: StatusCode,
        version: Version,
        method: &Method,
    ) -> Result<(BodyFraming, bool), InvalidResponse> {
        // As in nginx never with a backend of HTTP/1.0: it cannot take a body of unknown length.
        let open = version == Version::HTTP_11 && !self.close;
        // What follows is not HTTP. Whether an upgrade was asked for, the caller checks.
        let open = open && status != StatusCode::SWITCHING_PROTOCOLS;
        if status.is_informational() {
            return Ok((BodyFraming::Length(0), open));
        }
        if let Some(invalid) = self.invalid {
            return Err(invalid);
        }
        if self.chunked && self.length.is_some() {
            return Err(InvalidResponse::BothLengths);
        }
        let bodiless = *method == Method::HEAD
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        Ok(match self.length {
            _ if bodiless => (BodyFraming::Length(0), open),
            _ if self.chunked => (BodyFraming::Chunked(ChunkDecoder::default()), open),
            Some(length) => (BodyFraming::Length(length), open),
            None => (BodyFraming::UntilClose, false),
        })
    }
}

/// The first byte of a part, and the first after it.
// Small, because there is room for many of them.
type Span = (u32, u32);

/// The positions of a field's name and value.
type FieldSpans = (Span, Span);

/// The position of `part` in the text that starts at this address; headers are never longer than
/// [`ResponseHead::LARGEST`].
fn span(part: &[u8], start: usize) -> Span {
    let from = part.as_ptr().addr() - start;
    (from as u32, (from + part.len()) as u32)
}

/// Digits and nothing else: `u64::from_str` would take a sign.
fn number(text: &[u8]) -> Option<u64> {
    let digit = |digit: &u8| digit.is_ascii_digit().then(|| u64::from(digit - b'0'));
    let (first, rest) = text.split_first()?;
    rest.iter().try_fold(digit(first)?, |number, next| {
        number.checked_mul(10)?.checked_add(digit(next)?)
    })
}

/// Fields that are parsed without allocating.
const FEW_FIELDS: usize = 100;
/// Fields of a usual response.
const USUAL_FIELDS: usize = 24;
/// Fields that may be added on the way to the client (`Connection`): the map need not grow for them.
const ADDED_FIELDS: usize = 1;

/// How the rest of a body is delimited.
#[derive(Debug)]
pub(super) enum BodyFraming {
    Chunked(ChunkDecoder),
    /// By the number of bytes left.
    Length(u64),
    /// By the end of the connection.
    UntilClose,
}

/// The next part of a body.
#[derive(Debug)]
pub(super) enum BodyChunk {
    Data(Bytes),
    /// The end, with the trailers.
    End(Option<HeaderMap>),
}

impl BodyFraming {
    /// The next part, as a slice of what was read; `None` if more has to be read first.
    pub(super) fn next(
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

    /// The end, if it comes next and has been read already.
    pub(super) fn end(&mut self, read: &mut BytesMut) -> Option<Option<HeaderMap>> {
        match self {
            Self::Chunked(chunked) => chunked.end(read),
            Self::Length(left) => (*left == 0).then_some(None),
            Self::UntilClose => None,
        }
    }

    /// Whether all that is left has this length at most, as far as that is known.
    pub(super) fn is_all_in(&self, bytes: usize) -> bool {
        matches!(self, Self::Length(left) if *left <= bytes as u64)
    }

    /// All that is left, if its length is known and it has been read.
    pub(super) fn take_all(&mut self, read: &mut BytesMut) -> Option<Bytes> {
        match self {
            Self::Length(left) if *left <= read.len() as u64 => Some(take(left, read)),
            _ => None,
        }
    }

    pub(super) fn ends_with_connection(&self) -> bool {
        matches!(self, Self::UntilClose)
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            Self::Length(left) => SizeHint::with_exact(*left),
            Self::Chunked(_) | Self::UntilClose => SizeHint::default(),
        }
    }
}

/// Takes up to `left` bytes.
fn take(left: &mut u64, read: &mut BytesMut) -> Bytes {
    let length = usize::try_from(*left).map_or(read.len(), |left| left.min(read.len()));
    *left -= length as u64;
    read.split_to(length).freeze()
}

/// Decides when a block of header fields that is still arriving is parsed: at first, when an empty line has arrived, and
/// each time its length has doubled. A parser begins at the first byte each time: run for every read, headers that drip
/// byte by byte would cost the square of their length.
#[derive(Debug, Default)]
struct HeadBlockScan {
    // The length when it was last looked at, and when it was last parsed.
    seen: usize,
    parsed: usize,
}

impl HeadBlockScan {
    /// Whether to parse a block that may be as large as `largest`.
    fn is_due(&mut self, block: &[u8], largest: usize) -> bool {
        if block.len() <= self.seen {
            return false;
        }
        // An empty line may have begun before.
        let new = &block[self.seen.saturating_sub(EMPTY_LINE.len() - 1)..];
        self.seen = block.len();
        let ends = |at: usize| matches!(new[at + 1..], [b'\n', ..] | [b'\r', b'\n', ..]);
        let due = self.parsed == 0
            || block.len() / 2 >= self.parsed
            || block.len() > largest
            || memchr_iter(b'\n', new).any(ends);
        if due {
            self.parsed = block.len();
        }
        due
    }
}

/// The longest end of a block, with the end of its last line.
const EMPTY_LINE: &[u8] = b"\n\r\n";

/// Removes the lines without a colon from the headers at the front of what was read; returns whether there were any that
/// may be removed, `None` if the headers are incomplete.
fn remove_stray_lines(read: &mut BytesMut, largest: usize) -> Option<bool> {
    let mut kept = BytesMut::with_capacity(read.len());
    let mut rest = &read[..];
    let mut removed = false;
    loop {
        let Some(end) = memchr(b'\n', rest) else {
            return (read.len() > largest).then_some(false);
        };
        let (line, after) = rest.split_at(end + 1);
        rest = after;
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        // The parser has accepted the first line.
        if !kept.is_empty() && !text.is_empty() && is_stray(text) {
            removed = true;
            continue;
        }
        kept.extend_from_slice(line);
        if text.is_empty() {
            break;
        }
    }
    if removed {
        kept.extend_from_slice(rest);
        *read = kept;
    }
    Some(removed)
}

fn is_stray(line: &[u8]) -> bool {
    !line[0].is_ascii_whitespace()
        && !line
            .iter()
            .any(|byte| *byte == b':' || byte.is_ascii_control())
}

/// Decodes chunks in place: data leaves as slices of what was read.
// Its trailers are checked as strictly as its lines ([`ChunkScanner`]): each ends with CR LF.
#[derive(Debug, Default)]
pub(super) struct ChunkDecoder {
    lines: ChunkScanner,
    end: ChunkEnd,
    trailers: HeadBlockScan,
}

/// What became of the trailers.
#[derive(Debug, Default, Clone, Copy)]
enum ChunkEnd {
    #[default]
    Ahead,
    Read,
    Malformed,
}

impl ChunkDecoder {
    fn next(&mut self, read: &mut BytesMut) -> Result<Option<BodyChunk>, MalformedChunk> {
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

    /// The end, if it comes next and has been read already.
    fn end(&mut self, read: &mut BytesMut) -> Option<Option<HeaderMap>> {
        // An error is found again by the next call of `next`.
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
            ChunkEnd::Read => return Ok(Some(BodyChunk::End(None))),
            ChunkEnd::Malformed => return Err(MalformedChunk),
        }
        if read.starts_with(b"\r\n") {
            read.advance(2);
            self.end = ChunkEnd::Read;
            return Ok(Some(BodyChunk::End(None)));
        }
        if !self.trailers.is_due(read, LONGEST_TRAILERS) {
            return Ok(None);
        }
        let found = trailers(read);
        match found {
            Ok(None) => {}
            Ok(Some(_)) => self.end = ChunkEnd::Read,
            Err(MalformedChunk) => self.end = ChunkEnd::Malformed,
        }
        Ok(found?.map(|trailers| BodyChunk::End(Some(trailers))))
    }
}

/// Takes the trailers off what was read; `None` while they are incomplete.
fn trailers(read: &mut BytesMut) -> Result<Option<HeaderMap>, MalformedChunk> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_TRAILERS];
    let parsed = httparse::parse_headers(read, &mut fields).map_err(|_| MalformedChunk)?;
    let httparse::Status::Complete((length, fields)) = parsed else {
        return match read.len() > LONGEST_TRAILERS {
            true => Err(MalformedChunk),
            false => Ok(None),
        };
    };
    let text = &read[..length];
    let bare = |(at, byte): (usize, &u8)| *byte == b'\n' && !text[..at].ends_with(b"\r");
    if length > LONGEST_TRAILERS || text.iter().enumerate().any(bare) {
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

/// Bytes of all trailers.
const LONGEST_TRAILERS: usize = 16 * 1024;
/// Trailer fields.
const MOST_TRAILERS: usize = 32;

#[cfg(test)]
mod block_tests {
    use super::*;

    /// How many bytes are parsed of a block that arrives byte by byte.
    fn parsed(block: &[u8]) -> usize {
        let mut scan = HeadBlockScan::default();
        (1..=block.len())
            .filter(|length| scan.is_due(&block[..*length], 64 * 1024))
            .sum()
    }

    #[test]
    fn a_dripped_block_is_parsed_in_proportion_to_its_length() {
        for line in ["a: b\r\n", "a: b\n", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"] {
            let block = line.repeat(32 * 1024 / line.len());
            assert!(parsed(block.as_bytes()) < 4 * block.len(), "{line:?}");
        }
    }

    #[test]
    fn the_end_of_a_block_is_found_however_it_is_cut() {
        for block in ["a: b\r\n\r\n", "a: b\n\n", "a: b\n\r\n", "a: b\r\n\n"] {
            let block = block.repeat(2);
            for cut in 1..block.len() / 2 {
                let mut scan = HeadBlockScan::default();
                scan.is_due(&block.as_bytes()[..cut], 100);
                assert!(scan.is_due(block.as_bytes(), 100), "{block:?} {cut}");
            }
        }
    }

    #[test]
    fn a_block_that_is_too_large_is_parsed_at_once() {
        let mut scan = HeadBlockScan::default();
        assert!(scan.is_due(&[b'a'; 60], 64));
        assert!(!scan.is_due(&[b'a'; 64], 64));
        assert!(scan.is_due(&[b'a'; 65], 64));
    }
}

#[cfg(test)]
mod stray_tests {
    use super::*;

    fn sifted(text: &str) -> (Option<bool>, String) {
        let mut read = BytesMut::from(text);
        let stray = remove_stray_lines(&mut read, 1000);
        (stray, String::from_utf8_lossy(&read).into_owned())
    }

    #[test]
    fn lines_without_a_colon_are_removed_from_the_headers_only() {
        let head =
            "HTTP/1.1 200 OK\r\nHTTP/1.1 200 OK\r\na: b\r\ngarbage\nmore of it\r\n\r\nbody\r\n";
        let expected = "HTTP/1.1 200 OK\r\na: b\r\n\r\nbody\r\n";
        assert_eq!(sifted(head), (Some(true), expected.to_owned()));
    }

    #[test]
    fn lines_that_could_be_read_in_two_ways_stay() {
        for line in [" folded", "\tfolded", "  ", "a\rb", "a\0b", "bad name: x"] {
            let head = format!("HTTP/1.1 200 OK\r\na: b\r\n{line}\r\n\r\n");
            assert_eq!(sifted(&head), (Some(false), head.clone()), "{line:?}");
        }
    }

    #[test]
    fn incomplete_headers_are_left_alone() {
        let head = "HTTP/1.1 200 OK\r\ngarbage\r\na: b\r\n";
        assert_eq!(sifted(head), (None, head.to_owned()));
        let endless = format!("HTTP/1.1 200 OK\r\n{}", "x".repeat(1000));
        assert_eq!(sifted(&endless).0, Some(false));
    }
}
