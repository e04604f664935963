//! Variables of the trace a request is part of.

use super::text;
use crate::config::plan::TraceVariable;
use crate::message::RequestRecord;
use crate::message::trace::{TraceParent, push_hex};

/// `$trace_id` and its like.
pub(super) fn append(what: TraceVariable, exchange: &RequestRecord, out: &mut Vec<u8>) -> bool {
    let trace = exchange.trace.as_deref();
    match what {
        TraceVariable::Id => {
            // Where we take no part, it is what the client says.
            let known = || TraceParent::of(&exchange.head.headers).map(|context| context.id);
            let id = trace.map(|trace| trace.id).or_else(known);
            id.is_some_and(|id| digits(&id.0, out))
        }
        TraceVariable::Parent => {
            let parent = trace.and_then(|trace| trace.parent);
            parent.is_some_and(|parent| digits(&parent.0, out))
        }
        TraceVariable::ParentSampled => {
            // Who has a parent does as it did.
            let sampled = trace.is_some_and(|trace| trace.parent.is_some() && trace.sampled);
            text(out, if sampled { "1" } else { "0" })
        }
        TraceVariable::Span => trace.is_some_and(|trace| digits(&trace.span.0, out)),
    }
}

fn digits(bytes: &[u8], out: &mut Vec<u8>) -> bool {
    push_hex(bytes, out);
    true
}
