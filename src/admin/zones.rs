//! The zones of both kinds as one list: what `/metrics` and `/api/zones` both read.

use super::reply::ApiError;
use crate::config;
use crate::config::plan::{AlgorithmParams, Excess, Part, Plan};
use crate::limits::{ConnZone, KeyAdmin, ReqZone, ShadowZone};
use crate::proxy::Generation;
use crate::store::ZoneCounts;
use crate::telemetry::HistogramSnapshot;

/// A zone at this moment.
pub(super) struct ZoneSnapshot<'a> {
    pub(super) name: &'a str,
    /// How it counts; only a `limit_req` zone has this.
    pub(super) algorithm: Option<AlgorithmParams>,
    pub(super) keys: usize,
    pub(super) capacity: usize,
    pub(super) counts: ZoneCounts,
    /// What operators know of its keys and want of them.
    pub(super) watch: &'a KeyAdmin,
    /// The store it shares with other gateways.
    pub(super) store: Option<&'a str>,
    /// How long those had to wait whom it delayed.
    pub(super) delays: HistogramSnapshot,
    /// Penalties that were not given for want of room, where its rules give some.
    pub(super) penalties_dropped: Option<u64>,
    /// How many stand in line for a place; only a `limit_conn` zone has this.
    pub(super) waiting: Option<u64>,
    /// Where a `shadow` counts in a zone of this name.
    pub(super) shadow: Option<&'a ShadowZone>,
}

/// All zones: those for requests, then those for connections, each in the file's order.
pub(super) fn zones(live: &Generation) -> impl Iterator<Item = ZoneSnapshot<'_>> {
    let shadows = live.zones.req.iter().zip(&live.zones.shadow);
    let requests = live.plan.req_zones.iter().zip(shadows);
    let connections = live.plan.conn_zones.iter().zip(&live.zones.conn);
    let requests = requests.map(|(plan, (zone, shadow))| ZoneSnapshot {
        name: &plan.name,
        algorithm: Some(plan.algorithm),
        keys: zone.store.len(),
        capacity: zone.store.capacity(),
        counts: zone.store.counts(),
        watch: &zone.watch,
        store: plan.store.map(|store| &*live.plan.stores[store].name),
        delays: zone.store.delays.read(),
        penalties_dropped: zone.penalties_dropped(),
        waiting: None,
        shadow: shadow.as_deref(),
    });
    requests.chain(connections.map(|(plan, zone)| ZoneSnapshot {
        name: &plan.name,
        algorithm: None,
        keys: zone.store.len(),
        capacity: zone.store.capacity(),
        counts: zone.store.counts(),
        watch: &zone.watch,
        store: plan.store.map(|store| &*live.plan.stores[store].name),
        delays: zone.delays.read(),
        penalties_dropped: None,
        waiting: Some(zone.waiting()),
        shadow: None,
    }))
}

/// A zone that somebody asks for by name, and its place in the plan.
#[derive(Debug, Clone, Copy)]
pub(super) enum ZoneRef<'a> {
    Conn(usize, &'a ConnZone),
    Req(usize, &'a ReqZone),
}

/// The zone of this name.
pub(super) fn find<'l>(live: &'l Generation, name: &str) -> Result<ZoneRef<'l>, ApiError> {
    let position = |mut names: Box<dyn Iterator<Item = &str> + '_>| names.position(|it| it == name);
    let plan = &live.plan;
    if let Some(index) = position(Box::new(plan.req_zones.iter().map(|zone| &*zone.name))) {
        return Ok(ZoneRef::Req(index, &live.zones.req[index]));
    }
    if let Some(index) = position(Box::new(plan.conn_zones.iter().map(|zone| &*zone.name))) {
        return Ok(ZoneRef::Conn(index, &live.zones.conn[index]));
    }
    Err(ApiError::missing(format!(
        "there is no zone `{name}`; /api/zones lists those there are"
    )))
}

impl ZoneRef<'_> {
    /// What its keys are made of, as in the file.
    pub(super) fn key(&self, plan: &Plan) -> String {
        let template = match self {
            Self::Conn(index, _) => &plan.conn_zones[*index].key,
            Self::Req(index, _) => &plan.req_zones[*index].key,
        };
        let parts = template.parts.iter().map(|part| match part {
            Part::Text(text) => text.to_string(),
            Part::Variable(variable) => {
                format!("${}", config::variable_name(variable, &plan.maps))
            }
        });
        parts.collect()
    }

    pub(super) fn watch(&self) -> &KeyAdmin {
        match self {
            Self::Conn(_, zone) => &zone.watch,
            Self::Req(_, zone) => &zone.watch,
        }
    }
}

/// The largest burst of the rules that use a `limit_req` zone.
pub(super) fn burst(live: &Generation, zone: usize) -> Excess {
    let rules = live.plan.sites().flat_map(|site| &site.limit_req);
    let rules = rules.filter(|rule| rule.zone == zone);
    rules.map(|rule| rule.burst).max().unwrap_or_default()
}

/// The largest limit of the rules that use a `limit_conn` zone.
pub(super) fn limit(live: &Generation, zone: usize) -> u32 {
    let rules = live.plan.sites().flat_map(|site| &site.limit_conn);
    let rules = rules.filter(|rule| rule.zone == zone);
    rules.map(|rule| rule.limit).max().unwrap_or_default()
}
