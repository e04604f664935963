//! What the limits want to know of a request, and where in a log it stands.
//!
//! Address, target, method and host of a request are put where they belong. Everything else that a key is made of is
//! taken from the log as it stands there: in the plan that replay works with, such a variable is replaced by a header
//! field that only replay sets. What the log does not have is found out here, before anything is read.

use std::collections::BTreeSet;

use http::HeaderName;

use super::format::InputFormat;
use crate::config::plan::{
    CostSource, LocationConf, Map, MapLookup, Part, Plan, Template, Variable,
};
use crate::config::variable_name;

/// Where in a line the parts of a request stand: indices into `names`.
#[derive(Debug, Clone, Default)]
pub(super) struct FieldPlan {
    /// The variables to look for in a line.
    pub(super) names: Vec<String>,
    pub(super) address: usize,
    pub(super) time: usize,
    pub(super) target: TargetSource,
    pub(super) method: Option<usize>,
    pub(super) args: Option<usize>,
    pub(super) host: Option<usize>,
    pub(super) port: Option<usize>,
    pub(super) took: Option<usize>,
    /// Header fields that replay sets, and what from.
    pub(super) fields: Vec<(HeaderName, usize)>,
}

/// What the target of a request is taken from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum TargetSource {
    /// `$uri`, decoded; the query is elsewhere or lost.
    Path(usize),
    /// `$request`: the whole line.
    Request(usize),
    /// `$request_uri`
    Target(usize),
    #[default]
    Nowhere,
}

/// What a log would have to say and does not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingFields {
    /// The variable, without the dollar sign; several where any of them would do.
    pub variables: Vec<String>,
    /// The zone whose key needs it; none if every request does.
    pub zone: Option<String>,
}

impl FieldPlan {
    /// Finds in a format all that a plan needs, and makes the plan look for it where replay puts it. `host` says
    /// whether the host is known without the log.
    pub(super) fn find(
        plan: &mut Plan,
        format: &InputFormat,
        host: bool,
    ) -> Result<Self, Vec<MissingFields>> {
        let mut finder = FieldFinder {
            needs: Self::default(),
            known: format.names().into_iter().map(str::to_owned).collect(),
            missing: Vec::new(),
        };
        finder.request();
        for (name, key) in keys_in_use(plan, finder.needs.took.is_some()) {
            finder.key(key, &plan.maps, name, host);
        }
        for (name, weight) in weights(plan) {
            finder.weight(weight, &plan.maps, name, host);
        }
        if !finder.missing.is_empty() {
            // A map's values come in no order.
            finder.missing.sort();
            return Err(finder.missing);
        }
        finder.needs.replace(plan);
        Ok(finder.needs)
    }

    /// Puts header fields in the place of what only the log knows.
    fn replace(&self, plan: &mut Plan) {
        let names: Vec<String> = plan.maps.iter().map(|map| map.name.to_string()).collect();
        let replace = |template: &mut Template| {
            for part in &mut template.parts {
                let Part::Variable(variable) = part else {
                    continue;
                };
                let name = match &*variable {
                    Variable::Map(index) => names.get(*index).cloned().unwrap_or_default(),
                    other => variable_name(other, &[]),
                };
                let mut fields = self.fields.iter();
                if let Some((field, _)) = fields.find(|(_, at)| self.names[*at] == name) {
                    *variable = Variable::Http(field.clone());
                }
            }
        };
        let req = plan.req_zones.iter_mut().map(|zone| &mut zone.key);
        let conn = plan.conn_zones.iter_mut().map(|zone| &mut zone.key);
        req.chain(conn).for_each(replace);
        for server in &mut plan.servers {
            let locations = server.locations.iter_mut();
            let sites = locations.map(|location| &mut location.site);
            for rule in sites
                .chain([&mut server.fallback])
                .flat_map(|site| &mut site.limit_req)
            {
                if let CostSource::Before(template) = &mut rule.weight {
                    replace(template);
                }
            }
        }
        for map in &mut plan.maps {
            replace(&mut map.source);
            replace(&mut map.default);
            match &mut map.lookup {
                MapLookup::Geo(geo) => geo.values.iter_mut().for_each(replace),
                MapLookup::Values(values) => {
                    values.exact.values_mut().for_each(replace);
                    values
                        .hostnames
                        .iter_mut()
                        .for_each(|(_, value)| replace(value));
                    values
                        .expressions
                        .iter_mut()
                        .for_each(|(_, value)| replace(value));
                }
            }
        }
    }
}

/// Every place that says what holds for a request.
pub(super) fn sites(plan: &Plan) -> impl Iterator<Item = &LocationConf> {
    plan.servers.iter().flat_map(|server| {
        let locations = server.locations.iter().map(|location| &location.site);
        locations.chain([&server.fallback])
    })
}

/// The keys of all zones that some place uses, by the zone's name; those of `limit_conn` only if they are replayed.
fn keys_in_use(plan: &Plan, connections: bool) -> Vec<(&str, &Template)> {
    let req: BTreeSet<usize> = sites(plan)
        .flat_map(|site| site.limit_req.iter().map(|rule| rule.zone))
        .collect();
    let conn: BTreeSet<usize> = sites(plan)
        .filter(|_| connections)
        .flat_map(|site| site.limit_conn.iter().map(|rule| rule.zone))
        .collect();
    let req = req
        .into_iter()
        .map(|index| (&*plan.req_zones[index].name, &plan.req_zones[index].key));
    let conn = conn
        .into_iter()
        .map(|index| (&*plan.conn_zones[index].name, &plan.conn_zones[index].key));
    req.chain(conn).collect()
}

/// What requests weigh, by the name of the zone.
fn weights(plan: &Plan) -> impl Iterator<Item = (&str, &CostSource)> {
    let rules = sites(plan).flat_map(|site| &site.limit_req);
    rules.map(|rule| (&*plan.req_zones[rule.zone].name, &rule.weight))
}

struct FieldFinder {
    needs: FieldPlan,
    known: BTreeSet<String>,
    missing: Vec<MissingFields>,
}

impl FieldFinder {
    /// What is needed of every request.
    fn request(&mut self) {
        let everybody = |variables: &[&str]| MissingFields {
            variables: variables.iter().map(|name| (*name).to_owned()).collect(),
            zone: None,
        };
        match self.first(&["remote_addr"]) {
            Some(address) => self.needs.address = address,
            None => self.missing.push(everybody(&["remote_addr"])),
        }
        match self.first(&["msec", "time", "time_iso8601", "time_local"]) {
            Some(time) => self.needs.time = time,
            None => self
                .missing
                .push(everybody(&["msec", "time_iso8601", "time_local"])),
        }
        self.needs.target = if let Some(at) = self.first(&["request_uri"]) {
            TargetSource::Target(at)
        } else if let Some(at) = self.first(&["request"]) {
            TargetSource::Request(at)
        } else if let Some(at) = self.first(&["uri", "document_uri"]) {
            self.needs.args = self.first(&["args", "query_string"]);
            TargetSource::Path(at)
        } else {
            self.missing.push(everybody(&["request", "request_uri"]));
            TargetSource::Nowhere
        };
        self.needs.method = self.first(&["request_method", "request"]);
        self.needs.host = self.first(&["host", "http_host", "server_name"]);
        self.needs.port = self.first(&["server_port"]);
        self.needs.took = self.first(&["request_time"]);
    }

    /// What is needed for a zone's key.
    fn key(&mut self, key: &Template, maps: &[Map], zone: &str, host: bool) {
        for part in &key.parts {
            let Part::Variable(variable) = part else {
                continue;
            };
            let name = variable_name(variable, maps);
            match variable {
                // Always there, or never different.
                Variable::BinaryRemoteAddr
                | Variable::Hostname
                | Variable::Pid
                | Variable::RemoteAddr
                | Variable::RequestUri
                | Variable::ServerName
                | Variable::Uri => {}
                Variable::Arg(_) | Variable::Args | Variable::IsArgs => {
                    if matches!(self.needs.target, TargetSource::Path(_))
                        && self.needs.args.is_none()
                    {
                        self.lacks(&["args", "request_uri"], zone);
                    }
                }
                Variable::RequestMethod if self.needs.method.is_some() => {}
                Variable::Host if self.needs.host.is_some() || host => {}
                Variable::Map(index) if !self.known.contains(&name) => {
                    if let Some(map) = maps.get(*index) {
                        for template in templates(map) {
                            self.key(template, maps, zone, host);
                        }
                    }
                }
                Variable::Cookie(_)
                    if !self.known.contains(&name) && self.known.contains("http_cookie") =>
                {
                    self.field(http::header::COOKIE, "http_cookie");
                }
                _ if self.known.contains(&name) => {
                    let field = format!("weir-replay-{}", self.needs.fields.len());
                    if let Ok(field) = HeaderName::try_from(field) {
                        self.field(field, &name);
                    }
                }
                Variable::Cookie(_) => self.lacks(&[&name, "http_cookie"], zone),
                _ => self.lacks(&[&name], zone),
            }
        }
    }

    /// What is needed to know what a request weighs when it comes.
    fn weight(&mut self, weight: &CostSource, maps: &[Map], zone: &str, host: bool) {
        match weight {
            CostSource::Before(template) => self.key(template, maps, zone, host),
            CostSource::RequestBytes if self.known.contains("content_length") => {
                self.field(http::header::CONTENT_LENGTH, "content_length");
            }
            CostSource::RequestBytes => self.lacks(&["content_length"], zone),
            CostSource::After(_) | CostSource::Fixed(_) | CostSource::ResponseBytes => {}
        }
    }

    fn field(&mut self, field: HeaderName, name: &str) {
        let at = self.want(name);
        if !self.needs.fields.iter().any(|(_, other)| *other == at) {
            self.needs.fields.push((field, at));
        }
    }

    fn lacks(&mut self, names: &[&str], zone: &str) {
        let missing = MissingFields {
            variables: names.iter().map(|name| (*name).to_owned()).collect(),
            zone: Some(zone.to_owned()),
        };
        if !self.missing.contains(&missing) {
            self.missing.push(missing);
        }
    }

    /// The first of these that the log has.
    fn first(&mut self, names: &[&str]) -> Option<usize> {
        let name = names.iter().find(|name| self.known.contains(**name))?;
        Some(self.want(name))
    }

    fn want(&mut self, name: &str) -> usize {
        let names = &mut self.needs.names;
        names
            .iter()
            .position(|known| known == name)
            .unwrap_or_else(|| {
                names.push(name.to_owned());
                names.len() - 1
            })
    }
}

/// All that a map may become, and what decides about it.
fn templates(map: &Map) -> Vec<&Template> {
    let mut all = vec![&map.source, &map.default];
    match &map.lookup {
        MapLookup::Geo(geo) => all.extend(&geo.values),
        MapLookup::Values(values) => {
            all.extend(values.exact.values());
            all.extend(values.hostnames.iter().map(|(_, value)| value));
            all.extend(values.expressions.iter().map(|(_, value)| value));
        }
    }
    all
}
