//! Values: texts, numbers, words to choose from, and what nginx has units for; lists, mappings with free keys, and the
//! shorter ways of writing them.

use std::borrow::Cow;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use http::StatusCode;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use super::record::{Record, Setting};
use super::{Decode, DecodeContext, Field, Spanned, record, units};
use crate::algorithm;
use crate::config::report::{self, Diagnostic, ParseError};
use crate::config::secret::Secret;
use crate::config::source::{Node, NodeKind, Span};

/// A text, in which parts can be pointed at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text {
    /// The text.
    pub(crate) text: String,
    verbatim: Option<usize>,
}

impl Text {
    /// Where a part of it stands, given where all of it does.
    pub(crate) fn part(&self, whole: Span, range: std::ops::Range<usize>) -> Span {
        self.verbatim.map_or(whole, |start| Span {
            file: whole.file,
            start: start + range.start,
            end: start + range.end,
        })
    }

    /// Its beginning after white space, which `head` has to be.
    pub(crate) fn head(&self, head: &str) -> Self {
        self.slice(head, self.text.len() - self.text.trim_start().len())
    }

    /// A part of it, which begins there.
    pub(crate) fn slice(&self, part: &str, start: usize) -> Self {
        Self {
            text: part.to_owned(),
            verbatim: self.verbatim.map(|own| own + start),
        }
    }

    /// Its end, which `tail` has to be.
    pub(crate) fn tail(&self, tail: &str) -> Self {
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
            context.type_error(node, "a text");
            return None;
        };
        Some(Self {
            text: scalar.text.clone(),
            verbatim: scalar.verbatim,
        })
    }
}

impl Decode for Secret {
    const SECRET: bool = true;

    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        context.hide(node);
        Text::decode(node, context).map(|text| Self::new(text.text))
    }
}

impl Setting<Box<str>> for Text {
    fn plan(&self) -> Box<str> {
        self.text.as_str().into()
    }
}

/// Declares the JSON Schema of types that are decoded by hand.
macro_rules! schema {
    ( $( $type:ty = $name:expr, |$generator:ident| $body:expr; )+ ) => { $(
        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }

            fn json_schema($generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $body
            }
        }
    )+ };
    ( text: $( $type:ty ),+ ) => { $(
        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                "Text".into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": ["string", "number", "boolean"] })
            }
        }
    )+ };
}

schema!(text: Text, Secret);

/// Decodes a single value by parsing its text.
pub(crate) fn scalar_from<T>(
    node: &Node,
    context: &mut DecodeContext<'_>,
    what: &str,
    parse: impl FnOnce(&str) -> Result<T, ParseError>,
) -> Option<T> {
    let Some(text) = node.text() else {
        context.type_error(node, what);
        return None;
    };
    parse(text)
        .map_err(|error| context.report(Diagnostic::parse(node.span, error)))
        .ok()
}

/// A schema that lets a value come from the environment as well.
pub(crate) fn or_environment(value: Schema, generator: &mut SchemaGenerator) -> Schema {
    let environment = generator.subschema_for::<EnvValue>();
    json_schema!({ "anyOf": [value, environment] })
}

/// A value that comes from the environment; its form there is not the schema's to know.
struct EnvValue;

schema! {
    EnvValue = "Environment", |_generator| json_schema!({
        "description": "${NAME} from the environment, or ${NAME:-default}.",
        "type": "string",
        "pattern": r"\$\{[A-Z_][A-Z0-9_]*(:-[^}]*)?\}",
    });
}

/// Declares a type for values with a syntax of their own.
macro_rules! scalar {
    (
        $(#[doc = $doc:literal])*
        $vis:vis struct $name:ident($inner:ty);
        $what:literal, $parse:expr, $schema:tt
    ) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, PartialEq)]
        $vis struct $name(
            /// The value.
            $vis $inner,
        );

        impl $crate::config::decode::Decode for $name {
            fn decode(
                node: &$crate::config::source::Node,
                context: &mut $crate::config::decode::DecodeContext<'_>,
            ) -> Option<Self> {
                $crate::config::decode::value::scalar_from(node, context, $what, $parse).map(Self)
            }
        }

        impl $crate::config::decode::record::Setting<$inner> for $name {
            fn plan(&self) -> $inner {
                Clone::clone(&self.0)
            }
        }

        $crate::config::decode::value::schema! {
            $name = stringify!($name), |generator| {
                let value = schemars::json_schema!($schema);
                $crate::config::decode::value::or_environment(value, generator)
            };
        }
    };
}

/// Declares a type for whole numbers within bounds.
macro_rules! number {
    (
        $(#[doc = $doc:literal])*
        $vis:vis struct $name:ident($inner:ty) = $what:literal, $least:literal..=$most:literal
    ) => {
        $crate::config::decode::value::scalar! {
            $(#[doc = $doc])*
            $vis struct $name($inner);
            $what,
            |text| {
                let number = $crate::config::decode::units::whole(text, $what, $least, $most)?;
                <$inner>::try_from(number)
                    .map_err(|_| $crate::config::report::ParseError::new(format!("`{text}` is too large")))
            },
            { "type": "integer", "minimum": $least, "maximum": $most }
        }
    };
}

/// Declares a type for one of several words: an enum whose variants are these words, or a type for words that mean values
/// of another.
macro_rules! choice {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident as $schema:literal = $what:literal {
            $( $(#[$variant_meta:meta])* $variant:ident = $word:literal $(| $alias:literal)*, )+
        }
        $( also { $( $other:literal => $same:ident, )+ } )?
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $name {
            $( $(#[$variant_meta])* $variant, )+
        }

        impl $name {
            const WORDS: &'static [(&'static str, Self)] = &[
                $( ($word, Self::$variant), $( ($alias, Self::$variant), )* )+
                $( $( ($other, Self::$same), )+ )?
            ];
        }

        impl $crate::config::decode::Decode for $name {
            fn decode(
                node: &$crate::config::source::Node,
                context: &mut $crate::config::decode::DecodeContext<'_>,
            ) -> Option<Self> {
                $crate::config::decode::value::scalar_from(node, context, $what, |text| {
                    $crate::config::decode::value::one_of(text, $what, Self::WORDS)
                })
            }
        }

        impl $crate::config::decode::record::Setting<Self> for $name {
            fn plan(&self) -> Self {
                *self
            }
        }

        $crate::config::decode::value::schema! {
            $name = $schema, |generator| {
                let words: Vec<_> = Self::WORDS.iter().map(|(word, _)| word).collect();
                let value = schemars::json_schema!({ "enum": words });
                $crate::config::decode::value::or_environment(value, generator)
            };
        }
    };
    (
        $(#[doc = $doc:literal])*
        $vis:vis struct $name:ident($inner:ty) = $what:literal { $( $word:literal => $value:expr, )+ }
    ) => {
        $crate::config::decode::value::scalar! {
            $(#[doc = $doc])*
            $vis struct $name($inner);
            $what,
            |text| $crate::config::decode::value::one_of(text, $what, &[$( ($word, $value) ),+]),
            { "enum": [$($word),+] }
        }
    };
}

/// The value of a word.
pub(crate) fn one_of<T: Clone>(
    text: &str,
    what: &str,
    words: &[(&str, T)],
) -> Result<T, ParseError> {
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(value.clone());
    }
    let words = || words.iter().map(|(word, _)| *word);
    let hint = report::hint(text, words())
        .unwrap_or_else(|| format!("expected one of {}", words().collect::<Vec<_>>().join(", ")));
    Err(ParseError::new(format!("`{text}` is not {what}")).help(hint))
}

/// A list; one of one may be written as the value itself.
#[derive(Debug, Clone)]
pub(crate) struct List<T>(pub(crate) Vec<Spanned<T>>);

/// A mapping from names of the user's own.
#[derive(Debug, Clone)]
pub(crate) struct NamedMap<T> {
    /// In the file's order.
    pub(crate) entries: Vec<(Spanned<String>, Spanned<T>)>,
    /// Names whose values could not be understood: references to them are not reported.
    pub(crate) broken: Vec<String>,
}

/// Something, or the word `off` for none of it.
#[derive(Debug, Clone)]
pub(crate) enum OrOff<T> {
    /// None of it.
    Off,
    /// Something.
    On(T),
}

/// A record that may be written as the value of its most important key alone.
#[derive(Debug, Clone)]
pub(crate) struct Shorthand<T>(pub(crate) T);

/// Which key that is.
pub(crate) trait HasShorthand: Record {
    /// The key.
    const KEY: &'static str;
}

impl<T, const REQUIRED: bool> Field<List<T>, REQUIRED> {
    /// The items given.
    pub(crate) fn items(&self) -> &[Spanned<T>] {
        self.value().map_or(&[], |list| &list.0)
    }
}

impl<T, const REQUIRED: bool> Field<NamedMap<T>, REQUIRED> {
    /// The names given and their values.
    pub(crate) fn entries(&self) -> &[(Spanned<String>, Spanned<T>)] {
        self.value().map_or(&[], |named| &named.entries)
    }
}

impl<T, const REQUIRED: bool> Field<OrOff<T>, REQUIRED> {
    /// The value, where one is given that is not `off`.
    pub(crate) fn on(&self) -> Option<&T> {
        match self.value()? {
            OrOff::Off => None,
            OrOff::On(value) => Some(value),
        }
    }
}

impl<T, const REQUIRED: bool> Field<Shorthand<T>, REQUIRED> {
    /// The record, however it is written.
    pub(crate) fn record(&self) -> Option<&T> {
        self.value().map(|Shorthand(record)| record)
    }
}

impl<T: Decode> Decode for List<T> {
    const SECRET: bool = T::SECRET;

    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        let NodeKind::Sequence(items) = &node.kind else {
            let value = Spanned::decode(node, context)?;
            return Some(Self(vec![value]));
        };
        // What could not be understood is left out; the others may have errors of their own.
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
            context.type_error(node, "a mapping");
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
        let key = Node::scalar(T::KEY, node.span);
        let mut record = T::default();
        context.shorthand = true;
        record.take(&key, node, context);
        record.finish(node.span, context);
        Some(Self(record))
    }
}

impl<T: Setting<P>, P> Setting<Vec<P>> for List<T> {
    fn plan(&self) -> Vec<P> {
        self.0.iter().map(|item| item.value.plan()).collect()
    }
}

impl<T: Setting<P>, P> Setting<Option<P>> for OrOff<T> {
    fn plan(&self) -> Option<P> {
        match self {
            Self::Off => None,
            Self::On(value) => Some(value.plan()),
        }
    }
}

impl<T: HasShorthand + Clone> Setting<Self> for Shorthand<T> {
    fn plan(&self) -> Self {
        self.clone()
    }
}

impl Setting<Option<Duration>> for Time {
    fn plan(&self) -> Option<Duration> {
        Some(self.0).filter(|time| !time.is_zero())
    }
}

impl Setting<StatusCode> for RefusalStatus {
    fn plan(&self) -> StatusCode {
        // Numbers from 400 to 599 are statuses; the decoder knows no others.
        StatusCode::from_u16(self.0).unwrap_or_default()
    }
}

impl Setting<usize> for Size {
    fn plan(&self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
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
        let include = generator.subschema_for::<record::Include>();
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
        let mut properties = record::Properties::default();
        T::properties(generator, &mut properties);
        let mut brief = properties.of(T::KEY).unwrap_or(Value::Bool(true));
        // The default of that key where the record is given, not of the record.
        if let Some(brief) = brief.as_object_mut() {
            brief.remove("default");
        }
        json_schema!({ "anyOf": [brief, whole] })
    }
}

scalar! {
    /// A time.
    pub(crate) struct Time(Duration);
    "a time such as `60s`", units::time,
    {
        "description": "A time: a number with ms, s, m, h, d, w, M or y behind it, or several as in 1h30m; seconds without.",
        "anyOf": [
            { "type": "integer", "minimum": 0 },
            { "type": "string", "pattern": r"^([0-9]+(ms|s|m|h|d|w|M|y)? *)+$" },
        ],
    }
}

scalar! {
    /// A size in bytes.
    pub(crate) struct Size(u64);
    "a size such as `10m`", units::size,
    {
        "description": "A size in bytes, or with k, m or g behind it.",
        "anyOf": [
            { "type": "integer", "minimum": 0 },
            { "type": "string", "pattern": r"^[0-9]+[kKmMgG]?$" },
        ],
    }
}

scalar! {
    /// A rate.
    pub(crate) struct Rate(algorithm::Rate);
    "a rate such as `10r/s`", units::rate,
    {
        "description": "A rate: 10r/s, 30r/m, r/h or r/d; up to three decimals.",
        "anyOf": [
            { "type": "number", "exclusiveMinimum": 0 },
            { "type": "string", "pattern": r"^[0-9]+(\.[0-9]{1,3})?(r/[smhd])?$" },
        ],
    }
}

scalar! {
    /// A rate, or none to speak of.
    pub(crate) struct RateOrUnlimited(Option<algorithm::Rate>);
    "a rate such as `10r/s`, or `unlimited`",
    |text| match text {
        "unlimited" => Ok(None),
        _ => units::rate(text).map(Some).map_err(|error| or_unlimited(text, error)),
    },
    {
        "description": "A rate as 10r/s, or unlimited.",
        "anyOf": [
            { "type": "number", "exclusiveMinimum": 0 },
            { "type": "string", "pattern": r"^unlimited$|^[0-9]+(\.[0-9]{1,3})?(r/[smhd])?$" },
        ],
    }
}

scalar! {
    /// On or off.
    pub(crate) struct Flag(bool);
    "`on` or `off`", units::flag,
    { "description": "true or false; on and off, yes and no mean the same.", "enum": [true, false, "on", "off", "yes", "no"] }
}

scalar! {
    /// How many event loops; `None` for one per core.
    pub(crate) struct Workers(Option<usize>);
    "a number of workers or `auto`",
    |text| match text {
        "auto" => Ok(None),
        _ => units::whole(text, "a number of workers", 1, 1024)
            .map(|number| usize::try_from(number).ok())
            .map_err(|error| error.help("expected `auto` or a number up to 1024")),
    },
    { "anyOf": [{ "const": "auto" }, { "type": "integer", "minimum": 1, "maximum": 1024 }] }
}

scalar! {
    /// Where to listen.
    pub(crate) struct ListenAddress(ListenText);
    "an address to listen on", listen_text,
    { "description": "8080, 127.0.0.1:8080, *:8080, [::1]:8080 or unix:/run/weir.sock; behind it may stand ssl, http2 and default_server.", "type": ["string", "integer"] }
}

/// An address and the words nginx writes behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListenText {
    /// Where.
    pub(crate) address: units::SocketAddress,
    /// `ssl`
    pub(crate) ssl: bool,
    /// `http2`
    pub(crate) http2: bool,
    /// `default_server`
    pub(crate) default_server: bool,
}

/// The error of a text that might have been `unlimited`.
pub(crate) fn or_unlimited(text: &str, error: ParseError) -> ParseError {
    match report::hint(text, ["unlimited"]) {
        Some(hint) => error.help(hint),
        None => error,
    }
}

fn listen_text(text: &str) -> Result<ListenText, ParseError> {
    let mut words = text.split(' ').filter(|word| !word.is_empty());
    let mut listen = ListenText {
        address: units::listen(words.next().unwrap_or_default(), Ipv4Addr::UNSPECIFIED)?,
        ssl: false,
        http2: false,
        default_server: false,
    };
    for word in words {
        match word {
            "ssl" => listen.ssl = true,
            "http2" => listen.http2 = true,
            "default_server" => listen.default_server = true,
            _ => {
                let hint = report::hint(word, ["ssl", "http2", "default_server"])
                    .unwrap_or_else(|| "expected `ssl`, `http2` or `default_server`".into());
                let sentence = format!("`{word}` cannot follow an address to listen on");
                return Err(ParseError::new(sentence).help(hint));
            }
        }
    }
    Ok(listen)
}

scalar! {
    /// Where the admin listener listens.
    pub(crate) struct AdminAddress(SocketAddr);
    "an address to listen on",
    // A port alone is one on loopback here: a short form must not open the admin listener to the world.
    |text| match units::listen(text, Ipv4Addr::LOCALHOST)? {
        units::SocketAddress::Tcp(address) => Ok(address),
        units::SocketAddress::Unix(_) => Err(ParseError::new("the admin listener cannot be a unix socket")),
    },
    { "description": "127.0.0.1:9900, or a port on loopback.", "type": ["string", "integer"] }
}

number! {
    /// The status of a refusal.
    pub(crate) struct RefusalStatus(u16) = "a status for refusals", 400..=599
}

number! {
    /// How far a key may go above its rate.
    pub(crate) struct Burst(u32) = "a number of requests", 0..=100_000_000
}

number! {
    /// How many requests at once.
    pub(crate) struct ConnLimit(u32) = "a number of connections", 1..=65_535
}

number! {
    /// How many may wait for one key.
    pub(crate) struct QueueSize(u32) = "a number of waiting requests", 1..=1_000_000
}

number! {
    /// How much of an IPv6 address tells clients apart.
    pub(crate) struct Ipv6Prefix(u8) = "the length of an IPv6 prefix", 1..=128
}

number! {
    /// A server's share.
    pub(crate) struct Weight(u32) = "a weight", 1..=65_535
}

number! {
    /// How many failures.
    pub(crate) struct Failures(u32) = "a number of failures", 0..=1_000_000
}

number! {
    /// How many servers may be tried; 0 for each once.
    pub(crate) struct Tries(u32) = "a number of tries", 0..=1_000_000
}

number! {
    /// How many requests.
    pub(crate) struct RequestCount(u64) = "a number of requests", 1..=1_000_000_000
}

number! {
    /// How many streams at once.
    pub(crate) struct Streams(u32) = "a number of streams", 1..=65_535
}

number! {
    /// How many header fields.
    pub(crate) struct HeaderCount(usize) = "a number of headers", 1..=10_000
}

number! {
    /// Idle connections.
    pub(crate) struct Idle(usize) = "a number of connections", 0..=1_000_000
}

choice! {
    /// The version of HTTP that is spoken to upstreams.
    #[derive(Default)]
    pub enum HttpVersion as "HttpVersion" = "a version of HTTP" {
        /// HTTP/1.1
        #[default]
        One = "1.1",
        /// HTTP/2
        Two = "2" | "2.0",
    }
}

choice! {
    /// The least severe level that is logged.
    pub(crate) struct ErrorLogLevel(tracing::Level) = "a log level" {
        "error" => tracing::Level::ERROR,
        "warn" => tracing::Level::WARN,
        "info" => tracing::Level::INFO,
        "debug" => tracing::Level::DEBUG,
    }
}

/// A time that must not be zero.
pub(crate) fn nonzero(time: &Time, default: &str) -> Result<(), ParseError> {
    match time.0.is_zero() {
        true => Err(ParseError::new("a timeout must be longer than 0")
            .help(format!("the default is {default}"))),
        false => Ok(()),
    }
}

pub(crate) use choice;
pub(crate) use number;
pub(crate) use scalar;
pub(crate) use schema;
