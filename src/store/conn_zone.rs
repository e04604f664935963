//! A `limit_conn` zone: how many requests of each key are in progress, and who waits for one to end.
//!
//! A place is a value: whoever holds it is counted, and letting go of it, in whatever way, gives it back
//! once. The same holds for one that is handed to somebody in the waiting line: it travels as a value, so
//! if the receiver is gone it is dropped, which passes it on to the next. One promise keeps the line fair:
//! nobody is left in it who could go. A newcomer that finds a free place therefore overtakes no one.
//!
//! A part of a zone's keys, behind one lock: how many requests each has in progress, and who waits.
//!
//! A zone of places whose memory changes: everybody keeps their place, in progress or in line.

#[cfg(test)]
#[path = "tests/conn_zone_races.rs"]
mod races;
#[cfg(test)]
#[path = "tests/conn_zone.rs"]
mod tests;

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use parking_lot::MutexGuard;
use tokio::sync::oneshot;

use super::key::{HashSeeds, Key};
use super::table::{ShardLayout, ShardLock, SlotIndex, Table};
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
    resized: OnceLock<Arc<Self>>,
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
            resized: OnceLock::new(),
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

/// Some of a zone's keys, behind one lock.
#[derive(Debug)]
struct SlotShard {
    table: Table<ActiveKey>,
    counts: ZoneCounts,
    next_ticket: u64,
}

/// A key with requests in progress; one without has no entry.
#[derive(Debug)]
struct ActiveKey {
    places: u32,
    // Boxed: nearly no key ever has a line, and a zone's memory is counted in these.
    line: Option<Box<WaitQueue>>,
}

/// Those who wait for a place, in the order they came.
#[derive(Debug, Default)]
struct WaitQueue(VecDeque<QueuedRequest>);

/// Somebody in line.
#[derive(Debug)]
struct QueuedRequest {
    ticket: u64,
    limit: u32,
    hand: oneshot::Sender<ConnSlot>,
}

/// Whether there was a place.
enum TakeResult {
    No,
    NoRoom,
    /// In this slot.
    Yes(usize),
}

impl SlotShard {
    fn new(bound: usize) -> Self {
        Self {
            table: Table::new(bound),
            counts: ZoneCounts::default(),
            next_ticket: 0,
        }
    }

    fn take(&mut self, key: &Key, limit: u32, seeds: &HashSeeds) -> TakeResult {
        let Some(slot) = self.table.slot(key) else {
            if self.table.is_full() {
                return TakeResult::NoRoom;
            }
            let first = ActiveKey {
                places: 1,
                line: None,
            };
            return TakeResult::Yes(self.table.insert(key, first, seeds));
        };
        let active = self.table.value_mut(slot);
        if active.places >= limit {
            return TakeResult::No;
        }
        active.places += 1;
        TakeResult::Yes(slot)
    }

    /// Joins the line of a key, unless `longest` stand in it.
    fn queue(
        &mut self,
        key: &Key,
        limit: u32,
        longest: u32,
    ) -> Option<(u64, oneshot::Receiver<ConnSlot>)> {
        let slot = self.table.slot(key)?;
        let WaitQueue(line) = &mut **self.table.value_mut(slot).line.get_or_insert_default();
        if line.len() >= usize::try_from(longest).unwrap_or(usize::MAX) {
            return None;
        }
        let (hand, handed) = oneshot::channel();
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        line.push_back(QueuedRequest {
            ticket,
            limit,
            hand,
        });
        Some((ticket, handed))
    }

    fn leave(&mut self, key: &Key, ticket: u64) {
        let Some(slot) = self.table.slot(key) else {
            return;
        };
        let active = self.table.value_mut(slot);
        if let Some(WaitQueue(line)) = active.line.as_deref_mut() {
            line.retain(|waiting| waiting.ticket != ticket);
        }
    }

    /// One place less; or, if somebody in line may have it, as many as before.
    fn give_back(&mut self, key: &Key, seeds: &HashSeeds) -> Option<QueuedRequest> {
        let slot = self.table.slot_again(key)?;
        let active = self.table.value_mut(slot);
        active.places -= 1;
        if let Some(WaitQueue(line)) = active.line.as_deref_mut() {
            // Limits of several locations may meet in one zone: the first who may, not the first of all.
            let first = line
                .iter()
                .position(|waiting| waiting.limit > active.places);
            if let Some(next) = first.and_then(|at| line.remove(at)) {
                active.places += 1;
                return Some(next);
            }
        }
        if active.places == 0 {
            self.table.remove(key, slot, seeds);
        }
        None
    }
}

impl SlotTable {
    /// The same places in so many bytes. Who is in progress or waits is there as before, also where there is less room than
    /// they take; whoever still has this zone is led to where the places are by then.
    #[must_use]
    pub fn resized(self: &Arc<Self>, size: usize) -> Arc<Self> {
        if let Some(resized) = self.resized.get() {
            return resized.resized(size);
        }
        if self.division == ShardLayout::of(size, BYTES_PER_KEY) {
            return Arc::clone(self);
        }
        let resized = Self::new(&self.name, size);
        resized.full.add(self.full.total());
        // Before the first place moves: whoever finds it gone looks there.
        let resized = self.resized.get_or_init(|| resized);
        for (number, shard) in self.shards.iter().enumerate() {
            let mut shard = shard.lock();
            let tickets = shard.next_ticket;
            for (packed, active) in shard.table.empty_out() {
                let key = resized.seeds.unpacked(packed);
                let mut there = resized.lock(&key);
                // No two in one line have the same ticket.
                there.next_ticket = there.next_ticket.max(tickets);
                there.table.stretch();
                there.table.insert(&key, active, &resized.seeds);
            }
            let counts = std::mem::take(&mut shard.counts);
            resized.shards[number % resized.shards.len()].lock().counts += counts;
        }
        Arc::clone(resized)
    }

    #[cold]
    fn lock_moved(&self, key: &Key) -> MutexGuard<'_, SlotShard> {
        let resized = self.resized.get();
        resized
            .expect("places move only where there is an heir")
            .lock(key)
    }
}

#[cfg(test)]
mod heir_tests {

    use super::*;
    use crate::clock::Millis;
    use crate::config::plan::ConnQueue;

    const NOW: Millis = Millis(5);
    const LINE: ConnQueue = ConnQueue {
        size: 10,
        timeout: std::time::Duration::from_secs(60),
    };

    #[tokio::test(start_paused = true)]
    async fn places_and_those_who_wait_for_them_move_along() {
        let old = SlotTable::new("one", 1 << 20);
        let key = old.key(b"a");
        let first = old.take(&key, 1, NOW).unwrap();
        let mut second = Box::pin(old.wait(&key, 1, &LINE, NOW));
        assert!(
            tokio::time::timeout(std::time::Duration::ZERO, &mut second)
                .await
                .is_err()
        );

        let new = old.resized(64 << 20);
        assert!(!Arc::ptr_eq(&old, &new));
        assert_eq!((old.len(), new.len(), new.taken(&key)), (0, 1, 1));
        assert!(new.take(&key, 1, NOW).is_err());
        // Who comes later stands behind who came before, whichever zone they asked.
        let mut third = Box::pin(new.wait(&key, 1, &LINE, NOW));
        assert!(
            tokio::time::timeout(std::time::Duration::ZERO, &mut third)
                .await
                .is_err()
        );
        drop(first);
        let second = second.await.unwrap();
        assert!(
            tokio::time::timeout(std::time::Duration::ZERO, &mut third)
                .await
                .is_err()
        );
        drop(second);
        let third = third.await.unwrap();
        assert_eq!(old.taken(&key), 1);
        drop(third);
        assert!(new.is_empty());
        assert_eq!(
            (new.counts().pass, new.counts().delay, new.counts().refuse),
            (1, 2, 1)
        );
    }

    #[test]
    fn who_is_in_progress_stays_where_there_is_less_room() {
        let old = SlotTable::new("one", 1 << 20);
        let places: Vec<_> = (0..5000u32)
            .map(|number| old.take(&old.key(&number.to_be_bytes()), 1, NOW).unwrap())
            .collect();
        let new = old.resized(BYTES_PER_KEY);
        assert_eq!(new.len(), 5000);
        assert!(new.take(&new.key(b"another"), 1, NOW).is_err());
        drop(places);
        assert!(new.is_empty());
        assert_eq!(old.resized(BYTES_PER_KEY).len(), 0);
    }

    #[test]
    fn the_same_memory_is_the_same_zone() {
        let slots = SlotTable::new("one", 1 << 20);
        assert!(Arc::ptr_eq(&slots, &slots.resized(1 << 20)));
    }
}
