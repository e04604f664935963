//! `/api/...`: what programs read, as JSON.

use serde::Serialize;

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
pub(super) fn zones(live: &Live) -> String {
    let requests = live
        .plan
        .req_zones
        .iter()
        .zip(&live.zones.req)
        .map(|(plan, zone)| {
            let counts = zone.store.counts();
            Zone {
                name: &plan.name,
                kind: "limit_req",
                algorithm: Some("leaky_bucket"),
                rate: Some(plan.rate.to_string()),
                keys: zone.store.len(),
                capacity: zone.store.capacity(),
                pass: counts.pass,
                delay: counts.delay,
                refuse: counts.refuse,
            }
        });
    let connections = live
        .plan
        .conn_zones
        .iter()
        .zip(&live.zones.conn)
        .map(|(plan, zone)| {
            let counts = zone.store.counts();
            Zone {
                name: &plan.name,
                kind: "limit_conn",
                algorithm: None,
                rate: None,
                keys: zone.store.len(),
                capacity: zone.store.capacity(),
                pass: counts.pass,
                delay: counts.delay,
                refuse: counts.refuse,
            }
        });
    let zones: Vec<_> = requests.chain(connections).collect();
    // Only numbers and names that were read as text: there is nothing in it that could fail.
    serde_json::to_string(&zones).unwrap_or_default()
}
