//! Mappings with known keys: the `record!` macro.
//!
//! It makes from one declaration the struct, its decoding, its list of known keys and its JSON Schema, the
//! doc comments becoming the schema's descriptions: a key is named once, and cannot be known to one of them
//! and unknown to another.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::DecodeContext;
use crate::config::report;
use crate::config::report::Diagnostic;
use crate::config::source::{Node, NodeKind, Span};

/// A mapping with known keys.
pub trait Record: Default {
    /// Whether one of its own keys takes a secret.
    const SECRET: bool;

    /// Takes a key's value; `false` if the key is not one of its own.
    #[doc(hidden)]
    fn take(&mut self, key: &Node, value: &Node, context: &mut DecodeContext<'_>) -> bool;

    /// Complains about what is missing.
    #[doc(hidden)]
    fn finish(&mut self, at: Span, context: &mut DecodeContext<'_>);

    /// All keys it knows.
    fn keys() -> Vec<&'static str>;

    /// What somebody should write who wrote this text instead of the mapping.
    #[doc(hidden)]
    fn instead(text: &str) -> Option<String>;

    /// Adds its keys to a JSON Schema.
    #[doc(hidden)]
    fn properties(generator: &mut SchemaGenerator, schema: &mut Properties);
}

/// The part of a JSON Schema that a record adds to.
#[derive(Debug, Default)]
pub struct Properties {
    known: Map<String, Value>,
    required: Vec<Value>,
}

impl Properties {
    /// Adds a key.
    pub(in crate::config) fn add(
        &mut self,
        name: &str,
        doc: &str,
        needed: bool,
        mut schema: Schema,
    ) {
        let object = schema.ensure_object();
        object.insert("description".to_owned(), json!(tidy(doc)));
        self.known.insert(name.to_owned(), schema.to_value());
        if needed {
            self.required.push(json!(name));
        }
    }

    /// What a key's value looks like.
    pub(super) fn of(&self, name: &str) -> Option<Value> {
        self.known.get(name).cloned()
    }
}

/// The JSON Schema of a record.
pub(in crate::config) fn schema_of<R: Record>(
    generator: &mut SchemaGenerator,
    doc: &str,
) -> Schema {
    let mut properties = Properties::default();
    R::properties(generator, &mut properties);
    let include = generator.subschema_for::<Include>();
    properties
        .known
        .insert("include".to_owned(), include.to_value());
    let mut schema = Map::new();
    schema.insert("description".to_owned(), json!(tidy(doc)));
    schema.insert("type".to_owned(), json!("object"));
    schema.insert("properties".to_owned(), Value::Object(properties.known));
    if !properties.required.is_empty() {
        // What is missing here may come from there.
        let complete = json!([{ "required": properties.required }, { "required": ["include"] }]);
        schema.insert("anyOf".to_owned(), complete);
    }
    schema.insert("additionalProperties".to_owned(), json!(false));
    schema.into()
}

/// `include`, which every mapping takes and no record knows: it is gone before decoding.
pub(super) struct Include;

impl JsonSchema for Include {
    fn schema_name() -> Cow<'static, str> {
        "Include".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Files whose mappings are merged in here: names or patterns, relative to this file.",
            "anyOf": [
                { "type": "string" },
                { "type": "array", "items": { "type": "string" } },
            ],
        })
    }
}

/// A doc comment as one paragraph.
pub(in crate::config) fn tidy(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A field's name without the mark of a raw identifier.
pub(in crate::config) fn own_name(name: &'static str) -> &'static str {
    name.strip_prefix("r#").unwrap_or(name)
}

impl DecodeContext<'_> {
    /// Decodes a mapping with known keys.
    pub(in crate::config) fn record<R: Record>(&mut self, node: &Node) -> Option<R> {
        let NodeKind::Mapping(pairs) = &node.kind else {
            if R::SECRET {
                self.hide(node);
            }
            match node.text().and_then(R::instead) {
                Some(hint) => {
                    let sentence = format!("expected a mapping, found {}", node.describe());
                    self.complain(Diagnostic::new(node.span, sentence).help(hint));
                }
                None => self.expected(node, "a mapping"),
            }
            return None;
        };
        let mut record = R::default();
        for (key, value) in pairs {
            if !record.take(key, value, self) {
                self.unknown_key::<R>(key, value);
            }
        }
        record.finish(self.place(node), self);
        Some(record)
    }

    fn unknown_key<R: Record>(&mut self, key: &Node, value: &Node) {
        let name = key.text().unwrap_or_default();
        // Most likely a secret under a misspelt name, where there are any.
        match R::SECRET {
            true => self.hide(value),
            false => self.report.hidden_mut().add_by_name(key, value),
        }
        // A key that is right elsewhere is in the wrong place, whatever it resembles here.
        let hint = (self.homes)(name).or_else(|| report::hint(name, R::keys()));
        let sentence = match (self.homes)(name) {
            Some(_) => format!("{} cannot stand here", key.describe()),
            None => format!("unknown key {}", key.describe()),
        };
        self.complain(Diagnostic::new(key.span, sentence).hint(hint));
    }
}

/// Declares a record. `with` names records whose keys are known here as well, `instead` who knows what is meant by a
/// text in its place.
macro_rules! record {
    (
        $(#[doc = $doc:literal])*
        pub struct $name:ident {
            $( $(#[doc = $field_doc:literal])* $field:ident: $type:ty, )*
        }
        $( with $( $part:ident: $part_type:ty, )+ )?
        $( instead $instead:path; )?
    ) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Default)]
        pub struct $name {
            $( $(#[doc = $field_doc])* pub $field: $type, )*
            $( $(
                #[doc = "Keys that are known elsewhere, too."]
                pub $part: $part_type,
            )+ )?
        }

        impl $crate::config::decode::record::Record for $name {
            const SECRET: bool = false $( || <$type as $crate::config::decode::FieldSlot>::SECRET )*;

            fn take(
                &mut self,
                key: &$crate::config::source::Node,
                value: &$crate::config::source::Node,
                context: &mut $crate::config::decode::DecodeContext<'_>,
            ) -> bool {
                let name = key.text().unwrap_or_default();
                $(
                    if name == $crate::config::decode::record::own_name(stringify!($field)) {
                        $crate::config::decode::FieldSlot::fill(&mut self.$field, key, value, context);
                        return true;
                    }
                )*
                false $( $( || self.$part.take(key, value, context) )+ )?
            }

            fn finish(
                &mut self,
                at: $crate::config::source::Span,
                context: &mut $crate::config::decode::DecodeContext<'_>,
            ) {
                $( $crate::config::decode::FieldSlot::demand(
                    &self.$field,
                    $crate::config::decode::record::own_name(stringify!($field)),
                    at,
                    context,
                ); )*
                $( $( self.$part.finish(at, context); )+ )?
            }

            fn keys() -> Vec<&'static str> {
                [
                    vec![ $( $crate::config::decode::record::own_name(stringify!($field)) ),* ],
                    $( $( <$part_type>::keys() ),+ )?
                ]
                .concat()
            }

            fn instead(text: &str) -> Option<String> {
                let known: &[fn(&str) -> Option<String>] = &[ $( $instead )? ];
                known.iter().find_map(|instead| instead(text))
            }

            fn properties(
                generator: &mut schemars::SchemaGenerator,
                properties: &mut $crate::config::decode::record::Properties,
            ) {
                $(
                    let schema = <$type as $crate::config::decode::FieldSlot>::schema(generator);
                    properties.add(
                        $crate::config::decode::record::own_name(stringify!($field)),
                        concat!($($field_doc, "\n"),*),
                        <$type as $crate::config::decode::FieldSlot>::NEEDED,
                        schema,
                    );
                )*
                $( $( <$part_type>::properties(generator, properties); )+ )?
            }
        }

        impl $crate::config::decode::Decode for $name {
            fn decode(
                node: &$crate::config::source::Node,
                context: &mut $crate::config::decode::DecodeContext<'_>,
            ) -> Option<Self> {
                context.record(node)
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $crate::config::decode::record::schema_of::<Self>(generator, concat!($($doc, "\n"),*))
            }
        }
    };
}

pub(in crate::config) use record;
