//! `maps`: what they look up, what they become, and that none needs itself.

use std::collections::HashMap;

use ipnet::IpNet;

use super::templates::TemplatePhase;
use super::{Compiler, geo, names, variables};
use crate::config::decode::{NamedMap, Spanned, Text};
use crate::config::model;
use crate::config::plan::{Map, MapLookup, MapValues, Part, ServerName, Template, Variable};
use crate::config::report::Diagnostic;
use crate::config::span::Span;
use crate::config::units;

impl Compiler<'_> {
    /// All maps, in the file's order.
    pub(super) fn maps(&mut self) -> Vec<Map> {
        let Some(named) = self.config.maps.value() else {
            return Vec::new();
        };
        let maps: Vec<_> = named
            .entries
            .iter()
            .map(|(name, map)| self.map(name, map))
            .collect();
        self.refuse_circles(&maps, named);
        maps
    }

    fn map(&mut self, name: &Spanned<String>, map: &Spanned<model::MapDirective>) -> Map {
        let own = self.map_name(name);
        let model = &map.value;
        let empty = NamedMap {
            entries: Vec::new(),
            broken: Vec::new(),
        };
        let values = model.values.value().unwrap_or(&empty);
        let hostnames = model.hostnames.value().is_some_and(|flag| flag.0);
        let (source, lookup) = match (model.map.get(), model.geo.get()) {
            (Some(_), Some(geo)) => {
                self.complain_with(geo.span, "`map` and `geo` in one", "make two of it");
                (Template::default(), MapLookup::Values(MapValues::default()))
            }
            (Some(source), None) => (
                self.template(source, TemplatePhase::After),
                MapLookup::Values(self.values(values, hostnames)),
            ),
            (None, Some(source)) => (self.geo_source(source), MapLookup::Geo(self.geo(values))),
            (None, None) => {
                if model.map.key().or_else(|| model.geo.key()).is_none() {
                    let sentence = "neither `map` nor `geo`: nothing to look up";
                    self.complain(name.span, sentence);
                }
                (Template::default(), MapLookup::Values(MapValues::default()))
            }
        };
        if let Some(flag) = model.hostnames.key().filter(|_| model.geo.get().is_some()) {
            self.complain(flag, "`hostnames` has no meaning for `geo`");
        }
        let default = match model.default.get() {
            Some(text) => self.template(text, TemplatePhase::After),
            None => Template::default(),
        };
        Map {
            name: own.into(),
            source,
            lookup,
            default,
        }
    }

    fn map_name<'n>(&mut self, name: &'n Spanned<String>) -> &'n str {
        let Some(own) = name.value.strip_prefix('$') else {
            let hint = format!("write `${}`", name.value);
            self.complain_with(name.span, "the name of a map begins with `$`", hint);
            return &name.value;
        };
        let well_named = own
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if own.is_empty() || !well_named {
            let sentence = format!("`{}` is not a variable's name", name.value);
            self.complain_with(name.span, sentence, "letters, digits and `_` after the `$`");
        } else if variables::find(own).is_some() {
            let sentence = format!("`{}` is a variable of weir's own", name.value);
            self.complain_with(name.span, sentence, "pick another name");
        }
        own
    }

    fn geo_source(&mut self, source: &Spanned<Text>) -> Template {
        let template = self.template(source, TemplatePhase::After);
        let binary = template.as_variable() == Some(&Variable::BinaryRemoteAddr);
        if template.as_literal().is_some_and(|text| !text.is_empty()) || binary {
            let sentence = "`geo` looks up an address written as text";
            self.complain_with(
                source.span,
                sentence,
                "expected a variable, such as `$remote_addr`",
            );
        }
        template
    }

    fn geo(&mut self, values: &NamedMap<Text>) -> crate::config::plan::Geo {
        let mut first: HashMap<IpNet, Span> = HashMap::new();
        let mut networks = Vec::new();
        for (key, value) in &values.entries {
            let value = self.template(value, TemplatePhase::After);
            let (network, loose) = match units::network(&key.value) {
                Ok(network) => network,
                Err(mistake) if key.value == "default" => {
                    self.complain_with(
                        key.span,
                        mistake.sentence,
                        "`default` stands beside `values`, not in it",
                    );
                    continue;
                }
                Err(mistake) => {
                    let complaint = Diagnostic::new(key.span, mistake.sentence).hint(mistake.hint);
                    self.report.add(complaint);
                    continue;
                }
            };
            if let Some(loose) = loose {
                let sentence = format!("low address bits of `{}` are meaningless", key.value);
                self.warn(
                    key.span,
                    sentence,
                    format!("it is read as `{}`", loose.meant),
                );
            }
            if let Some(first) = first.insert(network, key.span) {
                let place = self.report.sources().place(first);
                let sentence = format!("the network `{network}` is given twice");
                self.complain_with(key.span, sentence, format!("it was given first at {place}"));
                continue;
            }
            networks.push((network, value));
        }
        geo::flatten(networks)
    }

    fn values(&mut self, named: &NamedMap<Text>, hostnames: bool) -> MapValues {
        let mut values = MapValues::default();
        for (key, value) in &named.entries {
            let value = self.template(value, TemplatePhase::After);
            let text = key.value.as_str();
            if text == "default" {
                let sentence = "`default` among the values of a map";
                self.complain_with(
                    key.span,
                    sentence,
                    "`default` stands beside `values`; for this very text write `\\default`",
                );
            } else if let Some(expression) = text.strip_prefix('~') {
                if let Some(expression) = self.expression(expression, key.span) {
                    values.expressions.push((expression, value));
                }
            } else if hostnames && text.contains('*') | text.starts_with('.') {
                if let Some(name) = self.server_name(text, key.span) {
                    values.hostnames.push((name, value));
                }
            } else {
                let exact = text.strip_prefix('\\').unwrap_or(text).to_lowercase();
                if values.exact.insert(exact.into(), value).is_some() {
                    let sentence = format!("`{text}` is given twice");
                    self.complain_with(key.span, sentence, "case makes no difference here");
                }
            }
        }
        // nginx asks `*.example.com` before `www.example.*`, and of each kind the longest.
        values.hostnames.sort_by_key(|(name, _)| match name {
            ServerName::Suffix(text) | ServerName::SuffixAndSelf(text) => {
                (0, usize::MAX - text.len())
            }
            ServerName::Prefix(text) => (1, usize::MAX - text.len()),
            ServerName::Exact(_) | ServerName::Expression(_) => (2, 0),
        });
        values
    }

    fn expression(&mut self, text: &str, span: Span) -> Option<regex::bytes::Regex> {
        let (text, fold) = match text.strip_prefix('*') {
            Some(text) => (text, names::RegexCase::Ignored),
            None => (text, names::RegexCase::Matters),
        };
        names::bytes_expression(text, fold)
            .map_err(|mistake| {
                self.report
                    .add(Diagnostic::new(span, mistake.sentence).hint(mistake.hint))
            })
            .ok()
    }

    /// Complains about maps that need themselves, and finds out which need what only the answer brings.
    fn refuse_circles(&mut self, maps: &[Map], named: &NamedMap<model::MapDirective>) {
        let mut states = vec![VisitState::Unseen; maps.len()];
        for index in 0..maps.len() {
            visit(index, maps, &mut states, &mut |circle| {
                if let Some((name, _)) = named.entries.get(circle) {
                    let sentence = format!("`{}` is made from itself", name.value);
                    self.report.add(Diagnostic::new(name.span, sentence));
                }
            });
        }
        self.late_maps = states
            .into_iter()
            .map(|state| state == VisitState::Late)
            .collect();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VisitState {
    Early,
    Late,
    Open,
    Unseen,
}

/// Goes through all that a map is made from; tells `circle` of a map met again on the way.
fn visit(
    index: usize,
    maps: &[Map],
    states: &mut Vec<VisitState>,
    circle: &mut impl FnMut(usize),
) -> VisitState {
    let (Some(map), Some(state)) = (maps.get(index), states.get_mut(index)) else {
        return VisitState::Early;
    };
    match *state {
        VisitState::Unseen => *state = VisitState::Open,
        VisitState::Open => {
            circle(index);
            return VisitState::Early;
        }
        known => return known,
    }
    let mut outcome = VisitState::Early;
    for variable in ingredients(map) {
        let late = match variable {
            Variable::Map(other) => visit(*other, maps, states, circle) == VisitState::Late,
            other => variables::is_late(other),
        };
        if late {
            outcome = VisitState::Late;
        }
    }
    if let Some(state) = states.get_mut(index) {
        *state = outcome;
    }
    outcome
}

/// Every variable a map is made from.
fn ingredients(map: &Map) -> impl Iterator<Item = &Variable> {
    std::iter::once(&map.source)
        .chain(map.outcomes())
        .flat_map(|template| template.parts.iter())
        .filter_map(|part| match part {
            Part::Variable(variable) => Some(variable),
            Part::Text(_) => None,
        })
}
