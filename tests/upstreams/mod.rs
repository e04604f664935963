//! Groups of servers under load: queues, retries, and isolation from a server that hangs.

mod isolation;
mod names;
mod queue;
mod retries;

use crate::support::{Origin, Weir, eventually, metric};

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
