//! `/api/store`: who shares a store, and how it is.

use serde::Serialize;

use crate::proxy::Generation;
use crate::store::LeaseHoldings;

/// A store as `/api/store` shows it.
#[derive(Debug, Serialize)]
struct Store<'a> {
    name: &'a str,
    degraded: bool,
    /// What went wrong, while it is.
    why: Option<String>,
    /// Which of the gateways this is.
    gateway: String,
    gateways: Vec<Gateway>,
    zones: Vec<&'a str>,
    /// Requests of this gateway that hold places of its `limit_conn` zones.
    places: usize,
    asked: u64,
    missed: u64,
    asked_behind: u64,
    decided_here: u64,
    leased: u64,
    returned: u64,
}

/// One that shares it.
#[derive(Debug, Serialize)]
struct Gateway {
    name: String,
    seen_ago_ms: u64,
    leases: Vec<Lease>,
}

/// What a gateway has in hand of one zone.
#[derive(Debug, Serialize)]
struct Lease {
    zone: Box<str>,
    keys: u64,
    requests: f64,
    /// Of how many keys so much is wanted that nobody is asked.
    local_keys: u64,
}

/// `GET /api/store`
pub(super) fn list(live: &Generation) -> impl Serialize {
    live.zones
        .stores
        .iter()
        .enumerate()
        .map(|(index, store)| {
            let view = store.view();
            let requests = live.plan.req_zones.iter();
            let requests = requests.map(|zone| (&zone.name, zone.store));
            let connections = live.plan.conn_zones.iter();
            let zones = requests.chain(connections.map(|zone| (&zone.name, zone.store)));
            Store {
                name: store.name(),
                degraded: store.is_away(),
                why: view.outage.map(|outage| outage.why),
                gateway: view.gateway,
                gateways: view
                    .gateways
                    .into_iter()
                    .map(|gateway| Gateway {
                        name: gateway.name,
                        seen_ago_ms: gateway.seen_ago,
                        leases: gateway.held.into_iter().map(lease).collect(),
                    })
                    .collect(),
                zones: zones
                    .filter(|(_, store)| *store == Some(index))
                    .map(|(name, _)| &**name)
                    .collect(),
                places: store.places(),
                asked: view.asked,
                missed: view.missed,
                asked_behind: view.asked_behind,
                decided_here: view.decided_here,
                leased: view.leased,
                returned: view.returned,
            }
        })
        .collect::<Vec<_>>()
}

fn lease(held: LeaseHoldings) -> Lease {
    // A number for people: thousandths of requests are exact far beyond what is ever in hand.
    let requests = u32::try_from(held.units.milli()).unwrap_or(u32::MAX);
    Lease {
        zone: held.zone,
        keys: held.keys,
        requests: f64::from(requests) / 1000.0,
        local_keys: held.crowded,
    }
}
