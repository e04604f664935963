//! Variables: what is known of a request, as text. Meanings are nginx's, to the byte.
//!
//! A template was parsed when the configuration was read; here it only appends to a buffer of the caller's. Nothing else is
//! allocated, because keys are made this way for every request. Buffers for text that is needed only for a moment (the source
//! of a map) are kept by each thread; there is more than one, because a map's source may be another map.

mod key;
mod request;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt;
use std::io::Write;
use std::net::IpAddr;
use std::sync::LazyLock;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Version, header};

use super::client_addr::ClientAddr;
use super::connection::{CertificateStatus, ClientConnection, ProxyHeader};
use super::record::{Attempt, LimitStatus, RequestRecord};
use super::trace::TraceParent;
use crate::clock::{Clock, LogSecond};
use crate::config::plan::{
    Geo, LimitVariable, Map, MapLookup, MapValues, Part, ProxyTlv, ServerName, Template,
    TlsVariable, TraceVariable, Variable,
};
use crate::text::{is_unreserved, percent_encode, push_hex};

pub use self::key::{AmbiguousKey, KeyReader};

/// Appends what a template stands for; a variable without a value stands for nothing.
pub fn render(template: &Template, record: &RequestRecord, out: &mut Vec<u8>) {
    for part in &template.parts {
        match part {
            Part::Text(text) => out.extend_from_slice(text.as_bytes()),
            Part::Variable(variable) => {
                append(variable, record, out);
            }
        }
    }
}

/// Appends a variable's value; true if it has one, even an empty one.
pub fn append(variable: &Variable, record: &RequestRecord, out: &mut Vec<u8>) -> bool {
    let head = &record.head;
    match variable {
        Variable::Arg(name) => some(out, request::arg(head, name)),
        Variable::Args => some(out, head.uri.query()),
        Variable::BinaryRemoteAddr => text(out, record.client().binary()),
        Variable::BodyBytesSent => print(out, record.body_sent),
        Variable::BytesSent => print(out, bytes_sent(record)),
        Variable::Connection => print(out, record.connection.serial),
        Variable::ConnectionRequests => print(out, record.number),
        Variable::ContentLength => field(&head.headers, &header::CONTENT_LENGTH, out),
        Variable::ContentType => field(&head.headers, &header::CONTENT_TYPE, out),
        Variable::Cookie(name) => some(out, request::cookie(head, name)),
        Variable::ForwardedFor => forwarded_for(record, record.trusted, out),
        Variable::Host => text(out, request::host(record)),
        Variable::Hostname => text(out, &*HOSTNAME),
        Variable::Http(name) => field(&head.headers, name, out),
        Variable::Http2 => some(out, http2(record)),
        // Known to be nothing outside TLS.
        Variable::Https => text(out, record.connection.tls().map_or("", |_| "on")),
        Variable::IsArgs => text(out, request::is_args(head)),
        Variable::Limit(what) => some(out, limit(*what, record)),
        Variable::Map(index) => append_map(*index, record, out),
        Variable::Msec | Variable::TimeIso8601 | Variable::TimeLocal => time(variable, out),
        Variable::Pid => print(out, std::process::id()),
        Variable::ProxyAddXForwardedFor => forwarded_for(record, true, out),
        Variable::PassedHost | Variable::ProxyHost => host(variable, record, out),
        Variable::ProxyProtocolAddr => proxied(record, |it| it.from.ip(), out),
        Variable::ProxyProtocolPort => proxied(record, |it| it.from.port(), out),
        Variable::ProxyProtocolServerAddr => proxied(record, |it| it.to.ip(), out),
        Variable::ProxyProtocolServerPort => proxied(record, |it| it.to.port(), out),
        Variable::ProxyProtocolTlv(tlv) => append_tlv(record, *tlv, out),
        Variable::RealipRemoteAddr => text(out, record.connection.addr.text()),
        Variable::RealipRemotePort => port(&record.connection.addr, out),
        Variable::RemoteAddr => text(out, record.client().as_bytes()),
        Variable::RemotePort => port(record.client(), out),
        Variable::RemoteUser => request::user(head, out),
        Variable::Request => !record.unparsed && request::line(head, out),
        Variable::RequestId => text(out, record.request_id()),
        Variable::RequestLength => print(out, record.request_length()),
        Variable::RequestMethod => !record.unparsed && text(out, head.method.as_str()),
        Variable::RequestTime => request_time(record, out),
        Variable::RequestUri => !record.unparsed && text(out, request::uri(head)),
        Variable::Scheme => text(out, record.connection.tls().map_or("http", |_| "https")),
        Variable::SentHttp(name) => stored(&record.sent_headers, name, out),
        Variable::ServerAddr => server_addr(&record.connection, out),
        Variable::ServerName => text(out, &*record.server().name),
        Variable::ServerPort => server_port(&record.connection, out),
        Variable::ServerProtocol => !record.unparsed && text(out, request::protocol(head)),
        Variable::Ssl(what) => append_tls(*what, &record.connection, out),
        Variable::Status => status(record, out),
        Variable::Trace(what) => append_trace(*what, record, out),
        Variable::Trusted(name) => trusted(record, name, out),
        Variable::TrustedOr(name, own) => trusted(record, name, out) || append(own, record, out),
        Variable::UpstreamAddr => joined(record, out, |it, out| text(out, &*it.address)),
        Variable::UpstreamConnectTime => times(record, |a| a.connect, out),
        Variable::UpstreamHeaderTime => times(record, |a| a.header, out),
        Variable::UpstreamHttp(name) => stored(&record.upstream_headers, name, out),
        Variable::UpstreamResponseTime => times(record, |a| a.response, out),
        Variable::UpstreamStatus => statuses(record, out),
        Variable::Uri => !record.unparsed && text(out, record.target.path(head)),
    }
}

/// A variable's value where it stands ready, to be read without a copy; `None` where it has to be made.
pub fn borrowed<'e>(variable: &Variable, record: &'e RequestRecord) -> Option<&'e [u8]> {
    let head = &record.head;
    Some(match variable {
        Variable::Host => request::host(record),
        Variable::Http(name) if is_single(&head.headers) => {
            single(&head.headers, name).map_or(b"", HeaderValue::as_bytes)
        }
        Variable::RequestUri => request::uri(head).as_bytes(),
        Variable::ServerName => record.server().name.as_bytes(),
        Variable::Uri => record.target.path(head),
        _ => return None,
    })
}

fn text(out: &mut Vec<u8>, text: impl AsRef<[u8]>) -> bool {
    out.extend_from_slice(text.as_ref());
    true
}

fn some(out: &mut Vec<u8>, value: Option<impl AsRef<[u8]>>) -> bool {
    value.is_some_and(|value| text(out, value))
}

fn print(out: &mut Vec<u8>, value: impl fmt::Display) -> bool {
    formatted(out, format_args!("{value}"))
}

fn formatted(out: &mut Vec<u8>, value: fmt::Arguments<'_>) -> bool {
    out.write_fmt(value).is_ok()
}

/// `$msec`, `$time_iso8601` or `$time_local`
fn time(variable: &Variable, out: &mut Vec<u8>) -> bool {
    if *variable == Variable::Msec {
        return seconds(Clock::wall(), out);
    }
    let (second, _) = LogSecond::now();
    match variable {
        Variable::TimeIso8601 => text(out, &second.iso) && text(out, &second.offset),
        _ => text(out, &second.common),
    }
}

/// Appends seconds with three decimals.
fn seconds(time: Duration, out: &mut Vec<u8>) -> bool {
    formatted(
        out,
        format_args!("{}.{:03}", time.as_secs(), time.subsec_millis()),
    )
}

/// `$status`: 000, as in nginx, for a request that ended before it had a response.
fn status(record: &RequestRecord, out: &mut Vec<u8>) -> bool {
    let status = record.status.map_or(0, |status| status.as_u16());
    formatted(out, format_args!("{status:03}"))
}

/// `$request_time`: known once the request is over.
// nginx shows the time so far before that; here time does not pass below `proxy`.
fn request_time(record: &RequestRecord, out: &mut Vec<u8>) -> bool {
    let ended = record.ended;
    ended.is_some_and(|ended| seconds(ended.since(record.started), out))
}

/// `$proxy_add_x_forwarded_for`, without the client's own addresses unless they are `believed`.
fn forwarded_for(record: &RequestRecord, believed: bool, out: &mut Vec<u8>) -> bool {
    if believed {
        request::forwarded_for(&record.head, out);
    }
    text(out, record.client().as_bytes())
}

/// `$limit_…`
fn limit(what: LimitVariable, record: &RequestRecord) -> Option<&str> {
    match what {
        LimitVariable::ConnStatus => record.limit_conn.map(LimitStatus::as_str),
        LimitVariable::ReqStatus => record.limit_req.map(LimitStatus::as_str),
        LimitVariable::Verdict => record.limit_verdict(),
        LimitVariable::Zone => record.limit_zone.as_deref(),
    }
}

/// A header that is stored for the log, where it is.
fn stored(headers: &Option<Box<HeaderMap>>, name: &HeaderName, out: &mut Vec<u8>) -> bool {
    let headers = headers.as_deref();
    headers.is_some_and(|headers| field(headers, name, out))
}

/// A header of a request from a trusted proxy.
fn trusted(record: &RequestRecord, name: &HeaderName, out: &mut Vec<u8>) -> bool {
    record.trusted && field(&record.head.headers, name, out)
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

/// Appends what a map makes of a request.
fn append_map(index: usize, record: &RequestRecord, out: &mut Vec<u8>) -> bool {
    let map = &record.plan.maps[index];
    let fill = |source: &mut Vec<u8>| -> Result<(), Infallible> {
        render(&map.source, record, source);
        Ok(())
    };
    let Ok(value) = find(map, record, fill);
    render(value, record, out);
    true
}

/// What a map becomes for a request; `fill` renders the source.
fn find<'m, E>(
    map: &'m Map,
    record: &RequestRecord,
    fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<&'m Template, E> {
    let value = match &map.lookup {
        MapLookup::Geo(geo) => find_network(geo, &map.source, record, fill)?,
        MapLookup::Values(values) => with_buffer(|source| {
            fill(source)?;
            Ok(find_value(values, source))
        })?,
    };
    Ok(value.unwrap_or(&map.default))
}

fn find_network<'g, E>(
    geo: &'g Geo,
    source: &Template,
    record: &RequestRecord,
    fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<Option<&'g Template>, E> {
    let address = match source.as_variable() {
        Some(Variable::RemoteAddr | Variable::BinaryRemoteAddr) => record.client().ip(),
        _ => with_buffer(|text| {
            fill(text)?;
            let text = std::str::from_utf8(text).ok();
            Ok(text.and_then(|text| text.trim_ascii().parse::<IpAddr>().ok()))
        })?,
    };
    Ok(address.and_then(|address| geo.find(address)))
}

fn find_value<'a>(values: &'a MapValues, source: &[u8]) -> Option<&'a Template> {
    let named = std::str::from_utf8(source).ok().and_then(|source| {
        if !source.bytes().any(|b| b.is_ascii_uppercase()) {
            return find_name(values, source);
        }
        with_buffer(|lower| {
            lower.extend(source.bytes().map(|b| b.to_ascii_lowercase()));
            find_name(values, std::str::from_utf8(lower).ok()?)
        })
    });
    named.or_else(|| {
        let mut expressions = values.expressions.iter();
        expressions
            .find(|(expression, _)| expression.is_match(source))
            .map(|(_, value)| value)
    })
}

fn find_name<'a>(values: &'a MapValues, source: &str) -> Option<&'a Template> {
    let exact = values.exact.get(source);
    if exact.is_some() || values.hostnames.is_empty() {
        return exact;
    }
    let host = source.strip_suffix('.').unwrap_or(source);
    let matching = |wanted: fn(&ServerName, &str) -> bool| {
        let mut names = values.hostnames.iter();
        names
            .find(|(name, _)| wanted(name, host))
            .map(|(_, value)| value)
    };
    // Each kind is sorted by length; a leading star comes before a trailing one whatever the lengths.
    values
        .exact
        .get(host)
        .or_else(|| matching(is_below))
        .or_else(|| matching(is_before))
}

fn is_below(name: &ServerName, host: &str) -> bool {
    let below = |suffix: &str| host.len() > suffix.len() && host.ends_with(suffix);
    match name {
        ServerName::Exact(exact) => **exact == *host,
        ServerName::Suffix(suffix) => below(suffix),
        ServerName::SuffixAndSelf(suffix) => {
            below(suffix) || suffix.strip_prefix('.') == Some(host)
        }
        ServerName::Expression(_) | ServerName::Prefix(_) => false,
    }
}

fn is_before(name: &ServerName, host: &str) -> bool {
    match name {
        ServerName::Prefix(prefix) => host.len() > prefix.len() && host.starts_with(&**prefix),
        _ => false,
    }
}

/// `$bytes_sent`
fn bytes_sent(record: &RequestRecord) -> u64 {
    let sent = record.connection.state.sent.get();
    sent.saturating_sub(record.sent_before)
}

/// `$remote_port`, `$realip_remote_port`: known to be none on a unix socket, and where a proxy named none.
fn port(client: &ClientAddr, out: &mut Vec<u8>) -> bool {
    client.port().is_none_or(|port| print(out, port))
}

/// `$proxy_protocol_addr` and its like.
fn proxied<T: fmt::Display>(
    record: &RequestRecord,
    pick: impl Fn(&ProxyHeader) -> T,
    out: &mut Vec<u8>,
) -> bool {
    let proxied = record.connection.proxy_header();
    proxied.is_some_and(|proxied| print(out, pick(proxied)))
}

/// `$proxy_protocol_tlv_NAME`
fn append_tlv(record: &RequestRecord, tlv: ProxyTlv, out: &mut Vec<u8>) -> bool {
    let Some(proxied) = record.connection.proxy_header() else {
        return false;
    };
    match tlv {
        ProxyTlv::Plain(kind) => proxied.tlv(kind).is_some_and(|value| text(out, value)),
        ProxyTlv::Ssl(kind) => proxied.ssl_tlv(kind).is_some_and(|value| text(out, value)),
        ProxyTlv::SslVerify => proxied.ssl_verify().is_some_and(|it| print(out, it)),
    }
}

/// `$server_addr`
fn server_addr(connection: &ClientConnection, out: &mut Vec<u8>) -> bool {
    match connection.local {
        Some(address) => print(out, address.ip().to_canonical()),
        None => text(out, "unix:"),
    }
}

/// `$server_port`: known to be none on a unix socket.
fn server_port(connection: &ClientConnection, out: &mut Vec<u8>) -> bool {
    connection
        .local
        .is_none_or(|address| print(out, address.port()))
}

/// `$hostname`, asked once.
static HOSTNAME: LazyLock<String> = LazyLock::new(|| {
    ["/proc/sys/kernel/hostname", "/etc/hostname"]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok())
        .or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
});

/// `$http2`: what is spoken, by the name it has inside TLS or outside.
fn http2(record: &RequestRecord) -> Option<&'static str> {
    let name = record.connection.tls().map_or("h2c", |_| "h2");
    (record.head.version == Version::HTTP_2).then_some(name)
}

/// `$ssl_…`
fn append_tls(what: TlsVariable, connection: &ClientConnection, out: &mut Vec<u8>) -> bool {
    let Some(tls) = connection.tls() else {
        return false;
    };
    let client = tls.client.as_deref();
    match what {
        TlsVariable::AlpnProtocol => {
            some(out, Some(tls.alpn.name()).filter(|name| !name.is_empty()))
        }
        TlsVariable::Cipher => text(out, tls.cipher),
        TlsVariable::ClientEscapedCert => client.is_some_and(|client| {
            percent_encode(client.pem().as_bytes(), is_unreserved, out);
            true
        }),
        TlsVariable::ClientFingerprint => some(out, client.map(|client| &*client.fingerprint)),
        TlsVariable::ClientIDn => some(out, client.map(|client| &*client.issuer)),
        TlsVariable::ClientSDn => some(out, client.map(|client| &*client.subject)),
        TlsVariable::ClientSerial => some(out, client.map(|client| &*client.serial)),
        TlsVariable::ClientVerify => match tls.certificate_status() {
            None => text(out, "NONE"),
            Some(CertificateStatus::Good) => text(out, "SUCCESS"),
            Some(CertificateStatus::Unknown(reason)) => text(out, "FAILED:") && text(out, reason),
            Some(CertificateStatus::Bad(reason)) => text(out, "FAILED:") && text(out, &**reason),
        },
        TlsVariable::Curve => some(out, tls.curve),
        TlsVariable::Protocol => text(out, tls.protocol),
        TlsVariable::ServerName => some(out, tls.server_name.as_deref()),
        TlsVariable::SessionReused => text(out, if tls.resumed { "r" } else { "." }),
    }
}

/// `$trace_id` and its like.
fn append_trace(what: TraceVariable, record: &RequestRecord, out: &mut Vec<u8>) -> bool {
    let trace = record.trace.as_deref();
    match what {
        TraceVariable::Id => {
            // Without a trace of ours, it is the client's.
            let known = || TraceParent::of(&record.head.headers).map(|context| context.id);
            let id = trace.map(|trace| trace.id).or_else(known);
            id.is_some_and(|id| digits(&id.0, out))
        }
        TraceVariable::Parent => {
            let parent = trace.and_then(|trace| trace.parent);
            parent.is_some_and(|parent| digits(&parent.0, out))
        }
        TraceVariable::ParentSampled => {
            // A request with a parent follows its decision.
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

/// `$proxy_host`, or the host a request asks for where that is what the variable stands for.
fn host(variable: &Variable, record: &RequestRecord, out: &mut Vec<u8>) -> bool {
    let asked = match variable {
        Variable::PassedHost => record.target.authority(&record.head),
        _ => None,
    };
    let own = record.proxy_pass.as_ref().map(|it| it.host.as_bytes());
    asked.or(own).is_some_and(|host| text(out, host))
}

/// `$upstream_status`
fn statuses(record: &RequestRecord, out: &mut Vec<u8>) -> bool {
    joined(record, out, |attempt, out| {
        let status = attempt.status;
        status.is_some_and(|status| print(out, status.as_u16()))
    })
}

/// `$upstream_connect_time`, `$upstream_header_time`, `$upstream_response_time`
fn times(
    record: &RequestRecord,
    time: impl Fn(&Attempt) -> Option<Duration>,
    out: &mut Vec<u8>,
) -> bool {
    joined(record, out, |attempt, out| {
        time(attempt).is_some_and(|time| seconds(time, out))
    })
}

fn joined(
    record: &RequestRecord,
    out: &mut Vec<u8>,
    append: impl Fn(&Attempt, &mut Vec<u8>) -> bool,
) -> bool {
    for (index, attempt) in record.attempts.iter().enumerate() {
        if index > 0 {
            out.extend_from_slice(b", ");
        }
        if !append(attempt, out) {
            out.push(b'-');
        }
    }
    !record.attempts.is_empty()
}

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = RefCell::default();
}

/// Lends an empty buffer that has grown before.
pub(super) fn with_buffer<R>(work: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    // Borrowed only to take one and to give it back: the work may ask for another.
    let mut buffer = BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default();
    buffer.clear();
    let result = work(&mut buffer);
    BUFFERS.with_borrow_mut(|buffers| buffers.push(buffer));
    result
}
