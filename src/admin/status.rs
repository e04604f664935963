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

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};

use super::zones::zones;
use super::{Admin, token};
use crate::api::{
    ConnectionCounts, FleetMember, LoopLag, ReloadFailure, ReloadReport, RequestCounts, Status,
    Store, VerdictCounts, ZoneLease,
};
use crate::clock::Clock;
use crate::config::Report;
use crate::proxy::Generation;
use crate::store::LeaseHoldings;
use crate::telemetry::{self, COUNTERS, Exposition, ListenerCounters, REFUSALS, metrics};

/// `GET /api/status`
pub(super) fn show(admin: &Admin, generation: &Generation) -> Status {
    let mut limits = VerdictCounts::default();
    for zone in zones(generation) {
        limits.pass += zone.counts.pass;
        limits.delay += zone.counts.delay;
        limits.refuse += zone.counts.refuse;
    }
    let (accepted, active) = ListenerCounters::connections();
    let seconds = |late: Duration| late.as_secs_f64();
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        time: u64::try_from(Clock::wall().as_millis()).unwrap_or_default(),
        uptime: admin.clock.now().since(Default::default()).as_secs_f64(),
        ready: admin.is_ready(),
        generation: admin.reloads.generation(),
        loops: telemetry::lags()
            .into_iter()
            .map(|lag| LoopLag {
                lag: lag.last.map(seconds),
                worst: lag.worst.map(seconds),
            })
            .collect(),
        connections: ConnectionCounts { active, accepted },
        requests: RequestCounts {
            total: COUNTERS.requests(),
            by_status: COUNTERS
                .by_status()
                .map(|(class, count)| (class.into(), count))
                .collect(),
        },
        limits,
        refusals_skipped: REFUSALS.skipped(),
        log_lines_lost: admin.writer.lost(),
        changes: token(generation).is_some(),
    }
}

/// `GET /api/config`
pub(super) fn shown(generation: &Generation) -> String {
    let source = &generation.plan.source;
    let numbers = &generation.amendment.numbers;
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

/// `GET /api/store`
pub(super) fn list(generation: &Generation) -> Vec<Store> {
    generation
        .zones
        .stores
        .iter()
        .enumerate()
        .map(|(index, store)| {
            let view = store.view();
            let requests = generation.plan.req_zones.iter();
            let requests = requests.map(|zone| (&zone.name, zone.store));
            let connections = generation.plan.conn_zones.iter();
            let zones = requests.chain(connections.map(|zone| (&zone.name, zone.store)));
            Store {
                name: store.name().to_owned(),
                degraded: store.is_away(),
                why: view.outage.map(|outage| outage.why),
                gateway: view.gateway,
                gateways: view
                    .gateways
                    .into_iter()
                    .map(|gateway| FleetMember {
                        name: gateway.name,
                        seen_ago_ms: gateway.seen_ago,
                        leases: gateway.held.into_iter().map(lease).collect(),
                    })
                    .collect(),
                zones: zones
                    .filter(|(_, store)| *store == Some(index))
                    .map(|(name, _)| name.to_string())
                    .collect(),
                places: store.places() as u64,
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

fn lease(held: LeaseHoldings) -> ZoneLease {
    // A number for people: thousandths of requests are exact far beyond what is ever in hand.
    let requests = u32::try_from(held.units.milli()).unwrap_or(u32::MAX);
    ZoneLease {
        zone: held.zone.into(),
        keys: held.keys,
        requests: f64::from(requests) / 1000.0,
        local_keys: held.crowded,
    }
}

metrics! {
    /// The metrics of reloads.
    pub(super) RELOAD_METRICS:
    CONFIG_GENERATION = gauge("weir_config_generation", [], "Number of the configuration in force: 1 at the start, one more with every reload.");
    CONFIG_LAST_RELOAD_SUCCESS_TIMESTAMP_SECONDS = gauge("weir_config_last_reload_success_timestamp_seconds", [], "When the configuration in force was put in force.");
    CONFIG_LAST_RELOAD_SUCCESSFUL = gauge("weir_config_last_reload_successful", [], "Whether the last reload succeeded.");
    CONFIG_RELOAD_FAILURES_TOTAL = counter("weir_config_reload_failures_total", [], "Reloads that changed nothing because something was wrong with the configuration.");
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
        page.sample(&CONFIG_GENERATION, &[], self.generation());
        page.sample(
            &CONFIG_LAST_RELOAD_SUCCESS_TIMESTAMP_SECONDS,
            &[],
            self.since.load(Ordering::Relaxed),
        );
        page.sample(
            &CONFIG_LAST_RELOAD_SUCCESSFUL,
            &[],
            u64::from(!self.failed.load(Ordering::Relaxed)),
        );
        page.sample(
            &CONFIG_RELOAD_FAILURES_TOTAL,
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
            error: REFUSED.into(),
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
            error: REFUSED.into(),
            problems: vec![text.clone()],
            report: format!("error: {text}"),
        }
    }
}

const REFUSED: &str = "the configuration was not taken, everything is as it was";
