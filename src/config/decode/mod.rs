//! The tree becomes the user's model, key by key, without stopping at mistakes.
//!
//! Whoever cannot make sense of a value complains and says `None`; the caller goes on with the next one. So a
//! model may have gaps, but every gap has its complaint, and nothing downstream has to report it again.

mod containers;
mod field;
mod record;
mod scalar;

pub(super) use containers::{HasShorthand, List, NamedMap, OrOff, Shorthand};
pub(super) use field::{Field, FieldSlot, Required, Spanned};
pub(super) use record::{Properties, Record, own_name, record, schema_of};
pub(super) use scalar::{Text, choice, mistaken, number, or_environment, scalar, scalar_from};

use super::report::{Diagnostic, Report};
use super::span::Span;
use super::tree::Node;

/// What can be made from a node.
pub(super) trait Decode: Sized {
    /// Whether it is a secret, or made of secrets.
    const SECRET: bool = false;

    /// The value; `None` after a complaint.
    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self>;
}

/// Where we are in the tree, and whom to complain to.
#[derive(Debug)]
pub struct DecodeContext<'a> {
    report: &'a mut Report,
    path: Vec<PathStep>,
    /// Where the key stands whose value is being decoded; `None` inside a list.
    key: Option<Span>,
    /// The next key is not in the file: its value stands for the whole mapping.
    brief: bool,
    /// In which mapping a key would have been right.
    homes: fn(&str) -> Option<String>,
}

/// One step down.
#[derive(Debug, Clone)]
enum PathStep {
    Index(usize),
    Key(String),
}

impl<'a> DecodeContext<'a> {
    /// At the root.
    pub(super) fn new(report: &'a mut Report, homes: fn(&str) -> Option<String>) -> Self {
        Self {
            report,
            path: Vec::new(),
            key: None,
            brief: false,
            homes,
        }
    }

    /// Decodes the value of a key.
    fn below<T: Decode>(&mut self, key: &Node, value: &Node) -> Option<T> {
        if std::mem::take(&mut self.brief) {
            return T::decode(value, self);
        }
        let name = key.text().unwrap_or_default().to_owned();
        self.path.push(PathStep::Key(name));
        let outer = self.key.replace(key.span);
        let decoded = T::decode(value, self);
        self.key = outer;
        self.path.pop();
        decoded
    }

    /// Decodes an item of a list.
    fn item<T: Decode>(&mut self, index: usize, item: &Node) -> Option<T> {
        self.path.push(PathStep::Index(index));
        let outer = self.key.take();
        let decoded = T::decode(item, self);
        self.key = outer;
        self.path.pop();
        decoded
    }

    /// Hides a node from all who are shown the file.
    pub(super) fn hide(&mut self, node: &Node) {
        self.report.hidden_mut().add(node);
    }

    /// Hides a part of a node's text.
    pub(super) fn hide_part(&mut self, node: &Node, part: std::ops::Range<usize>) {
        self.report.hidden_mut().add_part(node, Some(part));
    }

    /// What best stands for a whole collection: the key it belongs to, else its beginning.
    fn place(&self, node: &Node) -> Span {
        self.key.unwrap_or(node.span)
    }

    /// The key whose value is being decoded.
    pub(super) fn name(&self) -> &str {
        self.path
            .iter()
            .rev()
            .find_map(|step| match step {
                PathStep::Key(key) => Some(key.as_str()),
                PathStep::Index(_) => None,
            })
            .unwrap_or("the configuration")
    }

    /// Notes a complaint with the path of where we are.
    pub(super) fn complain(&mut self, complaint: Diagnostic) {
        let path = self
            .path
            .iter()
            .fold(String::new(), |path, step| match step {
                PathStep::Key(key) => super::tree::join(&path, key),
                PathStep::Index(index) => format!("{path}[{index}]"),
            });
        self.report.add(complaint.at(path));
    }

    /// Complains that something else was expected here.
    pub(super) fn expected(&mut self, node: &Node, what: &str) {
        let complaint = match node.kind {
            // What it would have been is unknown, and was complained about.
            super::tree::NodeKind::Unset => return,
            super::tree::NodeKind::Null => {
                Diagnostic::new(self.place(node), format!("`{}` has no value", self.name()))
                    .help(format!("expected {what}"))
            }
            _ => Diagnostic::new(
                node.span,
                format!("expected {what}, found {}", node.describe()),
            ),
        };
        self.complain(complaint);
    }
}
