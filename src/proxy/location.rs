//! A location, ready to use: its filters, its content, its fallback and its circuit breaker.

use std::sync::Arc;

use http::{Method, StatusCode};

use super::content::{Content, PassOptions, ProxyPass};
use super::context::{RequestContext, Response};
use super::error::{Outcome, ProxyError, ReplySettings, respond};
use super::fallback::Fallback;
use super::filter::{CompileContext, Filters, Flow};
use super::stale_cache::StaleRules;
use crate::config::plan::{self, CostSource, LocationConf, Plan, Variable};
use crate::message::{IncomingBody, LocalReply, RequestRecord, encode_path, headers};
use crate::telemetry::AccessLog;
use crate::upstream::breaker::Breaker;

/// A location, ready to use.
#[derive(Debug)]
pub(super) struct Location {
    pub(super) conf: LocationConf,
    /// Its index among all locations of the plan.
    pub(super) number: usize,
    pub(super) filters: Filters,
    pub(super) content: Content,
    pub(super) fallback: Option<Box<Fallback>>,
    pub(super) breaker: Option<Arc<LocationBreaker>>,
    pub(super) replies: ReplySettings,
    /// Whether variables ask for the headers of the response as the client gets it.
    pub(super) keeps_sent_headers: bool,
}

impl Location {
    pub(super) fn compile(
        conf: &LocationConf,
        number: usize,
        breaker: Option<Arc<LocationBreaker>>,
        context: CompileContext<'_>,
    ) -> Self {
        let access_log = context.resources.access_log.as_ref();
        let keeps_sent_headers = uses(conf, |it| matches!(it, Variable::SentHttp(_)))
            || access_log.is_some_and(AccessLog::needs_sent_headers);
        let keeps_upstream_headers = uses(conf, |it| matches!(it, Variable::UpstreamHttp(_)))
            || access_log.is_some_and(AccessLog::needs_upstream_headers);
        let filters = Filters::compile(conf, context);
        let raw_headers =
            !filters.reads_response() && !keeps_sent_headers && conf.fallback.is_none();
        let stale = StaleRules::compile(context.plan, conf, context.stale_cache);
        let fallback = conf.fallback.as_deref().map(|fallback| {
            let proxy_pass = fallback.proxy_pass.as_ref();
            let pass = proxy_pass.and_then(|proxy_pass| {
                ProxyPass::compile(proxy_pass, conf, context.upstreams, PassOptions::default())
            });
            Box::new(Fallback {
                plan: fallback.clone(),
                proxy_pass: pass,
                stale: stale.clone(),
            })
        });
        let content = match &conf.action {
            plan::Content::ProxyPass(proxy_pass) => {
                let options = PassOptions {
                    breaker: breaker.as_ref().map(|it| Arc::clone(&it.breaker)),
                    stale,
                    has_fallback_upstream: fallback
                        .as_ref()
                        .is_some_and(|it| it.proxy_pass.is_some()),
                    keeps_upstream_headers,
                    raw_headers,
                };
                let pass = ProxyPass::compile(proxy_pass, conf, context.upstreams, options);
                pass.map_or(Content::NotFound, |pass| Content::ProxyPass(Box::new(pass)))
            }
            plan::Content::NotFound => Content::NotFound,
            plan::Content::Return(fixed) => Content::Return(fixed.clone()),
        };
        Self {
            conf: conf.clone(),
            number,
            filters,
            content,
            fallback,
            breaker,
            replies: ReplySettings {
                limit_headers: conf.limit_headers.form,
                raw_headers,
            },
            keeps_sent_headers,
        }
    }

    /// What is checked before the first filter. From here on the location's timeouts hold.
    pub(super) fn check(&self, cx: &RequestContext, unread: Option<&IncomingBody>) -> Flow {
        if cx.lacks_slash {
            return Flow::Respond(Box::new(add_slash(&cx.record)));
        }
        cx.record.connection.state.set_timeouts(&self.conf.client);
        if let Some(incoming) = unread {
            let announced = http_body::Body::size_hint(incoming).lower();
            let max = self.conf.client.max_body_size();
            if max.is_some_and(|max| announced > max) {
                return Flow::Fail(ProxyError::TooLarge);
            }
            if let Err(error) = ProxyError::from_coding(headers::coding(&cx.record.head.headers)) {
                return Flow::Fail(error);
            }
        }
        match cx.record.head.method {
            Method::CONNECT | Method::TRACE => Flow::Fail(ProxyError::Method),
            _ => Flow::Continue,
        }
    }

    /// The outcome, or what the location's fallback has instead.
    pub(super) async fn fall_back(
        &self,
        cx: &mut RequestContext,
        outcome: Outcome,
        unread: &mut Option<IncomingBody>,
    ) -> Outcome {
        let Some(fallback) = &self.fallback else {
            return outcome;
        };
        let own = (&self.filters, &self.content);
        fallback.replace(cx, own, outcome, unread).await
    }
}

/// Whether the speed or the cost of responses depends on a variable like this.
fn uses(conf: &LocationConf, like: impl Fn(&Variable) -> bool) -> bool {
    let mut rules = conf.limit_req.iter().chain(&conf.shadow);
    conf.bandwidth.may_use(&like)
        || rules.any(|rule| match &rule.weight {
            CostSource::After(template) => template.may_use(&like),
            _ => false,
        })
}

/// Redirects a client that left out a location's last slash, as nginx does.
fn add_slash(record: &RequestRecord) -> Response {
    let mut url = encode_path(record.target.path(&record.head));
    url.push('/');
    if let Some(query) = record.head.uri.query() {
        url.push('?');
        url.push_str(query);
    }
    let reply = LocalReply::new(StatusCode::MOVED_PERMANENTLY);
    respond(reply.with_location(url.as_bytes()), record)
}

/// A circuit breaker, and the location it belongs to.
#[derive(Debug)]
pub struct LocationBreaker {
    /// The first name of its server, or nothing.
    pub server: Box<str>,
    /// Its location as it is written, or nothing for paths that no location matches.
    pub location: Box<str>,
    /// The breaker.
    pub breaker: Arc<Breaker>,
}

impl LocationBreaker {
    /// The breaker of a location, if it has one: that of the generation before, where its rules are the same.
    pub(super) fn compile(
        plan: &Plan,
        conf: &LocationConf,
        before: &[Arc<Self>],
    ) -> Option<Arc<Self>> {
        let rules = conf.breaker.as_deref()?;
        let (server, location) = place(plan, conf)?;
        let same = |old: &&Arc<Self>| {
            *old.server == *server && *old.location == *location && old.breaker.plan == *rules
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

/// How a location is shown: its server's name, and its path.
fn place<'p>(plan: &'p Plan, conf: &LocationConf) -> Option<(&'p str, &'p str)> {
    plan.servers.iter().find_map(|server| {
        let mut locations = server.locations.iter();
        if std::ptr::eq(&server.fallback, conf) {
            return Some((&*server.name, ""));
        }
        let location = locations.find(|location| std::ptr::eq(&location.conf, conf))?;
        Some((&*server.name, &*location.path.text))
    })
}
