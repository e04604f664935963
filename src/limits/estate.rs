//! What zones inherit from those of their names in the plan before.
//!
//! The rate, the burst, the size of a zone may change and everybody stands where they stood. Where what was counted means
//! something else now, it is better forgotten, and the log says so.

use super::ShadowZone;
use super::zones::{ConnZone, ReqZone, Zones};
use crate::config::plan::{self, Plan};

/// What there is to inherit.
pub(super) struct Estate<'a> {
    pub(super) plan: &'a Plan,
    pub(super) before: Option<(&'a Plan, &'a Zones)>,
}

impl<'a> Estate<'a> {
    /// The zone that this one goes on from.
    pub(super) fn req(&self, zone: &plan::ReqZone) -> Option<&'a ReqZone> {
        let (plan, zones) = self.before?;
        let index = position(plan.req_zones.iter().map(|old| &*old.name), &zone.name)?;
        match self.plan.inherits(zone, plan, &plan.req_zones[index]) {
            Ok(()) => zones.req.get(index).map(|old| &**old),
            Err(why) => {
                let zone = &*zone.name;
                tracing::warn!(
                    "zone \"{zone}\" starts afresh: {why}, what was counted is forgotten"
                );
                None
            }
        }
    }

    /// The same for what a `shadow` counts; the log has heard of it.
    pub(super) fn shadow(&self, zone: &plan::ReqZone) -> Option<&'a ShadowZone> {
        let (plan, zones) = self.before?;
        let index = position(plan.req_zones.iter().map(|old| &*old.name), &zone.name)?;
        let inherits = self.plan.inherits(zone, plan, &plan.req_zones[index]);
        inherits.ok()?;
        zones.shadow.get(index)?.as_deref()
    }

    /// The zone whose places this one has.
    pub(super) fn conn(&self, zone: &plan::ConnZone) -> Option<&'a ConnZone> {
        let (plan, zones) = self.before?;
        let index = position(plan.conn_zones.iter().map(|old| &*old.name), &zone.name)?;
        if !(self.plan).inherits_places(zone, plan, &plan.conn_zones[index]) {
            let zone = &*zone.name;
            tracing::warn!(
                "zone \"{zone}\" starts afresh: its key has changed, requests in progress are not counted in it"
            );
            return None;
        }
        zones.conn.get(index).map(|old| &**old)
    }
}

fn position<'n>(mut names: impl Iterator<Item = &'n str>, wanted: &str) -> Option<usize> {
    names.position(|name| name == wanted)
}
