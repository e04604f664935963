//! What a location means on the road: its limits, who may come in, and where its answers come from.
//!
//! A location's circuit breaker: asked before a request is sent on, told what came of it.
//!
//! What the connection has to say against a request before anything else has: nginx's 495, 496, 497 and 421.

use std::sync::Arc;

use http::{HeaderValue, Response, StatusCode, Version, header};

use super::context::RequestContext;
use super::error;
use super::error::{ProxyError, respond};
use super::fallback::{DegradeGroup, Fallback};
use super::generation::Generation;
use super::stale_cache::StaleCache;
use crate::clock::{Millis, MinRate};
use crate::config::plan;
use crate::config::plan::{
    Carrier, Content, CostSource, DegradeMode, Http2, HttpVersion, Listener, LocationConf, Plan,
    ProxyPass, Return, ReturnBody, Variable, VerifyClient,
};
use crate::limits::{Limits, Zones};
use crate::message::headers::MaxForwards;
use crate::message::{
    CertificateStatus, ClientAddr, ClientConnection, IncomingBody, LocalReply, RequestBody,
    RequestRecord, ResponseBody, TlsInfo, encode_path, grpc, headers, variables,
};
use crate::upstream::breaker::{Breaker, CallOutcome, CallPermit};
use crate::upstream::{Upstream, UpstreamBody};

/// A location, ready to use.
#[derive(Debug)]
pub(super) struct Location {
    pub(super) plan: LocationConf,
    /// Its place among all of the plan.
    pub(super) number: usize,
    pub(super) limits: Limits,
    pub(super) upstream: Option<Arc<Upstream>>,
    pub(super) guard: Option<Arc<LocationBreaker>>,
    pub(super) fallback: Option<Box<Fallback>>,
    group: Option<Arc<DegradeGroup>>,
    /// Whether something here asks for the answer's header fields.
    pub(super) keeps_sent_headers: bool,
    /// Whether something here asks for those of the upstream's answer.
    pub(super) keeps_upstream_headers: bool,
}

impl Location {
    pub(super) fn build(
        plan: &Plan,
        site: &LocationConf,
        zones: &Zones,
        upstreams: &[Arc<Upstream>],
        groups: &[Arc<DegradeGroup>],
        kept: &Arc<StaleCache>,
        guard: Option<Arc<LocationBreaker>>,
    ) -> Self {
        let upstream = match &site.action {
            Content::Forward(forward) => upstreams.get(forward.upstream).cloned(),
            Content::NotFound | Content::Return(_) => None,
        };
        Self {
            limits: Limits::compile(site, zones),
            upstream,
            guard,
            fallback: Fallback::build(plan, site, upstreams, kept),
            group: site
                .degrade_group
                .and_then(|index| groups.get(index).cloned()),
            keeps_sent_headers: uses(site, |it| matches!(it, Variable::SentHttp(_))),
            keeps_upstream_headers: uses(site, |it| matches!(it, Variable::UpstreamHttp(_))),
            plan: site.clone(),
            number: 0,
        }
    }

    /// Puts this location's timeouts in force on the client's connection.
    pub(super) fn apply_timeouts(&self, peer: &ClientConnection) {
        peer.line.set_timeouts(&self.plan.client);
    }

    /// Whether what is not essential is left out here.
    pub(super) fn mode(&self) -> DegradeMode {
        self.group
            .as_ref()
            .map_or(DegradeMode::Auto, |group| group.mode())
    }

    /// Whether somebody else would be asked instead.
    pub(super) fn asks_others(&self) -> bool {
        let fallback = self.fallback.as_ref();
        fallback.is_some_and(|fallback| fallback.asks_others())
    }

    /// A request's body on its way to be sent on.
    pub(super) fn upload(
        &self,
        visit: &mut RequestContext,
        forward: &ProxyPass,
        unread: &mut Option<IncomingBody>,
    ) -> RequestBody {
        let upload = unread.take().map_or_else(RequestBody::none, |incoming| {
            let client = &self.plan.client;
            // A call may go on for as long as both sides like, and say little. Only where calls are what
            // is expected: anybody can claim to make one.
            let head = &visit.exchange.head;
            let is_call = forward.version == HttpVersion::Two
                && head.version == Version::HTTP_2
                && grpc::is_call(head);
            let least = MinRate(if is_call {
                0
            } else {
                client.client_body_min_rate
            });
            RequestBody::new(
                incoming,
                client.client_max_body_size,
                client.client_body_timeout,
                least,
            )
        });
        visit.progress = upload.progress();
        upload
    }

    /// Whether `allow` and `deny` let this client in.
    pub(super) fn admits(&self, client: &ClientAddr) -> bool {
        let access = &self.plan.access;
        access
            .networks
            .iter()
            .find(|(network, _)| network.contains(client.ip()))
            .map_or(!access.refuse_others, |(_, allowed)| *allowed)
    }
}

/// Whether what is said here of an answer's speed or cost depends on a variable like this.
fn uses(site: &LocationConf, like: impl Fn(&Variable) -> bool) -> bool {
    let mut rules = site.limit_req.iter().chain(&site.shadow);
    site.bandwidth.may_use(&like)
        || rules.any(|rule| match &rule.weight {
            CostSource::After(template) => template.may_use(&like),
            _ => false,
        })
}

/// Answers a `return`.
pub(super) fn returned(
    answer: &Return,
    exchange: &mut RequestRecord,
) -> Result<Response<ResponseBody<UpstreamBody>>, ProxyError> {
    let Ok(status) = StatusCode::from_u16(answer.status) else {
        return Err(ProxyError::NotFound);
    };
    if answer.status == NO_ANSWER {
        return Err(ProxyError::NoAnswer);
    }
    // It may say so itself.
    exchange.status = Some(status);
    let exchange = &*exchange;
    let page = LocalReply::new(status);
    let page = match &answer.body {
        ReturnBody::Location(template) => {
            let mut url = Vec::new();
            variables::render(template, exchange, &mut url);
            page.with_location(&url)
        }
        ReturnBody::Page => page,
        ReturnBody::Text { text, content_type } => {
            page.with_text(error::render(text, exchange), content_type)
        }
    };
    Ok(respond(page, exchange))
}

/// The answer to a request that may be forwarded no further.
pub(super) fn last_hop(
    exchange: &RequestRecord,
) -> Result<Option<Response<ResponseBody<UpstreamBody>>>, ProxyError> {
    match headers::hops(&exchange.head) {
        MaxForwards::Any | MaxForwards::Left(1..) => Ok(None),
        MaxForwards::Left(0) => Ok(Some(options(exchange))),
        MaxForwards::Malformed => Err(ProxyError::MaxForwards),
    }
}

/// Answers OPTIONS as its last recipient: with what a gateway lets pass, since no backend is to be asked.
fn options(exchange: &RequestRecord) -> Response<ResponseBody<UpstreamBody>> {
    let answer = LocalReply::new(StatusCode::OK).with_header(header::ALLOW, ALLOWED);
    respond(answer.with_text("", "text/plain"), exchange)
}

/// Sends a client that left out a location's last slash to where it meant to go, as nginx does.
pub(super) fn slash_added(exchange: &RequestRecord) -> Response<ResponseBody<UpstreamBody>> {
    let mut url = encode_path(exchange.target.path(&exchange.head));
    url.push('/');
    if let Some(query) = exchange.head.uri.query() {
        url.push('?');
        url.push_str(query);
    }
    let answer = LocalReply::new(StatusCode::MOVED_PERMANENTLY);
    respond(answer.with_location(url.as_bytes()), exchange)
}

/// Methods that a backend may be asked with; others that it knows pass as well, but CONNECT and TRACE do not.
pub(super) const ALLOWED: HeaderValue =
    HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE, PATCH, OPTIONS");

/// nginx's status that closes the connection without an answer.
pub(super) const NO_ANSWER: u16 = plan::RefusalAction::DROP;

/// A breaker, and whose it is.
#[derive(Debug)]
pub struct LocationBreaker {
    /// The first name of its server, or nothing.
    pub server: Box<str>,
    /// Its location as it is written, or nothing for what no location of its own matches.
    pub location: Box<str>,
    /// The breaker.
    pub breaker: Arc<Breaker>,
}

impl LocationBreaker {
    /// That of a site, if it asks for one: the one it had in the generation before, where its rules are the same.
    pub(super) fn build(
        plan: &Plan,
        site: &LocationConf,
        before: &[Arc<Self>],
    ) -> Option<Arc<Self>> {
        let rules = site.breaker.as_deref()?;
        let (server, location) = place(plan, site)?;
        let same = |old: &&Arc<Self>| {
            *old.server == *server && *old.location == *location && old.breaker.plan() == rules
        };
        if let Some(old) = before.iter().find(same) {
            return Some(Arc::clone(old));
        }
        let name = format!("{server} {location}");
        Some(Arc::new(Self {
            server: server.into(),
            location: location.into(),
            breaker: Arc::new(Breaker::new(name.trim(), rules)),
        }))
    }
}

/// Tells how a request went that was let through.
pub(super) fn report(
    pass: CallPermit<'_>,
    answered: &Result<Response<ResponseBody<UpstreamBody>>, ProxyError>,
    now: Millis,
) {
    let outcome = match answered {
        Ok(answer) => pass.outcome(answer.status(), answer.headers(), now),
        Err(ProxyError::Upstream(error)) => CallOutcome::of(error),
        Err(_) => CallOutcome::Cancelled,
    };
    pass.report(outcome, now);
}

/// What people know a site by: its server's name, and its path.
pub(super) fn place<'p>(plan: &'p Plan, site: &LocationConf) -> Option<(&'p str, &'p str)> {
    plan.servers.iter().find_map(|server| {
        let mut locations = server.locations.iter();
        if std::ptr::eq(&server.fallback, site) {
            return Some((&*server.name, ""));
        }
        let location = locations.find(|location| std::ptr::eq(&location.site, site))?;
        Some((&*server.name, &*location.path.text))
    })
}

/// Why this request may not go on, if it may not.
pub(super) fn objection(
    live: &Generation,
    listener: usize,
    exchange: &RequestRecord,
) -> Option<ProxyError> {
    if exchange.head.version == Version::HTTP_2 && !speaks_http2(live, listener, exchange.server) {
        return Some(ProxyError::Http2Off);
    }
    let carrier = live
        .plan
        .listeners
        .get(listener)
        .map(|listener| listener.carrier);
    match (carrier, exchange.peer.tls()) {
        (Some(Carrier::Tls), None) => Some(ProxyError::PlainToTls),
        (_, Some(tls)) => certificate(live, listener, exchange, tls),
        (_, None) => None,
    }
}

/// Whether HTTP/2 reaches a server over a connection of this listener. Connections on which it was begun before a reload
/// turned it off for the whole listener are served to their end.
fn speaks_http2(live: &Generation, listener: usize, server: usize) -> bool {
    let plan = &live.plan;
    let Some(Listener { default_server, .. }) = plan.listeners.get(listener) else {
        return true;
    };
    plan.http2(listener, server) == Http2::On || plan.http2(listener, *default_server) == Http2::Off
}

fn certificate(
    live: &Generation,
    listener: usize,
    exchange: &RequestRecord,
    tls: &TlsInfo,
) -> Option<ProxyError> {
    let verify = exchange.server().tls.as_ref()?.verify_client;
    if verify == VerifyClient::Off {
        return None;
    }
    // Who was not asked for a certificate by the server it named must not reach another one that asks.
    if live.named(listener, tls.server_name.as_deref()) != Some(exchange.server) {
        return Some(ProxyError::Misdirected);
    }
    match (verify, tls.verdict()) {
        (_, Some(CertificateStatus::Good)) => None,
        (VerifyClient::OptionalNoCa, Some(CertificateStatus::Unknown(_))) => None,
        (_, Some(CertificateStatus::Unknown(reason))) => {
            Some(ProxyError::BadCertificate((*reason).into()))
        }
        (_, Some(CertificateStatus::Bad(reason))) => {
            Some(ProxyError::BadCertificate(reason.clone()))
        }
        (VerifyClient::On, None) => Some(ProxyError::NoCertificate),
        (_, None) => None,
    }
}
