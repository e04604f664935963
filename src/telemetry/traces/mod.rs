//! Traces: a request told span by span to an OpenTelemetry collector.
//!
//! The exporter is our own. What the OpenTelemetry crates would do here is to write a page of JSON and to post it, for
//! which they bring a second HTTP client and some forty crates; and their spans are made while a request runs, where
//! ours are made once, at its end, from what the exchange has noted for the log anyhow.

#[cfg(feature = "otel")]
mod export;
#[cfg(feature = "otel")]
mod post;
mod span;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderMap;

use self::export::Exporter;
use super::metrics::{Exposition, metrics};
use crate::clock::{Clock, Millis};
use crate::config::plan::{CallShare, TraceContext, Tracing};
use crate::message::{
    Propagation, RequestRecord, SpanId, Trace, TraceId, TraceParent, has_sound_state,
};

pub use self::export::flush;

#[cfg(not(feature = "otel"))]
mod export {
    //! Stands where the exporter is in a weir that was built without.

    use std::sync::Arc;
    use std::time::Duration;

    use crate::config::plan::Tracing;

    #[derive(Debug)]
    pub(super) enum Exporter {}

    impl Exporter {
        pub(super) fn of(_: &Tracing) -> Option<Arc<Self>> {
            None
        }

        pub(super) fn send(&self, _: u64, _: Vec<u8>) {
            match *self {}
        }
    }

    /// There is nothing to wait for.
    pub fn flush(_: Duration) {}
}

/// Decides which requests are traced, and tells of them.
#[derive(Debug)]
pub struct Tracer {
    sample: CallShare,
    context: TraceContext,
    exporter: Arc<Exporter>,
}

/// Spans on their way.
#[derive(Debug)]
struct Spans {
    count: u64,
    /// As OTLP has them, with commas between.
    json: Vec<u8>,
}

impl Tracer {
    /// One that does what is asked for; none where the machine has no thread left for it.
    #[must_use]
    pub fn new(plan: &Tracing) -> Option<Self> {
        Some(Self {
            sample: plan.sample,
            context: plan.context,
            exporter: Exporter::of(plan)?,
        })
    }

    /// A request comes with these fields.
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
                // We are not in it, so there is nothing to add.
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

    /// Tells of a request that is over `now`, if it is to be told.
    pub fn tell(&self, record: &RequestRecord, now: Millis) {
        if let Some(trace) = record.trace.as_deref().filter(|trace| trace.sampled) {
            let Spans { count, json } = span::of(record, trace, now, Clock::wall());
            self.exporter.send(count, json);
        }
    }
}

/// What became of spans, in all.
struct SpanCounters {
    exported: AtomicU64,
    /// There was no room for them to wait.
    crowded: AtomicU64,
    /// The collector did not take them.
    refused: AtomicU64,
}

static FATE: SpanCounters = SpanCounters {
    exported: AtomicU64::new(0),
    crowded: AtomicU64::new(0),
    refused: AtomicU64::new(0),
};

metrics! {
    /// The metrics of spans.
    pub SPAN_METRICS:
    SPANS_EXPORTED_TOTAL = counter("weir_spans_exported_total", [], "Spans a collector has taken.");
    SPANS_DROPPED_TOTAL = counter("weir_spans_dropped_total", ["reason"], "Spans dropped because the collector did not take them (export), or because too many waited for it (queue).");
}

/// Writes what became of spans.
pub fn describe(page: &mut Exposition) {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    page.sample(&SPANS_EXPORTED_TOTAL, &[], read(&FATE.exported));
    for (reason, counter) in [("export", &FATE.refused), ("queue", &FATE.crowded)] {
        page.sample(&SPANS_DROPPED_TOTAL, &[reason], read(counter));
    }
}
