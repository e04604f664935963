//! The spans of a request as OTLP writes them in JSON, with OpenTelemetry's names for what they tell.
//!
//! One for the request, and under it one for each wait at a limit and one for each try at an upstream server. Times are
//! those the exchange has noted, in whole milliseconds.

use std::io::Write as _;
use std::time::Duration;

use http::header::USER_AGENT;
use http::{Method, StatusCode, Version};

use super::Spans;
use crate::clock::Millis;
use crate::config::plan::{LimitVariable, Variable};
use crate::message::{Attempt, RequestRecord, SpanId, Trace, variables};
use crate::text::{escape_json, push_hex};

/// All spans of a request that is over `now`, which is this time of day.
pub(super) fn of(record: &RequestRecord, trace: &Trace, now: Millis, wall: Duration) -> Spans {
    let nanos = |time: u64| u128::from(time) * 1_000_000;
    let mut page = SpanJson {
        out: Vec::with_capacity(2048),
        trace,
        began: wall.as_nanos().saturating_sub(nanos(now.0)),
        first: true,
    };
    page.request(record, now);
    for wait in &trace.waits {
        page.open(SpanKind::Internal, b"limit wait", wait.from, wait.until);
        page.text("weir.zone", wait.zone.as_bytes());
        page.text("weir.verdict", b"delay");
        page.close(None);
    }
    let mut asked = 0_u64;
    for (attempt, started) in started(record) {
        page.attempt(record, attempt, started, asked);
        asked += 1;
    }
    Spans {
        count: 1 + trace.waits.len() as u64 + asked,
        json: page.out,
    }
}

/// Tries that were begun: where no server could be asked, there is none to tell of.
fn started(record: &RequestRecord) -> impl Iterator<Item = (&Attempt, Millis)> {
    let attempts = record.attempts.iter();
    attempts.filter_map(|attempt| Some((attempt, attempt.started?)))
}

struct SpanJson<'t> {
    out: Vec<u8>,
    trace: &'t Trace,
    /// When the clock began that the exchange's times are of, in nanoseconds since 1970.
    began: u128,
    /// Whether nothing was said of the present span yet.
    first: bool,
}

/// OpenTelemetry's numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SpanKind {
    Internal = 1,
    Server = 2,
    Client = 3,
}

impl SpanJson<'_> {
    fn request(&mut self, record: &RequestRecord, now: Millis) {
        let head = &record.head;
        self.open(SpanKind::Server, method(&head.method), record.started, now);
        self.method(&head.method);
        self.variable("url.scheme", &Variable::Scheme, record);
        self.text("url.path", head.uri.path().as_bytes());
        self.variable("url.query", &Variable::Args, record);
        self.variable("server.address", &Variable::Host, record);
        self.variable("client.address", &Variable::RemoteAddr, record);
        self.variable("network.peer.address", &Variable::RealipRemoteAddr, record);
        self.text("network.protocol.version", version(head.version));
        self.variable("user_agent.original", &Variable::Http(USER_AGENT), record);
        self.number("http.response.body.size", record.body_sent);
        self.variable("weir.request_id", &Variable::RequestId, record);
        self.variable(
            "weir.verdict",
            &Variable::Limit(LimitVariable::Verdict),
            record,
        );
        self.variable("weir.zone", &Variable::Limit(LimitVariable::Zone), record);
        // What a client did wrong is no error of the server's.
        let failed = self.status(record.status, 500);
        self.close(failed);
    }

    fn attempt(&mut self, record: &RequestRecord, attempt: &Attempt, started: Millis, before: u64) {
        let taken = attempt.response.or(attempt.header).unwrap_or_default();
        let asked = &record.head.method;
        self.open(
            SpanKind::Client,
            method(asked),
            started,
            started.after(taken),
        );
        self.method(asked);
        if let Some(upstream) = record.proxy_pass.as_ref().map(|it| &it.host) {
            self.text("weir.upstream", upstream.as_bytes());
        }
        self.text("weir.server", attempt.address.as_bytes());
        if let Some((host, port)) = attempt.address.rsplit_once(':')
            && let Ok(port) = port.parse()
        {
            self.text("server.address", host.trim_matches(['[', ']']).as_bytes());
            self.number("server.port", port);
        } else {
            self.text("server.address", attempt.address.as_bytes());
        }
        if before > 0 {
            self.number("http.request.resend_count", before);
        }
        let failed = self.status(attempt.status, 400);
        self.close(failed);
    }

    /// Begins a span.
    fn open(&mut self, kind: SpanKind, name: &[u8], from: Millis, until: Millis) {
        let trace = self.trace;
        let (own, parent) = match kind {
            SpanKind::Server => (trace.span, trace.parent),
            _ => (SpanId(fastrand::u64(1..).to_be_bytes()), Some(trace.span)),
        };
        if kind != SpanKind::Server {
            self.out.push(b',');
        }
        self.out.extend_from_slice(b"{\"traceId\":\"");
        push_hex(&trace.id.0, &mut self.out);
        self.out.extend_from_slice(b"\",\"spanId\":\"");
        push_hex(&own.0, &mut self.out);
        if let Some(parent) = parent {
            self.out.extend_from_slice(b"\",\"parentSpanId\":\"");
            push_hex(&parent.0, &mut self.out);
        }
        self.out.extend_from_slice(b"\",\"name\":\"");
        self.out.extend_from_slice(name);
        // Sampled; and whether the parent is somebody else's is known, and so only of the request itself.
        let flags = match (kind, parent) {
            (SpanKind::Server, Some(_)) => 0x301,
            _ => 0x101,
        };
        let time = |at: Millis| self.began + u128::from(at.0) * 1_000_000;
        let (from, until) = (time(from), time(until.max(from)));
        self.print(format_args!(
            "\",\"kind\":{},\"flags\":{flags},\"startTimeUnixNano\":\"{from}\",\"endTimeUnixNano\":\"{until}\",\"attributes\":[",
            kind as u8
        ));
        self.first = true;
    }

    /// Ends a span that failed with this status, if it did.
    fn close(&mut self, failed: Option<StatusCode>) {
        if let Some(status) = failed {
            self.text("error.type", status.as_str().as_bytes());
        }
        let code = if failed.is_some() { 2 } else { 0 };
        self.print(format_args!("],\"status\":{{\"code\":{code}}}}}"));
    }

    /// Says an answer's status; gives it back where it is a failure.
    fn status(&mut self, status: Option<StatusCode>, least: u16) -> Option<StatusCode> {
        let status = status?;
        self.number("http.response.status_code", status.as_u16().into());
        Some(status).filter(|status| status.as_u16() >= least)
    }

    fn method(&mut self, asked: &Method) {
        let known = method(asked);
        if known == UNKNOWN {
            self.text("http.request.method", b"_OTHER");
            self.text("http.request.method_original", asked.as_str().as_bytes());
        } else {
            self.text("http.request.method", known);
        }
    }

    /// What a variable says, if it says something.
    fn variable(&mut self, key: &str, variable: &Variable, record: &RequestRecord) {
        let mut value = Vec::new();
        if variables::append(variable, record, &mut value) && !value.is_empty() {
            self.text(key, &value);
        }
    }

    fn text(&mut self, key: &str, value: &[u8]) {
        self.key(key);
        self.out.extend_from_slice(b"\"stringValue\":\"");
        escape_json(&value[..value.len().min(LONGEST)], &mut self.out);
        self.out.extend_from_slice(b"\"}}");
    }

    fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        self.print(format_args!("\"intValue\":\"{value}\"}}}}"));
    }

    fn key(&mut self, key: &str) {
        let before: &[u8] = if self.first {
            b"{\"key\":\""
        } else {
            b",{\"key\":\""
        };
        self.first = false;
        self.out.extend_from_slice(before);
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\",\"value\":{");
    }

    fn print(&mut self, text: std::fmt::Arguments<'_>) {
        self.out
            .write_fmt(text)
            .expect("writing to memory does not fail");
    }
}

/// What a request is called: clients can make up methods, and spans of all names there are would be of no use.
fn method(method: &Method) -> &[u8] {
    match method.as_str() {
        "GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "CONNECT" | "OPTIONS" | "TRACE" | "PATCH" => {
            method.as_str().as_bytes()
        }
        _ => UNKNOWN,
    }
}

fn version(version: Version) -> &'static [u8] {
    match version {
        Version::HTTP_10 => b"1.0",
        Version::HTTP_2 => b"2",
        _ => b"1.1",
    }
}

const UNKNOWN: &[u8] = b"HTTP";

/// Of a text that is told, in bytes: what waits to be sent is bounded by it.
const LONGEST: usize = 1024;
