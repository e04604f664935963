//! Where something stood: a file of those that were read, and a range of bytes in it.
//!
//! Positions are bytes until somebody wants to see them; lines and columns are counted only for the few
//! that end up in a complaint.

use std::fmt;

/// Where something stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// Which file, in the order they were read.
    pub file: usize,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// The files a configuration was read from.
#[derive(Debug, Default)]
pub(super) struct Sources {
    files: Vec<SourceFile>,
}

/// One of them.
struct SourceFile {
    name: String,
    text: String,
    /// Where each line begins: a file may be long, and its complaints many.
    lines: Vec<usize>,
}

// Without the text: there may be secrets in it.
impl fmt::Debug for SourceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The line a complaint is about, cut out for drawing.
#[derive(Debug)]
pub(super) struct Excerpt<'a> {
    /// The file.
    pub(super) name: &'a str,
    /// Number of the line, from 1.
    pub(super) line: usize,
    /// Number of the first character the complaint is about, from 1.
    pub(super) column: usize,
    /// First byte of the line in its file.
    pub(super) start: usize,
    /// The line itself, without its end.
    pub(super) text: &'a str,
    /// What to mark in it, in bytes.
    pub(super) marked: std::ops::Range<usize>,
}

impl Sources {
    /// Keeps a file's text and gives it a number.
    pub(super) fn add(&mut self, name: String, text: String) -> usize {
        let lines = std::iter::once(0)
            .chain(text.match_indices('\n').map(|(newline, _)| newline + 1))
            .collect();
        self.files.push(SourceFile { name, text, lines });
        self.files.len() - 1
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// A file's text.
    pub(super) fn text(&self, file: usize) -> &str {
        self.files.get(file).map_or("", |source| &source.text)
    }

    /// A file's name.
    pub(super) fn name(&self, file: usize) -> &str {
        self.files.get(file).map_or("", |source| &source.name)
    }

    /// The line on which a span begins.
    pub(super) fn excerpt(&self, span: Span) -> Excerpt<'_> {
        let text = self.text(span.file);
        let start = floor(text, span.start);
        let lines = self
            .files
            .get(span.file)
            .map_or(&[0][..], |source| &source.lines);
        let number = lines.partition_point(|begin| *begin <= start).max(1);
        let line_start = lines.get(number - 1).copied().unwrap_or(0);
        let line_end = lines.get(number).map_or(text.len(), |next| next - 1);
        let line = text
            .get(line_start..line_end)
            .unwrap_or_default()
            .trim_end_matches('\r');
        let end =
            floor(text, span.end).clamp(start, line_start + line.len().max(start - line_start));
        let column = text.get(line_start..start).unwrap_or_default();
        Excerpt {
            name: self.name(span.file),
            line: number,
            column: column.chars().count() + 1,
            start: line_start,
            text: line,
            marked: (start - line_start).min(line.len())..(end - line_start).min(line.len()),
        }
    }

    /// `file:line:column` of a span.
    pub(super) fn place(&self, span: Span) -> String {
        let excerpt = self.excerpt(span);
        format!("{}:{}:{}", excerpt.name, excerpt.line, excerpt.column)
    }
}

/// The nearest character boundary at or before `at`.
fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters_not_bytes() {
        let mut sources = Sources::default();
        let file = sources.add("a.yaml".into(), "x: 1\nü: öö\n".into());
        let span = Span {
            file,
            start: 9,
            end: 13,
        };
        assert_eq!(sources.place(span), "a.yaml:2:4");
        assert_eq!(sources.excerpt(span).text, "ü: öö");
    }

    #[test]
    fn a_span_beyond_the_end_still_has_a_place() {
        let mut sources = Sources::default();
        let file = sources.add("a.yaml".into(), "a: {b".into());
        let span = Span {
            file,
            start: 90,
            end: 91,
        };
        assert_eq!(sources.place(span), "a.yaml:1:6");
    }
}
