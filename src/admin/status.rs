//! `/api/status`: how it is, in one look.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::zones::zones;
use super::{Admin, token};
use crate::clock::Clock;
use crate::proxy::Generation;
use crate::telemetry::{self, COUNTERS, ListenerCounters, REFUSALS};

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
