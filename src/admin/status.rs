//! `/api/status`: how it is, in one look.
//!
//! `/api/config`: the configuration as it runs, secrets hidden.
//!
//! The file's own words, with the numbers in them that were changed since: who looks here at night must not be told of a
//! limit that does not hold.
//!
//! `/api/store`: who shares a store, and how it is.
//!
//! Reading the configuration again: who asks, what came of it, and what is known of it afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};

use super::zones::zones;
use super::{Admin, token};
use crate::clock::Clock;
use crate::config::Report;
use crate::proxy::Generation;
use crate::store::LeaseHoldings;
use crate::telemetry;
use crate::telemetry::{COUNTERS, Exposition, ListenerCounters, REFUSALS};

#[derive(Debug, Serialize)]
struct Status {
    version: &'static str,
    pid: u32,
    /// Milliseconds since the Unix epoch.
    time: u64,
    /// In seconds.
    uptime: f64,
    ready: bool,
    generation: u64,
    loops: Vec<Loop>,
    connections: Connections,
    requests: Requests,
    limits: StatusVerdicts,
    refusals_skipped: u64,
    /// Those that could not be written, or not fast enough.
    log_lines_lost: u64,
    /// Whether anything can be changed here: there is an `admin.token`.
    changes: bool,
}

/// How late an event loop is, in seconds.
#[derive(Debug, Serialize)]
struct Loop {
    lag: Option<f64>,
    worst: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Connections {
    active: u64,
    accepted: u64,
}

#[derive(Debug, Serialize)]
struct Requests {
    total: u64,
    by_status: BTreeMap<&'static str, u64>,
}

/// All zones together.
#[derive(Debug, Default, Serialize)]
struct StatusVerdicts {
    pass: u64,
    delay: u64,
    refuse: u64,
}

/// `GET /api/status`
pub(super) fn show(admin: &Admin, live: &Generation) -> impl Serialize + use<> {
    let mut limits = StatusVerdicts::default();
    for zone in zones(live) {
        limits.pass += zone.counts.pass;
        limits.delay += zone.counts.delay;
        limits.refuse += zone.counts.refuse;
    }
    let (accepted, active) = ListenerCounters::connections();
    let seconds = |late: Duration| late.as_secs_f64();
    Status {
        version: env!("CARGO_PKG_VERSION"),
        pid: std::process::id(),
        time: u64::try_from(Clock::wall().as_millis()).unwrap_or_default(),
        uptime: admin.clock.now().since(Default::default()).as_secs_f64(),
        ready: admin.is_ready(),
        generation: admin.reloads.generation(),
        loops: telemetry::lags()
            .into_iter()
            .map(|lag| Loop {
                lag: lag.last.map(seconds),
                worst: lag.worst.map(seconds),
            })
            .collect(),
        connections: Connections { active, accepted },
        requests: Requests {
            total: COUNTERS.requests(),
            by_status: COUNTERS.by_status().collect(),
        },
        limits,
        refusals_skipped: REFUSALS.skipped(),
        log_lines_lost: admin.writer.lost(),
        changes: token(live).is_some(),
    }
}

/// `GET /api/config`
pub(super) fn shown(live: &Generation) -> String {
    let source = &live.plan.source;
    let numbers = &live.amendment.numbers;
    if numbers.is_empty() {
        return source.to_string();
    }
    let Ok(mut config) = serde_json::from_str::<Value>(source) else {
        return source.to_string();
    };
    for (zone, numbers) in numbers {
        let of_zone = config.pointer_mut("/limit_req_zones");
        let of_zone = of_zone.and_then(|zones| zones.get_mut(&**zone)?.as_object_mut());
        match of_zone {
            Some(own) => {
                let names = ["rate", "limit"];
                overlay(own, numbers, &names);
                in_rules(&mut config, "limit_req", zone, numbers, "burst");
            }
            None => in_rules(&mut config, "limit_conn", zone, numbers, "limit"),
        }
    }
    config.to_string()
}

/// Puts a number into all rules, wherever they stand, that use a zone.
fn in_rules(
    config: &mut Value,
    kind: &str,
    zone: &str,
    numbers: &Map<String, Value>,
    name: &'static str,
) {
    match config {
        Value::Object(fields) => {
            for (field, value) in fields {
                match value {
                    Value::Object(rule) if field == kind => overlay_rule(rule, zone, numbers, name),
                    Value::Array(rules) if field == kind => {
                        for rule in rules.iter_mut().filter_map(Value::as_object_mut) {
                            overlay_rule(rule, zone, numbers, name);
                        }
                    }
                    value => in_rules(value, kind, zone, numbers, name),
                }
            }
        }
        Value::Array(values) => {
            for value in values {
                in_rules(value, kind, zone, numbers, name);
            }
        }
        _ => {}
    }
}

fn overlay_rule(
    rule: &mut Map<String, Value>,
    zone: &str,
    numbers: &Map<String, Value>,
    name: &'static str,
) {
    if rule.get("zone").is_some_and(|of| of == zone) {
        overlay(rule, numbers, &[name]);
    }
}

fn overlay(own: &mut Map<String, Value>, numbers: &Map<String, Value>, names: &[&'static str]) {
    for name in names {
        if let Some(number) = numbers.get(*name) {
            own.insert((*name).to_owned(), number.clone());
        }
    }
}

/// A store as `/api/store` shows it.
#[derive(Debug, Serialize)]
struct Store<'a> {
    name: &'a str,
    degraded: bool,
    /// What went wrong, while it is.
    why: Option<String>,
    /// Which of the gateways this is.
    gateway: String,
    gateways: Vec<Gateway>,
    zones: Vec<&'a str>,
    /// Requests of this gateway that hold places of its `limit_conn` zones.
    places: usize,
    asked: u64,
    missed: u64,
    asked_behind: u64,
    decided_here: u64,
    leased: u64,
    returned: u64,
}

/// One that shares it.
#[derive(Debug, Serialize)]
struct Gateway {
    name: String,
    seen_ago_ms: u64,
    leases: Vec<Lease>,
}

/// What a gateway has in hand of one zone.
#[derive(Debug, Serialize)]
struct Lease {
    zone: Box<str>,
    keys: u64,
    requests: f64,
    /// Of how many keys so much is wanted that nobody is asked.
    local_keys: u64,
}

/// `GET /api/store`
pub(super) fn list(live: &Generation) -> impl Serialize {
    live.zones
        .stores
        .iter()
        .enumerate()
        .map(|(index, store)| {
            let view = store.view();
            let requests = live.plan.req_zones.iter();
            let requests = requests.map(|zone| (&zone.name, zone.store));
            let connections = live.plan.conn_zones.iter();
            let zones = requests.chain(connections.map(|zone| (&zone.name, zone.store)));
            Store {
                name: store.name(),
                degraded: store.is_away(),
                why: view.outage.map(|outage| outage.why),
                gateway: view.gateway,
                gateways: view
                    .gateways
                    .into_iter()
                    .map(|gateway| Gateway {
                        name: gateway.name,
                        seen_ago_ms: gateway.seen_ago,
                        leases: gateway.held.into_iter().map(lease).collect(),
                    })
                    .collect(),
                zones: zones
                    .filter(|(_, store)| *store == Some(index))
                    .map(|(name, _)| &**name)
                    .collect(),
                places: store.places(),
                asked: view.asked,
                missed: view.missed,
                asked_behind: view.asked_behind,
                decided_here: view.decided_here,
                leased: view.leased,
                returned: view.returned,
            }
        })
        .collect::<Vec<_>>()
}

fn lease(held: LeaseHoldings) -> Lease {
    // A number for people: thousandths of requests are exact far beyond what is ever in hand.
    let requests = u32::try_from(held.units.milli()).unwrap_or(u32::MAX);
    Lease {
        zone: held.zone,
        keys: held.keys,
        requests: f64::from(requests) / 1000.0,
        local_keys: held.crowded,
    }
}

/// What is known of the generations so far, and the way to ask for the next one.
#[derive(Debug)]
pub struct ReloadHandle {
    asked: mpsc::UnboundedSender<ReloadRequest>,
    generation: AtomicU64,
    /// When the one in force was put in force, in seconds since 1970.
    since: AtomicU64,
    failed: AtomicBool,
    failures: AtomicU64,
}

/// Somebody wants the configuration to be read again; whoever waits for the answer is told.
pub type ReloadRequest = Option<oneshot::Sender<Result<ReloadReport, ReloadFailure>>>;

/// It is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReloadReport {
    /// Its number; the one that weir was started with is 1.
    pub generation: u64,
    /// What is doubtful about it, a line each.
    pub warnings: Vec<String>,
}

/// It is not, and everything is as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReloadFailure {
    /// That it was not done.
    error: &'static str,
    /// What is wrong, a line each.
    pub problems: Vec<String>,
    /// The same with the lines of the files it is about, where it is about lines.
    report: String,
}

impl ReloadHandle {
    /// The first generation is in force; and where those are heard who ask for the next.
    #[must_use]
    pub fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<ReloadRequest>) {
        let (asked, heard) = mpsc::unbounded_channel();
        let reloads = Self {
            asked,
            generation: AtomicU64::new(1),
            since: AtomicU64::new(Clock::wall().as_secs()),
            failed: AtomicBool::new(false),
            failures: AtomicU64::new(0),
        };
        (Arc::new(reloads), heard)
    }

    /// Asks for the configuration to be read again, without waiting for what comes of it.
    pub fn ask(&self) {
        // Nobody hears it when the process is about to end.
        drop(self.asked.send(None));
    }

    /// Asks, and waits for what comes of it; `None` when the process is about to end.
    pub async fn ask_and_wait(&self) -> Option<Result<ReloadReport, ReloadFailure>> {
        let (answer, answered) = oneshot::channel();
        self.asked.send(Some(answer)).ok()?;
        answered.await.ok()
    }

    /// Number of the generation in force.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Another generation is in force; with what is to be said of the change besides what is doubtful in its files.
    pub fn succeeded(&self, report: &Report, changes: Vec<String>) -> ReloadReport {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        self.since.store(Clock::wall().as_secs(), Ordering::Relaxed);
        self.failed.store(false, Ordering::Relaxed);
        ReloadReport {
            generation,
            warnings: report.lines().chain(changes).collect(),
        }
    }

    /// The one in force stays.
    pub fn failed(&self) {
        self.failed.store(true, Ordering::Relaxed);
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn describe(&self, page: &mut Exposition) {
        page.gauge(
            "weir_config_generation",
            "Number of the configuration in force: 1 at the start, one more with every reload.",
            &[],
            self.generation(),
        );
        page.gauge(
            "weir_config_last_reload_success_timestamp_seconds",
            "When the configuration in force was put in force.",
            &[],
            self.since.load(Ordering::Relaxed),
        );
        page.gauge(
            "weir_config_last_reload_successful",
            "Whether the last reload succeeded.",
            &[],
            u64::from(!self.failed.load(Ordering::Relaxed)),
        );
        page.counter(
            "weir_config_reload_failures_total",
            "Reloads that changed nothing because something was wrong with the configuration.",
            &[],
            self.failures.load(Ordering::Relaxed),
        );
    }
}

impl ReloadFailure {
    /// Because of what is written in the files.
    #[must_use]
    pub fn of(report: &Report) -> Self {
        Self {
            error: REFUSED,
            problems: report.lines().collect(),
            report: report.to_string(),
        }
    }

    /// Because of something else, told with all its causes.
    #[must_use]
    pub fn because(error: &dyn std::error::Error) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        Self {
            error: REFUSED,
            problems: vec![text.clone()],
            report: format!("error: {text}"),
        }
    }
}

const REFUSED: &str = "the configuration was not taken, everything is as it was";
