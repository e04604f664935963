//! `PATCH /api/zones/ZONE`: other numbers for a zone, until the next reload.
//!
//! A plan with these numbers is put in force in the same way as that of a reload: what was counted stays, requests
//! under way go on by the numbers they began with, and nobody pays for the possibility.

use std::sync::Arc;

use arc_swap::ArcSwap;
use serde_json::{Map, Value};

use super::reply::ApiError;
use super::zones::{self, ZoneRef};
use crate::config::{Plan, amend};
use crate::proxy::{Generation, LiveChanges};

/// Other numbers for a zone; those it has already stay unless they are named, and `null` takes one back.
pub(super) fn change(
    live: &ArcSwap<Generation>,
    zone: &str,
    change: &Map<String, Value>,
) -> Result<Arc<Generation>, ApiError> {
    if change.is_empty() {
        return Err(ApiError::bad("give it a `rate`, a `limit` or a `burst`"));
    }
    let changed = swap(live, zone, |numbers| {
        for (name, value) in change {
            numbers.insert(name.clone(), value.clone());
        }
        // Even so it has to be one that could have been given.
        check_names(change)?;
        numbers.retain(|_, value| !value.is_null());
        Ok(())
    })?;
    let change = Value::Object(change.clone());
    tracing::warn!(zone, %change, "admin: zone changed until the next reload");
    Ok(changed)
}

/// The numbers of the file for a zone.
pub(super) fn restore(live: &ArcSwap<Generation>, zone: &str) -> Result<Arc<Generation>, ApiError> {
    let restored = swap(live, zone, |numbers| {
        numbers.clear();
        Ok(())
    })?;
    tracing::warn!(zone, "admin: zone as in the file again");
    Ok(restored)
}

/// Puts a generation in force that differs in the numbers of one zone.
fn swap(
    live: &ArcSwap<Generation>,
    zone: &str,
    change: impl Fn(&mut Map<String, Value>) -> Result<(), ApiError>,
) -> Result<Arc<Generation>, ApiError> {
    loop {
        let present = live.load_full();
        zones::find(&present, zone)?;
        let mut amendment = present.amendment.clone();
        change(amendment.numbers.entry(zone.into()).or_default())?;
        amendment.numbers.retain(|_, numbers| !numbers.is_empty());
        let plan = amended(&present, &amendment)?;
        let next = Arc::new(present.amended(plan, amendment));
        let seen = live.compare_and_swap(&present, Arc::clone(&next));
        // A reload was faster: it is amended then.
        if Arc::ptr_eq(&seen, &present) {
            return Ok(next);
        }
    }
}

/// The plan of the file with all other numbers that hold.
fn amended(live: &Generation, amendment: &LiveChanges) -> Result<Plan, ApiError> {
    let mut plan = (*amendment.file).clone();
    for (zone, numbers) in &amendment.numbers {
        let applied = match zones::find(live, zone)? {
            ZoneRef::Conn(index, _) => set_places(&mut plan, index, numbers),
            ZoneRef::Req(index, _) => set_numbers(&mut plan, index, numbers),
        };
        applied.map_err(ApiError::bad)?;
    }
    Ok(plan)
}

fn set_numbers(plan: &mut Plan, zone: usize, numbers: &Map<String, Value>) -> Result<(), String> {
    let own = &mut plan.req_zones[zone];
    let numbers = amend::numbers(numbers, own.algorithm, own.size)?;
    if let Some(numbers) = numbers {
        own.algorithm = numbers.algorithm;
    }
    for site in plan.sites_mut() {
        match numbers {
            // Whoever has no limit meets no rule.
            None => site.limit_req.retain(|rule| rule.zone != zone),
            Some(numbers) => {
                for rule in site.limit_req.iter_mut().filter(|it| it.zone == zone) {
                    rule.burst = numbers.burst.unwrap_or(rule.burst);
                }
            }
        }
    }
    Ok(())
}

fn set_places(plan: &mut Plan, zone: usize, numbers: &Map<String, Value>) -> Result<(), String> {
    let Some(limit) = amend::places(numbers)? else {
        return Ok(());
    };
    for site in plan.sites_mut() {
        let rules = site.limit_conn.iter_mut();
        for rule in rules.filter(|rule| rule.zone == zone) {
            rule.limit = limit;
        }
    }
    Ok(())
}

/// What is taken back has to have a name, too.
fn check_names(change: &Map<String, Value>) -> Result<(), ApiError> {
    let known = ["burst", "limit", "rate"];
    let mut taken_back = change.iter().filter(|(_, value)| value.is_null());
    match taken_back.find(|(name, _)| !known.contains(&name.as_str())) {
        Some((name, _)) => Err(ApiError::bad(format!("unknown key `{name}`"))),
        None => Ok(()),
    }
}
