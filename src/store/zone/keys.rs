//! The keys of a zone and their states, as one algorithm has them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::MutexGuard;

use super::shard::{Insertion, RateShard};
use crate::clock::Millis;
use crate::config::plan::{Cost, CountRefused};
use crate::store::algorithm::{Algorithm, KeyStatus, Spent, Verdict, bytes_per_key};
use crate::store::key::{HashSeeds, Key};
use crate::store::lock::ShardLock;
use crate::store::table::ShardLayout;
use crate::store::zone::Receipt;
use crate::store::{StoreVerdict, ZoneCounts};
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
    heir: OnceLock<Arc<Self>>,
}

impl<A: Algorithm> KeyTable<A> {
    pub(super) fn new(size: usize, slowest: A, refused: CountRefused) -> Self {
        let division = ShardLayout::of(size, bytes_per_key(&slowest));
        let slowest = Arc::new(slowest);
        Self {
            seeds: HashSeeds::default(),
            division,
            shards: (0..division.tables)
                .map(|_| ShardLock::new(RateShard::new(division.keys, Arc::clone(&slowest))))
                .collect(),
            refused: AtomicBool::new(refused == CountRefused::Yes),
            evictions: RateLimitedLog::default(),
            heir: OnceLock::new(),
        }
    }

    /// The same keys under other numbers, in so many bytes. No state is lost, unless there is less room: then those asked
    /// for longest ago are. Whoever still has this one is led to where the keys are by then.
    pub(super) fn heir(
        self: &Arc<Self>,
        size: usize,
        slowest: A,
        refused: CountRefused,
    ) -> Arc<Self> {
        if let Some(heir) = self.heir.get() {
            return heir.heir(size, slowest, refused);
        }
        if self.division == ShardLayout::of(size, bytes_per_key(&slowest)) {
            let slowest = Arc::new(slowest);
            for shard in &self.shards {
                shard.lock().set_slowest(Arc::clone(&slowest));
            }
            self.refused
                .store(refused == CountRefused::Yes, Ordering::Relaxed);
            return Arc::clone(self);
        }
        let heir = Arc::new(Self::new(size, slowest, refused));
        heir.evictions.add(self.evictions.total());
        // Before the first key moves: whoever finds it gone looks there.
        let heir = Arc::clone(self.heir.get_or_init(|| heir));
        for (number, shard) in self.shards.iter().enumerate() {
            let mut shard = shard.lock();
            let (states, counts) = shard.move_out();
            for (packed, state, stamp) in states {
                let key = heir.seeds.unpacked(packed);
                let mut there = heir.lock(&key);
                there.inherit(&key, state, stamp, &heir.seeds);
            }
            let door = number % heir.shards.len();
            heir.shards[door].lock().add_counts(counts);
        }
        heir
    }

    pub(super) fn slowest(&self) -> A {
        *self.shards[0].lock().slowest()
    }

    pub(super) fn key(&self, bytes: &[u8]) -> Key {
        self.seeds.key(bytes)
    }

    pub(super) fn ask(&self, key: &Key, now: Millis, cost: Cost, terms: &A) -> Verdict {
        match self.lock(key).ask(key) {
            Some(state) => terms.ask(state, now, cost),
            None => terms.ask(&terms.fresh(now), now, cost),
        }
    }

    /// The answer, and whether a live key had to go for this one.
    pub(super) fn charge(
        &self,
        key: &Key,
        now: Millis,
        cost: Cost,
        terms: &A,
    ) -> (Verdict, Receipt, Insertion) {
        let mut shard = self.lock(key);
        if let Some((outcome, receipt)) = shard.charge(key, now, cost, terms, self.refused()) {
            return (outcome, receipt, Insertion::Found);
        }
        let mut state = terms.fresh(now);
        let (outcome, spent) = terms.charge(&mut state, now, cost);
        let receipt = shard.count(&outcome, spent);
        let remembered = match outcome {
            // Who asks for nothing, or for more than there is, has changed nothing and cannot fill a zone.
            Verdict::Delay { .. } | Verdict::Pass { .. } => cost > Cost(0),
            Verdict::Refuse { .. } => {
                if self.refused() == CountRefused::Yes {
                    terms.count_refused(&mut state, now, cost);
                }
                self.refused() == CountRefused::Yes
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
        terms: &A,
    ) -> Option<(Verdict, Receipt)> {
        let mut shard = self.lock(key);
        shard.charge(key, now, cost, terms, self.refused())
    }

    pub(super) fn refund(&self, key: &Key, receipt: Receipt, now: Millis, cost: Cost, terms: &A) {
        let mut shard = self.lock(key);
        shard.uncount(receipt);
        if let Some(state) = shard.ask(key) {
            terms.refund(state, now, cost, receipt.spent);
        }
    }

    pub(super) fn debit(&self, key: &Key, now: Millis, cost: Cost, terms: &A) -> Insertion {
        self.debit_in(&mut self.lock(key), key, now, cost, terms)
    }

    pub(super) fn reserve(&self, key: &Key, now: Millis, cost: Cost, terms: &A) -> Insertion {
        let mut shard = self.lock(key);
        shard.count_delay();
        self.debit_in(&mut shard, key, now, cost, terms)
    }

    fn debit_in(
        &self,
        shard: &mut RateShard<A>,
        key: &Key,
        now: Millis,
        cost: Cost,
        terms: &A,
    ) -> Insertion {
        if let Some(state) = shard.ask(key) {
            terms.debit(state, now, cost);
            return Insertion::Found;
        }
        if cost == Cost(0) {
            return Insertion::Found;
        }
        let mut state = terms.fresh(now);
        terms.debit(&mut state, now, cost);
        self.insert(shard, key, state, now)
    }

    pub(super) fn witness(
        &self,
        key: &Key,
        now: Millis,
        cost: Cost,
        terms: &A,
        answer: &StoreVerdict,
    ) -> Insertion {
        let mut shard = self.lock(key);
        shard.count(&answer.outcome, Spent::default());
        let catch_up = |state: &mut A::State| {
            if !matches!(answer.outcome, Verdict::Refuse { .. }) {
                terms.debit(state, now, cost);
            }
            let known = terms.standing(state, now).remaining;
            if let Some(gone @ 1..) = known.checked_sub(answer.remaining) {
                let gone = Cost(gone.saturating_mul(Cost::ONE.0));
                terms.debit(state, now, gone);
            }
        };
        if let Some(state) = shard.ask(key) {
            catch_up(state);
            return Insertion::Found;
        }
        let mut state = terms.fresh(now);
        catch_up(&mut state);
        self.insert(&mut shard, key, state, now)
    }

    pub(super) fn standing(&self, key: &Key, now: Millis, terms: &A) -> Option<KeyStatus> {
        let shard = self.lock(key);
        Some(terms.standing(shard.state(key)?, now))
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

    fn refused(&self) -> CountRefused {
        match self.refused.load(Ordering::Relaxed) {
            false => CountRefused::No,
            true => CountRefused::Yes,
        }
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
        let heir = self.heir.get();
        heir.expect("keys move only where there is an heir")
            .lock(key)
    }
}
