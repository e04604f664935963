//! The slots of a `limit_conn` that gateways share.
//!
//! A key is a sorted set of the slots that are taken, each with the moment at which it expires. A gateway renews its own
//! before that; a slot that no gateway renews, because its gateway died or an update was lost, is free after [`LEASE`].
//! Every slot has a unique name, so each update may be sent twice: no reply has to be known for sure, and no error lasts
//! longer than that.
//!
//! [`SlotLedger`] holds the slots of this gateway, and those whose release the store may not know of. A [`SlotQueue`] holds the
//! requests of this gateway that wait for a slot of one key. A store cannot notify gateways, so the first request of a
//! queue asks again: at once when this gateway has released a slot, and after a moment in any case, as another gateway
//! may have released one. The others wait until they are first.

#[cfg(test)]
#[path = "tests/conn_slots.rs"]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, RedisError, Value};
use smallvec::SmallVec;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::task::JoinSet;

use super::connection::{self, RedisConnection};
use super::handle::{StoreDown, StoreHandle};
use super::script::{self, CLOCK, LuaScript, UNEXPECTED_REPLY};
use crate::clock::Millis;

/// The slots of a store as this gateway knows them.
#[derive(Debug)]
pub struct SharedSlots {
    store: Arc<StoreHandle>,
    ledger: Mutex<SlotLedger>,
    /// The queues of its sets.
    queues: Mutex<HashMap<Arc<[u8]>, SlotQueue>>,
}

/// What one request needs at one store: a slot in each of these sets.
#[derive(Debug, Default)]
pub struct SlotClaim {
    wants: Vec<SlotWant>,
}

#[derive(Debug)]
struct SlotWant {
    /// The name of the set.
    name: Arc<[u8]>,
    limit: u32,
}

/// The slots of one request at one store, released when dropped.
// Not `Clone`: the first of two to go would give them back.
#[derive(Debug)]
#[must_use = "slots that are not held are released"]
pub struct SharedSlotGuard {
    slots: Arc<SharedSlots>,
    id: u64,
}

impl SlotClaim {
    /// Adds a slot for a key of a zone, of which there may be `limit`, in a store with this prefix.
    pub fn add(&mut self, prefix: &str, zone: &str, key: &[u8], limit: u32) {
        let mut name = Vec::with_capacity(64);
        script::append(&mut name, prefix, zone, key);
        // The same key may belong to a `limit_req` elsewhere, and is something else there.
        name.extend_from_slice(b":places");
        let name = name.into();
        self.wants.push(SlotWant { name, limit });
    }
}

impl SharedSlots {
    pub(super) fn new(store: &Arc<StoreHandle>) -> Self {
        Self {
            store: Arc::clone(store),
            ledger: Mutex::default(),
            queues: Mutex::default(),
        }
    }

    /// Takes all slots of a claim, or returns the index of the one that is full.
    ///
    /// # Errors
    /// When no reply comes in time, or none can.
    pub async fn take(
        self: &Arc<Self>,
        claim: &Arc<SlotClaim>,
        now: Millis,
    ) -> Result<Result<SharedSlotGuard, usize>, StoreDown> {
        let mut connection = self.store.connection()?;
        // From here on it is released, whatever becomes of the query and the request.
        let lease = self.hold(claim, now);
        let asking = self.query(claim, lease.id, &mut connection);
        self.store.asked.fetch_add(1, Ordering::Relaxed);
        let full = self.store.in_time(asking, now).await;
        let Some(full) = full.map_err(|_| StoreDown)? else {
            return Ok(Ok(lease));
        };
        if !connection.is_cluster() {
            // The store has refused all of them: there is nothing to release.
            self.ledger.lock().held.remove(&lease.id);
        }
        Ok(Err(full))
    }

    /// Holds slots that were taken without the store while it was away; it learns of them when it is back.
    pub fn hold_anyway(self: &Arc<Self>, claim: &Arc<SlotClaim>) -> SharedSlotGuard {
        self.hold(claim, Millis(0))
    }

    /// How many requests of this gateway hold slots in it.
    #[must_use]
    pub fn held(&self) -> usize {
        self.ledger.lock().held.len()
    }

    /// The part of a limit that this gateway enforces while it counts alone.
    #[must_use]
    pub fn share_of(&self, limit: u32) -> u32 {
        (limit / self.store.fleet.size().max(1)).max(1)
    }

    fn hold(self: &Arc<Self>, claim: &Arc<SlotClaim>, now: Millis) -> SharedSlotGuard {
        let id = self.ledger.lock().hold(claim, now);
        let slots = Arc::clone(self);
        SharedSlotGuard { slots, id }
    }

    /// Queries the servers of the sets: one server for all at once, a cluster one by one.
    async fn query(
        &self,
        claim: &SlotClaim,
        id: u64,
        connection: &mut RedisConnection,
    ) -> Result<Option<usize>, RedisError> {
        let size = match connection.is_cluster() {
            true => 1,
            false => claim.wants.len().max(1),
        };
        for (index, together) in claim.wants.chunks(size).enumerate() {
            let gone = self.ledger.lock().leaving(together);
            let write = |command: &mut Cmd| {
                command.arg(together.len());
                for want in together {
                    command.arg(&*want.name);
                }
                command.arg(LEASE).arg(self.slot_name(id));
                for (want, gone) in together.iter().zip(&gone) {
                    command.arg(want.limit).arg(gone.len());
                    for id in gone {
                        command.arg(self.slot_name(*id));
                    }
                }
            };
            let Value::Int(full) = TAKE.perform(connection, write).await? else {
                return Err(UNEXPECTED_REPLY.into());
            };
            match usize::try_from(full) {
                Ok(0) => {}
                Ok(full) if full <= together.len() => return Ok(Some(index * size + full - 1)),
                Ok(_) | Err(_) => return Err(UNEXPECTED_REPLY.into()),
            }
        }
        Ok(None)
    }

    /// The name of a slot of this gateway.
    fn slot_name(&self, id: u64) -> String {
        format!("{}:{id:x}", self.store.gateway)
    }

    /// Sends which slots were released.
    pub(super) fn release(self: &Arc<Self>, now: Millis, tasks: &mut JoinSet<()>) {
        let given = std::mem::take(&mut self.ledger.lock().given);
        self.send_updates(RELEASE, given, now, tasks);
    }

    /// Renews the slots that were not renewed for long, or, at a store that may have forgotten them, all.
    pub(super) fn renew(self: &Arc<Self>, now: Millis, tasks: &mut JoinSet<()>) {
        let mut ledger = self.ledger.lock();
        if !ledger.is_time(now, self.store.epoch()) {
            return;
        }
        let due = ledger.due(now, RENEW);
        drop(ledger);
        self.send_updates(LEASE, due, now, tasks);
    }

    /// Releases everything, for a gateway that stops.
    pub(super) async fn release_all(&self, connection: &mut RedisConnection) {
        let all = self.ledger.lock().all();
        for batch in batches(connection, &all) {
            let sent = self.send_update(RELEASE, batch, connection).await;
            if sent.is_err() {
                return;
            }
        }
    }

    fn send_updates(
        self: &Arc<Self>,
        lease: u64,
        slots: Vec<SlotRef>,
        now: Millis,
        tasks: &mut JoinSet<()>,
    ) {
        if slots.is_empty() {
            return;
        }
        let Ok(connection) = self.store.connection() else {
            return self.finish_update(lease, &slots, false);
        };
        for batch in batches(&connection, &slots) {
            let (slots, mut connection, batch) =
                (Arc::clone(self), connection.clone(), batch.to_vec());
            tasks.spawn(async move {
                let sending = tokio::time::timeout(
                    UPDATE_TIMEOUT,
                    slots.send_update(lease, &batch, &mut connection),
                );
                let acknowledged = match sending.await {
                    Ok(Ok(())) => true,
                    Ok(Err(error)) => {
                        slots.store.failed(&error, now);
                        false
                    }
                    Err(_) => false,
                };
                slots.finish_update(lease, &batch, acknowledged);
            });
        }
    }

    /// Takes over whether the store acknowledged an update.
    fn finish_update(&self, lease: u64, slots: &[SlotRef], acknowledged: bool) {
        if lease == RELEASE {
            // Without the update, a slot is free when it expires.
            self.ledger.lock().gone(slots);
            let queues = self.queues.lock();
            for queue in slots.iter().filter_map(|slot| queues.get(&slot.set)) {
                queue.head.freed.notify_one();
            }
        } else if !acknowledged {
            self.ledger.lock().not_renewed(slots);
        }
    }

    async fn send_update(
        &self,
        lease: u64,
        slots: &[SlotRef],
        connection: &mut RedisConnection,
    ) -> Result<(), RedisError> {
        let write = |command: &mut Cmd| {
            command.arg(slots.len());
            for slot in slots {
                command.arg(&*slot.set);
            }
            command.arg(lease);
            for slot in slots {
                command.arg(self.slot_name(slot.id));
            }
        };
        KEEP.perform(connection, write).await.map(drop)
    }

    /// Joins the queue for one of the slots of a claim, unless `longest` requests wait in it.
    pub fn join_queue(
        &self,
        claim: &SlotClaim,
        which: usize,
        longest: u32,
    ) -> Option<SharedSlotWaiter<'_>> {
        let set = &claim.wants.get(which)?.name;
        let mut queues = self.queues.lock();
        if queues.get(set).map_or(0, |queue| queue.waiting) >= longest {
            return None;
        }
        let queue = queues.entry(Arc::clone(set)).or_insert_with(|| SlotQueue {
            waiting: 0,
            head: Arc::new(QueueHead {
                turn: Semaphore::new(1),
                freed: Notify::new(),
            }),
        });
        queue.waiting += 1;
        Some(SharedSlotWaiter {
            slots: self,
            set: Arc::clone(set),
            head: Arc::clone(&queue.head),
        })
    }

    /// Whether a request waits for this one of a claim's slots: later ones wait behind it.
    #[must_use]
    pub fn has_queue(&self, claim: &SlotClaim, which: usize) -> bool {
        let set = claim.wants.get(which).map(|want| &want.name);
        set.is_some_and(|set| self.queues.lock().contains_key(set))
    }
}

impl Drop for SharedSlotGuard {
    fn drop(&mut self) {
        if self.slots.ledger.lock().give(self.id) {
            connection::wake(self.slots.store.id);
        }
    }
}

static TAKE: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::of(CLOCK, &[include_str!("places/take.lua")]));

static KEEP: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::of(CLOCK, &[include_str!("places/keep.lua")]));

/// A slot that is not renewed for so many milliseconds is free.
const LEASE: u64 = 8_000;

/// In place of [`LEASE`], for slots that are free at once.
const RELEASE: u64 = 0;

/// What one script updates: in a cluster every set may lie elsewhere.
fn batches<'p>(
    connection: &RedisConnection,
    slots: &'p [SlotRef],
) -> std::slice::Chunks<'p, SlotRef> {
    slots.chunks(if connection.is_cluster() { 1 } else { BATCH })
}

/// How long after the last update a slot is renewed: most are released before. Until it expires there is time to try again
/// more than once.
const RENEW: Duration = Duration::from_secs(3);

/// How long a server may take over an update.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(1);

/// How many slots one update names; other clients of the server wait meanwhile.
const BATCH: usize = 128;

/// The slots of one store.
#[derive(Debug, Default)]
struct SlotLedger {
    last: u64,
    /// When it was last checked what is due, and how often the store had come back then.
    checked: (Millis, u64),
    held: HashMap<u64, HeldSlot>,
    /// Not yet sent to the store.
    given: Vec<SlotRef>,
    /// By the name of their set: released, and not yet acknowledged by the store.
    leaving: HashMap<Arc<[u8]>, SmallVec<[u64; 4]>>,
}

#[derive(Debug)]
struct HeldSlot {
    claim: Arc<SlotClaim>,
    /// When the store was last updated about it.
    renewed: Millis,
}

/// A slot, and the name of the set it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SlotRef {
    set: Arc<[u8]>,
    id: u64,
}

impl SlotLedger {
    /// Holds the slots of a claim under a new number.
    fn hold(&mut self, claim: &Arc<SlotClaim>, renewed: Millis) -> u64 {
        self.last += 1;
        let claim = Arc::clone(claim);
        self.held.insert(self.last, HeldSlot { claim, renewed });
        self.last
    }

    /// Releases the slots of a number; false if they are not held.
    fn give(&mut self, id: u64) -> bool {
        let Some(held) = self.held.remove(&id) else {
            return false;
        };
        for want in &held.claim.wants {
            let set = Arc::clone(&want.name);
            self.leaving.entry(Arc::clone(&set)).or_default().push(id);
            self.given.push(SlotRef { set, id });
        }
        true
    }

    /// For each set those of its slots that are released and may still be taken in the store.
    fn leaving(&self, wants: &[SlotWant]) -> Vec<SmallVec<[u64; 4]>> {
        wants
            .iter()
            .map(|want| self.leaving.get(&want.name).cloned().unwrap_or_default())
            .collect()
    }

    /// The store has taken over their release, or cannot be reached.
    fn gone(&mut self, slots: &[SlotRef]) {
        for slot in slots {
            if let Some(leaving) = self.leaving.get_mut(&slot.set) {
                leaving.retain(|id| *id != slot.id);
                if leaving.is_empty() {
                    self.leaving.remove(&slot.set);
                }
            }
        }
    }

    /// The slots that were not renewed for so long; they count as renewed from `now` on.
    fn due(&mut self, now: Millis, after: Duration) -> Vec<SlotRef> {
        let mut due = Vec::new();
        for (id, held) in &mut self.held {
            if now.since(held.renewed) >= after || held.renewed == NEVER {
                held.renewed = now;
                due.extend(held.claim.wants.iter().map(|want| SlotRef {
                    set: Arc::clone(&want.name),
                    id: *id,
                }));
            }
        }
        due
    }

    /// The store could not be updated.
    fn not_renewed(&mut self, slots: &[SlotRef]) {
        for slot in slots {
            if let Some(held) = self.held.get_mut(&slot.id) {
                held.renewed = NEVER;
            }
        }
    }

    /// Whether it is time to check what is due: one thread of a gateway does so for all. A store that has come back since may
    /// have forgotten everything.
    fn is_time(&mut self, now: Millis, epoch: u64) -> bool {
        let (checked, before) = self.checked;
        if epoch != before {
            for held in self.held.values_mut() {
                held.renewed = NEVER;
            }
        } else if now.since(checked) < CHECK_INTERVAL {
            return false;
        }
        self.checked = (now, epoch);
        true
    }

    /// All slots that the store may know of.
    fn all(&mut self) -> Vec<SlotRef> {
        let mut all = self.due(Millis(u64::MAX), Duration::ZERO);
        for (set, ids) in &self.leaving {
            all.extend(ids.iter().map(|&id| SlotRef {
                set: Arc::clone(set),
                id,
            }));
        }
        all
    }
}

/// The shortest time between two checks of what is due.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// When a slot was renewed that the store may not know.
const NEVER: Millis = Millis(0);

#[derive(Debug)]
struct SlotQueue {
    waiting: u32,
    head: Arc<QueueHead>,
}

/// The head of a queue.
#[derive(Debug)]
struct QueueHead {
    // Fair: permits are given in the order they were asked for.
    turn: Semaphore,
    freed: Notify,
}

/// A request in a queue; leaves it when dropped.
#[derive(Debug)]
pub struct SharedSlotWaiter<'s> {
    slots: &'s SharedSlots,
    set: Arc<[u8]>,
    head: Arc<QueueHead>,
}

impl SharedSlotWaiter<'_> {
    /// Waits until this request is first, which holds for as long as the permit is kept.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.head.turn.acquire().await.ok()
    }

    /// Waits until it is worth asking again.
    pub async fn pause(&self) {
        // Gateways that wait for one key do not ask in step.
        let pause = RETRY_INTERVAL.mul_f64(0.75 + fastrand::f64() / 2.0);
        tokio::select! {
            () = self.head.freed.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

impl Drop for SharedSlotWaiter<'_> {
    fn drop(&mut self) {
        let mut queues = self.slots.queues.lock();
        if let Some(queue) = queues.get_mut(&self.set) {
            queue.waiting -= 1;
            if queue.waiting == 0 {
                queues.remove(&self.set);
            }
        }
    }
}

/// How often the first of a queue asks.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
