//! The part of a zone that one lock guards, and the order in which it forgets.
//!
//! Nothing is kept in order while there is room. Only a full shard makes a heap of its keys by when
//! they will be drained, and keeps it lazily: charging a key moves that moment later and does not touch
//! the heap, so what the heap says is a lower bound. The smallest is looked at anew before it goes; if it
//! was charged since, it is put back where it belongs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::{Counted, Receipt};
use crate::clock::Millis;
use crate::config::plan::{Cost, CountRefused};
use crate::store::Counts;
use crate::store::algorithm::{Algorithm, Outcome, Spent};
use crate::store::key::{Key, Seeds};
use crate::store::table::{LARGEST, Table};
use crate::store::work;

// In this order, the half that every charge writes lies beside the lock, and the half that is only read, where the
// table is, can stay in the caches of all threads.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Shard<A: Algorithm> {
    table: Table<A::State>,
    /// Every slot once, when there is anything in it at all.
    order: BinaryHeap<Reverse<Due>>,
    counts: Counts,
}

/// How room was made for a new key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// By forgetting one that was not drained yet.
    Evicted,
    /// There was some, or a drained one made it.
    Found,
}

/// From when on the key in a slot is drained, at the earliest; both packed in one word, the time above.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Due(u64);

impl Due {
    fn new(at: Millis, slot: usize) -> Self {
        Self((at.0.min(u64::MAX >> SLOT_BITS) << SLOT_BITS) | slot as u64)
    }

    fn slot(self) -> usize {
        usize::try_from(self.0 & ((1 << SLOT_BITS) - 1)).unwrap_or_default()
    }
}

impl<A: Algorithm> Shard<A> {
    pub(super) fn new(bound: usize) -> Self {
        Self {
            table: Table::new(bound),
            order: BinaryHeap::new(),
            counts: Counts::default(),
        }
    }

    pub(super) fn state(&self, key: &Key) -> Option<&A::State> {
        self.table.slot(key).map(|slot| self.table.value(slot))
    }

    /// Decides about a request of a key that is known, charges it unless it is refused, and counts.
    #[inline]
    pub(super) fn charge(
        &mut self,
        key: &Key,
        now: Millis,
        cost: Cost,
        terms: &A,
        refused: CountRefused,
    ) -> Option<(Outcome, Receipt)> {
        let state = self.state_mut(key)?;
        let (outcome, spent) = terms.charge(state, now, cost);
        if refused == CountRefused::Yes && matches!(outcome, Outcome::Refuse { .. }) {
            terms.count_refused(state, now, cost);
        }
        Some((outcome, self.count(&outcome, spent)))
    }

    pub(super) fn state_mut(&mut self, key: &Key) -> Option<&mut A::State> {
        let slot = self.table.slot(key)?;
        Some(self.table.value_mut(slot))
    }

    /// Remembers a key that is not there yet.
    pub(super) fn insert(
        &mut self,
        key: &Key,
        state: A::State,
        now: Millis,
        slowest: &A,
        seeds: &Seeds,
    ) -> Room {
        if !self.table.is_full() {
            self.table.insert(key, state, seeds);
            return Room::Found;
        }
        let Some(slot) = self.first_to_drain(slowest) else {
            return Room::Found;
        };
        let room = if slowest.drained_at(self.table.value(slot)) <= now {
            Room::Found
        } else {
            Room::Evicted
        };
        self.table.replace(slot, key, state, seeds);
        // Its slot's place in the heap is now too early, which is what a lower bound may be.
        room
    }

    pub(super) fn forget(&mut self, key: &Key, seeds: &Seeds) -> bool {
        let Some(slot) = self.table.slot(key) else {
            return false;
        };
        self.table.remove(key, slot, seeds);
        // Another key may have moved into its slot; the heap is made again when the shard is full again.
        self.order = BinaryHeap::new();
        true
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn count(&mut self, outcome: &Outcome, spent: Spent) -> Receipt {
        let counted = match outcome {
            Outcome::Delay { .. } => Counted::Delay,
            Outcome::Pass { .. } => Counted::Pass,
            Outcome::Refuse { .. } => Counted::Refuse,
        };
        *self.counter(counted) += 1;
        Receipt { counted, spent }
    }

    pub(super) fn uncount(&mut self, receipt: Receipt) {
        let counter = self.counter(receipt.counted);
        *counter = counter.saturating_sub(1);
    }

    pub(super) fn count_refusal(&mut self) {
        self.counts.refuse += 1;
    }

    /// What it takes from the machine, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.table.memory()
            + self.order.capacity() * size_of::<Reverse<Due>>()
            + self.table.values().map(A::heap).sum::<usize>()
    }

    fn counter(&mut self, counted: Counted) -> &mut u64 {
        match counted {
            Counted::Delay => &mut self.counts.delay,
            Counted::Pass => &mut self.counts.pass,
            Counted::Refuse => &mut self.counts.refuse,
        }
    }

    /// The slot of the key that is the first to be drained.
    fn first_to_drain(&mut self, slowest: &A) -> Option<usize> {
        if self.order.is_empty() {
            self.order = self
                .table
                .values()
                .enumerate()
                .map(|(slot, state)| Reverse(Due::new(slowest.drained_at(state), slot)))
                .collect();
            work::count(self.order.len());
        }
        loop {
            work::count(1);
            let mut first = self.order.peek_mut()?;
            let slot = first.0.slot();
            let due = Due::new(slowest.drained_at(self.table.value(slot)), slot);
            if due <= first.0 {
                return Some(slot);
            }
            // Sinks to its place when the borrow ends.
            *first = Reverse(due);
            drop::<PeekMut<'_, _>>(first);
        }
    }
}

/// Enough for every slot of a table.
const SLOT_BITS: u32 = 12;
const _: () = assert!(LARGEST <= 1 << SLOT_BITS);
