//! `/api/...`: what programs read, as JSON.

use serde::Serialize;

use super::zones::zones;
use crate::limits::ShadowZone;
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
    #[serde(skip_serializing_if = "Option::is_none")]
    shadow: Option<Shadow>,
}

/// What limits that are only proposed say in a zone.
#[derive(Debug, Serialize)]
struct Shadow {
    keys: usize,
    pass: u64,
    delay: u64,
    refuse: u64,
    /// Of those it would refuse, how many passed.
    refuses_passed: u64,
    /// Of those it would let pass, how many were refused.
    passes_refused: u64,
}

fn shadow(shadow: &ShadowZone) -> Shadow {
    let store = &shadow.zone.store;
    let (counts, differs) = (store.counts(), shadow.differs());
    Shadow {
        keys: store.len(),
        pass: counts.pass,
        delay: counts.delay,
        refuse: counts.refuse,
        refuses_passed: differs.refuse,
        passes_refused: differs.pass,
    }
}

/// `GET /api/zones`
pub(super) fn list(live: &Live) -> impl Serialize {
    zones(live)
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
            shadow: zone.shadow.map(shadow),
        })
        .collect::<Vec<_>>()
}
