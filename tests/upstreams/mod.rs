//! A group of servers under load: who waits, who is tried again, and that one that hangs harms nobody else.

mod isolation;
mod names;
mod queue;
mod retries;

use crate::support::{Origin, Weir, eventually, get};

/// A weir before a group with these settings, and these for its only server.
fn before(origin: &Origin, upstream: &str, server: &str, location: &str) -> Weir {
    Weir::before(
        origin,
        &format!(
            "workers: 2
admin: {{ listen: ADMIN }}
upstreams: {{ app: {{ {upstream} servers: [ {{ address: ORIGIN {server} }} ] }} }}
servers: [ {{ listen: LISTEN, locations: [ {{ path: /, {location} proxy_pass: app }} ] }} ]
"
        ),
    )
}

/// The value of a metric whose line begins so.
fn metric(weir: &Weir, series: &str) -> u64 {
    let page = get(weir.admin_address(), "/metrics").text();
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    let value = line.unwrap_or_else(|| panic!("{series} in\n{page}"));
    value.trim().parse().expect("a number")
}

/// Waits until so many requests wait for a server.
fn await_waiting(weir: &Weir, count: u64) {
    eventually(&format!("{count} wait"), || {
        metric(weir, "weir_upstream_queue_length{upstream=\"app\"}") == count
    });
}

/// How many left the line in this way.
fn queued(weir: &Weir, result: &str) -> u64 {
    metric(
        weir,
        &format!("weir_upstream_queue_total{{upstream=\"app\",result=\"{result}\"}}"),
    )
}
