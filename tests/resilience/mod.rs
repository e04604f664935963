//! Failing backends and a gateway that keeps serving: health checks, breakers, fallbacks.
//!
//! Nothing here waits for a time to pass: what is to happen is asked for again and again, through the metrics, the API
//! or the answers themselves, until it has happened.

mod breakers;
mod checks;
mod fallbacks;
mod private;
mod stale;

use crate::support::client::Response;
use crate::support::{Client, Metrics, Origin, Weir, eventually};

/// A weir with an admin listener before an upstream `app` of these backends.
fn before(origins: &[&Origin], upstream: &str, servers: &str) -> Weir {
    let addresses: Vec<_> = origins
        .iter()
        .map(|origin| format!("'{}'", origin.address()))
        .collect();
    Weir::start(&format!(
        "admin: {{ listen: ADMIN }}
upstreams:
  app: {{ servers: [ {} ], {upstream} }}
servers:
- listen: LISTEN
  {servers}
",
        addresses.join(", ")
    ))
}

/// The metric of this name with all of these labels.
fn metric(weir: &Weir, name: &str, labels: &[&str]) -> Option<u64> {
    let metrics = Metrics::of(weir);
    let sample = metrics.samples.iter().find(|sample| {
        let shown = sample.labels.iter();
        let shown: String = shown
            .map(|(name, value)| format!("{name}=\"{value}\","))
            .collect();
        sample.name == name && labels.iter().all(|label| shown.contains(label))
    })?;
    Some(sample.value as u64)
}

/// Whether a server counts as healthy.
fn is_healthy(weir: &Weir, origin: &Origin) -> bool {
    let server = format!("server=\"{}\"", origin.address());
    metric(weir, "weir_upstream_healthy", &[&server]) == Some(1)
}

fn until_healthy(weir: &Weir, origin: &Origin, healthy: bool) {
    eventually("the checks agree", || is_healthy(weir, origin) == healthy);
}

/// Whether the breaker of an upstream's server is in this state.
fn server_breaker(weir: &Weir, origin: &Origin, state: &str) -> bool {
    let server = format!("server=\"{}\"", origin.address());
    let state = format!("state=\"{state}\"");
    metric(weir, "weir_upstream_breaker_state", &[&server, &state]) == Some(1)
}

/// Whether the breaker of a location is in this state.
fn location_breaker(weir: &Weir, location: &str, state: &str) -> bool {
    let location = format!("location=\"{location}\"");
    let state = format!("state=\"{state}\"");
    metric(weir, "weir_location_breaker_state", &[&location, &state]) == Some(1)
}

/// Asks for `path` with these fields.
fn ask(weir: &Weir, method: &str, path: &str, fields: &str) -> Response {
    let mut client = Client::connect(weir.address());
    client.send(format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"
    ));
    match method {
        "HEAD" => client.response_to_head(),
        _ => client.response(),
    }
}
