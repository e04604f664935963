//! `overrides` of a zone: whom each of them names, and that there can be somebody of that name.
//!
//! Warnings of zones in which a client that has a network of IPv6 has as many keys as it likes.

use std::net::IpAddr;

use super::limits::{self, OnEmptyKey, Override, OverrideKey, entries};
use super::location::LocationConf;
use crate::algorithm::AlgorithmParams;
use crate::config::compile::Compiler;
use crate::config::decode::value::NamedMap;
use crate::config::decode::{Field, Spanned, units};
use crate::config::maps::Map;
use crate::config::plan::{Plan, SocketAddress};
use crate::config::source::Span;
use crate::config::template::{Part, Template, Variable};

/// What the keys of a zone are made from.
#[derive(Debug, Clone, Copy)]
pub(in crate::config) struct KeyVariables<'p> {
    pub(in crate::config) template: &'p Template,
    pub(in crate::config) maps: &'p [Map],
}

impl Compiler<'_> {
    /// The `overrides` of a zone that counts like this; `keys` where they were understood.
    pub(in crate::config) fn overrides(
        &mut self,
        named: &Field<NamedMap<limits::raw::Override>>,
        zone: AlgorithmParams,
        keys: Option<KeyVariables<'_>>,
    ) -> Vec<Override> {
        let mut overrides: Vec<Override> = Vec::new();
        for (key, own) in entries(named) {
            if own
                .value
                .rate
                .key()
                .or_else(|| own.value.limit.key())
                .or_else(|| own.value.burst.key())
                .is_none()
            {
                self.complain_with(
                    key.span,
                    format!("`{}` has nothing of its own", key.value),
                    "give it a `rate`, a `limit` or a `burst`",
                );
            }
            let whom = self.whom(key);
            if let (OverrideKey::Text(text), Some(keys)) = (&whom, keys) {
                self.names_a_key(key, text, keys);
            }
            if overrides.iter().any(|known| known.key == whom) {
                self.complain(key.span, format!("`{}` is given twice", key.value));
            }
            overrides.push(Override {
                key: whom,
                own: self.own_numbers(&own.value, zone),
            });
        }
        overrides
    }

    fn whom(&mut self, key: &Spanned<String>) -> OverrideKey {
        let Ok((network, loose)) = units::network(&key.value) else {
            return OverrideKey::Text(key.value.as_str().into());
        };
        if let Some(loose) = loose {
            let sentence = format!("low address bits of `{}` are meaningless", key.value);
            self.warn(
                key.span,
                sentence,
                format!("it is read as `{}`", loose.meant),
            );
        }
        if network.prefix_len() == network.max_prefix_len() && network.addr().is_unspecified() {
            self.complain_with(
                key.span,
                format!("no client has the address `{}`", key.value),
                format!("write `{}/0` for all of them", network.addr()),
            );
        }
        OverrideKey::Network(network)
    }

    /// Complains of a text that no key of the zone can be.
    fn names_a_key(&mut self, key: &Spanned<String>, text: &str, keys: KeyVariables<'_>) {
        if text.is_empty() {
            self.complain_with(
                key.span,
                "an empty text names no key",
                "`on_empty_key` says what becomes of requests without one",
            );
            return;
        }
        if keys.can_be(text, keys.template) {
            return;
        }
        let hint = match keys.template.as_variable() {
            Some(Variable::BinaryRemoteAddr | Variable::RemoteAddr) => {
                "the keys of this zone are addresses: expected an address as in `192.0.2.7`, or a network as in `10.0.0.0/8`"
            }
            Some(Variable::Host) => "`$host` is in lower case and has no port",
            _ => "expected the whole text of a key, an address or a network",
        };
        let sentence = format!("`{text}` never applies: no key of this zone is this text");
        self.complain_with(key.span, sentence, hint);
    }
}

impl KeyVariables<'_> {
    /// Whether a template may give this text.
    fn can_be(self, text: &str, template: &Template) -> bool {
        let variables = template.parts.iter();
        let variables = variables.filter(|part| matches!(part, Part::Variable(_)));
        // Every way to divide the text is tried. Nobody writes keys of so many parts that this matters.
        let ways = text
            .len()
            .saturating_pow(u32::try_from(variables.count()).unwrap_or(u32::MAX));
        ways > MOST_WAYS || self.can_begin(text, &template.parts)
    }

    fn can_begin(self, text: &str, parts: &[Part]) -> bool {
        match parts {
            [] => text.is_empty(),
            [Part::Text(literal), rest @ ..] => text
                .strip_prefix(&**literal)
                .is_some_and(|behind| self.can_begin(behind, rest)),
            [Part::Variable(last)] => self.can_say(last, text),
            [Part::Variable(first), rest @ ..] => {
                let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
                let mut cuts = ends.map(|at| text.split_at(at));
                cuts.any(|(front, behind)| {
                    self.can_say(first, front) && self.can_begin(behind, rest)
                })
            }
        }
    }

    /// Whether a variable may have this value. In doubt it may.
    fn can_say(self, variable: &Variable, text: &str) -> bool {
        let is_trimmed = || text.trim_ascii() == text && !text.contains(|c: char| c.is_control());
        match variable {
            // Its bytes, which are no text.
            Variable::BinaryRemoteAddr => text == UNIX,
            Variable::RemoteAddr => {
                let address = text.parse::<IpAddr>();
                text == UNIX || address.is_ok_and(|address| address.to_string() == text)
            }
            Variable::Cookie(_) | Variable::Http(_) => is_trimmed(),
            Variable::Host => !text.contains(|c: char| c.is_ascii_uppercase()) && is_trimmed(),
            Variable::Map(index) => self.maps.get(*index).is_none_or(|map| {
                let mut outcomes = map.outcomes().into_iter();
                outcomes.any(|outcome| self.can_be(text, outcome))
            }),
            Variable::Scheme => ["http", "https"].contains(&text),
            _ => true,
        }
    }
}

/// What stands for the address of clients that have none.
const UNIX: &str = "unix:";

/// How many ways to divide a text are tried.
const MOST_WAYS: usize = 1_000_000;

impl Compiler<'_> {
    /// Warns of zones by address without an `ipv6_prefix` where clients of IPv6 are served.
    pub(in crate::config) fn warn_of_ipv6(&mut self, plan: &Plan) {
        if self.report.errors() > 0 {
            return;
        }
        let config = self.config;
        let zones = entries(&config.limit_req_zones).iter().zip(&plan.req_zones);
        for (index, ((_, model), zone)) in zones.enumerate() {
            let model = &model.value;
            let spread = model.ipv6_prefix.key().is_none()
                && is_by_address(&zone.key, zone.on_empty_key, &plan.maps);
            let uses = |conf: &LocationConf| {
                let mut rules = conf.limit_req.iter().chain(&conf.shadow);
                rules.any(|rule| rule.zone == index)
            };
            if let (true, Some(key)) = (spread, model.key.get()) {
                self.warn_of_many_keys(key.span, &zone.name, way_in(plan, uses));
            }
        }
        let zones = entries(&config.limit_conn_zones)
            .iter()
            .zip(&plan.conn_zones);
        for (index, ((_, model), zone)) in zones.enumerate() {
            let model = &model.value;
            let spread = model.ipv6_prefix.key().is_none()
                && is_by_address(&zone.key, zone.on_empty_key, &plan.maps);
            let uses = |conf: &LocationConf| conf.limit_conn.iter().any(|rule| rule.zone == index);
            if let (true, Some(key)) = (spread, model.key.get()) {
                self.warn_of_many_keys(key.span, &zone.name, way_in(plan, uses));
            }
        }
    }

    fn warn_of_many_keys(&mut self, key: Span, zone: &str, way_in: Option<String>) {
        if let Some(way_in) = way_in {
            self.warn(
                key,
                format!("one client may have 2^64 keys in `{zone}`: IPv6 comes in by {way_in}"),
                "add `ipv6_prefix: 64`, or `ipv6_prefix: 128` to limit each address by itself",
            );
        }
    }
}

/// Whether keys may be addresses, or have one in them.
fn is_by_address(key: &Template, on_empty: OnEmptyKey, maps: &[Map]) -> bool {
    on_empty == OnEmptyKey::Address || has_address(key, maps)
}

fn has_address(template: &Template, maps: &[Map]) -> bool {
    template.parts.iter().any(|part| match part {
        Part::Variable(Variable::BinaryRemoteAddr | Variable::RemoteAddr) => true,
        Part::Variable(Variable::Map(index)) => maps.get(*index).is_some_and(|map| {
            let mut outcomes = map.outcomes().into_iter();
            outcomes.any(|outcome| has_address(outcome, maps))
        }),
        Part::Text(_) | Part::Variable(_) => false,
    })
}

/// How clients of IPv6 get to a location like this, if they do.
fn way_in(plan: &Plan, uses: impl Fn(&LocationConf) -> bool) -> Option<String> {
    let servers = plan.servers.iter().enumerate();
    let location_confs = servers.flat_map(|(index, server)| {
        let locations = server.locations.iter().map(|location| &location.conf);
        let location_confs = locations.chain([&server.fallback]);
        location_confs.map(move |conf| (index, server, conf))
    });
    let mut used = location_confs.filter(|(_, _, conf)| uses(conf));
    used.find_map(|(index, server, conf)| {
        let mut listeners = plan.listeners.iter();
        let listener = listeners
            .find(|listener| listener.servers.contains(&index) && takes_ipv6(&listener.address));
        // Whoever is in front may have clients of either kind.
        let named = server.real_ip.is_some() || conf.real_ip.is_some();
        listener
            .map(|listener| format!("`{}`", listener.address))
            .or_else(|| named.then(|| "`real_ip`".to_owned()))
    })
}

fn takes_ipv6(address: &SocketAddress) -> bool {
    match address {
        SocketAddress::Tcp(address) => {
            let ip = address.ip().to_canonical();
            ip.is_ipv6() && !ip.is_loopback()
        }
        SocketAddress::Unix(_) => false,
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn can_be(parts: &[Part], text: &str) -> bool {
        let maps = [Map {
            name: "tier".into(),
            source: Template::default(),
            lookup: crate::config::maps::MapLookup::Geo(crate::config::maps::Geo {
                values: vec![Template::literal("gold")],
                ..Default::default()
            }),
            default: Template::variable(Variable::BinaryRemoteAddr),
        }];
        let template = Template {
            parts: parts.into(),
        };
        let keys = KeyVariables {
            template: &template,
            maps: &maps,
        };
        keys.can_be(text, &template)
    }

    #[test]
    fn a_text_is_held_against_everything_a_key_may_be() {
        let variable = Part::Variable;
        let text = |text: &str| Part::Text(text.into());
        let name = || variable(Variable::ServerName);
        let address = || variable(Variable::RemoteAddr);
        let tier = || variable(Variable::Map(0));
        for (parts, possible, impossible) in [
            (vec![name()], &["a", "10.0.0.0/33"][..], &[][..]),
            (
                vec![address()],
                &["unix:"],
                &["gold", "10.0.0.0/33", "2001:DB8::1"],
            ),
            (vec![tier()], &["gold"], &["silver", "127.0.0.1"]),
            (
                vec![name(), text("|"), address()],
                &["front|127.0.0.1", "a|b|::1"],
                &["front", "front|", "front|127.0.0.1 ", "front|127.0.0.1|"],
            ),
            (
                vec![text("t:"), tier(), variable(Variable::Scheme)],
                &["t:goldhttp", "t:goldhttps"],
                &["goldhttp", "t:gold", "t:goldftp"],
            ),
            (
                vec![variable(Variable::Host)],
                &["a.example"],
                &["A.example"],
            ),
        ] {
            for candidate in possible {
                assert!(can_be(&parts, candidate), "{candidate} of {parts:?}");
            }
            for candidate in impossible {
                assert!(!can_be(&parts, candidate), "{candidate} of {parts:?}");
            }
        }
    }
}
