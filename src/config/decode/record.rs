//! Mappings with known keys: the macros `record!` and `settings!`.
//!
//! `record!` makes from one declaration the struct, its decoding, its list of known keys and its JSON Schema; doc comments
//! become the schema's descriptions. A key that has a default says it once: the method of the key's name gives the value
//! that runs, given or default, and the schema shows the same text.
//!
//! `settings!` declares settings that are inherited: besides the record it makes the struct that runs, with the innermost
//! value given or else the default, and the rows of the reference in docs/configuration.md.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::{Decode, DecodeContext, Field};
use crate::config::report::{self, Diagnostic, ParseError, Report};
use crate::config::source::{Node, NodeKind, Span};

/// A mapping with known keys.
pub(crate) trait Record: Default {
    /// Whether one of its own keys takes a secret.
    const SECRET: bool;

    /// Takes a key's value; `false` if the key is not one of its own.
    fn take(&mut self, key: &Node, value: &Node, context: &mut DecodeContext<'_>) -> bool;

    /// Reports missing keys and values that fail their checks.
    fn finish(&mut self, at: Span, context: &mut DecodeContext<'_>);

    /// The record that holds where these levels do, the innermost first: each key as the innermost gives it.
    fn inherit<'r>(levels: impl Iterator<Item = &'r Self> + Clone) -> Self
    where
        Self: 'r;

    /// All keys it knows.
    fn keys() -> Vec<&'static str>;

    /// What to write in place of this text, which stands where the mapping is expected.
    fn instead(text: &str) -> Option<String>;

    /// Adds its keys to a JSON Schema.
    fn properties(generator: &mut SchemaGenerator, schema: &mut Properties);
}

/// The part of a JSON Schema that a record adds to.
#[derive(Debug, Default)]
pub(crate) struct Properties {
    known: Map<String, Value>,
    required: Vec<Value>,
}

impl Properties {
    /// Adds a key.
    pub(crate) fn add(
        &mut self,
        name: &str,
        doc: &str,
        required: bool,
        default: Option<&str>,
        mut schema: Schema,
    ) {
        let object = schema.ensure_object();
        let mut description = tidy(doc);
        if let Some(default) = default {
            description = format!("{description} Default: {default}.");
            let value = |text: &str| match text {
                "true" | "false" => json!(text == "true"),
                _ => text
                    .parse::<u64>()
                    .map_or_else(|_| json!(text), |whole| json!(whole)),
            };
            let value = match default.contains(", ") {
                true => default.split(", ").map(value).collect(),
                false => value(default),
            };
            object.insert("default".to_owned(), value);
        }
        object.insert("description".to_owned(), json!(description));
        self.known.insert(name.to_owned(), schema.to_value());
        if required {
            self.required.push(json!(name));
        }
    }

    /// The schema of a key's value.
    pub(super) fn of(&self, name: &str) -> Option<Value> {
        self.known.get(name).cloned()
    }
}

/// The JSON Schema of a record.
pub(crate) fn schema_of<R: Record>(generator: &mut SchemaGenerator, doc: &str) -> Schema {
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
pub(crate) fn tidy(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A field's name without the mark of a raw identifier.
pub(crate) fn own_name(name: &'static str) -> &'static str {
    name.strip_prefix("r#").unwrap_or(name)
}

impl DecodeContext<'_> {
    /// Decodes a mapping with known keys.
    pub(crate) fn record<R: Record>(&mut self, node: &Node) -> Option<R> {
        let NodeKind::Mapping(pairs) = &node.kind else {
            if R::SECRET {
                self.hide(node);
            }
            match node.text().and_then(R::instead) {
                Some(hint) => {
                    let sentence = format!("expected a mapping, found {}", node.describe());
                    self.report(Diagnostic::new(node.span, sentence).help(hint));
                }
                None => self.type_error(node, "a mapping"),
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
        self.report(Diagnostic::new(key.span, sentence).hint(hint));
    }
}

/// The value that runs where this is written; `Option` stands for settings of which 0 means none.
pub(crate) trait Setting<P>: Decode {
    /// The value as it runs.
    fn plan(&self) -> P;
}

/// A check of a given value, which knows the default as it is written.
pub(crate) type SettingCheck<T> = fn(&T, &str) -> Result<(), ParseError>;

/// A row of the reference in docs/configuration.md, which a test writes.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct SettingRow {
    /// The key.
    pub(crate) key: &'static str,
    /// The default, as the user would write it.
    pub(crate) default: Option<&'static str>,
    /// The default in words, where no one value says it.
    pub(crate) otherwise: Option<&'static str>,
    /// What it does.
    pub(crate) doc: &'static str,
    /// Where more is written about it.
    pub(crate) see: Option<&'static str>,
}

/// A clause that stands at most once.
pub(crate) const fn at_most_one(given: &[&'static str]) -> Option<&'static str> {
    match given {
        [one, ..] => Some(*one),
        [] => None,
    }
}

impl<T: Decode, const REQUIRED: bool> Field<T, REQUIRED> {
    /// The value as it runs: the one given, else the default.
    pub(crate) fn plan<P>(&self, default: &str) -> P
    where
        T: Setting<P>,
    {
        self.value()
            .map_or_else(|| default_value::<T, P>(default), Setting::plan)
    }

    /// What is wrong with the value given.
    pub(crate) fn failure(&self, default: &str, check: SettingCheck<T>) -> Option<Diagnostic> {
        let given = self.get()?;
        let error = check(&given.value, default).err()?;
        Some(Diagnostic::parse(given.span, error))
    }
}

/// A declared default, read as if the user had written it.
pub(crate) fn default_value<T: Setting<P>, P>(text: &str) -> P {
    let mut report = Report::default();
    let mut context = DecodeContext::new(&mut report, |_| None);
    let scalar = |text| Node::scalar(text, Span::NOWHERE);
    let node = match text.contains(", ") {
        true => Node {
            span: Span::NOWHERE,
            kind: NodeKind::Sequence(text.split(", ").map(scalar).collect()),
        },
        false => scalar(text),
    };
    let value = T::decode(&node, &mut context);
    // A test writes every declared default into a file.
    value.expect("a declared default can be read").plan()
}

/// Declares a record: each key with its type as the user writes it and, where it has a default, its type as it runs, the
/// default and a check. `with` names records whose keys are known here as well, `instead` a function that knows what is
/// meant by a text in its place.
macro_rules! record {
    (
        $(#[doc = $doc:literal])*
        $vis:vis struct $name:ident {
            $(
                $(#[doc = $field_doc:literal])*
                $field:ident: $type:ty $(= $default:literal $(=> $plan:ty $(; if $check:path)?)?)?,
            )*
        }
        $( with $( $part:ident: $part_type:ty, )+ )?
        $( instead $instead:path; )?
    ) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Default)]
        $vis struct $name {
            $( $(#[doc = $field_doc])* $vis $field: $type, )*
            $( $(
                #[doc = "Keys that other records have, too."]
                $vis $part: $part_type,
            )+ )?
        }

        $crate::config::decode::record::defaults! {
            $vis $name { $( $( $( $field: $plan = $default, )? )? )* }
        }

        impl $crate::config::decode::record::Record for $name {
            const SECRET: bool = false $( || <$type>::SECRET )*;

            fn take(
                &mut self,
                key: &$crate::config::source::Node,
                value: &$crate::config::source::Node,
                context: &mut $crate::config::decode::DecodeContext<'_>,
            ) -> bool {
                $(
                    if key.text() == Some($crate::config::decode::record::own_name(stringify!($field))) {
                        self.$field.fill(key, value, context);
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
                $( self.$field.demand(
                    $crate::config::decode::record::own_name(stringify!($field)),
                    at,
                    context,
                ); )*
                $( $( $( $(
                    if let Some(failure) = self.$field.failure($default, $check) {
                        context.report_below(failure);
                    }
                )? )? )? )*
                $( $( self.$part.finish(at, context); )+ )?
            }

            fn inherit<'r>(levels: impl Iterator<Item = &'r Self> + Clone) -> Self {
                Self {
                    $( $field: $crate::config::decode::Field::inherit(
                        levels.clone().map(|level| &level.$field),
                    ), )*
                    $( $( $part: $crate::config::decode::record::Record::inherit(
                        levels.clone().map(|level| &level.$part),
                    ), )+ )?
                }
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
                    let schema = <$type>::schema(generator);
                    properties.add(
                        $crate::config::decode::record::own_name(stringify!($field)),
                        concat!($($field_doc, "\n"),*),
                        <$type>::REQUIRED,
                        $crate::config::decode::record::at_most_one(&[ $( $default )? ]),
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

/// The values of a record that run, given or default.
macro_rules! defaults {
    ( $vis:vis $name:ident {} ) => {};
    ( $vis:vis $name:ident { $( $field:ident: $plan:ty = $default:literal, )+ } ) => {
        impl $name {
            $(
                #[doc = concat!("`", stringify!($field), "`, given or default.")]
                $vis fn $field(&self) -> $plan {
                    self.$field.plan($default)
                }
            )+
        }
    };
}

/// Declares settings that are inherited, each key with its type as the user writes it, its type as it runs, its default, a
/// check of the value, its description, and the page with more about it.
///
/// A setting without a type as it runs is compiled by a function of its own; `default … as` gives it the type that function
/// needs.
macro_rules! settings {
    (
        $(#[doc = $doc:literal])*
        $vis:vis struct $name:ident, written $raw:ident in $contexts:literal {
            $(
                $(#[doc = $field_doc:literal])*
                $field:ident: $type:ty
                    $(=> $plan:ty = $default:literal $(, check $check:path)?)?
                    $(, default $value:literal $(as $value_plan:ty)?)?
                    $(, otherwise $words:literal)?
                    $(, see $see:literal)?;
            )*
        }
    ) => {
        $crate::config::decode::record::record! {
            $(#[doc = $doc])*
            pub(crate) struct $raw {
                $(
                    $(#[doc = $field_doc])*
                    $( #[doc = "Default:"] #[doc = $words] )?
                    $field: $crate::config::decode::Field<$type> $(= $default)? $(= $value $(=> $value_plan)?)?,
                )*
            }
        }

        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis struct $name {
            $( $(
                #[doc = concat!("`", stringify!($field), "`")]
                $vis $field: $plan,
            )? )*
        }

        impl $name {
            /// The values that run where this record holds.
            pub(crate) fn new(
                given: &$raw,
                report: &mut $crate::config::report::Report,
            ) -> Self {
                let failures: Vec<Option<$crate::config::report::Diagnostic>> = vec![
                    $( $( $( given.$field.failure($default, $check), )? )? )*
                ];
                failures
                    .into_iter()
                    .flatten()
                    .for_each(|failure| report.add(failure));
                Self {
                    $( $( $field: given.$field.plan::<$plan>($default), )? )*
                }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $( $(
                        $field: $crate::config::decode::record::default_value::<$type, $plan>($default),
                    )? )*
                }
            }
        }

        #[cfg(test)]
        impl $raw {
            /// Where these may stand.
            pub(crate) const CONTEXTS: &'static str = $contexts;

            /// What the reference says of them.
            pub(crate) const REFERENCE: &'static [$crate::config::decode::record::SettingRow] = &[
                $( $crate::config::decode::record::SettingRow {
                    key: stringify!($field),
                    default: $crate::config::decode::record::at_most_one(&[ $( $default )? $( $value )? ]),
                    otherwise: $crate::config::decode::record::at_most_one(&[ $( $words )? ]),
                    doc: concat!($($field_doc, "\n"),*),
                    see: $crate::config::decode::record::at_most_one(&[ $( $see )? ]),
                }, )*
            ];
        }
    };
}

pub(crate) use defaults;
pub(crate) use record;
pub(crate) use settings;
