//! What a gateway leaves to the others when all of them go on without their store.
//!
//! Whatever a key has left it could take anywhere; with each gateway on its own it could take it from each of them. So when
//! a gateway first decides about a key by itself, it keeps its part of what is left, and the rest is gone here. Windows
//! and what is counted in time need no such thing: their part of the limit is part of what is left.

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
    parted: Mutex<HashSet<u64>>,
}

impl Shared {
    /// What a key of a zone has to give up that has `left` requests left by these terms; the first time only.
    pub fn left_to_others(
        &self,
        zone: &str,
        key: &Key,
        terms: &Terms,
        left: impl FnOnce() -> u64,
    ) -> Option<Cost> {
        let gateways = u64::from(self.fleet_size());
        let bucket = matches!(terms, Terms::LeakyBucket(_) | Terms::TokenBucket(_));
        if gateways < 2 || !bucket || !self.is_away() || !self.alone.parts(zone, key) {
            return None;
        }
        let left = left();
        let own = (left / gateways).max(left.min(1));
        Some(Cost((left - own).saturating_mul(Cost::ONE.0)))
    }
}

impl Alone {
    /// Whether it is the first time for a key. Beyond a bound it is for nobody: memory matters more.
    fn parts(&self, zone: &str, key: &Key) -> bool {
        let hash = self.seeds.hash_one((zone, key.id()));
        let mut parted = self.parted.lock();
        parted.len() < MOST && parted.insert(hash)
    }

    /// The store is back.
    pub(super) fn forget(&self) {
        *self.parted.lock() = HashSet::new();
    }
}

/// A few megabytes at most.
const MOST: usize = 200_000;
