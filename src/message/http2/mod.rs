//! HTTP/2's frames as they pass by on a connection: nine bytes of each are looked at, the rest is counted.
//!
//! Pure, so that it can stand beside the real reader on both directions of every connection, a client's or a backend's. What is not well-formed
//! is refused by whoever reads for real, except for what `fields` see and h2 does not.

mod hpack;
#[cfg(test)]
mod tests;

use self::hpack::HpackScanner;

/// One frame that has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// What it is.
    pub kind: FrameType,
    flags: u8,
    /// How long its payload was.
    pub length: u32,
    /// 0 for the connection itself.
    pub stream: u32,
    // The first bytes of its payload.
    word: u64,
    /// It ends fields that are malformed in a way that h2 does not mind.
    pub malformed: bool,
}

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameType {
    /// More of a head.
    Continuation,
    /// A part of a body.
    Data,
    /// The end of a connection, or its announcement.
    GoAway,
    /// A head, or trailers.
    Headers,
    /// One that nobody knows, or that is none of ours.
    Other,
    /// A question whether somebody is there, or the answer.
    Ping,
    /// What to send first.
    Priority,
    /// The end of a stream before its end.
    Reset,
    /// What somebody is ready to take.
    Settings,
    /// That more may be sent.
    WindowUpdate,
}

/// Where in the frames of one direction we are.
#[derive(Debug)]
pub struct FrameScanner {
    // What comes before the first frame.
    skip: usize,
    head: [u8; HEAD],
    // How much of the head is there; all of it while the payload passes.
    known: usize,
    left: u32,
    word: u64,
    block: bool,
    // A client's, which are looked at, and its latest stream.
    fields: Option<HpackScanner>,
    latest: u32,
    // The block belongs to a stream that was there before.
    trailers: bool,
}

impl FrameHeader {
    /// Whether it is the last of its stream in this direction.
    #[must_use]
    pub fn ends_stream(self) -> bool {
        matches!(self.kind, FrameType::Data | FrameType::Headers) && self.flags & END_STREAM != 0
    }

    /// Whether it only acknowledges one of the other side's.
    #[must_use]
    pub fn acknowledges(self) -> bool {
        matches!(self.kind, FrameType::Ping | FrameType::Settings) && self.flags & ACK != 0
    }

    /// Data without any: nothing but padding, and not the end.
    #[must_use]
    pub fn is_empty_data(self) -> bool {
        let padding = match self.flags & PADDED {
            0 => 0,
            _ => 1 + (self.word >> 56),
        };
        let data = u64::from(self.length) > padding;
        self.kind == FrameType::Data && self.flags & END_STREAM == 0 && !data
    }

    /// Why a stream is reset, or a connection ended.
    #[must_use]
    pub fn code(self) -> u32 {
        let [a, b, c, d, rest @ ..] = self.word.to_be_bytes();
        u32::from_be_bytes(match self.kind {
            FrameType::GoAway => rest,
            _ => [a, b, c, d],
        })
    }

    /// Whether it tells somebody that what came was not well-formed.
    #[must_use]
    pub fn says_malformed(self) -> bool {
        const PROTOCOL_ERROR: u32 = 1;
        const FRAME_SIZE_ERROR: u32 = 6;
        const COMPRESSION_ERROR: u32 = 9;
        matches!(self.kind, FrameType::Reset | FrameType::GoAway)
            && matches!(
                self.code(),
                PROTOCOL_ERROR | FRAME_SIZE_ERROR | COMPRESSION_ERROR
            )
    }

    /// Whether it ends a connection because too much was asked.
    #[must_use]
    pub fn asks_for_calm(self) -> bool {
        const ENHANCE_YOUR_CALM: u32 = 11;
        self.kind == FrameType::GoAway && self.code() == ENHANCE_YOUR_CALM
    }

    /// Bytes on the wire.
    #[must_use]
    pub fn size(self) -> usize {
        HEAD + self.length as usize
    }
}

impl FrameScanner {
    /// What the client sends: its preface first.
    #[must_use]
    pub fn from_client() -> Self {
        Self {
            fields: Some(HpackScanner::default()),
            ..Self::after(24)
        }
    }

    /// What the server sends.
    #[must_use]
    pub fn from_server() -> Self {
        Self::after(0)
    }

    fn after(skip: usize) -> Self {
        Self {
            skip,
            head: [0; HEAD],
            known: 0,
            left: 0,
            word: 0,
            block: false,
            fields: None,
            latest: 0,
            trailers: false,
        }
    }

    /// Takes bytes off the front up to the end of a frame; `None` when they end before it does.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Option<FrameHeader> {
        self.skip -= take(bytes, self.skip).len();
        if self.known < HEAD {
            let part = take(bytes, HEAD - self.known);
            self.head[self.known..self.known + part.len()].copy_from_slice(part);
            self.known += part.len();
            if self.known < HEAD {
                return None;
            }
            self.left = self.length();
            self.word = 0;
        }
        let part = take(bytes, self.left as usize);
        let passed = self.length() - self.left;
        for (at, byte) in (passed..8).zip(part) {
            self.word |= u64::from(*byte) << (56 - 8 * at);
        }
        self.look_at(part, passed);
        // No longer than what is left, which is a number of this type.
        self.left -= part.len() as u32;
        if self.left > 0 {
            return None;
        }
        self.known = 0;
        let mut frame = self.frame();
        if matches!(frame.kind, FrameType::Headers | FrameType::Continuation) {
            self.block = frame.flags & END_HEADERS == 0;
            frame.malformed = self.end_fields(frame);
        }
        Some(frame)
    }

    /// Looks at a part of a payload, before which so much of it has passed, if there are fields in it.
    fn look_at(&mut self, part: &[u8], passed: u32) {
        let (kind, flags, length) = (self.head[3], self.head[4], self.length());
        let Some(fields) = &mut self.fields else {
            return;
        };
        let (before, after) = match kind {
            HEADERS => {
                let padded = u32::from(flags & PADDED != 0);
                let padding = padded * (self.word >> 56) as u32;
                let weighed = u32::from(flags & PRIORITY != 0);
                (padded + 5 * weighed, padding)
            }
            CONTINUATION => (0, 0),
            _ => return,
        };
        let start = before.saturating_sub(passed) as usize;
        let end = length.saturating_sub(after).saturating_sub(passed) as usize;
        if let Some(block) = part.get(start..end.min(part.len())) {
            fields.read(block);
        }
    }

    /// Whether the fields that may have ended with this frame are malformed.
    fn end_fields(&mut self, frame: FrameHeader) -> bool {
        if frame.kind == FrameType::Headers {
            self.trailers = frame.stream <= self.latest;
            self.latest = self.latest.max(frame.stream);
        }
        match &mut self.fields {
            Some(fields) if !self.block => {
                let found = fields.end();
                found.unreadable || found.fragment || (self.trailers && found.pseudo)
            }
            _ => false,
        }
    }

    /// Whether the head of a request has begun and not ended, or anything else that is not a body.
    #[must_use]
    pub fn is_within_head(&self) -> bool {
        let begun = self.known > 0 && !(self.known == HEAD && self.head[3] == DATA);
        self.skip > 0 || self.block || begun
    }

    fn length(&self) -> u32 {
        u32::from_be_bytes([0, self.head[0], self.head[1], self.head[2]])
    }

    fn frame(&self) -> FrameHeader {
        let [_, _, _, kind, flags, stream @ ..] = self.head;
        FrameHeader {
            kind: match kind {
                DATA => FrameType::Data,
                HEADERS => FrameType::Headers,
                2 => FrameType::Priority,
                3 => FrameType::Reset,
                4 => FrameType::Settings,
                6 => FrameType::Ping,
                7 => FrameType::GoAway,
                8 => FrameType::WindowUpdate,
                CONTINUATION => FrameType::Continuation,
                _ => FrameType::Other,
            },
            flags,
            length: self.length(),
            // The first bit is reserved.
            stream: u32::from_be_bytes(stream) & (u32::MAX >> 1),
            word: self.word,
            malformed: false,
        }
    }
}

fn take<'b>(bytes: &mut &'b [u8], most: usize) -> &'b [u8] {
    let (taken, rest) = bytes.split_at(most.min(bytes.len()));
    *bytes = rest;
    taken
}

const HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;
