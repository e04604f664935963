//! The head of an answer: where it ends, what it says, and how the body after it is delimited.
//!
//! Framing is strict. A backend that gives two lengths, a length that is not a number, or both kinds of length is
//! either broken or being used against us: what follows cannot be told apart from the next answer for sure, so the
//! answer is refused and the connection never used again. That holds where an answer has no body, too (HEAD, 204,
//! 304): whoever reads it after us may not know what was asked.

use std::mem::MaybeUninit;
use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version};
use hyper::ext::ReasonPhrase;
use smallvec::SmallVec;

use super::BodyFraming;
use super::block::HeadBlockScan;
use super::stray::{StrayLines, without_stray_lines};
use crate::message::headers::{passes_unchanged, spare};
use crate::message::{PrebuiltResponse, RawHeaders};
use crate::upstream::RequestHeadForm;
use crate::upstream::error::InvalidResponse;

/// The head of an answer.
#[derive(Debug)]
pub(in crate::upstream) struct ResponseHead {
    pub(in crate::upstream) status: StatusCode,
    /// Empty where it is written out.
    pub(in crate::upstream) headers: HeaderMap,
    /// Written out, if that was wanted and can be done.
    pub(in crate::upstream) lines: Option<RawHeaders>,
    /// How its body is read.
    pub(in crate::upstream) reading: BodyFraming,
    /// Whether the connection may carry another request once the body has ended.
    pub(in crate::upstream) reusable: bool,
    version: Version,
    // Only one that is not the usual one.
    reason: Option<ReasonPhrase>,
}

/// Reads the heads of a response off a connection while they arrive.
#[derive(Debug, Default)]
pub(in crate::upstream) struct HeadReader {
    scan: HeadBlockScan,
    heard: bool,
    skipped: bool,
}

impl HeadReader {
    /// Takes the next head, of a response to `method` and with at most so many fields, off the front of what was read; `None`
    /// while it is incomplete.
    #[inline]
    pub(in crate::upstream) fn next(
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
    pub(in crate::upstream) fn has_heard(&self) -> bool {
        self.heard
    }

    /// Whether lines were skipped because there was no colon in them.
    pub(in crate::upstream) fn has_skipped(&self) -> bool {
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
            && PrebuiltResponse::may_complete(method, status)
            && let Some((lines, ends)) = written(parsed.headers)
        {
            let (reading, reusable) = ends.judge(status, version, method)?;
            let come = read.len() - length;
            if reading.is_all_in(come) && lines.fit(come) {
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
    pub(in crate::upstream) fn streamed(status: StatusCode, headers: HeaderMap) -> Box<Self> {
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
    pub(in crate::upstream) fn into_response<B>(self, body: B) -> Response<B> {
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
    pub(in crate::upstream) const LARGEST: usize = 64 * 1024;
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
    let (mut lines, mut ends) = (RawHeaders::new(), FramingFields::default());
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
