//! What can be seen of a store from outside.

use std::sync::atomic::Ordering;

use super::{FleetMember, LeaseHoldings, SharedStore};
use crate::clock::Millis;

/// Since when a store is away, and why.
#[derive(Debug, Clone)]
pub struct StoreOutage {
    /// Since when.
    pub since: Millis,
    /// What went wrong first.
    pub why: String,
}

/// A store at this moment.
#[derive(Debug, Clone)]
pub struct StoreStatus {
    /// This gateway's name.
    pub gateway: String,
    /// All that were heard of lately, this one among them.
    pub gateways: Vec<FleetMember>,
    /// Set while it is away.
    pub outage: Option<StoreOutage>,
    /// How often it was asked.
    pub asked: u64,
    /// How often no answer came in time, or none that made sense.
    pub missed: u64,
    /// How often an answer came after the deadline, or not at all.
    pub late: u64,
    /// How often it was asked with nobody waiting.
    pub asked_behind: u64,
    /// Decisions that it was not asked for.
    pub decided_here: u64,
    /// Requests that were leased from it.
    pub leased: u64,
    /// And those of them that were given back.
    pub returned: u64,
    /// What this gateway has in hand.
    pub held: Vec<LeaseHoldings>,
}

impl SharedStore {
    /// How it is.
    #[must_use]
    pub fn view(&self) -> StoreStatus {
        StoreStatus {
            gateway: self.gateway.clone(),
            gateways: self.fleet.gateways(),
            outage: self.outage.lock().clone(),
            asked: self.asked.load(Ordering::Relaxed),
            missed: self.missed.load(Ordering::Relaxed),
            late: self.late.load(Ordering::Relaxed),
            asked_behind: self.desk.asked.load(Ordering::Relaxed),
            decided_here: self.desk.decided.load(Ordering::Relaxed),
            leased: self.desk.leased.load(Ordering::Relaxed),
            returned: self.desk.returned.load(Ordering::Relaxed),
            held: self.desk.held(),
        }
    }
}
