//! All logs as one: their lines in the order of their times, those that are none set aside.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;

use super::format::InputFormat;
use super::input::{self, LogReader};
use super::line::LineParser;
use super::needs::FieldPlan;
use super::order::LogEntry;

/// A line that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    /// Its file.
    pub file: Box<str>,
    /// Its number.
    pub line: u64,
    /// How it begins.
    pub text: String,
}

/// What was found besides requests.
#[derive(Debug, Default)]
pub(super) struct ReadStats {
    pub(super) lines: u64,
    pub(super) skipped: u64,
    /// The first of them.
    pub(super) bad: Vec<BadLine>,
    /// Files that could not be read to their end, and why.
    pub(super) damaged: Vec<(Box<str>, String)>,
}

/// Several logs, read side by side.
#[derive(Debug)]
pub(super) struct LogMerger {
    sources: Vec<LogSource>,
    /// The one whose head is the earliest, and the head of the next after it.
    current: usize,
    until: i64,
    pub(super) found: ReadStats,
    progress: Rc<Cell<u64>>,
}

#[derive(Debug)]
struct LogSource {
    file: u32,
    lines: LogReader,
    reading: Option<LineParser>,
    head: Option<LogEntry>,
}

impl LogMerger {
    /// Opens all files.
    pub(super) fn open(paths: &[PathBuf]) -> Result<Self, input::InputError> {
        let progress = Rc::new(Cell::new(0));
        let mut sources = Vec::new();
        for (file, path) in (0..).zip(paths) {
            sources.push(LogSource {
                file,
                lines: LogReader::open(path, Rc::clone(&progress))?,
                reading: None,
                head: None,
            });
        }
        Ok(Self {
            sources,
            current: 0,
            until: i64::MIN,
            found: ReadStats::default(),
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

    /// Begins to read lines of this format.
    pub(super) fn begin(&mut self, needs: &FieldPlan, format: &InputFormat) {
        for source in &mut self.sources {
            source.reading = Some(LineParser::new(needs.clone(), format));
            source.advance(&mut self.found);
        }
        self.choose();
    }

    /// Gives the next request and its texts to `take`; false if there is none.
    pub(super) fn next(&mut self, take: impl FnOnce(LogEntry, &[u8])) -> bool {
        let Some(source) = self.sources.get_mut(self.current) else {
            return false;
        };
        let (Some(entry), Some(reading)) = (source.head.take(), &source.reading) else {
            return false;
        };
        take(entry, reading.texts());
        source.advance(&mut self.found);
        if source.head.is_none_or(|head| head.at > self.until) {
            self.choose();
        }
        true
    }

    /// Bytes read so far, as they are in the files.
    pub(super) fn read(&self) -> u64 {
        self.progress.get()
    }

    /// What a file is called.
    pub(super) fn names(&self) -> Vec<Box<str>> {
        self.sources
            .iter()
            .map(|source| source.lines.name.clone())
            .collect()
    }

    /// Finds the source whose head is the earliest; of equals, the first.
    fn choose(&mut self) {
        let heads = self.sources.iter().enumerate();
        let mut heads: Vec<_> = heads
            .filter_map(|(index, source)| Some((source.head?.at, index)))
            .collect();
        heads.sort_unstable();
        if let Some((_, index)) = heads.first() {
            self.current = *index;
        }
        // One before another with the same time may go on only where it also stands before it.
        self.until = match heads.get(1) {
            Some((at, index)) => at - i64::from(*index < self.current),
            None => i64::MAX,
        };
    }
}

impl LogSource {
    /// Goes on to the next line that is a request.
    fn advance(&mut self, found: &mut ReadStats) {
        let Some(reading) = &mut self.reading else {
            return;
        };
        while self.lines.advance() {
            found.lines += 1;
            let line = self.lines.line();
            self.head = reading.read(line, (self.file, self.lines.number));
            if self.head.is_some() {
                return;
            }
            found.skipped += 1;
            if found.bad.len() < MOST_SHOWN {
                let start = &line[..line.len().min(LONGEST_SHOWN)];
                found.bad.push(BadLine {
                    file: self.lines.name.clone(),
                    line: self.lines.number,
                    text: String::from_utf8_lossy(start).into_owned(),
                });
            }
        }
        if let Some(damage) = self.lines.damage.take() {
            found
                .damaged
                .push((self.lines.name.clone(), damage.to_string()));
        }
    }
}

/// Lines that are shown of those that could not be read.
const MOST_SHOWN: usize = 10;

/// How much of such a line, in bytes.
const LONGEST_SHOWN: usize = 120;
