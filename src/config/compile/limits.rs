//! Zones and the rules that use them.

use super::overrides::KeyVariables;
use super::templates::TemplatePhase;
use super::{Compiler, NameTable, Resolved};
use crate::config::decode::{Field, List, NamedMap, OrOff, Spanned, Text};
use crate::config::model;
use crate::config::near;
use crate::config::plan::{
    AlgorithmParams, ConnQueue, ConnRule, ConnZone, CountRefused, Map, Rate, ReqRule, ReqZone,
    Template,
};
use crate::config::report::Diagnostic;
use crate::config::span::Span;

/// nginx's least size of a zone: eight pages.
const LEAST_SIZE: u64 = 32 << 10;

/// The size of a zone that gives none: room for a hundred thousand addresses.
const DEFAULT_SIZE: u64 = 10 << 20;

/// Which kind of zone a rule looks for.
#[derive(Clone, Copy)]
enum RuleKind {
    Conn,
    Req,
}

impl Compiler<'_> {
    /// `limit_req_zones`
    pub(super) fn req_zones(&mut self, maps: &[Map]) -> Vec<ReqZone> {
        let entries = entries(&self.config.limit_req_zones);
        let sound = self.report.errors() == 0;
        entries
            .iter()
            .map(|(name, zone)| {
                let algorithm = self.algorithm(zone);
                self.algorithms.push(algorithm);
                let zone = &zone.value;
                let size = self.zone_size(zone.size.get());
                self.room_for_a_key(zone.limit.key(), algorithm, size);
                self.warn_of_no_leases(zone, &algorithm);
                let errors = self.report.errors();
                let key = self.zone_key(zone.key.get());
                // Where something was not understood, what its keys may be is unknown.
                let keys = (sound && self.report.errors() == errors).then_some(KeyVariables {
                    template: &key,
                    maps,
                });
                ReqZone {
                    name: name.value.as_str().into(),
                    overrides: self.overrides(&zone.overrides, algorithm, keys),
                    key,
                    size,
                    algorithm,
                    count_refused: match zone.count_refused.value() {
                        Some(model::Flag(true)) => CountRefused::Yes,
                        _ => CountRefused::No,
                    },
                    store: self.req_zone_store(zone.store.get(), &algorithm),
                    on_empty_key: zone
                        .on_empty_key
                        .value()
                        .map(|word| word.0)
                        .unwrap_or_default(),
                    on_ambiguous_key: zone
                        .on_ambiguous_key
                        .value()
                        .map(|word| word.0)
                        .unwrap_or_default(),
                    ipv6_prefix: zone.ipv6_prefix.value().map_or(128, |bits| bits.0),
                }
            })
            .collect()
    }

    /// `limit_conn_zones`
    pub(super) fn conn_zones(&mut self) -> Vec<ConnZone> {
        let entries = entries(&self.config.limit_conn_zones);
        entries
            .iter()
            .map(|(name, zone)| {
                let zone = &zone.value;
                if let Resolved::At(_) = self.req_zones.find(&name.value) {
                    let sentence = format!("a limit_req zone is called `{}`, too", name.value);
                    self.complain_with(
                        name.span,
                        sentence,
                        "names of zones are given once, whatever their kind",
                    );
                }
                ConnZone {
                    name: name.value.as_str().into(),
                    key: self.zone_key(zone.key.get()),
                    size: self.zone_size(zone.size.get()),
                    store: self.zone_store(zone.store.get()),
                    on_empty_key: zone
                        .on_empty_key
                        .value()
                        .map(|word| word.0)
                        .unwrap_or_default(),
                    on_ambiguous_key: zone
                        .on_ambiguous_key
                        .value()
                        .map(|word| word.0)
                        .unwrap_or_default(),
                    ipv6_prefix: zone.ipv6_prefix.value().map_or(128, |bits| bits.0),
                }
            })
            .collect()
    }

    fn zone_key(&mut self, key: Option<&Spanned<Text>>) -> Template {
        let Some(key) = key else {
            return Template::default();
        };
        if key.value.text.is_empty() {
            let sentence = "an empty key limits nobody";
            self.complain_with(
                key.span,
                sentence,
                "expected a text of variables, such as `$binary_remote_addr`",
            );
        }
        let template = self.template(key, TemplatePhase::Before);
        if template.as_literal().is_some_and(|text| !text.is_empty())
            && !key.value.text.contains('$')
        {
            let sentence = format!(
                "the key `{}` has no variable: all requests share one bucket",
                key.value.text
            );
            let hint = match near::near(&key.value.text, super::variables::names()) {
                Some(meant) => format!("did you mean `${meant}`?"),
                None => "if that is meant, all is well".to_owned(),
            };
            self.warn(key.span, sentence, hint);
        }
        template
    }

    fn zone_size(&mut self, size: Option<&Spanned<model::Size>>) -> usize {
        let bytes = size.map_or(DEFAULT_SIZE, |size| size.value.0);
        if let Some(size) = size.filter(|_| bytes < LEAST_SIZE) {
            self.complain_with(
                size.span,
                "a zone of this size is too small",
                "the least is 32k",
            );
        }
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// A `limit_req` list.
    pub(super) fn req_rules(
        &mut self,
        given: Option<&Spanned<OrOff<List<model::ReqRule>>>>,
    ) -> Vec<ReqRule> {
        let mut seen = Vec::new();
        let rules = rules(given);
        rules
            .iter()
            .filter_map(|rule| {
                let rule = &rule.value;
                let zone = self.zone(rule.zone.get()?, RuleKind::Req, &mut seen)?;
                // A zone that was not understood has no algorithm of its own.
                let algorithm = self.algorithms.get(zone).copied();
                let algorithm = algorithm.unwrap_or(AlgorithmParams::LeakyBucket {
                    rate: Rate::per_second(1000),
                });
                let (burst, delay) = self.burst_and_delay(rule, algorithm);
                Some(ReqRule {
                    zone,
                    burst,
                    delay,
                    weight: self.weight(rule.cost.get()),
                    sanction: self.req_sanction(rule, algorithm),
                })
            })
            .collect()
    }

    /// A `limit_conn` list.
    pub(super) fn conn_rules(
        &mut self,
        given: Option<&Spanned<OrOff<List<model::ConnRule>>>>,
    ) -> Vec<ConnRule> {
        let mut seen = Vec::new();
        let rules = rules(given);
        rules
            .iter()
            .filter_map(|rule| {
                let rule = &rule.value;
                let zone = self.zone(rule.zone.get()?, RuleKind::Conn, &mut seen)?;
                let queue = rule.queue.value().and_then(|queue| {
                    let timeout = queue.timeout.get()?;
                    Some(ConnQueue {
                        size: queue.size.value()?.0,
                        timeout: self.some_time(Some(timeout), 1),
                    })
                });
                Some(ConnRule {
                    zone,
                    limit: rule.limit.value()?.0,
                    queue,
                    sanction: self.conn_sanction(rule),
                })
            })
            .collect()
    }

    /// The zone a rule names, which no other rule of its list may name.
    fn zone(
        &mut self,
        name: &Spanned<Text>,
        kind: RuleKind,
        seen: &mut Vec<usize>,
    ) -> Option<usize> {
        let (own, other, this_kind, other_kind) = match kind {
            RuleKind::Req => (&self.req_zones, &self.conn_zones, "limit_req", "limit_conn"),
            RuleKind::Conn => (&self.conn_zones, &self.req_zones, "limit_conn", "limit_req"),
        };
        let text = name.value.text.as_str();
        match own.find(text) {
            Resolved::At(index) if seen.contains(&index) => {
                let sentence = format!("the zone `{text}` stands twice in this list");
                self.complain(name.span, sentence);
                None
            }
            Resolved::At(index) => {
                seen.push(index);
                Some(index)
            }
            Resolved::Broken => None,
            Resolved::Nowhere => {
                let complaint = unknown_zone(name.span, text, own, other, this_kind, other_kind);
                self.report.add(complaint);
                None
            }
        }
    }
}

fn unknown_zone(
    span: Span,
    name: &str,
    own: &NameTable,
    other: &NameTable,
    kind: &str,
    other_kind: &str,
) -> Diagnostic {
    if let Resolved::At(_) = other.find(name) {
        return Diagnostic::new(span, format!("`{name}` is a {other_kind} zone"))
            .help(format!("`{kind}` needs one of `{kind}_zones`"));
    }
    let hint = near::hint(name, own.all()).or_else(|| {
        own.known
            .is_empty()
            .then(|| format!("there are no `{kind}_zones`"))
    });
    Diagnostic::new(span, format!("unknown zone `{name}`")).hint(hint)
}

pub(super) fn entries<T>(named: &Field<NamedMap<T>>) -> &[(Spanned<String>, Spanned<T>)] {
    named.value().map_or(&[], |named| &named.entries)
}

fn rules<T>(given: Option<&Spanned<OrOff<List<T>>>>) -> &[Spanned<T>] {
    match given.map(|given| &given.value) {
        Some(OrOff::On(list)) => &list.0,
        Some(OrOff::Off) | None => &[],
    }
}
