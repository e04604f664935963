//! What is told of requests to those who collect traces.

use std::time::Duration;

use http::{HeaderName, HeaderValue};

use super::{CallShare, UpstreamTls};

/// `tracing`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracing {
    /// The collector's host, an IPv6 address without brackets.
    pub host: Box<str>,
    /// Its port.
    pub port: u16,
    /// Where it takes them.
    pub path: Box<str>,
    /// How it is met, if that is inside TLS.
    pub tls: Option<UpstreamTls>,
    /// Fields to send along.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Who we are there.
    pub service_name: Box<str>,
    /// How many of those requests are told that bring no decision with them.
    pub sample: CallShare,
    /// What becomes of the context a request brings.
    pub context: TraceContext,
    /// How long spans may wait for others.
    pub interval: Duration,
    /// For how many at most.
    pub batch_size: u32,
}

/// What becomes of the context a request brings: nginx's `otel_trace_context`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TraceContext {
    /// It is taken up, and goes on as it came.
    Extract,
    /// It goes on as it came, and is not looked at.
    Ignore,
    /// Nobody is believed: ours goes on instead.
    Inject,
    /// It is taken up, and goes on with us in it.
    #[default]
    Propagate,
}
