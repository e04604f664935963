//! Variables: what is known of a request, as text.
//!
//! A template was parsed when the configuration was read; here it only appends to a buffer of the caller's. Nothing
//! else is allocated, because keys are made this way for every request. Meanings are nginx's, to the byte.

mod buffer;
mod connection;
mod key;
mod map;
mod request;
mod time;
mod tls;
mod trace;
mod upstream;

use std::fmt;
use std::io::Write;

use http::{HeaderMap, HeaderName, HeaderValue, header};

pub(super) use buffer::with_buffer;
pub use key::{AmbiguousKey, KeyReader};

use super::{LimitStatus, RequestRecord};
use crate::config::plan::{LimitVariable, Part, Template, Variable};

/// Appends what a template stands for; a variable without a value stands for nothing.
pub fn render(template: &Template, exchange: &RequestRecord, out: &mut Vec<u8>) {
    for part in &template.parts {
        match part {
            Part::Text(text) => out.extend_from_slice(text.as_bytes()),
            Part::Variable(variable) => {
                append(variable, exchange, out);
            }
        }
    }
}

/// Appends a variable's value and says whether it has one: an empty value is one too.
pub fn append(variable: &Variable, exchange: &RequestRecord, out: &mut Vec<u8>) -> bool {
    let head = &exchange.head;
    match variable {
        Variable::Arg(name) => request::arg(head, name, out),
        Variable::Args => some(out, head.uri.query()),
        Variable::BinaryRemoteAddr => text(out, exchange.client().binary()),
        Variable::BodyBytesSent => shown(out, exchange.body_sent),
        Variable::BytesSent => shown(out, connection::bytes_sent(exchange)),
        Variable::Connection => shown(out, exchange.peer.connection),
        Variable::ConnectionRequests => shown(out, exchange.number),
        Variable::ContentLength => field(&head.headers, &header::CONTENT_LENGTH, out),
        Variable::ContentType => field(&head.headers, &header::CONTENT_TYPE, out),
        Variable::Cookie(name) => request::cookie(head, name, out),
        Variable::ForwardedFor => request::believed_forwarded_for(exchange, out),
        Variable::Host => text(out, request::host(exchange)),
        Variable::Hostname => text(out, &*connection::HOSTNAME),
        Variable::Http(name) => field(&head.headers, name, out),
        Variable::Http2 => some(out, tls::http2(exchange)),
        Variable::Https => tls::https(&exchange.peer, out),
        Variable::IsArgs => text(out, request::is_args(head)),
        Variable::Limit(what) => some(out, limit(*what, exchange)),
        Variable::Map(index) => map::append(*index, exchange, out),
        Variable::Msec | Variable::TimeIso8601 | Variable::TimeLocal => time::now(variable, out),
        Variable::Pid => shown(out, std::process::id()),
        Variable::ProxyAddXForwardedFor => request::forwarded_for(exchange, out),
        Variable::PassedHost | Variable::ProxyHost => upstream::host(variable, exchange, out),
        Variable::ProxyProtocolAddr => connection::proxied(exchange, |it| it.from.ip(), out),
        Variable::ProxyProtocolPort => connection::proxied(exchange, |it| it.from.port(), out),
        Variable::ProxyProtocolServerAddr => connection::proxied(exchange, |it| it.to.ip(), out),
        Variable::ProxyProtocolServerPort => connection::proxied(exchange, |it| it.to.port(), out),
        Variable::ProxyProtocolTlv(tlv) => connection::tlv(exchange, *tlv, out),
        Variable::RealipRemoteAddr => text(out, exchange.peer.text()),
        Variable::RealipRemotePort => connection::port(&exchange.peer.client, out),
        Variable::RemoteAddr => text(out, exchange.client().as_bytes()),
        Variable::RemotePort => connection::port(exchange.client(), out),
        Variable::RemoteUser => request::user(head, out),
        Variable::Request => !exchange.unparsed && request::line(head, out),
        Variable::RequestId => text(out, exchange.request_id()),
        Variable::RequestLength => shown(out, exchange.request_length()),
        Variable::RequestMethod => !exchange.unparsed && text(out, head.method.as_str()),
        Variable::RequestTime => time::taken(exchange, out),
        Variable::RequestUri => !exchange.unparsed && text(out, request::uri(head)),
        Variable::Scheme => text(out, tls::scheme(&exchange.peer)),
        Variable::SentHttp(name) => sent(exchange, name, out),
        Variable::ServerAddr => connection::server_addr(&exchange.peer, out),
        Variable::ServerName => text(out, &*exchange.server().name),
        Variable::ServerPort => connection::server_port(&exchange.peer, out),
        Variable::ServerProtocol => !exchange.unparsed && text(out, request::protocol(head)),
        Variable::Ssl(what) => tls::append(*what, &exchange.peer, out),
        Variable::Status => request::status(exchange, out),
        Variable::Trace(what) => trace::append(*what, exchange, out),
        Variable::Trusted(name) => trusted(exchange, name, out),
        Variable::TrustedOr(name, own) => best(exchange, name, own, out),
        Variable::UpstreamAddr => upstream::addresses(exchange, out),
        Variable::UpstreamConnectTime => upstream::times(exchange, |a| a.connect, out),
        Variable::UpstreamHeaderTime => upstream::times(exchange, |a| a.header, out),
        Variable::UpstreamHttp(name) => upstream::field(exchange, name, out),
        Variable::UpstreamResponseTime => upstream::times(exchange, |a| a.response, out),
        Variable::UpstreamStatus => upstream::statuses(exchange, out),
        Variable::Uri => !exchange.unparsed && text(out, exchange.target.path(head)),
    }
}

/// A variable's value where it stands ready, to be read without a copy; `None` where it has to be made.
#[must_use]
pub fn lent<'e>(variable: &Variable, exchange: &'e RequestRecord) -> Option<&'e [u8]> {
    let head = &exchange.head;
    Some(match variable {
        Variable::Host => request::host(exchange),
        Variable::Http(name) if is_single(&head.headers) => {
            single(&head.headers, name).map_or(b"", HeaderValue::as_bytes)
        }
        Variable::RequestUri => request::uri(head).as_bytes(),
        Variable::ServerName => exchange.server().name.as_bytes(),
        Variable::Uri => exchange.target.path(head),
        _ => return None,
    })
}

fn text(out: &mut Vec<u8>, text: impl AsRef<[u8]>) -> bool {
    out.extend_from_slice(text.as_ref());
    true
}

fn some(out: &mut Vec<u8>, value: Option<&str>) -> bool {
    value.is_some_and(|value| text(out, value))
}

fn shown(out: &mut Vec<u8>, value: impl fmt::Display) -> bool {
    formatted(out, format_args!("{value}"))
}

fn formatted(out: &mut Vec<u8>, value: fmt::Arguments<'_>) -> bool {
    out.write_fmt(value).is_ok()
}

/// `$limit_…`
fn limit(what: LimitVariable, exchange: &RequestRecord) -> Option<&str> {
    match what {
        LimitVariable::ConnStatus => exchange.limit_conn.map(LimitStatus::as_str),
        LimitVariable::ReqStatus => exchange.limit_req.map(LimitStatus::as_str),
        LimitVariable::Verdict => exchange.limit_verdict(),
        LimitVariable::Zone => exchange.limit_zone.as_deref(),
    }
}

/// A header field of the answer, where those are kept.
fn sent(exchange: &RequestRecord, name: &HeaderName, out: &mut Vec<u8>) -> bool {
    let sent = exchange.sent_headers.as_deref();
    sent.is_some_and(|sent| field(sent, name, out))
}

/// What a proxy that is believed says in a field.
fn trusted(exchange: &RequestRecord, name: &HeaderName, out: &mut Vec<u8>) -> bool {
    exchange.is_trusted() && field(&exchange.head.headers, name, out)
}

/// The same, or else what we know ourselves.
fn best(exchange: &RequestRecord, name: &HeaderName, own: &Variable, out: &mut Vec<u8>) -> bool {
    trusted(exchange, name, out) || append(own, exchange, out)
}

/// A header field; several lines of it are one list.
fn field(headers: &HeaderMap, name: &HeaderName, out: &mut Vec<u8>) -> bool {
    if is_single(headers) {
        let value = single(headers, name);
        return value.is_some_and(|value| text(out, value.as_bytes()));
    }
    let Some(first) = headers.get(name) else {
        return false;
    };
    out.extend_from_slice(first.as_bytes());
    let between: &[u8] = if *name == header::COOKIE {
        b"; "
    } else {
        b", "
    };
    for value in headers.get_all(name).iter().skip(1) {
        out.extend_from_slice(between);
        out.extend_from_slice(value.as_bytes());
    }
    true
}

/// A field, where none has more than one line.
fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    // Looking at a few names is cheaper than hashing one.
    if headers.len() > FEW_FIELDS {
        return headers.get(name);
    }
    let mut fields = headers.iter();
    fields.find_map(|(found, value)| (found == name).then_some(value))
}

/// Whether no field has more than one line.
fn is_single(headers: &HeaderMap) -> bool {
    headers.len() == headers.keys_len()
}

/// About what a browser sends.
const FEW_FIELDS: usize = 16;

#[cfg(test)]
mod tests;
