//! A `limit_req` zone: what is remembered of each key, in bounded memory.
//!
//! What a zone forgets is a security decision: a client that can have its key forgotten has no limit. So a full table
//! evicts a key that is drained, which changes no verdict. If none is, the key asked for longest ago goes, of those asked
//! for once while these are at least half, and a refused request counts as asking: it takes half as many other keys as
//! the zone holds to have one forgotten, and for a key that came back each of them has to come twice. The depth of a
//! debt does not matter. If keys in debt stayed, a zone full of debts would have no room for a new key, and every new
//! key would push out the one before it.
//!
//! A zone whose numbers change: everybody's state is kept.
//!
//! What is remembered of a key does not depend on the rate it is held to, so a zone goes on under other numbers. Where its
//! memory is divided otherwise, its keys move over one shard at a time. Requests that began under the old numbers are led
//! after them, so that no charge and no refund is lost on the way.

#[cfg(test)]
#[path = "tests/rate_zone_floods.rs"]
mod floods;
#[cfg(test)]
#[path = "tests/rate_zone_kinds.rs"]
mod kinds;
#[cfg(test)]
#[path = "tests/rate_zone.rs"]
mod tests;

use std::sync::Arc;

use super::ZoneCounts;
use super::key::Key;
use super::rate_keys::{Insertion, KeyTable};
use crate::algorithm::{
    Algorithm, Cost, KeyStatus, LimitSpec, Spent, Verdict, for_each_algorithm, match_algorithm,
};
use crate::clock::Millis;
use crate::store::redis::script::StoreVerdict;
use crate::telemetry::Histogram;

/// A `limit_req` zone. A copy is the same zone.
#[derive(Debug, Clone)]
pub struct RateZone {
    name: Arc<str>,
    /// How long those had to wait whom it delayed.
    pub delays: Arc<Histogram>,
    keys: ZoneKeys,
}

macro_rules! define_zone_keys {
    ([] $($name:ident($type:ty) { $($param:ident: $of:ty),* },)*) => {
        /// The keys of a zone, each kind with the state of its own algorithm.
        #[derive(Debug, Clone)]
        enum ZoneKeys {
            $($name(Arc<KeyTable<$type>>),)*
        }
    };
}
for_each_algorithm!(define_zone_keys []);

/// What takes a charge back.
#[derive(Debug, Clone, Copy)]
pub struct Receipt {
    pub(super) counted: ChargedVerdict,
    pub(super) spent: Spent,
}

/// What a charge was counted as.
#[derive(Debug, Clone, Copy)]
pub(super) enum ChargedVerdict {
    Delay,
    Pass,
    Refuse,
}

/// Does the same with the keys of every algorithm.
macro_rules! each {
    ($zone:expr, $keys:ident => $act:expr) => {
        match_algorithm!(&$zone.keys, ZoneKeys($keys) => $act)
    };
}

/// Does the same with the keys of every algorithm and the numbers of that algorithm.
macro_rules! with {
    ($zone:expr, $spec:expr, ($keys:ident, $numbers:ident) => $act:expr) => {
        match_algorithm!(
            (&$zone.keys, $spec), (ZoneKeys($keys), LimitSpec($numbers)) => $act,
            _ => mismatched()
        )
    };
}

impl RateZone {
    /// An empty zone of at most `size` bytes, where no key drains slower than by the numbers of `slowest`.
    #[must_use]
    pub fn new(name: &str, size: usize, slowest: &LimitSpec, refused: bool) -> Self {
        Self {
            name: name.into(),
            delays: Arc::default(),
            keys: match_algorithm!(*slowest, LimitSpec(slowest) => ZoneKeys {
                Arc::new(KeyTable::new(size, slowest, refused))
            }),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key these bytes are in this zone.
    #[must_use]
    pub fn key(&self, bytes: &[u8]) -> Key {
        each!(self, keys => keys.key(bytes))
    }

    /// What would become of a request; changes nothing.
    #[must_use]
    pub fn ask(&self, key: &Key, now: Millis, cost: Cost, spec: &LimitSpec) -> Verdict {
        with!(self, spec, (keys, spec) => keys.ask(key, now, cost, spec))
    }

    /// Decides about a request and charges its key unless it is refused, in one step. With the answer comes what takes
    /// the charge back.
    pub fn charge(
        &self,
        key: &Key,
        now: Millis,
        cost: Cost,
        spec: &LimitSpec,
    ) -> (Verdict, Receipt) {
        let (outcome, receipt, room) =
            with!(self, spec, (keys, spec) => keys.charge(key, now, cost, spec));
        self.heed(room, now);
        (outcome, receipt)
    }

    /// As [`RateZone::charge`] for a key that is known; does nothing where it is not.
    #[inline]
    pub fn charge_known(
        &self,
        key: &Key,
        now: Millis,
        cost: Cost,
        spec: &LimitSpec,
    ) -> Option<(Verdict, Receipt)> {
        with!(self, spec, (keys, spec) => keys.charge_known(key, now, cost, spec))
    }

    /// Takes back what a charge with the same arguments did, for a request that another zone then refused; `receipt` is
    /// what it gave.
    pub fn refund(&self, key: &Key, receipt: Receipt, now: Millis, cost: Cost, spec: &LimitSpec) {
        with!(self, spec, (keys, spec) => keys.refund(key, receipt, now, cost, spec));
    }

    /// Charges a key with what is known to be owed only afterwards. Nobody is refused by it and nothing is counted;
    /// a key may come to be in debt.
    pub fn debit(&self, key: &Key, now: Millis, cost: Cost, spec: &LimitSpec) {
        let room = with!(self, spec, (keys, spec) => keys.debit(key, now, cost, spec));
        self.heed(room, now);
    }

    /// Takes over what was decided elsewhere: counts it, and knows the key to have no more left than it was said to.
    pub fn witness(
        &self,
        key: &Key,
        now: Millis,
        cost: Cost,
        spec: &LimitSpec,
        answer: StoreVerdict,
    ) {
        let room = with!(self, spec, (keys, spec) => keys.witness(key, now, cost, spec, &answer));
        self.heed(room, now);
    }

    /// Charges a key with a request that waits until it would pass, and counts it as one that does. As after
    /// [`RateZone::debit`], whoever comes next finds the key in debt: those who wait are in order.
    pub fn reserve(&self, key: &Key, now: Millis, cost: Cost, spec: &LimitSpec) {
        let room = with!(self, spec, (keys, spec) => keys.reserve(key, now, cost, spec));
        self.heed(room, now);
    }

    /// Where a key stands; `None` if it is not known, and has all it may have.
    #[must_use]
    pub fn key_status(&self, key: &Key, now: Millis, spec: &LimitSpec) -> Option<KeyStatus> {
        with!(self, spec, (keys, spec) => keys.key_status(key, now, spec))
    }

    /// Counts a refusal that was decided without asking.
    pub fn count_refusal(&self, key: &Key) {
        each!(self, keys => keys.count_refusal(key));
    }

    /// Forgets a key; whether there was something to forget.
    pub fn forget(&self, key: &Key) -> bool {
        each!(self, keys => keys.forget(key))
    }

    /// How many keys are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        each!(self, keys => keys.len())
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys there is room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        each!(self, keys => keys.capacity())
    }

    /// What it takes from the machine at this moment, in bytes; never more than its size.
    #[must_use]
    pub fn memory(&self) -> usize {
        each!(self, keys => keys.memory())
    }

    /// How often it has said what, and how many live keys it had to push out.
    #[must_use]
    pub fn counts(&self) -> ZoneCounts {
        each!(self, keys => keys.counts())
    }

    /// What a key may take of the zone's size, all in, in bytes.
    fn bytes_per_key(&self) -> usize {
        each!(self, keys => keys.bytes_per_key())
    }

    /// This zone with other numbers, or in other memory; `None` where what is remembered makes no sense by these numbers.
    #[must_use]
    pub fn resized(&self, size: usize, slowest: &LimitSpec, refused: bool) -> Option<Self> {
        if !self.makes_sense_by(slowest) {
            return None;
        }
        let keys = match_algorithm!(
            (&self.keys, *slowest), (ZoneKeys(keys), LimitSpec(slowest)) => ZoneKeys {
                keys.resized(size, slowest, refused)
            },
            _ => return None
        );
        Some(Self {
            name: Arc::clone(&self.name),
            delays: Arc::clone(&self.delays),
            keys,
        })
    }

    /// Whether what is remembered here can be read by these numbers.
    #[must_use]
    pub fn makes_sense_by(&self, slowest: &LimitSpec) -> bool {
        match_algorithm!(
            (&self.keys, slowest),
            (ZoneKeys(keys), LimitSpec(new)) => new.reads_state_of(&keys.slowest()),
            _ => false
        )
    }

    // Writing a log line takes longer than everything else here: never under a lock.
    fn heed(&self, room: Insertion, now: Millis) {
        if room == Insertion::Evicted
            && let Some(evicted) = each!(self, keys => keys.note_eviction(now))
        {
            tracing::warn!(
                "zone \"{}\" is full: of its {} keys, {evicted} were pushed out before they had drained; \
                 a key takes {} bytes of its size",
                self.name,
                self.capacity(),
                self.bytes_per_key(),
            );
        }
    }
}

// A rule's terms and its zone are made from one algorithm of one plan; a zone whose algorithm changes is a new one.
#[cold]
fn mismatched() -> ! {
    unreachable!("a zone was asked with the terms of another algorithm")
}
