//! Single values: texts, numbers, words to choose from, and what nginx has units for.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::{Decode, DecodeContext};
use crate::config::report::Diagnostic;
use crate::config::secret::Secret;
use crate::config::span::Span;
use crate::config::tree::{Node, NodeKind};
use crate::config::units::ParseError;

/// A text, in which parts can be pointed at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// The text.
    pub text: String,
    verbatim: Option<usize>,
}

impl Text {
    /// Where a part of it stands, given where all of it does.
    pub(in crate::config) fn part(&self, whole: Span, range: std::ops::Range<usize>) -> Span {
        self.verbatim.map_or(whole, |start| Span {
            file: whole.file,
            start: start + range.start,
            end: start + range.end,
        })
    }

    /// Its beginning after white space, which `head` has to be.
    pub(in crate::config) fn head(&self, head: &str) -> Self {
        self.slice(head, self.text.len() - self.text.trim_start().len())
    }

    /// A part of it, which begins there.
    pub(in crate::config) fn slice(&self, part: &str, start: usize) -> Self {
        Self {
            text: part.to_owned(),
            verbatim: self.verbatim.map(|own| own + start),
        }
    }

    /// Its end, which `tail` has to be.
    pub(in crate::config) fn tail(&self, tail: &str) -> Self {
        Self {
            text: tail.to_owned(),
            verbatim: self
                .verbatim
                .map(|start| start + self.text.trim_end().len() - tail.len()),
        }
    }
}

impl Decode for Text {
    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        let NodeKind::Scalar(scalar) = &node.kind else {
            context.expected(node, "a text");
            return None;
        };
        Some(Self {
            text: scalar.text.clone(),
            verbatim: scalar.verbatim,
        })
    }
}

impl JsonSchema for Text {
    fn schema_name() -> Cow<'static, str> {
        "Text".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "number", "boolean"] })
    }
}

impl Decode for Secret {
    const SECRET: bool = true;

    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        context.hide(node);
        Text::decode(node, context).map(|text| Self::new(text.text))
    }
}

impl JsonSchema for Secret {
    fn schema_name() -> Cow<'static, str> {
        Text::schema_name()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Text::json_schema(generator)
    }
}

/// Decodes a single value by parsing its text.
pub(in crate::config) fn scalar_from<T>(
    node: &Node,
    context: &mut DecodeContext<'_>,
    what: &str,
    parse: impl FnOnce(&str) -> Result<T, ParseError>,
) -> Option<T> {
    let Some(text) = node.text() else {
        context.expected(node, what);
        return None;
    };
    parse(text)
        .map_err(|mistake| context.complain(mistaken(node.span, mistake)))
        .ok()
}

/// A schema that lets a value come from the environment as well.
pub(in crate::config) fn or_environment(value: Schema, generator: &mut SchemaGenerator) -> Schema {
    let environment = generator.subschema_for::<EnvValue>();
    json_schema!({ "anyOf": [value, environment] })
}

/// A value that comes from the environment; what it is there is not the schema's to know.
struct EnvValue;

impl JsonSchema for EnvValue {
    fn schema_name() -> Cow<'static, str> {
        "Environment".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "${NAME} from the environment, or ${NAME:-default}.",
            "type": "string",
            "pattern": r"\$\{[A-Z_][A-Z0-9_]*(:-[^}]*)?\}",
        })
    }
}

/// A mistake and where it was made.
pub(in crate::config) fn mistaken(span: Span, mistake: ParseError) -> Diagnostic {
    Diagnostic::new(span, mistake.sentence).hint(mistake.hint)
}

/// Declares a type for values with a syntax of their own.
macro_rules! scalar {
    (
        $(#[doc = $doc:literal])*
        pub struct $name:ident($inner:ty);
        $what:literal, $parse:expr, $schema:tt
    ) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name(
            /// What it means.
            pub $inner,
        );

        impl $crate::config::decode::Decode for $name {
            fn decode(
                node: &$crate::config::tree::Node,
                context: &mut $crate::config::decode::DecodeContext<'_>,
            ) -> Option<Self> {
                $crate::config::decode::scalar_from(node, context, $what, $parse).map(Self)
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let value = schemars::json_schema!($schema);
                $crate::config::decode::or_environment(value, generator)
            }
        }
    };
}
pub(in crate::config) use scalar;

/// Declares a type for whole numbers within bounds.
macro_rules! number {
    (
        $(#[doc = $doc:literal])*
        pub struct $name:ident($inner:ty) = $what:literal, $least:literal..=$most:literal
    ) => {
        $crate::config::decode::scalar! {
            $(#[doc = $doc])*
            pub struct $name($inner);
            $what,
            |text| {
                let number = $crate::config::units::whole(text, $what, $least, $most)?;
                <$inner>::try_from(number)
                    .map_err(|_| $crate::config::units::ParseError::new(format!("`{text}` is too large")))
            },
            { "type": "integer", "minimum": $least, "maximum": $most }
        }
    };
}
pub(in crate::config) use number;

/// Declares a type for one of several words.
macro_rules! choice {
    (
        $(#[doc = $doc:literal])*
        pub struct $name:ident($inner:ty) = $what:literal { $( $word:literal => $value:expr, )+ }
    ) => {
        $crate::config::decode::scalar! {
            $(#[doc = $doc])*
            pub struct $name($inner);
            $what,
            |text| match text {
                $( $word => Ok($value), )+
                _ => {
                    let words = [$($word),+];
                    let hint = $crate::config::near::hint(text, words)
                        .unwrap_or_else(|| format!("expected one of {}", words.join(", ")));
                    Err($crate::config::units::ParseError::new(format!("`{text}` is not {}", $what)).help(hint))
                }
            },
            { "enum": [$($word),+] }
        }
    };
}
pub(in crate::config) use choice;
