//! The tree becomes the user's model, key by key, without stopping at mistakes.
//!
//! Whoever cannot make sense of a value complains and says `None`; the caller goes on with the next one. So a
//! model may have gaps, but every gap has its complaint, and nothing downstream has to report it again.
//!
//! What a mapping may hold under one key: a [`Field`] that may be left out, or one that is [`Required`].

pub(super) mod record;
pub(super) mod units;
pub(super) mod value;

use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::report::{Diagnostic, Report};
use super::source::{self, Node, Span};

pub(super) use self::record::{record, settings};

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
                PathStep::Key(key) => source::join(&path, key),
                PathStep::Index(index) => format!("{path}[{index}]"),
            });
        self.report.add(complaint.at(path));
    }

    /// Complains that something else was expected here.
    pub(super) fn expected(&mut self, node: &Node, what: &str) {
        let complaint = match node.kind {
            // What it would have been is unknown, and was complained about.
            source::NodeKind::Unset => return,
            source::NodeKind::Null => {
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

/// A value and where it stood.
#[derive(Debug, Clone)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// Where it stood.
    pub span: Span,
}

/// A value that may be left out.
#[derive(Debug, Clone)]
pub struct Field<T> {
    value: Option<Spanned<T>>,
    key: Option<Span>,
}

/// A value that may not be left out. Still empty where it was, or was wrong; the complaint is made already.
#[derive(Debug, Clone)]
pub struct Required<T>(Field<T>);

impl<T> Default for Field<T> {
    fn default() -> Self {
        Self {
            value: None,
            key: None,
        }
    }
}

impl<T> Default for Required<T> {
    fn default() -> Self {
        Self(Field::default())
    }
}

impl<T> Field<T> {
    /// The value, if one was given and could be understood.
    #[must_use]
    pub fn get(&self) -> Option<&Spanned<T>> {
        self.value.as_ref()
    }

    /// The value without its place.
    #[must_use]
    pub fn value(&self) -> Option<&T> {
        self.value.as_ref().map(|given| &given.value)
    }

    /// Where its key stands, if it was given, understood or not.
    #[must_use]
    pub fn key(&self) -> Option<Span> {
        self.key
    }
}

impl<T> Required<T> {
    /// The value, if it could be understood.
    #[must_use]
    pub fn get(&self) -> Option<&Spanned<T>> {
        self.0.get()
    }

    /// The value without its place.
    #[must_use]
    pub fn value(&self) -> Option<&T> {
        self.0.value()
    }
}

impl<T: Decode> Decode for Spanned<T> {
    const SECRET: bool = T::SECRET;

    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        T::decode(node, context).map(|value| Self {
            value,
            span: node.span,
        })
    }
}

/// What stands under one key of a record.
pub(super) trait FieldSlot {
    /// Whether a mapping without it is incomplete.
    const NEEDED: bool;

    /// Whether what it takes is a secret, or made of secrets.
    const SECRET: bool;

    /// Takes the value that was found under its key.
    fn fill(&mut self, key: &Node, value: &Node, context: &mut DecodeContext<'_>);

    /// Complains if it is needed and was not there.
    fn demand(&self, name: &str, at: Span, context: &mut DecodeContext<'_>);

    /// What its value looks like.
    fn schema(generator: &mut SchemaGenerator) -> Schema;
}

impl<T: Decode + JsonSchema> FieldSlot for Field<T> {
    const NEEDED: bool = false;
    const SECRET: bool = T::SECRET;

    fn fill(&mut self, key: &Node, value: &Node, context: &mut DecodeContext<'_>) {
        self.key = Some(key.span);
        self.value = context.below(key, value);
    }

    fn demand(&self, _: &str, _: Span, _: &mut DecodeContext<'_>) {}

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
    }
}

impl<T: Decode + JsonSchema> FieldSlot for Required<T> {
    const NEEDED: bool = true;
    const SECRET: bool = T::SECRET;

    fn fill(&mut self, key: &Node, value: &Node, context: &mut DecodeContext<'_>) {
        self.0.fill(key, value, context);
    }

    fn demand(&self, name: &str, at: Span, context: &mut DecodeContext<'_>) {
        if self.0.key.is_none() {
            context.complain(Diagnostic::new(at, format!("`{name}` is missing here")));
        }
    }

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
    }
}
