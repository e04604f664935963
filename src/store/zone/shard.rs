//! The part of a zone that one lock guards.

use std::sync::Arc;

use super::{ChargedVerdict, Receipt};
use crate::clock::Millis;
use crate::config::plan::{Cost, CountRefused};
use crate::store::ZoneCounts;
use crate::store::algorithm::leaky_bucket::LeakyBucket;
use crate::store::algorithm::{Algorithm, Spent, Verdict};
use crate::store::key::{HashSeeds, Key, PackedKey};
use crate::store::lock::ShardLock;
use crate::store::lru::SegmentedLru;

// In this order, the half that every charge writes lies beside the lock, and the half that is only read, where the
// table is, can stay in the caches of all threads.
#[derive(Debug)]
#[repr(C)]
pub(super) struct RateShard<A: Algorithm> {
    keys: SegmentedLru<A::State>,
    /// No key drains slower than by these numbers.
    slowest: Arc<A>,
    counts: VerdictCounters,
}

/// How often which was said.
#[derive(Debug, Clone, Copy, Default)]
struct VerdictCounters {
    pass: u64,
    delay: u64,
    refuse: u64,
}

// With its lock it is just as large as that is aligned.
const _: () = assert!(size_of::<ShardLock<RateShard<LeakyBucket>>>() == 128);

/// How room was made for a new key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Insertion {
    /// By forgetting one that was not drained yet.
    Evicted,
    /// There was some, or a drained one made it.
    Found,
}

impl<A: Algorithm> RateShard<A> {
    pub(super) fn new(bound: usize, slowest: Arc<A>) -> Self {
        Self {
            keys: SegmentedLru::new(bound),
            slowest,
            counts: VerdictCounters::default(),
        }
    }

    /// Whether what was here has moved to another zone.
    #[inline]
    pub(super) fn has_moved(&self) -> bool {
        self.keys.is_gone()
    }

    /// Gives away all it remembers, each key with its stamp, and all it has counted, for good.
    pub(super) fn move_out(&mut self) -> (Vec<(PackedKey, A::State, u32)>, ZoneCounts) {
        let counts = self.counts();
        self.counts = VerdictCounters::default();
        (self.keys.empty_out().collect(), counts)
    }

    /// Takes over what was counted elsewhere.
    pub(super) fn add_counts(&mut self, counts: ZoneCounts) {
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
    ) -> Option<(Verdict, Receipt)> {
        let state = self.ask(key)?;
        let (outcome, spent) = terms.charge(state, now, cost);
        if refused == CountRefused::Yes && matches!(outcome, Verdict::Refuse { .. }) {
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
        seeds: &HashSeeds,
    ) -> Insertion {
        let drained_at = |state: &A::State| self.slowest.drained_at(state);
        match self.keys.insert(key, state, now, seeds, drained_at) {
            Some(gone) if drained_at(&gone) > now => Insertion::Evicted,
            _ => Insertion::Found,
        }
    }

    /// Takes over a key from another shard, with the stamp that it gave.
    pub(super) fn inherit(&mut self, key: &Key, state: A::State, stamp: u32, seeds: &HashSeeds) {
        let drained_at = |state: &A::State| self.slowest.drained_at(state);
        self.keys.inherit(key, state, stamp, seeds, drained_at);
    }

    pub(super) fn forget(&mut self, key: &Key, seeds: &HashSeeds) -> bool {
        self.keys.forget(key, seeds)
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn counts(&self) -> ZoneCounts {
        ZoneCounts {
            pass: self.counts.pass,
            delay: self.counts.delay,
            refuse: self.counts.refuse,
            evictions: 0,
        }
    }

    pub(super) fn count(&mut self, outcome: &Verdict, spent: Spent) -> Receipt {
        let counted = match outcome {
            Verdict::Delay { .. } => ChargedVerdict::Delay,
            Verdict::Pass { .. } => ChargedVerdict::Pass,
            Verdict::Refuse { .. } => ChargedVerdict::Refuse,
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

    fn counter(&mut self, counted: ChargedVerdict) -> &mut u64 {
        match counted {
            ChargedVerdict::Delay => &mut self.counts.delay,
            ChargedVerdict::Pass => &mut self.counts.pass,
            ChargedVerdict::Refuse => &mut self.counts.refuse,
        }
    }
}
