//! The second-best answer, for when the best is not to be had.
//!
//! A location may name somebody else to ask, allow the last good answer to be given again, or have a fixed one; they
//! are tried in this order. What none of them can help is answered as if there were no fallback.
//!
//! Locations that are degraded together: one switch turns off all that is not essential.
//!
//! A location's `stale`: which of its responses are kept, under which key, and who is given them.
//!
//! Which requests say who their client is.
//!
//! The response to such a request may be for that client alone, whatever its `Cache-Control` says.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use http::header::{
    ACCEPT, ACCEPT_CHARSET, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CONNECTION, FORWARDED, HOST, ORIGIN,
    REFERER, UPGRADE, USER_AGENT, VIA,
};
use http::{HeaderName, Response, response};

use super::context::RequestContext;
use super::error::ProxyError;
use super::generation::Generation;
use super::location::Location;
use super::{Proxy, content, location};
use crate::cache::CacheScope;
use crate::clock::{Clock, Millis};
use crate::config::plan;
use crate::config::plan::{
    Content, DegradeMode, LocationConf, Map, MapLookup, Part, Plan, ProxyPass, Template,
    TlsVariable, Variable,
};
use crate::message::headers::MaxForwards;
use crate::message::{IncomingBody, RequestRecord, ResponseBody, grpc, headers, variables};
use crate::upstream::{RequestHeadForm, Upstream, UpstreamBody};
use crate::{cache, upstream};

pub(super) use super::stale_cache::CacheWriter;
pub(super) use super::stale_cache::StaleCache;

/// A location's fallback, ready to use.
#[derive(Debug)]
pub(super) struct Fallback {
    plan: plan::Fallback,
    upstream: Option<Arc<Upstream>>,
    stale: Option<StaleRules>,
}

/// Which way out was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FallbackKind {
    Return,
    Stale,
    Upstream,
}

type Outcome = Result<Response<ResponseBody<UpstreamBody>>, ProxyError>;

impl Fallback {
    pub(super) fn build(
        whole: &Plan,
        site: &LocationConf,
        upstreams: &[Arc<Upstream>],
        kept: &Arc<StaleCache>,
    ) -> Option<Box<Self>> {
        let plan = site.fallback.as_deref()?;
        let forward = plan.forward.as_deref();
        Some(Box::new(Self {
            upstream: forward.and_then(|forward| upstreams.get(forward.upstream).cloned()),
            stale: plan
                .stale
                .as_ref()
                .map(|stale| StaleRules::new(stale, whole, site, server(whole, site), kept)),
            plan: plan.clone(),
        }))
    }

    /// Whether somebody else would be asked.
    pub(super) fn asks_others(&self) -> bool {
        self.upstream.is_some()
    }

    /// What to keep this answer with, if it is to be had again.
    pub(super) fn keeper(
        &self,
        visit: &RequestContext,
        head: &response::Parts,
        clock: &Clock,
    ) -> Option<CacheWriter> {
        // What nobody will be given is not kept either, and what depends on a request's body is for that request.
        if grpc::is_call(&visit.exchange.head) || visit.progress.is_some() {
            return None;
        }
        self.stale.as_ref()?.keeper(&visit.exchange, head, clock)
    }

    /// Whether this is not the answer to give, if there is another.
    fn replaces(&self, answered: &Outcome) -> bool {
        let on = &self.plan.on;
        match answered {
            Ok(response) => on.statuses.contains(&response.status()),
            Err(ProxyError::Degraded) => true,
            Err(ProxyError::Open(_)) => on.open,
            Err(ProxyError::Refused(_)) => on.limited,
            Err(ProxyError::Upstream(error)) => match error {
                upstream::Error::Client(_) => false,
                upstream::Error::NoLiveBackend => on.no_server,
                upstream::Error::Timeout(_) => on.timeout,
                upstream::Error::Unavailable { .. } => on.open || on.no_server,
                _ => on.error,
            },
            Err(_) => false,
        }
    }
}

impl Proxy {
    /// The second-best answer where the best is not to be had.
    pub(super) async fn fall_back(
        &self,
        visit: &mut RequestContext,
        site: &Location,
        fallback: &Fallback,
        answered: Outcome,
        unread: &mut Option<IncomingBody>,
    ) -> Outcome {
        if !fallback.replaces(&answered) || site.mode() == DegradeMode::Off {
            return answered;
        }
        // What was turned away before this was asked must not come in by the back door.
        if !site.admits(visit.exchange.client()) {
            return Err(ProxyError::Forbidden);
        }
        if let (Some(forward), Some(upstream)) = (&fallback.plan.forward, &fallback.upstream)
            && may_go_elsewhere(visit)
        {
            let upload = match visit.spare_upload.take() {
                Some(upload) => upload,
                None => content::take_in(visit, site, forward, unread).await?,
            };
            let second = self
                .forward(
                    visit,
                    forward,
                    upstream,
                    upload,
                    RequestHeadForm::Fields,
                    None,
                )
                .await;
            if second.is_ok() && !fallback.replaces(&second) {
                return FallbackKind::Upstream.taken(second);
            }
        }
        let exchange = &mut visit.exchange;
        if grpc::is_call(&exchange.head) {
            return answered;
        }
        if let Some(stale) = &fallback.stale
            && let Some(mut good) = stale.response(exchange, self.clock.now())
        {
            if let Content::Forward(forward) = &site.plan.action {
                headers::rewrite_redirects(good.headers_mut(), exchange, forward);
            }
            return FallbackKind::Stale.taken(Ok(good));
        }
        match &fallback.plan.answer {
            Some(answer) => FallbackKind::Return.taken(location::returned(answer, exchange)),
            None => answered,
        }
    }
}

/// What tells a site's virtual server from all others, in this plan and the next: its name, where it listens, and how
/// many before it have both in common with it.
fn server(plan: &Plan, site: &LocationConf) -> Box<str> {
    let address = |index: usize| {
        let mut listeners = plan.listeners.iter();
        let listener = listeners.find(|listener| listener.servers.contains(&index));
        listener.map(|listener| listener.address.to_string())
    };
    let holds = |server: &plan::Server| {
        let mut locations = server.locations.iter();
        std::ptr::eq(&server.fallback, site)
            || locations.any(|location| std::ptr::eq(&location.site, site))
    };
    let own = plan.servers.iter().position(holds).unwrap_or_default();
    let known_by = |index: usize| (plan.servers.get(index).map(|it| &*it.name), address(index));
    let (name, listens) = known_by(own);
    let before = (0..own).filter(|index| known_by(*index) == known_by(own));
    let (name, listens) = (name.unwrap_or_default(), listens.unwrap_or_default());
    format!("{name} {listens} {}", before.count()).into()
}

/// Whether a request can be sent to somebody else: its body was not begun or lies ready, and nothing may have come of it yet that must
/// not come of it twice.
fn may_go_elsewhere(visit: &RequestContext) -> bool {
    let exchange = &visit.exchange;
    let sent = exchange
        .attempts
        .iter()
        .any(|attempt| attempt.connect.is_some());
    let may_be_forwarded = match headers::hops(&exchange.head) {
        MaxForwards::Any | MaxForwards::Left(1..) => true,
        MaxForwards::Left(0) | MaxForwards::Malformed => false,
    };
    may_be_forwarded
        && (visit.progress.is_none() || visit.spare_upload.is_some())
        && (!sent || upstream::is_idempotent(&exchange.head.method))
}

impl FallbackKind {
    fn taken(self, answer: Outcome) -> Outcome {
        TAKEN[self as usize].fetch_add(1, Ordering::Relaxed);
        answer
    }
}

/// How often which way out was taken.
pub fn taken() -> impl Iterator<Item = (&'static str, u64)> {
    let counts = TAKEN.iter().map(|count| count.load(Ordering::Relaxed));
    ["return", "stale", "upstream"].into_iter().zip(counts)
}

static TAKEN: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// A group of locations.
#[derive(Debug)]
pub struct DegradeGroup {
    /// Its name.
    pub name: Box<str>,
    mode: AtomicU8,
}

impl DegradeGroup {
    /// As it was in the generation before, unless the configuration says something else by now.
    pub(super) fn inherit(plan: &plan::DegradeGroup, before: Option<&Generation>) -> Arc<Self> {
        let old = before.and_then(|before| {
            let mut planned = before.plan.degrade_groups.iter();
            let index = planned.position(|old| old.name == plan.name && old.mode == plan.mode)?;
            before.groups.get(index)
        });
        old.map_or_else(|| Arc::new(Self::new(plan)), Arc::clone)
    }

    /// As the configuration has it.
    fn new(plan: &plan::DegradeGroup) -> Self {
        let group = Self {
            name: plan.name.clone(),
            mode: AtomicU8::new(0),
        };
        group.mode.store(plan.mode as u8, Ordering::Relaxed);
        group
    }

    /// What holds at present.
    #[must_use]
    pub fn mode(&self) -> DegradeMode {
        let mode = self.mode.load(Ordering::Relaxed);
        let known = [DegradeMode::Auto, DegradeMode::Off, DegradeMode::On];
        known
            .into_iter()
            .find(|known| *known as u8 == mode)
            .unwrap_or_default()
    }

    /// From now on this holds.
    pub fn set(&self, mode: DegradeMode) {
        self.mode.store(mode as u8, Ordering::Relaxed);
        tracing::warn!(group = &*self.name, "degrade: {}", mode.as_str());
    }
}

/// `stale` of a location, ready to use.
#[derive(Debug)]
pub(super) struct StaleRules {
    plan: plan::Stale,
    kept: Arc<StaleCache>,
    /// The virtual server, as its responses are kept under.
    server: Box<str>,
    credentials: CredentialVariables,
    /// Maps that responses may differ by.
    maps: Vec<Variable>,
}

impl StaleRules {
    pub(super) fn new(
        plan: &plan::Stale,
        whole: &Plan,
        site: &LocationConf,
        server: Box<str>,
        kept: &Arc<StaleCache>,
    ) -> Self {
        Self {
            plan: plan.clone(),
            kept: Arc::clone(kept),
            server,
            credentials: CredentialVariables::of(whole, site),
            maps: maps_told(site),
        }
    }

    /// What to keep this response with, if it may be kept.
    pub(super) fn keeper(
        &self,
        exchange: &RequestRecord,
        head: &response::Parts,
        clock: &Clock,
    ) -> Option<CacheWriter> {
        let request = &exchange.head;
        if !cache::may_keep(request) || !self.kept.has_room_for(head) {
            return None;
        }
        let (key, audience) = self.key(exchange);
        if audience == CacheScope::Everybody && self.credentials.carried_by(exchange) {
            return None;
        }
        let Some(terms) = cache::terms(head, audience, Clock::wall) else {
            // What is there by now is of another kind than what was kept.
            if head.status.is_success() {
                self.kept.forget(&key);
            }
            return None;
        };
        Some(self.kept.keeper(key, request, head, terms, clock.now()))
    }

    /// The last good response to this request.
    pub(super) fn response(
        &self,
        exchange: &RequestRecord,
        now: Millis,
    ) -> Option<Response<ResponseBody<UpstreamBody>>> {
        let request = &exchange.head;
        if !cache::may_use(request) {
            return None;
        }
        let (key, _) = self.key(exchange);
        self.kept.answer(key, request, self.plan.max_age, now)
    }

    /// What the response to a request is kept under, and for whom: the virtual server, all of what is asked for, and
    /// what else tells responses apart here.
    fn key(&self, exchange: &RequestRecord) -> (Vec<u8>, CacheScope) {
        let head = &exchange.head;
        let mut key = self.server.as_bytes().to_vec();
        key.push(0);
        variables::append(&Variable::Scheme, exchange, &mut key);
        key.push(0);
        // With its port: a backend that is told of it may write it into links.
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
            push(map, exchange, &mut key);
        }
        let mut known = false;
        for variable in self.plan.key.iter().flat_map(|key| key.variables()) {
            known |= push(variable, exchange, &mut key) && variable.is_secret();
        }
        // Without a secret of its own nothing tells this client from others.
        let audience = match self.plan.private && known {
            true => CacheScope::One,
            false => CacheScope::Everybody,
        };
        key.push(audience as u8);
        (key, audience)
    }
}

/// Appends a variable's value with its length, so that no two lists of values read alike; whether there is one.
fn push(variable: &Variable, exchange: &RequestRecord, key: &mut Vec<u8>) -> bool {
    let start = key.len();
    key.extend_from_slice(&[0; LENGTH]);
    variables::append(variable, exchange, key);
    let length = key.len() - start - LENGTH;
    if let Some(place) = key.get_mut(start..start + LENGTH) {
        place.copy_from_slice(&length.to_be_bytes());
    }
    length > 0
}

const LENGTH: usize = size_of::<usize>();

/// What a location takes for credentials.
#[derive(Debug)]
pub(super) struct CredentialVariables {
    /// Those that its limits are keyed by and its `proxy_set_header` passes on, as far as clients choose their value.
    variables: Vec<Variable>,
}

impl CredentialVariables {
    pub(super) fn of(plan: &Plan, site: &LocationConf) -> Self {
        let rules = site.limit_req.iter().chain(&site.shadow);
        let zones = rules.filter_map(|rule| plan.req_zones.get(rule.zone));
        let mut search = VariableSearch::new(&plan.maps);
        zones.for_each(|zone| search.template(&zone.key));
        let rules = site.limit_conn.iter();
        let zones = rules.filter_map(|rule| plan.conn_zones.get(rule.zone));
        zones.for_each(|zone| search.template(&zone.key));
        for set in forward(site).iter().flat_map(|it| &it.set_headers) {
            search.template(&set.value);
        }
        let mut variables = search.found;
        variables.retain(identifies);
        Self { variables }
    }

    /// Whether a request carries any.
    pub(super) fn carried_by(&self, exchange: &RequestRecord) -> bool {
        let shown = exchange.peer.tls().is_some_and(|tls| tls.client.is_some());
        shown
            || exchange.head.headers.keys().any(says_so)
            || self.variables.iter().any(|it| has_value(it, exchange))
    }
}

/// The maps that a location's `proxy_set_header` tells its backend of: responses may differ by them.
pub(super) fn maps_told(site: &LocationConf) -> Vec<Variable> {
    let headers = forward(site).into_iter().flat_map(|it| &it.set_headers);
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

fn forward(site: &LocationConf) -> Option<&ProxyPass> {
    match &site.action {
        Content::Forward(forward) => Some(forward),
        Content::NotFound | Content::Return(_) => None,
    }
}

/// Looks for variables, also in what maps are made from.
struct VariableSearch<'p> {
    maps: &'p [Map],
    seen: HashSet<usize>,
    found: Vec<Variable>,
}

impl<'p> VariableSearch<'p> {
    fn new(maps: &'p [Map]) -> Self {
        Self {
            maps,
            seen: HashSet::new(),
            found: Vec::new(),
        }
    }

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

/// Whether a variable may tell who a client is. Addresses do not: every request has one, and none is a secret. Neither
/// does what a response is kept under anyway, such as host and target.
fn identifies(variable: &Variable) -> bool {
    match variable {
        Variable::Arg(_)
        | Variable::Cookie(_)
        | Variable::ProxyProtocolTlv(_)
        | Variable::RemoteUser => true,
        Variable::Http(name) => {
            !COMMON.contains(name) && !name.as_str().starts_with("x-forwarded-") && *name != REAL_IP
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

fn has_value(variable: &Variable, exchange: &RequestRecord) -> bool {
    match variable {
        Variable::Http(name) => exchange.head.headers.contains_key(name),
        other => {
            let mut value = Vec::new();
            variables::append(other, exchange, &mut value);
            !value.is_empty()
        }
    }
}

/// Whether a header's name says that it carries credentials.
fn says_so(name: &HeaderName) -> bool {
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

/// Headers that all clients send, or none to say who it is.
const COMMON: [HeaderName; 12] = [
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
];

const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

#[cfg(test)]
mod group_tests {

    use super::*;

    #[test]
    fn the_switch_has_three_positions() {
        for mode in [DegradeMode::Auto, DegradeMode::Off, DegradeMode::On] {
            let group = DegradeGroup::new(&plan::DegradeGroup {
                name: "extras".into(),
                mode,
            });
            assert_eq!(group.mode(), mode);
            group.set(DegradeMode::On);
            assert_eq!(group.mode(), DegradeMode::On);
        }
    }
}

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
            assert!(says_so(&HeaderName::from_static(name)), "{name}");
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
            assert!(!says_so(&HeaderName::from_static(name)), "{name}");
        }
    }
}
