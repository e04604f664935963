//! `health_check` of an upstream's servers, and `breaker` of an upstream's servers and of a location.
//!
//! TLS and the HTTP version of checks are those of the first `proxy_pass` to the upstream; they are filled in once all
//! locations are compiled.

use std::ops::RangeInclusive;
use std::time::Duration;

use http::{HeaderValue, Method, StatusCode};
use regex::bytes::Regex;

use crate::config::compile::{bytes_expression, split_expression};
use crate::config::decode::units::CallShare;
use crate::config::decode::value::{HttpVersion, Text, choice};
use crate::config::decode::{Field, Spanned};
use crate::config::report::Report;

pub(crate) mod raw {
    //! `health_check` and `breaker`.
    use std::ops::RangeInclusive;
    use std::time::Duration;

    use http::StatusCode;

    use super::InitialHealth;
    use crate::config::decode::Field;
    use crate::config::decode::record::{Setting, record};
    use crate::config::decode::units::{self, CallShare};
    use crate::config::decode::value::{
        Flag, HasShorthand, List, Shorthand, Text, Time, choice, nonzero, number, scalar,
    };
    use crate::config::report::ParseError;

    record! {
        /// Checks every server of an upstream periodically.
        pub(crate) struct HealthCheck {
            /// How: `http`, `grpc` for `grpc.health.v1.Health/Check`, or `tcp` for a connection that is accepted.
            r#type: Field<CheckType> = "http" => CheckType,
            /// The path to request.
            path: Field<Text> = "/" => Box<str>,
            /// Its method.
            method: Field<Text> = "GET" => Box<str>,
            /// The `Host` header. Default: the upstream's name.
            host: Field<Text>,
            /// The service that a `grpc` check asks about. Default: the server as a whole.
            service: Field<Text>,
            /// Which responses are successful. Default: status 200-399.
            expect: Field<Shorthand<Expect>>,
            /// The port to check. Default: that of requests.
            port: Field<Port>,
            /// Whether to check over TLS. Default: as the `proxy_pass` that uses the upstream.
            tls: Field<Flag>,
            /// From the end of one check to the next.
            interval: Field<Time> = "5s" => Duration; if nonzero,
            /// The random part of the interval.
            jitter: Field<Percent> = "10%" => CallShare,
            /// How long a check may take, connecting included.
            timeout: Field<Time> = "1s" => Duration; if nonzero,
            /// How many have to succeed in a row until a server is healthy again.
            rise: Field<Checks> = "2" => u32,
            /// How many have to fail in a row until it is unhealthy.
            fall: Field<Checks> = "3" => u32,
            /// The state before the first check: `up` or `down`.
            initial: Field<InitialHealth> = "up" => InitialHealth,
        }
    }

    impl HasShorthand for HealthCheck {
        const KEY: &'static str = "path";
    }

    record! {
        /// The response of a healthy server.
        pub(crate) struct Expect {
            /// One of these statuses: `200`, `200-399`, or a list of them.
            status: Field<List<Statuses>> = "200-399" => Vec<RangeInclusive<u16>>,
            /// With this in its body; `~ expr` and `~* expr` are expressions.
            body: Field<Text>,
        }
    }

    impl HasShorthand for Expect {
        const KEY: &'static str = "status";
    }

    record! {
        /// Stops calls for a while where too many fail or are too slow.
        pub(crate) struct Breaker {
            /// The share of calls in the window that have to fail; ignored where only `failures` is given.
            failure_ratio: Field<Percent> = "50%" => CallShare; if some_share,
            /// How many calls in the window have to fail, whatever their share. Default: none.
            failures: Field<Calls>,
            /// A response whose headers take this long is slow. Default: none is.
            slow_call: Field<Time>,
            /// The share of calls in the window that have to be slow.
            slow_ratio: Field<Percent> = "100%" => CallShare; if some_share,
            /// The time over which calls are counted.
            window: Field<Time> = "10s" => Duration; if nonzero,
            /// The number of calls in the window below which shares are ignored.
            min_calls: Field<Calls> = "20" => u32,
            /// How long no calls pass; doubled each time it turns out to be too short.
            open_for: Field<Time> = "5s" => Duration; if nonzero,
            /// The longest time that no calls pass.
            max_open_for: Field<Time> = "60s" => Duration,
            /// How many probe calls pass, and have to succeed.
            half_open: Field<Calls> = "3" => u32,
            /// How it recovers: after `probes` that succeed, or by a growing share of calls, a `ramp`.
            recovery: Field<RecoveryWord> = "probes" => RecoveryWord,
            /// The time over which a ramp grows to all calls.
            ramp_for: Field<Time> = "10s" => Duration; if nonzero,
            /// Responses that are failures.
            statuses: Field<List<FailureStatus>> = "500, 502, 503, 504" => Vec<StatusCode>,
        }
        instead defaults;
    }

    /// What can be turned off is often turned on.
    fn defaults(text: &str) -> Option<String> {
        matches!(text, "on" | "true" | "yes").then(|| "write `{}` for all defaults".to_owned())
    }

    scalar! {
        /// A part of a whole.
        pub(crate) struct Percent(CallShare);
        "a percentage such as `50%`", units::percent,
        { "description": "A percentage such as 50% or 12.5%.", "type": "string", "pattern": r"^[0-9]{1,3}(\.[0-9])? *%$" }
    }

    scalar! {
        /// A status or a range of them.
        pub(crate) struct Statuses(RangeInclusive<u16>);
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
        pub(crate) struct Checks(u32) = "a number of checks", 1..=1000
    }

    number! {
        /// How many calls.
        pub(crate) struct Calls(u32) = "a number of calls", 1..=1_000_000
    }

    number! {
        /// A status that says that something failed.
        pub(crate) struct FailureStatus(u16) = "a status of a failure", 400..=599
    }

    number! {
        /// A port.
        pub(crate) struct Port(u16) = "a port", 1..=65_535
    }

    impl Setting<StatusCode> for FailureStatus {
        fn plan(&self) -> StatusCode {
            // Numbers from 400 to 599 are statuses; the decoder knows no others.
            StatusCode::from_u16(self.0).unwrap_or_default()
        }
    }

    /// A share that is not always reached.
    fn some_share(share: &Percent, _: &str) -> Result<(), ParseError> {
        match share.0 == CallShare(0) {
            true => Err(ParseError::new("the share must be greater than 0")
                .help("the defaults are 50% and 100%")),
            false => Ok(()),
        }
    }

    choice! {
        /// What a check does.
        pub(crate) enum CheckType as "CheckType" = "a type of check" {
            /// A request.
            Http = "http",
            /// A call of gRPC's health service.
            Grpc = "grpc",
            /// A connection.
            Tcp = "tcp",
        }
    }

    choice! {
        /// How a breaker recovers.
        pub(crate) enum RecoveryWord as "Recovery" = "a kind of recovery" {
            /// After some calls that succeed.
            Probes = "probes",
            /// By a growing share of calls.
            Ramp = "ramp",
        }
    }
}

/// `health_check`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// What is asked, and what is expected.
    pub kind: CheckKind,
    /// From the end of one check to the beginning of the next.
    pub interval: Duration,
    /// How much of it is left to chance, so that not all are checked at once.
    pub jitter: CallShare,
    /// How long a check may take, connecting included.
    pub timeout: Duration,
    /// How many have to go well in a row until a server counts as healthy.
    pub rise: u32,
    /// How many have to fail in a row until it does not.
    pub fall: u32,
    /// What it counts as before the first.
    pub initial: InitialHealth,
    /// Where it is asked, if not where requests go.
    pub port: Option<u16>,
    /// Over TLS: index of the TLS settings of the upstream's servers.
    pub tls: Option<usize>,
    /// What is spoken.
    pub version: HttpVersion,
}

/// `type`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckKind {
    /// `grpc.health.v1.Health/Check` about this service; about the whole server where it is empty.
    Grpc {
        /// Its name.
        service: Box<str>,
        /// What `:authority` says.
        host: HeaderValue,
    },
    /// A request.
    Http(HttpCheck),
    /// A connection that is accepted.
    Tcp,
}

/// A request, and the response expected.
#[derive(Debug, Clone)]
pub struct HttpCheck {
    /// Its method.
    pub method: Method,
    /// Its path, and what may follow.
    pub path: Box<str>,
    /// The `Host` header.
    pub host: HeaderValue,
    /// Its statuses that are fine.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// What has to be in its body.
    pub body: Option<Regex>,
}

impl PartialEq for HttpCheck {
    // An expression is the same where it is written the same.
    fn eq(&self, other: &Self) -> bool {
        let body = |check: &Self| check.body.as_ref().map(|body| body.as_str().to_owned());
        self.method == other.method
            && self.path == other.path
            && self.host == other.host
            && self.statuses == other.statuses
            && body(self) == body(other)
    }
}

impl Eq for HttpCheck {}

choice! {
    /// The state of a server before its first check.
    pub enum InitialHealth as "Initial" = "an initial state" {
        /// Healthy.
        Up = "up",
        /// Unhealthy, until the first check succeeds.
        Down = "down",
    }
}

/// `breaker`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breaker {
    /// `failure_ratio`: the share of calls that have to fail.
    pub failure_ratio: Option<CallShare>,
    /// `failures`: how many have to fail, however many do not.
    pub failures: Option<u32>,
    /// `slow_call` and `slow_ratio`: what is slow, and the share of calls that have to be.
    pub slow: Option<(Duration, CallShare)>,
    /// `window`: over which calls are counted.
    pub window: Duration,
    /// `min_calls`: without which no share means anything.
    pub min_calls: u32,
    /// `open_for`: how long it stays open the first time.
    pub open_for: Duration,
    /// `max_open_for`: and at most, when it does not get better.
    pub max_open_for: Duration,
    /// How it is found out whether things are well again.
    pub recovery: Recovery,
    /// `statuses`: responses that are failures.
    pub statuses: Vec<StatusCode>,
}

/// `recovery`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// `half_open` calls pass; when all of them succeed, all calls pass.
    Probes(u32),
    /// A share that grows to all over `ramp_for`.
    Ramp {
        /// How long that takes.
        over: Duration,
        /// `half_open`: calls without which it is not judged.
        min_calls: u32,
    },
}

impl HealthCheck {
    /// The `health_check` of the upstream called `name`; `has_unix` where it has servers on unix sockets.
    pub(crate) fn compile(
        given: &raw::HealthCheck,
        name: &str,
        has_unix: bool,
        report: &mut Report,
    ) -> Self {
        let kind = given.r#type();
        refuse_keys_of_other_types(given, kind, report);
        if let Some(port) = given.port.get().filter(|_| has_unix) {
            report.error(port.span, "a unix socket has no other `port`");
        }
        Self {
            kind: match kind {
                raw::CheckType::Grpc => CheckKind::Grpc {
                    service: given.service.value().map_or("", |text| &text.text).into(),
                    host: check_host(&given.host, name, report),
                },
                raw::CheckType::Http => CheckKind::Http(http_check(given, name, report)),
                raw::CheckType::Tcp => CheckKind::Tcp,
            },
            interval: given.interval(),
            jitter: given.jitter(),
            timeout: given.timeout(),
            rise: given.rise(),
            fall: given.fall(),
            initial: given.initial(),
            port: given.port.value().map(|port| port.0),
            tls: None,
            version: HttpVersion::One,
        }
    }
}

/// Reports keys that have no meaning for this type of check.
fn refuse_keys_of_other_types(given: &raw::HealthCheck, kind: raw::CheckType, report: &mut Report) {
    let (http, grpc) = (kind == raw::CheckType::Http, kind == raw::CheckType::Grpc);
    let keys = [
        ("path", given.path.key(), http),
        ("method", given.method.key(), http),
        ("expect", given.expect.key(), http),
        ("host", given.host.key(), http || grpc),
        ("service", given.service.key(), grpc),
    ];
    for (key, span, fits) in keys {
        if let Some(span) = span.filter(|_| !fits) {
            let hint = match key {
                "service" => "it belongs to `type: grpc`",
                _ => "it belongs to `type: http`",
            };
            let sentence = format!("`{key}` has no meaning for this type of check");
            report.error_with(span, sentence, hint);
        }
    }
}

fn http_check(given: &raw::HealthCheck, name: &str, report: &mut Report) -> HttpCheck {
    let path = given.path();
    if let Some(given) = given.path.get()
        && !(path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()))
    {
        let sentence = format!("`{path}` is not a path that can be requested");
        let hint = "a path begins with `/` and is percent-encoded";
        report.error_with(given.span, sentence, hint);
    }
    let method = check_method(given, report);
    let default = raw::Expect::default();
    let expect = given.expect.record().unwrap_or(&default);
    let body = expect.body.get();
    if let Some(body) = body.filter(|_| method == Method::HEAD) {
        report.error(body.span, "a response to HEAD has no body");
    }
    HttpCheck {
        method,
        path,
        host: check_host(&given.host, name, report),
        statuses: expect.status(),
        body: body.and_then(|body| check_body(body, report)),
    }
}

fn check_method(given: &raw::HealthCheck, report: &mut Report) -> Method {
    let text = given.method();
    let method = Method::from_bytes(text.as_bytes()).ok();
    let is_upper = text.bytes().all(|byte| byte.is_ascii_uppercase());
    let method = method.filter(|method| is_upper && *method != Method::CONNECT);
    if let (None, Some(given)) = (&method, given.method.get()) {
        let sentence = format!("`{text}` is not a method for a check");
        report.error_with(given.span, sentence, "expected for example GET or HEAD");
    }
    method.unwrap_or_default()
}

fn check_host(given: &Field<Text>, name: &str, report: &mut Report) -> HeaderValue {
    let host = given.value().map_or(name, |given| &given.text);
    let is_host = http::uri::Authority::try_from(host).is_ok();
    match HeaderValue::from_str(host) {
        Ok(value) if is_host => value,
        _ => {
            if let Some(given) = given.get() {
                report.error(given.span, format!("`{host}` is not a host"));
            }
            HeaderValue::from_static("localhost")
        }
    }
}

fn check_body(given: &Spanned<Text>, report: &mut Report) -> Option<Regex> {
    let text = given.value.text.as_str();
    let expression = match split_expression(text) {
        Some((expression, ignore_case)) => bytes_expression(expression.trim_start(), ignore_case),
        None => bytes_expression(&regex::escape(text), false),
    };
    report.parsed(given.span, expression)
}

impl Breaker {
    /// A `breaker`.
    pub(crate) fn compile(given: &raw::Breaker, report: &mut Report) -> Self {
        if let (Some(ratio), None) = (given.slow_ratio.get(), given.slow_call.key()) {
            let hint = "add the time that makes a call slow: `slow_call: 2s`";
            report.error_with(ratio.span, "`slow_ratio` without `slow_call`", hint);
        }
        if let Some(limit) = given.slow_call.get().filter(|it| it.value.0.is_zero()) {
            report.error(limit.span, "`slow_call` must be longer than 0");
        }
        let (open_for, max_open_for) = (given.open_for(), given.max_open_for());
        if let Some(longest) = given.max_open_for.get().filter(|_| max_open_for < open_for) {
            let sentence = "`max_open_for` is shorter than `open_for`";
            report.error_with(longest.span, sentence, "the defaults are 60s and 5s");
        }
        let failures = given.failures.value().map(|calls| calls.0);
        let slow_call = given.slow_call.value().map(|time| time.0);
        Self {
            failure_ratio: match (given.failure_ratio.get(), failures) {
                (None, Some(_)) => None,
                _ => Some(given.failure_ratio()),
            },
            failures,
            slow: slow_call.map(|limit| (limit, given.slow_ratio())),
            window: given.window(),
            min_calls: given.min_calls(),
            open_for,
            max_open_for: max_open_for.max(open_for),
            recovery: recovery(given, report),
            statuses: given.statuses(),
        }
    }
}

fn recovery(given: &raw::Breaker, report: &mut Report) -> Recovery {
    match given.recovery() {
        raw::RecoveryWord::Probes => {
            if let Some(key) = given.ramp_for.key() {
                report.error_with(key, "`ramp_for` without a ramp", "add `recovery: ramp`");
            }
            Recovery::Probes(given.half_open())
        }
        raw::RecoveryWord::Ramp => Recovery::Ramp {
            over: given.ramp_for(),
            min_calls: given.half_open(),
        },
    }
}
