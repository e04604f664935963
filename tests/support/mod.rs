//! Helpers of the tests: the real binary, the real nginx, a backend that can misbehave and a client that sends exactly the
//! bytes it is given.

pub(crate) mod api;
pub(crate) mod browser;
pub(crate) mod certs;
pub(crate) mod client;
pub(crate) mod dns;
pub(crate) mod frames;
pub(crate) mod gates;
pub(crate) mod message;
pub(crate) mod metrics;
pub(crate) mod nginx;
pub(crate) mod origin;
pub(crate) mod ports;
pub(crate) mod process;
pub(crate) mod redis;
pub(crate) mod terminal;
pub(crate) mod weir;

use std::time::Duration;

use tokio::time::Instant;

pub(crate) use api::Api;
pub(crate) use certs::{Certs, wanted};
pub(crate) use client::{Client, get, get_from, pipelined};
pub(crate) use metrics::{Metrics, metric};
pub(crate) use nginx::Nginx;
pub(crate) use origin::Origin;
pub(crate) use terminal::Terminal;
pub(crate) use weir::Weir;

/// Longer than anything here takes on a busy machine; reaching it is a failure, never a pass.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Milliseconds since `start`.
pub(crate) fn millis_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).expect("a test does not last that long")
}
