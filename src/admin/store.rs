//! `/api/store`: who shares a store, and how it is.

use serde::Serialize;

use crate::proxy::Live;
use crate::store::Held;

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
pub(super) fn list(live: &Live) -> String {
    let stores: Vec<_> = live
        .zones
        .stores
        .iter()
        .enumerate()
        .map(|(index, store)| {
            let view = store.view();
            let zones = live.plan.req_zones.iter();
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
                    .filter(|zone| zone.store == Some(index))
                    .map(|zone| &*zone.name)
                    .collect(),
                asked: view.asked,
                missed: view.missed,
                asked_behind: view.asked_behind,
                decided_here: view.decided_here,
                leased: view.leased,
                returned: view.returned,
            }
        })
        .collect();
    // Only numbers and texts: there is nothing in it that could fail.
    serde_json::to_string(&stores).unwrap_or_default()
}

fn lease(held: Held) -> Lease {
    // A number for people: thousandths of requests are exact far beyond what is ever in hand.
    let requests = u32::try_from(held.units.milli()).unwrap_or(u32::MAX);
    Lease {
        zone: held.zone,
        keys: held.keys,
        requests: f64::from(requests) / 1000.0,
        local_keys: held.crowded,
    }
}
