//! A bounded map from key to value: the part of a zone that one lock guards.
//!
//! Values stand in a plain vector and an index of slots points into it. So a value's slot can be
//! named elsewhere, the index is small, and memory is known beforehand: the vector grows to exactly its
//! bound, the index never past the size at which it can tidy itself up in place. Both grow as keys come;
//! with at most [`LARGEST`] of them, the slowest insert there is copies or rehashes those and no more.
//!
//! Keys and what is remembered of them, in bounded memory, and the order in which they are forgotten.
//!
//! Nothing is kept in order while there is room. Only a full table makes a heap of its keys by when they could be
//! forgotten without anybody gaining by it, and keeps it lazily: changing what is remembered may move that moment later and does
//! not touch the heap, so what the heap says is a lower bound. The smallest is looked at anew before it goes; if it
//! has moved, it is put back where it belongs.
//!
//! A lock that nobody holds for longer than a lookup takes.
//!
//! Who finds it taken looks again for a while: going to sleep and being woken takes twenty times as long as the wait.
//!
//! Which slot has the lowest number, when the numbers of single slots change.
//!
//! A tree of duels: every node knows the winner of the two below it. So changing one number costs a walk from its leaf to
//! the root. Slots are the leaves and are not stored: node `n + slot` is the leaf of a slot, where there are `n` of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use hashbrown::HashTable;
use parking_lot::{Mutex, MutexGuard};

use super::key::{HashSeeds, Key, PackedKey};
use super::{BYTES_PER_KEY, key};
use crate::clock::Millis;

/// A table that can name its slots in `S`.
#[derive(Debug)]
pub(super) struct Table<V, S = u32> {
    index: HashTable<S>,
    entries: Vec<TableSlot<V>>,
    bound: usize,
}

// Aligned so that none lies across two cache lines: threads that share a zone hand these to each other.
#[derive(Debug)]
#[repr(align(32))]
struct TableSlot<V> {
    key: PackedKey,
    value: V,
}

/// A slot in the width that an index keeps it in.
pub(super) trait SlotIndex: Copy {
    fn narrow(slot: usize) -> Self;
    fn wide(self) -> usize;
}

/// For tables of at most [`LARGEST`] keys.
impl SlotIndex for u16 {
    fn narrow(slot: usize) -> Self {
        Self::try_from(slot).expect("a table holds at most LARGEST keys")
    }

    fn wide(self) -> usize {
        self.into()
    }
}

/// For tables that may be stretched.
impl SlotIndex for u32 {
    fn narrow(slot: usize) -> Self {
        Self::try_from(slot).expect("no table is stretched to 2^32 keys")
    }

    fn wide(self) -> usize {
        self as usize
    }
}

/// How a zone's memory is divided: into so many tables, each with room for so many keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ShardLayout {
    pub(super) tables: usize,
    pub(super) keys: usize,
}

impl ShardLayout {
    /// For a zone of so many bytes, where a key takes `each`.
    pub(super) fn of(size: usize, each: usize) -> Self {
        let keys = (size / each).max(1);
        let tables = keys.div_ceil(LARGEST).next_power_of_two();
        // What a table takes for itself is nothing beside many small keys, and something beside few large ones.
        let spare = if each > BYTES_PER_KEY { TABLE } else { 0 };
        Self {
            tables,
            keys: (size / tables).saturating_sub(spare).max(each) / each,
        }
    }

    /// Which table a key belongs to.
    // Bits of the hash that the tables themselves look at last: they take their place from the lowest and
    // a tag from the highest seven.
    pub(super) fn table(self, key: &Key) -> usize {
        usize::try_from(key.hash >> 32).unwrap_or_default() & (self.tables - 1)
    }
}

impl<V, S: SlotIndex> Table<V, S> {
    pub(super) fn new(bound: usize) -> Self {
        Self {
            index: HashTable::new(),
            entries: Vec::new(),
            bound,
        }
    }

    /// The slot a key's value stands in, most likely where it last stood.
    pub(super) fn slot_again(&self, key: &Key) -> Option<usize> {
        match self.entries.get(key.slot as usize) {
            Some(entry) if entry.key == key.packed => Some(key.slot as usize),
            _ => self.slot(key),
        }
    }

    /// The slot a key's value stands in.
    pub(super) fn slot(&self, key: &Key) -> Option<usize> {
        self.index
            .find(key.hash, |slot| self.entries[slot.wide()].key == key.packed)
            .map(|slot| slot.wide())
    }

    pub(super) fn value(&self, slot: usize) -> &V {
        &self.entries[slot].value
    }

    pub(super) fn value_mut(&mut self, slot: usize) -> &mut V {
        &mut self.entries[slot].value
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().map(|entry| &entry.value)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (PackedKey, &V)> {
        self.entries.iter().map(|entry| (entry.key, &entry.value))
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= self.bound
    }

    /// Gives everything away and has no room any more.
    pub(super) fn empty_out(&mut self) -> impl Iterator<Item = (PackedKey, V)> + use<V, S> {
        let gone = std::mem::replace(self, Self::new(0));
        gone.entries
            .into_iter()
            .map(|entry| (entry.key, entry.value))
    }

    /// Whether it was emptied out for good.
    pub(super) fn is_gone(&self) -> bool {
        self.bound == 0
    }

    /// Makes room for one more, whatever the bound was.
    pub(super) fn stretch(&mut self) {
        self.bound = self.bound.max(self.entries.len() + 1);
    }

    /// Adds a key that is not there yet, only to a table that is not full; the slot it gets.
    pub(super) fn insert(&mut self, key: &Key, value: V, seeds: &HashSeeds) -> usize {
        debug_assert!(!self.is_full());
        let length = self.entries.len();
        if length == self.entries.capacity() {
            // By doubling, but exactly to the bound at last: doubling alone may end at twice of it.
            let target = (length * 2).clamp(SMALLEST, self.bound.max(SMALLEST));
            self.entries.reserve_exact(target - length);
            key::count(length);
        }
        self.entries.push(TableSlot {
            key: key.packed,
            value,
        });
        self.point(key, length, seeds);
        length
    }

    /// Gives a slot to a key that is not there yet, and takes out what was in it.
    pub(super) fn replace(&mut self, slot: usize, key: &Key, value: V, seeds: &HashSeeds) -> V {
        self.unpoint(slot, seeds.hash(self.entries[slot].key));
        let entry = TableSlot {
            key: key.packed,
            value,
        };
        let before = std::mem::replace(&mut self.entries[slot], entry);
        self.point(key, slot, seeds);
        before.value
    }

    /// Takes a key's value out of its slot. The last slot's value, if it was not that one, moves into it.
    pub(super) fn remove(&mut self, key: &Key, slot: usize, seeds: &HashSeeds) -> V {
        self.unpoint(slot, key.hash);
        let last = self.entries.len() - 1;
        if slot != last {
            let hash = seeds.hash(self.entries[last].key);
            if let Some(pointer) = self.index.find_mut(hash, |at| at.wide() == last) {
                *pointer = S::narrow(slot);
            }
        }
        self.entries.swap_remove(slot).value
    }

    /// Looks at every value and takes out those that are not to be kept.
    pub(super) fn retain(&mut self, seeds: &HashSeeds, mut keep: impl FnMut(&mut V) -> bool) {
        // From the end: what moves into a slot that was emptied has been looked at.
        for slot in (0..self.entries.len()).rev() {
            if !keep(&mut self.entries[slot].value) {
                let key = seeds.unpacked(self.entries[slot].key);
                self.remove(&key, slot, seeds);
            }
        }
    }

    /// How many keys fit before it takes more memory.
    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// What it takes from the machine, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.index.allocation_size() + self.entries.capacity() * size_of::<TableSlot<V>>()
    }

    fn point(&mut self, key: &Key, slot: usize, seeds: &HashSeeds) {
        let entries = &self.entries;
        self.index.insert_unique(key.hash, S::narrow(slot), |slot| {
            seeds.hash(entries[slot.wide()].key)
        });
    }

    fn unpoint(&mut self, slot: usize, hash: u64) {
        if let Ok(pointer) = self.index.find_entry(hash, |at| at.wide() == slot) {
            pointer.remove();
        }
    }
}

/// The most keys of one table.
///
/// Seven sixteenths of 4096: up to here an index of 4096 places makes room by sorting out what was removed
/// instead of growing. An index is at least half that full in a full table, which makes 7 to 14 bytes a key with slots
/// of two bytes and 12 to 23 with slots of four; with 32 for the entry, and 16 or 8 for its place in the order of
/// leaving, under [`BYTES_PER_KEY`].
pub(super) const LARGEST: usize = 1792;

/// What a key with a value of this type takes all in, at most: 64 bytes for two words.
pub(super) const fn bytes_per_key<V>() -> usize {
    size_of::<TableSlot<V>>() + 32
}

const _: () = assert!(bytes_per_key::<[u64; 2]>() == BYTES_PER_KEY);

/// What a table takes for itself, in bytes: its lock and its counters.
const TABLE: usize = 512;

/// The fewest places worth allocating.
const SMALLEST: usize = 4;

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
            key::count(self.order.len());
        }
        loop {
            key::count(1);
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

// Two cache lines of its own: threads on neighbouring locks would otherwise take turns on one.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct ShardLock<T>(Mutex<T>);

impl<T> ShardLock<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        if let Some(guard) = self.0.try_lock() {
            return guard;
        }
        self.lock_taken()
    }

    #[cold]
    fn lock_taken(&self) -> MutexGuard<'_, T> {
        for _ in 0..LOOKS {
            // Looked at before it is tried: trying takes the cache line away from who holds it.
            if !self.0.is_locked()
                && let Some(guard) = self.0.try_lock()
            {
                return guard;
            }
            std::hint::spin_loop();
        }
        self.0.lock()
    }
}

/// Some microseconds. Whoever holds the lock for longer was sent to sleep by the system.
const LOOKS: u32 = 100;

/// The winners among so many slots. Their numbers are kept elsewhere and given with each call.
#[derive(Debug)]
pub(super) struct MinTree {
    /// The slot that wins at each inner node; the root is 1, and nothing stands under 0.
    winners: Box<[u16]>,
}

impl MinTree {
    pub(super) fn new(slots: usize, number: impl Fn(usize) -> u32) -> Self {
        let mut new = Self {
            winners: vec![0; slots].into(),
        };
        for node in (1..slots).rev() {
            let [left, right] = [2 * node, 2 * node + 1].map(|below| new.winner(below));
            let lower = match number(right) < number(left) {
                true => right,
                false => left,
            };
            new.winners[node] = SlotIndex::narrow(lower);
        }
        new
    }

    /// The slot with the lowest number.
    pub(super) fn first(&self) -> usize {
        self.winner(1)
    }

    /// The number of one slot has changed.
    pub(super) fn update(&mut self, slot: usize, number: impl Fn(usize) -> u32) {
        let (mut node, mut winner, mut lowest) = (self.winners.len() + slot, slot, number(slot));
        while node > 1 {
            let rival = self.winner(node ^ 1);
            let other = number(rival);
            if other < lowest {
                (winner, lowest) = (rival, other);
            }
            node /= 2;
            let before = std::mem::replace(&mut self.winners[node], SlotIndex::narrow(winner));
            // Another slot has won before and wins again: nothing changes further up.
            if before.wide() == winner && winner != slot {
                return;
            }
        }
    }

    /// What it takes from the machine, in bytes.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.winners)
    }

    fn winner(&self, node: usize) -> usize {
        match node.checked_sub(self.winners.len()) {
            Some(slot) => slot,
            None => self.winners[node].wide(),
        }
    }
}

#[cfg(test)]
mod tests {

    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ten_megabytes_hold_the_keys_they_promise() {
        let division = ShardLayout::of(10 << 20, BYTES_PER_KEY);
        assert_eq!(division.tables * division.keys, (10 << 20) / BYTES_PER_KEY);
        assert!(division.keys <= LARGEST);
    }

    #[test]
    fn the_smallest_zone_still_holds_a_key() {
        assert_eq!(
            ShardLayout::of(0, BYTES_PER_KEY),
            ShardLayout { tables: 1, keys: 1 }
        );
    }

    #[test]
    fn tables_stay_in_their_bound_for_every_size_of_zone() {
        // The last is a zone of 10 million keys.
        for size in (0..64 << 20).step_by(99_991).chain([640 << 20]) {
            let division = ShardLayout::of(size, BYTES_PER_KEY);
            assert!(division.keys <= LARGEST);
            assert!(division.tables * division.keys * BYTES_PER_KEY <= size.max(BYTES_PER_KEY));
        }
    }

    proptest! {
        #[test]
        fn it_does_what_a_hash_map_does(steps in prop::collection::vec((0..40u8, 0..4u8, any::<u32>()), 0..400)) {
            let seeds = HashSeeds::default();
            let mut table = Table::<_, u16>::new(24);
            let mut model: HashMap<u8, u32> = HashMap::new();
            for (name, action, value) in steps {
                let key = seeds.key(&[name]);
                match table.slot(&key) {
                    Some(slot) if action == 0 => {
                        prop_assert_eq!(Some(table.remove(&key, slot, &seeds)), model.remove(&name));
                    }
                    Some(slot) => {
                        prop_assert_eq!(Some(table.value(slot)), model.get(&name));
                        *table.value_mut(slot) = value;
                        model.insert(name, value);
                    }
                    None if table.is_full() => {
                        prop_assert!(!model.contains_key(&name));
                        let victim = usize::from(action) % table.len();
                        let gone = (0..40).find(|name| table.slot(&seeds.key(&[*name])) == Some(victim));
                        model.remove(&gone.unwrap());
                        table.replace(victim, &key, value, &seeds);
                        model.insert(name, value);
                    }
                    None => {
                        prop_assert!(!model.contains_key(&name));
                        table.insert(&key, value, &seeds);
                        model.insert(name, value);
                    }
                }
                prop_assert_eq!(table.len(), model.len());
            }
        }
    }
}

#[cfg(test)]
mod lowest_tests {

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_finds_the_lowest_of_any_numbers(
            numbers in prop::collection::vec(0..50u32, 1..40),
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0..50u32), 0..60),
        ) {
            let mut model = numbers;
            let mut lowest = MinTree::new(model.len(), |slot| model[slot]);
            for (slot, number) in changes {
                let slot = slot.index(model.len());
                model[slot] = number;
                lowest.update(slot, |slot| model[slot]);
                prop_assert_eq!(model.iter().min(), Some(&model[lowest.first()]));
            }
        }
    }
}
