//! `/metrics`: the page of all metrics.
//!
//! Counters live where they are counted (zones, backends, the process); here they are only read and written out. A key is
//! never a label: clients determine how many keys there are.

use super::endpoints::{ApiCall, Endpoint};
use super::reload::RELOAD_METRICS;
use super::response::with_type;
use super::zones::zones;
use crate::config::plan::DegradeMode;
use crate::proxy::Generation;
use crate::spool::BUFFER_METRICS;
use crate::store::ZoneCounts;
use crate::telemetry::{
    BackgroundTask, COUNTERS, Exposition, LISTENER_METRICS, LOG_METRICS, LOOP_METRICS,
    ListenerCounters, Metric, PROCESS_METRICS, PROCESS_WIDE_METRICS, TASK_METRICS, describe_loops,
    metrics, traces,
};
use crate::upstream::breaker::{Breaker, BreakerState};
use crate::upstream::{Backend, QueueStats};
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

pub(super) fn endpoints() -> Vec<Endpoint> {
    let metrics = Endpoint::raw("/metrics", "All metrics, for Prometheus", |call| {
        Ok(with_type(page(call), Exposition::CONTENT_TYPE))
    });
    vec![metrics.text(200, "The metrics.")]
}

/// The page in Prometheus's text format.
fn page(call: &ApiCall) -> String {
    let generation = &*call.generation;
    let mut page = Exposition::new();
    telemetry::describe_process(&mut page);
    describe_loops(&mut page);
    BackgroundTask::describe_panics(&mut page);
    ListenerCounters::describe_all(&mut page);
    COUNTERS.describe(&mut page);
    call.state.writer.describe(&mut page);
    traces::describe(&mut page);
    call.state.reloads.describe(&mut page);
    describe_zones(generation, &mut page);
    describe_stores(generation, &mut page);
    describe_upstreams(generation, &mut page);
    describe_conditions(generation, &mut page);
    describe_fallbacks(generation, &mut page);
    generation.buffers.describe(&mut page);
    page.finish()
}

metrics! {
    /// The metrics of zones.
    ZONE_METRICS:
    LIMIT_VERDICTS_TOTAL = counter("weir_limit_verdicts_total", ["zone", "verdict"], "Verdicts of limits.");
    LIMIT_DELAY_SECONDS = histogram("weir_limit_delay_seconds", ["zone"], "How long limits delayed requests.");
    LIMIT_QUEUE_LENGTH = gauge("weir_limit_queue_length", ["zone"], "Requests that wait for a place of a `limit_conn` zone.");
    BAD_COSTS_TOTAL = counter("weir_bad_costs_total", [], "Cost templates that gave no number.");
    ZONE_KEYS = gauge("weir_zone_keys", ["zone"], "Keys a zone holds.");
    ZONE_CAPACITY = gauge("weir_zone_capacity", ["zone"], "Keys a zone can hold.");
    ZONE_RATE = gauge("weir_zone_rate", ["zone"], "Requests a second that a zone allows each key.");
    ZONE_EVICTIONS_TOTAL = counter("weir_zone_evictions_total", ["zone"], "Keys evicted before they had drained, or refused for lack of room.");
    ZONE_PENALTIES_DROPPED_TOTAL = counter("weir_zone_penalties_dropped_total", ["zone"], "Penalties not recorded for lack of room.");
    SHADOW_VERDICTS_TOTAL = counter("weir_shadow_verdicts_total", ["zone", "verdict"], "Verdicts of shadow limits.");
    SHADOW_DIFFERS_TOTAL = counter("weir_shadow_differs_total", ["zone", "verdict"], "Requests with this shadow verdict and the opposite verdict of the enforced limits.");
}

fn describe_zones(generation: &Generation, page: &mut Exposition) {
    for zone in zones(generation) {
        let labels = [zone.name];
        describe_verdicts(&LIMIT_VERDICTS_TOTAL, zone.name, zone.counts, page);
        let rate = zone.algorithm.map(|algorithm| algorithm.per_second());
        page.sample(&ZONE_KEYS, &labels, zone.keys);
        page.sample(&ZONE_CAPACITY, &labels, zone.capacity);
        if let Some(rate) = rate {
            page.sample(&ZONE_RATE, &labels, rate);
        }
        page.sample(&ZONE_EVICTIONS_TOTAL, &labels, zone.evictions);
        if let Some(dropped) = zone.penalties_dropped {
            page.sample(&ZONE_PENALTIES_DROPPED_TOTAL, &labels, dropped);
        }
        page.histogram(&LIMIT_DELAY_SECONDS, &labels, &zone.delays);
        if let Some(waiting) = zone.waiting {
            page.sample(&LIMIT_QUEUE_LENGTH, &labels, waiting);
        }
        if let Some(shadow) = zone.shadow {
            let (counts, differs) = (shadow.zone.store.counts(), shadow.differences());
            describe_verdicts(&SHADOW_VERDICTS_TOTAL, zone.name, counts, page);
            for (verdict, count) in [("pass", differs.pass), ("refuse", differs.refuse)] {
                page.sample(&SHADOW_DIFFERS_TOTAL, &[zone.name, verdict], count);
            }
        }
    }
    page.sample(&BAD_COSTS_TOTAL, &[], limits::bad_costs());
}

fn describe_verdicts(
    metric: &'static Metric,
    zone: &str,
    counts: ZoneCounts,
    page: &mut Exposition,
) {
    for (verdict, count) in [
        ("pass", counts.pass),
        ("delay", counts.delay),
        ("refuse", counts.refuse),
    ] {
        page.sample(metric, &[zone, verdict], count);
    }
}

metrics! {
    /// The metrics of stores.
    STORE_METRICS:
    STORE_DEGRADED = gauge("weir_store_degraded", ["store"], "Whether a store is unavailable and its zones count without it.");
    STORE_GATEWAYS = gauge("weir_store_gateways", ["store"], "Gateways that share a store, when last known.");
    STORE_PLACES = gauge("weir_store_places", ["store"], "Requests of this gateway that hold shared places of a limit_conn.");
    STORE_ASKED_TOTAL = counter("weir_store_asked_total", ["store"], "Queries to a store that a request waited for.");
    STORE_MISSED_TOTAL = counter("weir_store_missed_total", ["store"], "Queries without a reply in time, or at all.");
    STORE_LATE_TOTAL = counter("weir_store_late_total", ["store"], "Queries without a reply within the timeout.");
    STORE_LOCAL_KEYS = gauge("weir_store_local_keys", ["store"], "Keys above `local_above`, which are decided locally.");
    STORE_ROUND_TRIPS_TOTAL = counter("weir_store_round_trips_total", ["store"], "All queries to a store, whether a request waited for them or not.");
    STORE_LOCAL_DECISIONS_TOTAL = counter("weir_store_local_decisions_total", ["store"], "Verdicts about shared zones made without a query.");
    STORE_LEASED_REQUESTS_TOTAL = counter("weir_store_leased_requests_total", ["store"], "Requests leased from a store.");
    STORE_RETURNED_REQUESTS_TOTAL = counter("weir_store_returned_requests_total", ["store"], "Leased requests that were returned.");
}

fn describe_stores(generation: &Generation, page: &mut Exposition) {
    for store in &generation.zones.stores {
        let view = store.status();
        for (metric, value) in [
            (&STORE_DEGRADED, u64::from(store.handle.is_away())),
            (&STORE_GATEWAYS, u64::from(store.handle.fleet.present())),
            (&STORE_PLACES, store.slots.held() as u64),
            (&STORE_ASKED_TOTAL, view.asked),
            (&STORE_MISSED_TOTAL, view.missed),
            (&STORE_LATE_TOTAL, view.late),
            (
                &STORE_LOCAL_KEYS,
                view.held.iter().map(|held| held.crowded).sum(),
            ),
            (&STORE_ROUND_TRIPS_TOTAL, view.asked + view.asked_behind),
            (&STORE_LOCAL_DECISIONS_TOTAL, view.decided_here),
            (&STORE_LEASED_REQUESTS_TOTAL, view.leased),
            (&STORE_RETURNED_REQUESTS_TOTAL, view.returned),
        ] {
            page.sample(metric, &[&store.handle.name], value);
        }
    }
}

metrics! {
    /// The metrics of upstreams, their servers, and of breakers.
    UPSTREAM_METRICS:
    UPSTREAM_RETRIES_DENIED_TOTAL = counter("weir_upstream_retries_denied_total", ["upstream"], "Requests not retried because the retry budget was spent.");
    UPSTREAM_REQUESTS_TOTAL = counter("weir_upstream_requests_total", ["upstream", "server", "status"], "Requests sent to an upstream server, by status.");
    UPSTREAM_LATENCY_SECONDS = histogram("weir_upstream_latency_seconds", ["upstream", "server"], "How long an upstream server took, including the connection, until the response headers or the failure.");
    UPSTREAM_ACTIVE_REQUESTS = gauge("weir_upstream_active_requests", ["upstream", "server"], "Requests in progress at an upstream server.");
    UPSTREAM_CONNECTIONS_TOTAL = counter("weir_upstream_connections_total", ["upstream", "server"], "Connections opened to an upstream server.");
    UPSTREAM_REUSED_TOTAL = counter("weir_upstream_reused_total", ["upstream", "server"], "Requests sent over a reused connection.");
    UPSTREAM_QUEUE_LENGTH = gauge("weir_upstream_queue_length", ["upstream"], "Requests now waiting for a server.");
    UPSTREAM_QUEUE_TOTAL = counter("weir_upstream_queue_total", ["upstream", "result"], "Requests that waited for a server or found the queue full, by result.");
    UPSTREAM_QUEUE_WAIT_SECONDS_TOTAL = counter("weir_upstream_queue_wait_seconds_total", ["upstream"], "Total waiting time of the served requests.");
    UPSTREAM_HEALTHY = gauge("weir_upstream_healthy", ["upstream", "server"], "Whether a server with health checks is healthy.");
    UPSTREAM_CHECKS_TOTAL = counter("weir_upstream_checks_total", ["upstream", "server", "result"], "Health checks, by result.");
    UPSTREAM_ADDRESSES = gauge("weir_upstream_addresses", ["upstream", "name"], "Addresses of a name, at the last successful lookup.");
    UPSTREAM_LOOKUPS_TOTAL = counter("weir_upstream_lookups_total", ["upstream", "name", "result"], "Lookups of a name, by result.");
    UPSTREAM_BREAKER_STATE = gauge("weir_upstream_breaker_state", ["upstream", "server", "state"], "The state of a circuit breaker: 1 for the one it is in.");
    LOCATION_BREAKER_STATE = gauge("weir_location_breaker_state", ["server", "location", "state"], "The state of a circuit breaker: 1 for the one it is in.");
    UPSTREAM_BREAKER_OPENED_TOTAL = counter("weir_upstream_breaker_opened_total", ["upstream", "server"], "How often a circuit breaker has opened.");
    LOCATION_BREAKER_OPENED_TOTAL = counter("weir_location_breaker_opened_total", ["server", "location"], "How often a circuit breaker has opened.");
}

fn describe_upstreams(generation: &Generation, page: &mut Exposition) {
    for upstream in &generation.upstreams {
        let name = upstream.name();
        if let Some(waits) = upstream.queue_stats() {
            describe_queue(name, &waits, page);
        }
        if let Some(denied) = upstream.denied_retries() {
            page.sample(&UPSTREAM_RETRIES_DENIED_TOTAL, &[name], denied);
        }
        for backend in upstream.backends().iter() {
            describe_backend(name, backend, page);
        }
    }
}

fn describe_backend(upstream: &str, backend: &Backend, page: &mut Exposition) {
    let (counts, labels) = (&backend.counters, [upstream, &*backend.name]);
    for (status, count) in counts.statuses() {
        let labels = [labels[0], labels[1], &status.to_string()];
        page.sample(&UPSTREAM_REQUESTS_TOTAL, &labels, count);
    }
    page.histogram(&UPSTREAM_LATENCY_SECONDS, &labels, &counts.latency());
    page.sample(&UPSTREAM_ACTIVE_REQUESTS, &labels, backend.active());
    page.sample(&UPSTREAM_CONNECTIONS_TOTAL, &labels, counts.opened());
    page.sample(&UPSTREAM_REUSED_TOTAL, &labels, counts.reused());
}

fn describe_queue(upstream: &str, waits: &QueueStats, page: &mut Exposition) {
    page.sample(&UPSTREAM_QUEUE_LENGTH, &[upstream], waits.waiting);
    for (result, count) in [
        ("served", waits.served),
        ("full", waits.full),
        ("timeout", waits.late),
        ("left", waits.left),
    ] {
        page.sample(&UPSTREAM_QUEUE_TOTAL, &[upstream, result], count);
    }
    let seconds = waits.time.as_secs_f64();
    page.sample(&UPSTREAM_QUEUE_WAIT_SECONDS_TOTAL, &[upstream], seconds);
}

/// Name look-ups, health checks and breakers.
fn describe_conditions(generation: &Generation, page: &mut Exposition) {
    for upstream in &generation.upstreams {
        for name in upstream.names() {
            let labels = [upstream.name(), &*name.host];
            page.sample(&UPSTREAM_ADDRESSES, &labels, name.addresses);
            for (result, count) in [("found", name.found), ("failed", name.failed)] {
                let labels = [labels[0], labels[1], result];
                page.sample(&UPSTREAM_LOOKUPS_TOTAL, &labels, count);
            }
        }
        for backend in upstream.backends().iter() {
            let labels = [upstream.name(), &*backend.name];
            if let Some(health) = &backend.health {
                page.sample(&UPSTREAM_HEALTHY, &labels, u32::from(health.is_healthy()));
                for (result, count) in [("pass", health.passed()), ("fail", health.failed())] {
                    let labels = [labels[0], labels[1], result];
                    page.sample(&UPSTREAM_CHECKS_TOTAL, &labels, count);
                }
            }
            if let Some(breaker) = &backend.breaker {
                let metrics = (&UPSTREAM_BREAKER_STATE, &UPSTREAM_BREAKER_OPENED_TOTAL);
                describe_breaker(breaker, metrics, labels, page);
            }
        }
    }
    for location in &generation.breakers {
        let labels = [&*location.server, &*location.location];
        let metrics = (&LOCATION_BREAKER_STATE, &LOCATION_BREAKER_OPENED_TOTAL);
        describe_breaker(&location.breaker, metrics, labels, page);
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

metrics! {
    /// The metrics of fallbacks and degrade groups.
    FALLBACK_METRICS:
    FALLBACKS_TOTAL = counter("weir_fallbacks_total", ["answer"], "Responses from fallbacks, by source.");
    STALE_ANSWERS = gauge("weir_stale_answers", [], "Stored responses for fallbacks.");
    STALE_BYTES = gauge("weir_stale_bytes", [], "Memory of the stored responses, including those being received.");
    STALE_SKIPPED_TOTAL = counter("weir_stale_skipped_total", [], "Good responses not stored, because there was no room while they were received.");
    DEGRADE_MODE = gauge("weir_degrade_mode", ["group", "mode"], "The mode of a degrade group: 1 for the current one.");
}

fn describe_fallbacks(generation: &Generation, page: &mut Exposition) {
    for (way, count) in proxy::fallback_counts() {
        page.sample(&FALLBACKS_TOTAL, &[way], count);
    }
    let (responses, bytes) = generation.stale_cache.usage();
    page.sample(&STALE_ANSWERS, &[], responses);
    page.sample(&STALE_BYTES, &[], bytes);
    page.sample(&STALE_SKIPPED_TOTAL, &[], proxy::skipped());
    for group in &generation.groups {
        for mode in [DegradeMode::Auto, DegradeMode::Off, DegradeMode::On] {
            let is_present = u32::from(group.mode() == mode);
            page.sample(&DEGRADE_MODE, &[&group.name, mode.as_str()], is_present);
        }
    }
}

#[cfg(test)]
mod tests {

    use std::collections::BTreeSet;

    use super::*;

    /// The series and the type in a row of the manual: `weir_zone_keys{zone}` gauge.
    fn documented(row: &str) -> Option<String> {
        let (series, rest) = row.strip_prefix("| `")?.split_once("` | ")?;
        let (kind, _) = rest.split_once(" |")?;
        let is_metric = ["counter", "gauge", "histogram"].contains(&kind);
        is_metric.then(|| format!("{series} {kind}"))
    }

    /// The manual with a row for each metric. Written rows stay; a missing one follows the row of the metric declared before it
    /// and has the help text, and those of metrics that are gone are left out.
    fn with_all_rows(manual: &str) -> String {
        let mut lines: Vec<String> = manual.lines().map(str::to_owned).collect();
        let mut at = 0;
        let mut declared = BTreeSet::new();
        for metric in all() {
            let series = match metric.labels {
                [] => metric.name.to_owned(),
                labels => format!("{}{{{}}}", metric.name, labels.join(",")),
            };
            let wanted = format!("{series} {}", metric.kind);
            let written = lines
                .iter()
                .position(|line| documented(line).as_ref() == Some(&wanted));
            at = written.unwrap_or_else(|| {
                let help = metric.help.trim_end_matches('.');
                lines.insert(at + 1, format!("| `{series}` | {} | {help} |", metric.kind));
                at + 1
            });
            declared.insert(wanted);
        }
        lines.retain(|line| documented(line).is_none_or(|row| declared.contains(&row)));
        lines.join("\n") + "\n"
    }

    #[test]
    fn reference_has_every_metric_with_its_type_and_labels() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
        let manual = std::fs::read_to_string(path).expect("the manual can be read");
        let wanted = with_all_rows(&manual);
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            std::fs::write(path, &wanted).expect("the manual can be written");
        } else {
            assert_eq!(
                manual, wanted,
                "docs/metrics.md is not what the code declares: `UPDATE_REFERENCE=1 cargo test --lib reference` writes it"
            );
        }
    }
}
