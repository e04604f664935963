//! The state of limits: a zone's keys, in bounded memory, here or in a shared Redis.
//!
//! This is state apart from policy. Nothing in here knows of rules or templates; a caller gives a key of some bytes, the time
//! and the numbers of a limit, and gets a verdict. A client must not be able to break what it promises: memory never grows
//! past a zone's `size`, no key can be chosen to make lookups slow, and no key in debt is evicted before half as many
//! other keys were used as its zone holds.

mod conn_zone;
mod key;
mod lru;
mod penalties;
mod rate_zone;
mod redis;
mod table;
mod top_keys;

pub use self::conn_zone::{ConnSlot, NoSlot, SlotTable};
pub use self::key::{Key, fix_secret};
pub use self::penalties::Penalties;
pub use self::rate_zone::{RateZone, Receipt, StoreVerdict};
pub use self::redis::conn_slots::{SharedSlotGuard, SharedSlotWaiter, SlotClaim};
pub use self::redis::connection::Error;
pub use self::redis::fleet::{CostShare, FleetMember, LeaseHoldings};
pub use self::redis::handle::{StoreDown, StoreHandle, StoreOutage};
pub use self::redis::lease::{LeaseVerdict, Verdicts, ZoneLeases};
pub use self::redis::outage::OutageCharge;
pub use self::redis::request::{LocalDecision, StoreRequest};
pub use self::redis::{ForgetKeys, ResetError, SharedStore, StoreStatus};
pub use self::table::{BYTES_PER_KEY, ZoneCounts};
pub use self::top_keys::{KeyRates, TopKey, TopKeys, sampling_weight};
