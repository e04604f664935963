//! `/api/store`: who shares a store, and how it is.

use serde::Serialize;

use crate::proxy::Live;

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
}

/// One that shares it.
#[derive(Debug, Serialize)]
struct Gateway {
    name: String,
    seen_ago_ms: u64,
}

/// `GET /api/store`
pub(super) fn list(live: &Live) -> impl Serialize {
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
                    })
                    .collect(),
                zones: zones
                    .filter(|(_, store)| *store == Some(index))
                    .map(|(name, _)| &**name)
                    .collect(),
                places: store.places(),
                asked: view.asked,
                missed: view.missed,
            }
        })
        .collect::<Vec<_>>()
}
