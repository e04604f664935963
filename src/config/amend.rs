//! Numbers of a zone that are changed while it runs, read with the words and held to the bounds of the file.
//!
//! The very code that reads and compiles a file is asked, so that what is refused there is refused here, in the same words.

use std::time::Duration;

use serde_json::{Map, Value};

use super::compile;
use super::decode::{Decode, DecodeContext, Field, units};
use super::report::{Diagnostic, Report};
use super::source::{Node, NodeKind, Scalar, Span};
use crate::algorithm::AlgorithmParams;
use crate::config;
use crate::config::decode::record::record;
use crate::config::decode::units::ParseError;
use crate::config::decode::value::ConnLimit;
use crate::config::directive::limits::OverrideLimits;
use crate::config::directive::limits::raw::Override;

/// A time as a configuration writes it.
///
/// # Errors
///
/// What is wrong with it, as it is said of a file.
pub fn time(text: &str) -> Result<Duration, String> {
    units::time(text).map_err(|ParseError { sentence, hint }| said(sentence, hint))
}

/// What `rate`, `limit` and `burst` come to for a zone that counts like this in so many bytes; `None` for unlimited.
///
/// # Errors
///
/// What is wrong with them, as it is said of a file.
pub fn numbers(
    change: &Map<String, Value>,
    zone: AlgorithmParams,
    size: usize,
) -> Result<Option<OverrideLimits>, String> {
    let mut report = Report::default();
    let node = mapping(change);
    let own = Override::decode(
        &node,
        &mut DecodeContext::new(&mut report, config::raw::homes),
    );
    let own = own.map(|own| compile::own_numbers(&own, zone, size, &mut report));
    match own {
        Some(own) if report.errors() == 0 => Ok(own),
        _ => Err(all(&report)),
    }
}

/// The `limit` of a `limit_conn`.
///
/// # Errors
///
/// What is wrong with it, as it is said of a file.
pub fn places(change: &Map<String, Value>) -> Result<Option<u32>, String> {
    let mut report = Report::default();
    let rule = ConnZoneChange::decode(
        &mapping(change),
        &mut DecodeContext::new(&mut report, config::raw::homes),
    );
    match rule {
        Some(rule) if report.errors() == 0 => Ok(rule.limit.value().map(|limit| limit.0)),
        _ => Err(all(&report)),
    }
}

record! {
    /// What can be changed of a `limit_conn` zone.
    pub struct ConnZoneChange {
        /// How many requests at once.
        limit: Field<ConnLimit>,
    }
}

fn all(report: &Report) -> String {
    let complaints = report.complaints().iter();
    let said =
        complaints.map(|Diagnostic { sentence, hint, .. }| said(sentence.clone(), hint.clone()));
    said.collect::<Vec<_>>().join("; ")
}

fn said(sentence: String, hint: Option<String>) -> String {
    match hint {
        Some(hint) => format!("{sentence} ({hint})"),
        None => sentence,
    }
}

/// JSON as if it had been read from a file; every key and value at a place of its own.
fn mapping(change: &Map<String, Value>) -> Node {
    let mut places = (0..).map(|start| Span {
        file: 0,
        start,
        end: start,
    });
    let mut next = || places.next().unwrap_or(NOWHERE);
    let pairs = change.iter().map(|(key, value)| {
        let key = scalar(key.clone(), true, next());
        let value = match value {
            Value::Null => node(NodeKind::Null, next()),
            Value::Bool(flag) => scalar(flag.to_string(), false, next()),
            Value::Number(number) => scalar(number.to_string(), false, next()),
            Value::String(text) => scalar(text.clone(), true, next()),
            Value::Array(_) => node(NodeKind::Sequence(Vec::new()), next()),
            Value::Object(_) => node(NodeKind::Mapping(Vec::new()), next()),
        };
        (key, value)
    });
    let pairs = pairs.collect();
    node(NodeKind::Mapping(pairs), NOWHERE)
}

fn scalar(text: String, quoted: bool, span: Span) -> Node {
    let scalar = Scalar {
        text,
        quoted,
        verbatim: None,
    };
    node(NodeKind::Scalar(scalar), span)
}

fn node(kind: NodeKind, span: Span) -> Node {
    Node { span, kind }
}

const NOWHERE: Span = Span {
    file: 0,
    start: 0,
    end: 0,
};

#[cfg(test)]
mod tests {

    use serde_json::json;

    use super::*;
    use crate::algorithm::{Excess, Rate};

    const LEAKY: AlgorithmParams = AlgorithmParams::LeakyBucket {
        rate: Rate::per_second(1000),
    };
    const WINDOW: AlgorithmParams = AlgorithmParams::FixedWindow {
        limit: 10,
        window: Duration::from_secs(60),
    };

    const LOG: AlgorithmParams = AlgorithmParams::SlidingLog {
        limit: 10,
        window: Duration::from_secs(60),
    };

    fn read(value: &Value, zone: AlgorithmParams) -> Result<Option<OverrideLimits>, String> {
        numbers(value.as_object().unwrap(), zone, 32 << 10)
    }

    #[test]
    fn numbers_are_those_of_the_file() {
        let own = read(&json!({ "rate": "20r/s", "burst": 40 }), LEAKY)
            .unwrap()
            .unwrap();
        assert_eq!(own.algorithm.to_string(), "20r/s");
        assert_eq!(own.burst, Some(Excess::requests(40)));
        assert_eq!(read(&json!({ "rate": "unlimited" }), LEAKY), Ok(None));
        let own = read(&json!({ "limit": 7 }), WINDOW).unwrap().unwrap();
        assert_eq!(own.algorithm.to_string(), "7r/1m");
        assert_eq!(
            places(json!({ "limit": 7 }).as_object().unwrap()),
            Ok(Some(7))
        );
    }

    #[test]
    fn what_the_file_may_not_say_may_not_be_said_here() {
        for (change, zone, why) in [
            (json!({ "rate": "fast" }), LEAKY, "`fast` is not a rate"),
            (json!({ "rate": "0r/s" }), LEAKY, "a rate of nothing"),
            (json!({ "burst": -1 }), LEAKY, "`-1`"),
            (json!({ "rate": ["1r/s"] }), LEAKY, "found a list"),
            (json!({ "rates": "1r/s" }), LEAKY, "did you mean `rate`"),
            (
                json!({ "rate": "1r/s" }),
                WINDOW,
                "`rate` has no meaning for the algorithm `fixed_window`",
            ),
            (json!({ "burst": 1 }), WINDOW, "`burst` has no meaning"),
            (json!({ "limit": 5 }), LEAKY, "`limit` has no meaning"),
            (json!({ "limit": 5000 }), LOG, "more than its size"),
        ] {
            let said = read(&change, zone).unwrap_err();
            assert!(said.contains(why), "{said:?} about {change}");
        }
        let said = places(json!({ "limit": 0 }).as_object().unwrap()).unwrap_err();
        assert!(said.contains("too small"), "{said}");
        assert!(time("soon").unwrap_err().contains("`soon`"));
    }
}
