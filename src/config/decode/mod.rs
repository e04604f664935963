//! The tree becomes what the user wrote, key by key, without stopping at errors.
//!
//! A value that cannot be understood is reported and left out; decoding goes on with the next one. So what comes out may have
//! gaps, but every gap is reported already, and nothing after decoding reports it again.

pub(super) mod record;
pub(super) mod units;
pub(super) mod value;

use std::rc::Rc;

use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::report::{Diagnostic, Report};
use super::source::{self, Node, Span};

pub(super) use self::record::{record, settings};

/// What can be made from a node.
pub(crate) trait Decode: Sized {
    /// Whether it is a secret, or made of secrets.
    const SECRET: bool = false;

    /// The value; `None` once an error is reported.
    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self>;
}

/// The place in the tree that is decoded, and the report of its errors.
#[derive(Debug)]
pub(crate) struct DecodeContext<'a> {
    report: &'a mut Report,
    path: Vec<PathStep>,
    /// Where the key stands whose value is being decoded; `None` inside a list.
    key: Option<Span>,
    /// The next key is not in the file: its value stands for the whole mapping.
    shorthand: bool,
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
            shorthand: false,
            homes,
        }
    }

    /// Decodes the value of a key.
    fn below<T: Decode>(&mut self, key: &Node, value: &Node) -> Option<T> {
        if std::mem::take(&mut self.shorthand) {
            return T::decode(value, self);
        }
        let name = key.text().unwrap_or_default().to_owned();
        self.step(PathStep::Key(name), Some(key.span), value)
    }

    /// Decodes an item of a list.
    fn item<T: Decode>(&mut self, index: usize, item: &Node) -> Option<T> {
        self.step(PathStep::Index(index), None, item)
    }

    fn step<T: Decode>(&mut self, step: PathStep, key: Option<Span>, node: &Node) -> Option<T> {
        self.path.push(step);
        let outer = std::mem::replace(&mut self.key, key);
        let decoded = T::decode(node, self);
        self.key = outer;
        self.path.pop();
        decoded
    }

    /// Hides a node wherever the file is shown.
    pub(super) fn hide(&mut self, node: &Node) {
        self.report.hidden_mut().add(node);
    }

    /// Hides a part of a node's text.
    pub(super) fn hide_part(&mut self, node: &Node, part: std::ops::Range<usize>) {
        self.report.hidden_mut().add_part(node, Some(part));
    }

    /// The place to report for a whole collection: the key it belongs to, else its beginning.
    fn place(&self, node: &Node) -> Span {
        self.key.unwrap_or(node.span)
    }

    /// The key whose value is being decoded.
    pub(super) fn name(&self) -> &str {
        let key = self.path.iter().rev().find_map(|step| match step {
            PathStep::Key(key) => Some(key.as_str()),
            PathStep::Index(_) => None,
        });
        key.unwrap_or("the configuration")
    }

    /// Reports an error with the path of the place that is decoded.
    pub(super) fn report(&mut self, diagnostic: Diagnostic) {
        let path = self
            .path
            .iter()
            .fold(String::new(), |path, step| match step {
                PathStep::Key(key) => source::join(&path, key),
                PathStep::Index(index) => format!("{path}[{index}]"),
            });
        self.report.add(diagnostic.at(path));
    }

    /// Reports an error of a value below, whose path follows from its place.
    pub(crate) fn report_below(&mut self, diagnostic: Diagnostic) {
        self.report.add(diagnostic);
    }

    /// Reports that something else was expected here.
    pub(super) fn type_error(&mut self, node: &Node, what: &str) {
        let diagnostic = match node.kind {
            // What it would have been is unknown, and was reported.
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
        self.report(diagnostic);
    }
}

/// A value and where it stood.
#[derive(Debug, Clone)]
pub(crate) struct Spanned<T> {
    /// The value.
    pub(crate) value: T,
    /// Where it stood.
    pub(crate) span: Span,
}

/// What stands under one key of a record. Empty where the key was not given, or where its value was wrong, which is
/// reported then.
#[derive(Debug, Clone)]
pub(crate) struct Field<T, const REQUIRED: bool = false> {
    // Shared, because every location inherits those of its server.
    value: Option<Rc<Spanned<T>>>,
    key: Option<Span>,
}

/// What stands under a key that must be given.
pub(crate) type Required<T> = Field<T, true>;

impl<T, const REQUIRED: bool> Default for Field<T, REQUIRED> {
    fn default() -> Self {
        Self {
            value: None,
            key: None,
        }
    }
}

impl<T, const REQUIRED: bool> Field<T, REQUIRED> {
    /// The value, if one was given and could be understood.
    pub(crate) fn get(&self) -> Option<&Spanned<T>> {
        self.value.as_deref()
    }

    /// The value without its place.
    pub(crate) fn value(&self) -> Option<&T> {
        self.value.as_ref().map(|given| &given.value)
    }

    /// Where its key stands, if it was given, understood or not.
    pub(crate) fn key(&self) -> Option<Span> {
        self.key
    }

    /// The first of these with a value.
    pub(crate) fn inherit<'f>(mut levels: impl Iterator<Item = &'f Self> + Clone) -> Self
    where
        T: 'f,
    {
        let key = levels.clone().find_map(|field| field.key);
        match levels.find(|field| field.value.is_some()) {
            Some(field) => Self {
                value: field.value.clone(),
                key: field.key,
            },
            None => Self { value: None, key },
        }
    }
}

impl<T: Decode, const REQUIRED: bool> Field<T, REQUIRED> {
    /// Whether a mapping without it is incomplete.
    pub(crate) const REQUIRED: bool = REQUIRED;

    /// Whether its value is a secret, or made of secrets.
    pub(crate) const SECRET: bool = T::SECRET;

    /// Takes the value that was found under its key.
    pub(crate) fn fill(&mut self, key: &Node, value: &Node, context: &mut DecodeContext<'_>) {
        self.key = Some(key.span);
        self.value = context.below(key, value).map(Rc::new);
    }

    /// Reports that it is missing, if it must be given.
    pub(crate) fn demand(&self, name: &str, at: Span, context: &mut DecodeContext<'_>) {
        if REQUIRED && self.key.is_none() {
            context.report(Diagnostic::new(at, format!("`{name}` is missing here")));
        }
    }
}

impl<T: JsonSchema, const REQUIRED: bool> Field<T, REQUIRED> {
    /// The JSON Schema of its value.
    pub(crate) fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
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
