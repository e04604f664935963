//! The lines of the chunked coding, read byte by byte.
//!
//! Where two readers could see two different bodies it is strict: lines end with CR LF, and the digits of a size and the bytes
//! of extensions are bounded. Data and trailers are left to the caller: a backend's response is decoded with it, a client's
//! request only checked.

/// Where in the coding we are.
#[derive(Debug)]
pub struct ChunkScanner {
    state: ChunkState,
    // Bytes of extensions so far.
    extensions: usize,
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkEvent {
    /// More of a line.
    Line,
    /// So many bytes of data, at least one.
    Data(u64),
    /// The trailers, or the empty line that stands for none.
    Trailers,
}

/// What came is not the chunked coding.
#[derive(Debug, Clone, Copy, thiserror::Error, PartialEq, Eq)]
#[error("malformed chunk")]
pub struct MalformedChunk;

#[derive(Debug, Clone, Copy)]
enum ChunkState {
    /// In the digits of a size; how many there have been.
    Size { left: u64, digits: u8 },
    /// In the space after a size.
    Space { left: u64 },
    /// After the semicolon, before the end of the line.
    Extension { left: u64 },
    /// Before the line feed of a size's line.
    SizeFeed { left: u64 },
    /// In the data, of which there is at least one more byte.
    Data { left: u64 },
    /// Before the carriage return after the data.
    DataReturn,
    /// Before the line feed after the data.
    DataFeed,
    /// After the last chunk.
    Trailers,
    /// Past what cannot be read.
    Lost,
}

impl Default for ChunkScanner {
    /// At the beginning of a body.
    fn default() -> Self {
        Self {
            state: START,
            extensions: 0,
        }
    }
}

impl ChunkScanner {
    /// Reads lines until there is data, or trailers, or nothing left; returns how many bytes that took.
    ///
    /// # Errors
    ///
    /// With the number of bytes that were well-formed, when the next one is not.
    pub fn skip(&mut self, bytes: &[u8]) -> Result<usize, (usize, MalformedChunk)> {
        for (at, byte) in bytes.iter().enumerate() {
            if self.next() != ChunkEvent::Line {
                return Ok(at);
            }
            let Some(state) = self.step(*byte) else {
                self.state = ChunkState::Lost;
                return Err((at, MalformedChunk));
            };
            self.state = state;
        }
        Ok(bytes.len())
    }

    /// What comes next.
    pub fn next(&self) -> ChunkEvent {
        match self.state {
            ChunkState::Data { left } => ChunkEvent::Data(left),
            ChunkState::Trailers => ChunkEvent::Trailers,
            _ => ChunkEvent::Line,
        }
    }

    /// So many bytes of the data were taken.
    pub fn take(&mut self, bytes: u64) {
        if let ChunkState::Data { left } = &mut self.state {
            *left = left.saturating_sub(bytes);
            if *left == 0 {
                self.state = ChunkState::DataReturn;
            }
        }
    }

    fn step(&mut self, byte: u8) -> Option<ChunkState> {
        Some(match (self.state, byte) {
            (ChunkState::Size { left, digits }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = char::from(byte)
                    .to_digit(16)
                    .filter(|_| digits < MOST_DIGITS);
                ChunkState::Size {
                    left: left << 4 | u64::from(digit?),
                    digits: digits + 1,
                }
            }
            (ChunkState::Size { digits: 0, .. }, _) => return None,
            (
                ChunkState::Size { left, .. }
                | ChunkState::Space { left }
                | ChunkState::Extension { left },
                b'\r',
            ) => ChunkState::SizeFeed { left },
            (ChunkState::Size { left, .. } | ChunkState::Space { left }, b' ' | b'\t') => {
                self.spend()?;
                ChunkState::Space { left }
            }
            (ChunkState::Size { left, .. } | ChunkState::Space { left }, b';') => {
                ChunkState::Extension { left }
            }
            (ChunkState::Extension { left }, b'\t' | b' '..=b'~' | 0x80..) => {
                self.spend()?;
                ChunkState::Extension { left }
            }
            (ChunkState::SizeFeed { left: 0 }, b'\n') => ChunkState::Trailers,
            (ChunkState::SizeFeed { left }, b'\n') => ChunkState::Data { left },
            (ChunkState::DataReturn, b'\r') => ChunkState::DataFeed,
            (ChunkState::DataFeed, b'\n') => START,
            _ => return None,
        })
    }

    fn spend(&mut self) -> Option<()> {
        self.extensions += 1;
        (self.extensions <= MOST_EXTENSIONS).then_some(())
    }
}

const START: ChunkState = ChunkState::Size { left: 0, digits: 0 };
/// Digits of a size: sixty bits are more than any body needs.
const MOST_DIGITS: u8 = 15;
/// Bytes of extensions in all.
const MOST_EXTENSIONS: usize = 16 * 1024;
