//! `/metrics`: every metric, named once.
//!
//! Counters live where they are counted (zones, backends, the process); here they are only read and
//! written out. A key is never a label: its number is the client's to choose.
//!
//! Upstreams, their servers and what stands in for them, as `/metrics` shows them.

use super::status::ReloadHandle;
use super::zones::{ZoneSnapshot, zones};
use crate::config::plan::DegradeMode;
use crate::limits::ShadowZone;
use crate::proxy::Generation;
use crate::store::StoreStatus;
use crate::telemetry::{
    BackgroundTask, COUNTERS, Exposition, ListenerCounters, LogWriter, describe_loops, traces,
};
use crate::upstream::breaker::{Breaker, BreakerState};
use crate::upstream::{QueueStats, Upstream};
use crate::{limits, proxy, telemetry};

/// The page in Prometheus's text format.
pub(super) fn page(live: &Generation, writer: &LogWriter, reloads: &ReloadHandle) -> String {
    let mut page = Exposition::new();
    telemetry::describe_process(&mut page);
    describe_loops(&mut page);
    BackgroundTask::describe_panics(&mut page);
    ListenerCounters::describe_all(&mut page);
    COUNTERS.describe(&mut page);
    writer.describe(&mut page);
    traces::describe(&mut page);
    reloads.describe(&mut page);
    zoned(live, &mut page);
    stores(live, &mut page);
    upstreams(live, &mut page);
    describe(live, &mut page);
    describe_fallbacks(live, &mut page);
    live.bounds.describe(&mut page);
    page.finish()
}

fn zoned(live: &Generation, page: &mut Exposition) {
    for zone in zones(live) {
        let (name, counts) = (zone.name, zone.counts);
        for (verdict, count) in [
            ("pass", counts.pass),
            ("delay", counts.delay),
            ("refuse", counts.refuse),
        ] {
            page.counter(
                "weir_limit_verdicts_total",
                "What limits said of requests.",
                &[("zone", name), ("verdict", verdict)],
                count,
            );
        }
        let labels = [("zone", name)];
        held(&zone, page);
        page.histogram(
            "weir_limit_delay_seconds",
            "How long requests had to wait that a limit delayed.",
            &labels,
            &zone.delays,
        );
        if let Some(waiting) = zone.waiting {
            page.gauge(
                "weir_limit_queue_length",
                "Requests that stand in line for a place of a `limit_conn` zone.",
                &labels,
                waiting,
            );
        }
        if let Some(shadow) = zone.shadow {
            shadowed(name, shadow, page);
        }
    }
    page.counter(
        "weir_bad_costs_total",
        "Texts that should have said what a request costs, and said no number.",
        &[],
        limits::bad_costs(),
    );
}

/// How much a zone holds, and may.
fn held(zone: &ZoneSnapshot<'_>, page: &mut Exposition) {
    let labels = [("zone", zone.name)];
    page.gauge(
        "weir_zone_keys",
        "Keys a zone holds.",
        &labels,
        zone.keys as u64,
    );
    page.gauge(
        "weir_zone_capacity",
        "Keys a zone can hold.",
        &labels,
        zone.capacity as u64,
    );
    if let Some(algorithm) = zone.algorithm {
        page.gauge(
            "weir_zone_rate",
            "Requests a second that a zone lets each key have.",
            &labels,
            algorithm.per_second(),
        );
    }
    page.counter(
        "weir_zone_evictions_total",
        "Keys pushed out before they had drained, or turned away for want of room.",
        &labels,
        zone.counts.evictions,
    );
    if let Some(dropped) = zone.penalties_dropped {
        page.counter(
            "weir_zone_penalties_dropped_total",
            "Penalties that were not given because there was no room for them.",
            &labels,
            dropped,
        );
    }
}

fn shadowed(name: &str, shadow: &ShadowZone, page: &mut Exposition) {
    let (counts, differs) = (shadow.zone.store.counts(), shadow.differs());
    for (verdict, count) in [
        ("pass", counts.pass),
        ("delay", counts.delay),
        ("refuse", counts.refuse),
    ] {
        page.counter(
            "weir_shadow_verdicts_total",
            "What limits that are only proposed said of requests.",
            &[("zone", name), ("verdict", verdict)],
            count,
        );
    }
    for (verdict, count) in [("pass", differs.pass), ("refuse", differs.refuse)] {
        page.counter(
            "weir_shadow_differs_total",
            "Requests of which limits that are only proposed said this, and the enforced ones the opposite.",
            &[("zone", name), ("verdict", verdict)],
            count,
        );
    }
}

fn stores(live: &Generation, page: &mut Exposition) {
    for store in &live.zones.stores {
        let labels = [("store", store.name())];
        let view = store.view();
        page.gauge(
            "weir_store_degraded",
            "Whether a store is away and its zones go on without it.",
            &labels,
            u64::from(store.is_away()),
        );
        page.gauge(
            "weir_store_gateways",
            "Gateways that share a store, when that was last known.",
            &labels,
            u64::from(store.gateways()),
        );
        page.gauge(
            "weir_store_places",
            "Requests of this gateway that hold shared places of a limit_conn.",
            &labels,
            store.places() as u64,
        );
        page.counter(
            "weir_store_asked_total",
            "Decisions a store was asked for.",
            &labels,
            view.asked,
        );
        page.counter(
            "weir_store_missed_total",
            "Decisions a store did not give in time, or not at all.",
            &labels,
            view.missed,
        );
        page.counter(
            "weir_store_late_total",
            "Decisions that a store did not give within its timeout.",
            &labels,
            view.late,
        );
        leases(&view, &labels, page);
    }
}

fn leases(view: &StoreStatus, labels: &[(&str, &str)], page: &mut Exposition) {
    let local: u64 = view.held.iter().map(|held| held.crowded).sum();
    page.gauge(
        "weir_store_local_keys",
        "Keys beyond `local_above` that are decided about without asking.",
        labels,
        local,
    );
    for (name, help, count) in [
        (
            "weir_store_round_trips_total",
            "Questions to a store, whether a request waited for them or not.",
            view.asked + view.asked_behind,
        ),
        (
            "weir_store_local_decisions_total",
            "Decisions about shared zones that no store was asked for.",
            view.decided_here,
        ),
        (
            "weir_store_leased_requests_total",
            "Requests that were leased from a store.",
            view.leased,
        ),
        (
            "weir_store_returned_requests_total",
            "Leased requests that were given back.",
            view.returned,
        ),
    ] {
        page.counter(name, help, labels, count);
    }
}

fn upstreams(live: &Generation, page: &mut Exposition) {
    for (plan, upstream) in live.plan.upstreams.iter().zip(&live.upstreams) {
        if let Some(waits) = upstream.waits() {
            queue(&plan.name, &waits, page);
        }
        if let Some(denied) = upstream.denied_retries() {
            page.counter(
                "weir_upstream_retries_denied_total",
                "Requests that were not sent again because the retry budget was spent.",
                &[("upstream", &*plan.name)],
                denied,
            );
        }
        for backend in upstream.backends() {
            let labels = [("upstream", &*plan.name), ("server", &*backend.name)];
            for (status, count) in backend.counts.answers() {
                let status = status.to_string();
                page.counter(
                    "weir_upstream_requests_total",
                    "Requests answered by an upstream server.",
                    &[labels[0], labels[1], ("status", &status)],
                    count,
                );
            }
            page.histogram(
                "weir_upstream_latency_seconds",
                "How long an upstream server took, connecting included, until the head of its answer or until it failed.",
                &labels,
                &backend.counts.latency(),
            );
            page.gauge(
                "weir_upstream_active_requests",
                "Requests at an upstream server now.",
                &labels,
                u64::from(backend.active()),
            );
            page.counter(
                "weir_upstream_connections_total",
                "Connections opened to it.",
                &labels,
                backend.counts.opened(),
            );
            page.counter(
                "weir_upstream_reused_total",
                "Requests sent over a kept connection.",
                &labels,
                backend.counts.reused(),
            );
        }
    }
}

fn queue(upstream: &str, waits: &QueueStats, page: &mut Exposition) {
    let name = ("upstream", upstream);
    page.gauge(
        "weir_upstream_queue_length",
        "Requests that wait for a server now.",
        &[name],
        waits.waiting,
    );
    for (result, count) in [
        ("served", waits.served),
        ("full", waits.full),
        ("timeout", waits.late),
        ("left", waits.left),
    ] {
        page.counter(
            "weir_upstream_queue_total",
            "Requests that waited for a server, or would have: served, turned away because the line was full or \
             took too long, or left by their clients.",
            &[name, ("result", result)],
            count,
        );
    }
    page.counter(
        "weir_upstream_queue_wait_seconds_total",
        "How long those who were served had waited, in all.",
        &[name],
        waits.time.as_secs_f64(),
    );
}

/// What health checks and breakers have to say.
pub(super) fn describe(live: &Generation, page: &mut Exposition) {
    for upstream in &live.upstreams {
        describe_names(upstream, page);
        for backend in upstream.backends().iter() {
            let labels = [("upstream", upstream.name()), ("server", &*backend.name)];
            if let Some(health) = &backend.health {
                page.gauge(
                    "weir_upstream_healthy",
                    "Whether a checked server counts as healthy.",
                    &labels,
                    u32::from(health.is_healthy()),
                );
                for (result, count) in [("pass", health.passed()), ("fail", health.failed())] {
                    page.counter(
                        "weir_upstream_checks_total",
                        "Health checks of it.",
                        &[labels[0], labels[1], ("result", result)],
                        count,
                    );
                }
            }
            if let Some(breaker) = &backend.breaker {
                const STATE: &str = "weir_upstream_breaker_state";
                const OPENED: &str = "weir_upstream_breaker_opened_total";
                describe_breaker(breaker, (STATE, OPENED), labels, page);
            }
        }
    }
    for guard in &live.guards {
        const STATE: &str = "weir_location_breaker_state";
        const OPENED: &str = "weir_location_breaker_opened_total";
        let labels = [("server", &*guard.server), ("location", &*guard.location)];
        describe_breaker(&guard.breaker, (STATE, OPENED), labels, page);
    }
}

/// Names that are looked up again.
fn describe_names(upstream: &Upstream, page: &mut Exposition) {
    for name in upstream.names() {
        let labels = [("upstream", upstream.name()), ("name", &*name.host)];
        page.gauge(
            "weir_upstream_addresses",
            "Addresses of a name that is looked up again, when it was last found.",
            &labels,
            name.addresses as u64,
        );
        for (result, count) in [("found", name.found), ("failed", name.failed)] {
            page.counter(
                "weir_upstream_lookups_total",
                "How often it was looked up.",
                &[labels[0], labels[1], ("result", result)],
                count,
            );
        }
    }
}

/// What became of those whose answer was not to be had.
pub(super) fn describe_fallbacks(live: &Generation, page: &mut Exposition) {
    for (way, count) in proxy::taken() {
        page.counter(
            "weir_fallbacks_total",
            "Answers that a fallback gave, by where they came from.",
            &[("answer", way)],
            count,
        );
    }
    let (answers, bytes) = live.kept.usage();
    let help = "Good answers kept for when there are no others.";
    page.gauge("weir_stale_answers", help, &[], answers as u64);
    page.gauge(
        "weir_stale_bytes",
        "The memory they take, with those that are being received.",
        &[],
        bytes as u64,
    );
    page.counter(
        "weir_stale_skipped_total",
        "Good answers not kept, because there was no room for them while they were received.",
        &[],
        proxy::skipped(),
    );
    for group in &live.groups {
        for mode in [DegradeMode::Auto, DegradeMode::Off, DegradeMode::On] {
            page.gauge(
                "weir_degrade_mode",
                "What holds for a group of locations: 1 for the one that does.",
                &[("group", &group.name), ("mode", mode.as_str())],
                u32::from(group.mode() == mode),
            );
        }
    }
}

fn describe_breaker(
    breaker: &Breaker,
    (state, opened): (&'static str, &'static str),
    labels: [(&str, &str); 2],
    page: &mut Exposition,
) {
    let present = breaker.state();
    for one in BreakerState::ALL {
        page.gauge(
            state,
            "The state of a circuit breaker: 1 for the one it is in.",
            &[labels[0], labels[1], ("state", one.as_str())],
            u32::from(one == present),
        );
    }
    page.counter(
        opened,
        "How often a circuit breaker has opened.",
        &labels,
        breaker.opened(),
    );
}
