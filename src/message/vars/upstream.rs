//! Variables that tell of every upstream server tried, in order and comma separated, as nginx lists them.

use std::time::Duration;

use http::HeaderName;

use super::{shown, text, time};
use crate::config::plan::Variable;
use crate::message::{Attempt, RequestRecord};

/// `$proxy_host`, or the host a request asks for where that is what the variable stands for.
pub(super) fn host(variable: &Variable, exchange: &RequestRecord, out: &mut Vec<u8>) -> bool {
    let asked = match variable {
        Variable::PassedHost => exchange.target.authority(&exchange.head),
        _ => None,
    };
    let own = exchange.forward.as_ref().map(|it| it.host.as_bytes());
    asked.or(own).is_some_and(|host| text(out, host))
}

/// `$upstream_http_NAME`, where the fields are kept.
pub(super) fn field(exchange: &RequestRecord, name: &HeaderName, out: &mut Vec<u8>) -> bool {
    let fields = exchange.upstream_headers.as_deref();
    fields.is_some_and(|fields| super::field(fields, name, out))
}

/// `$upstream_addr`
pub(super) fn addresses(exchange: &RequestRecord, out: &mut Vec<u8>) -> bool {
    listed(exchange, out, |attempt, out| text(out, &*attempt.address))
}

/// `$upstream_status`
pub(super) fn statuses(exchange: &RequestRecord, out: &mut Vec<u8>) -> bool {
    listed(exchange, out, |attempt, out| {
        attempt
            .status
            .is_some_and(|status| shown(out, status.as_u16()))
    })
}

/// `$upstream_connect_time`, `$upstream_header_time`, `$upstream_response_time`
pub(super) fn times(
    exchange: &RequestRecord,
    time: impl Fn(&Attempt) -> Option<Duration>,
    out: &mut Vec<u8>,
) -> bool {
    listed(exchange, out, |attempt, out| {
        time(attempt).is_some_and(|time| time::seconds(time, out))
    })
}

fn listed(
    exchange: &RequestRecord,
    out: &mut Vec<u8>,
    append: impl Fn(&Attempt, &mut Vec<u8>) -> bool,
) -> bool {
    for (index, attempt) in exchange.attempts.iter().enumerate() {
        if index > 0 {
            out.extend_from_slice(b", ");
        }
        if !append(attempt, out) {
            out.push(b'-');
        }
    }
    !exchange.attempts.is_empty()
}
