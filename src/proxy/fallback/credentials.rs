//! Which requests say who their client is.
//!
//! The response to such a request may be for that client alone, whatever its `Cache-Control` says.

use std::collections::HashSet;

use http::HeaderName;
use http::header::{
    ACCEPT, ACCEPT_CHARSET, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CONNECTION, FORWARDED, HOST, ORIGIN,
    REFERER, UPGRADE, USER_AGENT, VIA,
};

use crate::config::plan::{
    Content, LocationConf, Map, MapLookup, Part, Plan, ProxyPass, Template, TlsVariable, Variable,
};
use crate::message::{RequestRecord, vars};

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
            vars::append(other, exchange, &mut value);
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
mod tests {
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
