//! Mappings with known keys: the macros `record!` and `settings!`.
//!
//! `record!` makes from one declaration the struct, its decoding, its list of known keys and its JSON Schema, the
//! doc comments becoming the schema's descriptions: a key is named once, and cannot be known to one of them
//! and unknown to another.
//!
//! `settings!` declares settings that are inherited: besides the record it makes the struct that runs, with the innermost
//! value given or else the declared default, which the parser of the user's own text reads, and the rows of the reference
//! in docs/configuration.md.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::{Decode, DecodeContext, Spanned};
use crate::config::report::{self, Diagnostic, Report};
use crate::config::source::{Node, NodeKind, Scalar, Span};

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
        default: Option<&str>,
        mut schema: Schema,
    ) {
        let object = schema.ensure_object();
        let mut description = tidy(doc);
        if let Some(default) = default {
            description = format!("{description} Default: {default}.");
            let whole = default.parse::<u64>();
            object.insert(
                "default".to_owned(),
                whole.map_or_else(|_| json!(default), |whole| json!(whole)),
            );
        }
        object.insert("description".to_owned(), json!(description));
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

/// What runs where a setting has this value; `Option` stands for settings of which 0 means none.
pub(in crate::config) trait Setting<P>: Decode {
    /// The value as it runs.
    fn plan(&self) -> P;
}

/// A check of a given value, which knows the default as it is written.
pub(in crate::config) type SettingCheck<T, C> = fn(&mut C, &Spanned<T>, &str);

/// A row of the reference in docs/configuration.md, which a test writes.
#[cfg(test)]
#[derive(Debug)]
pub(in crate::config) struct SettingRow {
    /// The key.
    pub(in crate::config) key: &'static str,
    /// What holds where it is not given, as the user would write it.
    pub(in crate::config) default: Option<&'static str>,
    /// The same in words, where no one value says it.
    pub(in crate::config) otherwise: Option<&'static str>,
    /// What it does.
    pub(in crate::config) doc: &'static str,
    /// Where more is written about it.
    pub(in crate::config) see: Option<&'static str>,
}

/// What may be there of a clause that stands at most once.
pub(in crate::config) const fn at_most_one(given: &[&'static str]) -> Option<&'static str> {
    match given {
        [one, ..] => Some(*one),
        [] => None,
    }
}

/// The value of a setting: the innermost given, else the default.
pub(in crate::config) fn inherited<T: Setting<P>, P, C>(
    given: Option<&Spanned<T>>,
    default: &str,
    checks: &[SettingCheck<T, C>],
    compiler: &mut C,
) -> P {
    let Some(given) = given else {
        return default_value::<T, P>(default);
    };
    for check in checks {
        check(compiler, given, default);
    }
    given.value.plan()
}

/// A declared default, read as if the user had written it.
pub(in crate::config) fn default_value<T: Setting<P>, P>(text: &str) -> P {
    let mut report = Report::default();
    let mut context = DecodeContext::new(&mut report, |_| None);
    let node = Node {
        span: Span {
            file: 0,
            start: 0,
            end: 0,
        },
        kind: NodeKind::Scalar(Scalar {
            text: text.to_owned(),
            quoted: false,
            verbatim: None,
        }),
    };
    let value = T::decode(&node, &mut context);
    // A test writes every declared default into a file.
    value.expect("a declared default can be read").plan()
}

/// Declares a record. `with` names records whose keys are known here as well, `instead` who knows what is meant by a
/// text in its place.
macro_rules! record {
    (
        $(#[doc = $doc:literal])*
        pub struct $name:ident {
            $( $(#[doc = $field_doc:literal])* $field:ident: $type:ty $(= $default:literal)?, )*
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

/// Declares settings that are inherited, each key with all that is known of it: its type as the user writes it, its type as
/// it runs, its default, a check of what was given, its sentence, and where more is written.
///
/// A setting without a type as it runs has a compiler of its own; it is decoded, documented and inherited all the same.
macro_rules! settings {
    (
        $(#[doc = $doc:literal])*
        $vis:vis struct $name:ident, written $raw:ident in $contexts:literal {
            $(
                $(#[doc = $field_doc:literal])*
                $field:ident: $type:ty
                    $(=> $plan:ty = $default:literal $(, check $check:path)?)?
                    $(, default $value:literal)?
                    $(, otherwise $words:literal)?
                    $(, see $see:literal)?;
            )*
        }
    ) => {
        $crate::config::decode::record::record! {
            $(#[doc = $doc])*
            pub struct $raw {
                $(
                    $(#[doc = $field_doc])*
                    $( #[doc = "Default:"] #[doc = $words] )?
                    $field: $crate::config::decode::Field<$type> $(= $default)? $(= $value)?,
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
            /// What holds where these levels do, the innermost first.
            pub(in crate::config) fn merge<'c>(
                levels: impl Iterator<Item = &'c $raw> + Clone,
                compiler: &mut $crate::config::compile::Compiler<'_>,
            ) -> Self {
                Self {
                    $( $(
                        $field: $crate::config::decode::record::inherited::<$type, $plan, _>(
                            levels.clone().find_map(|level| level.$field.get()),
                            $default,
                            &[ $( $check )? ],
                            compiler,
                        ),
                    )? )*
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
            pub(in crate::config) const CONTEXTS: &'static str = $contexts;

            /// What the reference says of them.
            pub(in crate::config) const REFERENCE: &'static [$crate::config::decode::record::SettingRow] = &[
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

pub(in crate::config) use record;
pub(in crate::config) use settings;
