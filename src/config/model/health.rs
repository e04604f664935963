//! `health_check` and `breaker`: how those who are not well are found and left alone.

use std::ops::RangeInclusive;

use super::values::{Flag, Time};
use crate::config::decode::{
    Field, HasShorthand, List, Shorthand, Text, choice, number, record, scalar,
};
use crate::config::plan;
use crate::config::units::{self, ParseError};

record! {
    /// Asks every server of an upstream again and again whether it is well.
    pub struct HealthCheck {
        /// How: `http`, `grpc` for `grpc.health.v1.Health/Check`, or `tcp` for a connection that is accepted. Default: http.
        r#type: Field<CheckType>,
        /// What is asked for. Default: /.
        path: Field<Text>,
        /// Its method. Default: GET.
        method: Field<Text>,
        /// What `Host` says. Default: the upstream's name.
        host: Field<Text>,
        /// The service that a `grpc` check asks about. Default: the server as a whole.
        service: Field<Text>,
        /// Which answers are fine. Default: status 200-399.
        expect: Field<Shorthand<Expect>>,
        /// The port to ask on. Default: where requests go.
        port: Field<Port>,
        /// Whether to ask inside TLS. Default: as the `proxy_pass` that uses the upstream.
        tls: Field<Flag>,
        /// From the end of one check to the next. Default: 5s.
        interval: Field<Time>,
        /// How much of the interval is left to chance. Default: 10%.
        jitter: Field<Percent>,
        /// How long a check may take, connecting included. Default: 1s.
        timeout: Field<Time>,
        /// How many have to go well in a row until a server is healthy again. Default: 2.
        rise: Field<Checks>,
        /// How many have to fail in a row until it is not. Default: 3.
        fall: Field<Checks>,
        /// What it counts as before the first check: `up` or `down`. Default: up.
        initial: Field<Initial>,
    }
}

impl HasShorthand for HealthCheck {
    const KEY: &'static str = "path";
}

record! {
    /// What a healthy server answers.
    pub struct Expect {
        /// One of these statuses: `200`, `200-399`, or a list of them. Default: 200-399.
        status: Field<List<Statuses>>,
        /// With this in its body; `~ expr` and `~* expr` are expressions.
        body: Field<Text>,
    }
}

impl HasShorthand for Expect {
    const KEY: &'static str = "status";
}

record! {
    /// Leaves something alone for a while that fails too often, or is too slow.
    pub struct Breaker {
        /// The share of calls in the window that have to fail. Default: 50%; none where `failures` is given.
        failure_ratio: Field<Percent>,
        /// How many calls in the window have to fail, whatever their share. Default: none.
        failures: Field<Calls>,
        /// An answer whose head takes this long is slow. Default: none is.
        slow_call: Field<Time>,
        /// The share of calls in the window that have to be slow. Default: 100%.
        slow_ratio: Field<Percent>,
        /// Over which time calls are counted. Default: 10s.
        window: Field<Time>,
        /// Without so many calls in the window no share means anything. Default: 20.
        min_calls: Field<Calls>,
        /// How long nobody is let through. Default: 5s, doubled each time it turns out to be too short.
        open_for: Field<Time>,
        /// And how long at most. Default: 60s.
        max_open_for: Field<Time>,
        /// How many calls are let through to see, and have to go well. Default: 3.
        half_open: Field<Calls>,
        /// How it comes back: after `probes` that went well, or by a share that grows, a `ramp`. Default: probes.
        recovery: Field<Recovery>,
        /// Over which time a ramp grows to all. Default: 10s.
        ramp_for: Field<Time>,
        /// Answers that are failures. Default: 500, 502, 503, 504.
        statuses: Field<List<FailureStatus>>,
    }
    instead defaults;
}

/// Who can be turned off can be turned on.
fn defaults(text: &str) -> Option<String> {
    matches!(text, "on" | "true" | "yes").then(|| "write `{}` for all defaults".to_owned())
}

scalar! {
    /// A part of a whole.
    pub struct Percent(plan::CallShare);
    "a percentage such as `50%`", units::percent,
    { "description": "A percentage such as 50% or 12.5%.", "type": "string", "pattern": r"^[0-9]{1,3}(\.[0-9])? *%$" }
}

scalar! {
    /// A status or a range of them.
    pub struct Statuses(RangeInclusive<u16>);
    "a status such as `200`, or a range such as `200-399`", statuses,
    { "description": "A status, or a range such as 200-399.", "anyOf": [
        { "type": "integer", "minimum": 100, "maximum": 599 },
        { "type": "string", "pattern": "^[1-5][0-9][0-9](-[1-5][0-9][0-9])?$" },
    ] }
}

fn statuses(text: &str) -> Result<RangeInclusive<u16>, ParseError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let status = |text: &str| {
        let status = units::whole(text.trim(), "a status", 100, 599)?;
        Ok(u16::try_from(status).unwrap_or(u16::MAX))
    };
    let range = status(first)?..=status(last)?;
    match range.is_empty() {
        true => Err(ParseError::new(format!(
            "`{text}` is a range with nothing in it"
        ))),
        false => Ok(range),
    }
}

number! {
    /// How many checks.
    pub struct Checks(u32) = "a number of checks", 1..=1000
}

number! {
    /// How many calls.
    pub struct Calls(u32) = "a number of calls", 1..=1_000_000
}

number! {
    /// A status that says that something failed.
    pub struct FailureStatus(u16) = "a status of a failure", 400..=599
}

number! {
    /// A port.
    pub struct Port(u16) = "a port", 1..=65_535
}

/// How a server is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckKind {
    /// By the service that gRPC has for it.
    Grpc,
    /// By a request.
    Http,
    /// By a connection.
    Tcp,
}

choice! {
    /// How a server is asked.
    pub struct CheckType(CheckKind) = "a type of check" {
        "http" => CheckKind::Http,
        "grpc" => CheckKind::Grpc,
        "tcp" => CheckKind::Tcp,
    }
}

choice! {
    /// What a server counts as before it was checked.
    pub struct Initial(plan::InitialHealth) = "what a server can be at first" {
        "up" => plan::InitialHealth::Up,
        "down" => plan::InitialHealth::Down,
    }
}

/// How a breaker comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// After some calls that went well.
    Probes,
    /// By a growing share.
    Ramp,
}

choice! {
    /// How a breaker comes back.
    pub struct Recovery(Way) = "a way to recover" {
        "probes" => Way::Probes,
        "ramp" => Way::Ramp,
    }
}
