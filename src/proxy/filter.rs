//! How fast an answer may leave.

use std::num::NonZeroU64;

use super::context::RequestContext;
use super::location::Location;
use crate::config::plan::SizeTemplate;
use crate::message::{RequestRecord, Throttle, variables};
use crate::telemetry::RateLimitedLog;

/// What holds an answer back, where something does. A backend's own wish goes before `limit_rate`, as in nginx.
pub(super) fn throttle(site: &Location, visit: &RequestContext) -> Option<Throttle> {
    let bandwidth = &site.plan.bandwidth;
    let rate = match (visit.told_rate, &bandwidth.rate) {
        (None, SizeTemplate::Fixed(0)) => return None,
        (None, rate) => bytes(rate, &visit.exchange),
        (Some(told), _) => told,
    };
    let rate = NonZeroU64::new(rate)?;
    // Who is given less than is asked of others is not slow.
    visit.exchange.peer.line.lower_send_rate(rate.get());
    Some(Throttle::new(
        rate,
        bytes(&bandwidth.after, &visit.exchange),
    ))
}

fn bytes(volume: &SizeTemplate, exchange: &RequestRecord) -> u64 {
    let template = match volume {
        SizeTemplate::Fixed(bytes) => return *bytes,
        SizeTemplate::Told(template) => template,
    };
    let mut text = Vec::new();
    variables::render(template, exchange, &mut text);
    SizeTemplate::parse(&text).unwrap_or_else(|| {
        if let Some(times) = NO_SIZE.note(exchange.started) {
            let text = text.escape_ascii();
            tracing::error!(
                times,
                "invalid size \"{text}\" for limit_rate, taken for none"
            );
        }
        0
    })
}

/// A client may be the one who says it.
static NO_SIZE: RateLimitedLog = RateLimitedLog::new();
