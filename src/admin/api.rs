//! `/api/...`: what programs read, as JSON.

use serde::Serialize;

use super::zones::zones;
use crate::proxy::Live;

/// A zone as `/api/zones` shows it.
#[derive(Debug, Serialize)]
struct Zone<'a> {
    name: &'a str,
    kind: &'static str,
    algorithm: Option<&'static str>,
    rate: Option<String>,
    keys: usize,
    capacity: usize,
    pass: u64,
    delay: u64,
    refuse: u64,
}

/// `GET /api/zones`
pub(super) fn list(live: &Live) -> String {
    let zones: Vec<_> = zones(live)
        .map(|zone| Zone {
            name: zone.name,
            kind: if zone.algorithm.is_some() {
                "limit_req"
            } else {
                "limit_conn"
            },
            algorithm: zone.algorithm.map(|algorithm| algorithm.name()),
            rate: zone.algorithm.map(|algorithm| algorithm.to_string()),
            keys: zone.keys,
            capacity: zone.capacity,
            pass: zone.counts.pass,
            delay: zone.counts.delay,
            refuse: zone.counts.refuse,
        })
        .collect();
    // Only numbers and names that were read as text: there is nothing in it that could fail.
    serde_json::to_string(&zones).unwrap_or_default()
}
