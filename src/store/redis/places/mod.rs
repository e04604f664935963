//! Places of a `limit_conn` that gateways share.
//!
//! A key is a sorted set of the places that are taken, each with the moment at which it is taken for lost. A gateway
//! speaks for its own before that; a place that nobody speaks for any more, because a gateway died or its word was
//! lost on the way, is free after [`LEASE`]. Every place has a name, so all that is said of one may be said twice: no
//! answer has to be known for sure, and nothing that goes wrong is wrong for longer than that.

mod keep;
mod ledger;
mod line;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, RedisError, Value};

pub use self::line::SharedSlotWaiter;

use self::ledger::SlotLedger;
use self::line::SlotQueues;
use super::link::RedisConnection;
use super::script::{CLOCK, LuaScript};
use super::{SharedStore, StoreDown, aside, name};
use crate::clock::Millis;

/// The places of a store as this gateway knows them.
#[derive(Debug, Default)]
pub(super) struct SharedSlots {
    ledger: Mutex<SlotLedger>,
    lines: SlotQueues,
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
    store: Arc<SharedStore>,
    id: u64,
}

impl SlotClaim {
    /// Adds a place for a key of a zone, of which there may be `limit`, in a store with this prefix.
    pub fn add(&mut self, prefix: &str, zone: &str, key: &[u8], limit: u32) {
        let mut name = Vec::with_capacity(64);
        name::append(&mut name, prefix, zone, key);
        // The same key may belong to a `limit_req` elsewhere, and is something else there.
        name.extend_from_slice(b":places");
        let name = name.into();
        self.wants.push(SlotWant { name, limit });
    }
}

impl SharedStore {
    /// Takes all places of a claim, or says which of them is not to be had.
    ///
    /// # Errors
    /// When no answer comes in time, or none can.
    pub async fn take(
        self: &Arc<Self>,
        claim: &Arc<SlotClaim>,
        now: Millis,
    ) -> Result<Result<SharedSlotGuard, usize>, StoreDown> {
        let mut link = self.link()?;
        // From here on it is given back, whatever becomes of the question and of who asks.
        let lease = self.hold(claim, now);
        let asking = self.question(claim, lease.id, &mut link);
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(
            match self.in_time(asking, now).await.map_err(|_| StoreDown)? {
                None => Ok(lease),
                Some(full) => {
                    if !link.is_cluster() {
                        lease.was_never();
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
    pub fn places(&self) -> usize {
        self.places.ledger.lock().held()
    }

    /// What one of so many gateways holds a key to while it counts alone.
    #[must_use]
    pub fn part_of_places(&self, limit: u32) -> u32 {
        (limit / self.fleet_size().max(1)).max(1)
    }

    fn hold(self: &Arc<Self>, claim: &Arc<SlotClaim>, now: Millis) -> SharedSlotGuard {
        let id = self.places.ledger.lock().hold(claim, now);
        let store = Arc::clone(self);
        SharedSlotGuard { store, id }
    }

    /// Asks where the sets are: at one server for all at once, in a cluster one by one.
    async fn question(
        &self,
        claim: &SlotClaim,
        id: u64,
        link: &mut RedisConnection,
    ) -> Result<Option<usize>, RedisError> {
        let size = match link.is_cluster() {
            true => 1,
            false => claim.wants.len().max(1),
        };
        for (index, together) in claim.wants.chunks(size).enumerate() {
            let gone = self.places.ledger.lock().leaving(together);
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
            let full = match TAKE.perform(link, write).await? {
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
        format!("{}:{id:x}", self.gateway)
    }
}

impl SharedSlotGuard {
    /// The store has not given it.
    fn was_never(self) {
        self.store.places.ledger.lock().forget(self.id);
    }
}

impl Drop for SharedSlotGuard {
    fn drop(&mut self) {
        if self.store.places.ledger.lock().give(self.id) {
            aside::wake(self.store.id);
        }
    }
}

static TAKE: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::of(CLOCK, &[include_str!("take.lua")]));

static KEEP: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::of(CLOCK, &[include_str!("keep.lua")]));

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// After so long without a word of its gateway a place is free.
const LEASE: Duration = Duration::from_secs(8);
