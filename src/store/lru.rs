//! Keys and what is remembered of them, in bounded memory: drained keys leave first, then the one asked for longest ago of
//! those asked for only once, while these are at least half of all; otherwise the one asked for longest ago.
//!
//! So in a table of `n` keys none leaves, unless it is drained, before `n / 2` others were asked for after it. A key that
//! has come back stays however many others come once: to have it forgotten, more than half of all keys have to come back, too.
//!
//! Asking for a key writes one number, a stamp: the reading of a clock that ticks with every question, and whether the key
//! has come back. Only a full table keeps its keys in order, in trees, by when they are drained and by their stamps. These
//! are kept lazily: either moment only moves later, so what a tree says is a lower bound, and its lowest is looked at anew
//! before it leaves.
//!
//! The order in which the keys of a full table leave, kept lazily: what the trees say is a lower bound.

#[cfg(test)]
#[path = "tests/lru.rs"]
mod tests;

use super::key::{self, HashSeeds, Key, PackedKey};
use super::table::{LARGEST, MinTree, Table};
use crate::clock::Millis;

// In this order, what is only read, where the table is, comes first, and can stay in the caches of all threads.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SegmentedLru<V> {
    table: Table<V, u16>,
    /// The clock, how many keys have come back, and behind them the stamp of each slot's key. Empty until a key comes.
    asked: Box<[u32]>,
    /// Made when the table is full.
    order: Option<Box<EvictionOrder>>,
}

impl<V> SegmentedLru<V> {
    pub(super) fn new(bound: usize) -> Self {
        Self {
            table: Table::new(bound),
            asked: Box::default(),
            order: None,
        }
    }

    /// What is remembered of a key; this does not count as asking for it.
    pub(super) fn get(&self, key: &Key) -> Option<&V> {
        self.table.slot(key).map(|slot| self.table.value(slot))
    }

    /// Asks for a key.
    #[inline]
    pub(super) fn ask(&mut self, key: &Key) -> Option<&mut V> {
        let slot = self.table.slot(key)?;
        self.come_back(slot);
        Some(self.table.value_mut(slot))
    }

    /// Remembers a key that is not there yet, and gives what had to go for it.
    pub(super) fn insert(
        &mut self,
        key: &Key,
        value: V,
        now: Millis,
        seeds: &HashSeeds,
        drained_at: impl Fn(&V) -> Millis,
    ) -> Option<V> {
        if !self.table.is_full() {
            let slot = self.add(key, value, seeds);
            self.come(slot);
            return None;
        }
        let slot = match self.drained(now, &drained_at) {
            Some(drained) => drained,
            None => self.first_to_leave(&drained_at),
        };
        self.come(slot);
        Some(self.replace(slot, key, value, seeds, drained_at))
    }

    /// Remembers a key that is not there yet and has this [`stamp`] from another table, unless there are only keys that
    /// were asked for later.
    pub(super) fn inherit(
        &mut self,
        key: &Key,
        value: V,
        stamp: u32,
        seeds: &HashSeeds,
        drained_at: impl Fn(&V) -> Millis,
    ) {
        if !self.table.is_full() {
            let slot = self.add(key, value, seeds);
            self.set_stamp(slot, stamp);
            return;
        }
        let slot = self.first_to_leave(&drained_at);
        if self.asked[FIRST + slot] < stamp {
            self.set_stamp(slot, stamp);
            self.replace(slot, key, value, seeds, drained_at);
        }
    }

    pub(super) fn forget(&mut self, key: &Key, seeds: &HashSeeds) -> bool {
        let Some(slot) = self.table.slot(key) else {
            return false;
        };
        self.table.remove(key, slot, seeds);
        // The last key has moved into its slot.
        let last = std::mem::take(&mut self.asked[FIRST + self.table.len()]);
        let gone = match slot == self.table.len() {
            true => last,
            false => std::mem::replace(&mut self.asked[FIRST + slot], last),
        };
        self.asked[1] -= gone & AGAIN;
        self.order = None;
        true
    }

    /// Gives everything away, each with its stamp for another table, and has no room any more.
    pub(super) fn empty_out(&mut self) -> impl Iterator<Item = (PackedKey, V, u32)> + use<V> {
        self.order = None;
        let asked = std::mem::take(&mut self.asked);
        let entries = self.table.empty_out();
        let mut entries: Vec<_> = asked.into_iter().skip(FIRST).zip(entries).collect();
        entries.sort_unstable_by_key(|(asked, _)| *asked);
        let all = entries.len();
        let ranked = entries.into_iter().enumerate();
        ranked.map(move |(rank, (asked, (key, value)))| {
            (key, value, stamp(rank, all) | (asked & AGAIN))
        })
    }

    /// Whether it was emptied out for good.
    #[inline]
    pub(super) fn is_gone(&self) -> bool {
        self.table.is_gone()
    }

    /// When keys are drained is now counted otherwise.
    pub(super) fn reorder(&mut self) {
        self.order = None;
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.table.values()
    }

    /// What it takes from the machine, in bytes.
    pub(super) fn memory(&self) -> usize {
        let order = self.order.as_deref().map_or(0, EvictionOrder::memory);
        self.table.memory() + size_of_val(&*self.asked) + order
    }

    /// The key of a slot is asked for once more.
    #[inline]
    fn come_back(&mut self, slot: usize) {
        let [clock, again, asked @ ..] = &mut *self.asked else {
            return;
        };
        *clock += TICK;
        *again += AGAIN - (asked[slot] & AGAIN);
        asked[slot] = *clock | AGAIN;
        if *clock >= LAST {
            self.renumber();
        }
    }

    /// A new key comes into a slot.
    fn come(&mut self, slot: usize) {
        self.asked[0] += TICK;
        self.set_stamp(slot, self.asked[0]);
        if self.asked[0] >= LAST {
            self.renumber();
        }
    }

    fn set_stamp(&mut self, slot: usize, stamp: u32) {
        let before = std::mem::replace(&mut self.asked[FIRST + slot], stamp);
        self.asked[1] = self.asked[1] + (stamp & AGAIN) - (before & AGAIN);
    }

    /// Sets the clock back and keeps the order: it goes round after two billion questions.
    #[cold]
    fn renumber(&mut self) {
        let [clock, _, asked @ ..] = &mut *self.asked else {
            return;
        };
        let mut slots: Vec<usize> = (0..self.table.len()).collect();
        slots.sort_unstable_by_key(|slot| asked[*slot]);
        for (rank, slot) in slots.into_iter().enumerate() {
            asked[slot] = stamp(rank, self.table.len()) | (asked[slot] & AGAIN);
        }
        *clock = START;
        self.order = None;
    }

    /// Adds a key to a table that is not full; its slot.
    fn add(&mut self, key: &Key, value: V, seeds: &HashSeeds) -> usize {
        let slot = self.table.insert(key, value, seeds);
        if FIRST + slot >= self.asked.len() {
            let mut asked = std::mem::take(&mut self.asked).into_vec();
            let (length, before) = (FIRST + self.table.capacity(), asked.len());
            asked.reserve_exact(length - before);
            asked.resize(length, 0);
            if before == 0 {
                asked[0] = START;
            }
            self.asked = asked.into();
        }
        slot
    }

    /// Gives a slot of a full table to another key, which has the stamp of the slot.
    fn replace(
        &mut self,
        slot: usize,
        key: &Key,
        value: V,
        seeds: &HashSeeds,
        drained_at: impl Fn(&V) -> Millis,
    ) -> V {
        // What the trees say of the slot is a lower bound still, unless the new key is drained earlier or stands in the
        // other tree.
        if let Some(order) = &mut self.order {
            let drained = order.since_base(drained_at(&value));
            if drained < order.drained_at[slot] {
                order.set_drained(slot, drained);
            }
            let stamp = self.asked[FIRST + slot];
            if has_come_back(stamp) != has_come_back(order.stamps[slot]) {
                order.set_stamp(slot, stamp);
            }
        }
        self.table.replace(slot, key, value, seeds)
    }

    /// The slot of a key that is drained.
    fn drained(&mut self, now: Millis, drained_at: impl Fn(&V) -> Millis) -> Option<usize> {
        if self.order.as_ref().is_some_and(|order| !order.reaches(now)) {
            self.order = None;
        }
        let order = self.order.get_or_insert_with(|| {
            EvictionOrder::new(now, &self.table, &self.asked[FIRST..], &drained_at)
        });
        let moment = order.since_base(now);
        loop {
            key::count(1);
            let slot = order.drained.first();
            if order.drained_at[slot] > moment {
                return None;
            }
            let at = drained_at(self.table.value(slot));
            if at <= now {
                return Some(slot);
            }
            // Later than this moment, also where the base is later than both: every slot is looked at once.
            let bound = order.since_base(at).max(moment + 1);
            order.set_drained(slot, bound);
        }
    }

    /// The slot of the key that leaves first, when none is drained.
    fn first_to_leave(&mut self, drained_at: impl Fn(&V) -> Millis) -> usize {
        let order = self.order.get_or_insert_with(|| {
            EvictionOrder::new(
                Millis::default(),
                &self.table,
                &self.asked[FIRST..],
                drained_at,
            )
        });
        let stamps = &self.asked[FIRST..];
        let again = self.asked[1] as usize;
        let once = order.first_once(stamps);
        if again <= self.table.len() / 2
            && let Some(once) = once
        {
            return once;
        }
        let again = order.first_again(stamps);
        let of_all = once
            .into_iter()
            .chain(again)
            .min_by_key(|slot| stamps[*slot]);
        of_all.unwrap_or_default()
    }
}

/// The stamp of a key that is the `rank`th of `all` of another table, those asked for longest ago first: tables of one zone
/// are asked alike, so this tells which of two of their keys was asked for earlier.
fn stamp(rank: usize, all: usize) -> u32 {
    let stamp = (rank + 1).saturating_mul(START as usize) / all.max(1);
    u32::try_from(stamp).map_or(START, |stamp| stamp.min(START)) & !AGAIN
}

/// Where stamps begin behind the clock and the count.
const FIRST: usize = 2;

/// What a question adds to the clock.
const TICK: u32 = 2;

/// What the clock reads at first. Whatever is inherited is older.
const START: u32 = 1 << 16;
const _: () = assert!(2 * LARGEST <= START as usize);

/// When the clock is set back. No stamp is as high as what stands for none in a tree.
const LAST: u32 = u32::MAX - 7;

#[derive(Debug)]
struct EvictionOrder {
    /// The time that [`EvictionOrder::drained_at`] counts from, in milliseconds.
    base: Millis,
    /// The key of a slot is not drained earlier.
    drained_at: Box<[u32]>,
    drained: MinTree,
    /// The stamp of a slot's key is not lower.
    stamps: Box<[u32]>,
    /// Of the slots with a stamp of a key that came once.
    once: MinTree,
    /// And of those with a stamp of a key that has come back.
    again: MinTree,
}

impl EvictionOrder {
    fn new<V>(
        base: Millis,
        table: &Table<V, u16>,
        asked: &[u32],
        drained_at: impl Fn(&V) -> Millis,
    ) -> Box<Self> {
        let slots = table.len();
        key::count(slots);
        let drained: Box<[u32]> = table
            .values()
            .map(|value| since(base, drained_at(value)))
            .collect();
        let stamps: Box<[u32]> = asked[..slots].into();
        Box::new(Self {
            base,
            drained: MinTree::new(slots, |slot| drained[slot]),
            drained_at: drained,
            once: MinTree::new(slots, |slot| once(stamps[slot])),
            again: MinTree::new(slots, |slot| again(stamps[slot])),
            stamps,
        })
    }

    fn set_drained(&mut self, slot: usize, at: u32) {
        self.drained_at[slot] = at;
        self.drained.update(slot, |slot| self.drained_at[slot]);
    }

    fn set_stamp(&mut self, slot: usize, stamp: u32) {
        let before = std::mem::replace(&mut self.stamps[slot], stamp);
        let moves = has_come_back(before) != has_come_back(stamp);
        if moves || !has_come_back(stamp) {
            self.once.update(slot, |slot| once(self.stamps[slot]));
        }
        if moves || has_come_back(stamp) {
            self.again.update(slot, |slot| again(self.stamps[slot]));
        }
    }

    /// The slot whose key was asked for longest ago of those that came once.
    fn first_once(&mut self, stamps: &[u32]) -> Option<usize> {
        loop {
            key::count(1);
            let slot = self.once.first();
            match self.stamps[slot] {
                bound if has_come_back(bound) => return None,
                bound if bound == stamps[slot] => return Some(slot),
                _ => self.set_stamp(slot, stamps[slot]),
            }
        }
    }

    /// And of those that have come back. One that the trees still take for a key that came once is none of them, but then
    /// the first of those is asked for longer ago.
    fn first_again(&mut self, stamps: &[u32]) -> Option<usize> {
        loop {
            key::count(1);
            let slot = self.again.first();
            match self.stamps[slot] {
                bound if !has_come_back(bound) => return None,
                bound if bound == stamps[slot] => return Some(slot),
                _ => self.set_stamp(slot, stamps[slot]),
            }
        }
    }

    /// Whether the present can be told from the future: for 24 days.
    fn reaches(&self, now: Millis) -> bool {
        self.since_base(now) < u32::MAX / 2
    }

    fn since_base(&self, at: Millis) -> u32 {
        since(self.base, at)
    }

    fn memory(&self) -> usize {
        let trees = self.drained.memory() + self.once.memory() + self.again.memory();
        let numbers = size_of_val(&*self.drained_at) + size_of_val(&*self.stamps);
        size_of::<Self>() + trees + numbers
    }
}

/// Whether this is the stamp of a key that has come back.
fn has_come_back(stamp: u32) -> bool {
    stamp & AGAIN != 0
}

/// The number of a slot in the tree of keys that came once.
fn once(stamp: u32) -> u32 {
    match has_come_back(stamp) {
        true => u32::MAX,
        false => stamp,
    }
}

/// And in the tree of those that have come back.
fn again(stamp: u32) -> u32 {
    match has_come_back(stamp) {
        true => stamp,
        false => u32::MAX,
    }
}

fn since(base: Millis, at: Millis) -> u32 {
    u32::try_from(at.0.saturating_sub(base.0)).unwrap_or(u32::MAX)
}

/// Set in the stamp of a key that has come back.
const AGAIN: u32 = 1;
