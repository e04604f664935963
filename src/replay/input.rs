//! Reads logs: files or standard input, plain or compressed with gzip or zstd, merged in the order of their times.
//!
//! The compression is told from the first bytes, not from the name.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use memchr::memchr;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use serde::Serialize;

use super::fields::{FieldPlan, LineParser};
use super::format::InputFormat;
use super::order::LogEntry;

/// A log that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}", path.display())]
pub struct InputError {
    /// Its path.
    pub path: PathBuf,
    /// The cause.
    #[source]
    pub source: io::Error,
}

/// Reads a log line by line.
pub(super) struct LogReader {
    pub(super) name: Box<str>,
    reader: Box<dyn Read>,
    buffer: Vec<u8>,
    /// Where the current line begins and ends in the buffer, and where the next one begins.
    line: (usize, usize),
    next: usize,
    filled: usize,
    /// The number of the current line.
    pub(super) number: u64,
    /// The error that ended the log early.
    pub(super) damage: Option<io::Error>,
    ended: bool,
}

impl std::fmt::Debug for LogReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogReader")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl LogReader {
    /// Opens a file, or standard input for `-`. Bytes read from it, still compressed, are added to `progress`.
    pub(super) fn open(path: &Path, progress: Rc<Cell<u64>>) -> Result<Self, InputError> {
        let failed = |source| InputError {
            path: path.to_owned(),
            source,
        };
        let (name, raw): (Box<str>, Box<dyn Read>) = if path == Path::new("-") {
            ("standard input".into(), Box::new(io::stdin()))
        } else {
            let file = File::open(path).map_err(failed)?;
            if file.metadata().is_ok_and(|it| it.is_dir()) {
                return Err(failed(io::Error::from(io::ErrorKind::IsADirectory)));
            }
            (path.to_string_lossy().into(), Box::new(file))
        };
        let counted = CountingReader { raw, progress };
        let reader = decompress(BufReader::with_capacity(CHUNK, counted)).map_err(failed)?;
        Ok(Self::of(name, reader))
    }

    fn of(name: Box<str>, reader: Box<dyn Read>) -> Self {
        Self {
            name,
            reader,
            buffer: vec![0; CHUNK],
            line: (0, 0),
            next: 0,
            filled: 0,
            number: 0,
            damage: None,
            ended: false,
        }
    }

    /// The current line, without its end.
    pub(super) fn line(&self) -> &[u8] {
        &self.buffer[self.line.0..self.line.1]
    }

    /// Goes on to the next line; false if there is none. A line longer than [`LONGEST`] is cut off there and the rest of it
    /// skipped.
    pub(super) fn advance(&mut self) -> bool {
        let mut searched = self.next;
        loop {
            if let Some(at) = memchr(b'\n', &self.buffer[searched..self.filled]) {
                let end = searched + at;
                self.take(end, end + 1);
                return true;
            }
            searched = self.filled;
            if self.filled - self.next > LONGEST {
                self.take(self.next + LONGEST, self.filled);
                self.skip_line();
                return true;
            }
            if !self.fill(&mut searched) {
                let rest = self.filled > self.next;
                if rest {
                    self.take(self.filled, self.filled);
                }
                return rest;
            }
        }
    }

    /// The first lines, without going on to any.
    pub(super) fn first(&mut self) -> Vec<Vec<u8>> {
        while self.filled < self.buffer.len() && self.fill(&mut 0) {
            if memchr(b'\n', &self.buffer[..self.filled]).is_some() {
                break;
            }
        }
        let start = &self.buffer[..self.filled];
        let lines = start
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        lines
            .take(FEW)
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line).to_vec())
            .collect()
    }

    fn take(&mut self, end: usize, next: usize) {
        let carriage_return = end > self.next && self.buffer[end - 1] == b'\r';
        self.line = (self.next, end - usize::from(carriage_return));
        self.next = next;
        self.number += 1;
    }

    /// Reads on; false at the end. Unread bytes move to the front when there is no room behind them.
    fn fill(&mut self, searched: &mut usize) -> bool {
        if self.ended {
            return false;
        }
        if self.filled == self.buffer.len() {
            if self.next > 0 {
                self.buffer.copy_within(self.next..self.filled, 0);
                *searched -= self.next;
                self.filled -= self.next;
                self.next = 0;
            } else {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
        }
        let read = self.read();
        self.filled += read;
        read > 0
    }

    fn read(&mut self) -> usize {
        loop {
            match self.reader.read(&mut self.buffer[self.filled..]) {
                Ok(0) => self.ended = true,
                Ok(read) => return read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.damage = Some(error);
                    self.ended = true;
                }
            }
            return 0;
        }
    }

    /// Skips the rest of a line that is too long, without touching the current one.
    fn skip_line(&mut self) {
        let mut scratch = vec![0; CHUNK];
        loop {
            match self.reader.read(&mut scratch) {
                Ok(0) => self.ended = true,
                Ok(read) => {
                    let Some(end) = memchr(b'\n', &scratch[..read]) else {
                        continue;
                    };
                    let rest = &scratch[end + 1..read];
                    self.buffer.truncate(self.filled);
                    self.buffer.extend_from_slice(rest);
                    self.filled = self.buffer.len();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.damage = Some(error);
                    self.ended = true;
                }
            }
            return;
        }
    }
}

struct CountingReader {
    raw: Box<dyn Read>,
    progress: Rc<Cell<u64>>,
}

impl Read for CountingReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.raw.read(into)?;
        self.progress.set(self.progress.get() + read as u64);
        Ok(read)
    }
}

/// Decompresses what the first bytes say is compressed.
fn decompress(mut raw: BufReader<CountingReader>) -> io::Result<Box<dyn Read>> {
    let start = raw.fill_buf()?;
    Ok(if start.starts_with(&[0x1f, 0x8b]) {
        Box::new(MultiGzDecoder::new(raw))
    } else if start.starts_with(&ZSTD) || matches!(start, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]) {
        Box::new(ZstdReader {
            raw,
            decoder: FrameDecoder::new(),
            inside: false,
        })
    } else {
        Box::new(raw)
    })
}

/// Decompresses zstd, one frame after the other.
struct ZstdReader {
    raw: BufReader<CountingReader>,
    decoder: FrameDecoder,
    inside: bool,
}

impl ZstdReader {
    /// Begins the next frame; false if there is none.
    fn begin(&mut self) -> io::Result<bool> {
        loop {
            if self.raw.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.raw) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    io::copy(&mut self.raw.by_ref().take(length.into()), &mut io::sink())?;
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }
}

impl Read for ZstdReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.inside {
                self.inside = self.begin()?;
                if !self.inside {
                    return Ok(0);
                }
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.raw, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(io::Error::other)?;
            }
            let read = self.decoder.read(into)?;
            if read > 0 {
                return Ok(read);
            }
            self.inside = false;
        }
    }
}

/// How many lines the format is guessed from.
const FEW: usize = 20;

/// The first bytes of zstd.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Bytes read at once.
const CHUNK: usize = 256 * 1024;

/// The longest line, in bytes: more than any request line and all headers together.
const LONGEST: usize = 1024 * 1024;

/// A malformed line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BadLine {
    /// Its file.
    pub file: Box<str>,
    /// Its number.
    pub line: u64,
    /// Its beginning.
    pub text: String,
}

/// What was read besides requests.
#[derive(Debug, Default)]
pub(super) struct ReadStats {
    pub(super) lines: u64,
    /// Malformed lines.
    pub(super) skipped: u64,
    /// The first of them.
    pub(super) bad: Vec<BadLine>,
    /// Files that could not be read to their end, each with the error.
    pub(super) damaged: Vec<(Box<str>, String)>,
}

/// Reads several logs side by side.
#[derive(Debug)]
pub(super) struct LogMerger {
    sources: Vec<LogSource>,
    /// The source whose next request is the earliest, and until when it stays so.
    current: usize,
    until: i64,
    pub(super) stats: ReadStats,
    progress: Rc<Cell<u64>>,
}

#[derive(Debug)]
struct LogSource {
    file: u32,
    lines: LogReader,
    parser: Option<LineParser>,
    next: Option<LogEntry>,
}

impl LogMerger {
    /// Opens all files.
    pub(super) fn open(paths: &[PathBuf]) -> Result<Self, InputError> {
        let progress = Rc::new(Cell::new(0));
        let mut sources = Vec::new();
        for (file, path) in (0..).zip(paths) {
            sources.push(LogSource {
                file,
                lines: LogReader::open(path, Rc::clone(&progress))?,
                parser: None,
                next: None,
            });
        }
        Ok(Self {
            sources,
            current: 0,
            until: i64::MIN,
            stats: ReadStats::default(),
            progress,
        })
    }

    /// The first lines of the first file that has any.
    pub(super) fn first_lines(&mut self) -> Vec<Vec<u8>> {
        let mut sources = self.sources.iter_mut();
        sources
            .find_map(|source| Some(source.lines.first()).filter(|lines| !lines.is_empty()))
            .unwrap_or_default()
    }

    /// Starts to read lines of this format.
    pub(super) fn begin(&mut self, needs: &FieldPlan, format: &InputFormat) {
        for source in &mut self.sources {
            source.parser = Some(LineParser::new(needs.clone(), format));
            source.advance(&mut self.stats);
        }
        self.choose();
    }

    /// Passes the next request and its texts to `take`; false if there is none.
    pub(super) fn next(&mut self, take: impl FnOnce(LogEntry, &[u8])) -> bool {
        let Some(source) = self.sources.get_mut(self.current) else {
            return false;
        };
        let (Some(entry), Some(parser)) = (source.next.take(), &source.parser) else {
            return false;
        };
        take(entry, parser.texts());
        source.advance(&mut self.stats);
        if source.next.is_none_or(|next| next.at > self.until) {
            self.choose();
        }
        true
    }

    /// Bytes read so far, still compressed.
    pub(super) fn read(&self) -> u64 {
        self.progress.get()
    }

    /// The names of the files.
    pub(super) fn names(&self) -> Vec<Box<str>> {
        self.sources
            .iter()
            .map(|source| source.lines.name.clone())
            .collect()
    }

    /// Finds the source whose next request is the earliest; of equals, the first.
    fn choose(&mut self) {
        let sources = self.sources.iter().enumerate();
        let mut times: Vec<_> = sources
            .filter_map(|(index, source)| Some((source.next?.at, index)))
            .collect();
        times.sort_unstable();
        if let Some((_, index)) = times.first() {
            self.current = *index;
        }
        // Of two sources with the same time, the first goes on.
        self.until = match times.get(1) {
            Some((at, index)) => at - i64::from(*index < self.current),
            None => i64::MAX,
        };
    }
}

impl LogSource {
    /// Goes on to the next line that is a request.
    fn advance(&mut self, stats: &mut ReadStats) {
        let Some(parser) = &mut self.parser else {
            return;
        };
        while self.lines.advance() {
            stats.lines += 1;
            let line = self.lines.line();
            self.next = parser.read(line, (self.file, self.lines.number));
            if self.next.is_some() {
                return;
            }
            stats.skipped += 1;
            if stats.bad.len() < MOST_SHOWN {
                let start = &line[..line.len().min(LONGEST_SHOWN)];
                stats.bad.push(BadLine {
                    file: self.lines.name.clone(),
                    line: self.lines.number,
                    text: String::from_utf8_lossy(start).into_owned(),
                });
            }
        }
        if let Some(damage) = self.lines.damage.take() {
            stats
                .damaged
                .push((self.lines.name.clone(), damage.to_string()));
        }
    }
}

/// How many malformed lines are shown.
const MOST_SHOWN: usize = 10;

/// How much of a malformed line is shown, in bytes.
const LONGEST_SHOWN: usize = 120;

#[cfg(test)]
mod tests {

    use super::*;

    /// A reader that returns its bytes in pieces of a given size.
    struct Trickle(Vec<u8>, usize, usize);

    impl Read for Trickle {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let rest = &self.0[self.1..];
            let length = rest.len().min(self.2).min(into.len());
            into[..length].copy_from_slice(&rest[..length]);
            self.1 += length;
            Ok(length)
        }
    }

    fn lines(text: &[u8], piece: usize) -> Vec<Vec<u8>> {
        let mut lines = LogReader::of("x".into(), Box::new(Trickle(text.to_vec(), 0, piece)));
        let mut all = Vec::new();
        while lines.advance() {
            all.push(lines.line().to_vec());
            assert_eq!(lines.number, all.len() as u64);
        }
        all
    }

    #[test]
    fn lines_are_found_in_pieces_of_any_size() {
        for piece in [1, 2, 3, 7, 1000] {
            let found = lines(b"one\r\ntwo\n\nfour", piece);
            assert_eq!(found, [&b"one"[..], b"two", b"", b"four"], "{piece}");
        }
        assert!(lines(b"", 1).is_empty());
    }

    #[test]
    fn many_lines_pass_through_a_small_buffer() {
        let text: Vec<u8> = (0..100_000)
            .flat_map(|n| format!("line {n}\n").into_bytes())
            .collect();
        let found = lines(&text, 5_003);
        assert_eq!(found.len(), 100_000);
        assert_eq!(found[99_999], b"line 99999");
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_off() {
        let mut text = vec![b'x'; 5 * LONGEST];
        text.extend_from_slice(b"\nnext\nlast\n");
        for piece in [CHUNK, 100_003] {
            let found = lines(&text, piece);
            assert_eq!(found.len(), 3);
            assert_eq!(found[0].len(), LONGEST);
            assert_eq!(found[1..], [b"next", b"last"]);
        }
    }
}
