//! Which fields of a log the limits need, and how a line becomes an entry with their values.
//!
//! Address, target, method and host of a request are put where they belong. Every other variable that a key is made of is
//! taken from the log: in the plan that replay works with, it is replaced by a header that only replay sets. What the log
//! lacks is found out before anything is read.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use http::HeaderName;
use memchr::{memchr, memrchr};

use super::format::{CutFields, EscapeStyle, InputFormat, LineSplitter, unescape};
use super::order::LogEntry;
use super::time::{self, LogTime};
use crate::config::plan::{
    CostSource, LocationConf, Map, MapLookup, Part, Plan, Template, Variable,
};
use crate::config::variable_name;
use crate::message::encode_path;

/// Reads lines of one format.
#[derive(Debug)]
pub(super) struct LineParser {
    needs: FieldPlan,
    splitter: LineSplitter,
    escape: EscapeStyle,
    cut: CutFields,
    /// The last time as text and parsed: a busy log has the same one many times.
    last_time: (Vec<u8>, Option<LogTime>),
    scratch: Vec<u8>,
    texts: Vec<u8>,
}

impl LineParser {
    pub(super) fn new(needs: FieldPlan, format: &InputFormat) -> Self {
        Self {
            splitter: format.splitter(&needs.names),
            escape: format.escape(),
            needs,
            cut: CutFields::default(),
            last_time: (Vec::new(), None),
            scratch: Vec::new(),
            texts: Vec::new(),
        }
    }

    /// Parses a line; `None` if it is malformed. Its texts stay until the next one.
    pub(super) fn read(&mut self, line: &[u8], position: (u32, u64)) -> Option<LogEntry> {
        if !self.splitter.split(line, &mut self.cut) {
            return None;
        }
        let value = |at: usize| self.cut.value(line, at);
        let client = address(value(self.needs.address))?;
        let took = match self.needs.took.map(value) {
            None | Some(b"") => None,
            Some(text) => Some(u32::try_from(time::seconds(text)?).unwrap_or(u32::MAX)),
        };
        let time = self.time(line)?;
        self.write_texts(line);
        Some(LogEntry {
            at: time.millis,
            precision: time.precision,
            took,
            client,
            file: position.0,
            line: position.1,
            texts: (0, 0),
        })
    }

    /// The texts of the line that was parsed last; see [`texts`].
    pub(super) fn texts(&self) -> &[u8] {
        &self.texts
    }

    fn time(&mut self, line: &[u8]) -> Option<LogTime> {
        let text = self.cut.value(line, self.needs.time);
        let (last, time) = &mut self.last_time;
        if last != text {
            last.clear();
            last.extend_from_slice(text);
            *time = LogTime::parse(text);
        }
        *time
    }

    fn write_texts(&mut self, line: &[u8]) {
        self.texts.clear();
        let (cut, escape, texts) = (&self.cut, self.escape, &mut self.texts);
        let plain = |at: usize, scratch: &mut Vec<u8>| {
            scratch.clear();
            unescape(cut.value(line, at), escape, scratch);
        };
        let scratch = &mut self.scratch;
        match self.needs.target {
            TargetSource::Request(at) => {
                plain(at, scratch);
                let (method, target) = request_line(scratch);
                push(texts, method);
                push(texts, target);
            }
            from => {
                scratch.clear();
                self.needs
                    .method
                    .into_iter()
                    .for_each(|at| plain(at, scratch));
                let method = memchr(b' ', scratch).unwrap_or(scratch.len());
                push(texts, &scratch[..method]);
                match from {
                    TargetSource::Target(at) => plain(at, scratch),
                    TargetSource::Path(at) => {
                        plain(at, scratch);
                        let mut target = encode_path(scratch).into_bytes();
                        self.needs
                            .args
                            .into_iter()
                            .for_each(|at| plain(at, scratch));
                        if self.needs.args.is_some() && !scratch.is_empty() {
                            target.push(b'?');
                            target.extend_from_slice(scratch);
                        }
                        *scratch = target;
                    }
                    TargetSource::Nowhere | TargetSource::Request(_) => scratch.clear(),
                }
                push(texts, scratch);
            }
        }
        for at in self.needs.host.into_iter().chain(self.needs.port) {
            plain(at, scratch);
            push(texts, scratch);
        }
        for (_, at) in &self.needs.fields {
            plain(*at, scratch);
            push(texts, scratch);
        }
    }
}

/// The texts of an entry in order: method, target, host and port if they are logged, then the fields.
pub(super) fn texts(mut texts: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = texts.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        texts = rest;
        Some(text)
    })
}

fn push(texts: &mut Vec<u8>, text: &[u8]) {
    // A line has at most a megabyte.
    let length = u32::try_from(text.len()).unwrap_or(0);
    texts.extend_from_slice(&length.to_le_bytes());
    texts.extend_from_slice(text);
}

/// Method and target of a request line; a malformed one has no target.
fn request_line(line: &[u8]) -> (&[u8], &[u8]) {
    let Some(first) = memchr(b' ', line) else {
        return (line, b"");
    };
    let (method, rest) = (&line[..first], &line[first + 1..]);
    let target = match memrchr(b' ', rest) {
        Some(last) if rest[last + 1..].starts_with(b"HTTP/") => &rest[..last],
        _ => rest,
    };
    (method, target)
}

/// An address; `Some(None)` for a client on a unix socket.
fn address(text: &[u8]) -> Option<Option<IpAddr>> {
    if let Some(address) = dotted(text) {
        return Some(Some(address.into()));
    }
    let text = std::str::from_utf8(text).ok()?;
    if text.starts_with("unix:") {
        return Some(None);
    }
    text.parse().ok().map(Some)
}

/// An IPv4 address.
// By hand, because every line has one.
fn dotted(text: &[u8]) -> Option<Ipv4Addr> {
    let mut octets = [0_u8; 4];
    let (mut index, mut digits, mut number) = (0, 0, 0_u32);
    for &byte in text {
        match byte {
            b'0'..=b'9' if digits < 3 => {
                number = number * 10 + u32::from(byte - b'0');
                digits += 1;
            }
            b'.' if digits > 0 && index < 3 => {
                octets[index] = u8::try_from(number).ok()?;
                (index, digits, number) = (index + 1, 0, 0);
            }
            _ => return None,
        }
    }
    octets[index] = u8::try_from(number).ok()?;
    (index == 3 && digits > 0).then(|| octets.into())
}

/// Where the parts of a request stand in a line: indices into `names`.
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
    /// Headers that replay sets, and the variable of each.
    pub(super) fields: Vec<(HeaderName, usize)>,
}

/// What the target of a request is taken from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum TargetSource {
    /// `$uri`, decoded; the query is in `args` or not logged.
    Path(usize),
    /// `$request`: the whole line.
    Request(usize),
    /// `$request_uri`
    Target(usize),
    #[default]
    Nowhere,
}

/// Variables that the limits need and the log lacks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingFields {
    /// The variable, without the dollar sign; several where any of them is enough.
    pub variables: Vec<String>,
    /// The zone whose key needs it; none if every request does.
    pub zone: Option<String>,
}

impl FieldPlan {
    /// Finds the variables that a plan needs in a format, and makes the plan take them from where replay puts them. `host`
    /// tells whether the host is known without the log.
    pub(super) fn find(
        plan: &mut Plan,
        format: &InputFormat,
        host: bool,
    ) -> Result<Self, Vec<MissingFields>> {
        let mut finder = FieldFinder {
            needs: Self::default(),
            known: format.variables().into_iter().map(str::to_owned).collect(),
            missing: Vec::new(),
        };
        finder.request();
        for (name, key) in keys_in_use(plan, finder.needs.took.is_some()) {
            finder.key(key, &plan.maps, name, host);
        }
        for (name, cost) in costs(plan) {
            finder.cost(cost, &plan.maps, name, host);
        }
        if !finder.missing.is_empty() {
            // The values of a map have no order.
            finder.missing.sort();
            return Err(finder.missing);
        }
        finder.needs.replace(plan);
        Ok(finder.needs)
    }

    /// Replaces variables that only the log knows by headers.
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
            let location_confs = locations.map(|location| &mut location.conf);
            for rule in location_confs
                .chain([&mut server.fallback])
                .flat_map(|conf| &mut conf.limit_req)
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

/// The settings of every location, and those of servers outside their locations.
pub(super) fn location_confs(plan: &Plan) -> impl Iterator<Item = &LocationConf> {
    plan.servers.iter().flat_map(|server| {
        let locations = server.locations.iter().map(|location| &location.conf);
        locations.chain([&server.fallback])
    })
}

/// The keys of all zones that are used, with the zone's name; those of `limit_conn` only if they are replayed.
fn keys_in_use(plan: &Plan, connections: bool) -> Vec<(&str, &Template)> {
    let req: BTreeSet<usize> = location_confs(plan)
        .flat_map(|conf| conf.limit_req.iter().map(|rule| rule.zone))
        .collect();
    let conn: BTreeSet<usize> = location_confs(plan)
        .filter(|_| connections)
        .flat_map(|conf| conf.limit_conn.iter().map(|rule| rule.zone))
        .collect();
    let req = req
        .into_iter()
        .map(|index| (&*plan.req_zones[index].name, &plan.req_zones[index].key));
    let conn = conn
        .into_iter()
        .map(|index| (&*plan.conn_zones[index].name, &plan.conn_zones[index].key));
    req.chain(conn).collect()
}

/// What requests cost, with the name of the zone.
fn costs(plan: &Plan) -> impl Iterator<Item = (&str, &CostSource)> {
    let rules = location_confs(plan).flat_map(|conf| &conf.limit_req);
    rules.map(|rule| (&*plan.req_zones[rule.zone].name, &rule.weight))
}

struct FieldFinder {
    needs: FieldPlan,
    known: BTreeSet<String>,
    missing: Vec<MissingFields>,
}

impl FieldFinder {
    /// What every request needs.
    fn request(&mut self) {
        let missing = |variables: &[&str]| MissingFields {
            variables: variables.iter().map(|name| (*name).to_owned()).collect(),
            zone: None,
        };
        match self.first(&["remote_addr"]) {
            Some(address) => self.needs.address = address,
            None => self.missing.push(missing(&["remote_addr"])),
        }
        match self.first(&["msec", "time", "time_iso8601", "time_local"]) {
            Some(time) => self.needs.time = time,
            None => {
                let names = ["msec", "time_iso8601", "time_local"];
                self.missing.push(missing(&names));
            }
        }
        self.needs.target = if let Some(at) = self.first(&["request_uri"]) {
            TargetSource::Target(at)
        } else if let Some(at) = self.first(&["request"]) {
            TargetSource::Request(at)
        } else if let Some(at) = self.first(&["uri", "document_uri"]) {
            self.needs.args = self.first(&["args", "query_string"]);
            TargetSource::Path(at)
        } else {
            self.missing.push(missing(&["request", "request_uri"]));
            TargetSource::Nowhere
        };
        self.needs.method = self.first(&["request_method", "request"]);
        self.needs.host = self.first(&["host", "http_host", "server_name"]);
        self.needs.port = self.first(&["server_port"]);
        self.needs.took = self.first(&["request_time"]);
    }

    /// What a zone's key needs.
    fn key(&mut self, key: &Template, maps: &[Map], zone: &str, host: bool) {
        for part in &key.parts {
            let Part::Variable(variable) = part else {
                continue;
            };
            let name = variable_name(variable, maps);
            match variable {
                // Always known, or always the same.
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

    /// What the cost of a request needs when it comes.
    fn cost(&mut self, cost: &CostSource, maps: &[Map], zone: &str, host: bool) {
        match cost {
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

    /// The first of these variables that the log has.
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

/// All templates of a map.
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

#[cfg(test)]
mod tests {

    use proptest::prelude::*;

    use super::*;

    fn read(format: &str, line: &str) -> Option<(LogEntry, Vec<String>)> {
        let format = InputFormat::parse(format)
            .unwrap()
            .with_keys_of(line.as_bytes());
        let needs = FieldPlan::find(&mut crate::message::testing::plan(), &format, false).unwrap();
        let mut reading = LineParser::new(needs, &format);
        let entry = reading.read(line.as_bytes(), (0, 1))?;
        let found = texts(reading.texts()).map(|text| String::from_utf8_lossy(text).into_owned());
        let found = found.collect();
        Some((entry, found))
    }

    #[test]
    fn lines_of_all_formats_give_the_same_request() {
        let lines = [
            (
                "combined",
                r#"192.0.2.7 - - [16/Nov/2026:02:03:23 +0000] "GET /a\x22?b=c HTTP/1.1" 200 42 "-" "-""#,
            ),
            (
                "json",
                r#"{"time":"2026-11-16T02:03:23.000Z","remote_addr":"192.0.2.7","method":"GET","uri":"/a\"?b=c"}"#,
            ),
            (
                "$remote_addr $msec $request_method $uri $args",
                r"192.0.2.7 1794794603.000 GET /a\x22 b=c",
            ),
        ];
        for (format, line) in lines {
            let (entry, texts) = read(format, line).unwrap();
            assert_eq!(entry.at, 1_794_794_603_000);
            assert_eq!(entry.client, Some([192, 0, 2, 7].into()));
            assert_eq!(entry.took, None);
            assert_eq!(texts[0], "GET");
            assert!(["/a\"?b=c", "/a%22?b=c"].contains(&&*texts[1]), "{texts:?}");
        }
    }

    #[test]
    fn the_request_time_is_read_where_it_is_logged() {
        let (entry, _) = read(
            "$remote_addr [$msec] $request_time \"$request\"",
            "::1 [5.000] 1.250 \"GET / HTTP/1.0\"",
        )
        .unwrap();
        assert_eq!(entry.took, Some(1_250));
        assert_eq!(entry.client, Some(std::net::Ipv6Addr::LOCALHOST.into()));
    }

    #[test]
    fn a_malformed_request_has_no_target() {
        for request in ["-", r"\x16\x03\x01", ""] {
            let line = format!(
                "192.0.2.7 - - [16/Nov/2026:02:03:23 +0000] \"{request}\" 400 0 \"-\" \"-\""
            );
            assert_eq!(read("combined", &line).unwrap().1[1], "", "{request}");
        }
    }

    #[test]
    fn a_line_without_time_or_address_is_malformed() {
        let lines = [
            "x - - [16/Nov/2026:02:03:23 +0000] \"GET / HTTP/1.1\" 200 0 \"-\" \"-\"",
            "1.2.3.4 - - [soon] \"GET / HTTP/1.1\" 200 0 \"-\" \"-\"",
        ];
        for line in lines {
            assert!(read("combined", line).is_none(), "{line}");
        }
    }

    proptest! {
        #[test]
        fn addresses_are_parsed_as_by_the_standard_library(text in "[0-9a-f.:]{0,17}") {
            let expected = text.parse::<IpAddr>().ok();
            // The standard library refuses leading zeros.
            if !text.split('.').any(|part| part.len() > 1 && part.starts_with('0')) {
                prop_assert_eq!(address(text.as_bytes()), expected.map(Some));
            }
        }
    }
}
