//! The request that is sent upstream, and what belongs to it.
//!
//! Its head is written straight into bytes, or into a map for HTTP/2. The client's headers stay as they came, for
//! variables, the log and a retry. What weir adds is written after the client's `Connection` options are applied, so
//! that no client can remove it.
//!
//! The body's length is what weir knows of it, or the body is chunked; what the client or `proxy_set_header` says of it
//! does not count. Two readers that disagree on where a request ends are how smuggling starts.
//!
//! `Upgrade` belongs to one connection, so it is removed unless the location passes it on and it can mean only one
//! thing: HTTP/1.1, named in `Connection` too, without a body. Never `h2c`: requests inside it would pass every limit.

#[cfg(test)]
#[path = "tests/request.rs"]
mod tests;

use http::header::{CONTENT_LENGTH, TRAILER};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version, header};
use http_body::Body as _;

use super::http1::request::PendingBody;
use crate::config::plan::{HttpVersion, ProxyPass, Template};
use crate::message::headers::{
    ConnectionOptions, MaxForwards, belongs_to_connection, describes_client, frames_body, is_plain,
    is_rebuilt, max_forwards, passes,
};
use crate::message::{
    InterimResponse, RequestBody, RequestRecord, TRACEPARENT, target_sent, variables, write_target,
};

/// A request to send to a backend.
#[derive(Debug)]
pub struct OutgoingRequest {
    pub(super) method: Method,
    pub(super) head: OutgoingHead,
    pub(super) body: PendingBody,
    /// The client asks to switch protocols, and the head says so.
    pub(super) upgrade: Option<Upgrade>,
    /// Whether the response's header fields are wanted as [raw bytes](crate::message::RawHeaders) if they can be passed
    /// on as they came and the body came with them; else they come as a map.
    pub(super) raw_headers: bool,
}

/// All of a request but its body.
#[derive(Debug)]
pub(super) enum OutgoingHead {
    Http1 { head: Vec<u8>, chunked: bool },
    Http2(Box<Request<()>>),
}

impl OutgoingRequest {
    /// The request for this `proxy_pass`; `None` where HTTP/2 cannot carry its target or its host.
    #[must_use]
    pub fn new(
        record: &RequestRecord,
        proxy_pass: &ProxyPass,
        body: RequestBody,
        raw_headers: bool,
    ) -> Option<Self> {
        let method = record.head.method.clone();
        let upgrade = Upgrade::requested(record, proxy_pass, &body);
        let head = match proxy_pass.version {
            HttpVersion::One => {
                let mut head = Vec::with_capacity(USUAL_HEAD);
                write_head(record, proxy_pass, upgrade.as_ref(), &mut head);
                OutgoingHead::http1(&method, head, &body)
            }
            HttpVersion::Two => {
                let mut request = http2_head(record, proxy_pass)?;
                add_length(&method, &body, request.headers_mut());
                OutgoingHead::Http2(Box::new(request))
            }
        };
        Some(Self {
            method,
            head,
            body: PendingBody::new(body),
            upgrade,
            raw_headers,
        })
    }
}

impl OutgoingHead {
    /// Completes a head with the field that frames the body, if one is needed, and the empty line.
    pub(super) fn http1(method: &Method, mut head: Vec<u8>, body: &RequestBody) -> Self {
        let mut chunked = false;
        if body.is_none() {
            if usually_has_body(method) {
                head.extend_from_slice(b"content-length: 0\r\n");
            }
        } else if let Some(length) = body.size_hint().exact() {
            head.extend_from_slice(b"content-length: ");
            head.extend_from_slice(length.to_string().as_bytes());
            head.extend_from_slice(b"\r\n");
        } else {
            head.extend_from_slice(b"transfer-encoding: chunked\r\n");
            chunked = true;
        }
        head.extend_from_slice(b"\r\n");
        Self::Http1 { head, chunked }
    }
}

/// Whether a request with this method says so if it has no body.
fn usually_has_body(method: &Method) -> bool {
    [Method::POST, Method::PUT, Method::PATCH].contains(method)
}

/// Adds the length of the body, where it is known. HTTP/2 needs no length to find the end of the body.
pub(super) fn add_length(method: &Method, body: &RequestBody, headers: &mut HeaderMap) {
    let length = body.size_hint().exact();
    if let Some(length) = length.filter(|length| *length > 0 || usually_has_body(method)) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}

/// Bytes that the head of a usual request needs.
const USUAL_HEAD: usize = 1024;

/// Appends the request line and the header fields: those of the client that pass, `Upgrade`, those of
/// `proxy_set_header`, then `Via`. What frames the body is left out.
fn write_head(
    record: &RequestRecord,
    proxy_pass: &ProxyPass,
    upgrade: Option<&Upgrade>,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(record.head.method.as_str().as_bytes());
    out.push(b' ');
    write_target(&record.head, &record.target, proxy_pass, out);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let upgrades = upgrade.is_some();
    write_headers(record, proxy_pass, &mut Http1Headers { out, upgrades });
    if let Some(Upgrade(protocols)) = upgrade {
        out.extend_from_slice(b"connection: upgrade\r\nupgrade: ");
        out.extend_from_slice(protocols);
        out.extend_from_slice(b"\r\n");
    }
}

/// The same for an upstream that speaks HTTP/2.
fn http2_head(record: &RequestRecord, proxy_pass: &ProxyPass) -> Option<Request<()>> {
    let target = target_sent(&record.head, &record.target, proxy_pass);
    let mut fields = Http2Headers {
        headers: HeaderMap::with_capacity(record.head.headers.len() + proxy_pass.set_headers.len()),
        host: None,
    };
    write_headers(record, proxy_pass, &mut fields);
    let host = fields.host.as_ref().map(HeaderValue::as_bytes);
    let uri = Uri::builder()
        .scheme(proxy_pass.tls.map_or("http", |_| "https"))
        .authority(host.unwrap_or(proxy_pass.host.as_bytes()))
        .path_and_query(target)
        .build()
        .ok()?;
    let mut request = Request::new(());
    *request.method_mut() = record.head.method.clone();
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_2;
    *request.headers_mut() = fields.headers;
    Some(request)
}

/// Where the header fields of a request are written.
trait HeaderSink {
    fn field(&mut self, name: &HeaderName, value: &HeaderValue);
    /// Adds a field of `proxy_set_header`, unless its value is empty or invalid.
    fn set(&mut self, name: &HeaderName, value: &Template, record: &RequestRecord);
    /// Says that trailers are welcome.
    fn trailers(&mut self);
}

struct Http1Headers<'o> {
    out: &'o mut Vec<u8>,
    // No trailers after another protocol, and there is one `Connection` field.
    upgrades: bool,
}

/// The fields that HTTP/2 has no other place for.
struct Http2Headers {
    headers: HeaderMap,
    host: Option<HeaderValue>,
}

fn write_headers(record: &RequestRecord, proxy_pass: &ProxyPass, out: &mut impl HeaderSink) {
    let headers = &record.head.headers;
    // Few requests have either; comparing the names is cheaper than two lookups.
    let (mut connection, mut te) = (false, false);
    for name in headers.keys() {
        connection |= *name == header::CONNECTION;
        te |= *name == header::TE;
    }
    let options = connection.then(|| ConnectionOptions::of(headers));
    let drops_underscores = !proxy_pass.settings.underscores_in_headers;
    let trusted = record.trusted;
    let trace = record.trace.as_deref();
    let max_forwards = max_forwards(&record.head);
    for (name, value) in headers {
        let dropped = belongs_to_connection(name)
            || is_rebuilt(name)
            || sets(proxy_pass, name)
            || options.as_ref().is_some_and(|options| options.list(name))
            || (drops_underscores && name.as_str().as_bytes().contains(&b'_'))
            || (!trusted && describes_client(name))
            || trace.is_some_and(|trace| trace.replaces(name))
            || (max_forwards != MaxForwards::Any && *name == header::MAX_FORWARDS);
        if !dropped {
            out.field(name, value);
        }
    }
    if let MaxForwards::Left(left) = max_forwards
        && !sets(proxy_pass, &header::MAX_FORWARDS)
    {
        let left = HeaderValue::from(left.saturating_sub(1));
        out.field(&header::MAX_FORWARDS, &left);
    }
    if te && wants_trailers(headers) {
        out.trailers();
    }
    for set in &proxy_pass.set_headers {
        let removed = set.value.parts.is_empty();
        if !removed && !frames_body(&set.name) {
            out.set(&set.name, &set.value, record);
        }
    }
    if let Some(trace) = trace.filter(|trace| trace.replaces(&TRACEPARENT))
        && !sets(proxy_pass, &TRACEPARENT)
    {
        out.field(&TRACEPARENT, &trace.traceparent());
    }
    if proxy_pass.settings.via {
        out.field(&header::VIA, &via(record.head.version));
    }
}

/// Whether `proxy_set_header` sets or removes this field.
fn sets(proxy_pass: &ProxyPass, name: &HeaderName) -> bool {
    proxy_pass.set_headers.iter().any(|set| set.name == *name)
}

impl HeaderSink for Http1Headers<'_> {
    fn field(&mut self, name: &HeaderName, value: &HeaderValue) {
        self.out.extend_from_slice(name.as_str().as_bytes());
        self.out.extend_from_slice(b": ");
        self.out.extend_from_slice(value.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    fn set(&mut self, name: &HeaderName, value: &Template, record: &RequestRecord) {
        let line = self.out.len();
        self.out.extend_from_slice(name.as_str().as_bytes());
        self.out.extend_from_slice(b": ");
        let start = self.out.len();
        variables::render(value, record, self.out);
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

    fn set(&mut self, name: &HeaderName, value: &Template, record: &RequestRecord) {
        let mut text = Vec::new();
        variables::render(value, record, &mut text);
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

/// Whether the client accepts trailers. The rest of `TE` concerns its own connection only.
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

/// The protocols that a client asks to switch to, as a list.
#[derive(Debug)]
pub(super) struct Upgrade(Vec<u8>);

impl Upgrade {
    /// The upgrade that a request asks for, if the location passes it on.
    // Not with a body: where that ends and the other protocol begins would be uncertain.
    fn requested(
        record: &RequestRecord,
        proxy_pass: &ProxyPass,
        body: &RequestBody,
    ) -> Option<Self> {
        let may_upgrade = proxy_pass.settings.proxy_upgrade
            && body.is_none()
            && record.head.method != Method::CONNECT;
        match may_upgrade {
            true => Self::of(&record.head),
            false => None,
        }
    }

    fn of(head: &Parts) -> Option<Self> {
        let headers = &head.headers;
        // hyper marks requests that ask for an upgrade: no field is looked up in the others.
        if head.extensions.is_empty() || head.version != Version::HTTP_11 || !names_upgrade(headers)
        {
            return None;
        }
        let protocols = protocols(headers)
            .filter(|protocol| !protocol.eq_ignore_ascii_case(b"h2c"))
            .take(MOST_PROTOCOLS);
        let wanted = protocols.collect::<Vec<_>>().join(&b", "[..]);
        (!wanted.is_empty()).then_some(Self(wanted))
    }

    /// Whether the headers of a 101 agree to protocols that were asked for.
    pub(super) fn is_met_by(&self, headers: &HeaderMap) -> bool {
        let mut agreed = protocols(headers).peekable();
        agreed.peek().is_some()
            && agreed
                .all(|protocol| list(&self.0).any(|asked| asked.eq_ignore_ascii_case(protocol)))
    }
}

/// Restores the fields of a 101 that cleaning removed.
pub fn restore_upgrade(headers: &mut HeaderMap, agreed: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, agreed);
    // It has no body, and what follows is not one.
    headers.remove(CONTENT_LENGTH);
}

fn names_upgrade(headers: &HeaderMap) -> bool {
    let mut fields = headers.get_all(header::CONNECTION).iter();
    fields.any(|options| {
        list(options.as_bytes()).any(|option| option.eq_ignore_ascii_case(b"upgrade"))
    })
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let fields = headers.get_all(header::UPGRADE).iter();
    fields.flat_map(|field| list(field.as_bytes()))
}

fn list(field: &[u8]) -> impl Iterator<Item = &[u8]> {
    field
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|item| !item.is_empty())
}

/// How many protocols of a client's list are passed on: each that the backend agrees to is compared with all of them.
const MOST_PROTOCOLS: usize = 16;

/// Passes interim (1xx) responses on to clients that can read them.
// Not 100: the client got its own when its body was asked for. 101 is no interim response.
#[derive(Debug)]
pub(super) struct InterimRelay<'e> {
    record: &'e RequestRecord,
    /// There was one.
    pub(super) seen: bool,
    passed: usize,
}

impl<'e> InterimRelay<'e> {
    pub(super) fn new(record: &'e RequestRecord) -> Self {
        Self {
            record,
            seen: false,
            passed: 0,
        }
    }

    pub(super) fn pass(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.seen = true;
        // An HTTP/1.0 client would take one for the response.
        if status != StatusCode::CONTINUE
            && self.passed < MOST_INTERIM
            && self.record.head.version >= Version::HTTP_11
        {
            self.passed += 1;
            let state = &self.record.connection.state;
            state.send_interim(passed_on(status, headers));
        }
    }
}

fn passed_on(status: StatusCode, headers: &HeaderMap) -> InterimResponse {
    let options = ConnectionOptions::of(headers);
    let mut kept = HeaderMap::new();
    for (name, value) in headers {
        // The last two describe a body, and it has none.
        if passes(name.as_ref()) && !options.list(name) && ![CONTENT_LENGTH, TRAILER].contains(name)
        {
            kept.append(name, value.clone());
        }
    }
    InterimResponse {
        status,
        headers: kept,
    }
}

/// How many are passed on for one request. A backend that sends more is cut off by `proxy_read_timeout`.
const MOST_INTERIM: usize = 16;

#[cfg(test)]
mod upgrade_tests {
    use super::*;
    use crate::message::testing::map;

    fn asked(fields: &[(&'static str, &'static str)]) -> Option<String> {
        let (mut head, ()) = Request::new(()).into_parts();
        head.headers = map(fields);
        // As hyper does.
        head.extensions.insert(());
        let upgrade = Upgrade::of(&head)?;
        Some(String::from_utf8(upgrade.0).unwrap())
    }

    #[test]
    fn an_upgrade_is_passed_on_where_both_fields_name_it() {
        let wish = |upgrade, connection| asked(&[("upgrade", upgrade), ("connection", connection)]);
        assert_eq!(wish("websocket", "Upgrade").as_deref(), Some("websocket"));
        assert_eq!(
            wish("a/1 ,, B", "keep-alive, UPGRADE").as_deref(),
            Some("a/1, B")
        );
        assert_eq!(
            wish("h2c, websocket", "upgrade").as_deref(),
            Some("websocket")
        );
        assert_eq!(wish("H2C", "Upgrade, HTTP2-Settings"), None);
        assert_eq!(wish("websocket", "keep-alive"), None);
        assert_eq!(wish("", "upgrade"), None);
        assert_eq!(asked(&[("connection", "upgrade")]), None);
    }

    #[test]
    fn http_1_0_clients_cannot_upgrade() {
        let (mut head, ()) = Request::new(()).into_parts();
        head.headers = map(&[("upgrade", "a"), ("connection", "upgrade")]);
        head.extensions.insert(());
        assert!(Upgrade::of(&head).is_some());
        head.version = Version::HTTP_10;
        assert!(Upgrade::of(&head).is_none());
    }

    #[test]
    fn the_first_of_many_protocols_are_passed_on() {
        let many: Vec<_> = (0..100).map(|number| format!("p{number}")).collect();
        let (mut head, ()) = Request::new(()).into_parts();
        head.headers = map(&[("connection", "upgrade")]);
        let many = HeaderValue::try_from(many.join(",")).unwrap();
        head.headers.insert(header::UPGRADE, many);
        head.extensions.insert(());
        let upgrade = Upgrade::of(&head).unwrap();
        assert!(upgrade.is_met_by(&map(&[("upgrade", "p0")])));
        assert!(upgrade.is_met_by(&map(&[("upgrade", "p15")])));
        assert!(!upgrade.is_met_by(&map(&[("upgrade", "p16")])));
    }

    #[test]
    fn a_backend_agrees_only_to_protocols_that_were_asked_for() {
        let upgrade = Upgrade(b"websocket, a/1".to_vec());
        for (agreed, met) in [
            ("WebSocket", true),
            ("a/1", true),
            ("h2c", false),
            ("", false),
        ] {
            assert_eq!(
                upgrade.is_met_by(&map(&[("upgrade", agreed)])),
                met,
                "{agreed}"
            );
        }
        assert!(!upgrade.is_met_by(&map(&[])));
        assert!(!upgrade.is_met_by(&map(&[("upgrade", "websocket, b")])));
    }
}

#[cfg(test)]
mod framing_tests {
    use super::*;

    #[test]
    fn a_request_without_a_body_has_length_0_or_none() {
        for (method, says) in [
            (Method::GET, "\r\n"),
            (Method::DELETE, "\r\n"),
            (Method::POST, "content-length: 0\r\n\r\n"),
        ] {
            let written = OutgoingHead::http1(&method, Vec::new(), &RequestBody::none());
            let OutgoingHead::Http1 { head, chunked } = written else {
                panic!("it is one of HTTP/1");
            };
            assert_eq!((&head[..], chunked), (says.as_bytes(), false), "{method}");
        }
    }
}

#[cfg(test)]
mod interim_tests {
    use super::*;

    #[test]
    fn only_fields_for_the_client_are_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("link", "</a.css>; rel=preload"),
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("keep-alive", "5"),
            ("content-length", "5"),
            ("x-accel-buffering", "no"),
        ] {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, HeaderValue::from_static(value));
        }
        let mut head = Vec::new();
        passed_on(StatusCode::EARLY_HINTS, &headers).encode(&mut head);
        assert_eq!(
            String::from_utf8(head).unwrap(),
            "HTTP/1.1 103 Early Hints\r\nlink: </a.css>; rel=preload\r\n\r\n"
        );
    }
}
