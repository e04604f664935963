//! What a gateway leaves to the others when all of them go on without their store.
//!
//! Whatever a key has left it could take anywhere; with each gateway on its own it could take it from each of them. So when
//! a gateway first decides about a key by itself, it keeps its part of what is left, and the rest is gone here. Windows
//! and what is counted in time need no such thing: their part of the limit is part of what is left.
//!
//! Which keys that were is remembered in bounded memory. A key that is forgotten gives up a part once more: were it let
//! off instead, whoever brings many keys first would have the rest of every other one.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;

use super::Shared;
use crate::config::plan::Cost;
use crate::store::algorithm::Terms;
use crate::store::key::Key;

/// The keys of which only the part is left, since the store is away.
#[derive(Debug, Default)]
pub(super) struct Alone {
    seeds: RandomState,
    parted: Mutex<Parted>,
}

/// Keys in the order they were asked for, roughly: those of late, and those before them.
#[derive(Debug, Default)]
struct Parted {
    late: HashSet<u64>,
    before: HashSet<u64>,
}

impl Shared {
    /// What a key of a zone has to give up that has `left` requests left by these terms; the first time, and each time
    /// that its zone does not know it and it has all it may have.
    pub fn left_to_others(
        &self,
        zone: &str,
        key: &Key,
        terms: &Terms,
        left: impl FnOnce() -> Option<u64>,
    ) -> Option<Cost> {
        let gateways = u64::from(self.fleet_size());
        let bucket = matches!(terms, Terms::LeakyBucket(_) | Terms::TokenBucket(_));
        if gateways < 2 || !bucket || !self.is_away() {
            return None;
        }
        let (left, first) = (left(), self.alone.parts(zone, key));
        if left.is_some() && !first {
            return None;
        }
        let left = left.unwrap_or_else(|| terms.quota());
        let own = (left / gateways).max(left.min(1));
        Some(Cost((left - own).saturating_mul(Cost::ONE.0)))
    }
}

impl Alone {
    /// Whether it is the first time for a key, or the first since [`MOST`] others came.
    fn parts(&self, zone: &str, key: &Key) -> bool {
        let hash = self.seeds.hash_one((zone, key.id()));
        let mut parted = self.parted.lock();
        if parted.late.contains(&hash) {
            return false;
        }
        let first = !parted.before.contains(&hash);
        if parted.late.len() >= MOST {
            parted.before = std::mem::take(&mut parted.late);
        }
        parted.late.insert(hash);
        first
    }

    /// The store is back.
    pub(super) fn forget(&self) {
        *self.parted.lock() = Parted::default();
    }
}

/// Twice as many are a few megabytes.
const MOST: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Those who come after many others give up their part, too; those who were there go on with what they have.
    #[test]
    fn a_flood_of_keys_lets_nobody_keep_the_part_of_the_others() {
        let alone = Alone::default();
        let parts = |number: usize| alone.parts("one", &Key::from_bytes(&number.to_be_bytes()));
        assert!(parts(0) && !parts(0));
        for number in 1..3 * MOST {
            assert!(parts(number), "{number}");
            if number % (MOST / 2) == 0 {
                assert!(!parts(0), "asked for again before {MOST} others");
            }
        }
        let parted = alone.parted.lock();
        assert!(parted.late.len() + parted.before.len() <= 2 * MOST);
        drop(parted);
        assert!(parts(1), "forgotten");
        alone.forget();
        assert!(parts(0));
    }
}
