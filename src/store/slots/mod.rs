//! A `limit_conn` zone: how many requests of each key are in progress, and who waits for one to end.
//!
//! A place is a value: whoever holds it is counted, and letting go of it, in whatever way, gives it back
//! once. The same holds for one that is handed to somebody in the waiting line: it travels as a value, so
//! if the receiver is gone it is dropped, which passes it on to the next. One promise keeps the line fair:
//! nobody is left in it who could go. A newcomer that finds a free place therefore overtakes no one.

mod heir;
#[cfg(test)]
mod races;
mod shard;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use parking_lot::MutexGuard;
use tokio::sync::oneshot;

use self::shard::{QueuedRequest, SlotShard, TakeResult};
use super::key::{HashSeeds, Key};
use super::lock::ShardLock;
use super::table::{ShardLayout, SlotIndex};
use super::{BYTES_PER_KEY, ZoneCounts};
use crate::clock::Millis;
use crate::config::plan::ConnQueue;
use crate::telemetry::RateLimitedLog;

/// Places by key.
#[derive(Debug)]
pub struct SlotTable {
    name: Box<str>,
    seeds: HashSeeds,
    division: ShardLayout,
    shards: Box<[ShardLock<SlotShard>]>,
    full: RateLimitedLog,
    /// Where everybody has moved to.
    heir: OnceLock<Arc<Self>>,
}

/// A place among a key's requests in progress, given back when dropped.
// Not `Clone`: two owners of one place would give it back twice.
#[derive(Debug)]
#[must_use = "a place that is not held is given back"]
pub struct ConnSlot {
    slots: Arc<SlotTable>,
    key: Key,
}

/// Every place is taken, and the waiting line, where there is one, is full or took too long; or the zone has
/// no room for one more key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoSlot;

impl SlotTable {
    /// A zone of at most `size` bytes, nobody in it.
    #[must_use]
    pub fn new(name: &str, size: usize) -> Arc<Self> {
        let division = ShardLayout::of(size, BYTES_PER_KEY);
        Arc::new(Self {
            name: name.into(),
            seeds: HashSeeds::default(),
            division,
            shards: (0..division.tables)
                .map(|_| ShardLock::new(SlotShard::new(division.keys)))
                .collect(),
            full: RateLimitedLog::default(),
            heir: OnceLock::new(),
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key these bytes are in this zone.
    #[must_use]
    pub fn key(&self, bytes: &[u8]) -> Key {
        self.seeds.key(bytes)
    }

    /// Takes a place for a key unless `limit` are taken.
    ///
    /// # Errors
    /// [`NoSlot`] if they are, or if the zone is full.
    pub fn take(self: &Arc<Self>, key: &Key, limit: u32, now: Millis) -> Result<ConnSlot, NoSlot> {
        let mut shard = self.lock(key);
        let taken = shard.take(key, limit, &self.seeds);
        match taken {
            TakeResult::Yes(_) => shard.counts.pass += 1,
            TakeResult::No | TakeResult::NoRoom => shard.counts.refuse += 1,
        }
        drop(shard);
        self.taken_place(taken, key, now)
    }

    /// Takes a place for a key unless `limit` are taken, and counts nothing: who asks elsewhere, too, says himself what
    /// came of it.
    ///
    /// # Errors
    /// [`NoSlot`] if they are, or if the zone is full.
    pub fn reserve(
        self: &Arc<Self>,
        key: &Key,
        limit: u32,
        now: Millis,
    ) -> Result<ConnSlot, NoSlot> {
        let taken = self.lock(key).take(key, limit, &self.seeds);
        self.taken_place(taken, key, now)
    }

    /// Takes a place for a key, and waits for one in a line if `limit` are taken.
    ///
    /// Dropping the future leaves the line.
    ///
    /// # Errors
    /// [`NoSlot`] if the line is full, the wait took too long, or the zone is full.
    pub async fn wait(
        self: &Arc<Self>,
        key: &Key,
        limit: u32,
        queue: &ConnQueue,
        now: Millis,
    ) -> Result<ConnSlot, NoSlot> {
        let mut waiter = match self.take_or_queue(key, limit, queue, now)? {
            SlotAttempt::At(place) => return Ok(place),
            SlotAttempt::InLine(waiter) => waiter,
        };
        let handed = tokio::time::timeout(queue.timeout, &mut waiter.handed).await;
        if let Ok(Ok(place)) = handed {
            self.lock(key).counts.delay += 1;
            return Ok(place);
        }
        self.give_up(&mut waiter)
    }

    /// Counts a refusal that was decided without asking for a place.
    pub fn count_refusal(&self, key: &Key) {
        self.lock(key).counts.refuse += 1;
    }

    /// Counts one who passed with a place of [`SlotTable::reserve`], at once or after a wait.
    pub fn count_pass(&self, key: &Key, waited: bool) {
        let mut shard = self.lock(key);
        let counts = &mut shard.counts;
        match waited {
            true => counts.delay += 1,
            false => counts.pass += 1,
        }
    }

    /// How many requests of a key are in progress.
    #[must_use]
    pub fn taken(&self, key: &Key) -> u32 {
        let shard = self.lock(key);
        shard
            .table
            .slot(key)
            .map_or(0, |slot| shard.table.value(slot).places)
    }

    /// How many keys have requests in progress.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().table.len())
            .sum()
    }

    /// Whether none has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys there is room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.division.tables * self.division.keys
    }

    /// How often it has said what, and how often it had no room for a key.
    #[must_use]
    pub fn counts(&self) -> ZoneCounts {
        let mut sum = ZoneCounts::default();
        for shard in &self.shards {
            sum += shard.lock().counts;
        }
        sum.evictions = self.full.total();
        sum
    }

    fn take_or_queue(
        self: &Arc<Self>,
        key: &Key,
        limit: u32,
        queue: &ConnQueue,
        now: Millis,
    ) -> Result<SlotAttempt<'_>, NoSlot> {
        let mut shard = self.lock(key);
        match shard.take(key, limit, &self.seeds) {
            TakeResult::Yes(slot) => {
                shard.counts.pass += 1;
                drop(shard);
                Ok(SlotAttempt::At(self.place(key, slot)))
            }
            TakeResult::No => {
                let Some((ticket, handed)) = shard.queue(key, limit, queue.size) else {
                    shard.counts.refuse += 1;
                    return Err(NoSlot);
                };
                Ok(SlotAttempt::InLine(SlotWaiter {
                    slots: self,
                    key: *key,
                    ticket,
                    handed,
                }))
            }
            TakeResult::NoRoom => {
                shard.counts.refuse += 1;
                drop(shard);
                Err(self.no_room(now))
            }
        }
    }

    /// Leaves the line; with a place, where one was handed over in the same moment.
    fn give_up(&self, waiter: &mut SlotWaiter<'_>) -> Result<ConnSlot, NoSlot> {
        let mut shard = self.lock(&waiter.key);
        shard.leave(&waiter.key, waiter.ticket);
        // Out of line and nothing sent: nobody can hand us a place any more. Taken out by somebody who has
        // one for us in the same moment: then it is here, or comes back to him.
        let place = waiter.handed.try_recv().map_err(|_| NoSlot);
        match place {
            Ok(_) => shard.counts.delay += 1,
            Err(_) => shard.counts.refuse += 1,
        }
        place
    }

    fn give_back(self: &Arc<Self>, key: &Key) {
        let next = self.lock(key).give_back(key, &self.seeds);
        if let Some(next) = next {
            self.hand_over(key, next);
        }
    }

    /// Hands a place to somebody who was taken out of line for it.
    // Outside the lock: if the receiver has just gone, the place is dropped here and comes back.
    fn hand_over(self: &Arc<Self>, key: &Key, next: QueuedRequest) {
        drop(next.hand.send(ConnSlot {
            slots: Arc::clone(self),
            key: *key,
        }));
    }

    fn place(self: &Arc<Self>, key: &Key, slot: usize) -> ConnSlot {
        ConnSlot {
            slots: Arc::clone(self),
            // To be found at once when it is given back.
            key: Key {
                slot: SlotIndex::narrow(slot),
                ..*key
            },
        }
    }

    fn taken_place(
        self: &Arc<Self>,
        taken: TakeResult,
        key: &Key,
        now: Millis,
    ) -> Result<ConnSlot, NoSlot> {
        match taken {
            TakeResult::Yes(slot) => Ok(self.place(key, slot)),
            TakeResult::No => Err(NoSlot),
            TakeResult::NoRoom => Err(self.no_room(now)),
        }
    }

    fn lock(&self, key: &Key) -> MutexGuard<'_, SlotShard> {
        let shard = self.shards[self.division.table(key)].lock();
        if shard.table.is_gone() {
            drop(shard);
            return self.lock_moved(key);
        }
        shard
    }

    fn no_room(&self, now: Millis) -> NoSlot {
        if let Some(times) = self.full.note(now) {
            tracing::warn!(
                "zone \"{}\" is full: {times} requests were turned away because it had no room \
                 for their key; a key takes {BYTES_PER_KEY} bytes of its size",
                self.name,
            );
        }
        NoSlot
    }
}

impl Drop for ConnSlot {
    fn drop(&mut self) {
        self.slots.give_back(&self.key);
    }
}

/// How far one got who may wait.
enum SlotAttempt<'a> {
    At(ConnSlot),
    InLine(SlotWaiter<'a>),
}

/// Somebody in line; leaves it when dropped.
struct SlotWaiter<'a> {
    slots: &'a Arc<SlotTable>,
    key: Key,
    ticket: u64,
    // A place handed over and not picked up is dropped with this, which gives it back.
    handed: oneshot::Receiver<ConnSlot>,
}

impl Drop for SlotWaiter<'_> {
    fn drop(&mut self) {
        self.slots.lock(&self.key).leave(&self.key, self.ticket);
    }
}
