//! Variables of the trace a request is part of.

use super::text;
use crate::config::plan::Traced;
use crate::message::Exchange;
use crate::message::trace::{Context, push_hex};

/// `$trace_id` and its like.
pub(super) fn append(what: Traced, exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let trace = exchange.trace.as_deref();
    match what {
        Traced::Id => {
            // Where we take no part, it is what the client says.
            let known = || Context::of(&exchange.head.headers).map(|context| context.id);
            let id = trace.map(|trace| trace.id).or_else(known);
            id.is_some_and(|id| digits(&id.0, out))
        }
        Traced::Parent => {
            let parent = trace.and_then(|trace| trace.parent);
            parent.is_some_and(|parent| digits(&parent.0, out))
        }
        Traced::ParentSampled => {
            // Who has a parent does as it did.
            let sampled = trace.is_some_and(|trace| trace.parent.is_some() && trace.sampled);
            text(out, if sampled { "1" } else { "0" })
        }
        Traced::Span => trace.is_some_and(|trace| digits(&trace.span.0, out)),
    }
}

fn digits(bytes: &[u8], out: &mut Vec<u8>) -> bool {
    push_hex(bytes, out);
    true
}
