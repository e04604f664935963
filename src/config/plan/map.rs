//! `maps`: variables made from other variables.

use std::collections::HashMap;
use std::net::IpAddr;

use regex::bytes::Regex;

use super::{ServerName, Template};

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
