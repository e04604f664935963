//! Slow clients occupy no backend: bodies are buffered both ways, within bounds, and real applications work as before.

mod bounds;
mod full_disk;
mod requests;
mod responses;
mod retries;
mod software;

use crate::support::{Client, Origin, Weir, metric};

/// A weir with metrics that forwards everything; `top` are settings of the top level, `settings` of its one location.
fn forwarding(origin: &Origin, top: &str, settings: &str) -> Weir {
    Weir::before(origin, &configuration(top, settings))
}

fn configuration(top: &str, settings: &str) -> String {
    format!(
        "admin: {{ listen: ADMIN }}
{top}
servers:
- listen: LISTEN
  locations:
  - {{ path: /, {settings} proxy_pass: 'http://ORIGIN' }}
"
    )
}

/// Bytes in use of `memory` or `disk`.
fn in_use(weir: &Weir, resource: &str) -> u64 {
    metric(
        weir,
        &format!("weir_buffer_bytes{{resource=\"{resource}\"}}"),
    )
}

/// How often there was no room, for this reason.
fn full(weir: &Weir, reason: &str) -> u64 {
    metric(
        weir,
        &format!("weir_buffer_full_total{{reason=\"{reason}\"}}"),
    )
}

/// The head of a POST with a body of this length.
fn post(client: &Client, length: usize) {
    client.send(format!(
        "POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
    ));
}
