//! A segmented LRU in bounded memory: which key is evicted when a zone is full.
//!
//! Drained keys are evicted first. Then the least recently used of the keys that were used once (the probationary segment),
//! while these are at least half of all; otherwise the least recently used of all. So in a table of `n` keys no key that has
//! not drained is evicted before `n / 2` others were used after it. A key that was used twice (and so is protected) stays
//! however many others come once: to have it evicted, more than half of all keys have to come twice, too.
//!
//! Using a key writes one number, a stamp: a clock that ticks with every use, and the bit of its segment. Only a full
//! table keeps its keys in order, in trees, by when they drain and by their stamps. The trees are kept lazily: both only move
//! later, so a tree holds lower bounds, and its lowest is checked again before its key is evicted.

#[cfg(test)]
#[path = "tests/lru.rs"]
mod tests;

use super::key::{self, Key, PackedKey};
use super::table::{MAX_KEYS, SlotIndex, Table};
use crate::clock::Millis;

// In this order, what is only read, where the table is, comes first, and can stay in the caches of all threads.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SegmentedLru<V> {
    table: Table<V, u16>,
    /// The clock, the number of protected keys, and the stamp of each slot's key. Empty until a key comes.
    stamps: Box<[u32]>,
    /// Made when the table is full.
    order: Option<Box<EvictionOrder>>,
}

impl<V> SegmentedLru<V> {
    pub(super) fn new(bound: usize) -> Self {
        Self {
            table: Table::new(bound),
            stamps: Box::default(),
            order: None,
        }
    }

    /// The value of a key, without using it.
    pub(super) fn get(&self, key: &Key) -> Option<&V> {
        self.table.slot(key).map(|slot| self.table.value(slot))
    }

    /// The value of a key, which is thereby used.
    #[inline]
    pub(super) fn touch(&mut self, key: &Key) -> Option<&mut V> {
        let slot = self.table.slot(key)?;
        self.stamp_again(slot);
        Some(self.table.value_mut(slot))
    }

    /// Adds a new key, and returns the value that was evicted for it.
    pub(super) fn insert(
        &mut self,
        key: &Key,
        value: V,
        now: Millis,
        drained_at: impl Fn(&V) -> Millis,
    ) -> Option<V> {
        if !self.table.is_full() {
            let slot = self.add(key, value);
            self.stamp_new(slot);
            return None;
        }
        let slot = match self.first_drained(now, &drained_at) {
            Some(drained) => drained,
            None => self.first_evicted(&drained_at),
        };
        self.stamp_new(slot);
        Some(self.replace(slot, key, value, drained_at))
    }

    /// Adds a new key with the [`stamp`] it has from another table, unless the table is full of keys that were used later.
    pub(super) fn insert_stamped(
        &mut self,
        key: &Key,
        value: V,
        stamp: u32,
        drained_at: impl Fn(&V) -> Millis,
    ) {
        if !self.table.is_full() {
            let slot = self.add(key, value);
            self.set_stamp(slot, stamp);
            return;
        }
        let slot = self.first_evicted(&drained_at);
        if self.stamps[FIRST + slot] < stamp {
            self.set_stamp(slot, stamp);
            self.replace(slot, key, value, drained_at);
        }
    }

    pub(super) fn remove(&mut self, key: &Key) -> bool {
        let Some(slot) = self.table.slot(key) else {
            return false;
        };
        self.table.remove(key, slot);
        // The last key has moved into its slot.
        let last = std::mem::take(&mut self.stamps[FIRST + self.table.len()]);
        let removed = match slot == self.table.len() {
            true => last,
            false => std::mem::replace(&mut self.stamps[FIRST + slot], last),
        };
        self.stamps[1] -= removed & PROTECTED;
        self.order = None;
        true
    }

    /// Takes out all keys, each with its stamp for another table, and leaves no room for others.
    pub(super) fn move_out(&mut self) -> impl Iterator<Item = (PackedKey, (V, u32))> + use<V> {
        self.order = None;
        let stamps = std::mem::take(&mut self.stamps);
        let entries = self.table.move_out();
        let mut entries: Vec<_> = stamps.into_iter().skip(FIRST).zip(entries).collect();
        entries.sort_unstable_by_key(|(stamp, _)| *stamp);
        let all = entries.len();
        let ranked = entries.into_iter().enumerate();
        ranked.map(move |(rank, (before, (key, value)))| {
            (key, (value, stamp(rank, all) | (before & PROTECTED)))
        })
    }

    /// Whether [`SegmentedLru::move_out`] was called.
    #[inline]
    pub(super) fn is_moved_out(&self) -> bool {
        self.table.is_moved_out()
    }

    /// Drops the order, after the rate changed that keys drain by.
    pub(super) fn reset_order(&mut self) {
        self.order = None;
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.table.values()
    }

    /// The memory it uses, in bytes.
    pub(super) fn memory(&self) -> usize {
        let order = self.order.as_deref().map_or(0, EvictionOrder::memory);
        self.table.memory() + size_of_val(&*self.stamps) + order
    }

    /// Stamps a key that is used again.
    #[inline]
    fn stamp_again(&mut self, slot: usize) {
        let [clock, protected, stamps @ ..] = &mut *self.stamps else {
            return;
        };
        *clock += TICK;
        *protected += PROTECTED - (stamps[slot] & PROTECTED);
        stamps[slot] = *clock | PROTECTED;
        if *clock >= LAST {
            self.restart_clock();
        }
    }

    /// Stamps a key that is used for the first time.
    fn stamp_new(&mut self, slot: usize) {
        self.stamps[0] += TICK;
        self.set_stamp(slot, self.stamps[0]);
        if self.stamps[0] >= LAST {
            self.restart_clock();
        }
    }

    fn set_stamp(&mut self, slot: usize, stamp: u32) {
        let before = std::mem::replace(&mut self.stamps[FIRST + slot], stamp);
        self.stamps[1] = self.stamps[1] + (stamp & PROTECTED) - (before & PROTECTED);
    }

    /// Sets the clock back, after two billion uses, and keeps the order.
    #[cold]
    fn restart_clock(&mut self) {
        let [clock, _, stamps @ ..] = &mut *self.stamps else {
            return;
        };
        let mut slots: Vec<usize> = (0..self.table.len()).collect();
        slots.sort_unstable_by_key(|slot| stamps[*slot]);
        for (rank, slot) in slots.into_iter().enumerate() {
            stamps[slot] = stamp(rank, self.table.len()) | (stamps[slot] & PROTECTED);
        }
        *clock = START;
        self.order = None;
    }

    /// Adds a key to a table that is not full, and returns its slot.
    fn add(&mut self, key: &Key, value: V) -> usize {
        let slot = self.table.insert(key, value);
        if FIRST + slot >= self.stamps.len() {
            let mut stamps = std::mem::take(&mut self.stamps).into_vec();
            let (length, before) = (FIRST + self.table.capacity(), stamps.len());
            stamps.reserve_exact(length - before);
            stamps.resize(length, 0);
            if before == 0 {
                stamps[0] = START;
            }
            self.stamps = stamps.into();
        }
        slot
    }

    /// Gives a slot of a full table to another key, which has the stamp of the slot.
    fn replace(
        &mut self,
        slot: usize,
        key: &Key,
        value: V,
        drained_at: impl Fn(&V) -> Millis,
    ) -> V {
        // The bounds of the slot hold for the new key, too, unless it drains earlier or is in the other segment.
        if let Some(order) = &mut self.order {
            let drained = order.since_base(drained_at(&value));
            if drained < order.drained_at[slot] {
                order.set_drained(slot, drained);
            }
            let stamp = self.stamps[FIRST + slot];
            if segment(stamp) != segment(order.stamps[slot]) {
                order.set_stamp(slot, stamp);
            }
        }
        self.table.replace(slot, key, value)
    }

    /// The slot of a drained key.
    fn first_drained(&mut self, now: Millis, drained_at: impl Fn(&V) -> Millis) -> Option<usize> {
        if self.order.as_ref().is_some_and(|order| !order.reaches(now)) {
            self.order = None;
        }
        let order = self.order.get_or_insert_with(|| {
            EvictionOrder::new(now, &self.table, &self.stamps[FIRST..], &drained_at)
        });
        let moment = order.since_base(now);
        loop {
            key::count_steps(1);
            let slot = order.drained.first();
            if order.drained_at[slot] > moment {
                return None;
            }
            let at = drained_at(self.table.value(slot));
            if at <= now {
                return Some(slot);
            }
            // Later than this moment, also where the base is later than both: every slot is checked once.
            let bound = order.since_base(at).max(moment + 1);
            order.set_drained(slot, bound);
        }
    }

    /// The slot of the key that is evicted first when none is drained.
    fn first_evicted(&mut self, drained_at: impl Fn(&V) -> Millis) -> usize {
        let stamps = &self.stamps[FIRST..];
        let order = self.order.get_or_insert_with(|| {
            EvictionOrder::new(Millis::default(), &self.table, stamps, drained_at)
        });
        let probationary = order.first_of(0, stamps);
        if self.stamps[1] as usize <= self.table.len() / 2
            && let Some(slot) = probationary
        {
            return slot;
        }
        let protected = order.first_of(1, stamps);
        let both = probationary.into_iter().chain(protected);
        both.min_by_key(|slot| stamps[*slot]).unwrap_or_default()
    }
}

/// The stamp of a key that is the `rank`th of `all` in another table, by last use. The tables of a zone are used equally, so
/// these stamps tell which of two tables' keys was used earlier.
fn stamp(rank: usize, all: usize) -> u32 {
    let stamp = (rank + 1).saturating_mul(START as usize) / all.max(1);
    u32::try_from(stamp).map_or(START, |stamp| stamp.min(START)) & !PROTECTED
}

/// The segment of a stamp: 0 for probationary keys, 1 for protected ones.
fn segment(stamp: u32) -> usize {
    (stamp & PROTECTED) as usize
}

/// Set in the stamp of a key that was used twice.
const PROTECTED: u32 = 1;

/// Where stamps begin, after the clock and the number of protected keys.
const FIRST: usize = 2;

/// What a use adds to the clock.
const TICK: u32 = 2;

/// The first reading of the clock. Stamps from other tables are lower.
const START: u32 = 1 << 16;
const _: () = assert!(2 * MAX_KEYS <= START as usize);

/// Where the clock is set back. No stamp is as high as the number of a slot that is in the other segment.
const LAST: u32 = u32::MAX - 7;

/// The order in which the keys of a full table are evicted.
#[derive(Debug)]
struct EvictionOrder {
    /// The moment that [`EvictionOrder::drained_at`] counts from.
    base: Millis,
    /// The key of a slot does not drain earlier than this, in milliseconds.
    drained_at: Box<[u32]>,
    drained: MinTree,
    /// The stamp of a slot's key is not lower than this.
    stamps: Box<[u32]>,
    /// The slots of each segment.
    segments: [MinTree; 2],
}

impl EvictionOrder {
    fn new<V>(
        base: Millis,
        table: &Table<V, u16>,
        stamps: &[u32],
        drained_at: impl Fn(&V) -> Millis,
    ) -> Box<Self> {
        let slots = table.len();
        key::count_steps(slots);
        let drained: Box<[u32]> = table
            .values()
            .map(|value| since(base, drained_at(value)))
            .collect();
        let stamps: Box<[u32]> = stamps[..slots].into();
        Box::new(Self {
            base,
            drained: MinTree::new(slots, |slot| drained[slot]),
            drained_at: drained,
            segments: [0, 1].map(|of| MinTree::new(slots, |slot| number_in(of, stamps[slot]))),
            stamps,
        })
    }

    fn set_drained(&mut self, slot: usize, at: u32) {
        self.drained_at[slot] = at;
        self.drained.update(slot, |slot| self.drained_at[slot]);
    }

    fn set_stamp(&mut self, slot: usize, stamp: u32) {
        let before = std::mem::replace(&mut self.stamps[slot], stamp);
        for (of, tree) in self.segments.iter_mut().enumerate() {
            if of == segment(before) || of == segment(stamp) {
                tree.update(slot, |slot| number_in(of, self.stamps[slot]));
            }
        }
    }

    /// The slot of the least recently used key of a segment.
    // A key that has left the probationary segment may still be in its tree, but then the tree's first was used earlier.
    fn first_of(&mut self, of: usize, stamps: &[u32]) -> Option<usize> {
        loop {
            key::count_steps(1);
            let slot = self.segments[of].first();
            match self.stamps[slot] {
                bound if segment(bound) != of => return None,
                bound if bound == stamps[slot] => return Some(slot),
                _ => self.set_stamp(slot, stamps[slot]),
            }
        }
    }

    /// Whether past and future can be told apart at this moment: for 24 days after the base.
    fn reaches(&self, now: Millis) -> bool {
        self.since_base(now) < u32::MAX / 2
    }

    fn since_base(&self, at: Millis) -> u32 {
        since(self.base, at)
    }

    fn memory(&self) -> usize {
        let trees = self.segments.iter().chain([&self.drained]);
        let numbers = size_of_val(&*self.drained_at) + size_of_val(&*self.stamps);
        size_of::<Self>() + numbers + trees.map(MinTree::memory).sum::<usize>()
    }
}

/// The number of a slot with this stamp in the tree of a segment.
fn number_in(of: usize, stamp: u32) -> u32 {
    match segment(stamp) == of {
        true => stamp,
        false => u32::MAX,
    }
}

fn since(base: Millis, at: Millis) -> u32 {
    u32::try_from(at.0.saturating_sub(base.0)).unwrap_or(u32::MAX)
}

/// A tournament tree: finds the slot with the lowest number while single numbers change.
///
/// Every node holds the winner of the two below it, so a changed number costs a walk from its leaf to the root. The
/// numbers are stored elsewhere and given with each call.
// The leaves are the slots and are not stored: of `n` slots, node `n + slot` is the leaf of a slot.
#[derive(Debug)]
struct MinTree {
    /// The winner at each inner node; the root is 1, and 0 is not used.
    winners: Box<[u16]>,
}

impl MinTree {
    fn new(slots: usize, number: impl Fn(usize) -> u32) -> Self {
        let mut new = Self {
            winners: vec![0; slots].into(),
        };
        for node in (1..slots).rev() {
            let [left, right] = [2 * node, 2 * node + 1].map(|below| new.winner(below));
            let lower = match number(right) < number(left) {
                true => right,
                false => left,
            };
            new.winners[node] = SlotIndex::from_slot(lower);
        }
        new
    }

    /// The slot with the lowest number.
    fn first(&self) -> usize {
        self.winner(1)
    }

    /// Takes in the changed number of a slot.
    fn update(&mut self, slot: usize, number: impl Fn(usize) -> u32) {
        let (mut node, mut winner, mut lowest) = (self.winners.len() + slot, slot, number(slot));
        while node > 1 {
            let rival = self.winner(node ^ 1);
            let other = number(rival);
            if other < lowest {
                (winner, lowest) = (rival, other);
            }
            node /= 2;
            let before = std::mem::replace(&mut self.winners[node], SlotIndex::from_slot(winner));
            // Another slot won before and wins again: nothing changes further up.
            if before.slot() == winner && winner != slot {
                return;
            }
        }
    }

    fn memory(&self) -> usize {
        size_of_val(&*self.winners)
    }

    fn winner(&self, node: usize) -> usize {
        match node.checked_sub(self.winners.len()) {
            Some(slot) => slot,
            None => self.winners[node].slot(),
        }
    }
}
