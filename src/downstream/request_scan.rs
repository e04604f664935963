//! A second reading of what a client sends over HTTP/1, for what hyper does not report.
//!
//! The bytes are followed from request to request on their way to hyper: headers are lines up to an empty one, then follow as
//! many bytes as they announce, or chunks. hyper finds the same boundaries, because for whatever it accepts the bytes alone
//! decide where headers end; so the n-th request here is the n-th request there, however they are cut, pipelined or delayed.
//! What hyper refuses ends the connection, and it no longer matters how it was read here.
//!
//! The second reading is kept for security: hyper accepts requests whose framing another server may read differently
//! (`Content-Length` beside `Transfer-Encoding`, a length that is repeated, chunks with odd extensions), repairs them, and
//! reports none of it; what is passed on then no longer shows that there was something to refuse. It also does not report why
//! it refused a request. It would become unnecessary if hyper's server reported both, the framing fields as they came
//! and the reason of a refusal with its status, or if weir parsed HTTP/1 requests itself, as it does responses.
//!
//! Headers are only searched for line feeds, and only lines that begin like a length or a coding are read: a few hundred
//! instructions for a usual request.

use memchr::{memchr, memchr_iter};

use crate::message::{Ambiguity, ChunkEvent, ChunkScanner, ClientConnection};

/// Where in a client's requests we are.
#[derive(Debug)]
pub(super) struct RequestScanner {
    place: ScanState,
    head: HeadSummary,
    // The beginning of a line whose end has not come.
    line: Vec<u8>,
    // How many have come to their end, and how the last of them began.
    ended: u64,
    last: Option<RequestLine>,
    largest: usize,
}

#[derive(Debug)]
enum ScanState {
    Head,
    /// So many bytes of a body.
    Body(u64),
    Chunks(ChunkScanner),
    Trailers(TrailerState),
    /// In malformed chunks, or in too many empty lines before a request.
    Broken,
    /// The connection ends with this request.
    Over,
}

/// Where in the trailers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrailerState {
    /// At the beginning of a line.
    Start,
    Line,
    /// After the carriage return of a line.
    Feed,
    /// After the carriage return of the empty line.
    LastFeed,
}

/// What has been read of the headers of a request.
#[derive(Debug, Default)]
struct HeadSummary {
    first: Option<RequestLine>,
    // Empty lines before it.
    empty: u8,
    length: Option<u64>,
    coding: Option<ScannedCoding>,
    ambiguity: Option<Ambiguity>,
}

/// The request line.
#[derive(Debug, Clone, Copy)]
struct RequestLine {
    length: usize,
    // Its version is not ours to speak.
    foreign: bool,
    // A body follows that hyper has no number for.
    endless: bool,
}

impl RequestLine {
    /// A line that needs no closer look.
    fn plain(line: &[u8]) -> Option<Self> {
        (line.ends_with(b" HTTP/1.1\r") && !line.contains(&b'#')).then_some(Self {
            length: line.len(),
            foreign: false,
            endless: false,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScannedCoding {
    Chunked,
    Other,
}

impl RequestScanner {
    /// At the beginning of a request, whose headers may be as large as `largest`, after so many requests.
    pub(super) fn new(largest: usize, requests: u64) -> Self {
        Self {
            place: ScanState::Head,
            head: HeadSummary::default(),
            line: Vec::new(),
            ended: requests,
            last: None,
            largest,
        }
    }

    /// Follows the next bytes, and marks an ambiguous request. Returns how many of the bytes hyper may read: all, unless a
    /// chunk is malformed.
    pub(super) fn follow(&mut self, bytes: &[u8], client: &ClientConnection) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() {
            let passed = match &mut self.place {
                ScanState::Head => self.read_head(rest, client),
                ScanState::Body(left) => {
                    let passed = at_most(*left, rest);
                    *left -= passed as u64;
                    if *left == 0 {
                        self.place = ScanState::Head;
                    }
                    passed
                }
                ScanState::Chunks(_) | ScanState::Trailers(_) => {
                    let (passed, broken) = self.read_chunks(rest);
                    if broken {
                        self.place = ScanState::Broken;
                    }
                    passed
                }
                ScanState::Broken => return 0,
                ScanState::Over => return bytes.len(),
            };
            rest = &rest[passed..];
            if self.is_broken() {
                break;
            }
        }
        bytes.len() - rest.len()
    }

    /// How many have come to their end.
    #[cfg(test)]
    pub(super) fn ended(&self) -> u64 {
        self.ended
    }

    /// Whether what came is malformed.
    pub(super) fn is_broken(&self) -> bool {
        matches!(self.place, ScanState::Broken)
    }

    /// The status for a request that hyper refuses with this one, after it accepted so many requests.
    pub(super) fn status(&self, hyper_status: u16, requests: u64) -> u16 {
        let first = if self.ended > requests {
            self.last
        } else {
            self.head.first
        };
        match hyper_status {
            431 if first.is_some_and(|first| first.endless) => 413,
            431 if first.is_none_or(|first| first.length > self.largest) => 414,
            400 if first.is_some_and(|first| first.foreign) => 505,
            hyper_status => hyper_status,
        }
    }

    fn read_head(&mut self, bytes: &[u8], client: &ClientConnection) -> usize {
        if self.line.is_empty()
            && self.head.first.is_none()
            && let Some((first, end)) = plain(bytes)
        {
            self.ended += 1;
            self.last = Some(first);
            return end;
        }
        let mut start = 0;
        for end in memchr_iter(b'\n', bytes) {
            let line = &bytes[start..end];
            start = end + 1;
            let over = if self.line.is_empty() {
                self.head.add(line)
            } else {
                self.line.extend_from_slice(line);
                self.head.add(&std::mem::take(&mut self.line))
            };
            if over {
                self.end_head(client);
                return start;
            }
            if self.head.empty > MOST_EMPTY {
                self.place = ScanState::Broken;
                return start;
            }
        }
        // No more than hyper keeps of it, too.
        self.line.extend_from_slice(&bytes[start..]);
        bytes.len()
    }

    fn end_head(&mut self, client: &ClientConnection) {
        self.ended += 1;
        let head = std::mem::take(&mut self.head);
        self.last = head.first;
        self.place = if let Some(ambiguity) = head.ambiguity {
            client.ambiguity.raise(self.ended, ambiguity);
            ScanState::Over
        } else if head.coding == Some(ScannedCoding::Chunked) {
            ScanState::Chunks(ChunkScanner::default())
        } else if head.coding.is_some() || head.first.is_some_and(|first| first.foreign) {
            // Refused by hyper, or where its fields are read.
            ScanState::Over
        } else {
            match head.length {
                None | Some(0) => ScanState::Head,
                Some(length) => ScanState::Body(length),
            }
        };
    }

    /// How many bytes were well-formed, and whether the next is not.
    fn read_chunks(&mut self, bytes: &[u8]) -> (usize, bool) {
        match &mut self.place {
            ScanState::Chunks(chunks) => match chunks.next() {
                ChunkEvent::Line => match chunks.skip(bytes) {
                    Ok(passed) => (passed, false),
                    Err((passed, _)) => (passed, true),
                },
                ChunkEvent::Data(left) => {
                    let passed = at_most(left, bytes);
                    chunks.take(passed as u64);
                    (passed, false)
                }
                ChunkEvent::Trailers => {
                    self.place = ScanState::Trailers(TrailerState::Start);
                    (0, false)
                }
            },
            ScanState::Trailers(trail) => {
                for (at, byte) in bytes.iter().enumerate() {
                    match (*trail, byte) {
                        (TrailerState::LastFeed, b'\n') => {
                            self.place = ScanState::Head;
                            return (at + 1, false);
                        }
                        (TrailerState::Feed, b'\n') => *trail = TrailerState::Start,
                        // hyper would take a line feed for a part of the line, and then for the end of it.
                        (_, b'\n') | (TrailerState::Feed | TrailerState::LastFeed, _) => {
                            return (at, true);
                        }
                        (TrailerState::Start, b'\r') => *trail = TrailerState::LastFeed,
                        (TrailerState::Line, b'\r') => *trail = TrailerState::Feed,
                        (TrailerState::Start | TrailerState::Line, _) => {
                            *trail = TrailerState::Line
                        }
                    }
                }
                (bytes.len(), false)
            }
            _ => (0, false),
        }
    }
}

impl HeadSummary {
    /// Adds a line without its line feed; true if it was the last.
    fn add(&mut self, line: &[u8]) -> bool {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(first) = line.first() else {
            // Empty lines before a request are nothing.
            self.empty = self.empty.saturating_add(1);
            return self.first.is_some();
        };
        if self.first.is_none() {
            self.begin(line);
            return false;
        }
        match first | 0x20 {
            b'c' => {
                if let Some(value) = value(line, b"content-length:") {
                    self.add_length(value);
                }
            }
            b't' => {
                if let Some(value) = value(line, b"transfer-encoding:") {
                    self.add_coding(value);
                }
            }
            _ => {}
        }
        false
    }

    fn begin(&mut self, line: &[u8]) {
        let foreign = match line.last_chunk::<9>() {
            Some([name @ .., b'2'..=b'9', b'.', b'0'..=b'9']) => name == b" HTTP/",
            _ => false,
        };
        self.first = Some(RequestLine {
            length: line.len(),
            foreign,
            endless: false,
        });
        if memchr(b'#', line).is_some() {
            self.ambiguity = Some(Ambiguity::Fragment);
        }
    }

    fn add_length(&mut self, value: &[u8]) {
        if self.length.is_some() {
            self.ambiguity = Some(Ambiguity::TwoLengths);
        } else if self.coding.is_some() {
            self.ambiguity = Some(Ambiguity::BothLengths);
        }
        // What is not a number is refused by hyper.
        let digits = value
            .iter()
            .map(|digit| u64::from(digit.wrapping_sub(b'0')));
        let length = digits.fold(0, |number: u64, digit| {
            number.saturating_mul(10).saturating_add(digit)
        });
        self.length = Some(length);
        if let Some(first) = &mut self.first {
            first.endless |= length >= u64::MAX - 1;
        }
    }

    fn add_coding(&mut self, value: &[u8]) {
        if self.length.is_some() {
            self.ambiguity = Some(Ambiguity::BothLengths);
        }
        let chunked = self.coding.is_none() && value.eq_ignore_ascii_case(b"chunked");
        self.coding = Some(if chunked {
            ScannedCoding::Chunked
        } else {
            ScannedCoding::Other
        });
    }
}

/// The request line and the end of the headers, if these bytes begin with whole headers without a length or a coding: nearly
/// every request, and cheaper than line by line.
fn plain(bytes: &[u8]) -> Option<(RequestLine, usize)> {
    let mut at = memchr(b'\n', bytes)?;
    let first = RequestLine::plain(&bytes[..at])?;
    loop {
        at += 1;
        match *bytes.get(at)? {
            b'\r' => return (bytes.get(at + 1) == Some(&b'\n')).then_some((first, at + 2)),
            b'\n' => return None,
            b'c' | b'C' if bytes.get(at + "content".len()) == Some(&b'-') => {
                if matches!(bytes.get(at + "content-".len())?, b'l' | b'L') {
                    return None;
                }
            }
            b't' | b'T' if bytes.get(at + "transfer".len()) == Some(&b'-') => return None,
            _ => {}
        }
        at += memchr(b'\n', &bytes[at..])?;
    }
}

/// What stands behind this name, if the line begins with it.
fn value<'l>(line: &'l [u8], name: &[u8]) -> Option<&'l [u8]> {
    let (start, value) = line.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
}

/// How much of `left` bytes these are.
fn at_most(left: u64, bytes: &[u8]) -> usize {
    usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()))
}

/// Empty lines before a request. hyper begins at the first of them whenever another has come.
const MOST_EMPTY: u8 = 16;
