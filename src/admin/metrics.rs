//! `/metrics`: the page of all metrics.
//!
//! Counters live where they are counted (zones, backends, the process); here they are only read and written out. A key is
//! never a label: how many there are is up to clients.

use super::status::{RELOAD_METRICS, ReloadHandle};
use super::zones::{ZoneSnapshot, zones};
use crate::config::plan::DegradeMode;
use crate::limits::ShadowZone;
use crate::proxy::Generation;
use crate::spool::BUFFER_METRICS;
use crate::store::StoreStatus;
use crate::telemetry::{
    BackgroundTask, COUNTERS, Exposition, LISTENER_METRICS, LOG_METRICS, LOOP_METRICS,
    ListenerCounters, LogWriter, Metric, PROCESS_METRICS, PROCESS_WIDE_METRICS, TASK_METRICS,
    describe_loops, metrics, traces,
};
use crate::upstream::breaker::{Breaker, BreakerState};
use crate::upstream::{QueueStats, Upstream};
use crate::{limits, proxy, telemetry};

/// Every metric that the page may have.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    let lists = [
        PROCESS_METRICS,
        LOOP_METRICS,
        TASK_METRICS,
        LISTENER_METRICS,
        PROCESS_WIDE_METRICS,
        LOG_METRICS,
        traces::SPAN_METRICS,
        RELOAD_METRICS,
        ZONE_METRICS,
        STORE_METRICS,
        UPSTREAM_METRICS,
        FALLBACK_METRICS,
        BUFFER_METRICS,
    ];
    lists.into_iter().flatten().copied()
}

/// The page in Prometheus's text format.
pub(super) fn page(generation: &Generation, writer: &LogWriter, reloads: &ReloadHandle) -> String {
    let mut page = Exposition::new();
    telemetry::describe_process(&mut page);
    describe_loops(&mut page);
    BackgroundTask::describe_panics(&mut page);
    ListenerCounters::describe_all(&mut page);
    COUNTERS.describe(&mut page);
    writer.describe(&mut page);
    traces::describe(&mut page);
    reloads.describe(&mut page);
    zoned(generation, &mut page);
    stores(generation, &mut page);
    upstreams(generation, &mut page);
    describe(generation, &mut page);
    describe_fallbacks(generation, &mut page);
    generation.bounds.describe(&mut page);
    page.finish()
}

metrics! {
    /// The metrics of zones.
    ZONE_METRICS:
    LIMIT_VERDICTS_TOTAL = counter("weir_limit_verdicts_total", ["zone", "verdict"], "What limits said of requests.");
    LIMIT_DELAY_SECONDS = histogram("weir_limit_delay_seconds", ["zone"], "How long requests had to wait that a limit delayed.");
    LIMIT_QUEUE_LENGTH = gauge("weir_limit_queue_length", ["zone"], "Requests that stand in line for a place of a `limit_conn` zone.");
    BAD_COSTS_TOTAL = counter("weir_bad_costs_total", [], "Texts that should have said what a request costs, and said no number.");
    ZONE_KEYS = gauge("weir_zone_keys", ["zone"], "Keys a zone holds.");
    ZONE_CAPACITY = gauge("weir_zone_capacity", ["zone"], "Keys a zone can hold.");
    ZONE_RATE = gauge("weir_zone_rate", ["zone"], "Requests a second that a zone lets each key have.");
    ZONE_EVICTIONS_TOTAL = counter("weir_zone_evictions_total", ["zone"], "Keys pushed out before they had drained, or turned away for want of room.");
    ZONE_PENALTIES_DROPPED_TOTAL = counter("weir_zone_penalties_dropped_total", ["zone"], "Penalties that were not given because there was no room for them.");
    SHADOW_VERDICTS_TOTAL = counter("weir_shadow_verdicts_total", ["zone", "verdict"], "What limits that are only proposed said of requests.");
    SHADOW_DIFFERS_TOTAL = counter("weir_shadow_differs_total", ["zone", "verdict"], "Requests of which limits that are only proposed said this, and the enforced ones the opposite.");
}

fn zoned(generation: &Generation, page: &mut Exposition) {
    for zone in zones(generation) {
        let (name, counts) = (zone.name, zone.counts);
        for (verdict, count) in [
            ("pass", counts.pass),
            ("delay", counts.delay),
            ("refuse", counts.refuse),
        ] {
            page.sample(&LIMIT_VERDICTS_TOTAL, &[name, verdict], count);
        }
        let labels = [name];
        held(&zone, page);
        page.histogram(&LIMIT_DELAY_SECONDS, &labels, &zone.delays);
        if let Some(waiting) = zone.waiting {
            page.sample(&LIMIT_QUEUE_LENGTH, &labels, waiting);
        }
        if let Some(shadow) = zone.shadow {
            shadowed(name, shadow, page);
        }
    }
    page.sample(&BAD_COSTS_TOTAL, &[], limits::bad_costs());
}

/// How much a zone holds, and may.
fn held(zone: &ZoneSnapshot<'_>, page: &mut Exposition) {
    let labels = [zone.name];
    page.sample(&ZONE_KEYS, &labels, zone.keys as u64);
    page.sample(&ZONE_CAPACITY, &labels, zone.capacity as u64);
    if let Some(algorithm) = zone.algorithm {
        page.sample(&ZONE_RATE, &labels, algorithm.per_second());
    }
    page.sample(&ZONE_EVICTIONS_TOTAL, &labels, zone.counts.evictions);
    if let Some(dropped) = zone.penalties_dropped {
        page.sample(&ZONE_PENALTIES_DROPPED_TOTAL, &labels, dropped);
    }
}

fn shadowed(name: &str, shadow: &ShadowZone, page: &mut Exposition) {
    let (counts, differs) = (shadow.zone.store.counts(), shadow.differs());
    for (verdict, count) in [
        ("pass", counts.pass),
        ("delay", counts.delay),
        ("refuse", counts.refuse),
    ] {
        page.sample(&SHADOW_VERDICTS_TOTAL, &[name, verdict], count);
    }
    for (verdict, count) in [("pass", differs.pass), ("refuse", differs.refuse)] {
        page.sample(&SHADOW_DIFFERS_TOTAL, &[name, verdict], count);
    }
}

metrics! {
    /// The metrics of stores.
    STORE_METRICS:
    STORE_DEGRADED = gauge("weir_store_degraded", ["store"], "Whether a store is away and its zones go on without it.");
    STORE_GATEWAYS = gauge("weir_store_gateways", ["store"], "Gateways that share a store, when that was last known.");
    STORE_PLACES = gauge("weir_store_places", ["store"], "Requests of this gateway that hold shared places of a limit_conn.");
    STORE_ASKED_TOTAL = counter("weir_store_asked_total", ["store"], "Decisions a store was asked for.");
    STORE_MISSED_TOTAL = counter("weir_store_missed_total", ["store"], "Decisions a store did not give in time, or not at all.");
    STORE_LATE_TOTAL = counter("weir_store_late_total", ["store"], "Decisions that a store did not give within its timeout.");
    STORE_LOCAL_KEYS = gauge("weir_store_local_keys", ["store"], "Keys beyond `local_above` that are decided about without asking.");
    STORE_ROUND_TRIPS_TOTAL = counter("weir_store_round_trips_total", ["store"], "Questions to a store, whether a request waited for them or not.");
    STORE_LOCAL_DECISIONS_TOTAL = counter("weir_store_local_decisions_total", ["store"], "Decisions about shared zones that no store was asked for.");
    STORE_LEASED_REQUESTS_TOTAL = counter("weir_store_leased_requests_total", ["store"], "Requests that were leased from a store.");
    STORE_RETURNED_REQUESTS_TOTAL = counter("weir_store_returned_requests_total", ["store"], "Leased requests that were given back.");
}

fn stores(generation: &Generation, page: &mut Exposition) {
    for store in &generation.zones.stores {
        let labels = [store.name()];
        let view = store.view();
        page.sample(&STORE_DEGRADED, &labels, u64::from(store.is_away()));
        page.sample(&STORE_GATEWAYS, &labels, u64::from(store.gateways()));
        page.sample(&STORE_PLACES, &labels, store.places() as u64);
        page.sample(&STORE_ASKED_TOTAL, &labels, view.asked);
        page.sample(&STORE_MISSED_TOTAL, &labels, view.missed);
        page.sample(&STORE_LATE_TOTAL, &labels, view.late);
        leases(&view, &labels, page);
    }
}

fn leases(view: &StoreStatus, labels: &[&str], page: &mut Exposition) {
    let local: u64 = view.held.iter().map(|held| held.crowded).sum();
    page.sample(&STORE_LOCAL_KEYS, labels, local);
    let asked = view.asked + view.asked_behind;
    page.sample(&STORE_ROUND_TRIPS_TOTAL, labels, asked);
    page.sample(&STORE_LOCAL_DECISIONS_TOTAL, labels, view.decided_here);
    page.sample(&STORE_LEASED_REQUESTS_TOTAL, labels, view.leased);
    page.sample(&STORE_RETURNED_REQUESTS_TOTAL, labels, view.returned);
}

metrics! {
    /// The metrics of upstreams, their servers, and of breakers.
    UPSTREAM_METRICS:
    UPSTREAM_RETRIES_DENIED_TOTAL = counter("weir_upstream_retries_denied_total", ["upstream"], "Requests that were not sent again because the retry budget was spent.");
    UPSTREAM_REQUESTS_TOTAL = counter("weir_upstream_requests_total", ["upstream", "server", "status"], "Requests answered by an upstream server.");
    UPSTREAM_LATENCY_SECONDS = histogram("weir_upstream_latency_seconds", ["upstream", "server"], "How long an upstream server took, connecting included, until the head of its answer or until it failed.");
    UPSTREAM_ACTIVE_REQUESTS = gauge("weir_upstream_active_requests", ["upstream", "server"], "Requests at an upstream server now.");
    UPSTREAM_CONNECTIONS_TOTAL = counter("weir_upstream_connections_total", ["upstream", "server"], "Connections opened to it.");
    UPSTREAM_REUSED_TOTAL = counter("weir_upstream_reused_total", ["upstream", "server"], "Requests sent over a kept connection.");
    UPSTREAM_QUEUE_LENGTH = gauge("weir_upstream_queue_length", ["upstream"], "Requests that wait for a server now.");
    UPSTREAM_QUEUE_TOTAL = counter("weir_upstream_queue_total", ["upstream", "result"], "Requests that waited for a server, or would have: served, turned away because the line was full or took too long, or left by their clients.");
    UPSTREAM_QUEUE_WAIT_SECONDS_TOTAL = counter("weir_upstream_queue_wait_seconds_total", ["upstream"], "How long those who were served had waited, in all.");
    UPSTREAM_HEALTHY = gauge("weir_upstream_healthy", ["upstream", "server"], "Whether a checked server counts as healthy.");
    UPSTREAM_CHECKS_TOTAL = counter("weir_upstream_checks_total", ["upstream", "server", "result"], "Health checks of it.");
    UPSTREAM_ADDRESSES = gauge("weir_upstream_addresses", ["upstream", "name"], "Addresses of a name that is looked up again, when it was last found.");
    UPSTREAM_LOOKUPS_TOTAL = counter("weir_upstream_lookups_total", ["upstream", "name", "result"], "How often it was looked up.");
    UPSTREAM_BREAKER_STATE = gauge("weir_upstream_breaker_state", ["upstream", "server", "state"], "The state of a circuit breaker: 1 for the one it is in.");
    LOCATION_BREAKER_STATE = gauge("weir_location_breaker_state", ["server", "location", "state"], "The state of a circuit breaker: 1 for the one it is in.");
    UPSTREAM_BREAKER_OPENED_TOTAL = counter("weir_upstream_breaker_opened_total", ["upstream", "server"], "How often a circuit breaker has opened.");
    LOCATION_BREAKER_OPENED_TOTAL = counter("weir_location_breaker_opened_total", ["server", "location"], "How often a circuit breaker has opened.");
}

fn upstreams(generation: &Generation, page: &mut Exposition) {
    for (plan, upstream) in generation.plan.upstreams.iter().zip(&generation.upstreams) {
        if let Some(waits) = upstream.waits() {
            queue(&plan.name, &waits, page);
        }
        if let Some(denied) = upstream.denied_retries() {
            page.sample(&UPSTREAM_RETRIES_DENIED_TOTAL, &[&*plan.name], denied);
        }
        for backend in upstream.backends() {
            let labels = [&*plan.name, &*backend.name];
            for (status, count) in backend.counts.answers() {
                let status = status.to_string();
                page.sample(
                    &UPSTREAM_REQUESTS_TOTAL,
                    &[labels[0], labels[1], &status],
                    count,
                );
            }
            page.histogram(
                &UPSTREAM_LATENCY_SECONDS,
                &labels,
                &backend.counts.latency(),
            );
            page.sample(
                &UPSTREAM_ACTIVE_REQUESTS,
                &labels,
                u64::from(backend.active()),
            );
            page.sample(
                &UPSTREAM_CONNECTIONS_TOTAL,
                &labels,
                backend.counts.opened(),
            );
            page.sample(&UPSTREAM_REUSED_TOTAL, &labels, backend.counts.reused());
        }
    }
}

fn queue(upstream: &str, waits: &QueueStats, page: &mut Exposition) {
    let name = upstream;
    page.sample(&UPSTREAM_QUEUE_LENGTH, &[name], waits.waiting);
    for (result, count) in [
        ("served", waits.served),
        ("full", waits.full),
        ("timeout", waits.late),
        ("left", waits.left),
    ] {
        page.sample(&UPSTREAM_QUEUE_TOTAL, &[name, result], count);
    }
    page.sample(
        &UPSTREAM_QUEUE_WAIT_SECONDS_TOTAL,
        &[name],
        waits.time.as_secs_f64(),
    );
}

/// What health checks and breakers have to say.
pub(super) fn describe(generation: &Generation, page: &mut Exposition) {
    for upstream in &generation.upstreams {
        describe_names(upstream, page);
        for backend in upstream.backends().iter() {
            let labels = [upstream.name(), &*backend.name];
            if let Some(health) = &backend.health {
                page.sample(&UPSTREAM_HEALTHY, &labels, u32::from(health.is_healthy()));
                for (result, count) in [("pass", health.passed()), ("fail", health.failed())] {
                    page.sample(
                        &UPSTREAM_CHECKS_TOTAL,
                        &[labels[0], labels[1], result],
                        count,
                    );
                }
            }
            if let Some(breaker) = &backend.breaker {
                describe_breaker(
                    breaker,
                    (&UPSTREAM_BREAKER_STATE, &UPSTREAM_BREAKER_OPENED_TOTAL),
                    labels,
                    page,
                );
            }
        }
    }
    for guard in &generation.guards {
        let labels = [&*guard.server, &*guard.location];
        describe_breaker(
            &guard.breaker,
            (&LOCATION_BREAKER_STATE, &LOCATION_BREAKER_OPENED_TOTAL),
            labels,
            page,
        );
    }
}

/// Names that are looked up again.
fn describe_names(upstream: &Upstream, page: &mut Exposition) {
    for name in upstream.names() {
        let labels = [upstream.name(), &*name.host];
        page.sample(&UPSTREAM_ADDRESSES, &labels, name.addresses as u64);
        for (result, count) in [("found", name.found), ("failed", name.failed)] {
            page.sample(
                &UPSTREAM_LOOKUPS_TOTAL,
                &[labels[0], labels[1], result],
                count,
            );
        }
    }
}

metrics! {
    /// The metrics of fallbacks and degrade groups.
    FALLBACK_METRICS:
    FALLBACKS_TOTAL = counter("weir_fallbacks_total", ["answer"], "Answers that a fallback gave, by where they came from.");
    STALE_ANSWERS = gauge("weir_stale_answers", [], "Good answers kept for when there are no others.");
    STALE_BYTES = gauge("weir_stale_bytes", [], "The memory they take, with those that are being received.");
    STALE_SKIPPED_TOTAL = counter("weir_stale_skipped_total", [], "Good answers not kept, because there was no room for them while they were received.");
    DEGRADE_MODE = gauge("weir_degrade_mode", ["group", "mode"], "What holds for a group of locations: 1 for the one that does.");
}

/// What became of those whose answer was not to be had.
pub(super) fn describe_fallbacks(generation: &Generation, page: &mut Exposition) {
    for (way, count) in proxy::taken() {
        page.sample(&FALLBACKS_TOTAL, &[way], count);
    }
    let (answers, bytes) = generation.kept.usage();
    page.sample(&STALE_ANSWERS, &[], answers as u64);
    page.sample(&STALE_BYTES, &[], bytes as u64);
    page.sample(&STALE_SKIPPED_TOTAL, &[], proxy::skipped());
    for group in &generation.groups {
        for mode in [DegradeMode::Auto, DegradeMode::Off, DegradeMode::On] {
            page.sample(
                &DEGRADE_MODE,
                &[&group.name, mode.as_str()],
                u32::from(group.mode() == mode),
            );
        }
    }
}

fn describe_breaker(
    breaker: &Breaker,
    (state, opened): (&'static Metric, &'static Metric),
    labels: [&str; 2],
    page: &mut Exposition,
) {
    let present = breaker.state();
    for one in BreakerState::ALL {
        let labels = [labels[0], labels[1], one.as_str()];
        page.sample(state, &labels, u32::from(one == present));
    }
    page.sample(opened, &labels, breaker.opened());
}

#[cfg(test)]
mod tests {

    use std::collections::BTreeSet;

    use super::*;

    /// The rows of the manual: a series in backticks, and its type.
    fn documented() -> BTreeSet<String> {
        let manual = include_str!("../../docs/metrics.md");
        let rows = manual.lines().filter_map(|line| line.strip_prefix("| `"));
        rows.filter_map(|row| {
            let (series, rest) = row.split_once("` | ")?;
            let (kind, _) = rest.split_once(" |")?;
            let is_metric = ["counter", "gauge", "histogram"].contains(&kind);
            is_metric.then(|| format!("{series} {kind}"))
        })
        .collect()
    }

    #[test]
    fn the_manual_has_every_metric_with_its_type_and_labels() {
        let declared: BTreeSet<_> = all()
            .map(|metric| match metric.labels {
                [] => format!("{} {}", metric.name, metric.kind()),
                labels => format!("{}{{{}}} {}", metric.name, labels.join(","), metric.kind()),
            })
            .collect();
        assert_eq!(documented(), declared);
    }
}
