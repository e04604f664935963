//! Changes of a running zone's limits, with the words and the bounds of the file.
//!
//! They are decoded and compiled as those of a file, so that errors are the same, in the same words.

use std::time::Duration;

use serde_json::{Map, Value};

use super::decode::record::record;
use super::decode::value::ConnLimit;
use super::decode::{Decode, DecodeContext, Field, units};
use super::directive::zones::raw::Override;
use super::directive::zones::{self, OverrideLimits};
use super::report::{Diagnostic, ParseError, Report};
use super::source::{Node, NodeKind, Span};
use crate::algorithm::AlgorithmParams;

/// A time as a configuration writes it.
///
/// # Errors
///
/// What is wrong with it, as in a file.
pub fn time(text: &str) -> Result<Duration, String> {
    units::time(text).map_err(|ParseError { sentence, hint }| with_hint(sentence, hint))
}

/// The limits that `rate`, `limit` and `burst` give in a zone with this algorithm and size; `None` for unlimited.
///
/// # Errors
///
/// What is wrong with them, as in a file.
pub fn numbers(
    change: &Map<String, Value>,
    zone: AlgorithmParams,
    size: usize,
) -> Result<Option<OverrideLimits>, String> {
    decoded(change, |own: &Override, report| {
        let limits = zones::override_limits(own, zone, report)?;
        zones::room_for_a_key(own.limit.key(), limits.algorithm, size, report);
        Some(limits)
    })
}

/// The `limit` of a `limit_conn`.
///
/// # Errors
///
/// What is wrong with it, as in a file.
pub fn places(change: &Map<String, Value>) -> Result<Option<u32>, String> {
    decoded(change, |rule: &ConnZoneChange, _| {
        rule.limit.value().map(|limit| limit.0)
    })
}

/// Decodes a change and compiles it.
fn decoded<T: Decode, P>(
    change: &Map<String, Value>,
    compile: impl FnOnce(&T, &mut Report) -> Option<P>,
) -> Result<Option<P>, String> {
    let mut report = Report::default();
    let given = T::decode(
        &mapping(change),
        &mut DecodeContext::new(&mut report, super::homes),
    );
    let compiled = given.map(|given| compile(&given, &mut report));
    match compiled {
        Some(compiled) if report.errors() == 0 => Ok(compiled),
        _ => Err(all(&report)),
    }
}

record! {
    /// What can be changed of a `limit_conn` zone.
    struct ConnZoneChange {
        /// How many requests at once.
        limit: Field<ConnLimit>,
    }
}

fn all(report: &Report) -> String {
    let diagnostics = report.diagnostics().iter();
    let texts = diagnostics
        .map(|Diagnostic { sentence, hint, .. }| with_hint(sentence.clone(), hint.clone()));
    texts.collect::<Vec<_>>().join("; ")
}

fn with_hint(sentence: String, hint: Option<String>) -> String {
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
    let mut next = || places.next().unwrap_or(Span::NOWHERE);
    let node = |kind, span| Node { span, kind };
    let pairs = change.iter().map(|(key, value)| {
        let key = Node::scalar(key, next());
        let value = match value {
            Value::Null => node(NodeKind::Null, next()),
            Value::Array(_) => node(NodeKind::Sequence(Vec::new()), next()),
            Value::Object(_) => node(NodeKind::Mapping(Vec::new()), next()),
            Value::String(text) => Node::scalar(text, next()),
            scalar => Node::scalar(scalar.to_string(), next()),
        };
        (key, value)
    });
    let pairs = pairs.collect();
    node(NodeKind::Mapping(pairs), Span::NOWHERE)
}

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
            (json!({ "rate": "0r/s" }), LEAKY, "a rate of 0"),
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
            let error = read(&change, zone).unwrap_err();
            assert!(error.contains(why), "{error:?} about {change}");
        }
        let error = places(json!({ "limit": 0 }).as_object().unwrap()).unwrap_err();
        assert!(error.contains("too small"), "{error}");
        assert!(time("soon").unwrap_err().contains("`soon`"));
    }
}
