//! Checks across directives: credentials that are hidden, health checks that follow `proxy_pass`, and warnings of what is
//! never used, most often because a name was changed in one place only.

use super::compile::{Compiler, NameTable, Resolved};
use super::decode::units::SocketAddress;
use super::decode::value::{HttpVersion, NamedMap, Text};
use super::decode::{Field, Spanned};
use super::directive::health::raw::HealthCheck;
use super::directive::settings::Settings;
use super::directive::upstream;
use super::directive::zones::raw::ZoneDirectives;
use super::maps::raw::MapDirective;
use super::plan::{
    self, CheckKind, LocationConf, Map, OnEmptyKey, Part, Plan, ProxyPass, Server, Template,
    Upstream, Variable,
};
use super::process::raw::Config;
use super::report::Report;
use super::secret::{is_credential, is_variable};
use super::source::Span;
use super::template::{self, template_names};

/// The longest chain of maps that is followed; cycles are reported elsewhere.
const MAX_MAPS: usize = 8;

/// Hides what is compared with credentials, or becomes one.
///
/// The keys of a map of `$http_authorization` are as good as the passwords in them, and so are the overrides of a zone
/// by `$http_x_api_key`.
pub(super) fn hide_credentials(config: &Config, compiler: &mut Compiler<'_>) {
    let maps = CredentialMaps {
        names: &compiler.maps,
        entries: config.maps.entries(),
    };
    let report = &mut *compiler.report;
    for (_, map) in config.maps.entries() {
        let source = map.value.map.value();
        if source.is_some_and(|source| maps.reads_credentials(&source.text, MAX_MAPS)) {
            hide_keys(&map.value.values, report);
        }
    }
    for (_, zone) in config.limit_req_zones.entries() {
        let key = zone.value.zone.key.value();
        if key.is_some_and(|key| maps.reads_credentials(&key.text, MAX_MAPS)) {
            hide_keys(&zone.value.overrides, report);
        }
    }
    let servers = config.servers.items().iter().map(|server| &server.value);
    for server in servers {
        let locations = server.locations.items().iter();
        for location in locations {
            maps.hide_headers(&location.value.settings, report);
        }
        maps.hide_headers(&server.settings, report);
    }
    maps.hide_headers(&config.settings, report);
}

fn hide_keys<T>(named: &Field<NamedMap<T>>, report: &mut Report) {
    for (key, _) in named.entries() {
        report.hidden_mut().add_key(&key.value, key.span);
    }
}

/// The maps that credentials may be made with.
struct CredentialMaps<'a> {
    names: &'a NameTable,
    entries: &'a [(Spanned<String>, Spanned<MapDirective>)],
}

impl<'a> CredentialMaps<'a> {
    fn find(&self, name: &str) -> Option<&'a MapDirective> {
        match self.names.find(name) {
            Resolved::At(index) => self.entries.get(index).map(|(_, map)| &map.value),
            Resolved::Broken | Resolved::Nowhere => None,
        }
    }

    /// Whether a template is made from credentials of clients; `most` maps are followed.
    fn reads_credentials(&self, text: &str, most: usize) -> bool {
        template_names(text).any(|name| match self.find(name) {
            Some(map) => {
                let source = map.map.value();
                most > 0 && source.is_some_and(|map| self.reads_credentials(&map.text, most - 1))
            }
            None => is_credential(name),
        })
    }

    /// Hides the values of `proxy_set_header` that are credentials, and those of the maps they are made from.
    fn hide_headers(&self, settings: &Settings, report: &mut Report) {
        for (name, value) in settings.proxy.proxy_set_header.entries() {
            if !is_credential(&name.value) {
                continue;
            }
            let Text { text, .. } = &value.value.0;
            let known = |name| self.find(name).is_some() || template::find(name).is_some();
            // A variable alone says nothing.
            if !(is_variable(text) && template_names(text).all(known)) {
                report.hidden_mut().add_text(text, value.span);
            }
            for map in template_names(text).filter_map(|name| self.find(name)) {
                hide_values(map, report);
            }
        }
    }
}

fn hide_values(map: &MapDirective, report: &mut Report) {
    let values = map.values.entries().iter().map(|(_, value)| value);
    for text in values.chain(map.default.get()) {
        if !text.value.text.is_empty() && !is_variable(&text.value.text) {
            report.hidden_mut().add_text(&text.value.text, text.span);
        }
    }
}

/// Gives health checks the TLS settings and the HTTP version of the requests to their upstream.
pub(super) fn complete_health_checks(
    config: &Config,
    upstreams: &mut [Upstream],
    servers: &[Server],
    report: &mut Report,
) {
    let named = config.upstreams.entries().iter().zip(upstreams).enumerate();
    for (index, ((_, given), upstream)) in named {
        let given = &given.value.health_check;
        let to_upstream = |pass: &&ProxyPass| pass.upstream == index;
        let proxy_passes: Vec<_> = plan::location_confs(servers)
            .flat_map(LocationConf::proxy_passes)
            .filter(to_upstream)
            .collect();
        if let (Some(check), Some(given), Some(key)) =
            (&mut upstream.health_check, given.record(), given.get())
        {
            complete_health_check(check, given, key.span, &proxy_passes, report);
        }
    }
}

fn complete_health_check(
    check: &mut plan::HealthCheck,
    given: &HealthCheck,
    span: Span,
    proxy_passes: &[&ProxyPass],
    report: &mut Report,
) {
    let first = proxy_passes.first();
    let is_tls = match given.tls.value() {
        Some(flag) => flag.0,
        None => first.is_some_and(|pass| pass.tls.is_some()),
    };
    let is_grpc = matches!(check.kind, CheckKind::Grpc { .. });
    check.version = match first {
        _ if is_grpc => HttpVersion::Two,
        Some(pass) => pass.version,
        None => HttpVersion::One,
    };
    if !is_tls || matches!(check.kind, CheckKind::Tcp) {
        return;
    }
    let fits =
        |pass: &&&ProxyPass| pass.tls.is_some() && (!is_grpc || pass.version == HttpVersion::Two);
    match proxy_passes.iter().find(fits) {
        Some(pass) => (check.tls, check.version) = (pass.tls, pass.version),
        None => report.error_with(
            given.tls.get().map_or(span, |flag| flag.span),
            "a check over TLS needs the TLS settings of a `proxy_pass`",
            match is_grpc {
                true => "use the upstream in a `grpc_pass: grpcs://…`",
                false => "use the upstream in a `proxy_pass: https://…`",
            },
        ),
    }
}

/// Warns of zones, upstreams and a resolver that are never used.
pub(super) fn warn_of_unused(config: &Config, plan: &Plan, report: &mut Report) {
    // Where something could not be understood, its references are unknown.
    if report.errors() > 0 {
        return;
    }
    let idle = unused(&config.limit_req_zones, plan, uses_req_zone);
    for (name, span) in idle {
        let sentence = format!("no `limit_req` uses the zone `{name}`");
        report.warn(span, sentence, "use it in a `limit_req`, or remove it");
    }
    let idle = unused(&config.limit_conn_zones, plan, uses_conn_zone);
    for (name, span) in idle {
        let sentence = format!("no `limit_conn` uses the zone `{name}`");
        report.warn(span, sentence, "use it in a `limit_conn`, or remove it");
    }
    let idle = unused(&config.upstreams, plan, |conf, index| {
        let mut proxy_passes = conf.proxy_passes();
        proxy_passes.any(|pass| pass.upstream == index)
    });
    for (name, span) in idle {
        let sentence = format!("no `proxy_pass` uses the upstream `{name}`");
        report.warn(span, sentence, "use it in a `proxy_pass`, or remove it");
    }
    let resolver = config.resolver.key();
    upstream::warn_of_unresolved(&config.upstreams, resolver, &plan.upstreams, report);
}

fn uses_req_zone(conf: &LocationConf, index: usize) -> bool {
    let mut rules = conf.limit_req.iter().chain(&conf.shadow);
    rules.any(|rule| rule.zone == index)
}

fn uses_conn_zone(conf: &LocationConf, index: usize) -> bool {
    conf.limit_conn.iter().any(|rule| rule.zone == index)
}

/// Those that no location uses.
fn unused<'a, T>(
    named: &'a Field<NamedMap<T>>,
    plan: &Plan,
    uses: impl Fn(&LocationConf, usize) -> bool,
) -> Vec<(&'a str, Span)> {
    let entries = named.entries().iter().enumerate();
    entries
        .filter(|(index, _)| !plan.location_confs().any(|conf| uses(conf, *index)))
        .map(|(_, (name, _))| (name.value.as_str(), name.span))
        .collect()
}

/// Warns of zones by address without an `ipv6_prefix` where clients with IPv6 are served.
pub(super) fn warn_of_ipv6(config: &Config, plan: &Plan, report: &mut Report) {
    if report.errors() > 0 {
        return;
    }
    let zones = config.limit_req_zones.entries().iter().zip(&plan.req_zones);
    for (index, ((name, given), zone)) in zones.enumerate() {
        if is_by_address(&zone.key, zone.on_empty_key, &plan.maps) {
            let access = ipv6_access(plan, |conf| uses_req_zone(conf, index));
            warn_of_many_keys(&given.value.zone, &name.value, access, report);
        }
    }
    let zones = config
        .limit_conn_zones
        .entries()
        .iter()
        .zip(&plan.conn_zones);
    for (index, ((name, given), zone)) in zones.enumerate() {
        if is_by_address(&zone.key, zone.on_empty_key, &plan.maps) {
            let access = ipv6_access(plan, |conf| uses_conn_zone(conf, index));
            warn_of_many_keys(&given.value.zone, &name.value, access, report);
        }
    }
}

fn warn_of_many_keys(
    given: &ZoneDirectives,
    name: &str,
    access: Option<String>,
    report: &mut Report,
) {
    if let (None, Some(key), Some(access)) = (given.ipv6_prefix.key(), given.key.get(), access) {
        let sentence = format!("one client may have 2^64 keys in `{name}`: {access} accepts IPv6");
        let hint = "add `ipv6_prefix: 64`, or `ipv6_prefix: 128` to limit each address by itself";
        report.warn(key.span, sentence, hint);
    }
}

/// Whether keys may be addresses, or contain one.
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

/// How clients with IPv6 reach a location like this, if they do.
fn ipv6_access(plan: &Plan, uses: impl Fn(&LocationConf) -> bool) -> Option<String> {
    let mut servers = plan.servers.iter().enumerate();
    servers.find_map(|(index, server)| {
        let confs = plan::location_confs(std::slice::from_ref(server));
        let used: Vec<_> = confs.filter(|conf| uses(conf)).collect();
        let mut listeners = plan.listeners.iter();
        let listener = listeners
            .find(|listener| listener.servers.contains(&index) && accepts_ipv6(&listener.address));
        // A proxy in front may have clients of either kind.
        let has_proxy = server.real_ip.is_some() || used.iter().any(|conf| conf.real_ip.is_some());
        used.first()?;
        listener
            .map(|listener| format!("`{}`", listener.address))
            .or_else(|| has_proxy.then(|| "`real_ip`".to_owned()))
    })
}

fn accepts_ipv6(address: &SocketAddress) -> bool {
    match address {
        SocketAddress::Tcp(address) => {
            let ip = address.ip().to_canonical();
            ip.is_ipv6() && !ip.is_loopback()
        }
        SocketAddress::Unix(_) => false,
    }
}
