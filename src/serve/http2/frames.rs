//! HTTP/2's frames as they pass by on a connection: nine bytes of each are looked at, the rest is counted.
//!
//! Pure and without memory of its own, so that it can stand beside the real reader on both directions of every
//! connection. It never judges: what is not well-formed is refused by whoever reads for real.

/// One frame that has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    flags: u8,
    /// How long its payload was.
    pub(super) length: u32,
    /// 0 for the connection itself.
    pub(super) stream: u32,
    // The first bytes of its payload.
    word: u64,
}

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Continuation,
    Data,
    GoAway,
    Headers,
    Other,
    Ping,
    Priority,
    Reset,
    Settings,
    WindowUpdate,
}

/// Where in the frames of one direction we are.
#[derive(Debug)]
pub(super) struct Frames {
    // What comes before the first frame.
    skip: usize,
    head: [u8; HEAD],
    // How much of the head is there; all of it while the payload passes.
    known: usize,
    left: u32,
    word: u64,
    block: bool,
}

impl Frame {
    /// Whether it is the last of its stream in this direction.
    pub(super) fn ends_stream(self) -> bool {
        matches!(self.kind, Kind::Data | Kind::Headers) && self.flags & END_STREAM != 0
    }

    /// Whether it only acknowledges one of the other side's.
    pub(super) fn acknowledges(self) -> bool {
        matches!(self.kind, Kind::Ping | Kind::Settings) && self.flags & ACK != 0
    }

    /// Data without any: nothing but padding, and not the end.
    pub(super) fn is_empty_data(self) -> bool {
        let padding = match self.flags & PADDED {
            0 => 0,
            _ => 1 + (self.word >> 56),
        };
        let data = u64::from(self.length) > padding;
        self.kind == Kind::Data && self.flags & END_STREAM == 0 && !data
    }

    /// Why a stream is reset, or a connection ended.
    pub(super) fn code(self) -> u32 {
        let [a, b, c, d, rest @ ..] = self.word.to_be_bytes();
        u32::from_be_bytes(match self.kind {
            Kind::GoAway => rest,
            _ => [a, b, c, d],
        })
    }

    /// Bytes on the wire.
    pub(super) fn size(self) -> usize {
        HEAD + self.length as usize
    }
}

impl Frames {
    /// What the client sends: its preface first.
    pub(super) fn from_client() -> Self {
        Self::after(24)
    }

    /// What the server sends.
    pub(super) fn from_server() -> Self {
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
        }
    }

    /// Takes bytes off the front up to the end of a frame; `None` when they end before it does.
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Option<Frame> {
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
        // No longer than what is left, which is a number of this type.
        self.left -= part.len() as u32;
        if self.left > 0 {
            return None;
        }
        self.known = 0;
        let frame = self.frame();
        if matches!(frame.kind, Kind::Headers | Kind::Continuation) {
            self.block = frame.flags & END_HEADERS == 0;
        }
        Some(frame)
    }

    /// Whether the head of a request has begun and not ended, or anything else that is not a body.
    pub(super) fn is_within_head(&self) -> bool {
        let begun = self.known > 0 && !(self.known == HEAD && self.head[3] == DATA);
        self.skip > 0 || self.block || begun
    }

    fn length(&self) -> u32 {
        u32::from_be_bytes([0, self.head[0], self.head[1], self.head[2]])
    }

    fn frame(&self) -> Frame {
        let [_, _, _, kind, flags, stream @ ..] = self.head;
        Frame {
            kind: match kind {
                DATA => Kind::Data,
                1 => Kind::Headers,
                2 => Kind::Priority,
                3 => Kind::Reset,
                4 => Kind::Settings,
                6 => Kind::Ping,
                7 => Kind::GoAway,
                8 => Kind::WindowUpdate,
                9 => Kind::Continuation,
                _ => Kind::Other,
            },
            flags,
            length: self.length(),
            // The first bit is reserved.
            stream: u32::from_be_bytes(stream) & (u32::MAX >> 1),
            word: self.word,
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
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    fn all(frames: &mut Frames, mut bytes: &[u8]) -> Vec<Frame> {
        std::iter::from_fn(|| frames.next(&mut bytes)).collect()
    }

    #[test]
    fn the_preface_is_not_a_frame() {
        let mut frames = Frames::from_client();
        assert!(frames.is_within_head());
        assert_eq!(all(&mut frames, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), []);
        assert!(!frames.is_within_head());
        let seen = all(&mut frames, &frame(4, 0, 0, b""));
        assert_eq!(seen[0].kind, Kind::Settings);
    }

    #[test]
    fn a_reset_says_why() {
        let bytes = frame(3, 0, 5, &8_u32.to_be_bytes());
        let seen = all(&mut Frames::from_server(), &bytes);
        assert_eq!((seen[0].stream, seen[0].code()), (5, 8));
        let bytes = frame(7, 0, 0, &[0, 0, 0, 5, 0, 0, 0, 11, b'x']);
        assert_eq!(all(&mut Frames::from_server(), &bytes)[0].code(), 11);
    }

    #[test]
    fn a_head_lasts_until_its_last_continuation() {
        let mut frames = Frames::from_server();
        all(&mut frames, &frame(1, 0, 1, b"abc"));
        assert!(frames.is_within_head());
        all(&mut frames, &frame(9, 0, 1, b"abc"));
        assert!(frames.is_within_head());
        all(&mut frames, &frame(9, END_HEADERS, 1, b"abc"));
        assert!(!frames.is_within_head());
        // The body's frames have a limit of their own.
        all(&mut frames, &frame(0, 0, 1, b"abc")[..10]);
        assert!(!frames.is_within_head());
    }

    #[test]
    fn padding_is_no_data() {
        let padded = |flags, payload: &[u8]| {
            all(&mut Frames::from_server(), &frame(0, flags, 1, payload))[0].is_empty_data()
        };
        assert!(padded(PADDED, &[3, 0, 0, 0]));
        assert!(!padded(PADDED, &[2, 7, 0, 0]));
        assert!(!padded(PADDED | END_STREAM, &[3, 0, 0, 0]));
        assert!(padded(0, b""));
        assert!(!padded(0, b"x"));
    }

    proptest! {
        /// However the bytes are cut, the same frames pass.
        #[test]
        fn cuts_make_no_difference(
            sent in prop::collection::vec((0..12_u8, any::<u8>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..40)), 0..8),
            cuts in prop::collection::vec(1..20_usize, 1..30),
        ) {
            let bytes: Vec<u8> = sent
                .iter()
                .flat_map(|(kind, flags, stream, payload)| frame(*kind, *flags, *stream, payload))
                .collect();
            let whole = all(&mut Frames::from_server(), &bytes);
            prop_assert_eq!(whole.len(), sent.len());
            let (mut pieces, mut rest) = (Frames::from_server(), &bytes[..]);
            let mut seen = Vec::new();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, left) = rest.split_at((*cut).min(rest.len()));
                seen.extend(all(&mut pieces, piece));
                rest = left;
            }
            prop_assert_eq!(seen, whole);
        }
    }
}
