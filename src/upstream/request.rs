//! The head of a request on its way upstream, written straight into bytes, or into fields for HTTP/2.
//!
//! The client's head stays as it came, for variables, for the log and for a second try; nothing is copied into a map
//! in between only to be read out of it again. What we add is written after everything the client says has been
//! carried out, so that no `Connection` field can take it away.
//!
//! A client's wish to speak something else than HTTP, and a backend's consent.
//!
//! Both belong to one connection and so would be removed; passed on, they make a tunnel. Only a wish that can mean one
//! thing is passed on: of HTTP/1.1, said in `Connection` too, without a body that would come between. Never `h2c`:
//! what is asked in there would go past every limit.
//!
//! Where a request ends, said in one way only.
//!
//! Whatever a client or a `proxy_set_header` said of the body's length does not count: the length we know, or chunks
//! where we know none. Two readers that disagree on where a request ends are how smuggling starts.
//!
//! Interim (1xx) answers, passed on to clients that can know them.
//!
//! 100 is not among them: the client got its own from us when its body was asked for. Neither is 101, which is no
//! interim answer at all.

#[cfg(test)]
#[path = "tests/request.rs"]
mod tests;

use http::header::{CONTENT_LENGTH, TRAILER};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version, header};
use http_body::Body;

use crate::config::plan::{ProxyPass, Template};
use crate::message::headers::{
    ConnectionOptions, MaxForwards, belongs_to_connection, frames_body, hops, is_plain, is_rebuilt,
    passes, speaks_for_client,
};
use crate::message::{
    InterimResponse, RequestBody, RequestRecord, TRACEPARENT, target_sent, variables, write_target,
};
use crate::upstream::http1::request::RequestFraming;

/// Appends the request line and the header fields to send upstream: the client's that pass, its wish to
/// `upgrade`, then what `proxy_set_header` says, then `Via`. How long the body is and the blank line are left to whoever
/// sends it.
pub fn write_request(
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
    pass_on(record, proxy_pass, &mut Http1Headers { out, upgrades });
    if let Some(upgrade) = upgrade {
        upgrade.write(out);
    }
}

/// The same for an upstream that speaks HTTP/2; `None` where its target or its host cannot be said there.
#[must_use]
pub fn stream_request(record: &RequestRecord, proxy_pass: &ProxyPass) -> Option<Request<()>> {
    let target = target_sent(&record.head, &record.target, proxy_pass);
    let mut fields = Http2Headers {
        headers: HeaderMap::with_capacity(record.head.headers.len() + proxy_pass.set_headers.len()),
        host: None,
    };
    pass_on(record, proxy_pass, &mut fields);
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

/// Where the fields of a request go.
trait HeaderSink {
    fn field(&mut self, name: &HeaderName, value: &HeaderValue);
    /// A field of ours; none where its template says nothing, or nothing a field could carry.
    fn set(&mut self, name: &HeaderName, value: &Template, record: &RequestRecord);
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

fn pass_on(record: &RequestRecord, proxy_pass: &ProxyPass, out: &mut impl HeaderSink) {
    let headers = &record.head.headers;
    // Few requests have either; looking at the names is cheaper than looking the two up.
    let (mut connection, mut te) = (false, false);
    for name in headers.keys() {
        connection |= *name == header::CONNECTION;
        te |= *name == header::TE;
    }
    let options = connection.then(|| ConnectionOptions::of(headers));
    let drops_underscores = !proxy_pass.settings.underscores_in_headers;
    let believed = record.is_trusted();
    let trace = record.trace.as_deref();
    let hops = hops(&record.head);
    for (name, value) in headers {
        let stays = belongs_to_connection(name)
            || is_rebuilt(name)
            || sets(proxy_pass, name)
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

/// Whether `proxy_set_header` has a say in this field.
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

/// The protocols a client would rather speak.
#[derive(Debug)]
pub struct Upgrade(Vec<u8>);

impl Upgrade {
    /// What a request without a body asks for, if it may be passed on.
    #[must_use]
    pub fn asked(head: &Parts) -> Option<Self> {
        let headers = &head.headers;
        // hyper leaves its mark on requests that ask for it: no field is looked for in the others.
        if head.extensions.is_empty() || head.version != Version::HTTP_11 || !names_upgrade(headers)
        {
            return None;
        }
        let mut wanted = Vec::new();
        let others = protocols(headers).filter(|protocol| !is_h2c(protocol));
        for protocol in others.take(MOST_PROTOCOLS) {
            if !wanted.is_empty() {
                wanted.extend_from_slice(b", ");
            }
            wanted.extend_from_slice(protocol);
        }
        (!wanted.is_empty()).then_some(Self(wanted))
    }

    /// Whether the fields of a 101 agree to something that was asked for.
    #[must_use]
    pub fn is_met_by(&self, headers: &HeaderMap) -> bool {
        let mut agreed = protocols(headers).peekable();
        agreed.peek().is_some()
            && agreed
                .all(|protocol| list(&self.0).any(|asked| asked.eq_ignore_ascii_case(protocol)))
    }

    /// The wish as it goes on.
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"connection: upgrade\r\nupgrade: ");
        out.extend_from_slice(&self.0);
        out.extend_from_slice(b"\r\n");
    }
}

/// Puts back into a cleaned 101 what makes it one.
pub fn restore_upgrade(headers: &mut HeaderMap, agreed: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, agreed);
    // There is no body, and what follows is none.
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

fn is_h2c(protocol: &[u8]) -> bool {
    protocol.eq_ignore_ascii_case(b"h2c")
}

fn list(field: &[u8]) -> impl Iterator<Item = &[u8]> {
    field
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|item| !item.is_empty())
}

/// How many protocols of a client's list go on, in its order. What a backend agrees to is compared with each of
/// them.
const MOST_PROTOCOLS: usize = 16;

/// Appends the field that says how long the body is, if one is needed.
pub(super) fn declare(method: &Method, upload: &RequestBody, head: &mut Vec<u8>) -> RequestFraming {
    if upload.is_none() {
        // A method that usually has a body says that it has none.
        if [Method::POST, Method::PUT, Method::PATCH].contains(method) {
            head.extend_from_slice(b"content-length: 0\r\n");
        }
        return RequestFraming::Plain;
    }
    let Some(length) = upload.size_hint().exact() else {
        head.extend_from_slice(b"transfer-encoding: chunked\r\n");
        return RequestFraming::Chunked;
    };
    head.extend_from_slice(b"content-length: ");
    head.extend_from_slice(length.to_string().as_bytes());
    head.extend_from_slice(b"\r\n");
    RequestFraming::Plain
}

/// The same for HTTP/2, where the end is told in another way and the length only helps.
pub(super) fn announce(method: &Method, upload: &RequestBody, headers: &mut HeaderMap) {
    let length = match upload.size_hint().exact() {
        Some(0) if ![Method::POST, Method::PUT, Method::PATCH].contains(method) => return,
        Some(length) => length,
        None => return,
    };
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
}

/// Passes interim answers on to the client that `exchange` is with.
#[derive(Debug)]
pub(super) struct InterimRelay<'e> {
    record: &'e RequestRecord,
    seen: bool,
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
        // An HTTP/1.0 client would take one for the answer.
        if status != StatusCode::CONTINUE
            && self.passed < MOST
            && self.record.head.version >= Version::HTTP_11
        {
            self.passed += 1;
            let state = &self.record.connection.state;
            state.send_interim(passed_on(status, headers));
        }
    }

    /// Whether there have been any.
    pub(super) fn is_used(&self) -> bool {
        self.seen
    }
}

fn passed_on(status: StatusCode, headers: &HeaderMap) -> InterimResponse {
    let options = ConnectionOptions::of(headers);
    let mut kept = HeaderMap::new();
    for (name, value) in headers {
        // There is no body for the last two to say anything of.
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

/// How many go to a client for one request. A backend that sends them without end is cut off by
/// `proxy_read_timeout`; until then the client is spared them.
const MOST: usize = 16;

#[cfg(test)]
mod upgrade_tests {

    use super::*;
    use crate::message::testing::map;

    fn asked(fields: &[(&'static str, &'static str)]) -> Option<String> {
        let (mut head, ()) = Request::new(()).into_parts();
        head.headers = map(fields);
        // As hyper does.
        head.extensions.insert(());
        let upgrade = Upgrade::asked(&head)?;
        Some(String::from_utf8(upgrade.0).unwrap())
    }

    #[test]
    fn a_wish_is_passed_on_where_both_fields_say_it() {
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
    fn older_clients_cannot_ask() {
        let (mut head, ()) = Request::new(()).into_parts();
        head.headers = map(&[("upgrade", "a"), ("connection", "upgrade")]);
        head.extensions.insert(());
        assert!(Upgrade::asked(&head).is_some());
        head.version = Version::HTTP_10;
        assert!(Upgrade::asked(&head).is_none());
    }

    #[test]
    fn of_many_protocols_the_first_go_on() {
        let many: Vec<_> = (0..100).map(|number| format!("p{number}")).collect();
        let (mut head, ()) = Request::new(()).into_parts();
        head.headers = map(&[("connection", "upgrade")]);
        let many = HeaderValue::try_from(many.join(",")).unwrap();
        head.headers.insert(header::UPGRADE, many);
        head.extensions.insert(());
        let upgrade = Upgrade::asked(&head).unwrap();
        assert!(upgrade.is_met_by(&map(&[("upgrade", "p0")])));
        assert!(upgrade.is_met_by(&map(&[("upgrade", "p15")])));
        assert!(!upgrade.is_met_by(&map(&[("upgrade", "p16")])));
    }

    #[test]
    fn consent_is_to_what_was_asked() {
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
    fn a_request_without_a_body_promises_none() {
        for (method, says) in [
            (Method::GET, ""),
            (Method::DELETE, ""),
            (Method::POST, "content-length: 0\r\n"),
        ] {
            let mut head = Vec::new();
            declare(&method, &RequestBody::none(), &mut head);
            assert_eq!(head, says.as_bytes(), "{method}");
        }
    }
}

#[cfg(test)]
mod interim_tests {

    use http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn only_fields_meant_for_the_client_are_passed() {
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
