//! `maps`: variables made from other variables, by text (nginx's `map`) or by network (`geo`).

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use regex::bytes::Regex;

use super::compile::{self, Compiler, ServerName};
use super::decode::value::{NamedMap, Text};
use super::decode::{Field, Spanned, units};
use super::report::Report;
use super::source::Span;
use super::template::{self, Template, TemplatePhase, Variable};

pub(crate) mod raw {
    //! `maps`: variables of the user's own.
    use crate::config::decode::Field;
    use crate::config::decode::record::record;
    use crate::config::decode::value::{Flag, NamedMap, Text};

    record! {
        /// A variable made from others: nginx's `map` or `geo`.
        pub(crate) struct MapDirective {
            /// Look this text of variables up among `values`: exact (case does not matter), then `~expr` and `~*expr` in order.
            map: Field<Text>,
            /// Look this address up among `values`, which are networks: the longest prefix wins.
            geo: Field<Text>,
            /// What it becomes when nothing matches. Default: empty.
            default: Field<Text>,
            /// The keys of `values` are host names: `*.example.com`, `.example.com` and `www.example.*` have their meaning.
            hostnames: Field<Flag> = "false" => bool,
            /// What becomes what. The values may be texts of variables.
            values: Field<NamedMap<Text>>,
        }
    }
}

/// A variable of the user's own.
#[derive(Debug, Clone)]
pub struct Map {
    /// Its name, without the dollar sign.
    pub name: Box<str>,
    /// What is looked up. Never refers, even indirectly, to this map itself.
    pub source: Template,
    /// What it becomes.
    pub lookup: MapLookup,
    /// What it becomes when nothing matches.
    pub default: Template,
}

/// How a source becomes a value.
#[derive(Debug, Clone)]
pub enum MapLookup {
    /// By network, the longest prefix first.
    Geo(Geo),
    /// By text.
    Values(MapValues),
}

/// nginx's `map`: exact text first (case folded), then host names if asked for, then expressions in the file's order.
#[derive(Debug, Clone, Default)]
pub struct MapValues {
    /// Keys in lower case.
    pub exact: HashMap<Box<str>, Template>,
    /// With `hostnames: true`: `*.example.com`, `.example.com`, `www.example.*`; longest first.
    pub hostnames: Vec<(ServerName, Template)>,
    /// `~expr` and `~*expr`.
    pub expressions: Vec<(Regex, Template)>,
}

/// Networks flattened into ranges that do not overlap, so that the longest prefix is found by one binary search.
#[derive(Debug, Clone, Default)]
pub struct Geo {
    /// First address of each range, in order; the range ends where the next begins.
    pub starts: Vec<u128>,
    /// The value of each range: an index into `values`, or `None` for the default.
    pub owners: Vec<Option<usize>>,
    /// What the networks stand for.
    pub values: Vec<Template>,
}

impl Map {
    /// Everything it may become.
    #[must_use]
    pub fn outcomes(&self) -> Vec<&Template> {
        let mut outcomes = vec![&self.default];
        match &self.lookup {
            MapLookup::Geo(geo) => outcomes.extend(&geo.values),
            MapLookup::Values(values) => {
                outcomes.extend(values.exact.values());
                outcomes.extend(values.hostnames.iter().map(|(_, value)| value));
                outcomes.extend(values.expressions.iter().map(|(_, value)| value));
            }
        }
        outcomes
    }
}

impl Geo {
    /// The value for an address. IPv4 is looked up in its mapped form.
    #[must_use]
    pub fn find(&self, address: IpAddr) -> Option<&Template> {
        let number = match address {
            IpAddr::V4(v4) => u128::from(v4.to_ipv6_mapped()),
            IpAddr::V6(v6) => u128::from(v6),
        };
        let after = self.starts.partition_point(|start| *start <= number);
        let owner = *self.owners.get(after.checked_sub(1)?)?;
        self.values.get(owner?)
    }
}

/// All maps, in the file's order.
pub(super) fn compile(
    named: &Field<NamedMap<raw::MapDirective>>,
    compiler: &mut Compiler<'_>,
) -> Vec<Map> {
    let entries = named.entries().iter();
    let maps: Vec<_> = entries
        .map(|(name, given)| map(name, &given.value, compiler))
        .collect();
    refuse_cycles(&maps, named, compiler);
    maps
}

fn map(name: &Spanned<String>, given: &raw::MapDirective, compiler: &mut Compiler<'_>) -> Map {
    let values = given.values.entries();
    let (source, lookup) = match (given.map.get(), given.geo.get()) {
        (Some(source), None) => (
            Template::compile(source, TemplatePhase::After, compiler),
            MapLookup::Values(by_text(values, given.hostnames(), compiler)),
        ),
        (None, Some(source)) => (
            geo_source(source, compiler),
            MapLookup::Geo(geo(values, compiler)),
        ),
        (both, geo) => {
            if let (Some(_), Some(geo)) = (both, geo) {
                let hint = "define two maps";
                compiler
                    .report
                    .error_with(geo.span, "a map has both `map` and `geo`", hint);
            } else if given.map.key().or_else(|| given.geo.key()).is_none() {
                let sentence = "a map needs `map` or `geo`";
                compiler.report.error(name.span, sentence);
            }
            (Template::default(), MapLookup::Values(MapValues::default()))
        }
    };
    if let Some(flag) = given.hostnames.key().filter(|_| given.geo.get().is_some()) {
        compiler
            .report
            .error(flag, "`hostnames` has no meaning for `geo`");
    }
    let default = given.default.get();
    Map {
        name: map_name(name, compiler.report).into(),
        source,
        lookup,
        default: default.map_or_else(Template::default, |text| {
            Template::compile(text, TemplatePhase::After, compiler)
        }),
    }
}

fn map_name<'n>(name: &'n Spanned<String>, report: &mut Report) -> &'n str {
    let Some(own) = name.value.strip_prefix('$') else {
        let hint = format!("write `${}`", name.value);
        report.error_with(name.span, "the name of a map begins with `$`", hint);
        return &name.value;
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if own.is_empty() || !own.bytes().all(is_plain) {
        let sentence = format!("`{}` is not the name of a variable", name.value);
        report.error_with(name.span, sentence, "letters, digits and `_` after the `$`");
    } else if template::find(own).is_some() {
        let sentence = format!("`{}` is a built-in variable", name.value);
        report.error_with(name.span, sentence, "choose another name");
    }
    own
}

fn geo_source(source: &Spanned<Text>, compiler: &mut Compiler<'_>) -> Template {
    let template = Template::compile(source, TemplatePhase::After, compiler);
    let binary = template.as_variable() == Some(&Variable::BinaryRemoteAddr);
    if template.as_literal().is_some_and(|text| !text.is_empty()) || binary {
        let sentence = "`geo` looks up an address written as text";
        let hint = "expected a variable, such as `$remote_addr`";
        compiler.report.error_with(source.span, sentence, hint);
    }
    template
}

fn geo(values: &[(Spanned<String>, Spanned<Text>)], compiler: &mut Compiler<'_>) -> Geo {
    let mut first: HashMap<IpNet, Span> = HashMap::new();
    let mut networks = Vec::new();
    for (key, value) in values {
        let value = Template::compile(value, TemplatePhase::After, compiler);
        let network = units::network(&key.value).map_err(|error| match key.value.as_str() {
            "default" => error.help("`default` stands beside `values`, not in it"),
            _ => error,
        });
        let report = &mut *compiler.report;
        let Some(network) = report.parsed(key.span, network) else {
            continue;
        };
        let network = compile::masked(key, network, report);
        if let Some(first) = first.insert(network, key.span) {
            let place = report.sources().place(first);
            let sentence = format!("the network `{network}` is given twice");
            report.error_with(key.span, sentence, format!("it was given first at {place}"));
            continue;
        }
        networks.push((network, value));
    }
    flatten(networks)
}

fn by_text(
    given: &[(Spanned<String>, Spanned<Text>)],
    hostnames: bool,
    compiler: &mut Compiler<'_>,
) -> MapValues {
    let mut values = MapValues::default();
    for (key, value) in given {
        let value = Template::compile(value, TemplatePhase::After, compiler);
        let text = key.value.as_str();
        let report = &mut *compiler.report;
        if text == "default" {
            let sentence = "`default` among the values of a map";
            let hint = "`default` stands beside `values`; for the text itself write `\\default`";
            report.error_with(key.span, sentence, hint);
        } else if let Some((expression, ignore_case)) = compile::split_expression(text) {
            let expression = compile::bytes_expression(expression, ignore_case);
            let expression = report.parsed(key.span, expression);
            values.expressions.extend(expression.map(|it| (it, value)));
        } else if hostnames && text.contains('*') | text.starts_with('.') {
            let name = report.parsed(key.span, compile::server_name(text));
            values.hostnames.extend(name.map(|name| (name, value)));
        } else {
            let exact = text.strip_prefix('\\').unwrap_or(text).to_lowercase();
            if values.exact.insert(exact.into(), value).is_some() {
                let sentence = format!("`{text}` is given twice");
                report.error_with(
                    key.span,
                    sentence,
                    "keys are compared without regard to case",
                );
            }
        }
    }
    // nginx asks `*.example.com` before `www.example.*`, and of each kind the longest.
    values.hostnames.sort_by_key(|(name, _)| match name {
        ServerName::Suffix(text) | ServerName::SuffixAndSelf(text) => (0, usize::MAX - text.len()),
        ServerName::Prefix(text) => (1, usize::MAX - text.len()),
        ServerName::Exact(_) | ServerName::Expression(_) => (2, 0),
    });
    values
}

/// Reports maps that need themselves, and finds those that need what is not known before the response.
fn refuse_cycles(
    maps: &[Map],
    named: &Field<NamedMap<raw::MapDirective>>,
    compiler: &mut Compiler<'_>,
) {
    let mut states = vec![VisitState::Unseen; maps.len()];
    for index in 0..maps.len() {
        visit(index, maps, &mut states, &mut |cycle| {
            if let Some((name, _)) = named.entries().get(cycle) {
                let sentence = format!("`{}` is made from itself", name.value);
                compiler.report.error(name.span, sentence);
            }
        });
    }
    let states = states.into_iter();
    compiler.late_maps = states.map(|state| state == VisitState::Late).collect();
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VisitState {
    Early,
    Late,
    Open,
    Unseen,
}

/// Visits everything a map is made from; calls `cycle` for a map found again on the way.
fn visit(
    index: usize,
    maps: &[Map],
    states: &mut Vec<VisitState>,
    cycle: &mut impl FnMut(usize),
) -> VisitState {
    let (Some(map), Some(state)) = (maps.get(index), states.get_mut(index)) else {
        return VisitState::Early;
    };
    match *state {
        VisitState::Unseen => *state = VisitState::Open,
        VisitState::Open => {
            cycle(index);
            return VisitState::Early;
        }
        known => return known,
    }
    let mut outcome = VisitState::Early;
    for variable in ingredients(map) {
        let late = match variable {
            Variable::Map(other) => visit(*other, maps, states, cycle) == VisitState::Late,
            other => other.is_late(),
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
        .flat_map(|template| template.variables())
}

/// First and last address of a network, IPv4 in its mapped form.
fn range(network: &IpNet) -> (u128, u128) {
    match network {
        IpNet::V4(v4) => (
            u128::from(v4.network().to_ipv6_mapped()),
            u128::from(v4.broadcast().to_ipv6_mapped()),
        ),
        IpNet::V6(v6) => (u128::from(v6.network()), u128::from(v6.broadcast())),
    }
}

/// Flattens networks with their values; no network may be there twice.
fn flatten(networks: Vec<(IpNet, Template)>) -> Geo {
    let mut geo = Geo::default();
    let mut ranges = vec![];
    // As in nginx, `::/0` says nothing about IPv4: the mapped addresses are a world of their own.
    let all_v4 = IpNet::V4(ipnet::Ipv4Net::default());
    if !networks.iter().any(|(network, _)| *network == all_v4) {
        let (first, last) = range(&all_v4);
        ranges.push((first, last, None));
    }
    for (index, (network, value)) in networks.into_iter().enumerate() {
        let (first, last) = range(&network);
        ranges.push((first, last, Some(index)));
        geo.values.push(value);
    }
    // Wider before narrower where they begin together, so that the narrower comes to lie on top.
    ranges.sort_by_key(|(first, last, _)| (*first, std::cmp::Reverse(*last)));
    let mut open: Vec<(u128, Option<usize>)> = Vec::new();
    for (first, last, owner) in ranges {
        close(&mut geo, &mut open, Some(first));
        mark(&mut geo, first, owner);
        open.push((last, owner));
    }
    close(&mut geo, &mut open, None);
    geo
}

/// Ends the ranges that end before `next`; behind each goes on the one around it.
fn close(geo: &mut Geo, open: &mut Vec<(u128, Option<usize>)>, next: Option<u128>) {
    while let Some((last, _)) = open.last().copied() {
        if next.is_some_and(|next| last >= next) {
            return;
        }
        open.pop();
        if let Some(behind) = last.checked_add(1) {
            mark(geo, behind, open.last().and_then(|(_, owner)| *owner));
        }
    }
}

fn mark(geo: &mut Geo, start: u128, owner: Option<usize>) {
    if geo.starts.last() == Some(&start) {
        geo.starts.pop();
        geo.owners.pop();
    }
    geo.starts.push(start);
    geo.owners.push(owner);
}

#[cfg(test)]
mod tests {

    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    fn geo(networks: &[&str]) -> Geo {
        flatten(
            networks
                .iter()
                .map(|text| (text.parse().unwrap(), Template::literal(text)))
                .collect(),
        )
    }

    fn find<'a>(geo: &'a Geo, address: &str) -> Option<&'a str> {
        geo.find(address.parse().unwrap())
            .and_then(Template::as_literal)
    }

    #[test]
    fn the_longest_prefix_wins() {
        let geo = geo(&["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "0.0.0.0/0"]);
        assert_eq!(find(&geo, "10.1.2.3"), Some("10.1.2.3/32"));
        assert_eq!(find(&geo, "10.1.2.4"), Some("10.1.0.0/16"));
        assert_eq!(find(&geo, "10.2.0.0"), Some("10.0.0.0/8"));
        assert_eq!(find(&geo, "192.0.2.1"), Some("0.0.0.0/0"));
        assert_eq!(find(&geo, "255.255.255.255"), Some("0.0.0.0/0"));
        assert_eq!(find(&geo, "2001:db8::1"), None);
    }

    #[test]
    fn all_of_ipv6_is_not_all_of_ipv4() {
        let geo = geo(&["::/0", "10.0.0.0/8"]);
        assert_eq!(find(&geo, "2001:db8::1"), Some("::/0"));
        assert_eq!(
            find(&geo, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            Some("::/0")
        );
        assert_eq!(find(&geo, "192.0.2.1"), None);
        assert_eq!(find(&geo, "10.0.0.1"), Some("10.0.0.0/8"));
    }

    proptest! {
        #[test]
        fn agrees_with_looking_at_every_network(
            networks in prop::collection::hash_map((any::<u8>(), 0u8..=8), any::<u16>(), 0..20),
            probe in any::<u8>(),
        ) {
            let networks: Vec<(IpNet, Template)> = networks
                .into_iter()
                .map(|((first, length), value)| {
                    let address = IpAddr::from([first, 0, 0, 0]);
                    (IpNet::new(address, length).unwrap().trunc(), Template::literal(&value.to_string()))
                })
                .collect::<HashMap<_, _>>()
                .into_iter()
                .collect();
            let probe = IpAddr::from([probe, 1, 2, 3]);
            let expected = networks
                .iter()
                .filter(|(network, _)| network.contains(&probe))
                .max_by_key(|(network, _)| network.prefix_len())
                .map(|(_, value)| value.clone());
            prop_assert_eq!(flatten(networks).find(probe).cloned(), expected);
        }
    }
}
