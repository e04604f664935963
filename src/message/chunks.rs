//! The lines of the chunked coding, read byte by byte.
//!
//! Where two readers could see two different bodies it is strict: lines end with CR LF, a size has no more digits than
//! anybody sends, and extensions are of no use to anybody and so have an end. Data and trailers are left to whoever
//! reads: a backend's answer is decoded by it, a client's request only looked at.

/// Where in the coding we are.
#[derive(Debug)]
pub struct Chunks {
    state: State,
    // Bytes of extensions so far.
    extensions: usize,
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
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
pub struct Malformed;

#[derive(Debug, Clone, Copy)]
enum State {
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

impl Default for Chunks {
    /// At the beginning of a body.
    fn default() -> Self {
        Self {
            state: START,
            extensions: 0,
        }
    }
}

impl Chunks {
    /// Reads lines until there is data, or trailers, or nothing left; says how many bytes that took.
    ///
    /// # Errors
    ///
    /// With the number of bytes that were well-formed, when the next one is not.
    pub fn skip(&mut self, bytes: &[u8]) -> Result<usize, (usize, Malformed)> {
        for (at, byte) in bytes.iter().enumerate() {
            if self.next() != Next::Line {
                return Ok(at);
            }
            let Some(state) = self.step(*byte) else {
                self.state = State::Lost;
                return Err((at, Malformed));
            };
            self.state = state;
        }
        Ok(bytes.len())
    }

    /// What comes next.
    #[must_use]
    pub fn next(&self) -> Next {
        match self.state {
            State::Data { left } => Next::Data(left),
            State::Trailers => Next::Trailers,
            _ => Next::Line,
        }
    }

    /// So many bytes of the data were taken.
    pub fn take(&mut self, bytes: u64) {
        if let State::Data { left } = &mut self.state {
            *left = left.saturating_sub(bytes);
            if *left == 0 {
                self.state = State::DataReturn;
            }
        }
    }

    fn step(&mut self, byte: u8) -> Option<State> {
        Some(match (self.state, byte) {
            (State::Size { left, digits }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = char::from(byte)
                    .to_digit(16)
                    .filter(|_| digits < MOST_DIGITS);
                State::Size {
                    left: left << 4 | u64::from(digit?),
                    digits: digits + 1,
                }
            }
            (State::Size { digits: 0, .. }, _) => return None,
            (
                State::Size { left, .. } | State::Space { left } | State::Extension { left },
                b'\r',
            ) => State::SizeFeed { left },
            (State::Size { left, .. } | State::Space { left }, b' ' | b'\t') => {
                self.spend()?;
                State::Space { left }
            }
            (State::Size { left, .. } | State::Space { left }, b';') => State::Extension { left },
            (State::Extension { left }, b'\t' | b' '..=b'~' | 0x80..) => {
                self.spend()?;
                State::Extension { left }
            }
            (State::SizeFeed { left: 0 }, b'\n') => State::Trailers,
            (State::SizeFeed { left }, b'\n') => State::Data { left },
            (State::DataReturn, b'\r') => State::DataFeed,
            (State::DataFeed, b'\n') => START,
            _ => return None,
        })
    }

    fn spend(&mut self) -> Option<()> {
        self.extensions += 1;
        (self.extensions <= MOST_EXTENSIONS).then_some(())
    }
}

const START: State = State::Size { left: 0, digits: 0 };
/// Digits of a size: sixty bits are more than anybody sends.
const MOST_DIGITS: u8 = 15;
/// Bytes of extensions in all.
const MOST_EXTENSIONS: usize = 16 * 1024;
