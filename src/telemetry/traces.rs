//! Traces: which requests are traced, and their spans for an OpenTelemetry collector.
//!
//! weir has its own exporter. The OpenTelemetry crates would add a second HTTP client and some forty crates to write a page
//! of JSON and post it, and they make spans while a request runs; here they are made once, at its end, from the record
//! that the access log has anyway.

use std::sync::Arc;

use http::HeaderMap;

#[cfg(feature = "otel")]
use super::otlp::Exporter;
use super::spans::{self, Spans};
use crate::clock::{Clock, Millis};
use crate::config::plan::{CallShare, TraceContext, Tracing};
use crate::message::{
    Propagation, RequestRecord, SpanId, Trace, TraceId, TraceParent, has_sound_state,
};

#[cfg(not(feature = "otel"))]
use self::NoExporter as Exporter;
#[cfg(feature = "otel")]
pub use super::otlp::flush;
pub use super::spans::{SPAN_METRICS, describe};

/// Replaces the exporter in a build without it.
#[cfg(not(feature = "otel"))]
#[derive(Debug)]
enum NoExporter {}

#[cfg(not(feature = "otel"))]
impl NoExporter {
    fn get(_: &Tracing) -> Option<Arc<Self>> {
        None
    }

    fn send(&self, _: u64, _: Vec<u8>) {
        match *self {}
    }
}

/// Does nothing in a build without an exporter.
#[cfg(not(feature = "otel"))]
pub fn flush(_: std::time::Duration) {}

/// Decides which requests are traced, and exports their spans.
#[derive(Debug)]
pub struct Tracer {
    sample: CallShare,
    context: TraceContext,
    exporter: Arc<Exporter>,
}

impl Tracer {
    /// A tracer; `None` if its exporter cannot be started.
    #[must_use]
    pub fn new(plan: &Tracing) -> Option<Self> {
        Some(Self {
            sample: plan.sample,
            context: plan.context,
            exporter: Exporter::get(plan)?,
        })
    }

    /// Starts the trace of a request with these headers.
    #[must_use]
    pub fn begin(&self, headers: &HeaderMap) -> Box<Trace> {
        let known = match self.context {
            TraceContext::Extract | TraceContext::Propagate => TraceParent::of(headers),
            TraceContext::Ignore | TraceContext::Inject => None,
        };
        let sampled = match known {
            Some(context) => context.sampled,
            None => fastrand::u32(..1000) < self.sample.0,
        };
        Box::new(Trace {
            id: match known {
                Some(context) => context.id,
                None => TraceId(fastrand::u128(1..).to_be_bytes()),
            },
            span: SpanId(fastrand::u64(1..).to_be_bytes()),
            parent: known.map(|context| context.parent),
            sampled,
            passes: match (self.context, known) {
                (TraceContext::Extract | TraceContext::Ignore, _) => Propagation::AsItCame,
                // Without a span of ours there is no parent to set.
                (TraceContext::Propagate, Some(_)) if !sampled => Propagation::AsItCame,
                (TraceContext::Propagate, Some(_)) => Propagation::Ours {
                    state: has_sound_state(headers),
                },
                (TraceContext::Propagate, None) | (TraceContext::Inject, _) => {
                    Propagation::Ours { state: false }
                }
            },
            waits: Vec::new(),
        })
    }

    /// Exports the spans of a request that ends `now`, if it is sampled.
    pub fn finish(&self, record: &RequestRecord, now: Millis) {
        if let Some(trace) = record.trace.as_deref().filter(|trace| trace.sampled) {
            let Spans { count, json } = spans::encode(record, trace, now, Clock::wall());
            self.exporter.send(count, json);
        }
    }
}
