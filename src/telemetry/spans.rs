//! The spans of a request in the JSON of OTLP, with OpenTelemetry's names, and how many were exported or dropped.
//!
//! One span for the request, and under it one for each wait at a limit and one for each attempt at an upstream server. Times
//! are those of the request record, in whole milliseconds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::header::USER_AGENT;
use http::{Method, StatusCode, Version};

use super::metrics::{Exposition, metrics};
use crate::clock::Millis;
use crate::config::plan::{LimitVariable, Variable};
use crate::message::{Attempt, RequestRecord, SpanId, Trace, variables};
use crate::text::{Append as _, escape_json, push_hex};

/// Encoded spans.
#[derive(Debug)]
pub(super) struct Spans {
    pub(super) count: u64,
    /// Objects of OTLP, separated by commas.
    pub(super) json: Vec<u8>,
}

/// Spans by what became of them.
pub(super) struct SpanCounters {
    pub(super) exported: AtomicU64,
    /// The queue was full.
    pub(super) dropped: AtomicU64,
    /// The collector refused them or failed.
    pub(super) refused: AtomicU64,
}

pub(super) static SPAN_COUNTERS: SpanCounters = SpanCounters {
    exported: AtomicU64::new(0),
    dropped: AtomicU64::new(0),
    refused: AtomicU64::new(0),
};

metrics! {
    /// The metrics of spans.
    pub SPAN_METRICS:
    SPANS_EXPORTED_TOTAL = counter("weir_spans_exported_total", [], "Spans a collector has taken.");
    SPANS_DROPPED_TOTAL = counter("weir_spans_dropped_total", ["reason"], "Spans dropped because the collector did not take them (export), or because too many waited for it (queue).");
}

/// Writes the metrics of spans.
pub fn describe(page: &mut Exposition) {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    page.sample(&SPANS_EXPORTED_TOTAL, &[], read(&SPAN_COUNTERS.exported));
    page.sample(
        &SPANS_DROPPED_TOTAL,
        &["export"],
        read(&SPAN_COUNTERS.refused),
    );
    page.sample(
        &SPANS_DROPPED_TOTAL,
        &["queue"],
        read(&SPAN_COUNTERS.dropped),
    );
}

/// Encodes all spans of a request that ends `now`; `wall` is the time of day.
pub(super) fn encode(record: &RequestRecord, trace: &Trace, now: Millis, wall: Duration) -> Spans {
    let nanos = |time: u64| u128::from(time) * 1_000_000;
    let mut spans = SpanJson {
        out: Vec::with_capacity(2048),
        trace,
        epoch: wall.as_nanos().saturating_sub(nanos(now.0)),
    };
    spans.request(record, now);
    for wait in &trace.waits {
        spans.open(SpanKind::Internal, b"limit wait", wait.from, wait.until);
        spans.text("weir.zone", wait.zone.as_bytes());
        spans.text("weir.verdict", b"delay");
        spans.close(None);
    }
    let mut attempts = 0_u64;
    for (attempt, started) in started(record) {
        spans.attempt(record, attempt, started, attempts);
        attempts += 1;
    }
    Spans {
        count: 1 + trace.waits.len() as u64 + attempts,
        json: spans.out,
    }
}

/// Attempts that were started; without an available server there is none.
fn started(record: &RequestRecord) -> impl Iterator<Item = (&Attempt, Millis)> {
    let attempts = record.attempts.iter();
    attempts.filter_map(|attempt| Some((attempt, attempt.started?)))
}

struct SpanJson<'t> {
    out: Vec<u8>,
    trace: &'t Trace,
    /// When the clock of the request's times started, in nanoseconds since 1970.
    epoch: u128,
}

/// The kind of a span, with OpenTelemetry's number.
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
        // An error of the client is no error of the server.
        let failed = self.status(record.status, 500);
        self.close(failed);
    }

    fn attempt(&mut self, record: &RequestRecord, attempt: &Attempt, started: Millis, before: u64) {
        let taken = attempt.response.or(attempt.header).unwrap_or_default();
        let requested = &record.head.method;
        self.open(
            SpanKind::Client,
            method(requested),
            started,
            started.after(taken),
        );
        self.method(requested);
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

    /// Opens a span.
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
        // Sampled; for the request itself also that its parent is remote.
        let flags = match (kind, parent) {
            (SpanKind::Server, Some(_)) => 0x301,
            _ => 0x101,
        };
        let time = |at: Millis| self.epoch + u128::from(at.0) * 1_000_000;
        let (from, until) = (time(from), time(until.max(from)));
        write!(
            self.out,
            "\",\"kind\":{},\"flags\":{flags},\"startTimeUnixNano\":\"{from}\",\"endTimeUnixNano\":\"{until}\",\"attributes\":[",
            kind as u8
        );
    }

    /// Closes a span, with the status of its error if it failed.
    fn close(&mut self, failed: Option<StatusCode>) {
        if let Some(status) = failed {
            self.text("error.type", status.as_str().as_bytes());
        }
        let code = if failed.is_some() { 2 } else { 0 };
        write!(self.out, "],\"status\":{{\"code\":{code}}}}}");
    }

    /// Writes the status of a response; returns it if it is an error.
    fn status(&mut self, status: Option<StatusCode>, least: u16) -> Option<StatusCode> {
        let status = status?;
        self.number("http.response.status_code", status.as_u16().into());
        Some(status).filter(|status| status.as_u16() >= least)
    }

    fn method(&mut self, requested: &Method) {
        let known = method(requested);
        if known == UNKNOWN {
            self.text("http.request.method", b"_OTHER");
            self.text(
                "http.request.method_original",
                requested.as_str().as_bytes(),
            );
        } else {
            self.text("http.request.method", known);
        }
    }

    /// Writes the value of a variable that has one.
    fn variable(&mut self, key: &str, variable: &Variable, record: &RequestRecord) {
        let mut value = Vec::new();
        if variables::append(variable, record, &mut value) && !value.is_empty() {
            self.text(key, &value);
        }
    }

    fn text(&mut self, key: &str, value: &[u8]) {
        push_text(key, &value[..value.len().min(LONGEST)], &mut self.out);
    }

    fn number(&mut self, key: &str, value: u64) {
        push_key(key, &mut self.out);
        write!(self.out, "\"intValue\":\"{value}\"}}}}");
    }
}

/// Appends an attribute with a text.
pub(super) fn push_text(key: &str, value: &[u8], out: &mut Vec<u8>) {
    push_key(key, out);
    out.extend_from_slice(b"\"stringValue\":\"");
    escape_json(value, out);
    out.extend_from_slice(b"\"}}");
}

fn push_key(key: &str, out: &mut Vec<u8>) {
    if out.last() != Some(&b'[') {
        out.push(b',');
    }
    write!(out, "{{\"key\":\"{key}\",\"value\":{{");
}

/// The name of a span: clients can make up methods, and spans of any name would be useless.
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

/// The longest text of an attribute, in bytes, so that the queue is bounded.
const LONGEST: usize = 1024;
