//! Single values: texts, numbers, words to choose from, and what nginx has units for.
//!
//! Lists, mappings with free keys, and the shorter ways of writing them.
//!
//! Single values of the model, each with its units and bounds.

use std::borrow::Cow;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use super::record::Record;
use super::units::ParseError;
use super::{Decode, DecodeContext, Spanned, record, units};
use crate::algorithm;
use crate::config::directive::{limits, location};
use crate::config::report::Diagnostic;
use crate::config::secret::Secret;
use crate::config::source::{Node, NodeKind, Scalar, Span};
use crate::config::{plan, report};

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
                node: &$crate::config::source::Node,
                context: &mut $crate::config::decode::DecodeContext<'_>,
            ) -> Option<Self> {
                $crate::config::decode::value::scalar_from(node, context, $what, $parse).map(Self)
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let value = schemars::json_schema!($schema);
                $crate::config::decode::value::or_environment(value, generator)
            }
        }
    };
}

/// Declares a type for whole numbers within bounds.
macro_rules! number {
    (
        $(#[doc = $doc:literal])*
        pub struct $name:ident($inner:ty) = $what:literal, $least:literal..=$most:literal
    ) => {
        $crate::config::decode::value::scalar! {
            $(#[doc = $doc])*
            pub struct $name($inner);
            $what,
            |text| {
                let number = $crate::config::decode::units::whole(text, $what, $least, $most)?;
                <$inner>::try_from(number)
                    .map_err(|_| $crate::config::decode::units::ParseError::new(format!("`{text}` is too large")))
            },
            { "type": "integer", "minimum": $least, "maximum": $most }
        }
    };
}

/// Declares a type for one of several words.
macro_rules! choice {
    (
        $(#[doc = $doc:literal])*
        pub struct $name:ident($inner:ty) = $what:literal { $( $word:literal => $value:expr, )+ }
    ) => {
        $crate::config::decode::value::scalar! {
            $(#[doc = $doc])*
            pub struct $name($inner);
            $what,
            |text| match text {
                $( $word => Ok($value), )+
                _ => {
                    let words = [$($word),+];
                    let hint = $crate::config::report::hint(text, words)
                        .unwrap_or_else(|| format!("expected one of {}", words.join(", ")));
                    Err($crate::config::decode::units::ParseError::new(format!("`{text}` is not {}", $what)).help(hint))
                }
            },
            { "enum": [$($word),+] }
        }
    };
}

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
        let brief = properties.of(T::KEY).unwrap_or(Value::Bool(true));
        json_schema!({ "anyOf": [brief, whole] })
    }
}

scalar! {
    /// A time.
    pub struct Time(Duration);
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
    pub struct Size(u64);
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
    pub struct Rate(algorithm::Rate);
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
    pub struct RateOrUnlimited(Option<algorithm::Rate>);
    "a rate such as `10r/s`, or `unlimited`",
    |text| match text {
        "unlimited" => Ok(None),
        _ => units::rate(text).map(Some).map_err(|mistake| match report::hint(text, ["unlimited"]) {
            Some(hint) => mistake.help(hint),
            None => mistake,
        }),
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
    pub struct Flag(bool);
    "`on` or `off`", units::flag,
    { "description": "true or false; on and off, yes and no mean the same.", "enum": [true, false, "on", "off", "yes", "no"] }
}

scalar! {
    /// How many event loops; `None` for one per core.
    pub struct Workers(Option<usize>);
    "a number of workers or `auto`",
    |text| match text {
        "auto" => Ok(None),
        _ => units::whole(text, "a number of workers", 1, 1024)
            .map(|number| usize::try_from(number).ok())
            .map_err(|mistake| mistake.help("expected `auto` or a number up to 1024")),
    },
    { "anyOf": [{ "const": "auto" }, { "type": "integer", "minimum": 1, "maximum": 1024 }] }
}

scalar! {
    /// Where to listen.
    pub struct ListenAddress(ListenText);
    "an address to listen on", listen_text,
    { "description": "8080, 127.0.0.1:8080, *:8080, [::1]:8080 or unix:/run/weir.sock; behind it may stand ssl, http2 and default_server.", "type": ["string", "integer"] }
}

/// An address and the words nginx writes behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenText {
    /// Where.
    pub address: plan::SocketAddress,
    /// `ssl`
    pub ssl: bool,
    /// `http2`
    pub http2: bool,
    /// `default_server`
    pub default_server: bool,
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
                let hint =
                    report::hint(word, ["ssl", "http2", "default_server"]).unwrap_or_else(|| {
                        "`ssl`, `http2` and `default_server` may stand there".into()
                    });
                let sentence = format!("`{word}` cannot stand behind an address to listen on");
                return Err(ParseError::new(sentence).help(hint));
            }
        }
    }
    Ok(listen)
}

scalar! {
    /// Where the admin listener listens.
    pub struct AdminAddress(SocketAddr);
    "an address to listen on",
    // A port alone is one on loopback here: nobody should open the admin listener to the world by brevity.
    |text| match units::listen(text, Ipv4Addr::LOCALHOST)? {
        plan::SocketAddress::Tcp(address) => Ok(address),
        plan::SocketAddress::Unix(_) => Err(ParseError::new("the admin listener cannot be a unix socket")),
    },
    { "description": "127.0.0.1:9900, or a port on loopback.", "type": ["string", "integer"] }
}

number! {
    /// The status of a refusal.
    pub struct RefusalStatus(u16) = "a status for refusals", 400..=599
}

number! {
    /// How far a key may go above its rate.
    pub struct Burst(u32) = "a number of requests", 0..=100_000_000
}

number! {
    /// How many requests at once.
    pub struct ConnLimit(u32) = "a number of connections", 1..=65_535
}

number! {
    /// How many may wait for one key.
    pub struct QueueSize(u32) = "a number of waiting requests", 1..=1_000_000
}

number! {
    /// How much of an IPv6 address tells clients apart.
    pub struct Ipv6Prefix(u8) = "the length of an IPv6 prefix", 1..=128
}

number! {
    /// A server's share.
    pub struct Weight(u32) = "a weight", 1..=65_535
}

number! {
    /// How many failures.
    pub struct Failures(u32) = "a number of failures", 0..=1_000_000
}

number! {
    /// How many servers may be tried; 0 for each once.
    pub struct Tries(u32) = "a number of tries", 0..=1_000_000
}

number! {
    /// How many requests.
    pub struct RequestCount(u64) = "a number of requests", 1..=1_000_000_000
}

number! {
    /// How many streams at once.
    pub struct Streams(u32) = "a number of streams", 1..=65_535
}

number! {
    /// How many header fields.
    pub struct HeaderCount(usize) = "a number of headers", 1..=10_000
}

number! {
    /// Idle connections.
    pub struct Idle(usize) = "a number of connections", 0..=1_000_000
}

choice! {
    /// What to do with a request that gives a part of its key more than once.
    pub struct OnAmbiguousKey(limits::OnAmbiguousKey) = "something to do with an ambiguous key" {
        "refuse" => limits::OnAmbiguousKey::Refuse,
        "join" => limits::OnAmbiguousKey::Join,
    }
}

choice! {
    /// What upstreams are spoken to in.
    pub struct HttpVersion(location::HttpVersion) = "a version of HTTP" {
        "1.1" => location::HttpVersion::One,
        "2" => location::HttpVersion::Two,
        "2.0" => location::HttpVersion::Two,
    }
}

choice! {
    /// At which level refusals are logged.
    pub struct LogLevel(limits::LogLevel) = "a log level" {
        "info" => limits::LogLevel::Info,
        "notice" => limits::LogLevel::Notice,
        "warn" => limits::LogLevel::Warn,
        "error" => limits::LogLevel::Error,
    }
}

choice! {
    /// Which header fields tell clients of their limits.
    pub struct HeaderForm(limits::HeaderForm) = "a kind of headers" {
        "ietf" => limits::HeaderForm::Ietf,
        "legacy" => limits::HeaderForm::Legacy,
        "off" => limits::HeaderForm::Off,
    }
}

choice! {
    /// Which responses carry them.
    pub struct HeaderScope(limits::HeaderScope) = "a kind of responses" {
        "all" => limits::HeaderScope::All,
        "refused" => limits::HeaderScope::Refused,
    }
}

choice! {
    /// The least severe level that is logged.
    pub struct ErrorLogLevel(tracing::Level) = "a log level" {
        "error" => tracing::Level::ERROR,
        "warn" => tracing::Level::WARN,
        "info" => tracing::Level::INFO,
        "debug" => tracing::Level::DEBUG,
    }
}

pub(in crate::config) use choice;
pub(in crate::config) use number;
pub(in crate::config) use scalar;
