//! Upstreams, their servers and what stands in for them, as `/metrics` shows them.

use crate::config::plan::DegradeMode;
use crate::proxy::{Generation, fallback};
use crate::telemetry::Exposition;
use crate::upstream::Upstream;
use crate::upstream::breaker::{Breaker, BreakerState};

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
    for (way, count) in fallback::taken() {
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
        fallback::skipped(),
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
