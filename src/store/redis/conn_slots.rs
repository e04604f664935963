//! Places of a `limit_conn` that gateways share.
//!
//! A key is a sorted set of the places that are taken, each with the moment at which it is taken for lost. A gateway
//! speaks for its own before that; a place that nobody speaks for any more, because a gateway died or its word was
//! lost on the way, is free after [`LEASE`]. Every place has a name, so all that is said of one may be said twice: no
//! answer has to be known for sure, and nothing that goes wrong is wrong for longer than that.
//!
//! What is said of places beside the requests: that they are given back, and that they are still held.
//!
//! Which places this gateway holds at a store, and which it has given back.
//!
//! Those of this gateway who wait for a place at a store, one line for each key.
//!
//! A store does not call anybody. So the first in line asks again, at once when a place of this gateway was given
//! back and after a moment in any case: another gateway may have given one. The others wait until they are first.

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
use super::script::{self, CLOCK, LuaScript};
use crate::clock::Millis;

/// The places of a store as this gateway knows them.
#[derive(Debug)]
pub struct SharedSlots {
    store: Arc<StoreHandle>,
    ledger: Mutex<SlotLedger>,
    queues: SlotQueues,
}

/// What one request needs at one store: a place in each of these.
#[derive(Debug, Default)]
pub struct SlotClaim {
    wants: Vec<SlotWant>,
}

#[derive(Debug)]
struct SlotWant {
    /// What the set is called.
    name: Arc<[u8]>,
    limit: u32,
}

/// The places of one request at one store, given back when dropped.
// Not `Clone`: the first of two to go would give them back.
#[derive(Debug)]
#[must_use = "places that are not held are given back"]
pub struct SharedSlotGuard {
    slots: Arc<SharedSlots>,
    id: u64,
}

impl SlotClaim {
    /// Adds a place for a key of a zone, of which there may be `limit`, in a store with this prefix.
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
            queues: SlotQueues::default(),
        }
    }

    /// Takes all places of a claim, or says which of them is not to be had.
    ///
    /// # Errors
    /// When no answer comes in time, or none can.
    pub async fn take(
        self: &Arc<Self>,
        claim: &Arc<SlotClaim>,
        now: Millis,
    ) -> Result<Result<SharedSlotGuard, usize>, StoreDown> {
        let mut connection = self.store.connection()?;
        // From here on it is given back, whatever becomes of the question and of who asks.
        let lease = self.hold(claim, now);
        let asking = self.query(claim, lease.id, &mut connection);
        self.store.asked.fetch_add(1, Ordering::Relaxed);
        Ok(
            match self
                .store
                .in_time(asking, now)
                .await
                .map_err(|_| StoreDown)?
            {
                None => Ok(lease),
                Some(full) => {
                    if !connection.is_cluster() {
                        lease.cancel();
                    }
                    Err(full)
                }
            },
        )
    }

    /// Holds places that were taken without asking, while the store was away; it hears of them when it is back.
    pub fn hold_anyway(self: &Arc<Self>, claim: &Arc<SlotClaim>) -> SharedSlotGuard {
        self.hold(claim, Millis(0))
    }

    /// How many requests of this gateway hold places in it.
    #[must_use]
    pub fn held(&self) -> usize {
        self.ledger.lock().held()
    }

    /// What one of so many gateways holds a key to while it counts alone.
    #[must_use]
    pub fn share_of(&self, limit: u32) -> u32 {
        (limit / self.store.fleet.size().max(1)).max(1)
    }

    fn hold(self: &Arc<Self>, claim: &Arc<SlotClaim>, now: Millis) -> SharedSlotGuard {
        let id = self.ledger.lock().hold(claim, now);
        let slots = Arc::clone(self);
        SharedSlotGuard { slots, id }
    }

    /// Asks where the sets are: at one server for all at once, in a cluster one by one.
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
                command.arg(millis(LEASE)).arg(self.place(id));
                for (want, gone) in together.iter().zip(&gone) {
                    command.arg(want.limit).arg(gone.len());
                    for id in gone {
                        command.arg(self.place(*id));
                    }
                }
            };
            let full = match TAKE.perform(connection, write).await? {
                Value::Int(full) => usize::try_from(full).ok(),
                _ => None,
            };
            match full.filter(|full| *full <= together.len()) {
                Some(0) => {}
                Some(full) => return Ok(Some(index * size + full - 1)),
                None => {
                    let kind = redis::ErrorKind::UnexpectedReturnType;
                    return Err((kind, "not an answer of ours").into());
                }
            }
        }
        Ok(None)
    }

    /// What a place of this gateway is called.
    fn place(&self, id: u64) -> String {
        format!("{}:{id:x}", self.store.gateway)
    }

    /// Says which places were given back.
    pub(super) fn release(self: &Arc<Self>, now: Millis, saying: &mut JoinSet<()>) {
        let given = self.ledger.lock().given();
        self.say(SlotUpdate::GivenBack, given, now, saying);
    }

    /// Speaks for those that are held and were not spoken of for long, or, to a store that may have forgotten them, for all.
    pub(super) fn renew(self: &Arc<Self>, now: Millis, saying: &mut JoinSet<()>) {
        let mut ledger = self.ledger.lock();
        if !ledger.is_time(now, self.store.epoch()) {
            return;
        }
        let due = ledger.due(now, RENEW);
        drop(ledger);
        self.say(SlotUpdate::Held, due, now, saying);
    }

    /// Gives everything back, for a gateway that is going.
    pub(super) async fn release_all(&self, connection: &mut RedisConnection) {
        let all = self.ledger.lock().all();
        for batch in batches(connection, &all) {
            if self
                .send_update(SlotUpdate::GivenBack, batch, connection)
                .await
                .is_err()
            {
                return;
            }
        }
    }

    fn say(
        self: &Arc<Self>,
        update: SlotUpdate,
        places: Vec<SlotRef>,
        now: Millis,
        saying: &mut JoinSet<()>,
    ) {
        if places.is_empty() {
            return;
        }
        let Ok(connection) = self.store.connection() else {
            return self.said(update, &places, false);
        };
        for batch in batches(&connection, &places) {
            let (slots, mut connection, batch) =
                (Arc::clone(self), connection.clone(), batch.to_vec());
            saying.spawn(async move {
                let sending =
                    tokio::time::timeout(HEARD, slots.send_update(update, &batch, &mut connection));
                let heard = match sending.await {
                    Ok(Ok(())) => true,
                    Ok(Err(error)) => {
                        slots.store.failed(&error, now);
                        false
                    }
                    Err(_) => false,
                };
                slots.said(update, &batch, heard);
            });
        }
    }

    /// It was said, and heard or not.
    fn said(&self, update: SlotUpdate, places: &[SlotRef], heard: bool) {
        match update {
            // Unheard, a place is free when its time is over.
            SlotUpdate::GivenBack => {
                self.ledger.lock().gone(places);
                self.queues.wake(places);
            }
            SlotUpdate::Held if heard => {}
            SlotUpdate::Held => self.ledger.lock().not_renewed(places),
        }
    }

    async fn send_update(
        &self,
        update: SlotUpdate,
        places: &[SlotRef],
        connection: &mut RedisConnection,
    ) -> Result<(), RedisError> {
        let lease = match update {
            SlotUpdate::GivenBack => Duration::ZERO,
            SlotUpdate::Held => LEASE,
        };
        let write = |command: &mut Cmd| {
            command.arg(places.len());
            for place in places {
                command.arg(&*place.set);
            }
            command.arg(millis(lease));
            for place in places {
                command.arg(self.place(place.id));
            }
        };
        KEEP.perform(connection, write).await.map(drop)
    }

    /// Joins the line for one of the places of a claim, unless `longest` stand in it.
    pub fn join_queue(
        &self,
        claim: &SlotClaim,
        which: usize,
        longest: u32,
    ) -> Option<SharedSlotWaiter<'_>> {
        let set = &claim.wants.get(which)?.name;
        let queues = &self.queues;
        let mut all = queues.queues.lock();
        if all.get(set).map_or(0, |queue| queue.waiting) >= longest {
            return None;
        }
        let queue = all.entry(Arc::clone(set)).or_insert_with(|| SlotQueue {
            waiting: 0,
            head: Arc::new(QueueHead {
                turn: Semaphore::new(1),
                freed: Notify::new(),
            }),
        });
        queue.waiting += 1;
        Some(SharedSlotWaiter {
            queues,
            set: Arc::clone(set),
            head: Arc::clone(&queue.head),
        })
    }

    /// Whether somebody stands in line for this one of a claim's places: who comes later waits behind.
    #[must_use]
    pub fn has_queue(&self, claim: &SlotClaim, which: usize) -> bool {
        let set = claim.wants.get(which).map(|want| &want.name);
        set.is_some_and(|set| self.queues.queues.lock().contains_key(set))
    }
}

impl SharedSlotGuard {
    /// The store has not given it.
    fn cancel(self) {
        self.slots.ledger.lock().forget(self.id);
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

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// After so long without a word of its gateway a place is free.
const LEASE: Duration = Duration::from_secs(8);

/// What is said of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotUpdate {
    GivenBack,
    Held,
}

/// What is said at once: in a cluster every set may lie elsewhere.
fn batches<'p>(
    connection: &RedisConnection,
    places: &'p [SlotRef],
) -> std::slice::Chunks<'p, SlotRef> {
    places.chunks(if connection.is_cluster() { 1 } else { BATCH })
}

/// A place is spoken for when this long nothing was said of it: most are given back before. Of the time that it is
/// kept without a word there is enough left to try again more than once.
const RENEW: Duration = Duration::from_secs(3);

/// How long a server may take to hear.
const HEARD: Duration = Duration::from_secs(1);

/// How many places are spoken of at once; others wait for the server meanwhile.
const BATCH: usize = 128;

/// The places of one store.
#[derive(Debug, Default)]
struct SlotLedger {
    last: u64,
    /// When it was last looked what is due, and how often the store had come back then.
    looked: (Millis, u64),
    held: HashMap<u64, HeldSlot>,
    /// Not yet told to the store.
    given: Vec<SlotRef>,
    /// By the name of their set: given back, and not known to have been heard of.
    leaving: HashMap<Arc<[u8]>, SmallVec<[u64; 4]>>,
}

#[derive(Debug)]
struct HeldSlot {
    claim: Arc<SlotClaim>,
    /// When the store last heard of it.
    renewed: Millis,
}

/// A place, and the name of the set it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SlotRef {
    set: Arc<[u8]>,
    id: u64,
}

impl SlotLedger {
    /// Holds the places of a claim under a number that no other has.
    fn hold(&mut self, claim: &Arc<SlotClaim>, renewed: Millis) -> u64 {
        self.last += 1;
        let claim = Arc::clone(claim);
        self.held.insert(self.last, HeldSlot { claim, renewed });
        self.last
    }

    /// Gives them back; false if they are not held.
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

    /// The store has never heard of them.
    fn forget(&mut self, id: u64) {
        self.held.remove(&id);
    }

    /// How many are held.
    fn held(&self) -> usize {
        self.held.len()
    }

    /// For each set those of its places that may still be taken there, and are not.
    fn leaving(&self, wants: &[SlotWant]) -> Vec<SmallVec<[u64; 4]>> {
        wants
            .iter()
            .map(|want| self.leaving.get(&want.name).cloned().unwrap_or_default())
            .collect()
    }

    /// Those that the store has to be told are given back.
    fn given(&mut self) -> Vec<SlotRef> {
        std::mem::take(&mut self.given)
    }

    /// The store has heard that they are given back, or cannot be told.
    fn gone(&mut self, places: &[SlotRef]) {
        for place in places {
            if let Some(leaving) = self.leaving.get_mut(&place.set) {
                leaving.retain(|id| *id != place.id);
                if leaving.is_empty() {
                    self.leaving.remove(&place.set);
                }
            }
        }
    }

    /// Those that the store has not heard of for so long; taken for told from `now` on.
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

    /// The store could not be told.
    fn not_renewed(&mut self, places: &[SlotRef]) {
        for place in places {
            if let Some(held) = self.held.get_mut(&place.id) {
                held.renewed = NEVER;
            }
        }
    }

    /// Whether it is time to look what is due: one of a gateway's threads does for all. A store that has come back since may
    /// have forgotten everything.
    fn is_time(&mut self, now: Millis, epoch: u64) -> bool {
        let (looked, before) = self.looked;
        if epoch != before {
            for held in self.held.values_mut() {
                held.renewed = NEVER;
            }
        } else if now.since(looked) < LOOK {
            return false;
        }
        self.looked = (now, epoch);
        true
    }

    /// All that the store may know of.
    fn all(&mut self) -> Vec<SlotRef> {
        let mut all = self.due(Millis(u64::MAX), Duration::ZERO);
        for (set, ids) in &self.leaving {
            let set = || Arc::clone(set);
            all.extend(ids.iter().map(|id| SlotRef {
                set: set(),
                id: *id,
            }));
        }
        all
    }
}

/// No look is worth while so soon after the last.
const LOOK: Duration = Duration::from_millis(500);

/// Of what a store has never heard.
const NEVER: Millis = Millis(0);

/// The lines of a store.
#[derive(Debug, Default)]
struct SlotQueues {
    queues: Mutex<HashMap<Arc<[u8]>, SlotQueue>>,
}

#[derive(Debug)]
struct SlotQueue {
    waiting: u32,
    head: Arc<QueueHead>,
}

/// The head of a line.
#[derive(Debug)]
struct QueueHead {
    // Fair: permits are given in the order they were asked for.
    turn: Semaphore,
    freed: Notify,
}

/// Somebody in line; leaves it when dropped.
#[derive(Debug)]
pub struct SharedSlotWaiter<'s> {
    queues: &'s SlotQueues,
    set: Arc<[u8]>,
    head: Arc<QueueHead>,
}

impl SlotQueues {
    /// Places were given back.
    fn wake(&self, places: &[SlotRef]) {
        let queues = self.queues.lock();
        if queues.is_empty() {
            return;
        }
        for place in places {
            if let Some(queue) = queues.get(&place.set) {
                queue.head.freed.notify_one();
            }
        }
    }
}

impl SharedSlotWaiter<'_> {
    /// Waits until nobody is ahead any more, which holds for as long as this is kept.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.head.turn.acquire().await.ok()
    }

    /// Waits until it is worth asking again.
    pub async fn pause(&self) {
        // Gateways that wait for one key do not ask in step.
        let pause = AGAIN.mul_f64(0.75 + fastrand::f64() / 2.0);
        tokio::select! {
            () = self.head.freed.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

impl Drop for SharedSlotWaiter<'_> {
    fn drop(&mut self) {
        let mut queues = self.queues.queues.lock();
        if let Some(queue) = queues.get_mut(&self.set) {
            queue.waiting -= 1;
            if queue.waiting == 0 {
                queues.remove(&self.set);
            }
        }
    }
}

/// How often the first in line asks.
const AGAIN: Duration = Duration::from_millis(50);
