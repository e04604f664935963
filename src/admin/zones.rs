//! The zones of both kinds as one list: what `/metrics` and `/api/zones` both read.

use crate::config::plan::Algorithm;
use crate::limits::ShadowZone;
use crate::proxy::Live;
use crate::store::Counts;
use crate::telemetry::Reading;

/// A zone at this moment.
pub(super) struct Zone<'a> {
    pub(super) name: &'a str,
    /// How it counts; only a `limit_req` zone has this.
    pub(super) algorithm: Option<Algorithm>,
    pub(super) keys: usize,
    pub(super) capacity: usize,
    pub(super) counts: Counts,
    /// How long those had to wait whom it delayed.
    pub(super) delays: Reading,
    /// Where a `shadow` counts in a zone of this name.
    pub(super) shadow: Option<&'a ShadowZone>,
}

/// All zones: those for requests, then those for connections, each in the file's order.
pub(super) fn zones(live: &Live) -> impl Iterator<Item = Zone<'_>> {
    let shadows = live.zones.req.iter().zip(&live.zones.shadow);
    let requests = live.plan.req_zones.iter().zip(shadows);
    let connections = live.plan.conn_zones.iter().zip(&live.zones.conn);
    let requests = requests.map(|(plan, (zone, shadow))| Zone {
        name: &plan.name,
        algorithm: Some(plan.algorithm),
        keys: zone.store.len(),
        capacity: zone.store.capacity(),
        counts: zone.store.counts(),
        delays: zone.store.delays.read(),
        shadow: shadow.as_deref(),
    });
    requests.chain(connections.map(|(plan, zone)| Zone {
        name: &plan.name,
        algorithm: None,
        keys: zone.store.len(),
        capacity: zone.store.capacity(),
        counts: zone.store.counts(),
        delays: zone.delays.read(),
        shadow: None,
    }))
}
