//! Single values of the model, each with its units and bounds.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::config::decode::{choice, number, scalar};
use crate::config::near;
use crate::config::plan;
use crate::config::units::{self, ParseError};

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
    pub struct Rate(plan::Rate);
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
    pub struct RateOrUnlimited(Option<plan::Rate>);
    "a rate such as `10r/s`, or `unlimited`",
    |text| match text {
        "unlimited" => Ok(None),
        _ => units::rate(text).map(Some).map_err(|mistake| match near::hint(text, ["unlimited"]) {
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
                    near::hint(word, ["ssl", "http2", "default_server"]).unwrap_or_else(|| {
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
    pub struct OnAmbiguousKey(plan::OnAmbiguousKey) = "something to do with an ambiguous key" {
        "refuse" => plan::OnAmbiguousKey::Refuse,
        "join" => plan::OnAmbiguousKey::Join,
    }
}

choice! {
    /// What upstreams are spoken to in.
    pub struct HttpVersion(plan::HttpVersion) = "a version of HTTP" {
        "1.1" => plan::HttpVersion::One,
        "2" => plan::HttpVersion::Two,
        "2.0" => plan::HttpVersion::Two,
    }
}

choice! {
    /// At which level refusals are logged.
    pub struct LogLevel(plan::LogLevel) = "a log level" {
        "info" => plan::LogLevel::Info,
        "notice" => plan::LogLevel::Notice,
        "warn" => plan::LogLevel::Warn,
        "error" => plan::LogLevel::Error,
    }
}

choice! {
    /// Which header fields tell clients of their limits.
    pub struct HeaderForm(plan::HeaderForm) = "a kind of headers" {
        "ietf" => plan::HeaderForm::Ietf,
        "legacy" => plan::HeaderForm::Legacy,
        "off" => plan::HeaderForm::Off,
    }
}

choice! {
    /// Which responses carry them.
    pub struct HeaderScope(plan::HeaderScope) = "a kind of responses" {
        "all" => plan::HeaderScope::All,
        "refused" => plan::HeaderScope::Refused,
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
