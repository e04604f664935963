//! What a mapping may hold under one key: a [`Field`] that may be left out, or one that is [`Required`].

use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::{Decode, DecodeContext};
use crate::config::report::Diagnostic;
use crate::config::span::Span;
use crate::config::tree::Node;

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
pub(in crate::config) trait FieldSlot {
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
