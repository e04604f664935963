//! Every request before its limits, and what they say written down.
//!
//! An entry becomes a request again: found its server and location, ready to be asked about.
//!
//! One request stands for all of them, filled anew for each, so that nothing is built per line that the last line has
//! built already.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, Uri, Version, header};

use super::concurrency::{ActiveRequests, SlotProgress, SlotRequest, SlotResult};
use super::fields::{FieldPlan, location_confs};
use super::order::LogEntry;
use super::report::{ReplayReport, ZoneKind, ZoneReport};
use super::run::{ReplayOptions, RequestObserver};
use super::stats::ZoneEvent;
use super::suggest::Arrivals;
use super::{fields, stats, suggest};
use crate::algorithm::{Delay, Excess, LimitSpec};
use crate::clock::Millis;
use crate::config::plan::{self, Content, Plan, ReqRule, SocketAddress};
use crate::limits::{self, Limits, Zones};
use crate::message::{
    ClientAddr, ClientConnection, LimitStatus, RemoteAddr, RequestRecord, Target,
};
use crate::route::{Hosts, RouteTable};

/// What became of one request.
#[derive(Debug, Clone, Copy)]
pub struct ReplayVerdict<'a> {
    /// Where its line stands.
    pub file: &'a str,
    /// See `file`.
    pub line: u64,
    /// When it came, in milliseconds since the Unix epoch.
    pub at: i64,
    /// In a word: pass, delay, refuse; unlimited, early or malformed where no limit was asked.
    pub word: &'static str,
    /// The zone that refused it.
    pub zone: Option<&'a str>,
    /// For how long it waits, in milliseconds.
    pub delay: Option<u64>,
    /// What `$limit_req_status` would say.
    pub limit_req: Option<LimitStatus>,
}

/// Judges requests in the order they came.
pub(super) struct Evaluator<'a> {
    plan: Arc<Plan>,
    zones: Zones,
    court: ReplayRouter,
    /// Those of `limit_req`, then those of `limit_conn`.
    tallies: Vec<stats::ZoneStats>,
    /// For each `limit_req` zone, where it is asked for.
    arrivals: Vec<Option<Arrivals>>,
    crowd: ActiveRequests,
    /// Whether it is known how long requests took.
    timed: bool,
    options: ReplayOptions,
    files: Vec<Box<str>>,
    report: ReplayReport,
    each: Option<RequestObserver<'a>>,
    failure: Option<io::Error>,
}

impl<'a> Evaluator<'a> {
    pub(super) fn new(
        plan: Arc<Plan>,
        needs: &FieldPlan,
        options: &ReplayOptions,
        files: Vec<Box<str>>,
        each: Option<RequestObserver<'a>>,
    ) -> Self {
        let zones = Zones::build(&plan);
        let wanted = |name: &str| {
            let suggest = options.suggest.as_ref();
            options.curves
                || suggest
                    .is_some_and(|suggest| suggest.zone.as_deref().is_none_or(|only| only == name))
        };
        Self {
            court: ReplayRouter::new(Arc::clone(&plan), &zones, needs, options.host.as_deref()),
            tallies: (0..plan.req_zones.len() + plan.conn_zones.len())
                .map(|_| stats::ZoneStats::default())
                .collect(),
            arrivals: plan
                .req_zones
                .iter()
                .map(|zone| wanted(&zone.name).then(Arrivals::default))
                .collect(),
            zones,
            plan,
            crowd: ActiveRequests::default(),
            timed: needs.took.is_some(),
            options: options.clone(),
            files,
            report: ReplayReport::default(),
            each,
            failure: None,
        }
    }

    /// What went wrong with telling.
    pub(super) fn check(&mut self) -> io::Result<()> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Judges one request. They come in order.
    pub(super) fn judge(&mut self, entry: &LogEntry, texts: &[u8]) {
        self.advance(entry.at);
        let now = Millis(u64::try_from(entry.at).unwrap_or(0));
        let outcome = match self.court.way(entry, texts, now) {
            Routed::Early => RequestOutcome::Early,
            Routed::Malformed => RequestOutcome::Malformed,
            Routed::Limits(spot, record) => {
                let (tallies, arrivals) = (&mut self.tallies, &mut self.arrivals);
                let verdict = spot.limits.ask_requests_with_observer(
                    record,
                    now,
                    |record, rule, key, said| {
                        let zone = spot.req[rule];
                        let event = ZoneEvent {
                            verdict: said,
                            at: entry.at,
                            line: (entry.file, entry.line),
                        };
                        let label = || spot.limits.request_label(rule, record);
                        let id = tallies[zone].count(key, event, label);
                        if let Some(arrivals) = &mut arrivals[zone]
                            && !spot.limits.has_override(rule, record)
                        {
                            arrivals.add(id, now.0);
                        }
                    },
                );
                let status = record.limit_req;
                match verdict {
                    limits::Admission::Refuse(refusal) => RequestOutcome::Refuse(status, refusal),
                    verdict if self.timed && !spot.conn.is_empty() => {
                        let waited = wait(&verdict);
                        let coming = coming(spot, record, entry, waited);
                        self.crowd.expect(coming);
                        return self.advance(entry.at);
                    }
                    verdict => RequestOutcome::GoOn(status, wait(&verdict)),
                }
            }
        };
        self.conclude(entry, outcome);
    }

    /// Lets everybody take their places who is still to come.
    pub(super) fn settle(&mut self) {
        self.advance(i64::MAX);
    }

    /// Lets those take their places whose time has come.
    fn advance(&mut self, until: i64) {
        while let Some((coming, ending)) = self.crowd.next(until) {
            let mut refusing = None;
            for (rule, word) in &coming.progress.said {
                let zone = coming.spot.conn[*rule];
                let (key, label) = &coming.keys[*rule];
                let event = ZoneEvent {
                    verdict: *word,
                    at: coming.at,
                    line: coming.line,
                };
                self.tallies[self.plan.req_zones.len() + zone].count(key, event, || label.clone());
                if ending == SlotResult::Refuse {
                    refusing = Some(zone);
                }
            }
            let (word, counter) = match (ending, coming.waited) {
                (SlotResult::Refuse, _) => ("refuse", &mut self.report.requests.refuse),
                (SlotResult::GoOn, Some(_)) => ("delay", &mut self.report.requests.delay),
                (SlotResult::GoOn, None) => ("pass", &mut self.report.requests.pass),
            };
            *counter += 1;
            let plan = Arc::clone(&self.plan);
            self.tell(
                &ReplayVerdict {
                    file: "",
                    line: coming.line.1,
                    at: coming.came,
                    word,
                    zone: refusing.map(|zone| &*plan.conn_zones[zone].name),
                    delay: coming.waited,
                    limit_req: coming.status,
                },
                coming.line.0,
            );
        }
    }

    /// Counts and tells what became of a request.
    fn conclude(&mut self, entry: &LogEntry, outcome: RequestOutcome) {
        let report = &mut self.report;
        if !matches!(outcome, RequestOutcome::Malformed) {
            report.span.get_or_insert((entry.at, entry.at)).1 = entry.at;
        }
        let (word, counter, status, delay) = match &outcome {
            RequestOutcome::Early => ("early", &mut report.early, None, None),
            RequestOutcome::Malformed => ("malformed", &mut report.malformed, None, None),
            RequestOutcome::GoOn(None, _) => ("unlimited", &mut report.unlimited, None, None),
            RequestOutcome::GoOn(status, None) => {
                ("pass", &mut report.requests.pass, *status, None)
            }
            RequestOutcome::GoOn(status, delay) => {
                ("delay", &mut report.requests.delay, *status, *delay)
            }
            RequestOutcome::Refuse(status, _) => {
                ("refuse", &mut report.requests.refuse, *status, None)
            }
        };
        *counter += 1;
        let verdict = ReplayVerdict {
            file: "",
            line: entry.line,
            at: entry.at,
            word,
            zone: match &outcome {
                RequestOutcome::Refuse(_, refusal) => Some(refusal.zone()),
                _ => None,
            },
            delay,
            limit_req: status,
        };
        self.tell(&verdict, entry.file);
    }

    fn tell(&mut self, verdict: &ReplayVerdict<'_>, file: u32) {
        let Some(each) = &mut self.each else {
            return;
        };
        let file = self.files.get(file as usize).map_or("", |name| &**name);
        if let Err(error) = each(&ReplayVerdict { file, ..*verdict }) {
            self.failure.get_or_insert(error);
        }
    }

    /// All that was found out about the zones.
    pub(super) fn report(mut self) -> ReplayReport {
        let arrivals = std::mem::take(&mut self.arrivals);
        let mut zones = Vec::new();
        let tallies = std::mem::take(&mut self.tallies);
        let (req, conn) = tallies.split_at(self.plan.req_zones.len());
        for ((index, tally), arrivals) in req.iter().enumerate().zip(arrivals) {
            zones.push(self.requests_zone(index, tally, arrivals));
        }
        if self.timed {
            let conn = conn.iter().enumerate();
            zones.extend(conn.map(|(index, tally)| self.connections_zone(index, tally)));
        }
        self.report.zones = zones;
        self.report
    }

    fn requests_zone(
        &self,
        index: usize,
        tally: &stats::ZoneStats,
        arrivals: Option<Arrivals>,
    ) -> ZoneReport {
        let zone = &self.plan.req_zones[index];
        let rules: Vec<&ReqRule> = location_confs(&self.plan)
            .flat_map(|conf| &conf.limit_req)
            .filter(|rule| rule.zone == index)
            .collect();
        let burst = rules.iter().map(|rule| rule.burst).max();
        let rate = zone.algorithm.values().rate;
        let whole = burst.map_or(0, |burst| {
            u32::try_from(burst.0 / Excess::ONE.0).unwrap_or(u32::MAX)
        });
        let mut told = self.zone(&zone.name, ZoneKind::Requests, tally);
        told.allows = allows(&zone.algorithm.to_string(), &rules);
        told.rate = rate.map(suggest::per_second);
        told.quota =
            burst.map(|burst| LimitSpec::new(&zone.algorithm, burst, Delay::Never).quota());
        told.evictions = self.zones.req[index].store.evictions();
        if let Some(grouped) = arrivals.map(Arrivals::group) {
            told.curve = suggest::curve(&grouped, whole);
            let wanted = self.options.suggest.as_ref();
            let wanted = wanted.filter(|wanted| {
                wanted
                    .zone
                    .as_deref()
                    .is_none_or(|only| only == &*zone.name)
            });
            told.suggestion =
                wanted.and_then(|wanted| suggest::suggest(&grouped, wanted.at_most_millionths));
        }
        told
    }

    fn connections_zone(&self, index: usize, tally: &stats::ZoneStats) -> ZoneReport {
        let zone = &self.plan.conn_zones[index];
        let mut limits: Vec<u32> = location_confs(&self.plan)
            .flat_map(|conf| &conf.limit_conn)
            .filter(|rule| rule.zone == index)
            .map(|rule| rule.limit)
            .collect();
        limits.sort_unstable();
        limits.dedup();
        let limits: Vec<String> = limits.iter().map(u32::to_string).collect();
        let mut told = self.zone(&zone.name, ZoneKind::Connections, tally);
        told.allows = format!("{} at once", limits.join(" or "));
        told.evictions = self.zones.conn[index].store.evictions();
        told
    }

    fn zone(&self, name: &str, kind: ZoneKind, tally: &stats::ZoneStats) -> ZoneReport {
        let hardest = tally.hardest();
        let mut peaks = BTreeMap::new();
        for key in &hardest {
            *peaks.entry(key.peak).or_default() += 1;
        }
        ZoneReport {
            name: name.into(),
            kind,
            allows: String::new(),
            rate: None,
            quota: None,
            counts: tally.counts,
            evictions: 0,
            keys: tally.len(),
            forgotten: (tally.forgotten > 0).then_some(tally.forgotten_most),
            top: hardest
                .into_iter()
                .take(self.options.top)
                .cloned()
                .collect(),
            waits: tally.waits.clone(),
            timeline: tally.timeline.clone(),
            peaks: peaks.into_iter().collect(),
            curve: Vec::new(),
            suggestion: None,
        }
    }
}

/// What became of a request, before it is counted.
#[derive(Debug)]
enum RequestOutcome {
    Early,
    /// Its `limit_req` status, and for how long it waits.
    GoOn(Option<LimitStatus>, Option<u64>),
    Malformed,
    Refuse(Option<LimitStatus>, limits::Refusal),
}

fn wait(verdict: &limits::Admission) -> Option<u64> {
    match verdict {
        limits::Admission::Delay(wait) => Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
        limits::Admission::Pass | limits::Admission::Refuse(_) => None,
    }
}

/// A request that wants its places after a wait.
fn coming(
    spot: &Arc<ReplayLocation>,
    record: &RequestRecord,
    entry: &LogEntry,
    waited: Option<u64>,
) -> SlotRequest {
    let keys = (0..spot.conn.len()).map(|rule| spot.limits.slot_key(rule, record));
    SlotRequest {
        places: spot.limits.slot_keys(record),
        keys: keys.collect(),
        spot: Arc::clone(spot),
        at: entry.at + waited.map_or(0, |waited| i64::try_from(waited).unwrap_or(0)),
        took: entry.took.unwrap_or(0),
        line: (entry.file, entry.line),
        came: entry.at,
        waited,
        status: record.limit_req,
        progress: SlotProgress::default(),
    }
}

/// What a zone allows, in the words of its rules.
fn allows(rate: &str, rules: &[&ReqRule]) -> String {
    let mut all: Vec<String> = rules
        .iter()
        .map(|rule| {
            let burst = rule.burst.0 / Excess::ONE.0;
            match rule.delay {
                Delay::Never => format!("burst {burst} nodelay"),
                Delay::After(Excess(0)) => format!("burst {burst}"),
                Delay::After(after) => format!("burst {burst} delay {}", after.0 / Excess::ONE.0),
            }
        })
        .collect();
    all.sort_unstable();
    all.dedup();
    match &all[..] {
        [] => format!("{rate}, used nowhere"),
        all => format!("{rate}, {}", all.join(" or ")),
    }
}

/// What a request is judged by: the servers and locations of a plan, and its zones.
#[derive(Debug)]
pub(super) struct ReplayRouter {
    plan: Arc<Plan>,
    table: RouteTable<Arc<ReplayLocation>>,
    /// All servers by name, for a log that does not say on which port they were asked.
    hosts: Hosts,
    record: RequestRecord,
    needs: RequestShape,
    given_host: Option<Box<[u8]>>,
    /// The host and port of the last request, and the server they lead to.
    last: (Vec<u8>, usize),
}

/// What stands in an entry's texts.
#[derive(Debug)]
struct RequestShape {
    host: bool,
    port: bool,
    fields: Vec<http::HeaderName>,
}

/// A location, or what holds where there is none.
#[derive(Debug)]
pub(super) struct ReplayLocation {
    pub(super) limits: Limits,
    /// The zones of its `limit_req` and of its `limit_conn`, by the plan's indices.
    pub(super) req: Box<[usize]>,
    pub(super) conn: Box<[usize]>,
    proxy_passes: bool,
}

/// What becomes of a request before its limits are asked.
#[derive(Debug)]
pub(super) enum Routed<'a> {
    /// It is answered before that: with a redirect, or because of its method.
    Early,
    /// To these limits.
    Limits(&'a Arc<ReplayLocation>, &'a mut RequestRecord),
    /// It is not one: answered with 400.
    Malformed,
}

impl ReplayRouter {
    pub(super) fn new(
        plan: Arc<Plan>,
        zones: &Zones,
        needs: &FieldPlan,
        host: Option<&str>,
    ) -> Self {
        let table = RouteTable::build(&plan, |conf| Arc::new(ReplayLocation::build(conf, zones)));
        let names = plan.servers.iter().enumerate().flat_map(|(index, server)| {
            let names = server.names.iter().cloned();
            names.map(move |name| (name, index))
        });
        let default = plan
            .listeners
            .first()
            .map_or(0, |listener| listener.default_server);
        let (head, ()) = Request::new(()).into_parts();
        let remote = RemoteAddr::Unix;
        let client = Arc::new(ClientConnection::new(remote, None, 0, Millis(0)));
        let mut record = RequestRecord::begin(
            Arc::clone(&plan),
            0,
            client,
            head,
            Target::default(),
            Millis(0),
        );
        // Not every log names the host, and this version can do without.
        record.head.version = Version::HTTP_10;
        Self {
            hosts: Hosts::build(names, default),
            plan,
            table,
            record,
            needs: RequestShape {
                host: needs.host.is_some(),
                port: needs.port.is_some(),
                fields: needs
                    .fields
                    .iter()
                    .map(|(field, _)| field.clone())
                    .collect(),
            },
            given_host: host.map(|host| host.as_bytes().into()),
            last: (Vec::new(), default),
        }
    }

    /// The way of a request that came at `now` on the limits' clock.
    pub(super) fn way(&mut self, entry: &LogEntry, texts: &[u8], now: Millis) -> Routed<'_> {
        if self.fill(entry, texts, now).is_none() {
            return Routed::Malformed;
        }
        let record = &mut self.record;
        if matches!(record.head.method, Method::CONNECT | Method::TRACE) {
            return Routed::Early;
        }
        let path = record.target.path(&record.head);
        let slash = self.table.redirects_to_slash(record.server, path);
        if slash.is_some_and(|spot| spot.proxy_passes) {
            return Routed::Early;
        }
        let spot = self.table.find(record.server, path);
        Routed::Limits(spot, record)
    }

    fn fill(&mut self, entry: &LogEntry, texts: &[u8], now: Millis) -> Option<()> {
        let mut texts = fields::texts(texts);
        let (method, target) = (texts.next()?, texts.next()?);
        let head = &mut self.record.head;
        head.method = match method {
            b"GET" | b"" => Method::GET,
            method => Method::from_bytes(method).ok()?,
        };
        head.uri = uri(target)?;
        let host = if self.needs.host { texts.next()? } else { b"" };
        let port = if self.needs.port { texts.next()? } else { b"" };
        let host = self.given_host.as_deref().unwrap_or(host);
        // Unset while it is not sure that they are good.
        let mut last = std::mem::take(&mut self.last.0);
        let same = last
            .strip_prefix(host)
            .and_then(|rest| rest.strip_prefix(b"\0"));
        let new = same != Some(port);
        if new {
            last.clear();
            last.extend_from_slice(host);
            last.push(0);
            last.extend_from_slice(port);
            head.headers.remove(header::HOST);
            if !host.is_empty() {
                let host = HeaderValue::from_bytes(host).ok()?;
                head.headers.insert(header::HOST, host);
            }
        }
        for (field, value) in self.needs.fields.iter().zip(texts) {
            if value.is_empty() {
                head.headers.remove(field);
            } else {
                head.headers.insert(field, safe_value(value));
            }
        }
        self.record.target = Target::parse(&self.record.head).ok()?;
        if new {
            self.last.1 = self.server(port);
        }
        self.last.0 = last;
        self.record.server = self.last.1;
        let remote = match entry.client {
            Some(address) => RemoteAddr::Ip(SocketAddr::new(address, 0)),
            None => RemoteAddr::Unix,
        };
        self.record.set_client(ClientAddr::new(remote));
        self.record.started = now;
        self.record.limit_req = None;
        self.record.limit_conn = None;
        Some(())
    }

    /// The server for the host that was filled in.
    fn server(&self, port: &[u8]) -> usize {
        let host = self.record.target.host(&self.record.head);
        let port: Option<u16> = std::str::from_utf8(port)
            .ok()
            .and_then(|port| port.parse().ok());
        let listener = port.and_then(|port| {
            let mut listeners = self.plan.listeners.iter();
            listeners.position(|listener| matches!(listener.address, SocketAddress::Tcp(address) if address.port() == port))
        });
        match listener {
            Some(listener) => self.table.server(listener, host),
            None => self.hosts.find(host),
        }
    }
}

impl ReplayLocation {
    fn build(conf: &plan::LocationConf, zones: &Zones) -> Self {
        Self {
            limits: Limits::compile(conf, zones),
            req: conf.limit_req.iter().map(|rule| rule.zone).collect(),
            conn: conf.limit_conn.iter().map(|rule| rule.zone).collect(),
            proxy_passes: matches!(conf.action, Content::ProxyPass(_)),
        }
    }
}

/// A target as the head of a request has it.
fn uri(target: &[u8]) -> Option<Uri> {
    if target.first() == Some(&b'/') {
        // The ordinary form; what `Uri` would try first is spared.
        return PathAndQuery::try_from(target).ok().map(Uri::from);
    }
    Uri::try_from(target).ok()
}

/// A value that a header field can hold; what it cannot is replaced.
fn safe_value(value: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(value).unwrap_or_else(|_| {
        let safe: Vec<u8> = value
            .iter()
            .map(|byte| {
                if *byte < 32 || *byte == 127 {
                    b'?'
                } else {
                    *byte
                }
            })
            .collect();
        HeaderValue::from_bytes(&safe).unwrap_or(HeaderValue::from_static("?"))
    })
}
