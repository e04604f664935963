//! What a location means on the road: its limits, who may come in, and where its answers come from.

use std::sync::Arc;

use http::{Response, StatusCode};

use super::failure::{Failure, respond};
use super::guard::Guard;
use crate::config::plan::{self, Action, Return, ReturnBody, Variable, Weight};
use crate::limits::{Limits, Zones};
use crate::message::answer::Answer;
use crate::message::target::encode_path;
use crate::message::{Body, Client, Exchange, Peer, vars};
use crate::upstream::{Download, Upstream};

/// A location, ready to use.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) plan: plan::Site,
    pub(super) limits: Limits,
    pub(super) upstream: Option<Arc<Upstream>>,
    pub(super) guard: Option<Arc<Guard>>,
    /// Whether something here asks for the answer's header fields.
    pub(super) keeps_sent_headers: bool,
    /// Whether something here asks for those of the upstream's answer.
    pub(super) keeps_upstream_headers: bool,
}

impl Site {
    pub(super) fn build(
        plan: &plan::Plan,
        site: &plan::Site,
        zones: &Zones,
        upstreams: &[Arc<Upstream>],
    ) -> Self {
        let upstream = match &site.action {
            Action::Forward(forward) => upstreams.get(forward.upstream).cloned(),
            Action::NotFound | Action::Return(_) => None,
        };
        Self {
            limits: Limits::compile(site, zones),
            upstream,
            guard: Guard::build(plan, site),
            keeps_sent_headers: uses(site, |it| matches!(it, Variable::SentHttp(_))),
            keeps_upstream_headers: uses(site, |it| matches!(it, Variable::UpstreamHttp(_))),
            plan: site.clone(),
        }
    }

    /// Puts this location's timeouts in force on the client's connection.
    pub(super) fn apply_timeouts(&self, peer: &Peer) {
        peer.line.set_timeouts(&self.plan.timeouts);
    }

    /// Whether `allow` and `deny` let this client in.
    pub(super) fn admits(&self, client: &Client) -> bool {
        let access = &self.plan.access;
        access
            .networks
            .iter()
            .find(|(network, _)| network.contains(client.ip()))
            .map_or(!access.refuse_others, |(_, allowed)| *allowed)
    }
}

/// Whether what is said here of an answer's speed or cost depends on a variable like this.
fn uses(site: &plan::Site, like: impl Fn(&Variable) -> bool) -> bool {
    let mut rules = site.limit_req.iter().chain(&site.shadow);
    site.bandwidth.may_use(&like)
        || rules.any(|rule| match &rule.weight {
            Weight::After(template) => template.may_use(&like),
            _ => false,
        })
}

/// Answers a `return`.
pub(super) fn returned(
    answer: &Return,
    exchange: &Exchange,
) -> Result<Response<Body<Download>>, Failure> {
    let Ok(status) = StatusCode::from_u16(answer.status) else {
        return Err(Failure::NotFound);
    };
    if answer.status == NO_ANSWER {
        return Err(Failure::NoAnswer);
    }
    let rendered = |template: &plan::Template| {
        let mut text = Vec::new();
        vars::render(template, exchange, &mut text);
        text
    };
    let page = Answer::new(status);
    let page = match &answer.body {
        ReturnBody::Location(url) => page.with_location(&rendered(url)),
        ReturnBody::Page => page,
        ReturnBody::Text { text, content_type } => page.with_text(rendered(text), content_type),
    };
    Ok(respond(page, exchange))
}

/// Sends a client that left out a location's last slash to where it meant to go, as nginx does.
pub(super) fn slash_added(exchange: &Exchange) -> Response<Body<Download>> {
    let mut url = encode_path(exchange.target.path(&exchange.head));
    url.push('/');
    if let Some(query) = exchange.head.uri.query() {
        url.push('?');
        url.push_str(query);
    }
    let answer = Answer::new(StatusCode::MOVED_PERMANENTLY);
    respond(answer.with_location(url.as_bytes()), exchange)
}

/// nginx's status that closes the connection without an answer.
pub(super) const NO_ANSWER: u16 = plan::Sanction::DROP;
