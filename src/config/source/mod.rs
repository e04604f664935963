//! The files of a configuration, and the tree that is read from them, in which everything knows where it stood.
//!
//! Positions are bytes; lines and columns are counted only for the few that end up in a report. serde's derive would give
//! typed values at once, but it stops at the first error, and all errors of a file are reported together. Hence this tree,
//! and the decoding on top of it ([`super::decode`]).

pub(super) mod read;
mod yaml;

use std::collections::HashMap;
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

impl Span {
    /// No place: of what stands in no file.
    pub const NOWHERE: Self = Self {
        file: 0,
        start: 0,
        end: 0,
    };
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
    /// Where each line begins: a file may be long, and its errors many.
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

/// The line of a diagnostic, cut out for drawing.
#[derive(Debug)]
pub(super) struct Excerpt<'a> {
    /// The file.
    pub(super) name: &'a str,
    /// Number of the line, from 1.
    pub(super) line: usize,
    /// Number of the first marked character, from 1.
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

/// A value and where it stood.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// Where: a scalar's own text, or for a collection what best stands for it on one line.
    pub span: Span,
    /// What.
    pub kind: NodeKind,
}

/// What a node is.
#[derive(Debug, Clone)]
pub(crate) enum NodeKind {
    /// Keys and values in the file's order; no key twice.
    Mapping(Vec<(Node, Node)>),
    /// Nothing: `key:` with no value behind it, `~` or `null`.
    Null,
    /// Text, a number, a flag: its meaning depends on its key.
    Scalar(Scalar),
    /// A list.
    Sequence(Vec<Node>),
    /// A value that is reported already: text from an environment that lacks it, or an alias of nothing.
    Unset,
}

/// A scalar.
#[derive(Clone)]
pub(crate) struct Scalar {
    /// Its text after escapes and environment.
    pub text: String,
    /// Whether it stood in quotes or in a block, so that it is text whatever it looks like.
    pub quoted: bool,
    /// The position of its first byte, where the text stands in the file exactly as it is here.
    pub verbatim: Option<usize>,
}

// Without the text: whether it is a secret is not known before it is decoded.
impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scalar").finish_non_exhaustive()
    }
}

impl Node {
    /// A text that stands in no file as it is here.
    pub(super) fn scalar(text: impl Into<String>, span: Span) -> Self {
        Self {
            span,
            kind: NodeKind::Scalar(Scalar {
                text: text.into(),
                quoted: false,
                verbatim: None,
            }),
        }
    }

    /// The text, if it is a scalar.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.kind {
            NodeKind::Scalar(scalar) => Some(&scalar.text),
            _ => None,
        }
    }

    /// Its name in a diagnostic.
    pub(super) fn describe(&self) -> String {
        match &self.kind {
            NodeKind::Mapping(_) => "a mapping".to_owned(),
            NodeKind::Null | NodeKind::Unset => "nothing".to_owned(),
            NodeKind::Scalar(scalar) => format!("`{}`", shorten(&scalar.text)),
            NodeKind::Sequence(_) => "a list".to_owned(),
        }
    }

    /// How many nodes it is made of.
    pub(super) fn weight(&self) -> usize {
        1 + match &self.kind {
            NodeKind::Mapping(pairs) => pairs
                .iter()
                .map(|(key, value)| key.weight() + value.weight())
                .sum(),
            NodeKind::Sequence(items) => items.iter().map(Self::weight).sum(),
            NodeKind::Null | NodeKind::Scalar(_) | NodeKind::Unset => 0,
        }
    }

    /// How deep it nests.
    pub(super) fn depth(&self) -> usize {
        1 + match &self.kind {
            NodeKind::Mapping(pairs) => pairs.iter().map(|(_, value)| value.depth()).max(),
            NodeKind::Sequence(items) => items.iter().map(Self::depth).max(),
            NodeKind::Null | NodeKind::Scalar(_) | NodeKind::Unset => None,
        }
        .unwrap_or(0)
    }

    /// The way to every node below this one, by where it stands.
    pub(super) fn paths(&self) -> HashMap<Span, String> {
        let mut paths = HashMap::new();
        self.gather_paths("", &mut paths);
        paths
    }

    fn gather_paths(&self, here: &str, paths: &mut HashMap<Span, String>) {
        match &self.kind {
            NodeKind::Mapping(pairs) => {
                for (key, value) in pairs {
                    let below = join(here, key.text().unwrap_or("?"));
                    value.gather_paths(&below, paths);
                    paths.entry(key.span).or_insert(below);
                }
            }
            NodeKind::Sequence(items) => {
                for (index, item) in items.iter().enumerate() {
                    item.gather_paths(&format!("{here}[{index}]"), paths);
                }
            }
            NodeKind::Null | NodeKind::Scalar(_) | NodeKind::Unset => {}
        }
        paths.entry(self.span).or_insert_with(|| here.to_owned());
    }
}

/// A path with one more key.
pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// The beginning of a text that may be long.
pub(super) fn shorten(text: &str) -> String {
    const MOST: usize = 60;
    let line = text.lines().next().unwrap_or_default();
    if line.len() == text.len() && text.chars().count() <= MOST {
        return text.to_owned();
    }
    line.chars().take(MOST).chain(['…']).collect()
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
