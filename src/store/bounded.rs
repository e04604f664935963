//! Keys and what is remembered of them, in bounded memory, and the order in which they are forgotten.
//!
//! Nothing is kept in order while there is room. Only a full table makes a heap of its keys by when they could be
//! forgotten without anybody gaining by it, and keeps it lazily: changing what is remembered may move that moment later and does
//! not touch the heap, so what the heap says is a lower bound. The smallest is looked at anew before it goes; if it
//! has moved, it is put back where it belongs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::key::{HashSeeds, Key, PackedKey};
use super::table::{LARGEST, Table};
use super::work;
use crate::clock::Millis;

#[derive(Debug)]
pub(super) struct EvictingTable<V> {
    table: Table<V>,
    /// Every slot once, when there is anything in it at all.
    order: BinaryHeap<Reverse<EvictionKey>>,
}

/// From when on nobody needs the key in a slot, at the earliest; both packed in one word, the time above.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct EvictionKey(u64);

impl EvictionKey {
    fn new(at: Millis, slot: usize) -> Self {
        Self((at.0.min(u64::MAX >> SLOT_BITS) << SLOT_BITS) | slot as u64)
    }

    fn slot(self) -> usize {
        usize::try_from(self.0 & ((1 << SLOT_BITS) - 1)).unwrap_or_default()
    }
}

impl<V> EvictingTable<V> {
    pub(super) fn new(bound: usize) -> Self {
        Self {
            table: Table::new(bound),
            order: BinaryHeap::new(),
        }
    }

    pub(super) fn get(&self, key: &Key) -> Option<&V> {
        self.table.slot(key).map(|slot| self.table.value(slot))
    }

    pub(super) fn get_mut(&mut self, key: &Key) -> Option<&mut V> {
        let slot = self.table.slot(key)?;
        Some(self.table.value_mut(slot))
    }

    /// Remembers a key that is not there yet, and gives what had to go for it. Of all keys the one goes whose
    /// `needed_until` is the earliest, needed or not.
    pub(super) fn insert(
        &mut self,
        key: &Key,
        value: V,
        seeds: &HashSeeds,
        needed_until: impl Fn(&V) -> Millis,
    ) -> Option<V> {
        if !self.table.is_full() {
            self.table.insert(key, value, seeds);
            return None;
        }
        let slot = self.first_to_go(&needed_until)?;
        // Its slot's place in the heap is now too early, which is what a lower bound may be.
        Some(self.table.replace(slot, key, value, seeds))
    }

    /// Remembers a key that is not there yet, unless all keys there is room for are needed after `now`.
    pub(super) fn insert_unneeded(
        &mut self,
        key: &Key,
        value: V,
        now: Millis,
        seeds: &HashSeeds,
        needed_until: impl Fn(&V) -> Millis,
    ) -> bool {
        if self.table.is_full() {
            let first = self.first_to_go(&needed_until);
            let unneeded = |slot: &usize| needed_until(self.table.value(*slot)) <= now;
            let Some(slot) = first.filter(unneeded) else {
                return false;
            };
            self.table.replace(slot, key, value, seeds);
        } else {
            self.table.insert(key, value, seeds);
        }
        true
    }

    pub(super) fn forget(&mut self, key: &Key, seeds: &HashSeeds) -> bool {
        let Some(slot) = self.table.slot(key) else {
            return false;
        };
        self.table.remove(key, slot, seeds);
        // Another key may have moved into its slot; the heap is made again when the table is full again.
        self.order = BinaryHeap::new();
        true
    }

    /// Looks at every value, which may change when it is needed, and forgets those that are not to be kept.
    pub(super) fn retain(&mut self, seeds: &HashSeeds, keep: impl FnMut(&mut V) -> bool) {
        self.table.retain(seeds, keep);
        self.order = BinaryHeap::new();
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (PackedKey, &V)> {
        self.table.entries()
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// What it takes from the machine, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.table.memory() + self.order.capacity() * size_of::<Reverse<EvictionKey>>()
    }

    /// The slot of the key that is the first nobody needs.
    fn first_to_go(&mut self, needed_until: impl Fn(&V) -> Millis) -> Option<usize> {
        if self.order.is_empty() {
            self.order = self
                .table
                .values()
                .enumerate()
                .map(|(slot, value)| Reverse(EvictionKey::new(needed_until(value), slot)))
                .collect();
            work::count(self.order.len());
        }
        loop {
            work::count(1);
            let mut first = self.order.peek_mut()?;
            let slot = first.0.slot();
            let due = EvictionKey::new(needed_until(self.table.value(slot)), slot);
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
