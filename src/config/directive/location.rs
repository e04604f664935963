//! A location: what holds there after inheritance, and what is done with its requests.

use std::sync::Arc;

use super::client::{AccessRules, RealIp};
use super::content::{self, FallbackTriggers, Return, Stale, raw};
use super::health::Breaker;
use super::limits::{self, ConnRule, LimitHeaders, ReqRule};
use super::proxy_pass::{LocationPool, ProxyPass};
use super::settings::{ClientSettings, Inherited, LimitRate, LimitSettings, Settings};
use crate::config::compile::{Compiler, PathRule};
use crate::config::decode::value::{HttpVersion, OrOff, Text};
use crate::config::decode::{Field, Spanned};
use crate::config::report::Report;

/// What holds at one location.
#[derive(Debug, Clone)]
pub struct LocationConf {
    /// `limit_req`, in order.
    pub limit_req: Vec<ReqRule>,
    /// `shadow`: proposed rules that are not enforced, in order.
    pub shadow: Vec<ReqRule>,
    /// `limit_conn`, in order.
    pub limit_conn: Vec<ConnRule>,
    /// What holds for limits whose rules do not give it.
    pub limits: LimitSettings,
    /// `limit_headers`
    pub limit_headers: LimitHeaders,
    /// `allow` and `deny`.
    pub access: AccessRules,
    /// `real_ip`, where the location has one of its own: used where the server's names no client.
    pub real_ip: Option<RealIp>,
    /// What holds towards the client.
    pub client: ClientSettings,
    /// `breaker`
    pub breaker: Option<Box<Breaker>>,
    /// `fallback`
    pub fallback: Option<Box<Fallback>>,
    /// `degrade_group`
    pub degrade_group: Option<usize>,
    /// `limit_rate` and `limit_rate_after`
    pub bandwidth: LimitRate,
    /// What is done with a request that passed.
    pub action: Content,
}

impl LocationConf {
    /// Every upstream that requests may be sent to here, that of the fallback last.
    pub fn proxy_passes(&self) -> impl Iterator<Item = &ProxyPass> {
        let first = match &self.action {
            Content::ProxyPass(proxy_pass) => Some(&**proxy_pass),
            Content::NotFound | Content::Return(_) => None,
        };
        let fallback = self.fallback.as_ref();
        let second = fallback.and_then(|fallback| fallback.proxy_pass.as_deref());
        first.into_iter().chain(second)
    }
}

/// `fallback`: the first of these that is available is used, in this order.
#[derive(Debug, Clone)]
pub struct Fallback {
    /// `on`: when.
    pub on: FallbackTriggers,
    /// `proxy_pass`: another upstream.
    pub proxy_pass: Option<Arc<ProxyPass>>,
    /// `stale`: the last good response.
    pub stale: Option<Stale>,
    /// `return`: a fixed response.
    pub answer: Option<Return>,
}

/// What is done with a request.
#[derive(Debug, Clone)]
pub enum Content {
    /// Sent to an upstream.
    ProxyPass(Arc<ProxyPass>),
    /// Nothing is configured here: 404.
    NotFound,
    /// A response without an upstream.
    Return(Return),
}

/// What one level does with its requests.
#[derive(Clone, Copy)]
pub(crate) struct ContentDirectives<'a> {
    /// `proxy_pass`
    pub(crate) proxy_pass: &'a Field<Text>,
    /// `grpc_pass`
    pub(crate) grpc_pass: &'a Field<Text>,
    /// `return`
    pub(crate) r#return: &'a Field<raw::Return>,
}

impl ContentDirectives<'_> {
    /// Whether one of them is given.
    pub(crate) fn is_given(self) -> bool {
        let passes = self.proxy_pass.key().or_else(|| self.grpc_pass.key());
        passes.or_else(|| self.r#return.key()).is_some()
    }
}

impl LocationConf {
    /// The location under this path, `None` for a server's own.
    pub(crate) fn compile(
        inherited: Inherited,
        content: ContentDirectives<'_>,
        path: Option<&PathRule>,
        pool: &mut LocationPool<'_>,
        compiler: &mut Compiler<'_>,
    ) -> Self {
        let Settings {
            limits,
            client,
            proxy,
            ..
        } = &inherited.settings;
        let breaker = proxy.breaker.on();
        Self {
            limit_req: limits::req_rules(&limits.limit_req, pool.req_zones, compiler),
            shadow: limits::req_rules(&limits.shadow, pool.req_zones, compiler),
            limit_conn: limits::conn_rules(&limits.limit_conn, compiler),
            limits: LimitSettings::new(limits, compiler.report),
            limit_headers: LimitHeaders::compile(&limits.limit_headers, compiler.report),
            real_ip: None,
            client: ClientSettings::new(client, compiler.report),
            breaker: breaker.map(|given| Box::new(Breaker::compile(given, compiler.report))),
            fallback: Fallback::compile(&inherited, path, pool, compiler).map(Box::new),
            degrade_group: content::degrade_group(&proxy.degrade_group, compiler),
            bandwidth: LimitRate::compile(client, compiler),
            action: Content::compile(content, path, &inherited, pool, compiler),
            access: inherited.access,
        }
    }

    /// Warns of settings for requests that are sent to an upstream, where none are.
    pub(crate) fn warn_of_unused(&self, own: &Settings, report: &mut Report) {
        let Content::Return(response) = &self.action else {
            return;
        };
        let hint = "requests get a response here; it is for those that `proxy_pass` sends on";
        if let Some(key) = own.proxy.breaker.key().filter(|_| self.breaker.is_some()) {
            report.warn(key, "this `breaker` has nothing to count", hint);
        }
        let limited = !self.limit_req.is_empty() || !self.limit_conn.is_empty();
        let is_used = |fallback: &Fallback| {
            let mut statuses = fallback.on.statuses.iter();
            self.degrade_group.is_some()
                || (fallback.on.limited && limited)
                || statuses.any(|status| status.as_u16() == response.status)
        };
        if let (Some(key), Some(fallback)) = (own.proxy.fallback.key(), self.fallback.as_deref())
            && !is_used(fallback)
        {
            report.warn(key, "this `fallback` is never used", hint);
        }
    }
}

impl Fallback {
    /// The `fallback` of a location under this path.
    fn compile(
        inherited: &Inherited,
        path: Option<&PathRule>,
        pool: &mut LocationPool<'_>,
        compiler: &mut Compiler<'_>,
    ) -> Option<Self> {
        let Spanned { value, span } = inherited.settings.proxy.fallback.get()?;
        let OrOff::On(given) = value else {
            return None;
        };
        let keys = [
            given.proxy_pass.key(),
            given.stale.key(),
            given.r#return.key(),
        ];
        if keys.iter().all(Option::is_none) {
            let hint = "give one or more of `proxy_pass`, `stale` and `return`";
            compiler
                .report
                .error_with(*span, "a fallback to nothing", hint);
        }
        let pass = given.proxy_pass.get();
        let proxy_pass = pass.and_then(|pass| {
            ProxyPass::compile(pass, HttpVersion::One, path, inherited, pool, compiler)
        });
        let stale = given.stale.record();
        let response = given.r#return.get();
        Some(Self {
            on: FallbackTriggers::compile(given, compiler.report),
            proxy_pass: proxy_pass.map(Arc::new),
            stale: stale.map(|stale| Stale::compile(stale, compiler)),
            answer: response.and_then(|response| Return::compile(response, compiler)),
        })
    }
}

impl Content {
    fn compile(
        given: ContentDirectives<'_>,
        path: Option<&PathRule>,
        inherited: &Inherited,
        pool: &mut LocationPool<'_>,
        compiler: &mut Compiler<'_>,
    ) -> Self {
        let pass = given.proxy_pass.get().cloned();
        let pass = pass.map(|pass| (pass, HttpVersion::One));
        let grpc = given.grpc_pass.get();
        let grpc_pass = grpc.and_then(|grpc| grpc_pass(grpc, compiler.report));
        if let (Some(_), Some(grpc)) = (&pass, grpc) {
            let sentence = "`proxy_pass` and `grpc_pass` exclude each other";
            compiler.report.error(grpc.span, sentence);
        }
        let content = match (pass.or(grpc_pass), given.r#return.get()) {
            (Some(_), Some(response)) => {
                let sentence = "`proxy_pass` and `return` exclude each other";
                let hint = "a request is either sent on or gets a response here";
                compiler.report.error_with(response.span, sentence, hint);
                None
            }
            (Some((pass, version)), None) => {
                ProxyPass::compile(&pass, version, path, inherited, pool, compiler)
                    .map(|proxy_pass| Self::ProxyPass(Arc::new(proxy_pass)))
            }
            (None, Some(response)) => Return::compile(response, compiler).map(Self::Return),
            (None, None) => None,
        };
        content.unwrap_or(Self::NotFound)
    }
}

/// `grpc_pass` as the `proxy_pass` it stands for.
fn grpc_pass(pass: &Spanned<Text>, report: &mut Report) -> Option<(Spanned<Text>, HttpVersion)> {
    let mut pass = pass.clone();
    if let Some((scheme, rest)) = pass.value.text.split_once("://") {
        let plain = match scheme {
            "grpc" => "http",
            "grpcs" => "https",
            scheme => {
                let sentence = format!("`{scheme}://` is not a scheme of `grpc_pass`");
                report.error_with(pass.span, sentence, "expected `grpc://` or `grpcs://`");
                return None;
            }
        };
        pass.value.text = format!("{plain}://{rest}");
    }
    Some((pass, HttpVersion::Two))
}
