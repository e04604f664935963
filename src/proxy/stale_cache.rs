//! The last good responses, in bounded memory, for when there are no new ones.
//!
//! [`StaleRules`] is a location's `stale`: which of its responses are kept, under which key, and which requests get them.
//! The response to a request with credentials may be for that client alone, whatever its `Cache-Control` says.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_CHARSET, ACCEPT_ENCODING, ACCEPT_LANGUAGE, AGE, CONNECTION, CONTENT_LENGTH,
    FORWARDED, HOST, ORIGIN, REFERER, UPGRADE, USER_AGENT, VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, request, response};

use crate::cache::{self, CacheScope, Freshness, LruCache, Reservation};
use crate::clock::{Clock, Millis};
use crate::config::plan::{
    self, Content, LocationConf, Map, MapLookup, Part, Plan, ProxyPass, Template, TlsVariable,
    Variable,
};
use crate::message::{RequestRecord, ResponseBody, variables};
use crate::upstream::{BodyObserver, UpstreamBody};

/// The last good responses of all locations.
pub type StaleCache = LruCache<CacheEntry>;

/// An entry of the cache.
#[derive(Debug)]
pub enum CacheEntry {
    /// A response.
    Response(Box<CachedResponse>),
    /// There are several; which one depends on these fields of the request.
    Varies(Vec<HeaderName>),
}

/// A response as it is kept.
#[derive(Debug)]
pub struct CachedResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    spec: Freshness,
    since: Millis,
}

/// Keeps one response when it is complete.
#[derive(Debug)]
pub(super) struct CacheWriter {
    cache: Arc<LruCache<CacheEntry>>,
    key: Vec<u8>,
    cached: CachedResponse,
}

/// A response that is being received, to be kept when it is complete.
#[derive(Debug)]
pub(super) struct CacheRecording {
    writer: CacheWriter,
    read: Vec<u8>,
    reservation: Reservation<CacheEntry>,
}

impl CachedResponse {
    /// The memory it takes.
    fn size(&self) -> usize {
        let fields = self.headers.iter();
        let fields: usize = fields
            .map(|(name, value)| FIELD + name.as_str().len() + value.len())
            .sum();
        size_of::<Self>() + self.body.len() + fields + names_size(&self.spec.vary)
    }

    fn response(&self, age: Duration, method: &Method) -> Response<ResponseBody<UpstreamBody>> {
        let body = match *method == Method::HEAD {
            true => Bytes::new(),
            false => self.body.clone(),
        };
        let mut response = Response::new(ResponseBody::whole(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        *headers = self.headers.clone();
        headers.insert(CONTENT_LENGTH, HeaderValue::from(self.body.len()));
        headers.insert(
            AGE,
            HeaderValue::from(self.spec.age.saturating_add(age).as_secs()),
        );
        let status = match self.spec.fresh {
            Some(fresh) if fresh >= age => format!("weir; hit; ttl={}", (fresh - age).as_secs()),
            Some(fresh) => format!("weir; hit; ttl=-{}", (age - fresh).as_secs()),
            None => "weir; hit".to_owned(),
        };
        if let Ok(status) = HeaderValue::try_from(status) {
            headers.append(CACHE_STATUS, status);
        }
        response
    }
}

impl CacheWriter {
    /// Keeps the response with its complete body.
    pub(super) fn keep(mut self, body: &[u8]) {
        self.cached.body = Bytes::copy_from_slice(body);
        let bytes = self.cached.size();
        let entry = CacheEntry::Response(Box::new(self.cached));
        self.cache.insert(&self.key, entry, bytes);
    }

    /// Records the body as it comes; `None` if there is no room for it.
    pub(super) fn record(self) -> Option<CacheRecording> {
        let mut reservation = self.cache.reserve();
        if !reservation.grow(self.cached.size() + self.key.len()) {
            SKIPPED.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(CacheRecording {
            writer: self,
            read: Vec::new(),
            reservation,
        })
    }
}

impl CacheRecording {
    /// Makes room for so many bytes of the body in all; false if there is none.
    fn make_room(&mut self, wanted: usize) -> bool {
        let capacity = self.read.capacity();
        if wanted <= capacity {
            return true;
        }
        // Doubled, so that a long body is not moved with every piece; what is doubled is reserved, too.
        let doubled = capacity
            .saturating_mul(2)
            .min(self.writer.cache.max_value());
        let fits = [doubled.max(wanted), wanted]
            .into_iter()
            .find(|size| self.reservation.grow(size - capacity));
        match fits {
            Some(size) => self.read.reserve_exact(size - self.read.len()),
            None => {
                SKIPPED.fetch_add(1, Ordering::Relaxed);
            }
        }
        fits.is_some()
    }
}

impl BodyObserver for CacheRecording {
    fn piece(&mut self, data: &[u8]) -> bool {
        let wanted = self.read.len() + data.len();
        if wanted > self.writer.cache.max_value() || !self.make_room(wanted) {
            return false;
        }
        self.read.extend_from_slice(data);
        true
    }

    fn complete(self: Box<Self>) {
        let Self {
            writer: CacheWriter {
                key, mut cached, ..
            },
            mut read,
            reservation,
        } = *self;
        read.shrink_to_fit();
        cached.body = read.into();
        let bytes = cached.size();
        reservation.fill(&key, CacheEntry::Response(Box::new(cached)), bytes);
    }
}

/// Adds what a response depends on.
fn add_vary_values(key: &mut Vec<u8>, names: &[HeaderName], request: &request::Parts) {
    for name in names {
        key.push(0);
        for value in request.headers.get_all(name) {
            key.extend_from_slice(value.as_bytes());
            key.push(1);
        }
    }
}

/// A copy that shares nothing: what was read with a response would be kept with it.
fn copy_headers(headers: &HeaderMap) -> HeaderMap {
    headers
        .iter()
        .filter(|(name, _)| ![AGE, CONNECTION, CONTENT_LENGTH].contains(name))
        .filter_map(|(name, value)| {
            let value = HeaderValue::from_bytes(value.as_bytes()).ok()?;
            Some((name.clone(), value))
        })
        .collect()
}

/// The memory that these names take.
fn names_size(names: &[HeaderName]) -> usize {
    let names = names.iter().map(|name| name.as_str().len());
    names.map(|length| size_of::<HeaderName>() + length).sum()
}

/// How many responses were not kept because there was no room for them while they were received.
pub fn skipped() -> u64 {
    SKIPPED.load(Ordering::Relaxed)
}

static SKIPPED: AtomicU64 = AtomicU64::new(0);

/// What a header field takes besides its name and its value: its places in a map that is never full, and allocations.
const FIELD: usize = 200;

/// RFC 9211.
const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// `stale` of a location, ready to use.
#[derive(Debug)]
pub(super) struct StaleRules {
    plan: plan::Stale,
    cache: Arc<StaleCache>,
    /// The virtual server, as its responses are kept under.
    server: Box<str>,
    /// What the location takes as credentials.
    credentials: Vec<Variable>,
    /// Maps that responses may differ by.
    maps: Vec<Variable>,
}

impl StaleRules {
    /// Those of a location, if it has any.
    pub(super) fn compile(
        plan: &Plan,
        conf: &LocationConf,
        cache: &Arc<StaleCache>,
    ) -> Option<Arc<Self>> {
        let stale = conf.fallback.as_deref()?.stale.as_ref()?;
        Some(Arc::new(Self {
            plan: stale.clone(),
            cache: Arc::clone(cache),
            server: virtual_server(plan, conf),
            credentials: credential_variables(plan, conf),
            maps: forwarded_maps(conf),
        }))
    }

    /// The writer for this response, if it may be kept.
    pub(super) fn cache_writer(
        &self,
        record: &RequestRecord,
        head: &response::Parts,
        clock: &Clock,
    ) -> Option<CacheWriter> {
        let request = &record.head;
        let announced = head.headers.get(CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse().ok());
        let is_too_large = announced.is_some_and(|length: usize| length > self.cache.max_value());
        if is_too_large || !cache::may_store(request) {
            return None;
        }
        let (mut key, audience) = self.key(record);
        if audience == CacheScope::Shared && self.has_credentials(record) {
            return None;
        }
        let Some(spec) = cache::freshness(head, audience, Clock::wall) else {
            // What is there by now is of another kind than what was kept.
            if head.status.is_success() {
                self.cache.remove(&key);
            }
            return None;
        };
        if !spec.vary.is_empty() {
            let entry = CacheEntry::Varies(spec.vary.clone());
            self.cache.insert(&key, entry, names_size(&spec.vary));
            add_vary_values(&mut key, &spec.vary, request);
        }
        Some(CacheWriter {
            cache: Arc::clone(&self.cache),
            key,
            cached: CachedResponse {
                status: head.status,
                headers: copy_headers(&head.headers),
                body: Bytes::new(),
                spec,
                since: clock.now(),
            },
        })
    }

    /// The last good response to this request, if it is not too old.
    pub(super) fn response(
        &self,
        record: &RequestRecord,
        now: Millis,
    ) -> Option<Response<ResponseBody<UpstreamBody>>> {
        let request = &record.head;
        if !cache::may_reuse(request) {
            return None;
        }
        let (mut key, _) = self.key(record);
        let mut entry = self.cache.get(&key)?;
        if let CacheEntry::Varies(names) = &*entry {
            add_vary_values(&mut key, names, request);
            entry = self.cache.get(&key)?;
        }
        let CacheEntry::Response(cached) = &*entry else {
            return None;
        };
        let age = now.since(cached.since);
        if age > self.plan.max_age || cached.spec.usable.is_some_and(|usable| age > usable) {
            return None;
        }
        Some(cached.response(age, &request.method))
    }

    /// Whether a request carries credentials.
    fn has_credentials(&self, record: &RequestRecord) -> bool {
        let tls = record.connection.tls();
        tls.is_some_and(|tls| tls.client.is_some())
            || record.head.headers.keys().any(names_credentials)
            || self.credentials.iter().any(|it| has_value(it, record))
    }

    /// The key of the response to a request, and its audience: the virtual server, all of the target, and
    /// what else tells responses apart here.
    fn key(&self, record: &RequestRecord) -> (Vec<u8>, CacheScope) {
        let head = &record.head;
        let mut key = self.server.as_bytes().to_vec();
        key.push(0);
        variables::append(&Variable::Scheme, record, &mut key);
        key.push(0);
        // With its port: a backend that gets it may write it into links.
        let authority = match head.uri.authority() {
            Some(authority) => authority.as_str().as_bytes(),
            None => head.headers.get(HOST).map_or(&b""[..], |it| it.as_bytes()),
        };
        key.extend(authority.iter().map(u8::to_ascii_lowercase));
        key.push(0);
        if let Some(target) = head.uri.path_and_query() {
            key.extend_from_slice(target.as_str().as_bytes());
        }
        key.push(0);
        for map in &self.maps {
            append_with_length(map, record, &mut key);
        }
        let mut known = false;
        for variable in self.plan.key.iter().flat_map(|key| key.variables()) {
            known |= append_with_length(variable, record, &mut key) && variable.is_secret();
        }
        // Without a secret of its own nothing tells this client from others.
        let audience = match self.plan.private && known {
            true => CacheScope::Private,
            false => CacheScope::Shared,
        };
        key.push(audience as u8);
        (key, audience)
    }
}

/// Appends a variable's value with its length, so that no two lists of values read alike; whether there is one.
fn append_with_length(variable: &Variable, record: &RequestRecord, key: &mut Vec<u8>) -> bool {
    let start = key.len();
    key.extend_from_slice(&[0; LENGTH]);
    variables::append(variable, record, key);
    let length = key.len() - start - LENGTH;
    if let Some(place) = key.get_mut(start..start + LENGTH) {
        place.copy_from_slice(&length.to_be_bytes());
    }
    length > 0
}

const LENGTH: usize = size_of::<usize>();

/// What tells a site's virtual server from all others, in this plan and the next: its name, where it listens, and how
/// many before it have both in common with it.
fn virtual_server(plan: &Plan, conf: &LocationConf) -> Box<str> {
    let address = |index: usize| {
        let mut listeners = plan.listeners.iter();
        let listener = listeners.find(|listener| listener.servers.contains(&index));
        listener.map(|listener| listener.address.to_string())
    };
    let holds = |server: &plan::Server| {
        let mut locations = server.locations.iter();
        std::ptr::eq(&server.fallback, conf)
            || locations.any(|location| std::ptr::eq(&location.conf, conf))
    };
    let server = plan.servers.iter().position(holds).unwrap_or_default();
    let known_by = |index: usize| (plan.servers.get(index).map(|it| &*it.name), address(index));
    let same = (0..server).filter(|index| known_by(*index) == known_by(server));
    let (same, (name, address)) = (same.count(), known_by(server));
    let (name, address) = (name.unwrap_or_default(), address.unwrap_or_default());
    format!("{name} {address} {same}").into()
}

/// The variables that a location takes as credentials: those that its limits are keyed by and its `proxy_set_header` passes
/// on, as far as clients choose their value.
fn credential_variables(plan: &Plan, conf: &LocationConf) -> Vec<Variable> {
    let mut search = VariableSearch {
        maps: &plan.maps,
        seen: HashSet::new(),
        found: Vec::new(),
    };
    for rule in conf.limit_req.iter().chain(&conf.shadow) {
        search.template(&plan.req_zones[rule.zone].key);
    }
    for rule in &conf.limit_conn {
        search.template(&plan.conn_zones[rule.zone].key);
    }
    for set in proxy_pass(conf).iter().flat_map(|it| &it.set_headers) {
        search.template(&set.value);
    }
    search.found.retain(identifies);
    search.found
}

/// The maps that a location's `proxy_set_header` tells its backend of: responses may differ by them.
fn forwarded_maps(conf: &LocationConf) -> Vec<Variable> {
    let headers = proxy_pass(conf).into_iter().flat_map(|it| &it.set_headers);
    let parts = headers.flat_map(|set| &set.value.parts);
    let mut maps = Vec::new();
    for part in parts {
        if let Part::Variable(map @ Variable::Map(_)) = part
            && !maps.contains(map)
        {
            maps.push(map.clone());
        }
    }
    maps
}

fn proxy_pass(conf: &LocationConf) -> Option<&ProxyPass> {
    match &conf.action {
        Content::ProxyPass(proxy_pass) => Some(proxy_pass),
        Content::NotFound | Content::Return(_) => None,
    }
}

/// Looks for variables, also in what maps are made from.
struct VariableSearch<'p> {
    maps: &'p [Map],
    seen: HashSet<usize>,
    found: Vec<Variable>,
}

impl VariableSearch<'_> {
    fn template(&mut self, template: &Template) {
        for part in &template.parts {
            match part {
                Part::Text(_) => {}
                Part::Variable(Variable::Map(index)) => self.map(*index),
                Part::Variable(variable) if self.found.contains(variable) => {}
                Part::Variable(variable) => self.found.push(variable.clone()),
            }
        }
    }

    fn map(&mut self, index: usize) {
        let Some(map) = self.maps.get(index) else {
            return;
        };
        if !self.seen.insert(index) {
            return;
        }
        self.template(&map.source);
        self.template(&map.default);
        match &map.lookup {
            MapLookup::Geo(geo) => geo.values.iter().for_each(|it| self.template(it)),
            MapLookup::Values(values) => {
                let named = values.hostnames.iter().map(|(_, value)| value);
                let matched = values.expressions.iter().map(|(_, value)| value);
                let all = values.exact.values().chain(named).chain(matched);
                all.for_each(|value| self.template(value));
            }
        }
    }
}

/// Whether a variable may identify a client. Addresses do not: every request has one, and none is a secret. Neither
/// does what a response is kept under anyway, such as host and target.
fn identifies(variable: &Variable) -> bool {
    match variable {
        Variable::Arg(_)
        | Variable::Cookie(_)
        | Variable::ProxyProtocolTlv(_)
        | Variable::RemoteUser => true,
        Variable::Http(name) => {
            !COMMON.contains(name) && !name.as_str().starts_with("x-forwarded-")
        }
        Variable::Ssl(what) => matches!(
            what,
            TlsVariable::ClientEscapedCert
                | TlsVariable::ClientFingerprint
                | TlsVariable::ClientIDn
                | TlsVariable::ClientSDn
                | TlsVariable::ClientSerial
        ),
        _ => false,
    }
}

fn has_value(variable: &Variable, record: &RequestRecord) -> bool {
    match variable {
        Variable::Http(name) => record.head.headers.contains_key(name),
        other => {
            let mut value = Vec::new();
            variables::append(other, record, &mut value);
            !value.is_empty()
        }
    }
}

/// Whether a header's name suggests credentials.
fn names_credentials(name: &HeaderName) -> bool {
    let name = name.as_str();
    WORDS.iter().any(|word| name.contains(word))
}

/// Parts of the names of headers that carry credentials: `Authorization`, `Cookie`, `X-Api-Key`, `X-Auth-Token`,
/// `X-Forwarded-Client-Cert` and their like.
// A word too many costs a response its place; a word too few shows one client's response to another.
const WORDS: [&str; 17] = [
    "access-key",
    "api-key",
    "apikey",
    "auth",
    "cert",
    "cookie",
    "credential",
    "dpop",
    "forwarded-user",
    "jwt",
    "password",
    "remote-user",
    "secret",
    "session",
    "signature",
    "subscription-key",
    "token",
];

/// Headers that all clients send, or that do not identify one.
const COMMON: [HeaderName; 13] = [
    ACCEPT,
    ACCEPT_CHARSET,
    ACCEPT_ENCODING,
    ACCEPT_LANGUAGE,
    CONNECTION,
    FORWARDED,
    HOST,
    ORIGIN,
    REFERER,
    UPGRADE,
    USER_AGENT,
    VIA,
    HeaderName::from_static("x-real-ip"),
];

#[cfg(test)]
mod credentials_tests {

    use super::*;

    #[test]
    fn names_of_headers_say_what_they_carry() {
        for name in [
            "authorization",
            "cookie",
            "x-api-key",
            "x-auth-token",
            "x-amz-security-token",
            "x-forwarded-client-cert",
            "ocp-apim-subscription-key",
        ] {
            assert!(names_credentials(&HeaderName::from_static(name)), "{name}");
        }
        // What browsers send with every request.
        for name in [
            "accept",
            "accept-language",
            "cache-control",
            "dnt",
            "host",
            "if-none-match",
            "priority",
            "referer",
            "sec-ch-ua-platform",
            "sec-fetch-dest",
            "sec-fetch-mode",
            "sec-fetch-site",
            "sec-fetch-user",
            "sec-gpc",
            "traceparent",
            "upgrade-insecure-requests",
            "user-agent",
            "x-forwarded-for",
            "x-requested-with",
        ] {
            assert!(!names_credentials(&HeaderName::from_static(name)), "{name}");
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    /// A backend may send any number of seconds.
    #[test]
    fn an_answer_may_be_of_any_age() {
        let cached = CachedResponse {
            status: StatusCode::OK,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            spec: Freshness {
                age: Duration::from_secs(u64::MAX),
                fresh: None,
                usable: None,
                vary: Vec::new(),
            },
            since: Millis(0),
        };
        let response = cached.response(Duration::from_secs(5), &Method::GET);
        assert_eq!(response.headers()[AGE], "18446744073709551615");
    }
}
