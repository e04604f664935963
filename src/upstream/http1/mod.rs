//! HTTP/1.1 as a client speaks it.
//!
//! Nothing in here waits, and nobody in here owns a connection: heads and chunks are taken off the front of what was
//! read, requests are written as far as they go. Whoever has the connection does the waiting, in one future,
//! so that an exchange costs no task, no channel and no wake-up of its own.
//!
//! The head of an answer: where it ends, what it says, and how the body after it is delimited.
//!
//! Framing is strict. A backend that gives two lengths, a length that is not a number, or both kinds of length is
//! either broken or being used against us: what follows cannot be told apart from the next answer for sure, so the
//! answer is refused and the connection never used again. That holds where an answer has no body, too (HEAD, 204,
//! 304): whoever reads it after us may not know what was asked.
//!
//! An answer's body, taken off what was read: as slices of it, never as copies.
//!
//! When a block of header fields that is still arriving is worth parsing.
//!
//! A parser begins at the first byte each time. Run for every piece that arrives, a head that a backend drips byte by byte
//! would cost the square of its length.
//!
//! Lines in the head of an answer that are no fields, because there is no colon in them: a word that a script has printed, or
//! the status line twice, as IIS sends it.
//!
//! nginx passes them over or makes fields without a value of them. They say nothing about where the answer ends, so they are
//! skipped. A line that begins with a space continues the one before it, and one with a control character in it is
//! not text: answers with those stay refused.
//!
//! The chunked coding, decoded in place: data leaves as slices of what was read.
//!
//! As strict in its trailers as in its lines ([`ChunkScanner`]): each ends with CR LF.

pub(super) mod request;
#[cfg(test)]
mod tests;

use std::mem::MaybeUninit;
use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version};
use http_body::SizeHint;
use hyper::ext::ReasonPhrase;
use memchr::{memchr, memchr_iter};
use smallvec::SmallVec;

use super::RequestHeadForm;
use super::error::InvalidResponse;
use crate::message::headers::{passes_unchanged, spare};
use crate::message::{ChunkEvent, ChunkScanner, MalformedChunk, PrebuiltResponse, RawHeaders};

/// The head of an answer.
#[derive(Debug)]
pub(super) struct ResponseHead {
    pub(super) status: StatusCode,
    /// Empty where it is written out.
    pub(super) headers: HeaderMap,
    /// Written out, if that was wanted and can be done.
    pub(super) lines: Option<RawHeaders>,
    /// How its body is read.
    pub(super) reading: BodyFraming,
    /// Whether the connection may carry another request once the body has ended.
    pub(super) reusable: bool,
    version: Version,
    // Only one that is not the usual one.
    reason: Option<ReasonPhrase>,
}

/// Reads the heads of a response off a connection while they arrive.
#[derive(Debug, Default)]
pub(super) struct HeadReader {
    scan: HeadBlockScan,
    heard: bool,
    skipped: bool,
}

impl HeadReader {
    /// Takes the next head, of a response to `method` and with at most so many fields, off the front of what was read; `None`
    /// while it is incomplete.
    #[inline]
    pub(super) fn next(
        &mut self,
        read: &mut BytesMut,
        method: &Method,
        form: RequestHeadForm,
        most: usize,
    ) -> Result<Option<Box<ResponseHead>>, InvalidResponse> {
        self.heard |= !read.is_empty();
        skip_empty_lines(read);
        if !self.scan.is_due(read, ResponseHead::LARGEST) {
            return Ok(None);
        }
        let parsed = ResponseHead::parse(read, method, form, most, &mut self.scan);
        if let Err(InvalidResponse::Unreadable(httparse::Error::HeaderName)) = parsed {
            return self.parse_without_stray_lines(read, method, form, most);
        }
        parsed
    }

    /// Parses a head in which a line may have no colon.
    #[cold]
    fn parse_without_stray_lines(
        &mut self,
        read: &mut BytesMut,
        method: &Method,
        form: RequestHeadForm,
        most: usize,
    ) -> Result<Option<Box<ResponseHead>>, InvalidResponse> {
        match without_stray_lines(read, ResponseHead::LARGEST) {
            StrayLines::Incomplete => Ok(None),
            StrayLines::Nothing => Err(InvalidResponse::Unreadable(httparse::Error::HeaderName)),
            StrayLines::Removed => {
                self.skipped = true;
                ResponseHead::parse(read, method, form, most, &mut self.scan)
            }
        }
    }

    /// Whether anything at all has arrived.
    pub(super) fn has_heard(&self) -> bool {
        self.heard
    }

    /// Whether lines were skipped because there was no colon in them.
    pub(super) fn has_skipped(&self) -> bool {
        self.skipped
    }
}

/// Takes empty lines off the front: the parser would pass over them again each time.
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
    /// Takes the head of an answer to `method` off the front of what was read, with at most so many fields; `None` while it
    /// is incomplete. After one that is complete, `scan` is for the next.
    // Not inlined: it needs a large stack frame, and most calls of `next` find that nothing new has arrived.
    #[inline(never)]
    fn parse(
        read: &mut BytesMut,
        method: &Method,
        form: RequestHeadForm,
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

        let first = StatusLine {
            status,
            version,
            reason,
        };
        if form == RequestHeadForm::Lines
            && first.reason.is_none()
            && PrebuiltResponse::can_complete(method, status)
            && let Some((lines, ends)) = written(parsed.headers)
        {
            let (reading, reusable) = ends.judge(status, version, method)?;
            let come = read.len() - length;
            if reading.is_all_in(come) && lines.fits(come) {
                read.advance(length);
                let lines = Some(lines);
                return Ok(Some(first.head(spare(), lines, reading, reusable)));
            }
        }
        // The fields are noted as places: they borrow what is about to be split.
        let start = read.as_ptr().addr();
        let places: SmallVec<[FieldSpans; USUAL_FIELDS]> = parsed
            .headers
            .iter()
            .map(|field| FieldSpans {
                name: ByteRange::of(field.name.as_bytes(), start),
                value: ByteRange::of(field.value, start),
            })
            .collect();
        let (headers, ends) = mapped(&read.split_to(length).freeze(), &places)?;
        let (reading, reusable) = ends.judge(status, version, method)?;
        Ok(Some(first.head(headers, None, reading, reusable)))
    }

    /// One that came over HTTP/2, where bodies are none of its business.
    pub(super) fn streamed(status: StatusCode, headers: HeaderMap) -> Box<Self> {
        Box::new(Self {
            status,
            headers,
            lines: None,
            reading: BodyFraming::nothing(),
            reusable: false,
            version: Version::HTTP_2,
            reason: None,
        })
    }

    /// The answer, with this for its body.
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

    /// Bytes of a head. nginx's default is 4k or 8k; a backend that needs more than this is broken.
    pub(super) const LARGEST: usize = 64 * 1024;
}

/// The first line of a head.
#[derive(Debug)]
struct StatusLine {
    status: StatusCode,
    version: Version,
    reason: Option<ReasonPhrase>,
}

impl StatusLine {
    fn head(
        self,
        headers: HeaderMap,
        lines: Option<RawHeaders>,
        reading: BodyFraming,
        reusable: bool,
    ) -> Box<ResponseHead> {
        Box::new(ResponseHead {
            status: self.status,
            headers,
            lines,
            reading,
            reusable,
            version: self.version,
            reason: self.reason,
        })
    }
}

fn status(code: Option<u16>) -> Result<StatusCode, InvalidResponse> {
    code.and_then(|code| StatusCode::from_u16(code).ok())
        .ok_or(InvalidResponse::Unreadable(httparse::Error::Status))
}

/// The fields at these places in a map, and what they say of where the answer ends.
fn mapped(
    text: &Bytes,
    places: &[FieldSpans],
) -> Result<(HeaderMap, FramingFields), InvalidResponse> {
    let (mut headers, mut ends) = (spare(), FramingFields::default());
    headers.reserve(places.len() + SPARE);
    for place in places {
        let name = HeaderName::from_bytes(&text[place.name.range()])
            .map_err(|_| InvalidResponse::Unreadable(httparse::Error::HeaderName))?;
        let value = HeaderValue::from_maybe_shared(text.slice(place.value.range()))
            .map_err(|_| InvalidResponse::Unreadable(httparse::Error::HeaderValue))?;
        ends.note(name.as_ref(), value.as_bytes());
        headers.append(name, value);
    }
    Ok((headers, ends))
}

/// The fields written out, and what they say of where the answer ends; `None` if one of them is not passed on as it is.
fn written(fields: &[httparse::Header<'_>]) -> Option<(RawHeaders, FramingFields)> {
    let (mut lines, mut ends) = (RawHeaders::empty(), FramingFields::default());
    for field in fields {
        let name = lines.add(field.name.as_bytes(), field.value);
        if !passes_unchanged(name) {
            return None;
        }
        ends.note(name, field.value);
    }
    Some((lines, ends))
}

/// What the fields say of where the answer and the connection end.
#[derive(Debug, Default)]
struct FramingFields {
    length: Option<u64>,
    chunked: bool,
    close: bool,
    invalid: Option<InvalidResponse>,
}

impl FramingFields {
    /// Hears a field, its name in lower case.
    fn note(&mut self, name: &[u8], value: &[u8]) {
        if name == b"content-length" {
            let length = number(value).filter(|_| self.length.is_none());
            if length.is_none() {
                self.invalid = Some(InvalidResponse::ContentLength);
            }
            self.length = length.or(self.length);
        } else if name == b"transfer-encoding" {
            let known = value.eq_ignore_ascii_case(b"chunked");
            // From a backend of HTTP/1.0, too: there is one way to read it, unless there is a length as well.
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
    fn judge(
        self,
        status: StatusCode,
        version: Version,
        method: &Method,
    ) -> Result<(BodyFraming, bool), InvalidResponse> {
        // As in nginx not to a backend of HTTP/1.0, whatever it says: it has no way to take a body of unknown length.
        let open = version == Version::HTTP_11 && !self.close;
        // Nothing that follows is HTTP; whether that was asked for, whoever asked knows.
        let open = open && status != StatusCode::SWITCHING_PROTOCOLS;
        if status.is_informational() {
            return Ok((BodyFraming::nothing(), open));
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
            _ if bodiless => (BodyFraming::nothing(), open),
            _ if self.chunked => (BodyFraming::chunked(), open),
            Some(length) => (BodyFraming::Length(length), open),
            None => (BodyFraming::UntilClose, false),
        })
    }
}

/// Where in a head a field is.
// Small, because there is room for many of them.
#[derive(Debug, Clone, Copy, Default)]
struct FieldSpans {
    name: ByteRange,
    value: ByteRange,
}

#[derive(Debug, Clone, Copy, Default)]
struct ByteRange {
    from: u32,
    to: u32,
}

impl ByteRange {
    /// Where `part` is in the text that starts at this address; a head is never longer than [`ResponseHead::LARGEST`].
    fn of(part: &[u8], start: usize) -> Self {
        let from = part.as_ptr().addr() - start;
        Self {
            from: from as u32,
            to: (from + part.len()) as u32,
        }
    }

    fn range(self) -> Range<usize> {
        self.from as usize..self.to as usize
    }
}

/// Digits and nothing else: `u64::from_str` would take a sign.
fn number(text: &[u8]) -> Option<u64> {
    let digit = |digit: &u8| digit.is_ascii_digit().then(|| u64::from(digit - b'0'));
    let (first, rest) = text.split_first()?;
    rest.iter().try_fold(digit(first)?, |number, next| {
        number.checked_mul(10)?.checked_add(digit(next)?)
    })
}

/// How many fields a head may have that is parsed without asking for memory.
const FEW_FIELDS: usize = 100;
/// How many it mostly has at most.
const USUAL_FIELDS: usize = 24;
/// Fields that may be added on the way to the client (`Connection`): the map need not grow for them.
const SPARE: usize = 1;

/// What is left of a body.
#[derive(Debug)]
pub(super) enum BodyFraming {
    Chunked(ChunkDecoder),
    /// So many bytes.
    Length(u64),
    /// All that comes.
    UntilClose,
}

/// What comes next in a body.
#[derive(Debug)]
pub(super) enum BodyChunk {
    Data(Bytes),
    /// The end, with what came after the body.
    End(Option<HeaderMap>),
}

impl BodyFraming {
    /// No body.
    pub(super) fn nothing() -> Self {
        Self::Length(0)
    }

    pub(super) fn chunked() -> Self {
        Self::Chunked(ChunkDecoder::default())
    }

    /// The next piece, off the front of what was read; `None` if more has to be read first.
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

    /// The end, if nothing but it comes next and it is there already.
    pub(super) fn end(&mut self, read: &mut BytesMut) -> Option<Option<HeaderMap>> {
        match self {
            Self::Chunked(chunked) => chunked.end(read),
            Self::Length(left) => (*left == 0).then_some(None),
            Self::UntilClose => None,
        }
    }

    /// Whether so many bytes are enough for all that is left, and that is known.
    pub(super) fn is_all_in(&self, bytes: usize) -> bool {
        matches!(self, Self::Length(left) if *left <= bytes as u64)
    }

    /// All that is left, if its length is known and all of it has been read.
    pub(super) fn take_all(&mut self, read: &mut BytesMut) -> Option<Bytes> {
        match self {
            Self::Length(left) if *left <= read.len() as u64 => Some(take(left, read)),
            _ => None,
        }
    }

    /// Whether the end of the connection is its end.
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

/// Takes what is there of `left` bytes.
fn take(left: &mut u64, read: &mut BytesMut) -> Bytes {
    let length = usize::try_from(*left).map_or(read.len(), |left| left.min(read.len()));
    *left -= length as u64;
    read.split_to(length).freeze()
}

/// Decides when to parse a block: at first, where an empty line has arrived, and each time its length has doubled.
#[derive(Debug, Default)]
struct HeadBlockScan {
    // How much had arrived when it was last looked at, and when it was last parsed.
    seen: usize,
    parsed: usize,
}

impl HeadBlockScan {
    /// Whether to parse what has arrived of a block that may be as large as `largest`.
    fn is_due(&mut self, block: &[u8], largest: usize) -> bool {
        if block.len() <= self.seen {
            return false;
        }
        // An empty line may have begun in what was seen.
        let new = &block[self.seen.saturating_sub(EMPTY_LINE.len() - 1)..];
        self.seen = block.len();
        let due = self.parsed == 0
            || block.len() / 2 >= self.parsed
            || block.len() > largest
            || has_empty_line(new);
        if due {
            self.parsed = block.len();
        }
        due
    }
}

fn has_empty_line(bytes: &[u8]) -> bool {
    memchr_iter(b'\n', bytes).any(|at| matches!(bytes[at + 1..], [b'\n', ..] | [b'\r', b'\n', ..]))
}

/// The longest end of a block, the end of its last line included.
const EMPTY_LINE: &[u8] = b"\n\r\n";

/// What has become of such lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StrayLines {
    /// The head has not come whole.
    Incomplete,
    /// There are none that may be skipped.
    Nothing,
    /// They are gone.
    Removed,
}

/// Takes them out of the head at the front of what was read, which may be as long as `largest`.
fn without_stray_lines(read: &mut BytesMut, largest: usize) -> StrayLines {
    let mut kept = BytesMut::with_capacity(read.len());
    let mut rest = &read[..];
    let mut removed = false;
    loop {
        let Some(end) = memchr(b'\n', rest) else {
            return match read.len() <= largest {
                true => StrayLines::Incomplete,
                false => StrayLines::Nothing,
            };
        };
        let (line, after) = rest.split_at(end + 1);
        rest = after;
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        // Of the first line the parser has thought well.
        if !kept.is_empty() && !text.is_empty() && is_stray(text) {
            removed = true;
            continue;
        }
        kept.extend_from_slice(line);
        if text.is_empty() {
            break;
        }
    }
    if !removed {
        return StrayLines::Nothing;
    }
    kept.extend_from_slice(rest);
    *read = kept;
    StrayLines::Removed
}

fn is_stray(line: &[u8]) -> bool {
    !line[0].is_ascii_whitespace()
        && !line
            .iter()
            .any(|byte| *byte == b':' || byte.is_ascii_control())
}

/// Where in the coding we are.
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
    /// Past the end.
    Done,
    /// Past what cannot be read.
    Lost,
}

impl ChunkDecoder {
    /// The next piece of what was read; `None` if more has to be read first.
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

    /// The end, if nothing but it comes next and it is there already.
    fn end(&mut self, read: &mut BytesMut) -> Option<Option<HeaderMap>> {
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
    fn the_end_of_a_block_is_seen_however_it_is_cut() {
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
    fn what_is_too_large_is_parsed_at_once() {
        let mut scan = HeadBlockScan::default();
        assert!(scan.is_due(&[b'a'; 60], 64));
        assert!(!scan.is_due(&[b'a'; 64], 64));
        assert!(scan.is_due(&[b'a'; 65], 64));
    }
}

#[cfg(test)]
mod stray_tests {

    use super::*;

    fn sifted(text: &str) -> (StrayLines, String) {
        let mut read = BytesMut::from(text);
        let stray = without_stray_lines(&mut read, 1000);
        (stray, String::from_utf8_lossy(&read).into_owned())
    }

    #[test]
    fn lines_without_a_colon_are_taken_out_of_the_head_only() {
        let head =
            "HTTP/1.1 200 OK\r\nHTTP/1.1 200 OK\r\na: b\r\ngarbage\nmore of it\r\n\r\nbody\r\n";
        let expected = "HTTP/1.1 200 OK\r\na: b\r\n\r\nbody\r\n";
        assert_eq!(sifted(head), (StrayLines::Removed, expected.to_owned()));
    }

    #[test]
    fn what_could_be_read_in_two_ways_stays() {
        for line in [" folded", "\tfolded", "  ", "a\rb", "a\0b", "bad name: x"] {
            let head = format!("HTTP/1.1 200 OK\r\na: b\r\n{line}\r\n\r\n");
            assert_eq!(
                sifted(&head),
                (StrayLines::Nothing, head.clone()),
                "{line:?}"
            );
        }
    }

    #[test]
    fn a_head_is_awaited_to_its_end() {
        let head = "HTTP/1.1 200 OK\r\ngarbage\r\na: b\r\n";
        assert_eq!(sifted(head), (StrayLines::Incomplete, head.to_owned()));
        let endless = format!("HTTP/1.1 200 OK\r\n{}", "x".repeat(1000));
        assert_eq!(sifted(&endless).0, StrayLines::Nothing);
    }
}
