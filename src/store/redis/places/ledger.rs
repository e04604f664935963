//! Which places this gateway holds at a store, and which it has given back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::{SlotClaim, SlotWant};
use crate::clock::Millis;

/// The places of one store.
#[derive(Debug, Default)]
pub(super) struct SlotLedger {
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
    told: Millis,
}

/// A place, and the name of the set it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SlotRef {
    pub(super) set: Arc<[u8]>,
    pub(super) id: u64,
}

impl SlotLedger {
    /// Holds the places of a claim under a number that no other has.
    pub(super) fn hold(&mut self, claim: &Arc<SlotClaim>, told: Millis) -> u64 {
        self.last += 1;
        let claim = Arc::clone(claim);
        self.held.insert(self.last, HeldSlot { claim, told });
        self.last
    }

    /// Gives them back; false if they are not held.
    pub(super) fn give(&mut self, id: u64) -> bool {
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
    pub(super) fn forget(&mut self, id: u64) {
        self.held.remove(&id);
    }

    /// How many are held.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// For each set those of its places that may still be taken there, and are not.
    pub(super) fn leaving(&self, wants: &[SlotWant]) -> Vec<SmallVec<[u64; 4]>> {
        wants
            .iter()
            .map(|want| self.leaving.get(&want.name).cloned().unwrap_or_default())
            .collect()
    }

    /// Those that the store has to be told are given back.
    pub(super) fn given(&mut self) -> Vec<SlotRef> {
        std::mem::take(&mut self.given)
    }

    /// The store has heard that they are given back, or cannot be told.
    pub(super) fn gone(&mut self, places: &[SlotRef]) {
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
    pub(super) fn due(&mut self, now: Millis, after: Duration) -> Vec<SlotRef> {
        let mut due = Vec::new();
        for (id, held) in &mut self.held {
            if now.since(held.told) >= after || held.told == NEVER {
                held.told = now;
                due.extend(held.claim.wants.iter().map(|want| SlotRef {
                    set: Arc::clone(&want.name),
                    id: *id,
                }));
            }
        }
        due
    }

    /// The store could not be told.
    pub(super) fn not_told(&mut self, places: &[SlotRef]) {
        for place in places {
            if let Some(held) = self.held.get_mut(&place.id) {
                held.told = NEVER;
            }
        }
    }

    /// Whether it is time to look what is due: one of a gateway's threads does for all. A store that has come back since may
    /// have forgotten everything.
    pub(super) fn is_time(&mut self, now: Millis, epoch: u64) -> bool {
        let (looked, before) = self.looked;
        if epoch != before {
            for held in self.held.values_mut() {
                held.told = NEVER;
            }
        } else if now.since(looked) < LOOK {
            return false;
        }
        self.looked = (now, epoch);
        true
    }

    /// All that the store may know of.
    pub(super) fn all(&mut self) -> Vec<SlotRef> {
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
