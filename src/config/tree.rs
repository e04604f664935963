//! The file as a tree in which everything knows where it stood.
//!
//! serde's derive would give typed values at once, but it stops at the first mistake, and the contract is
//! that all mistakes of a file are reported together. Hence this tree of our own, and decoding of our own on
//! top of it ([`super::decode`]).

use std::collections::HashMap;
use std::fmt;

use super::span::Span;

/// A value and where it stood.
#[derive(Debug, Clone)]
pub struct Node {
    /// Where: a scalar's own text, or for a collection what best stands for it on one line.
    pub span: Span,
    /// What.
    pub kind: NodeKind,
}

/// What a node is.
#[derive(Debug, Clone)]
pub enum NodeKind {
    /// Keys and values in the file's order; no key twice.
    Mapping(Vec<(Node, Node)>),
    /// Nothing: `key:` with no value behind it, `~` or `null`.
    Null,
    /// Text, a number, a flag: what it means is decided by who reads it.
    Scalar(Scalar),
    /// A list.
    Sequence(Vec<Node>),
    /// Something that was complained about already: text from an environment that lacks it, or an alias of nothing.
    Unset,
}

/// A scalar.
#[derive(Clone)]
pub struct Scalar {
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
    /// The text, if it is a scalar.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.kind {
            NodeKind::Scalar(scalar) => Some(&scalar.text),
            _ => None,
        }
    }

    /// What to call it in a complaint.
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
