//! How it is found out whether a server is well before requests find out.
//!
//! When something that fails is left alone.
//!
//! `health_check`, of an upstream's servers.
//!
//! How a server is met, inside TLS or not and in which version, is said where requests are sent to it; the check
//! follows the first `proxy_pass` that does.
//!
//! `breaker`, of an upstream's servers and of a location.

use std::ops::RangeInclusive;
use std::time::Duration;

use http::{HeaderValue, Method, StatusCode};
use regex::bytes::Regex;

use self::raw::Way;
use super::location::{HttpVersion, LocationConf, ProxyPass, SettingLevels};
use super::upstream::{UpstreamAddress, UpstreamServer};
use crate::config::compile::{Compiler, RegexCase, bytes_expression};
use crate::config::decode::Spanned;
use crate::config::decode::value::{OrOff, Shorthand, Text, mistaken};
use crate::config::plan::Server;
use crate::config::source::Span;

pub(crate) mod raw {
    //! `health_check` and `breaker`: how those who are not well are found and left alone.
    use std::ops::RangeInclusive;

    use crate::config::decode::record::record;
    use crate::config::decode::units::ParseError;
    use crate::config::decode::value::{
        Flag, HasShorthand, List, Shorthand, Text, Time, choice, number, scalar,
    };
    use crate::config::decode::{Field, units};
    use crate::config::directive::health;

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
        pub struct Percent(health::CallShare);
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
        pub struct Initial(health::InitialHealth) = "what a server can be at first" {
            "up" => health::InitialHealth::Up,
            "down" => health::InitialHealth::Down,
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
    /// Inside TLS: index of how the upstream's servers are met.
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
    /// Somebody accepts connections.
    Tcp,
}

/// A request, and what its answer has to be like.
#[derive(Debug, Clone)]
pub struct HttpCheck {
    /// Its method.
    pub method: Method,
    /// Its path, and what may follow.
    pub path: Box<str>,
    /// What `Host` says.
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

/// What a server counts as before it was checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum InitialHealth {
    /// Unhealthy, until the first check goes well.
    Down,
    /// Healthy.
    #[default]
    Up,
}

/// A part of a whole, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallShare(pub u32);

impl CallShare {
    /// Whether `part` is at least this share of `whole`.
    #[must_use]
    pub fn is_reached(self, part: u32, whole: u32) -> bool {
        u64::from(part) * 1000 >= u64::from(whole) * u64::from(self.0)
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
    /// `statuses`: answers that are failures.
    pub statuses: Vec<StatusCode>,
}

/// `recovery`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// `half_open` calls are let through; when all of them went well, everybody is.
    Probes(u32),
    /// A share that grows to all over `ramp_for`.
    Ramp {
        /// How long that takes.
        over: Duration,
        /// `half_open`: calls without which it is not judged.
        min_calls: u32,
    },
}

impl Compiler<'_> {
    /// What a `health_check` says of the upstream called `name`.
    pub(in crate::config) fn health_check(
        &mut self,
        given: &raw::HealthCheck,
        name: &str,
        servers: &[UpstreamServer],
    ) -> HealthCheck {
        let word = given
            .r#type
            .value()
            .map_or(raw::CheckKind::Http, |word| word.0);
        self.refuse_strangers(given, word);
        if let Some(port) = given.port.get()
            && servers
                .iter()
                .any(|server| matches!(server.address, UpstreamAddress::Unix(_)))
        {
            self.complain(port.span, "a unix socket has no other `port`");
        }
        let kind = match word {
            raw::CheckKind::Grpc => CheckKind::Grpc {
                service: given.service.value().map_or("", |text| &text.text).into(),
                host: self.check_host(given.host.get(), name),
            },
            raw::CheckKind::Http => CheckKind::Http(self.http_check(given, name)),
            raw::CheckKind::Tcp => CheckKind::Tcp,
        };
        HealthCheck {
            kind,
            interval: self.some_time(given.interval.get(), 5),
            jitter: given.jitter.value().map_or(CallShare(100), |share| share.0),
            timeout: self.some_time(given.timeout.get(), 1),
            rise: given.rise.value().map_or(2, |checks| checks.0),
            fall: given.fall.value().map_or(3, |checks| checks.0),
            initial: given.initial.value().map(|word| word.0).unwrap_or_default(),
            port: given.port.value().map(|port| port.0),
            tls: None,
            version: HttpVersion::One,
        }
    }

    /// Fills in how the servers to be checked are met, once it is known who sends requests to them.
    pub(in crate::config) fn meet_checked(&mut self, servers: &[Server]) {
        let config = self.config;
        let named = config.upstreams.value();
        for (index, (_, group)) in named
            .map_or(&[][..], |named| &named.entries)
            .iter()
            .enumerate()
        {
            let Some(given) = group.value.health_check.get() else {
                continue;
            };
            let proxy_passes: Vec<_> = proxy_passes(servers)
                .filter(|to| to.upstream == index)
                .collect();
            if let Some(check) = self
                .upstreams
                .get_mut(index)
                .and_then(|up| up.health_check.take())
            {
                let check = self.met(check, &given.value.0, given.span, &proxy_passes);
                self.upstreams[index].health_check = Some(check);
            }
        }
    }

    fn met(
        &mut self,
        mut check: HealthCheck,
        given: &raw::HealthCheck,
        span: Span,
        proxy_passes: &[&ProxyPass],
    ) -> HealthCheck {
        let secured = match given.tls.value() {
            Some(flag) => flag.0,
            None => proxy_passes
                .first()
                .is_some_and(|proxy_pass| proxy_pass.tls.is_some()),
        };
        let is_call = matches!(check.kind, CheckKind::Grpc { .. });
        check.version = match proxy_passes.first() {
            _ if is_call => HttpVersion::Two,
            Some(proxy_pass) => proxy_pass.version,
            None => HttpVersion::One,
        };
        if secured && !matches!(check.kind, CheckKind::Tcp) {
            let way = proxy_passes
                .iter()
                .find(|to| to.tls.is_some() && (!is_call || to.version == HttpVersion::Two))
                .or_else(|| proxy_passes.iter().find(|to| to.tls.is_some() && !is_call));
            match way {
                Some(way) => (check.tls, check.version) = (way.tls, way.version),
                None => self.complain_with(
                    given.tls.get().map_or(span, |flag| flag.span),
                    "a check inside TLS, and nobody says how these servers are met",
                    match is_call {
                        true => "a `grpc_pass: grpcs://…` that uses the upstream says it",
                        false => "a `proxy_pass: https://…` that uses the upstream says it",
                    },
                ),
            }
        }
        check
    }

    /// Complains of what means nothing to this type of check.
    fn refuse_strangers(&mut self, given: &raw::HealthCheck, word: raw::CheckKind) {
        let (http, grpc) = (word == raw::CheckKind::Http, word == raw::CheckKind::Grpc);
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
                let sentence = format!("`{key}` means nothing to this type of check");
                self.complain_with(span, sentence, hint);
            }
        }
    }

    fn http_check(&mut self, given: &raw::HealthCheck, name: &str) -> HttpCheck {
        let path = given.path.get();
        if let Some(path) = path
            && !(path.value.text.starts_with('/')
                && path.value.text.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            let sentence = format!("`{}` is no path to ask for", path.value.text);
            let hint = "a path begins with `/` and is percent-encoded";
            self.complain_with(path.span, sentence, hint);
        }
        let method = self.check_method(given.method.get());
        let expect = given.expect.value().map(|Shorthand(expect)| expect);
        let body = expect.and_then(|expect| expect.body.get());
        if let Some(body) = body.filter(|_| method == Method::HEAD) {
            self.complain(body.span, "an answer to HEAD has no body");
        }
        let listed = expect.and_then(|expect| expect.status.value());
        HttpCheck {
            method,
            path: path.map_or("/", |path| &path.value.text).into(),
            host: self.check_host(given.host.get(), name),
            statuses: match listed {
                Some(list) => list.0.iter().map(|range| range.value.0.clone()).collect(),
                None => vec![200..=399],
            },
            body: body.and_then(|body| self.check_body(body)),
        }
    }

    fn check_method(&mut self, given: Option<&Spanned<Text>>) -> Method {
        let Some(given) = given else {
            return Method::GET;
        };
        let text = given.value.text.as_str();
        match Method::from_bytes(text.as_bytes()) {
            Ok(method)
                if text.bytes().all(|b| b.is_ascii_uppercase()) && method != Method::CONNECT =>
            {
                method
            }
            _ => {
                let sentence = format!("`{text}` is no method for a check");
                self.complain_with(given.span, sentence, "GET, HEAD and OPTIONS are");
                Method::GET
            }
        }
    }

    fn check_host(&mut self, given: Option<&Spanned<Text>>, name: &str) -> HeaderValue {
        let host = given.map_or(name, |given| &given.value.text);
        let sound = http::uri::Authority::try_from(host).is_ok();
        match HeaderValue::from_str(host) {
            Ok(value) if sound => value,
            _ => {
                if let Some(given) = given {
                    self.complain(given.span, format!("`{host}` is no host"));
                }
                HeaderValue::from_static("localhost")
            }
        }
    }

    fn check_body(&mut self, given: &Spanned<Text>) -> Option<Regex> {
        let text = given.value.text.as_str();
        let expression = if let Some(expression) = text.strip_prefix("~*") {
            bytes_expression(expression.trim_start(), RegexCase::Ignored)
        } else if let Some(expression) = text.strip_prefix('~') {
            bytes_expression(expression.trim_start(), RegexCase::Matters)
        } else {
            bytes_expression(&regex::escape(text), RegexCase::Matters)
        };
        expression
            .map_err(|mistake| self.report.add(mistaken(given.span, mistake)))
            .ok()
    }
}

/// Every way requests are sent on.
fn proxy_passes(servers: &[Server]) -> impl Iterator<Item = &ProxyPass> {
    let location_confs = servers.iter().flat_map(|server| {
        let locations = server.locations.iter().map(|location| &location.conf);
        locations.chain([&server.fallback])
    });
    location_confs.flat_map(LocationConf::proxy_passes)
}

impl Compiler<'_> {
    /// The breaker of a location.
    pub(in crate::config) fn site_breaker(&mut self, levels: SettingLevels<'_>) -> Option<Breaker> {
        match &levels.find(|settings| &settings.proxy.breaker)?.value {
            OrOff::Off => None,
            OrOff::On(given) => Some(self.breaker(given)),
        }
    }

    /// What a `breaker` says.
    pub(in crate::config) fn breaker(&mut self, given: &raw::Breaker) -> Breaker {
        let share = |given: Option<&raw::Percent>| given.map(|percent| percent.0);
        for ratio in [&given.failure_ratio, &given.slow_ratio] {
            if let Some(ratio) = ratio.get().filter(|ratio| ratio.value.0 == CallShare(0)) {
                let sentence = "a share of nothing is always reached";
                self.complain_with(ratio.span, sentence, "the defaults are 50% and 100%");
            }
        }
        if let (Some(ratio), None) = (given.slow_ratio.get(), given.slow_call.key()) {
            let hint = "say what is slow: `slow_call: 2s`";
            self.complain_with(ratio.span, "`slow_ratio` without `slow_call`", hint);
        }
        let failures = given.failures.value().map(|calls| calls.0);
        let open_for = self.some_time(given.open_for.get(), 5);
        let max_open_for = match given.max_open_for.get() {
            Some(longest) if longest.value.0 < open_for => {
                let sentence = "`max_open_for` is shorter than `open_for`";
                self.complain_with(longest.span, sentence, "the defaults are 60s and 5s");
                open_for
            }
            Some(longest) => longest.value.0,
            None => Duration::from_secs(60).max(open_for),
        };
        Breaker {
            failure_ratio: share(given.failure_ratio.value())
                .or_else(|| Some(CallShare(500)).filter(|_| failures.is_none())),
            failures,
            slow: given.slow_call.get().map(|limit| {
                let limit = self.some_time(Some(limit), 60);
                (
                    limit,
                    share(given.slow_ratio.value()).unwrap_or(CallShare(1000)),
                )
            }),
            window: self.some_time(given.window.get(), 10),
            min_calls: given.min_calls.value().map_or(20, |calls| calls.0),
            open_for,
            max_open_for,
            recovery: self.recovery(given),
            statuses: match given.statuses.value() {
                Some(list) => list.0.iter().filter_map(status).collect(),
                None => FAILURES.to_vec(),
            },
        }
    }

    fn recovery(&mut self, given: &raw::Breaker) -> Recovery {
        let calls = given.half_open.value().map_or(3, |calls| calls.0);
        match given.recovery.value().map_or(Way::Probes, |way| way.0) {
            Way::Probes => {
                if let Some(key) = given.ramp_for.key() {
                    self.complain_with(key, "`ramp_for` without a ramp", "say `recovery: ramp`");
                }
                Recovery::Probes(calls)
            }
            Way::Ramp => Recovery::Ramp {
                over: self.some_time(given.ramp_for.get(), 10),
                min_calls: calls,
            },
        }
    }
}

fn status(given: &Spanned<raw::FailureStatus>) -> Option<StatusCode> {
    StatusCode::from_u16(given.value.0).ok()
}

/// What says that a backend could not, rather than that it would not.
const FAILURES: [StatusCode; 4] = [
    StatusCode::INTERNAL_SERVER_ERROR,
    StatusCode::BAD_GATEWAY,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];
