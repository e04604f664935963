//! The user's model becomes the plan: names are resolved, rules checked, defaults and inheritance filled in.
//!
//! Like decoding, compiling goes on after a mistake, with whatever stands in for the wrong value; the plan that
//! comes out is only used when the report stayed without errors.

mod access;
mod algorithm;
mod answers;
mod bandwidth;
mod breakers;
mod buffering;
mod checks;
mod client;
mod connection;
mod credentials;
mod fallbacks;
mod forward;
mod geo;
mod ipv6;
mod limits;
mod maps;
mod names;
mod next_upstream;
mod overrides;
mod redirects;
mod resolver;
mod sanctions;
mod servers;
mod sites;
mod stores;
mod templates;
#[cfg(test)]
mod tests;
mod tls;
mod top;
mod traces;
mod unused;
mod upstreams;
mod variables;

use std::collections::HashMap;
use std::time::Duration;

pub(super) use variables::name as variable_name;

use super::decode::{Field, NamedMap, Spanned};
use super::model::{Config, Override, Time};
use super::plan::{AlgorithmParams, OverrideLimits, Plan, TlsFile, Upstream, UpstreamTls};
use super::report::{Diagnostic, Report};
use super::span::Span;

/// Makes the plan.
pub(super) fn compile(config: &Config, report: &mut Report) -> Plan {
    let mut compiler = Compiler::new(config, report);
    compiler.hide_credential_keys();
    let maps = compiler.maps();
    compiler.upstreams();
    let stores = compiler.stores();
    let req_zones = compiler.req_zones(&maps);
    let conn_zones = compiler.conn_zones();
    let (servers, listeners) = compiler.servers();
    compiler.meet_checked(&servers);
    let plan = Plan {
        workers: compiler.workers(),
        shutdown_timeout: config
            .shutdown_timeout
            .value()
            .map_or(Duration::from_secs(30), |time| time.0),
        log: compiler.log(),
        admin: compiler.admin(),
        tracing: compiler.tracing(),
        caps: compiler.caps(),
        maps,
        stores,
        req_zones,
        conn_zones,
        degrade_groups: compiler.degrade_groups(),
        stale_size: compiler.stale_size(),
        buffers: compiler.buffer_bounds(),
        temp_paths: std::mem::take(&mut compiler.temp_paths),
        upstreams: std::mem::take(&mut compiler.upstreams),
        upstream_tls: std::mem::take(&mut compiler.upstream_tls),
        listeners,
        servers,
        source: Box::default(),
    };
    compiler.warn_of_unused(&plan);
    compiler.warn_of_ipv6(&plan);
    plan
}

/// What holds instead of the numbers of a zone that counts like this in so many bytes; `None` for unlimited.
pub(super) fn own_numbers(
    own: &Override,
    zone: AlgorithmParams,
    size: usize,
    report: &mut Report,
) -> Option<OverrideLimits> {
    let config = Config::default();
    let mut compiler = Compiler::new(&config, report);
    let numbers = compiler.own_numbers(own, zone)?;
    compiler.room_for_a_key(own.limit.key(), numbers.algorithm, size);
    Some(numbers)
}

/// What is needed to make one part of the plan refer to another.
struct Compiler<'a> {
    config: &'a Config,
    report: &'a mut Report,
    maps: NameTable,
    req_zones: NameTable,
    conn_zones: NameTable,
    stores: NameTable,
    /// Names of `upstreams`.
    groups: NameTable,
    /// Names of `degrade_groups`.
    degraded: NameTable,
    /// Which maps need something that is not known before the answer.
    late_maps: Vec<bool>,
    /// Of the `limit_req_zones`.
    algorithms: Vec<AlgorithmParams>,
    /// Those of `upstreams`, then those of addresses in `proxy_pass`.
    upstreams: Vec<Upstream>,
    /// How servers behind `https://` are met, each way once.
    upstream_tls: Vec<UpstreamTls>,
    /// The latter by name.
    addresses: HashMap<String, usize>,
    /// Directories for temporary files, each where it is named.
    temp_paths: Vec<TlsFile>,
}

impl<'a> Compiler<'a> {
    fn new(config: &'a Config, report: &'a mut Report) -> Self {
        Self {
            config,
            report,
            maps: NameTable::of(&config.maps, |name| name.trim_start_matches('$')),
            req_zones: NameTable::of(&config.limit_req_zones, |name| name),
            conn_zones: NameTable::of(&config.limit_conn_zones, |name| name),
            stores: NameTable::of(&config.stores, |name| name),
            groups: NameTable::of(&config.upstreams, |name| name),
            degraded: NameTable::of(&config.degrade_groups, |name| name),
            late_maps: Vec::new(),
            algorithms: Vec::new(),
            upstreams: Vec::new(),
            upstream_tls: Vec::new(),
            addresses: HashMap::new(),
            temp_paths: Vec::new(),
        }
    }
}

/// Names that may be referred to.
struct NameTable {
    known: HashMap<String, usize>,
    /// Defined, but not understood: nobody is wrong to refer to them.
    broken: Vec<String>,
}

/// What a name stands for.
enum Resolved {
    /// This index.
    At(usize),
    /// Something that was complained about already.
    Broken,
    /// Nothing.
    Nowhere,
}

impl NameTable {
    fn of<T>(named: &Field<NamedMap<T>>, trim: fn(&str) -> &str) -> Self {
        let (entries, broken) = named
            .value()
            .map_or((&[][..], &[][..]), |named| (&named.entries, &named.broken));
        Self {
            known: entries
                .iter()
                .enumerate()
                .map(|(index, (name, _))| (trim(&name.value).to_owned(), index))
                .collect(),
            broken: broken.iter().map(|name| trim(name).to_owned()).collect(),
        }
    }

    fn find(&self, name: &str) -> Resolved {
        match self.known.get(name) {
            Some(index) => Resolved::At(*index),
            None if self.broken.iter().any(|broken| broken == name) => Resolved::Broken,
            None => Resolved::Nowhere,
        }
    }

    /// All of them in one order, so that of two equally near misses always the same is offered.
    fn all(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.known.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }
}

impl Compiler<'_> {
    fn complain(&mut self, span: Span, sentence: impl Into<String>) {
        self.report.add(Diagnostic::new(span, sentence));
    }

    fn complain_with(&mut self, span: Span, sentence: impl Into<String>, hint: impl Into<String>) {
        self.report.add(Diagnostic::new(span, sentence).help(hint));
    }

    fn warn(&mut self, span: Span, sentence: impl Into<String>, hint: impl Into<String>) {
        self.report
            .add(Diagnostic::new(span, sentence).help(hint).warning());
    }

    /// A time that must not be nothing.
    fn some_time(&mut self, given: Option<&Spanned<Time>>, default: u64) -> Duration {
        let Some(given) = given else {
            return Duration::from_secs(default);
        };
        if given.value.0.is_zero() {
            self.complain_with(
                given.span,
                "a timeout of nothing would end everything at once",
                format!("the default is {default}s"),
            );
        }
        given.value.0
    }
}
