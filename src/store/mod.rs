//! Where the counting lives: buckets and places, and how long each is remembered.
//!
//! State apart from policy. Nothing in here knows of requests, rules or templates; it is given a key of
//! some bytes, the time and the numbers, and answers. What it promises is what an attacker would like to
//! break: memory never grows past a zone's `size`, no key can be chosen to make lookups slow, and no
//! bucket in debt is forgotten before half as many other keys were asked for as its zone holds.

mod conn_zone;
mod key;
mod lru;
mod penalties;
mod rate_keys;
mod rate_zone;
mod redis;
mod table;
mod top_keys;

pub use self::conn_zone::{ConnSlot, NoSlot, SlotTable};
pub use self::key::{Key, fix_secret};
pub use self::penalties::Penalties;
pub use self::rate_zone::{RateZone, Receipt};
pub use self::redis::conn_slots::{SharedSlotGuard, SharedSlotWaiter, SlotClaim};
pub use self::redis::fleet::{CostShare, FleetMember};
pub use self::redis::lease::{LeaseHoldings, LeaseVerdict, Verdicts, ZoneLeases};
pub use self::redis::outage::OutageCharge;
pub use self::redis::request::{LocalDecision, StoreRequest};
pub use self::redis::script::StoreVerdict;
pub use self::redis::{
    Error, ForgetKeys, ResetError, SharedStore, StoreDown, StoreOutage, StoreStatus,
};
pub use self::top_keys::{KeyRates, TopKeys, sampling_weight};

/// What one key of which two words are remembered costs, all in, at most: a zone of `size` bytes then holds
/// `size / BYTES_PER_KEY` keys. What others cost depends on the state of their algorithm.
pub const BYTES_PER_KEY: usize = 64;

/// How often a zone has said what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ZoneCounts {
    /// Requests that passed at once.
    pub pass: u64,
    /// Requests that had to wait and then passed.
    pub delay: u64,
    /// Requests that were turned away.
    pub refuse: u64,
    /// How often the zone's memory was too small: live buckets pushed out of a [`RateZone`], requests turned
    /// away by [`SlotTable`] for want of room.
    pub evictions: u64,
}

impl std::ops::AddAssign for ZoneCounts {
    fn add_assign(&mut self, other: Self) {
        self.pass += other.pass;
        self.delay += other.delay;
        self.refuse += other.refuse;
        self.evictions += other.evictions;
    }
}
