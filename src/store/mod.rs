//! Where the counting lives: buckets and places, and how long each is remembered.
//!
//! State apart from policy. Nothing in here knows of requests, rules or templates; it is given a key of
//! some bytes, the time and the numbers, and answers. What it promises is what an attacker would like to
//! break: memory never grows past a zone's `size`, no key can be chosen to make lookups slow, and no
//! bucket in debt is forgotten before half as many other keys were asked for as its zone holds.

pub mod algorithm;
mod bounded;
pub mod busiest;
pub mod key;
mod lock;
mod lowest;
mod lru;
pub mod penalties;
mod recent;
mod redis;
mod sip;
pub mod slots;
mod table;
mod work;
pub mod zone;

pub use busiest::TopKeys;
pub use key::Key;
pub use penalties::Penalties;
pub use recent::{LruCache, Reservation};
pub use redis::{
    CostShare, Error, FleetMember, ForgetKeys, LeaseHoldings, LeaseVerdict, LocalDecision,
    OutageCharge, ResetError, SharedSlotGuard, SharedSlotWaiter, SharedStore, SlotClaim, StoreDown,
    StoreOutage, StoreRequest, StoreStatus, StoreVerdict, Verdicts, ZoneLeases,
};
pub use slots::{ConnSlot, SlotTable};
pub use zone::{RateZone, Receipt};

/// What one key of which two words are remembered costs, all in, at most: a zone of `size` bytes then holds
/// `size / BYTES_PER_KEY` keys. What others cost, [`algorithm::LimitSpec::bytes_per_key`] says.
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
