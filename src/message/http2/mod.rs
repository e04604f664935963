//! HTTP/2 frames as they pass on a connection: nine bytes of each are read, the rest is counted.
//!
//! The scanner is pure, so that it can stand beside h2 on both directions of every connection, a client's or a backend's. h2
//! refuses what is malformed, except for the header fields that [`hpack`] finds and h2 accepts.

mod hpack;
#[cfg(test)]
mod tests;

use h2::Reason;

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
    first_bytes: u64,
    /// It ends fields that are malformed in a way that h2 does not mind.
    pub malformed: bool,
}

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameType {
    /// More of a block of headers.
    Continuation,
    /// A part of a body.
    Data,
    /// The end of a connection, or its announcement.
    GoAway,
    /// Headers, or trailers.
    Headers,
    /// Of a type that is unknown or not needed here.
    Other,
    /// A check of the connection, or its acknowledgement.
    Ping,
    /// What to send first.
    Priority,
    /// The end of a stream before its end.
    Reset,
    /// The settings of one side, or their acknowledgement.
    Settings,
    /// That more may be sent.
    WindowUpdate,
}

/// Where in the frames of one direction we are.
#[derive(Debug, Default)]
pub struct FrameScanner {
    // What comes before the first frame.
    skip: usize,
    head: [u8; HEAD],
    // How much of the frame's header is there; all of it while the payload passes.
    head_length: usize,
    left: u32,
    first_bytes: u64,
    in_block: bool,
    // A client's, which are looked at, and its latest stream.
    hpack: Option<HpackScanner>,
    last_stream: u32,
    // The block belongs to a stream that was there before.
    trailers: bool,
}

impl FrameHeader {
    /// Whether it is the last of its stream in this direction.
    pub fn ends_stream(self) -> bool {
        matches!(self.kind, FrameType::Data | FrameType::Headers) && self.flags & END_STREAM != 0
    }

    /// Whether it only acknowledges one of the other side's.
    pub fn acknowledges(self) -> bool {
        matches!(self.kind, FrameType::Ping | FrameType::Settings) && self.flags & ACK != 0
    }

    /// Data without any: nothing but padding, and not the end.
    pub fn is_empty_data(self) -> bool {
        let padding = match self.flags & PADDED {
            0 => 0,
            _ => 1 + (self.first_bytes >> 56),
        };
        let data = u64::from(self.length) > padding;
        self.kind == FrameType::Data && self.flags & END_STREAM == 0 && !data
    }

    /// Why a stream is reset, or a connection ended.
    pub fn code(self) -> u32 {
        let [a, b, c, d, rest @ ..] = self.first_bytes.to_be_bytes();
        u32::from_be_bytes(match self.kind {
            FrameType::GoAway => rest,
            _ => [a, b, c, d],
        })
    }

    /// Whether it reports that what came was malformed.
    pub fn reports_malformed(self) -> bool {
        matches!(self.kind, FrameType::Reset | FrameType::GoAway)
            && matches!(
                Reason::from(self.code()),
                Reason::PROTOCOL_ERROR | Reason::FRAME_SIZE_ERROR | Reason::COMPRESSION_ERROR
            )
    }

    /// Whether it ends a connection because too much was asked.
    pub fn asks_for_calm(self) -> bool {
        self.kind == FrameType::GoAway && Reason::from(self.code()) == Reason::ENHANCE_YOUR_CALM
    }

    /// Bytes on the wire.
    pub fn size(self) -> usize {
        HEAD + self.length as usize
    }
}

impl FrameScanner {
    /// What the client sends: its preface first.
    pub fn from_client() -> Self {
        Self {
            skip: 24,
            hpack: Some(HpackScanner::default()),
            ..Self::default()
        }
    }

    /// What the server sends.
    pub fn from_server() -> Self {
        Self::default()
    }

    /// Takes bytes off the front up to the end of a frame; `None` when they end before it does.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Option<FrameHeader> {
        self.skip -= take(bytes, self.skip).len();
        if self.head_length < HEAD {
            let part = take(bytes, HEAD - self.head_length);
            self.head[self.head_length..self.head_length + part.len()].copy_from_slice(part);
            self.head_length += part.len();
            if self.head_length < HEAD {
                return None;
            }
            self.left = self.length();
            self.first_bytes = 0;
        }
        let part = take(bytes, self.left as usize);
        let passed = self.length() - self.left;
        for (at, byte) in (passed..8).zip(part) {
            self.first_bytes |= u64::from(*byte) << (56 - 8 * at);
        }
        self.scan_payload(part, passed);
        // No longer than what is left, which is a number of this type.
        self.left -= part.len() as u32;
        if self.left > 0 {
            return None;
        }
        self.head_length = 0;
        let mut frame = self.frame();
        if matches!(frame.kind, FrameType::Headers | FrameType::Continuation) {
            self.in_block = frame.flags & END_HEADERS == 0;
            frame.malformed = self.end_block(frame);
        }
        Some(frame)
    }

    /// Looks at a part of a payload, before which so much of it has passed, if there are fields in it.
    fn scan_payload(&mut self, part: &[u8], passed: u32) {
        let (kind, flags, length) = (self.head[3], self.head[4], self.length());
        let Some(hpack) = &mut self.hpack else {
            return;
        };
        let (before, after) = match kind {
            HEADERS => {
                let padded = u32::from(flags & PADDED != 0);
                let padding = padded * (self.first_bytes >> 56) as u32;
                let weighed = u32::from(flags & PRIORITY != 0);
                (padded + 5 * weighed, padding)
            }
            CONTINUATION => (0, 0),
            _ => return,
        };
        let start = before.saturating_sub(passed) as usize;
        let end = length.saturating_sub(after).saturating_sub(passed) as usize;
        if let Some(in_block) = part.get(start..end.min(part.len())) {
            hpack.read(in_block);
        }
    }

    /// Whether the fields that may have ended with this frame are malformed.
    fn end_block(&mut self, frame: FrameHeader) -> bool {
        if frame.kind == FrameType::Headers {
            self.trailers = frame.stream <= self.last_stream;
            self.last_stream = self.last_stream.max(frame.stream);
        }
        match &mut self.hpack {
            Some(hpack) if !self.in_block => {
                let found = hpack.end();
                found.unreadable || found.fragment || (self.trailers && found.pseudo)
            }
            _ => false,
        }
    }

    /// Whether the headers of a request, or anything else that is not a body, have begun and not ended.
    pub fn is_within_head(&self) -> bool {
        let begun = self.head_length > 0 && !(self.head_length == HEAD && self.head[3] == DATA);
        self.skip > 0 || self.in_block || begun
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
            first_bytes: self.first_bytes,
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
