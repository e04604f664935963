//! A `limit_conn` zone: the concurrent requests of each key, and the requests that wait for one of them to end.
//!
//! A slot is a value: its holder is counted, and dropping it, in whatever way, gives it back once. The same holds for a slot
//! that is passed to a waiting request: it travels as a value, so if the receiver is gone it is dropped, which passes it
//! on to the next. One invariant keeps the queue fair: no request waits in it that could have a slot. A new request
//! that finds a free slot therefore overtakes none.

#[cfg(test)]
#[path = "tests/conn_zone_races.rs"]
mod races;
#[cfg(test)]
#[path = "tests/conn_zone_resizing.rs"]
mod resizing;
#[cfg(test)]
#[path = "tests/conn_zone.rs"]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::key::{Key, PackedKey};
use super::table::{BYTES_PER_KEY, Shard, ShardLayout, Shards, SlotIndex, Table, ZoneCounts};
use crate::clock::Millis;
use crate::config::plan::ConnQueue;

/// A `limit_conn` zone. A clone is the same zone.
///
/// ```
/// use weir::clock::Millis;
/// use weir::store::{Key, NoSlot, SlotTable};
///
/// let zone = SlotTable::new("per_ip", 1 << 20);
/// let key = Key::from_bytes(b"192.0.2.7");
/// let slot = zone.take(&key, 1, Millis(0)).expect("no other request");
/// assert_eq!(zone.taken(&key), 1);
/// assert_eq!(zone.take(&key, 1, Millis(5)).unwrap_err(), NoSlot);
///
/// drop(slot);
/// assert!(zone.take(&key, 1, Millis(9)).is_ok());
/// ```
#[derive(Debug, Clone)]
pub struct SlotTable {
    /// Its name.
    pub name: Arc<str>,
    shards: Arc<Shards<SlotShard>>,
}

/// One of a key's concurrent requests, given back when dropped.
// Not `Clone`: two owners of one slot would give it back twice.
#[derive(Debug)]
#[must_use = "a slot that is not held is given back"]
pub struct ConnSlot {
    shards: Arc<Shards<SlotShard>>,
    key: Key,
}

/// All slots of the key are taken and its queue, if it has one, is full or the wait took too long; or the zone has no room for
/// another key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoSlot;

impl SlotTable {
    /// An empty zone of at most `size` bytes.
    #[must_use]
    pub fn new(name: &str, size: usize) -> Self {
        Self {
            name: name.into(),
            shards: Arc::new(shards(size)),
        }
    }

    /// Takes a slot for a key unless `limit` are taken, and counts the verdict.
    ///
    /// # Errors
    /// [`NoSlot`] if they are, or if the zone is full.
    pub fn take(&self, key: &Key, limit: u32, now: Millis) -> Result<ConnSlot, NoSlot> {
        let mut shard = self.shards.lock(key);
        let taken = shard.take(key, limit);
        match taken {
            Ok(_) => shard.counts.pass += 1,
            Err(_) => shard.counts.refuse += 1,
        }
        drop(shard);
        self.slot(taken, key, now)
    }

    /// Takes a slot for a key unless `limit` are taken, and counts nothing: a caller that also asks a store counts what came of
    /// both.
    ///
    /// # Errors
    /// [`NoSlot`] if they are, or if the zone is full.
    pub fn take_uncounted(&self, key: &Key, limit: u32, now: Millis) -> Result<ConnSlot, NoSlot> {
        let taken = self.shards.lock(key).take(key, limit);
        self.slot(taken, key, now)
    }

    /// Takes a slot for a key, and waits in a queue for one if `limit` are taken.
    ///
    /// Dropping the future leaves the queue.
    ///
    /// # Errors
    /// [`NoSlot`] if the queue is full, the wait took too long, or the zone is full.
    pub async fn wait(
        &self,
        key: &Key,
        limit: u32,
        queue: &ConnQueue,
        now: Millis,
    ) -> Result<ConnSlot, NoSlot> {
        let mut waiter = match self.take_or_queue(key, limit, queue, now)? {
            SlotAttempt::Taken(slot) => return Ok(slot),
            SlotAttempt::Queued(waiter) => waiter,
        };
        let received = tokio::time::timeout(queue.timeout, &mut waiter.receiver).await;
        if let Ok(Ok(slot)) = received {
            self.count_pass(key, true);
            return Ok(slot);
        }
        waiter.give_up()
    }

    /// Counts a refusal that was decided without this zone.
    pub fn count_refusal(&self, key: &Key) {
        self.shards.lock(key).counts.refuse += 1;
    }

    /// Counts a request that passed with a slot of [`SlotTable::take_uncounted`], at once or after a wait.
    pub fn count_pass(&self, key: &Key, waited: bool) {
        let mut shard = self.shards.lock(key);
        match waited {
            true => shard.counts.delay += 1,
            false => shard.counts.pass += 1,
        }
    }

    /// The number of a key's concurrent requests.
    #[must_use]
    pub fn taken(&self, key: &Key) -> u32 {
        let shard = self.shards.lock(key);
        let slot = shard.table.slot(key);
        slot.map_or(0, |slot| shard.table.value(slot).taken)
    }

    /// The number of keys that have requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.table.len()).sum()
    }

    /// Whether no key has requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys there is room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shards.capacity()
    }

    /// Its verdicts.
    #[must_use]
    pub fn counts(&self) -> ZoneCounts {
        self.shards.counts()
    }

    /// How many requests it refused because it had no room for their key.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.shards.overflows.total()
    }

    /// This zone in `size` bytes. All requests, concurrent or waiting, stay, also where they need more than that.
    #[must_use]
    pub fn resized(&self, size: usize) -> Self {
        let shards = self.shards.current();
        let shards = match shards.layout == ShardLayout::of(size, BYTES_PER_KEY) {
            true => Arc::clone(shards),
            false => shards.move_to(self::shards(size)),
        };
        Self {
            name: Arc::clone(&self.name),
            shards,
        }
    }

    fn take_or_queue(
        &self,
        key: &Key,
        limit: u32,
        queue: &ConnQueue,
        now: Millis,
    ) -> Result<SlotAttempt<'_>, NoSlot> {
        let mut shard = self.shards.lock(key);
        let taken = shard.take(key, limit);
        if let Err(TakeError::LimitReached) = taken
            && let Some((ticket, receiver)) = shard.enqueue(key, limit, queue.size)
        {
            return Ok(SlotAttempt::Queued(SlotWaiter {
                shards: &self.shards,
                key: *key,
                ticket,
                receiver,
            }));
        }
        match taken {
            Ok(_) => shard.counts.pass += 1,
            Err(_) => shard.counts.refuse += 1,
        }
        drop(shard);
        self.slot(taken, key, now).map(SlotAttempt::Taken)
    }

    fn slot(
        &self,
        taken: Result<usize, TakeError>,
        key: &Key,
        now: Millis,
    ) -> Result<ConnSlot, NoSlot> {
        match taken {
            Ok(slot) => Ok(ConnSlot {
                shards: Arc::clone(&self.shards),
                // The hint finds it at once when it is given back.
                key: Key {
                    slot: SlotIndex::from_slot(slot),
                    ..*key
                },
            }),
            Err(TakeError::LimitReached) => Err(NoSlot),
            Err(TakeError::ZoneFull) => {
                if let Some(times) = self.shards.overflows.note(now) {
                    tracing::warn!(
                        "zone \"{}\" is full: {times} requests were turned away because it had no room \
                         for their key; a key takes {BYTES_PER_KEY} bytes of its size",
                        self.name,
                    );
                }
                Err(NoSlot)
            }
        }
    }
}

impl Drop for ConnSlot {
    fn drop(&mut self) {
        let next = self.shards.lock(&self.key).give_back(&self.key);
        if let Some(next) = next {
            next.pass_slot(&self.shards, &self.key);
        }
    }
}

enum SlotAttempt<'a> {
    Queued(SlotWaiter<'a>),
    Taken(ConnSlot),
}

/// A request in the queue; leaves it when dropped.
struct SlotWaiter<'a> {
    shards: &'a Shards<SlotShard>,
    key: Key,
    ticket: u64,
    // A slot that was sent and not received is dropped with this, which gives it back.
    receiver: oneshot::Receiver<ConnSlot>,
}

impl SlotWaiter<'_> {
    /// Leaves the queue; with a slot, if one was sent at the same moment.
    fn give_up(&mut self) -> Result<ConnSlot, NoSlot> {
        let mut shard = self.shards.lock(&self.key);
        shard.leave_queue(&self.key, self.ticket);
        // Out of the queue with nothing sent, no slot can come any more. If another request took it out of the queue at the
        // same moment, the slot is here, or goes back to that request.
        let slot = self.receiver.try_recv().map_err(|_| NoSlot);
        match slot {
            Ok(_) => shard.counts.delay += 1,
            Err(_) => shard.counts.refuse += 1,
        }
        slot
    }
}

impl Drop for SlotWaiter<'_> {
    fn drop(&mut self) {
        let mut shard = self.shards.lock(&self.key);
        shard.leave_queue(&self.key, self.ticket);
    }
}

fn shards(size: usize) -> Shards<SlotShard> {
    Shards::new(ShardLayout::of(size, BYTES_PER_KEY), |bound| SlotShard {
        table: Table::new(bound),
        counts: ZoneCounts::default(),
        next_ticket: 0,
    })
}

/// Some of a zone's keys, behind one lock.
#[derive(Debug)]
struct SlotShard {
    table: Table<ActiveKey>,
    counts: ZoneCounts,
    next_ticket: u64,
}

/// A key with requests; one without has no entry.
#[derive(Debug)]
struct ActiveKey {
    taken: u32,
    // Boxed: very few keys ever have a queue, and a zone's memory is counted in these.
    queue: Option<Box<WaitQueue>>,
}

/// Requests that wait for a slot of a key, in the order they came.
#[derive(Debug, Default)]
struct WaitQueue(VecDeque<QueuedRequest>);

#[derive(Debug)]
struct QueuedRequest {
    ticket: u64,
    limit: u32,
    sender: oneshot::Sender<ConnSlot>,
}

#[derive(Clone, Copy)]
enum TakeError {
    LimitReached,
    ZoneFull,
}

impl QueuedRequest {
    /// Passes a slot to this request, which was taken out of the queue for it.
    // Outside the lock: if the receiver has just gone, the slot is dropped here and given back.
    fn pass_slot(self, shards: &Arc<Shards<SlotShard>>, key: &Key) {
        drop(self.sender.send(ConnSlot {
            shards: Arc::clone(shards),
            key: *key,
        }));
    }
}

impl SlotShard {
    /// Takes a slot, and returns where its key is in the table.
    fn take(&mut self, key: &Key, limit: u32) -> Result<usize, TakeError> {
        let Some(slot) = self.table.slot(key) else {
            if self.table.is_full() {
                return Err(TakeError::ZoneFull);
            }
            let first = ActiveKey {
                taken: 1,
                queue: None,
            };
            return Ok(self.table.insert(key, first));
        };
        let active = self.table.value_mut(slot);
        if active.taken >= limit {
            return Err(TakeError::LimitReached);
        }
        active.taken += 1;
        Ok(slot)
    }

    /// Joins the queue of a key, unless it has `max` requests.
    fn enqueue(
        &mut self,
        key: &Key,
        limit: u32,
        max: u32,
    ) -> Option<(u64, oneshot::Receiver<ConnSlot>)> {
        let slot = self.table.slot(key)?;
        let WaitQueue(queue) = &mut **self.table.value_mut(slot).queue.get_or_insert_default();
        if queue.len() >= usize::try_from(max).unwrap_or(usize::MAX) {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        queue.push_back(QueuedRequest {
            ticket,
            limit,
            sender,
        });
        Some((ticket, receiver))
    }

    fn leave_queue(&mut self, key: &Key, ticket: u64) {
        if let Some(slot) = self.table.slot(key)
            && let Some(WaitQueue(queue)) = self.table.value_mut(slot).queue.as_deref_mut()
        {
            queue.retain(|waiting| waiting.ticket != ticket);
        }
    }

    /// Frees a slot, unless a waiting request may have it: that is returned.
    fn give_back(&mut self, key: &Key) -> Option<QueuedRequest> {
        let slot = self.table.slot_by_hint(key)?;
        let active = self.table.value_mut(slot);
        active.taken -= 1;
        if let Some(WaitQueue(queue)) = active.queue.as_deref_mut() {
            // Rules with different limits may share a zone: the first request that may have it, not the first of all.
            let first = queue
                .iter()
                .position(|waiting| waiting.limit > active.taken);
            if let Some(next) = first.and_then(|at| queue.remove(at)) {
                active.taken += 1;
                return Some(next);
            }
        }
        if active.taken == 0 {
            self.table.remove(key, slot);
        }
        None
    }
}

impl Shard for SlotShard {
    /// A key, and the next ticket of the shard that it was in.
    type Entry = (ActiveKey, u64);

    fn is_moved_out(&self) -> bool {
        self.table.is_moved_out()
    }

    fn move_out(&mut self) -> impl Iterator<Item = (PackedKey, Self::Entry)> {
        let next_ticket = self.next_ticket;
        let entries = self.table.move_out();
        entries.map(move |(key, active)| (key, (active, next_ticket)))
    }

    fn move_in(&mut self, key: &Key, (active, next_ticket): Self::Entry) {
        // No two requests of one queue have the same ticket.
        self.next_ticket = self.next_ticket.max(next_ticket);
        self.table.grow_bound();
        self.table.insert(key, active);
    }

    fn counts(&mut self) -> &mut ZoneCounts {
        &mut self.counts
    }
}
