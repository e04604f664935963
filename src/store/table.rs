//! Bounded tables, and the shards that a zone divides its keys among.
//!
//! A [`Table`] keeps its values in a plain vector, and an index of slots points into it. So a slot can be stored elsewhere, the
//! index is small, and the memory is known beforehand: the vector grows to exactly its bound, the index never past the
//! size at which it can be cleaned up in place. Both grow as keys come; with at most [`MAX_KEYS`] of them, the slowest insert
//! copies or rehashes those and no more.
//!
//! An [`EvictingTable`] also knows which key expires first. Only a full one makes a heap of its keys, and keeps it lazily: a
//! changed value may expire later and does not touch the heap, so the heap holds lower bounds. The smallest is checked
//! again before its key is evicted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::{Arc, OnceLock};

use hashbrown::HashTable;
use parking_lot::{Mutex, MutexGuard};

use super::key::{self, Key, PackedKey};
use crate::clock::Millis;
use crate::telemetry::RateLimitedLog;

/// What one key of two words costs in all, at most: a zone of `size` bytes holds `size / BYTES_PER_KEY` of them. The cost
/// of other keys depends on the state of their algorithm.
pub const BYTES_PER_KEY: usize = 64;

/// The verdicts of a zone, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ZoneCounts {
    /// Requests that passed at once.
    pub pass: u64,
    /// Requests that were delayed and then passed.
    pub delay: u64,
    /// Requests that were refused.
    pub refuse: u64,
}

impl std::ops::AddAssign for ZoneCounts {
    fn add_assign(&mut self, other: Self) {
        self.pass += other.pass;
        self.delay += other.delay;
        self.refuse += other.refuse;
    }
}

/// A zone's keys, divided among shards by their hashes, each behind its own lock.
#[derive(Debug)]
pub(super) struct Shards<T> {
    pub(super) layout: ShardLayout,
    shards: Box<[ShardLock<T>]>,
    /// How often there was no room for a key, or only by evicting one that was still needed.
    pub(super) overflows: RateLimitedLog,
    /// Where the keys have moved to.
    resized: OnceLock<Arc<Self>>,
}

/// A shard whose keys can move to a zone of another size.
pub(super) trait Shard {
    /// What moves with a key.
    type Entry;

    /// Whether its keys have moved.
    fn is_moved_out(&self) -> bool;

    /// Takes out all keys for good.
    fn move_out(&mut self) -> impl Iterator<Item = (PackedKey, Self::Entry)>;

    /// Takes over a key from another shard.
    fn move_in(&mut self, key: &Key, entry: Self::Entry);

    fn counts(&mut self) -> &mut ZoneCounts;
}

impl<T> Shards<T> {
    /// Shards of this layout; `shard` makes one for so many keys.
    pub(super) fn new(layout: ShardLayout, shard: impl Fn(usize) -> T) -> Self {
        Self {
            layout,
            shards: (0..layout.tables)
                .map(|_| ShardLock::new(shard(layout.keys)))
                .collect(),
            overflows: RateLimitedLog::default(),
            resized: OnceLock::new(),
        }
    }

    /// How many keys there is room for.
    pub(super) fn capacity(&self) -> usize {
        self.layout.tables * self.layout.keys
    }

    /// The shard of a key.
    #[inline]
    pub(super) fn shard(&self, key: &Key) -> MutexGuard<'_, T> {
        self.shards[self.layout.table(key)].lock()
    }

    /// All shards, each locked while it is looked at.
    pub(super) fn iter(&self) -> impl Iterator<Item = MutexGuard<'_, T>> {
        self.shards.iter().map(ShardLock::lock)
    }
}

impl<T: Shard> Shards<T> {
    /// The shard of a key, also where the key has moved.
    #[inline]
    pub(super) fn lock(&self, key: &Key) -> MutexGuard<'_, T> {
        let shard = self.shard(key);
        if shard.is_moved_out() {
            drop(shard);
            return self.lock_moved(key);
        }
        shard
    }

    #[cold]
    fn lock_moved(&self, key: &Key) -> MutexGuard<'_, T> {
        let resized = self.resized.get();
        resized
            .expect("keys move only after `resized` was set")
            .lock(key)
    }

    pub(super) fn counts(&self) -> ZoneCounts {
        let mut sum = ZoneCounts::default();
        for mut shard in self.iter() {
            sum += *shard.counts();
        }
        sum
    }

    /// The shards that the keys are in now.
    pub(super) fn current(self: &Arc<Self>) -> &Arc<Self> {
        match self.resized.get() {
            Some(resized) => resized.current(),
            None => self,
        }
    }

    /// Moves all keys, one shard at a time. Requests that use these shards are led to the others.
    pub(super) fn move_to(&self, resized: Self) -> Arc<Self> {
        resized.overflows.add(self.overflows.total());
        // Before the first key moves: a request that does not find it here looks there.
        let resized = self.resized.get_or_init(|| Arc::new(resized));
        for (number, shard) in self.shards.iter().enumerate() {
            let mut shard = shard.lock();
            for (packed, entry) in shard.move_out() {
                let key = Key::from(packed);
                resized.lock(&key).move_in(&key, entry);
            }
            let counts = std::mem::take(shard.counts());
            let heir = &resized.shards[number % resized.shards.len()];
            *heir.lock().counts() += counts;
        }
        Arc::clone(resized)
    }
}

/// How a zone's memory is divided: the number of tables, and the keys that each has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ShardLayout {
    pub(super) tables: usize,
    pub(super) keys: usize,
}

impl ShardLayout {
    /// The layout of a zone of `size` bytes, with `each` bytes per key.
    pub(super) fn of(size: usize, each: usize) -> Self {
        let keys = (size / each).max(1);
        let tables = keys.div_ceil(MAX_KEYS).next_power_of_two();
        // The overhead of a table matters only beside few large keys.
        let overhead = if each > BYTES_PER_KEY {
            TABLE_OVERHEAD
        } else {
            0
        };
        Self {
            tables,
            keys: (size / tables).saturating_sub(overhead).max(each) / each,
        }
    }

    /// The table of a key.
    // By the bits of the hash that the tables use last: they take their place from the lowest and a tag from the highest
    // seven.
    pub(super) fn table(self, key: &Key) -> usize {
        usize::try_from(key.hash >> 32).unwrap_or_default() & (self.tables - 1)
    }
}

/// A lock that is held for no longer than a lookup takes. A thread that finds it taken spins first: to sleep and be woken takes
/// twenty times as long as the usual wait.
// Two cache lines of its own: otherwise threads at neighbouring locks would contend for one line.
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
        self.lock_contended()
    }

    #[cold]
    fn lock_contended(&self) -> MutexGuard<'_, T> {
        for _ in 0..SPINS {
            // Read before trying: a try takes the cache line away from the thread that holds the lock.
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

/// Some microseconds. A thread that holds the lock for longer was suspended by the system.
const SPINS: u32 = 100;

/// A bounded map whose index stores slots as `S`.
#[derive(Debug)]
pub(super) struct Table<V, S = u32> {
    index: HashTable<S>,
    entries: Vec<TableSlot<V>>,
    bound: usize,
}

// Aligned so that no entry spans two cache lines: threads that share a zone pass these lines to each other.
#[derive(Debug)]
#[repr(align(32))]
struct TableSlot<V> {
    key: PackedKey,
    value: V,
}

/// A slot in the width that an index stores it in.
pub(super) trait SlotIndex: Copy {
    fn from_slot(slot: usize) -> Self;
    fn slot(self) -> usize;
}

/// For tables of at most [`MAX_KEYS`] keys.
impl SlotIndex for u16 {
    fn from_slot(slot: usize) -> Self {
        Self::try_from(slot).expect("a table holds at most MAX_KEYS keys")
    }

    fn slot(self) -> usize {
        self.into()
    }
}

/// For tables whose bound may grow.
impl SlotIndex for u32 {
    fn from_slot(slot: usize) -> Self {
        Self::try_from(slot).expect("no table grows to 2^32 keys")
    }

    fn slot(self) -> usize {
        self as usize
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

    /// The slot of a key, looked for first where it was last found.
    pub(super) fn slot_by_hint(&self, key: &Key) -> Option<usize> {
        match self.entries.get(key.slot as usize) {
            Some(entry) if entry.key == key.packed => Some(key.slot as usize),
            _ => self.slot(key),
        }
    }

    /// The slot of a key.
    pub(super) fn slot(&self, key: &Key) -> Option<usize> {
        self.index
            .find(key.hash, |at| self.entries[at.slot()].key == key.packed)
            .map(|at| at.slot())
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

    /// Takes out all entries and leaves no room for others.
    pub(super) fn move_out(&mut self) -> impl Iterator<Item = (PackedKey, V)> + use<V, S> {
        let moved = std::mem::replace(self, Self::new(0));
        moved
            .entries
            .into_iter()
            .map(|entry| (entry.key, entry.value))
    }

    /// Whether [`Table::move_out`] was called.
    pub(super) fn is_moved_out(&self) -> bool {
        self.bound == 0
    }

    /// Makes room for one more key, whatever the bound was.
    pub(super) fn grow_bound(&mut self) {
        self.bound = self.bound.max(self.entries.len() + 1);
    }

    /// Adds a new key to a table that is not full, and returns its slot.
    pub(super) fn insert(&mut self, key: &Key, value: V) -> usize {
        debug_assert!(!self.is_full());
        let length = self.entries.len();
        if length == self.entries.capacity() {
            // By doubling, but exactly to the bound in the end: doubling alone may end at twice the bound.
            let target = (length * 2).clamp(MIN_CAPACITY, self.bound.max(MIN_CAPACITY));
            self.entries.reserve_exact(target - length);
            key::count_steps(length);
        }
        self.entries.push(TableSlot {
            key: key.packed,
            value,
        });
        self.index_slot(key, length);
        length
    }

    /// Gives a slot to a new key, and returns the value that was in it.
    pub(super) fn replace(&mut self, slot: usize, key: &Key, value: V) -> V {
        self.unindex_slot(slot, self.entries[slot].key.hash());
        let entry = TableSlot {
            key: key.packed,
            value,
        };
        let before = std::mem::replace(&mut self.entries[slot], entry);
        self.index_slot(key, slot);
        before.value
    }

    /// Removes the key in a slot. The entry of the last slot moves into it.
    pub(super) fn remove(&mut self, key: &Key, slot: usize) -> V {
        self.unindex_slot(slot, key.hash);
        let last = self.entries.len() - 1;
        if slot != last {
            let hash = self.entries[last].key.hash();
            if let Some(index) = self.index.find_mut(hash, |at| at.slot() == last) {
                *index = S::from_slot(slot);
            }
        }
        self.entries.swap_remove(slot).value
    }

    /// Removes all values but those that `keep` holds for.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&mut V) -> bool) {
        // From the end: the entry that moves into a freed slot was seen before.
        for slot in (0..self.entries.len()).rev() {
            if !keep(&mut self.entries[slot].value) {
                self.remove(&Key::from(self.entries[slot].key), slot);
            }
        }
    }

    /// How many keys fit before the vector grows.
    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// The memory it uses, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.index.allocation_size() + self.entries.capacity() * size_of::<TableSlot<V>>()
    }

    fn index_slot(&mut self, key: &Key, slot: usize) {
        let entries = &self.entries;
        self.index
            .insert_unique(key.hash, S::from_slot(slot), |at| {
                entries[at.slot()].key.hash()
            });
    }

    fn unindex_slot(&mut self, slot: usize, hash: u64) {
        if let Ok(index) = self.index.find_entry(hash, |at| at.slot() == slot) {
            index.remove();
        }
    }
}

/// The most keys of one table.
///
/// Seven sixteenths of 4096: up to here an index of 4096 places is cleaned up in place instead of growing. The index of a full
/// table is at least half that full, which makes 7 to 14 bytes per key with slots of two bytes and 12 to 23 with slots of
/// four; with 32 for the entry, and 16 or 8 for its place in the eviction order, under [`BYTES_PER_KEY`].
pub(super) const MAX_KEYS: usize = 1792;

/// What a key with a value of this type costs in all, at most: 64 bytes for two words.
pub(super) const fn bytes_per_key<V>() -> usize {
    size_of::<TableSlot<V>>() + 32
}

const _: () = assert!(bytes_per_key::<[u64; 2]>() == BYTES_PER_KEY);

/// What a table costs besides its keys, in bytes: its lock and its counters.
const TABLE_OVERHEAD: usize = 512;

/// The fewest entries worth an allocation.
const MIN_CAPACITY: usize = 4;

#[derive(Debug)]
pub(super) struct EvictingTable<V> {
    table: Table<V>,
    /// Every slot once, or nothing.
    order: BinaryHeap<Reverse<EvictionKey>>,
}

/// The earliest moment at which the key in a slot expires; both packed into one word, the time above.
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

    /// Adds a new key, and returns the value that was evicted for it: the one that expires first, expired or not.
    pub(super) fn insert(
        &mut self,
        key: &Key,
        value: V,
        expires_at: impl Fn(&V) -> Millis,
    ) -> Option<V> {
        if !self.table.is_full() {
            self.table.insert(key, value);
            return None;
        }
        let slot = self.first_to_expire(&expires_at)?;
        // The slot's entry in the heap is too early now, as a lower bound may be.
        Some(self.table.replace(slot, key, value))
    }

    /// Adds a new key, unless the table is full of keys that expire after `now`.
    pub(super) fn insert_if_room(
        &mut self,
        key: &Key,
        value: V,
        now: Millis,
        expires_at: impl Fn(&V) -> Millis,
    ) -> bool {
        if self.table.is_full() {
            let first = self.first_to_expire(&expires_at);
            let expired = |slot: &usize| expires_at(self.table.value(*slot)) <= now;
            let Some(slot) = first.filter(expired) else {
                return false;
            };
            self.table.replace(slot, key, value);
        } else {
            self.table.insert(key, value);
        }
        true
    }

    pub(super) fn remove(&mut self, key: &Key) -> bool {
        let Some(slot) = self.table.slot(key) else {
            return false;
        };
        self.table.remove(key, slot);
        // Another key may have moved into its slot; a table that is full again makes the heap again.
        self.order = BinaryHeap::new();
        true
    }

    /// Removes all values but those that `keep` holds for. It may change when they expire.
    pub(super) fn retain(&mut self, keep: impl FnMut(&mut V) -> bool) {
        self.table.retain(keep);
        self.order = BinaryHeap::new();
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (PackedKey, &V)> {
        self.table.entries()
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// The slot of the key that expires first.
    fn first_to_expire(&mut self, expires_at: impl Fn(&V) -> Millis) -> Option<usize> {
        if self.order.is_empty() {
            self.order = self
                .table
                .values()
                .enumerate()
                .map(|(slot, value)| Reverse(EvictionKey::new(expires_at(value), slot)))
                .collect();
            key::count_steps(self.order.len());
        }
        loop {
            key::count_steps(1);
            let mut first = self.order.peek_mut()?;
            let slot = first.0.slot();
            let expiry = EvictionKey::new(expires_at(self.table.value(slot)), slot);
            if expiry <= first.0 {
                return Some(slot);
            }
            // Sinks to its place when the borrow ends.
            *first = Reverse(expiry);
            drop::<PeekMut<'_, _>>(first);
        }
    }
}

/// Enough for every slot of a table.
const SLOT_BITS: u32 = 12;
const _: () = assert!(MAX_KEYS <= 1 << SLOT_BITS);

#[cfg(test)]
mod tests {

    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    impl<V> EvictingTable<V> {
        pub(in crate::store) fn memory(&self) -> usize {
            self.table.memory() + self.order.capacity() * size_of::<Reverse<EvictionKey>>()
        }
    }

    #[test]
    fn ten_megabytes_hold_a_key_per_64_bytes() {
        let layout = ShardLayout::of(10 << 20, BYTES_PER_KEY);
        assert_eq!(layout.tables * layout.keys, (10 << 20) / BYTES_PER_KEY);
        assert!(layout.keys <= MAX_KEYS);
    }

    #[test]
    fn the_smallest_zone_holds_one_key() {
        assert_eq!(
            ShardLayout::of(0, BYTES_PER_KEY),
            ShardLayout { tables: 1, keys: 1 }
        );
    }

    #[test]
    fn tables_stay_within_their_bound_for_every_zone_size() {
        // The last zone has 10 million keys.
        for size in (0..64 << 20).step_by(99_991).chain([640 << 20]) {
            let layout = ShardLayout::of(size, BYTES_PER_KEY);
            assert!(layout.keys <= MAX_KEYS);
            assert!(layout.tables * layout.keys * BYTES_PER_KEY <= size.max(BYTES_PER_KEY));
        }
    }

    proptest! {
        #[test]
        fn a_table_behaves_like_a_hash_map(steps in prop::collection::vec((0..40u8, 0..4u8, any::<u32>()), 0..400)) {
                let mut table = Table::<_, u16>::new(24);
            let mut model: HashMap<u8, u32> = HashMap::new();
            for (name, action, value) in steps {
                let key = Key::from_bytes(&[name]);
                match table.slot(&key) {
                    Some(slot) if action == 0 => {
                        prop_assert_eq!(Some(table.remove(&key, slot)), model.remove(&name));
                    }
                    Some(slot) => {
                        prop_assert_eq!(Some(table.value(slot)), model.get(&name));
                        *table.value_mut(slot) = value;
                        model.insert(name, value);
                    }
                    None if table.is_full() => {
                        prop_assert!(!model.contains_key(&name));
                        let victim = usize::from(action) % table.len();
                        let gone = (0..40).find(|name| table.slot(&Key::from_bytes(&[*name])) == Some(victim));
                        model.remove(&gone.unwrap());
                        table.replace(victim, &key, value);
                        model.insert(name, value);
                    }
                    None => {
                        prop_assert!(!model.contains_key(&name));
                        table.insert(&key, value);
                        model.insert(name, value);
                    }
                }
                prop_assert_eq!(table.len(), model.len());
            }
        }
    }
}
