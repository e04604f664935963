//! The part of a zone that one lock guards.

use std::sync::Arc;

use super::{Counted, Receipt};
use crate::clock::Millis;
use crate::config::plan::{Cost, CountRefused};
use crate::store::Counts;
use crate::store::algorithm::leaky_bucket::LeakyBucket;
use crate::store::algorithm::{Algorithm, Outcome, Spent};
use crate::store::key::{Key, Packed, Seeds};
use crate::store::lock::Lock;
use crate::store::lru::Lru;

// In this order, the half that every charge writes lies beside the lock, and the half that is only read, where the
// table is, can stay in the caches of all threads.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Shard<A: Algorithm> {
    keys: Lru<A::State>,
    /// No key drains slower than by these numbers.
    slowest: Arc<A>,
    counts: Verdicts,
}

/// How often which was said.
#[derive(Debug, Clone, Copy, Default)]
struct Verdicts {
    pass: u64,
    delay: u64,
    refuse: u64,
}

// With its lock it is just as large as that is aligned.
const _: () = assert!(size_of::<Lock<Shard<LeakyBucket>>>() == 128);

/// How room was made for a new key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// By forgetting one that was not drained yet.
    Evicted,
    /// There was some, or a drained one made it.
    Found,
}

impl<A: Algorithm> Shard<A> {
    pub(super) fn new(bound: usize, slowest: Arc<A>) -> Self {
        Self {
            keys: Lru::new(bound),
            slowest,
            counts: Verdicts::default(),
        }
    }

    /// Whether what was here has moved to another zone.
    #[inline]
    pub(super) fn has_moved(&self) -> bool {
        self.keys.is_gone()
    }

    /// Gives away all it remembers, each key with its stamp, and all it has counted, for good.
    pub(super) fn move_out(&mut self) -> (Vec<(Packed, A::State, u32)>, Counts) {
        let counts = self.counts();
        self.counts = Verdicts::default();
        (self.keys.empty_out().collect(), counts)
    }

    /// Takes over what was counted elsewhere.
    pub(super) fn add_counts(&mut self, counts: Counts) {
        self.counts.pass += counts.pass;
        self.counts.delay += counts.delay;
        self.counts.refuse += counts.refuse;
    }

    pub(super) fn slowest(&self) -> &A {
        &self.slowest
    }

    /// Keys drain by other numbers than before.
    pub(super) fn set_slowest(&mut self, slowest: Arc<A>) {
        self.slowest = slowest;
        self.keys.reorder();
    }

    /// What is remembered of a key, for those who only look.
    pub(super) fn state(&self, key: &Key) -> Option<&A::State> {
        self.keys.get(key)
    }

    /// Decides about a request of a key that is known, charges it unless it is refused, and counts.
    #[inline]
    pub(super) fn charge(
        &mut self,
        key: &Key,
        now: Millis,
        cost: Cost,
        terms: &A,
        refused: CountRefused,
    ) -> Option<(Outcome, Receipt)> {
        let state = self.ask(key)?;
        let (outcome, spent) = terms.charge(state, now, cost);
        if refused == CountRefused::Yes && matches!(outcome, Outcome::Refuse { .. }) {
            terms.count_refused(state, now, cost);
        }
        Some((outcome, self.count(&outcome, spent)))
    }

    /// What is remembered of a key that a request has: it is then not forgotten for a while.
    #[inline]
    pub(super) fn ask(&mut self, key: &Key) -> Option<&mut A::State> {
        self.keys.ask(key)
    }

    /// Remembers a key that is not there yet.
    pub(super) fn insert(
        &mut self,
        key: &Key,
        state: A::State,
        now: Millis,
        seeds: &Seeds,
    ) -> Room {
        let drained_at = |state: &A::State| self.slowest.drained_at(state);
        match self.keys.insert(key, state, now, seeds, drained_at) {
            Some(gone) if drained_at(&gone) > now => Room::Evicted,
            _ => Room::Found,
        }
    }

    /// Takes over a key from another shard, with the stamp that it gave.
    pub(super) fn inherit(&mut self, key: &Key, state: A::State, stamp: u32, seeds: &Seeds) {
        let drained_at = |state: &A::State| self.slowest.drained_at(state);
        self.keys.inherit(key, state, stamp, seeds, drained_at);
    }

    pub(super) fn forget(&mut self, key: &Key, seeds: &Seeds) -> bool {
        self.keys.forget(key, seeds)
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            pass: self.counts.pass,
            delay: self.counts.delay,
            refuse: self.counts.refuse,
            evictions: 0,
        }
    }

    pub(super) fn count(&mut self, outcome: &Outcome, spent: Spent) -> Receipt {
        let counted = match outcome {
            Outcome::Delay { .. } => Counted::Delay,
            Outcome::Pass { .. } => Counted::Pass,
            Outcome::Refuse { .. } => Counted::Refuse,
        };
        *self.counter(counted) += 1;
        Receipt { counted, spent }
    }

    pub(super) fn uncount(&mut self, receipt: Receipt) {
        let counter = self.counter(receipt.counted);
        *counter = counter.saturating_sub(1);
    }

    pub(super) fn count_delay(&mut self) {
        self.counts.delay += 1;
    }

    /// A request of this key was refused without a look at what is remembered of it.
    pub(super) fn count_refusal(&mut self, key: &Key) {
        self.counts.refuse += 1;
        self.keys.ask(key);
    }

    /// What it takes from the machine, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.keys.memory() + self.keys.values().map(A::heap).sum::<usize>()
    }

    fn counter(&mut self, counted: Counted) -> &mut u64 {
        match counted {
            Counted::Delay => &mut self.counts.delay,
            Counted::Pass => &mut self.counts.pass,
            Counted::Refuse => &mut self.counts.refuse,
        }
    }
}
