//! `tracing`: who is told of requests, span by span.

use super::health::Percent;
use super::values::Time;
use crate::config::Secret;
use crate::config::decode::{Field, NamedMap, Required, Text, choice, number, record};
use crate::config::plan;

record! {
    /// Traces of requests for an OpenTelemetry collector.
    pub struct Tracing {
        /// The collector, spoken to in OTLP over HTTP: `http://127.0.0.1:4318`. Without a path it is /v1/traces.
        otlp: Required<Text>,
        /// How many of those requests are traced that bring no decision with them. Default: 1%.
        sample: Field<Percent>,
        /// What this weir is called in traces. Default: weir.
        service_name: Field<Text>,
        /// What becomes of the trace context of a request, as nginx's `otel_trace_context`: extract, inject, propagate or ignore. Default: propagate.
        context: Field<TraceContext>,
        /// Header fields for the collector, by name.
        headers: Field<NamedMap<Secret>>,
        /// How long spans wait to be sent together. Default: 5s.
        interval: Field<Time>,
        /// How many are sent together at most. Default: 512.
        batch_size: Field<BatchSize>,
    }
}

choice! {
    /// What becomes of the trace context of a request.
    pub struct TraceContext(plan::TraceContext) = "a way to treat trace context" {
        "extract" => plan::TraceContext::Extract,
        "inject" => plan::TraceContext::Inject,
        "propagate" => plan::TraceContext::Propagate,
        "ignore" => plan::TraceContext::Ignore,
    }
}

number! {
    /// A number of spans.
    pub struct BatchSize(u32) = "a number of spans", 1..=10_000
}
