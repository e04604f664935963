//! What zones inherit from those of their names in the plan before.
//!
//! The rate, the burst, the size of a zone may change and everybody stands where they stood. Where what was counted means
//! something else now, it is better forgotten, and whoever has the configuration read again is told so.

use super::ShadowZone;
use super::zones::{ConnZone, ReqZone, Zones};
use crate::config::plan::{self, Plan};

/// What there is to inherit.
pub(super) struct PreviousZones<'a> {
    pub(super) plan: &'a Plan,
    pub(super) before: Option<(&'a Plan, &'a Zones)>,
}

impl<'a> PreviousZones<'a> {
    /// The zone that this one goes on from.
    pub(super) fn req(&self, zone: &plan::ReqZone) -> Option<&'a ReqZone> {
        let (plan, zones) = self.before?;
        let index = req_position(plan, zone)?;
        let inherits = self.plan.inherits(zone, plan, &plan.req_zones[index]);
        inherits.ok()?;
        zones.req.get(index).map(|old| &**old)
    }

    /// The same for what a `shadow` counts.
    pub(super) fn shadow(&self, zone: &plan::ReqZone) -> Option<&'a ShadowZone> {
        let (plan, zones) = self.before?;
        let index = req_position(plan, zone)?;
        let inherits = self.plan.inherits(zone, plan, &plan.req_zones[index]);
        inherits.ok()?;
        zones.shadow.get(index)?.as_deref()
    }

    /// The zone whose places this one has.
    pub(super) fn conn(&self, zone: &plan::ConnZone) -> Option<&'a ConnZone> {
        let (plan, zones) = self.before?;
        let index = conn_position(plan, zone)?;
        let inherits = (self.plan).inherits_places(zone, plan, &plan.conn_zones[index]);
        inherits.then(|| zones.conn.get(index).map(|old| &**old))?
    }
}

/// What is forgotten when one plan takes the place of another, a sentence for each zone.
pub fn forgotten(plan: &Plan, before: &Plan) -> Vec<String> {
    let requests = plan.req_zones.iter().filter_map(|zone| {
        let old = &before.req_zones[req_position(before, zone)?];
        let why = plan.inherits(zone, before, old).err()?;
        let zone = &*zone.name;
        Some(format!(
            "zone \"{zone}\" starts afresh: {why}, what was counted is forgotten"
        ))
    });
    let connections = plan.conn_zones.iter().filter_map(|zone| {
        let old = &before.conn_zones[conn_position(before, zone)?];
        let afresh = !plan.inherits_places(zone, before, old);
        let zone = &*zone.name;
        afresh.then(|| {
            format!("zone \"{zone}\" starts afresh: its key has changed, requests in progress are not counted in it")
        })
    });
    requests.chain(connections).collect()
}

fn req_position(plan: &Plan, zone: &plan::ReqZone) -> Option<usize> {
    plan.req_zones.iter().position(|old| old.name == zone.name)
}

fn conn_position(plan: &Plan, zone: &plan::ConnZone) -> Option<usize> {
    plan.conn_zones.iter().position(|old| old.name == zone.name)
}
