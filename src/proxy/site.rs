//! What a location means on the road: its limits, who may come in, and where its answers come from.

use std::sync::Arc;

use http::{HeaderValue, Response, StatusCode, Version, header};

use super::failure::{ProxyError, respond};
use super::fallback::{DegradeGroup, Fallback, StaleCache};
use super::guard::LocationBreaker;
use super::visit::RequestContext;
use super::wording;
use crate::clock::MinRate;
use crate::config::plan::{
    self, Content, CostSource, DegradeMode, HttpVersion, ProxyPass, Return, ReturnBody, Variable,
};
use crate::limits::{Limits, Zones};
use crate::message::answer::LocalReply;
use crate::message::headers::{self, MaxForwards};
use crate::message::target::encode_path;
use crate::message::{
    ClientAddr, ClientConnection, IncomingBody, RequestBody, RequestRecord, ResponseBody, grpc,
    vars,
};
use crate::upstream::{Upstream, UpstreamBody};

/// A location, ready to use.
#[derive(Debug)]
pub(super) struct Location {
    pub(super) plan: plan::LocationConf,
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
        plan: &plan::Plan,
        site: &plan::LocationConf,
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
        peer.line.set_timeouts(&self.plan.timeouts);
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
            let timeouts = &self.plan.timeouts;
            // A call may go on for as long as both sides like, and say little. Only where calls are what
            // is expected: anybody can claim to make one.
            let head = &visit.exchange.head;
            let is_call = forward.version == HttpVersion::Two
                && head.version == Version::HTTP_2
                && grpc::is_call(head);
            let least = MinRate(if is_call { 0 } else { timeouts.body_min_rate });
            RequestBody::new(incoming, self.plan.max_body, timeouts.body, least)
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
fn uses(site: &plan::LocationConf, like: impl Fn(&Variable) -> bool) -> bool {
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
            vars::render(template, exchange, &mut url);
            page.with_location(&url)
        }
        ReturnBody::Page => page,
        ReturnBody::Text { text, content_type } => {
            page.with_text(wording::render(text, exchange), content_type)
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
