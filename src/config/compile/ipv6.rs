//! Warnings of zones in which a client that has a network of IPv6 has as many keys as it likes.

use super::Compiler;
use super::limits::entries;
use crate::config::plan::{
    LocationConf, Map, OnEmptyKey, Part, Plan, SocketAddress, Template, Variable,
};
use crate::config::span::Span;

impl Compiler<'_> {
    /// Warns of zones by address without an `ipv6_prefix` where clients of IPv6 are served.
    pub(super) fn warn_of_ipv6(&mut self, plan: &Plan) {
        if self.report.errors() > 0 {
            return;
        }
        let config = self.config;
        let zones = entries(&config.limit_req_zones).iter().zip(&plan.req_zones);
        for (index, ((_, model), zone)) in zones.enumerate() {
            let model = &model.value;
            let spread = model.ipv6_prefix.key().is_none()
                && is_by_address(&zone.key, zone.on_empty_key, &plan.maps);
            let uses = |site: &LocationConf| {
                let mut rules = site.limit_req.iter().chain(&site.shadow);
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
            let uses = |site: &LocationConf| site.limit_conn.iter().any(|rule| rule.zone == index);
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
    let sites = servers.flat_map(|(index, server)| {
        let locations = server.locations.iter().map(|location| &location.site);
        let sites = locations.chain([&server.fallback]);
        sites.map(move |site| (index, server, site))
    });
    let mut used = sites.filter(|(_, _, site)| uses(site));
    used.find_map(|(index, server, site)| {
        let mut listeners = plan.listeners.iter();
        let listener = listeners
            .find(|listener| listener.servers.contains(&index) && takes_ipv6(&listener.address));
        // Whoever is in front may have clients of either kind.
        let named = server.real_ip.is_some() || site.real_ip.is_some();
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
