//! The zones of both kinds as one list: what `/metrics` and `/api/zones` both read.

use crate::proxy::Live;
use crate::store::Counts;

/// A zone at this moment.
pub(super) struct Zone<'a> {
    pub(super) name: &'a str,
    /// Only a `limit_req` zone has one.
    pub(super) rate: Option<String>,
    pub(super) keys: usize,
    pub(super) capacity: usize,
    pub(super) counts: Counts,
}

/// All zones: those for requests, then those for connections, each in the file's order.
pub(super) fn zones(live: &Live) -> impl Iterator<Item = Zone<'_>> {
    let requests = live.plan.req_zones.iter().zip(&live.zones.req);
    let connections = live.plan.conn_zones.iter().zip(&live.zones.conn);
    let requests = requests.map(|(plan, zone)| Zone {
        name: &plan.name,
        rate: Some(plan.rate.to_string()),
        keys: zone.store.len(),
        capacity: zone.store.capacity(),
        counts: zone.store.counts(),
    });
    requests.chain(connections.map(|(plan, zone)| Zone {
        name: &plan.name,
        rate: None,
        keys: zone.store.len(),
        capacity: zone.store.capacity(),
        counts: zone.store.counts(),
    }))
}
