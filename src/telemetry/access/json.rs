//! The line as a JSON object.
//!
//! A field has one type, always: machines read this, and most of them decide by the first line they see. So
//! where nginx's text lists every upstream server tried, status and time here are the last one's.

use std::io::Write;
use std::time::Duration;

use http::header::{REFERER, USER_AGENT};

use super::{Scratch, escape};
use crate::config::plan::{LimitVariable, TraceVariable, Variable};
use crate::message::RequestRecord;
use crate::telemetry::stamp;

/// Appends the object to the line.
pub(super) fn render(exchange: &RequestRecord, scratch: &mut Scratch) {
    let last = exchange.attempts.last();
    let mut object = JsonLine { exchange, scratch };
    object.time();
    object.text("remote_addr", &Variable::RemoteAddr);
    object.text("method", &Variable::RequestMethod);
    object.text("uri", &Variable::RequestUri);
    object.text("host", &Variable::Host);
    object.integer(
        "status",
        exchange.status.map(|status| status.as_u16().into()),
    );
    object.number("request_time", &Variable::RequestTime);
    object.number("body_bytes_sent", &Variable::BodyBytesSent);
    object.number("bytes_sent", &Variable::BytesSent);
    object.number("request_length", &Variable::RequestLength);
    object.text("referer", &Variable::Http(REFERER));
    object.text("user_agent", &Variable::Http(USER_AGENT));
    object.text("server_name", &Variable::ServerName);
    object.text("upstream_addr", &Variable::UpstreamAddr);
    let status = last.and_then(|attempt| attempt.status);
    object.integer(
        "upstream_status",
        status.map(|status| status.as_u16().into()),
    );
    object.seconds(
        "upstream_response_time",
        last.and_then(|attempt| attempt.response),
    );
    object.text(
        "limit_req_status",
        &Variable::Limit(LimitVariable::ReqStatus),
    );
    object.text(
        "limit_conn_status",
        &Variable::Limit(LimitVariable::ConnStatus),
    );
    object.text("limit_verdict", &Variable::Limit(LimitVariable::Verdict));
    object.text("limit_zone", &Variable::Limit(LimitVariable::Zone));
    object.text("request_id", &Variable::RequestId);
    object.text("trace_id", &Variable::Trace(TraceVariable::Id));
    object.text("span_id", &Variable::Trace(TraceVariable::Span));
    object.scratch.line.push(b'}');
}

struct JsonLine<'a> {
    exchange: &'a RequestRecord,
    scratch: &'a mut Scratch,
}

impl JsonLine<'_> {
    fn time(&mut self) {
        let (second, millis) = stamp::now();
        self.scratch.line.extend_from_slice(b"{\"time\":\"");
        self.print(format_args!(
            "{}.{millis:03}{}\"",
            second.iso, second.offset
        ));
    }

    /// A text; an empty one where there is none.
    fn text(&mut self, name: &str, variable: &Variable) {
        self.name(name);
        self.scratch.line.push(b'"');
        if self.find(variable) {
            escape::json(&self.scratch.value, &mut self.scratch.line);
        }
        self.scratch.line.push(b'"');
    }

    /// A variable that is a number; null where it has no value.
    fn number(&mut self, name: &str, variable: &Variable) {
        self.name(name);
        if self.find(variable) && is_number(&self.scratch.value) {
            self.scratch.line.extend_from_slice(&self.scratch.value);
        } else {
            self.null();
        }
    }

    fn integer(&mut self, name: &str, value: Option<u64>) {
        self.name(name);
        match value {
            Some(value) => self.print(format_args!("{value}")),
            None => self.null(),
        }
    }

    fn seconds(&mut self, name: &str, value: Option<Duration>) {
        self.name(name);
        match value {
            Some(value) => self.print(format_args!(
                "{}.{:03}",
                value.as_secs(),
                value.subsec_millis()
            )),
            None => self.null(),
        }
    }

    fn name(&mut self, name: &str) {
        self.scratch.line.extend_from_slice(b",\"");
        self.scratch.line.extend_from_slice(name.as_bytes());
        self.scratch.line.extend_from_slice(b"\":");
    }

    fn null(&mut self) {
        self.scratch.line.extend_from_slice(b"null");
    }

    fn print(&mut self, text: std::fmt::Arguments<'_>) {
        self.scratch
            .line
            .write_fmt(text)
            .expect("writing to memory does not fail");
    }

    fn find(&mut self, variable: &Variable) -> bool {
        self.scratch.find(variable, self.exchange)
    }
}

/// Whether this is a number in JSON's eyes too: digits without leading zeros, and perhaps a fraction.
fn is_number(text: &[u8]) -> bool {
    let (whole, fraction) = match text.iter().position(|byte| *byte == b'.') {
        Some(dot) => (&text[..dot], Some(&text[dot + 1..])),
        None => (text, None),
    };
    let digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    digits(whole) && (whole.len() == 1 || whole[0] != b'0') && fraction.is_none_or(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_json_calls_a_number_is_one() {
        for good in ["0", "7", "120", "0.001", "10.000"] {
            assert!(is_number(good.as_bytes()), "{good}");
        }
        for bad in ["", "-", "000", "01", "1.", ".5", "1, 2", "0.1.2"] {
            assert!(!is_number(bad.as_bytes()), "{bad}");
        }
    }
}
