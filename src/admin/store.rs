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
                    })
                    .collect(),
                zones: zones
                    .filter(|zone| zone.store == Some(index))
                    .map(|zone| &*zone.name)
                    .collect(),
                asked: view.asked,
                missed: view.missed,
            }
        })
        .collect::<Vec<_>>()
}
