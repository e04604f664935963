//! The keys of a zone and their states, as one algorithm has them.
//!
//! The part of a zone that one lock guards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::MutexGuard;

use super::ZoneCounts;
use super::key::{HashSeeds, Key, PackedKey};
use super::lru::SegmentedLru;
use super::rate_zone::{ChargedVerdict, Receipt};
use super::table::{self, ShardLayout, ShardLock};
use crate::algorithm::{Algorithm, Cost, KeyStatus, LeakyBucket, Spent, Verdict};
use crate::clock::Millis;
use crate::store::redis::script::StoreVerdict;
use crate::telemetry::RateLimitedLog;

/// States by key.
#[derive(Debug)]
pub(super) struct KeyTable<A: Algorithm> {
    seeds: HashSeeds,
    division: ShardLayout,
    shards: Box<[ShardLock<RateShard<A>>]>,
    /// Whether refused requests are charged, too.
    refused: AtomicBool,
    evictions: RateLimitedLog,
    /// Where everything has moved to.
    resized: OnceLock<Arc<Self>>,
}

impl<A: Algorithm> KeyTable<A> {
    pub(super) fn new(size: usize, slowest: A, refused: bool) -> Self {
        let division = ShardLayout::of(size, bytes_per_key(&slowest));
        let slowest = Arc::new(slowest);
        Self {
            seeds: HashSeeds::default(),
            division,
            shards: (0..division.tables)
                .map(|_| ShardLock::new(RateShard::new(division.keys, Arc::clone(&slowest))))
                .collect(),
            refused: AtomicBool::new(refused),
            evictions: RateLimitedLog::default(),
            resized: OnceLock::new(),
        }
    }

    /// The same keys under other numbers, in so many bytes. No state is lost, unless there is less room: then those asked
    /// for longest ago are. Whoever still has this one is led to where the keys are by then.
    pub(super) fn resized(self: &Arc<Self>, size: usize, slowest: A, refused: bool) -> Arc<Self> {
        if let Some(resized) = self.resized.get() {
            return resized.resized(size, slowest, refused);
        }
        if self.division == ShardLayout::of(size, bytes_per_key(&slowest)) {
            let slowest = Arc::new(slowest);
            for shard in &self.shards {
                shard.lock().set_slowest(Arc::clone(&slowest));
            }
            self.refused.store(refused, Ordering::Relaxed);
            return Arc::clone(self);
        }
        let resized = Arc::new(Self::new(size, slowest, refused));
        resized.evictions.add(self.evictions.total());
        // Before the first key moves: whoever finds it gone looks there.
        let resized = Arc::clone(self.resized.get_or_init(|| resized));
        for (number, shard) in self.shards.iter().enumerate() {
            let mut shard = shard.lock();
            let (states, counts) = shard.move_out();
            for (packed, state, stamp) in states {
                let key = resized.seeds.unpacked(packed);
                let mut there = resized.lock(&key);
                there.inherit(&key, state, stamp, &resized.seeds);
            }
            let door = number % resized.shards.len();
            resized.shards[door].lock().add_counts(counts);
        }
        resized
    }

    pub(super) fn slowest(&self) -> A {
        *self.shards[0].lock().slowest()
    }

    pub(super) fn key(&self, bytes: &[u8]) -> Key {
        self.seeds.key(bytes)
    }

    pub(super) fn ask(&self, key: &Key, now: Millis, cost: Cost, spec: &A) -> Verdict {
        match self.lock(key).ask(key) {
            Some(state) => spec.ask(state, now, cost),
            None => spec.ask(&spec.fresh(now), now, cost),
        }
    }

    /// The answer, and whether a live key had to go for this one.
    pub(super) fn charge(
        &self,
        key: &Key,
        now: Millis,
        cost: Cost,
        spec: &A,
    ) -> (Verdict, Receipt, Insertion) {
        let mut shard = self.lock(key);
        if let Some((outcome, receipt)) = shard.charge(key, now, cost, spec, self.refused()) {
            return (outcome, receipt, Insertion::Found);
        }
        let mut state = spec.fresh(now);
        let (outcome, spent) = spec.charge(&mut state, now, cost);
        let receipt = shard.count(&outcome, spent);
        let remembered = match outcome {
            // Who asks for nothing, or for more than there is, has changed nothing and cannot fill a zone.
            Verdict::Delay { .. } | Verdict::Pass { .. } => cost > Cost(0),
            Verdict::Refuse { .. } => {
                if self.refused() {
                    spec.count_refused(&mut state, now, cost);
                }
                self.refused()
            }
        };
        let room = if remembered {
            self.insert(&mut shard, key, state, now)
        } else {
            Insertion::Found
        };
        (outcome, receipt, room)
    }

    #[inline]
    pub(super) fn charge_known(
        &self,
        key: &Key,
        now: Millis,
        cost: Cost,
        spec: &A,
    ) -> Option<(Verdict, Receipt)> {
        let mut shard = self.lock(key);
        shard.charge(key, now, cost, spec, self.refused())
    }

    pub(super) fn refund(&self, key: &Key, receipt: Receipt, now: Millis, cost: Cost, spec: &A) {
        let mut shard = self.lock(key);
        shard.uncount(receipt);
        if let Some(state) = shard.ask(key) {
            spec.refund(state, now, cost, receipt.spent);
        }
    }

    pub(super) fn debit(&self, key: &Key, now: Millis, cost: Cost, spec: &A) -> Insertion {
        self.debit_in(&mut self.lock(key), key, now, cost, spec)
    }

    pub(super) fn reserve(&self, key: &Key, now: Millis, cost: Cost, spec: &A) -> Insertion {
        let mut shard = self.lock(key);
        shard.count_delay();
        self.debit_in(&mut shard, key, now, cost, spec)
    }

    fn debit_in(
        &self,
        shard: &mut RateShard<A>,
        key: &Key,
        now: Millis,
        cost: Cost,
        spec: &A,
    ) -> Insertion {
        if let Some(state) = shard.ask(key) {
            spec.debit(state, now, cost);
            return Insertion::Found;
        }
        if cost == Cost(0) {
            return Insertion::Found;
        }
        let mut state = spec.fresh(now);
        spec.debit(&mut state, now, cost);
        self.insert(shard, key, state, now)
    }

    pub(super) fn witness(
        &self,
        key: &Key,
        now: Millis,
        cost: Cost,
        spec: &A,
        answer: &StoreVerdict,
    ) -> Insertion {
        let mut shard = self.lock(key);
        shard.count(&answer.outcome, Spent::default());
        let catch_up = |state: &mut A::State| {
            if !matches!(answer.outcome, Verdict::Refuse { .. }) {
                spec.debit(state, now, cost);
            }
            let known = spec.key_status(state, now).remaining;
            if let Some(gone @ 1..) = known.checked_sub(answer.remaining) {
                let gone = Cost(gone.saturating_mul(Cost::ONE.0));
                spec.debit(state, now, gone);
            }
        };
        if let Some(state) = shard.ask(key) {
            catch_up(state);
            return Insertion::Found;
        }
        let mut state = spec.fresh(now);
        catch_up(&mut state);
        self.insert(&mut shard, key, state, now)
    }

    pub(super) fn key_status(&self, key: &Key, now: Millis, spec: &A) -> Option<KeyStatus> {
        let shard = self.lock(key);
        Some(spec.key_status(shard.state(key)?, now))
    }

    pub(super) fn count_refusal(&self, key: &Key) {
        self.lock(key).count_refusal(key);
    }

    pub(super) fn forget(&self, key: &Key) -> bool {
        self.lock(key).forget(key, &self.seeds)
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    pub(super) fn capacity(&self) -> usize {
        self.division.tables * self.division.keys
    }

    pub(super) fn bytes_per_key(&self) -> usize {
        bytes_per_key(&self.slowest())
    }

    pub(super) fn memory(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| size_of::<ShardLock<RateShard<A>>>() + shard.lock().memory())
            .sum()
    }

    pub(super) fn counts(&self) -> ZoneCounts {
        let mut sum = ZoneCounts::default();
        for shard in &self.shards {
            sum += shard.lock().counts();
        }
        sum.evictions = self.evictions.total();
        sum
    }

    /// A live key had to go; how many had since this was last said, when it is time to say it.
    pub(super) fn note_eviction(&self, now: Millis) -> Option<u64> {
        self.evictions.note(now)
    }

    fn refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    fn insert(
        &self,
        shard: &mut RateShard<A>,
        key: &Key,
        state: A::State,
        now: Millis,
    ) -> Insertion {
        shard.insert(key, state, now, &self.seeds)
    }

    #[inline]
    fn lock(&self, key: &Key) -> MutexGuard<'_, RateShard<A>> {
        let shard = self.shards[self.division.table(key)].lock();
        if shard.has_moved() {
            drop(shard);
            return self.lock_moved(key);
        }
        shard
    }

    #[cold]
    fn lock_moved(&self, key: &Key) -> MutexGuard<'_, RateShard<A>> {
        let resized = self.resized.get();
        resized
            .expect("keys move only where there is an heir")
            .lock(key)
    }
}

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
        spec: &A,
        refused: bool,
    ) -> Option<(Verdict, Receipt)> {
        let state = self.ask(key)?;
        let (outcome, spent) = spec.charge(state, now, cost);
        if refused && matches!(outcome, Verdict::Refuse { .. }) {
            spec.count_refused(state, now, cost);
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

/// What a key may take all in: its entry in a table, its place in the index and in the order of leaving, and what it
/// has besides.
fn bytes_per_key<A: Algorithm>(numbers: &A) -> usize {
    table::bytes_per_key::<A::State>().saturating_add(numbers.most_heap())
}
