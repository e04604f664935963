//! `health_check`, of an upstream's servers.
//!
//! How a server is met, inside TLS or not and in which version, is said where requests are sent to it; the check
//! follows the first `proxy_pass` that does.

use http::{HeaderValue, Method};
use regex::bytes::Regex;

use super::Compiler;
use super::names::{RegexCase, bytes_expression};
use crate::config::decode::{Shorthand, Spanned, Text, mistaken};
use crate::config::model;
use crate::config::plan;
use crate::config::plan::{
    CallShare, HealthCheck, HttpCheck, HttpVersion, LocationConf, ProxyPass, Server,
    UpstreamAddress, UpstreamServer,
};
use crate::config::span::Span;

impl Compiler<'_> {
    /// What a `health_check` says of the upstream called `name`.
    pub(super) fn health_check(
        &mut self,
        given: &model::HealthCheck,
        name: &str,
        servers: &[UpstreamServer],
    ) -> HealthCheck {
        let word = given
            .r#type
            .value()
            .map_or(model::CheckKind::Http, |word| word.0);
        self.refuse_strangers(given, word);
        if let Some(port) = given.port.get()
            && servers
                .iter()
                .any(|server| matches!(server.address, UpstreamAddress::Unix(_)))
        {
            self.complain(port.span, "a unix socket has no other `port`");
        }
        let kind = match word {
            model::CheckKind::Grpc => plan::CheckKind::Grpc {
                service: given.service.value().map_or("", |text| &text.text).into(),
                host: self.check_host(given.host.get(), name),
            },
            model::CheckKind::Http => plan::CheckKind::Http(self.http_check(given, name)),
            model::CheckKind::Tcp => plan::CheckKind::Tcp,
        };
        HealthCheck {
            kind,
            interval: self.some_time(given.interval.get(), 5),
            jitter: given.jitter.value().map_or(CallShare(100), |share| share.0),
            timeout: self.some_time(given.timeout.get(), 1),
            rise: given.rise.value().map_or(2, |checks| checks.0),
            fall: given.fall.value().map_or(3, |checks| checks.0),
            initial: given.initial.value().map(|word| word.0).unwrap_or_default(),
            port: given.port.value().map(|port| port.0),
            tls: None,
            version: HttpVersion::One,
        }
    }

    /// Fills in how the servers to be checked are met, once it is known who sends requests to them.
    pub(super) fn meet_checked(&mut self, servers: &[Server]) {
        let config = self.config;
        let named = config.upstreams.value();
        for (index, (_, group)) in named
            .map_or(&[][..], |named| &named.entries)
            .iter()
            .enumerate()
        {
            let Some(given) = group.value.health_check.get() else {
                continue;
            };
            let forwards: Vec<_> = forwards(servers)
                .filter(|to| to.upstream == index)
                .collect();
            if let Some(check) = self
                .upstreams
                .get_mut(index)
                .and_then(|up| up.health_check.take())
            {
                let check = self.met(check, &given.value.0, given.span, &forwards);
                self.upstreams[index].health_check = Some(check);
            }
        }
    }

    fn met(
        &mut self,
        mut check: HealthCheck,
        given: &model::HealthCheck,
        span: Span,
        forwards: &[&ProxyPass],
    ) -> HealthCheck {
        let secured = match given.tls.value() {
            Some(flag) => flag.0,
            None => forwards
                .first()
                .is_some_and(|forward| forward.tls.is_some()),
        };
        let is_call = matches!(check.kind, plan::CheckKind::Grpc { .. });
        check.version = match forwards.first() {
            _ if is_call => HttpVersion::Two,
            Some(forward) => forward.version,
            None => HttpVersion::One,
        };
        if secured && !matches!(check.kind, plan::CheckKind::Tcp) {
            let way = forwards
                .iter()
                .find(|to| to.tls.is_some() && (!is_call || to.version == HttpVersion::Two))
                .or_else(|| forwards.iter().find(|to| to.tls.is_some() && !is_call));
            match way {
                Some(way) => (check.tls, check.version) = (way.tls, way.version),
                None => self.complain_with(
                    given.tls.get().map_or(span, |flag| flag.span),
                    "a check inside TLS, and nobody says how these servers are met",
                    match is_call {
                        true => "a `grpc_pass: grpcs://…` that uses the upstream says it",
                        false => "a `proxy_pass: https://…` that uses the upstream says it",
                    },
                ),
            }
        }
        check
    }

    /// Complains of what means nothing to this type of check.
    fn refuse_strangers(&mut self, given: &model::HealthCheck, word: model::CheckKind) {
        let (http, grpc) = (
            word == model::CheckKind::Http,
            word == model::CheckKind::Grpc,
        );
        let keys = [
            ("path", given.path.key(), http),
            ("method", given.method.key(), http),
            ("expect", given.expect.key(), http),
            ("host", given.host.key(), http || grpc),
            ("service", given.service.key(), grpc),
        ];
        for (key, span, fits) in keys {
            if let Some(span) = span.filter(|_| !fits) {
                let hint = match key {
                    "service" => "it belongs to `type: grpc`",
                    _ => "it belongs to `type: http`",
                };
                let sentence = format!("`{key}` means nothing to this type of check");
                self.complain_with(span, sentence, hint);
            }
        }
    }

    fn http_check(&mut self, given: &model::HealthCheck, name: &str) -> HttpCheck {
        let path = given.path.get();
        if let Some(path) = path
            && !(path.value.text.starts_with('/')
                && path.value.text.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            let sentence = format!("`{}` is no path to ask for", path.value.text);
            let hint = "a path begins with `/` and is percent-encoded";
            self.complain_with(path.span, sentence, hint);
        }
        let method = self.check_method(given.method.get());
        let expect = given.expect.value().map(|Shorthand(expect)| expect);
        let body = expect.and_then(|expect| expect.body.get());
        if let Some(body) = body.filter(|_| method == Method::HEAD) {
            self.complain(body.span, "an answer to HEAD has no body");
        }
        let listed = expect.and_then(|expect| expect.status.value());
        HttpCheck {
            method,
            path: path.map_or("/", |path| &path.value.text).into(),
            host: self.check_host(given.host.get(), name),
            statuses: match listed {
                Some(list) => list.0.iter().map(|range| range.value.0.clone()).collect(),
                None => vec![200..=399],
            },
            body: body.and_then(|body| self.check_body(body)),
        }
    }

    fn check_method(&mut self, given: Option<&Spanned<Text>>) -> Method {
        let Some(given) = given else {
            return Method::GET;
        };
        let text = given.value.text.as_str();
        match Method::from_bytes(text.as_bytes()) {
            Ok(method)
                if text.bytes().all(|b| b.is_ascii_uppercase()) && method != Method::CONNECT =>
            {
                method
            }
            _ => {
                let sentence = format!("`{text}` is no method for a check");
                self.complain_with(given.span, sentence, "GET, HEAD and OPTIONS are");
                Method::GET
            }
        }
    }

    fn check_host(&mut self, given: Option<&Spanned<Text>>, name: &str) -> HeaderValue {
        let host = given.map_or(name, |given| &given.value.text);
        let sound = http::uri::Authority::try_from(host).is_ok();
        match HeaderValue::from_str(host) {
            Ok(value) if sound => value,
            _ => {
                if let Some(given) = given {
                    self.complain(given.span, format!("`{host}` is no host"));
                }
                HeaderValue::from_static("localhost")
            }
        }
    }

    fn check_body(&mut self, given: &Spanned<Text>) -> Option<Regex> {
        let text = given.value.text.as_str();
        let expression = if let Some(expression) = text.strip_prefix("~*") {
            bytes_expression(expression.trim_start(), RegexCase::Ignored)
        } else if let Some(expression) = text.strip_prefix('~') {
            bytes_expression(expression.trim_start(), RegexCase::Matters)
        } else {
            bytes_expression(&regex::escape(text), RegexCase::Matters)
        };
        expression
            .map_err(|mistake| self.report.add(mistaken(given.span, mistake)))
            .ok()
    }
}

/// Every way requests are sent on.
fn forwards(servers: &[Server]) -> impl Iterator<Item = &ProxyPass> {
    let sites = servers.iter().flat_map(|server| {
        let locations = server.locations.iter().map(|location| &location.site);
        locations.chain([&server.fallback])
    });
    sites.flat_map(LocationConf::forwards)
}
