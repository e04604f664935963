//! Lists, mappings with free keys, and the shorter ways of writing them.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use super::{Decode, DecodeContext, Record, Spanned};
use crate::config::tree::{Node, NodeKind, Scalar};

/// A list; one of one may be written as the value itself.
#[derive(Debug, Clone)]
pub struct List<T>(pub Vec<Spanned<T>>);

/// A mapping from names of the user's own.
#[derive(Debug, Clone)]
pub struct NamedMap<T> {
    /// In the file's order.
    pub entries: Vec<(Spanned<String>, Spanned<T>)>,
    /// Names whose values could not be understood: who refers to one of them is not wrong for that.
    pub broken: Vec<String>,
}

/// Something, or the word `off` for none of it.
#[derive(Debug, Clone)]
pub enum OrOff<T> {
    /// None of it.
    Off,
    /// Something.
    On(T),
}

/// A record that may be written as the value of its most important key alone.
#[derive(Debug, Clone)]
pub struct Shorthand<T>(pub T);

/// Which key that is.
pub trait HasShorthand: Record {
    /// The key.
    const KEY: &'static str;
}

impl<T: Decode> Decode for List<T> {
    const SECRET: bool = T::SECRET;

    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        let NodeKind::Sequence(items) = &node.kind else {
            let value = Spanned::decode(node, context)?;
            return Some(Self(vec![value]));
        };
        // What could not be understood is left out; the others may have mistakes of their own to report.
        Some(Self(
            items
                .iter()
                .enumerate()
                .filter_map(|(index, item)| context.item(index, item))
                .collect(),
        ))
    }
}

impl<T: Decode> Decode for NamedMap<T> {
    const SECRET: bool = T::SECRET;

    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        let NodeKind::Mapping(pairs) = &node.kind else {
            context.expected(node, "a mapping");
            return None;
        };
        let mut named = Self {
            entries: Vec::new(),
            broken: Vec::new(),
        };
        for (key, value) in pairs {
            let name = key.text().unwrap_or_default().to_owned();
            match context.below(key, value) {
                Some(value) => named.entries.push((
                    Spanned {
                        value: name,
                        span: key.span,
                    },
                    value,
                )),
                None => named.broken.push(name),
            }
        }
        Some(named)
    }
}

impl<T: Decode> Decode for OrOff<T> {
    const SECRET: bool = T::SECRET;

    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        match &node.kind {
            NodeKind::Scalar(scalar) if matches!(scalar.text.as_str(), "off" | "false" | "no") => {
                Some(Self::Off)
            }
            _ => T::decode(node, context).map(Self::On),
        }
    }
}

impl<T: HasShorthand> Decode for Shorthand<T> {
    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        let NodeKind::Scalar(_) = &node.kind else {
            return context.record(node).map(Self);
        };
        let key = Node {
            span: node.span,
            kind: NodeKind::Scalar(Scalar {
                text: T::KEY.to_owned(),
                quoted: false,
                verbatim: None,
            }),
        };
        let mut record = T::default();
        context.brief = true;
        record.take(&key, node, context);
        record.finish(node.span, context);
        Some(Self(record))
    }
}

impl<T: JsonSchema> JsonSchema for List<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("ListOf{}", T::schema_name()).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let item = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [item, { "type": "array", "items": item }] })
    }
}

impl<T: JsonSchema> JsonSchema for NamedMap<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("Named{}", T::schema_name()).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let value = generator.subschema_for::<T>();
        let include = generator.subschema_for::<super::record::Include>();
        json_schema!({
            "type": "object",
            "properties": { "include": include },
            "additionalProperties": value,
        })
    }
}

impl<T: JsonSchema> JsonSchema for OrOff<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("{}OrOff", T::schema_name()).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let value = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [value, { "enum": ["off", false] }] })
    }
}

impl<T: HasShorthand + JsonSchema> JsonSchema for Shorthand<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("Brief{}", T::schema_name()).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let whole = generator.subschema_for::<T>();
        let mut properties = super::record::Properties::default();
        T::properties(generator, &mut properties);
        let brief = properties.of(T::KEY).unwrap_or(Value::Bool(true));
        json_schema!({ "anyOf": [brief, whole] })
    }
}
