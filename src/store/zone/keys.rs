//! The keys of a zone and their states, as one algorithm has them.

use super::shard::Shard;
use crate::clock::Millis;
use crate::config::plan::{Cost, CountRefused};
use crate::store::algorithm::{Algorithm, Outcome, Spent, Standing};
use crate::store::bounded::Room;
use crate::store::key::{Key, Seeds};
use crate::store::lock::Lock;
use crate::store::table::Division;
use crate::store::zone::Receipt;
use crate::store::{Answer, Counts};
use crate::telemetry::Warning;

/// States by key.
#[derive(Debug)]
pub(super) struct Keys<A: Algorithm> {
    seeds: Seeds,
    division: Division,
    shards: Box<[Lock<Shard<A>>]>,
    /// No key drains slower than by these numbers.
    slowest: A,
    refused: CountRefused,
    evictions: Warning,
}

impl<A: Algorithm> Keys<A> {
    pub(super) fn new(size: usize, slowest: A, refused: CountRefused) -> Self {
        let division = Division::of(size);
        Self {
            seeds: Seeds::default(),
            division,
            shards: (0..division.tables)
                .map(|_| Lock::new(Shard::new(division.keys)))
                .collect(),
            slowest,
            refused,
            evictions: Warning::default(),
        }
    }

    pub(super) fn key(&self, bytes: &[u8]) -> Key {
        self.seeds.key(bytes)
    }

    pub(super) fn ask(&self, key: &Key, now: Millis, cost: Cost, terms: &A) -> Outcome {
        match self.shard(key).lock().state(key) {
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
    ) -> (Outcome, Receipt, Room) {
        let mut shard = self.shard(key).lock();
        if let Some((outcome, receipt)) = shard.charge(key, now, cost, terms, self.refused) {
            return (outcome, receipt, Room::Found);
        }
        let mut state = terms.fresh(now);
        let (outcome, spent) = terms.charge(&mut state, now, cost);
        let receipt = shard.count(&outcome, spent);
        let remembered = match outcome {
            // Who asks for nothing, or for more than there is, has changed nothing and cannot fill a zone.
            Outcome::Delay { .. } | Outcome::Pass { .. } => cost > Cost(0),
            Outcome::Refuse { .. } => {
                if self.refused == CountRefused::Yes {
                    terms.count_refused(&mut state, now, cost);
                }
                self.refused == CountRefused::Yes
            }
        };
        let room = if remembered {
            shard.insert(key, state, now, &self.slowest, &self.seeds)
        } else {
            Room::Found
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
    ) -> Option<(Outcome, Receipt)> {
        let mut shard = self.shard(key).lock();
        shard.charge(key, now, cost, terms, self.refused)
    }

    pub(super) fn refund(&self, key: &Key, receipt: Receipt, now: Millis, cost: Cost, terms: &A) {
        let mut shard = self.shard(key).lock();
        shard.uncount(receipt);
        if let Some(state) = shard.state_mut(key) {
            terms.refund(state, now, cost, receipt.spent);
        }
    }

    pub(super) fn debit(&self, key: &Key, now: Millis, cost: Cost, terms: &A) -> Room {
        self.debit_in(&mut self.shard(key).lock(), key, now, cost, terms)
    }

    pub(super) fn reserve(&self, key: &Key, now: Millis, cost: Cost, terms: &A) -> Room {
        let mut shard = self.shard(key).lock();
        shard.count_delay();
        self.debit_in(&mut shard, key, now, cost, terms)
    }

    fn debit_in(
        &self,
        shard: &mut Shard<A>,
        key: &Key,
        now: Millis,
        cost: Cost,
        terms: &A,
    ) -> Room {
        if let Some(state) = shard.state_mut(key) {
            terms.debit(state, now, cost);
            return Room::Found;
        }
        if cost == Cost(0) {
            return Room::Found;
        }
        let mut state = terms.fresh(now);
        terms.debit(&mut state, now, cost);
        shard.insert(key, state, now, &self.slowest, &self.seeds)
    }

    pub(super) fn witness(
        &self,
        key: &Key,
        now: Millis,
        cost: Cost,
        terms: &A,
        answer: &Answer,
    ) -> Room {
        let mut shard = self.shard(key).lock();
        shard.count(&answer.outcome, Spent::default());
        let catch_up = |state: &mut A::State| {
            if !matches!(answer.outcome, Outcome::Refuse { .. }) {
                terms.debit(state, now, cost);
            }
            let known = terms.standing(state, now).remaining;
            if let Some(gone @ 1..) = known.checked_sub(answer.remaining) {
                let gone = Cost(gone.saturating_mul(Cost::ONE.0));
                terms.debit(state, now, gone);
            }
        };
        if let Some(state) = shard.state_mut(key) {
            catch_up(state);
            return Room::Found;
        }
        let mut state = terms.fresh(now);
        catch_up(&mut state);
        shard.insert(key, state, now, &self.slowest, &self.seeds)
    }

    pub(super) fn standing(&self, key: &Key, now: Millis, terms: &A) -> Option<Standing> {
        let shard = self.shard(key).lock();
        Some(terms.standing(shard.state(key)?, now))
    }

    pub(super) fn count_refusal(&self, key: &Key) {
        self.shard(key).lock().count_refusal();
    }

    pub(super) fn forget(&self, key: &Key) -> bool {
        self.shard(key).lock().forget(key, &self.seeds)
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    pub(super) fn capacity(&self) -> usize {
        self.division.tables * self.division.keys
    }

    pub(super) fn memory(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| size_of::<Lock<Shard<A>>>() + shard.lock().memory())
            .sum()
    }

    pub(super) fn counts(&self) -> Counts {
        let mut sum = Counts::default();
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

    fn shard(&self, key: &Key) -> &Lock<Shard<A>> {
        &self.shards[self.division.table(key)]
    }
}
