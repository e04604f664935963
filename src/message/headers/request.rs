//! The head of a request on its way upstream, written straight into bytes, or into fields for HTTP/2.
//!
//! The client's head stays as it came, for variables, for the log and for a second try; nothing is copied into a map
//! in between only to be read out of it again. What we add is written after everything the client says has been
//! carried out, so that no `Connection` field can take it away.

use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, Request, Uri, Version};

use super::hops::{MaxForwards, hops};
use super::upgrade::Upgrade;
use super::{
    ConnectionOptions, belongs_to_connection, frames_body, is_plain, is_rebuilt, speaks_for_client,
};
use crate::config::plan::{ProxyPass, Template, Underscores, Via};
use crate::message::RequestRecord;
use crate::message::target::push_encoded;
use crate::message::trace::TRACEPARENT;
use crate::message::vars;

/// Appends the request line and the header fields to send upstream: the client's that pass, its wish to
/// `upgrade`, then what `proxy_set_header` says, then `Via`. How long the body is and the blank line are left to whoever
/// sends it.
pub fn write_request(
    exchange: &RequestRecord,
    forward: &ProxyPass,
    upgrade: Option<&Upgrade>,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(exchange.head.method.as_str().as_bytes());
    out.push(b' ');
    write_target(exchange, forward, out);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let upgrades = upgrade.is_some();
    pass_on(exchange, forward, &mut Http1Headers { out, upgrades });
    if let Some(upgrade) = upgrade {
        upgrade.write(out);
    }
}

/// The same for an upstream that speaks HTTP/2; `None` where its target or its host cannot be said there.
#[must_use]
pub fn stream_request(exchange: &RequestRecord, forward: &ProxyPass) -> Option<Request<()>> {
    let target = target_sent(exchange, forward);
    let mut fields = Http2Headers {
        headers: HeaderMap::with_capacity(exchange.head.headers.len() + forward.set_headers.len()),
        host: None,
    };
    pass_on(exchange, forward, &mut fields);
    let host = fields.host.as_ref().map(HeaderValue::as_bytes);
    let uri = Uri::builder()
        .scheme(forward.tls.map_or("http", |_| "https"))
        .authority(host.unwrap_or(forward.host.as_bytes()))
        .path_and_query(target)
        .build()
        .ok()?;
    let mut request = Request::new(());
    *request.method_mut() = exchange.head.method.clone();
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_2;
    *request.headers_mut() = fields.headers;
    Some(request)
}

/// Where the fields of a request go.
trait HeaderSink {
    fn field(&mut self, name: &HeaderName, value: &HeaderValue);
    /// A field of ours; none where its template says nothing, or nothing a field could carry.
    fn set(&mut self, name: &HeaderName, value: &Template, exchange: &RequestRecord);
    /// The client takes trailers, and so do we.
    fn trailers(&mut self);
}

/// One after the other, as HTTP/1 writes them.
struct Http1Headers<'o> {
    out: &'o mut Vec<u8>,
    // Trailers have no place in what follows then, and there is one `Connection` field.
    upgrades: bool,
}

/// In a map, without those that HTTP/2 has other places for.
struct Http2Headers {
    headers: HeaderMap,
    host: Option<HeaderValue>,
}

fn pass_on(exchange: &RequestRecord, forward: &ProxyPass, out: &mut impl HeaderSink) {
    let headers = &exchange.head.headers;
    // Few requests have either; looking at the names is cheaper than looking the two up.
    let (mut connection, mut te) = (false, false);
    for name in headers.keys() {
        connection |= *name == header::CONNECTION;
        te |= *name == header::TE;
    }
    let options = connection.then(|| ConnectionOptions::of(headers));
    let drops_underscores = forward.underscores == Underscores::Drop;
    let believed = exchange.is_trusted();
    let trace = exchange.trace.as_deref();
    let hops = hops(&exchange.head);
    for (name, value) in headers {
        let stays = belongs_to_connection(name)
            || is_rebuilt(name)
            || sets(forward, name)
            || options.as_ref().is_some_and(|options| options.list(name))
            || (drops_underscores && name.as_str().as_bytes().contains(&b'_'))
            || (!believed && speaks_for_client(name))
            || trace.is_some_and(|trace| trace.replaces(name))
            || (hops != MaxForwards::Any && *name == header::MAX_FORWARDS);
        if !stays {
            out.field(name, value);
        }
    }
    if let MaxForwards::Left(left) = hops
        && !sets(forward, &header::MAX_FORWARDS)
    {
        let left = HeaderValue::from(left.saturating_sub(1));
        out.field(&header::MAX_FORWARDS, &left);
    }
    if te && wants_trailers(headers) {
        out.trailers();
    }
    for set in &forward.set_headers {
        let removed = set.value.parts.is_empty();
        if !removed && !frames_body(&set.name) {
            out.set(&set.name, &set.value, exchange);
        }
    }
    if let Some(trace) = trace.filter(|trace| trace.replaces(&TRACEPARENT))
        && !sets(forward, &TRACEPARENT)
    {
        out.field(&TRACEPARENT, &trace.traceparent());
    }
    if forward.via == Via::On {
        out.field(&header::VIA, &via(exchange.head.version));
    }
}

/// Whether `proxy_set_header` has a say in this field.
fn sets(forward: &ProxyPass, name: &HeaderName) -> bool {
    forward.set_headers.iter().any(|set| set.name == *name)
}

impl HeaderSink for Http1Headers<'_> {
    fn field(&mut self, name: &HeaderName, value: &HeaderValue) {
        self.out.extend_from_slice(name.as_str().as_bytes());
        self.out.extend_from_slice(b": ");
        self.out.extend_from_slice(value.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    fn set(&mut self, name: &HeaderName, value: &Template, exchange: &RequestRecord) {
        let line = self.out.len();
        self.out.extend_from_slice(name.as_str().as_bytes());
        self.out.extend_from_slice(b": ");
        let start = self.out.len();
        vars::render(value, exchange, self.out);
        let written = &self.out[start..];
        if written.is_empty() || !may_be_value(written) {
            self.out.truncate(line);
            return;
        }
        self.out.extend_from_slice(b"\r\n");
    }

    fn trailers(&mut self) {
        if !self.upgrades {
            self.out
                .extend_from_slice(b"te: trailers\r\nconnection: te\r\n");
        }
    }
}

impl HeaderSink for Http2Headers {
    fn field(&mut self, name: &HeaderName, value: &HeaderValue) {
        self.headers.append(name, value.clone());
    }

    fn set(&mut self, name: &HeaderName, value: &Template, exchange: &RequestRecord) {
        let mut text = Vec::new();
        vars::render(value, exchange, &mut text);
        let Ok(value) = HeaderValue::try_from(text) else {
            return;
        };
        if value.is_empty() || belongs_to_connection(name) {
            return;
        }
        if *name == header::HOST {
            self.host = Some(value);
        } else {
            self.headers.append(name, value);
        }
    }

    fn trailers(&mut self) {
        let trailers = HeaderValue::from_static("trailers");
        self.headers.insert(header::TE, trailers);
    }
}

/// The target that is sent upstream, as it is written there.
#[must_use]
pub fn target_sent(exchange: &RequestRecord, forward: &ProxyPass) -> Vec<u8> {
    let mut target = Vec::new();
    write_target(exchange, forward, &mut target);
    target
}

/// The target in origin form: as the client wrote it, or with the URI part of `proxy_pass` in place of the location's
/// prefix.
fn write_target(exchange: &RequestRecord, forward: &ProxyPass, out: &mut Vec<u8>) {
    let head = &exchange.head;
    let asked = head.uri.path_and_query();
    let Some(uri) = &forward.uri else {
        let target = asked.map_or("/", |asked| asked.as_str());
        // In absolute form with a query and no path, the path is the root.
        if target.starts_with('?') {
            out.push(b'/');
        }
        out.extend_from_slice(target.as_bytes());
        return;
    };
    out.extend_from_slice(uri.as_bytes());
    let path = exchange.target.path(head);
    let rest = path.get(forward.replaces..).unwrap_or_default();
    if exchange.target.is_rewritten() {
        push_encoded(rest, out);
    } else {
        // It was never decoded, so what the client did not escape needs no escaping.
        out.extend_from_slice(rest);
    }
    if let Some(query) = asked.and_then(|asked| asked.query()) {
        out.push(b'?');
        out.extend_from_slice(query.as_bytes());
    }
}

fn may_be_value(text: &[u8]) -> bool {
    let may_be_in_it = |byte: &u8| *byte == b'\t' || (*byte >= 0x20 && *byte != 0x7f);
    is_plain(text) || text.iter().all(may_be_in_it)
}

fn via(version: Version) -> HeaderValue {
    HeaderValue::from_static(match version {
        Version::HTTP_09 | Version::HTTP_10 => "1.0 weir",
        Version::HTTP_2 => "2.0 weir",
        _ => "1.1 weir",
    })
}

/// Whether a client's TE says it will take trailers; all else in there is between it and us.
fn wants_trailers(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(header::TE).iter();
    lines.any(|line| {
        let mut codings = line.as_bytes().split(|b| *b == b',');
        codings.any(|coding| {
            let name = coding.split(|b| *b == b';').next().unwrap_or_default();
            name.trim_ascii().eq_ignore_ascii_case(b"trailers")
        })
    })
}
