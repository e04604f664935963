//! Headers: which ones pass, and which belong to one connection only.
//!
//! Requests are written anew (`upstream::request`), responses are cleaned in place.
//!
//! A sender can list thousands of options in `Connection` and send a hundred headers. Each option is looked up once among the
//! names that are there, so the work grows with the size of the message, not with options times headers.
//!
//! Backends trust headers that describe the client because the proxy before them writes them. A client can write them as well,
//! so those of a client that is not trusted are removed; `proxy_set_header` can still set headers of these names.
//!
//! The server keeps the header map of every response for the next request of the same connection. So each response needs a new
//! map, and each request leaves one over: [`spare`] and [`reuse`] make them the same.

use std::cell::Cell;

use http::header::MAX_FORWARDS;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use smallvec::SmallVec;

use super::local_reply::escape_location;
use super::record::RequestRecord;
use super::variables;
use crate::config::plan::{Part, ProxyPass, Redirect, Replacement};

/// How far a request's transfer coding is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferCoding {
    /// None, or `chunked` once: all readers agree on it.
    Plain,
    /// One that ends in `chunked` and would leave the rest of the decoding to the backend.
    Unknown,
    /// One that does not delimit the body.
    Invalid,
}

/// What a backend's `X-Accel-…` headers ask for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccelHeaders {
    /// `X-Accel-Limit-Rate`: how fast it may leave, in bytes a second.
    pub limit_rate: Option<u64>,
    /// `X-Accel-Buffering`: whether it is buffered.
    pub buffering: Option<bool>,
    /// Whether there is an `X-Accel-Redirect`, which is left on the response: it shows why the body is empty.
    pub redirect: bool,
}

/// How far a request's transfer coding is understood; hyper accepts all that end in `chunked`.
pub fn coding(headers: &HeaderMap) -> TransferCoding {
    let mut fields = headers.get_all(header::TRANSFER_ENCODING).iter();
    let Some(field) = fields.next() else {
        return TransferCoding::Plain;
    };
    let mut codings = field.as_bytes().split(|byte| *byte == b',').rev();
    let mut is_chunked = || {
        let coding = codings.next().map(<[u8]>::trim_ascii);
        coding.map(|coding| coding.eq_ignore_ascii_case(b"chunked"))
    };
    match (is_chunked(), is_chunked()) {
        _ if fields.next().is_some() => TransferCoding::Invalid,
        (Some(true), None) => TransferCoding::Plain,
        (Some(true), Some(false)) => TransferCoding::Unknown,
        _ => TransferCoding::Invalid,
    }
}

/// Removes from a response the headers of the connection and those that nginx hides. `Date` and `Server` stay the backend's.
///
/// An upgrade has to be handled before: its headers are removed too. Returns what the removed headers ask for.
pub fn clean_response(headers: &mut HeaderMap) -> AccelHeaders {
    let (mut connection, mut hidden, mut lengths) = (false, false, 0);
    for (name, value) in headers.iter() {
        connection |= belongs_to_connection(name);
        hidden |= is_hidden(name.as_ref());
        if name == header::CONTENT_LENGTH {
            lengths += if is_length(value) { 1 } else { 2 };
        }
    }
    if lengths > 1 || connection && headers.contains_key(header::TRANSFER_ENCODING) {
        settle_length(headers);
    }
    if connection {
        remove_connection_fields(headers);
    }
    let mut accel = AccelHeaders::default();
    if hidden {
        accel = AccelHeaders {
            // The last value that is a number.
            limit_rate: headers
                .get_all("x-accel-limit-rate")
                .into_iter()
                .rev()
                .filter(|value| is_length(value))
                .find_map(|value| value.to_str().ok()?.parse().ok()),
            // The first value that is `yes` or `no`.
            buffering: headers.get_all("x-accel-buffering").into_iter().find_map(
                |value| match value.as_bytes() {
                    value if value.eq_ignore_ascii_case(b"no") => Some(false),
                    value if value.eq_ignore_ascii_case(b"yes") => Some(true),
                    _ => None,
                },
            ),
            redirect: headers.contains_key(REDIRECT),
        };
        let names: Vec<_> = headers
            .keys()
            .filter(|name| is_hidden(name.as_ref()) && **name != REDIRECT)
            .cloned()
            .collect();
        for name in names {
            headers.remove(name);
        }
    }
    accel
}

/// Removes the headers of the connection, which HTTP/2 does not allow, from a response or from trailers.
pub fn clean_for_streams(headers: &mut HeaderMap) {
    if headers.keys().any(belongs_to_connection) {
        remove_connection_fields(headers);
    }
}

fn remove_connection_fields(headers: &mut HeaderMap) {
    for name in ConnectionOptions::of(headers).names {
        // How long the body is, is not a matter of the connection.
        if name != header::CONTENT_LENGTH {
            headers.remove(name);
        }
    }
    for name in &CONNECTION_FIELDS {
        headers.remove(name);
    }
}

/// Leaves one valid length, or none: beside a transfer coding it has no meaning, and two that differ contradict each other.
fn settle_length(headers: &mut HeaderMap) {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let first = lengths.next().filter(|first| is_length(first)).cloned();
    let agreed = !headers.contains_key(header::TRANSFER_ENCODING)
        && lengths.all(|other| Some(other) == first.as_ref());
    match first.filter(|_| agreed) {
        Some(length) => headers.insert(header::CONTENT_LENGTH, length),
        None => headers.remove(header::CONTENT_LENGTH),
    };
}

fn is_length(value: &HeaderValue) -> bool {
    !value.is_empty() && value.as_bytes().iter().all(u8::is_ascii_digit)
}

/// Whether there is no control character in it, not even a tab. Eight bytes at a time: every value is looked at.
pub(crate) fn is_plain(text: &[u8]) -> bool {
    const EACH: u64 = u64::MAX / 255;
    let (words, rest) = text.as_chunks::<8>();
    // A byte's highest bit is set where the byte was less than what is taken from it, and had no such bit before.
    let odd = words.iter().fold(0, |odd, word| {
        let word = u64::from_le_bytes(*word);
        let delete = word ^ (EACH * 0x7f);
        odd | (word.wrapping_sub(EACH * 0x20) & !word) | (delete.wrapping_sub(EACH) & !delete)
    });
    odd & (EACH * 0x80) == 0 && rest.iter().all(|byte| *byte >= 0x20 && *byte != 0x7f)
}

pub(crate) fn frames_body(name: &HeaderName) -> bool {
    matches!(name.as_str(), "content-length" | "transfer-encoding")
}

/// Whether a header is set anew for each request sent upstream: the length, the host, and the promise to wait for a 100.
pub(crate) fn is_rebuilt(name: &HeaderName) -> bool {
    matches!(name.as_str(), "content-length" | "expect" | "host")
}

/// Whether a response's header, its name in lower case, is passed on, unless `Connection` lists it.
pub fn passes(name: &[u8]) -> bool {
    !concerns_connection(name) && !is_hidden(name)
}

/// Whether a response's header is passed on with the value it came with, too.
pub fn passes_unchanged(name: &[u8]) -> bool {
    passes(name) && !matches!(name, b"location" | b"refresh")
}

/// Whether a header belongs to the connection it came on, whether `Connection` lists it or not.
pub(crate) fn belongs_to_connection(name: &HeaderName) -> bool {
    concerns_connection(name.as_ref())
}

/// The header fields that concern one connection, whether `Connection` lists them or not: the one list of them.
macro_rules! hop_by_hop {
    ($count:literal: $($name:literal),* $(,)?) => {
        fn concerns_connection(name: &[u8]) -> bool {
            // Asked of every field of every message: the length tells most of them apart.
            matches!(name, $($name)|*)
        }

        /// Those of [`belongs_to_connection`].
        pub(crate) const CONNECTION_FIELDS: [HeaderName; $count] = [$(header_name($name)),*];
    };
}

hop_by_hop! { 9:
    b"connection",
    b"http2-settings",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"transfer-encoding",
    b"upgrade",
}

const fn header_name(name: &'static [u8]) -> HeaderName {
    match std::str::from_utf8(name) {
        Ok(name) => HeaderName::from_static(name),
        Err(_) => panic!("header names are ASCII"),
    }
}

/// Whether a header is meant for nginx, not for the client.
fn is_hidden(name: &[u8]) -> bool {
    name == b"x-pad" || name.starts_with(b"x-accel-")
}

const REDIRECT: &str = "x-accel-redirect";

/// The header fields of a message that its `Connection` fields list.
#[derive(Debug, Default)]
pub struct ConnectionOptions {
    // Sorted. Nearly always empty, and then nothing is allocated, moved or dropped.
    names: Vec<HeaderName>,
}

impl ConnectionOptions {
    /// Those of a message; only fields that the message has are among them.
    pub fn of(headers: &HeaderMap) -> Self {
        let lines = headers.get_all(header::CONNECTION);
        let mut listed = lines.iter().flat_map(options).peekable();
        // Nearly always: nothing else is looked at then.
        if listed.peek().is_none() {
            return Self::default();
        }
        let mut names: SmallVec<[(&HeaderName, bool); 32]> =
            headers.keys().map(|name| (name, false)).collect();
        names.sort_unstable_by_key(|(name, _)| name.as_str());
        for option in listed {
            // Names are in lower case, an option may be in any.
            let option = || option.iter().map(u8::to_ascii_lowercase);
            let found = names.binary_search_by(|(name, _)| name.as_str().bytes().cmp(option()));
            if let Ok(at) = found {
                names[at].1 = true;
            }
        }
        let listed = names.into_iter().filter(|(_, listed)| *listed);
        Self {
            names: listed.map(|(name, _)| name.clone()).collect(),
        }
    }

    /// Whether this field is listed.
    pub fn list(&self, name: &HeaderName) -> bool {
        !self.names.is_empty()
            && self
                .names
                .binary_search_by_key(&name.as_str(), HeaderName::as_str)
                .is_ok()
    }
}

/// The options in a `Connection` field that may name another; none in the ordinary ones.
fn options(line: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    line.as_bytes()
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|option| {
            !option.is_empty()
                && !option.eq_ignore_ascii_case(b"keep-alive")
                && !option.eq_ignore_ascii_case(b"close")
        })
}

/// How many more times a request may be forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxForwards {
    /// As often as it takes.
    Any,
    /// So many times; at 0 this is the last recipient.
    Left(u64),
    /// The header is there more than once, or is no number.
    Malformed,
}

/// What a request's `Max-Forwards` asks for. Only OPTIONS is read for it: TRACE is never forwarded, and to other methods
/// the header means nothing.
#[inline]
pub fn max_forwards(head: &Parts) -> MaxForwards {
    match head.method == Method::OPTIONS {
        true => parse_max_forwards(head),
        false => MaxForwards::Any,
    }
}

#[cold]
fn parse_max_forwards(head: &Parts) -> MaxForwards {
    let mut values = head.headers.get_all(MAX_FORWARDS).iter();
    let Some(value) = values.next() else {
        return MaxForwards::Any;
    };
    let digits = value.as_bytes();
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    if !is_number || values.next().is_some() {
        return MaxForwards::Malformed;
    }
    // A number that is too large counts as the largest, as the RFC asks.
    let digits = value.to_str().unwrap_or_default();
    MaxForwards::Left(digits.parse().unwrap_or(u64::MAX))
}

/// Whether a field with this name speaks for a client.
// Called for every header of every request: the first letters decide nearly all.
pub fn describes_client(name: &HeaderName) -> bool {
    let name = name.as_str();
    match name.as_bytes() {
        [b'x', b'-', rest @ ..] => match rest {
            [b'f', b'o', ..] => rest.starts_with(b"forwarded-"),
            [b's', b's', ..] => rest.starts_with(b"ssl-client-"),
            _ => matches!(
                name,
                "x-appengine-remote-addr"
                    | "x-appengine-user-ip"
                    | "x-arr-clientcert"
                    | "x-azure-clientip"
                    | "x-azure-socketip"
                    | "x-client-ip"
                    | "x-cluster-client-ip"
                    | "x-envoy-external-address"
                    | "x-envoy-peer-metadata"
                    | "x-original-forwarded-for"
                    | "x-original-host"
                    | "x-originating-ip"
                    | "x-proxyuser-ip"
                    | "x-real-ip"
                    | "x-real-port"
                    | "x-remote-addr"
                    | "x-remote-ip"
                    | "x-scheme"
                    | "x-url-scheme"
            ),
        },
        [b'c' | b'f' | b'p' | b't' | b'w', ..] => matches!(
            name,
            "cf-connecting-ip"
                | "cf-connecting-ipv6"
                | "cf-pseudo-ipv4"
                | "client-ip"
                | "cloudfront-viewer-address"
                | "fastly-client-ip"
                | "fly-client-ip"
                | "forwarded"
                | "front-end-https"
                | "proxy-client-ip"
                | "true-client-ip"
                | "wl-proxy-client-ip"
        ),
        _ => false,
    }
}

thread_local! {
    static SPARE: Cell<Option<HeaderMap>> = const { Cell::new(None) };
}

/// An empty map, mostly with room in it.
pub fn spare() -> HeaderMap {
    SPARE.take().unwrap_or_default()
}

/// Keeps a map's room for the next one.
pub fn reuse(mut headers: HeaderMap) {
    if (1..=LARGEST).contains(&headers.capacity()) {
        headers.clear();
        SPARE.set(Some(headers));
    }
}

/// The number of headers of usual messages; a larger map is not worth its memory.
const LARGEST: usize = 48;

/// Rewrites `Location` and `Refresh` of a response from `forward` by the first of its rules that matches.
pub fn rewrite_redirects(headers: &mut HeaderMap, record: &RequestRecord, proxy_pass: &ProxyPass) {
    if proxy_pass.redirects.is_empty() {
        return;
    }
    for (name, value) in headers.iter_mut() {
        let start = match name {
            _ if *name == header::LOCATION => Some(0),
            _ if *name == header::REFRESH => url_in_refresh(value.as_bytes()),
            _ => None,
        };
        if let Some((before, url)) =
            start.and_then(|start| value.as_bytes().split_at_checked(start))
            && let Some(rewritten) = rewritten(url, record, proxy_pass)
            && let Ok(rewritten) = HeaderValue::try_from([before, &rewritten].concat())
        {
            *value = rewritten;
        }
    }
}

/// Where the URL begins in `5; url=http://…`.
fn url_in_refresh(value: &[u8]) -> Option<usize> {
    let before = b"url=";
    let mut places = value.windows(before.len());
    let found = places.position(|place| place.eq_ignore_ascii_case(before))?;
    Some(found + before.len())
}

fn rewritten(url: &[u8], record: &RequestRecord, proxy_pass: &ProxyPass) -> Option<Vec<u8>> {
    let mut rules = proxy_pass.redirects.iter();
    rules.find_map(|rule| match rule {
        Redirect::Default { url: own, path } => match url.strip_prefix(own.as_bytes()) {
            Some(rest) => Some([path.as_bytes(), rest].concat()),
            None => under_host_sent(url, path, record, proxy_pass),
        },
        Redirect::Expression { from, to } => {
            let groups = from.captures(url)?;
            let mut text = Vec::new();
            for piece in to {
                match piece {
                    Replacement::Group(group) => {
                        let group = groups.get(*group);
                        text.extend_from_slice(group.map_or(b"", |group| group.as_bytes()));
                    }
                    Replacement::Part(part) => push(part, record, &mut text),
                }
            }
            Some(text)
        }
        Redirect::Prefix { from, to } => {
            let mut begins = Vec::new();
            variables::render(from, record, &mut begins);
            let rest = url.strip_prefix(&begins[..])?;
            let mut text = Vec::new();
            to.parts
                .iter()
                .for_each(|part| push(part, record, &mut text));
            text.extend_from_slice(rest);
            Some(text)
        }
    })
}

/// Puts the location's path in place of that of `proxy_pass` where a backend names itself by the host it was sent, which
/// mostly is the client's own: then only the path is not what the client knows.
fn under_host_sent(
    url: &[u8],
    path: &str,
    record: &RequestRecord,
    proxy_pass: &ProxyPass,
) -> Option<Vec<u8>> {
    let own = proxy_pass.uri.as_deref()?;
    let scheme = [&b"http://"[..], b"https://"];
    let scheme = scheme.into_iter().find(|scheme| url.starts_with(scheme))?;
    let mut hosts = proxy_pass.set_headers.iter();
    let host = hosts.find(|set| set.name == header::HOST)?;
    let mut sent = Vec::new();
    variables::render(&host.value, record, &mut sent);
    let (header_name, rest) = url.split_at_checked(scheme.len() + sent.len())?;
    if sent == proxy_pass.host.as_bytes() || !header_name.ends_with(&sent) {
        return None;
    }
    let rest = rest.strip_prefix(own.as_bytes())?;
    Some([header_name, path.as_bytes(), rest].concat())
}

/// Appends a piece; what no URL may hold is escaped in values, so that none begins a field of its own.
fn push(part: &Part, record: &RequestRecord, text: &mut Vec<u8>) {
    match part {
        Part::Text(own) => text.extend_from_slice(own.as_bytes()),
        Part::Variable(variable) => {
            let mut value = Vec::new();
            variables::append(variable, record, &mut value);
            text.extend_from_slice(&escape_location(&value));
        }
    }
}

#[cfg(test)]
mod options_tests {

    use super::*;
    use crate::message::testing::map;

    #[test]
    fn fields_are_listed_in_any_case_and_in_any_line() {
        let headers = map(&[
            ("accept", "a"),
            ("connection", "close, X-Second ,, absent"),
            ("connection", "x-first"),
            ("keep-alive", "5"),
            ("x-first", "1"),
            ("x-first-not", "1"),
            ("x-second", "1"),
        ]);
        let options = ConnectionOptions::of(&headers);
        let listed: Vec<_> = headers.keys().filter(|name| options.list(name)).collect();
        assert_eq!(listed, ["x-first", "x-second"]);
    }

    #[test]
    fn a_thousand_options_find_every_field_they_name() {
        let mut headers = HeaderMap::new();
        let name = |number: usize| HeaderName::try_from(format!("x-{number}")).unwrap();
        for number in 0..90 {
            headers.append(name(number), HeaderValue::from_static("1"));
        }
        let listed: Vec<_> = (45..1_000).map(|number| format!("X-{number}")).collect();
        let listed = HeaderValue::try_from(listed.join(",")).unwrap();
        headers.append(header::CONNECTION, listed);
        let options = ConnectionOptions::of(&headers);
        for number in 0..90 {
            assert_eq!(options.list(&name(number)), number >= 45, "x-{number}");
        }
    }
}

#[cfg(test)]
mod hops_tests {

    use super::*;

    #[test]
    fn only_a_number_counts_and_only_for_options() {
        let asked = |method: &str, values: &[&str]| {
            let fields: Vec<_> = values.iter().map(|it| ("max-forwards", *it)).collect();
            max_forwards(&crate::message::testing::request(method, "/", &fields).head)
        };
        assert_eq!(asked("OPTIONS", &[]), MaxForwards::Any);
        assert_eq!(asked("OPTIONS", &["0"]), MaxForwards::Left(0));
        assert_eq!(asked("OPTIONS", &["0010"]), MaxForwards::Left(10));
        assert_eq!(
            asked("OPTIONS", &["99999999999999999999999"]),
            MaxForwards::Left(u64::MAX)
        );
        for wrong in ["", "-1", "+1", "1.0", "0x1", "1, 2", "many"] {
            assert_eq!(
                asked("OPTIONS", &[wrong]),
                MaxForwards::Malformed,
                "{wrong}"
            );
        }
        assert_eq!(asked("OPTIONS", &["1", "1"]), MaxForwards::Malformed);
        assert_eq!(asked("GET", &["0"]), MaxForwards::Any);
    }
}

#[cfg(test)]
mod identity_tests {

    use super::*;

    #[test]
    fn what_names_a_client_is_told_from_what_does_not() {
        let speaks = |name| describes_client(&HeaderName::from_static(name));
        for name in [
            "x-forwarded-port",
            "x-forwarded-client-cert",
            "x-ssl-client-verify",
            "x-client-ip",
            "true-client-ip",
            "cf-connecting-ip",
            "forwarded",
        ] {
            assert!(speaks(name), "{name}");
        }
        for name in [
            "accept",
            "cookie",
            "content-type",
            "from",
            "x-api-key",
            "x-forwarder",
            "x-request-id",
            "x-client-version",
            "traceparent",
        ] {
            assert!(!speaks(name), "{name}");
        }
    }
}

#[cfg(test)]
mod spare_tests {

    use http::{HeaderValue, header};

    use super::*;

    #[test]
    fn room_is_used_again_and_nothing_else() {
        let mut used = HeaderMap::with_capacity(10);
        used.append(header::COOKIE, HeaderValue::from_static("a"));
        used.append(header::COOKIE, HeaderValue::from_static("b"));
        let room = used.capacity();
        reuse(used);
        let map = spare();
        assert_eq!((map.len(), map.capacity()), (0, room));
        assert!(map.get(header::COOKIE).is_none());
        assert_eq!(spare().capacity(), 0);
        reuse(HeaderMap::with_capacity(10 * LARGEST));
        assert_eq!(spare().capacity(), 0);
    }
}

#[cfg(test)]
mod redirect_tests {

    use regex::bytes::Regex;

    use super::*;
    use crate::config::plan::{SetHeader, Template, Variable};

    fn rewritten(proxy_pass: &ProxyPass, field: &'static str, value: &str) -> String {
        let record =
            crate::message::testing::request("GET", "/one/a%0ab", &[("host", "shop.test:81")]);
        let mut headers = HeaderMap::new();
        headers.insert(field, HeaderValue::from_str(value).unwrap());
        rewrite_redirects(&mut headers, &record, proxy_pass);
        headers[field].to_str().unwrap().to_owned()
    }

    fn with(redirects: Vec<Redirect>) -> ProxyPass {
        ProxyPass {
            redirects: redirects.into(),
            uri: Some("/two/".into()),
            set_headers: vec![SetHeader {
                name: header::HOST,
                value: Template::variable(Variable::PassedHost),
            }],
            ..crate::message::testing::proxy_pass()
        }
    }

    fn default() -> Redirect {
        Redirect::Default {
            url: "http://app/two/".into(),
            path: "/one/".into(),
        }
    }

    #[test]
    fn the_locations_path_takes_the_place_of_the_upstreams_url() {
        let proxy_pass = with(vec![default()]);
        for (from, to) in [
            ("http://app/two/x?y", "/one/x?y"),
            ("http://app/three/", "http://app/three/"),
            ("http://APP/two/", "http://APP/two/"),
            ("/two/x", "/two/x"),
            ("http://shop.test:81/two/x", "http://shop.test:81/one/x"),
            ("https://shop.test:81/two/x", "https://shop.test:81/one/x"),
            ("http://shop.test:81/x", "http://shop.test:81/x"),
            ("http://shop.test/two/x", "http://shop.test/two/x"),
            (
                "https://www.shop.test:81/two/x",
                "https://www.shop.test:81/two/x",
            ),
        ] {
            assert_eq!(rewritten(&proxy_pass, "location", from), to);
        }
        assert_eq!(
            rewritten(&proxy_pass, "refresh", "5; URL=http://app/two/x"),
            "5; URL=/one/x"
        );
        assert_eq!(rewritten(&proxy_pass, "refresh", "5"), "5");
        assert_eq!(
            rewritten(&proxy_pass, "content-location", "http://app/two/"),
            "http://app/two/"
        );
        assert_eq!(
            rewritten(&with(Vec::new()), "location", "http://app/two/"),
            "http://app/two/"
        );
    }

    #[test]
    fn the_first_rule_that_matches_is_applied_and_values_are_escaped() {
        let proxy_pass = with(vec![
            Redirect::Expression {
                from: Regex::new("^http://([^/]+)/(.*)$").unwrap(),
                to: Box::new([
                    Replacement::Part(Part::Text("//".into())),
                    Replacement::Group(1),
                    Replacement::Part(Part::Variable(Variable::Uri)),
                    Replacement::Group(2),
                ]),
            },
            default(),
        ]);
        assert_eq!(
            rewritten(&proxy_pass, "location", "http://app/two/"),
            "//app/one/a%0Abtwo/"
        );
        let host = Template::variable(Variable::Host);
        let proxy_pass = with(vec![Redirect::Prefix {
            from: Template::literal("/"),
            to: host,
        }]);
        assert_eq!(rewritten(&proxy_pass, "location", "/x"), "shop.testx");
    }
}
