//! Those of this gateway who wait for a place at a store, one line for each key.
//!
//! A store does not call anybody. So the first in line asks again, at once when a place of this gateway was given
//! back and after a moment in any case: another gateway may have given one. The others wait until they are first.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::SlotClaim;
use super::ledger::SlotRef;
use crate::store::redis::SharedStore;

/// The lines of a store.
#[derive(Debug, Default)]
pub(super) struct SlotQueues {
    lines: Mutex<HashMap<Arc<[u8]>, SlotQueue>>,
}

#[derive(Debug)]
struct SlotQueue {
    standing: u32,
    front: Arc<QueueHead>,
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
    lines: &'s SlotQueues,
    set: Arc<[u8]>,
    front: Arc<QueueHead>,
}

impl SharedStore {
    /// Joins the line for one of the places of a claim, unless `longest` stand in it.
    pub fn join_line(
        &self,
        claim: &SlotClaim,
        which: usize,
        longest: u32,
    ) -> Option<SharedSlotWaiter<'_>> {
        let set = &claim.wants.get(which)?.name;
        let lines = &self.places.lines;
        let mut all = lines.lines.lock();
        if all.get(set).map_or(0, |line| line.standing) >= longest {
            return None;
        }
        let line = all.entry(Arc::clone(set)).or_insert_with(|| SlotQueue {
            standing: 0,
            front: Arc::new(QueueHead {
                turn: Semaphore::new(1),
                freed: Notify::new(),
            }),
        });
        line.standing += 1;
        Some(SharedSlotWaiter {
            lines,
            set: Arc::clone(set),
            front: Arc::clone(&line.front),
        })
    }

    /// Whether somebody stands in line for this one of a claim's places: who comes later waits behind.
    #[must_use]
    pub fn has_line(&self, claim: &SlotClaim, which: usize) -> bool {
        let set = claim.wants.get(which).map(|want| &want.name);
        set.is_some_and(|set| self.places.lines.lines.lock().contains_key(set))
    }
}

impl SlotQueues {
    /// Places were given back.
    pub(super) fn wake(&self, places: &[SlotRef]) {
        let lines = self.lines.lock();
        if lines.is_empty() {
            return;
        }
        for place in places {
            if let Some(line) = lines.get(&place.set) {
                line.front.freed.notify_one();
            }
        }
    }
}

impl SharedSlotWaiter<'_> {
    /// Waits until nobody is ahead any more, which holds for as long as this is kept.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.front.turn.acquire().await.ok()
    }

    /// Waits until it is worth asking again.
    pub async fn pause(&self) {
        // Gateways that wait for one key do not ask in step.
        let pause = AGAIN.mul_f64(0.75 + fastrand::f64() / 2.0);
        tokio::select! {
            () = self.front.freed.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

impl Drop for SharedSlotWaiter<'_> {
    fn drop(&mut self) {
        let mut lines = self.lines.lines.lock();
        if let Some(line) = lines.get_mut(&self.set) {
            line.standing -= 1;
            if line.standing == 0 {
                lines.remove(&self.set);
            }
        }
    }
}

/// How often the first in line asks.
const AGAIN: Duration = Duration::from_millis(50);
