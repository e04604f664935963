//! Runs every request through its limits, and counts the verdicts.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;

use super::concurrency::{ActiveRequests, SlotProgress, SlotRequest};
use super::fields::{FieldPlan, location_confs};
use super::order::LogEntry;
use super::report::{ReplayReport, ZoneKind, ZoneReport};
use super::router::{ReplayLocation, ReplayRouter, Routed};
use super::stats::{ZoneEvent, ZoneStats, millis};
use super::suggest::{self, Arrivals};
use super::time::to_clock;
use crate::algorithm::{Delay, Excess, LimitSpec};
use crate::config::plan::{Plan, ReqRule};
use crate::limits::{Admission, Zones};
use crate::message::RequestRecord;

/// What to replay, and what to find out.
#[derive(Debug, Clone, Default)]
pub struct ReplayOptions {
    /// The logs; `-` is standard input.
    pub files: Vec<PathBuf>,
    /// The format of their lines; guessed from the first ones if not given.
    pub format: Option<String>,
    /// The host of all requests, for a log without it.
    pub host: Option<String>,
    /// How far out of order lines may be, in seconds.
    pub window: u32,
    /// How many keys of each zone to report.
    pub top: usize,
    /// Whether to suggest better limits.
    pub suggest: Option<SuggestOptions>,
    /// Whether to find the share that other rates would have refused.
    pub curves: bool,
}

/// Which limits to suggest.
#[derive(Debug, Clone)]
pub struct SuggestOptions {
    /// The only zone to suggest limits for.
    pub zone: Option<String>,
    /// The share of requests that may be refused, in millionths.
    pub at_most_millionths: u64,
}

impl ReplayOptions {
    fn suggest_for(&self, zone: &str) -> Option<&SuggestOptions> {
        let is_wanted =
            |suggest: &&SuggestOptions| suggest.zone.as_deref().is_none_or(|only| only == zone);
        self.suggest.as_ref().filter(is_wanted)
    }
}

/// Called with the result of every request.
pub type RequestObserver<'a> = &'a mut dyn FnMut(&ReplayVerdict<'_>) -> io::Result<()>;

/// The result of one request.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ReplayVerdict<'a> {
    /// Its log file.
    pub file: &'a str,
    /// Its line.
    pub line: u64,
    /// When it came, in milliseconds since the Unix epoch.
    #[serde(rename = "at_ms")]
    pub at: i64,
    /// The result.
    pub verdict: RequestOutcome,
    /// The zone that refused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<&'a str>,
    /// How long it waits, in milliseconds.
    #[serde(rename = "delay_ms", skip_serializing_if = "Option::is_none")]
    pub delay: Option<u64>,
    /// The value of `$limit_req_status`.
    pub limit_req_status: &'static str,
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestOutcome {
    /// Passed after a wait.
    Delay,
    /// A response before any limit.
    Early,
    /// Malformed; the response is 400.
    Malformed,
    /// Passed at once.
    Pass,
    /// Refused.
    Refuse,
    /// No limit applies.
    Unlimited,
}

/// Evaluates requests in the order they came.
pub(super) struct Evaluator<'a> {
    plan: Arc<Plan>,
    zones: Zones,
    router: ReplayRouter,
    /// Those of `limit_req`, then those of `limit_conn`.
    stats: Vec<ZoneStats>,
    /// For each `limit_req` zone, where other limits are tried.
    arrivals: Vec<Option<Arrivals>>,
    active: ActiveRequests,
    /// Whether the log says how long requests took.
    timed: bool,
    options: &'a ReplayOptions,
    files: Vec<Box<str>>,
    report: ReplayReport,
    observer: Observer<'a>,
}

/// Passes results on, and keeps the first error.
struct Observer<'a> {
    each: Option<RequestObserver<'a>>,
    failure: Option<io::Error>,
}

impl<'a> Evaluator<'a> {
    pub(super) fn new(
        plan: Arc<Plan>,
        needs: &FieldPlan,
        options: &'a ReplayOptions,
        files: Vec<Box<str>>,
        each: Option<RequestObserver<'a>>,
    ) -> Self {
        let zones = Zones::build(&plan);
        let arrivals = plan.req_zones.iter().map(|zone| {
            let is_wanted = options.curves || options.suggest_for(&zone.name).is_some();
            is_wanted.then(Arrivals::default)
        });
        Self {
            router: ReplayRouter::new(Arc::clone(&plan), &zones, needs, options.host.as_deref()),
            stats: std::iter::repeat_with(ZoneStats::default)
                .take(plan.req_zones.len() + plan.conn_zones.len())
                .collect(),
            arrivals: arrivals.collect(),
            zones,
            plan,
            active: ActiveRequests::default(),
            timed: needs.took.is_some(),
            options,
            files,
            report: ReplayReport::default(),
            observer: Observer {
                each,
                failure: None,
            },
        }
    }

    /// The error of the observer, if it had one.
    pub(super) fn check(&mut self) -> io::Result<()> {
        self.observer.failure.take().map_or(Ok(()), Err)
    }

    /// Evaluates the next request.
    pub(super) fn evaluate(&mut self, entry: &LogEntry, texts: &[u8]) {
        self.finish_until(entry.at);
        let file = self.files.get(entry.file as usize).map_or("", |name| name);
        let mut verdict = ReplayVerdict {
            file,
            line: entry.line,
            at: entry.at,
            verdict: RequestOutcome::Malformed,
            zone: None,
            delay: None,
            limit_req_status: "",
        };
        let refusal;
        match self.router.route(entry, texts) {
            Routed::Malformed => {}
            Routed::Early => verdict.verdict = RequestOutcome::Early,
            Routed::Limits(location, record) => {
                let (stats, arrivals) = (&mut self.stats, &mut self.arrivals);
                let limits = &location.limits;
                let now = to_clock(entry.at);
                let admission =
                    limits.ask_requests_with_observer(record, now, |record, rule, key, verdict| {
                        let zone = location.req[rule];
                        let event = ZoneEvent {
                            verdict,
                            at: entry.at,
                            file,
                            line: entry.line,
                        };
                        let label = || limits.request_label(rule, record);
                        let id = stats[zone].count(key, event, label);
                        if let Some(arrivals) = &mut arrivals[zone]
                            && !limits.has_override(rule, record)
                        {
                            arrivals.add(id, now.0);
                        }
                    });
                verdict.delay = match admission {
                    Admission::Delay(wait) => Some(millis(wait)),
                    Admission::Pass | Admission::Refuse(_) => None,
                };
                if let Admission::Refuse(refused) = admission {
                    refusal = refused;
                    verdict.zone = Some(refusal.zone());
                    verdict.verdict = RequestOutcome::Refuse;
                } else if self.timed && !location.conn.is_empty() {
                    let request = slot_request(location, record, entry, verdict.delay);
                    self.active.add(request);
                    return self.finish_until(entry.at);
                } else {
                    verdict.verdict = passed(record, verdict.delay);
                }
                verdict.limit_req_status = record.limit_req.map_or("", |it| it.as_str());
            }
        }
        if verdict.verdict != RequestOutcome::Malformed {
            self.report.first.get_or_insert(entry.at);
            self.report.last = Some(entry.at);
        }
        count(verdict.verdict, &mut self.report);
        self.observer.call(&verdict);
    }

    /// Lets all requests that are left take their slots.
    pub(super) fn finish(&mut self) {
        self.finish_until(i64::MAX);
    }

    /// Lets requests take the slots that are due.
    fn finish_until(&mut self, until: i64) {
        while let Some(request) = self.active.next(until) {
            let file = (self.files.get(request.file as usize)).map_or("", |name| name);
            let mut zone = None;
            for (rule, verdict) in &request.progress.verdicts {
                zone = Some(request.location.conn[*rule]);
                let (key, label) = &request.keys[*rule];
                let event = ZoneEvent {
                    verdict: *verdict,
                    at: request.at,
                    file,
                    line: request.line,
                };
                let index = self.plan.req_zones.len() + request.location.conn[*rule];
                self.stats[index].count(key, event, || label.clone());
            }
            let refused_by = zone.filter(|_| request.progress.refused);
            let verdict = ReplayVerdict {
                file,
                line: request.line,
                at: request.came,
                verdict: match (request.progress.refused, request.waited) {
                    (true, _) => RequestOutcome::Refuse,
                    (false, Some(_)) => RequestOutcome::Delay,
                    (false, None) => RequestOutcome::Pass,
                },
                zone: refused_by.map(|zone| &*self.plan.conn_zones[zone].name),
                delay: request.waited,
                limit_req_status: request.status.map_or("", |it| it.as_str()),
            };
            count(verdict.verdict, &mut self.report);
            self.observer.call(&verdict);
        }
    }

    /// The figures of all zones.
    pub(super) fn report(mut self) -> ReplayReport {
        let arrivals = std::mem::take(&mut self.arrivals);
        let mut req = std::mem::take(&mut self.stats);
        let conn = req.split_off(self.plan.req_zones.len());
        let req = req.into_iter().zip(arrivals).enumerate();
        let mut zones: Vec<ZoneReport> = req
            .map(|(index, (stats, arrivals))| self.req_zone(index, stats, arrivals))
            .collect();
        if self.timed {
            let conn = conn.into_iter().enumerate();
            zones.extend(conn.map(|(index, stats)| self.conn_zone(index, stats)));
        }
        self.report.zones = zones;
        self.report
    }

    fn req_zone(&self, index: usize, stats: ZoneStats, arrivals: Option<Arrivals>) -> ZoneReport {
        let zone = &self.plan.req_zones[index];
        let rules: Vec<&ReqRule> = location_confs(&self.plan)
            .flat_map(|conf| &conf.limit_req)
            .filter(|rule| rule.zone == index)
            .collect();
        let burst = rules.iter().map(|rule| rule.burst).max();
        let arrivals = arrivals.map(Arrivals::group);
        let curve = arrivals.as_ref().map(|arrivals| {
            let burst = burst.map_or(0, |burst| burst.0 / Excess::ONE.0);
            suggest::curve(arrivals, u32::try_from(burst).unwrap_or(u32::MAX))
        });
        let wanted = self.options.suggest_for(&zone.name).zip(arrivals.as_ref());
        ZoneReport {
            name: zone.name.clone(),
            kind: ZoneKind::Requests,
            allows: allows(&zone.algorithm.to_string(), &rules),
            rate: zone.algorithm.values().rate.map(suggest::per_second),
            quota: burst.map(|burst| LimitSpec::new(&zone.algorithm, burst, Delay::Never).quota()),
            evictions: self.zones.req[index].store.evictions(),
            curve: curve.unwrap_or_default(),
            suggestion: wanted.and_then(|(wanted, arrivals)| {
                suggest::suggest(arrivals, wanted.at_most_millionths)
            }),
            ..self.zone(stats)
        }
    }

    fn conn_zone(&self, index: usize, stats: ZoneStats) -> ZoneReport {
        let zone = &self.plan.conn_zones[index];
        let mut limits: Vec<u32> = location_confs(&self.plan)
            .flat_map(|conf| &conf.limit_conn)
            .filter(|rule| rule.zone == index)
            .map(|rule| rule.limit)
            .collect();
        limits.sort_unstable();
        limits.dedup();
        let limits: Vec<String> = limits.iter().map(u32::to_string).collect();
        ZoneReport {
            name: zone.name.clone(),
            kind: ZoneKind::Connections,
            allows: format!("{} at once", limits.join(" or ")),
            evictions: self.zones.conn[index].store.evictions(),
            ..self.zone(stats)
        }
    }

    fn zone(&self, stats: ZoneStats) -> ZoneReport {
        let keys = stats.most_refused();
        let mut peaks = BTreeMap::new();
        for key in &keys {
            *peaks.entry(key.peak).or_default() += 1;
        }
        ZoneReport {
            counts: stats.counts,
            keys: stats.len(),
            dropped: (stats.dropped > 0).then_some(stats.dropped_most),
            top: keys.into_iter().take(self.options.top).cloned().collect(),
            waits: stats.waits,
            timeline: stats.timeline,
            peaks: peaks.into_iter().collect(),
            ..ZoneReport::default()
        }
    }
}

impl Observer<'_> {
    fn call(&mut self, verdict: &ReplayVerdict<'_>) {
        if let Some(each) = &mut self.each
            && let Err(error) = each(verdict)
        {
            self.failure.get_or_insert(error);
        }
    }
}

fn count(outcome: RequestOutcome, report: &mut ReplayReport) {
    *match outcome {
        RequestOutcome::Delay => &mut report.requests.delay,
        RequestOutcome::Early => &mut report.early,
        RequestOutcome::Malformed => &mut report.malformed,
        RequestOutcome::Pass => &mut report.requests.pass,
        RequestOutcome::Refuse => &mut report.requests.refuse,
        RequestOutcome::Unlimited => &mut report.unlimited,
    } += 1;
}

/// The result of a request that no limit refuses.
fn passed(record: &RequestRecord, delay: Option<u64>) -> RequestOutcome {
    match (record.limit_req, delay) {
        (None, _) => RequestOutcome::Unlimited,
        (_, Some(_)) => RequestOutcome::Delay,
        (_, None) => RequestOutcome::Pass,
    }
}

/// A request that needs slots after its wait.
fn slot_request(
    location: &Arc<ReplayLocation>,
    record: &RequestRecord,
    entry: &LogEntry,
    waited: Option<u64>,
) -> SlotRequest {
    let limits = &location.limits;
    let keys = (0..location.conn.len()).map(|rule| limits.slot_key(rule, record));
    SlotRequest {
        slots: limits.slot_keys(record),
        keys: keys.collect(),
        location: Arc::clone(location),
        at: entry.at + waited.map_or(0, |waited| i64::try_from(waited).unwrap_or(0)),
        took: entry.took.unwrap_or(0),
        file: entry.file,
        line: entry.line,
        came: entry.at,
        waited,
        status: record.limit_req,
        progress: SlotProgress::default(),
    }
}

/// The limits of a zone, as its rules give them.
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
