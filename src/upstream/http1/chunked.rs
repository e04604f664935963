//! The chunked coding, decoded in place: data leaves as slices of what was read.
//!
//! Where two readers could see two different bodies it is strict: lines end with CR LF, in extensions and trailers too,
//! and a size has no more digits than anybody sends.

use bytes::{Buf, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::reading::{Piece, take};

/// Where in the coding we are.
#[derive(Debug)]
pub(in crate::upstream) struct Chunked {
    state: State,
    /// Bytes of extensions so far: they are of no use to anybody and must not be endless.
    extensions: usize,
}

/// What came is not the chunked coding.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("malformed chunk")]
pub(in crate::upstream) struct Malformed;

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
    /// Past the end.
    Done,
    /// Past what cannot be read.
    Lost,
}

impl Chunked {
    pub(super) fn new() -> Self {
        Self {
            state: START,
            extensions: 0,
        }
    }

    /// The next piece of what was read; `None` if more has to be read first.
    pub(super) fn next(&mut self, read: &mut BytesMut) -> Result<Option<Piece>, Malformed> {
        self.skip(read)?;
        Ok(match &mut self.state {
            State::Data { left } if !read.is_empty() => {
                let data = take(left, read);
                if *left == 0 {
                    self.state = State::DataReturn;
                }
                Some(Piece::Data(data))
            }
            State::Trailers => return self.trailers(read),
            State::Done => Some(Piece::End(None)),
            _ => None,
        })
    }

    /// The end, if nothing but it comes next and it is there already.
    pub(super) fn end(&mut self, read: &mut BytesMut) -> Option<Option<HeaderMap>> {
        // What is wrong is found again by the next one to ask.
        self.skip(read).ok()?;
        if !matches!(self.state, State::Trailers) {
            return None;
        }
        match self.trailers(read) {
            Ok(Some(Piece::End(trailers))) => Some(trailers),
            _ => None,
        }
    }

    /// Reads on until there is data, or trailers, or nothing left.
    fn skip(&mut self, read: &mut BytesMut) -> Result<(), Malformed> {
        while !matches!(
            self.state,
            State::Data { .. } | State::Trailers | State::Done
        ) {
            let Some(byte) = read.first().copied() else {
                return Ok(());
            };
            let Some(state) = self.step(byte) else {
                self.state = State::Lost;
                return Err(Malformed);
            };
            read.advance(1);
            self.state = state;
        }
        Ok(())
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
            (State::Extension { left }, byte) if byte != b'\n' => {
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

    fn trailers(&mut self, read: &mut BytesMut) -> Result<Option<Piece>, Malformed> {
        if read.starts_with(b"\r\n") {
            read.advance(2);
            self.state = State::Done;
            return Ok(Some(Piece::End(None)));
        }
        let found = trailers(read);
        match found {
            Ok(None) => {}
            Ok(Some(_)) => self.state = State::Done,
            Err(Malformed) => self.state = State::Lost,
        }
        Ok(found?.map(|trailers| Piece::End(Some(trailers))))
    }

    fn spend(&mut self) -> Option<()> {
        self.extensions += 1;
        (self.extensions <= MOST_OVERHEAD).then_some(())
    }
}

/// Takes the trailers off what was read; `None` while they are incomplete.
fn trailers(read: &mut BytesMut) -> Result<Option<HeaderMap>, Malformed> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_TRAILERS];
    let parsed = httparse::parse_headers(read, &mut fields).map_err(|_| Malformed)?;
    let httparse::Status::Complete((length, fields)) = parsed else {
        let endless = read.len() > MOST_OVERHEAD;
        return if endless { Err(Malformed) } else { Ok(None) };
    };
    let text = &read[..length];
    let bare = |(at, byte): (usize, &u8)| *byte == b'\n' && !text[..at].ends_with(b"\r");
    if length > MOST_OVERHEAD || text.iter().enumerate().any(bare) {
        return Err(Malformed);
    }
    let mut trailers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| Malformed)?;
        let value = HeaderValue::from_bytes(field.value).map_err(|_| Malformed)?;
        trailers.append(name, value);
    }
    read.advance(length);
    Ok(Some(trailers))
}

const START: State = State::Size { left: 0, digits: 0 };
/// Digits of a size: sixty bits are more than anybody sends.
const MOST_DIGITS: u8 = 15;
/// Bytes of extensions in all, and of trailers.
const MOST_OVERHEAD: usize = 16 * 1024;
/// Trailer fields.
const MOST_TRAILERS: usize = 32;
