//! Keys and what is remembered of them, in bounded memory: drained keys leave first, then the one asked for longest ago.
//!
//! Asking for a key writes one number: the reading of a clock that ticks with every question. Only a full table keeps its
//! keys in order, in two trees, by when they are drained and by when they were asked for. Both are kept lazily: either
//! moment only moves later, so what a tree says is a lower bound, and its lowest is looked at anew before it leaves. Hence
//! in a table of `n` keys none leaves, unless it is drained, before `n - 1` others were asked for after it.

use super::key::{Key, Packed, Seeds};
use super::lowest::Lowest;
use super::table::{LARGEST, Table};
use super::work;
use crate::clock::Millis;

// In this order, what is only read, where the table is, comes first, and can stay in the caches of all threads.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Lru<V> {
    table: Table<V, u16>,
    /// The clock, and behind it what it read when each slot's key was last asked for. Empty until a key comes.
    asked: Box<[u32]>,
    /// Made when the table is full.
    order: Option<Box<Order>>,
}

#[derive(Debug)]
struct Order {
    /// The time that [`Order::drained`] counts from, in milliseconds.
    base: Millis,
    /// The key of a slot is not drained earlier.
    drained: Lowest,
    /// The key of a slot was not last asked for earlier.
    asked: Lowest,
}

impl<V> Lru<V> {
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
        self.touch(slot);
        Some(self.table.value_mut(slot))
    }

    /// Remembers a key that is not there yet, and gives what had to go for it.
    pub(super) fn insert(
        &mut self,
        key: &Key,
        value: V,
        now: Millis,
        seeds: &Seeds,
        drained_at: impl Fn(&V) -> Millis,
    ) -> Option<V> {
        if !self.table.is_full() {
            let slot = self.add(key, value, seeds);
            self.touch(slot);
            return None;
        }
        let slot = match self.drained(now, &drained_at) {
            Some(drained) => drained,
            None => self.asked_longest_ago(&drained_at).0,
        };
        self.touch(slot);
        Some(self.replace(slot, key, value, seeds, drained_at))
    }

    /// Remembers a key that is not there yet and that another table asked for at this [`age`], unless there are only
    /// keys that were asked for later.
    pub(super) fn inherit(
        &mut self,
        key: &Key,
        value: V,
        age: u32,
        seeds: &Seeds,
        drained_at: impl Fn(&V) -> Millis,
    ) {
        if !self.table.is_full() {
            let slot = self.add(key, value, seeds);
            self.asked[1 + slot] = age;
            return;
        }
        let (slot, oldest) = self.asked_longest_ago(&drained_at);
        if oldest < age {
            self.asked[1 + slot] = age;
            self.replace(slot, key, value, seeds, drained_at);
        }
    }

    pub(super) fn forget(&mut self, key: &Key, seeds: &Seeds) -> bool {
        let Some(slot) = self.table.slot(key) else {
            return false;
        };
        self.table.remove(key, slot, seeds);
        // The last key has moved into its slot.
        self.asked[1 + slot] = self.asked[1 + self.table.len()];
        self.order = None;
        true
    }

    /// Gives everything away, what was asked for longest ago first, and has no room any more.
    pub(super) fn empty_out(&mut self) -> impl Iterator<Item = (Packed, V)> + use<V> {
        self.order = None;
        let asked = std::mem::take(&mut self.asked);
        let entries = self.table.empty_out();
        let mut entries: Vec<_> = asked.into_iter().skip(1).zip(entries).collect();
        entries.sort_unstable_by_key(|(asked, _)| *asked);
        entries.into_iter().map(|(_, entry)| entry)
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
        let order = self.order.as_deref().map_or(0, Order::memory);
        self.table.memory() + size_of_val(&*self.asked) + order
    }

    #[inline]
    fn touch(&mut self, slot: usize) {
        let [clock, asked @ ..] = &mut *self.asked else {
            return;
        };
        *clock += 1;
        asked[slot] = *clock;
        if *clock == u32::MAX {
            self.renumber();
        }
    }

    /// Sets the clock back and keeps the order: it goes round after four billion questions.
    #[cold]
    fn renumber(&mut self) {
        let [clock, asked @ ..] = &mut *self.asked else {
            return;
        };
        let mut slots: Vec<usize> = (0..self.table.len()).collect();
        slots.sort_unstable_by_key(|slot| asked[*slot]);
        for (slot, number) in slots.into_iter().zip(1..) {
            asked[slot] = number;
        }
        *clock = START;
        self.order = None;
    }

    /// Adds a key to a table that is not full; its slot.
    fn add(&mut self, key: &Key, value: V, seeds: &Seeds) -> usize {
        let slot = self.table.insert(key, value, seeds);
        if 1 + slot >= self.asked.len() {
            let mut asked = std::mem::take(&mut self.asked).into_vec();
            let (length, before) = (1 + self.table.capacity(), asked.len());
            asked.reserve_exact(length - before);
            asked.resize(length, 0);
            if before == 0 {
                asked[0] = START;
            }
            self.asked = asked.into();
        }
        slot
    }

    /// Gives a slot of a full table to another key, which was asked for when the slot says.
    fn replace(
        &mut self,
        slot: usize,
        key: &Key,
        value: V,
        seeds: &Seeds,
        drained_at: impl Fn(&V) -> Millis,
    ) -> V {
        // What the trees say of the slot is a lower bound still, unless the new key is drained earlier.
        if let Some(order) = &mut self.order {
            let drained = order.since_base(drained_at(&value));
            if drained < order.drained.number(slot) {
                order.drained.set(slot, drained);
            }
        }
        self.table.replace(slot, key, value, seeds)
    }

    /// The slot of a key that is drained.
    fn drained(&mut self, now: Millis, drained_at: impl Fn(&V) -> Millis) -> Option<usize> {
        if self.order.as_ref().is_some_and(|order| !order.reaches(now)) {
            self.order = None;
        }
        let order = self
            .order
            .get_or_insert_with(|| Order::new(now, &self.table, &self.asked, &drained_at));
        let moment = order.since_base(now);
        loop {
            work::count(1);
            let (slot, bound) = order.drained.first();
            if bound > moment {
                return None;
            }
            let at = drained_at(self.table.value(slot));
            if at <= now {
                return Some(slot);
            }
            // Later than this moment, also where the base is later than both: every slot is looked at once.
            let bound = order.since_base(at).max(moment + 1);
            order.drained.set(slot, bound);
        }
    }

    /// The slot of the key that was asked for longest ago, and when.
    fn asked_longest_ago(&mut self, drained_at: impl Fn(&V) -> Millis) -> (usize, u32) {
        let order = self.order.get_or_insert_with(|| {
            Order::new(Millis::default(), &self.table, &self.asked, drained_at)
        });
        loop {
            work::count(1);
            let (slot, bound) = order.asked.first();
            let asked = self.asked[1 + slot];
            if asked <= bound {
                return (slot, asked);
            }
            order.asked.set(slot, asked);
        }
    }
}

impl Order {
    fn new<V>(
        base: Millis,
        table: &Table<V, u16>,
        asked: &[u32],
        drained_at: impl Fn(&V) -> Millis,
    ) -> Box<Self> {
        work::count(table.len());
        let drained = table.values().map(|value| since(base, drained_at(value)));
        Box::new(Self {
            base,
            drained: Lowest::new(drained.collect()),
            asked: Lowest::new(asked[1..=table.len()].into()),
        })
    }

    /// Whether the present can be told from the future: for 24 days.
    fn reaches(&self, now: Millis) -> bool {
        self.since_base(now) < u32::MAX / 2
    }

    fn since_base(&self, at: Millis) -> u32 {
        since(self.base, at)
    }

    fn memory(&self) -> usize {
        size_of::<Self>() + self.drained.memory() + self.asked.memory()
    }
}

/// When a key was asked for that is the `rank`th of `all` of another table, those asked for longest ago first: tables of
/// one zone are asked alike, so this tells which of two of their keys was asked for earlier.
pub(super) fn age(rank: usize, all: usize) -> u32 {
    let age = (rank + 1).saturating_mul(START as usize) / all.max(1);
    u32::try_from(age).map_or(START, |age| age.min(START))
}

fn since(base: Millis, at: Millis) -> u32 {
    u32::try_from(at.0.saturating_sub(base.0)).unwrap_or(u32::MAX)
}

/// What the clock reads at first. Whatever is inherited is older.
const START: u32 = 1 << 16;
const _: () = assert!(LARGEST <= START as usize);

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> Key {
        Seeds::default().key(&number.to_be_bytes())
    }

    fn insert(lru: &mut Lru<u32>, number: u32) -> Option<u32> {
        let never = |_: &u32| Millis(u64::MAX);
        lru.insert(&key(number), number, Millis(0), &Seeds::default(), never)
    }

    /// It takes four billion questions; whoever sends those must not have keys forgotten by it.
    #[test]
    fn the_order_outlives_the_clock() {
        let mut lru = Lru::new(8);
        for number in 0..8 {
            insert(&mut lru, number);
        }
        assert_eq!(insert(&mut lru, 8), Some(0));
        lru.asked[0] = u32::MAX - 3;
        for number in [3, 1, 4, 7] {
            assert_eq!(lru.ask(&key(number)), Some(&mut { number }));
        }
        let gone: Vec<_> = (100..108).map(|new| insert(&mut lru, new)).collect();
        let order = [2, 5, 6, 8, 3, 1, 4, 7];
        assert_eq!(gone, order.map(Some));
    }

    #[test]
    fn what_is_inherited_is_older_than_what_is_asked_for() {
        let never = |_: &u32| Millis(u64::MAX);
        let seeds = Seeds::default();
        let mut lru = Lru::new(4);
        insert(&mut lru, 0);
        // Two tables of three keys each, oldest first, for which three places are left.
        for first in [10, 20] {
            for (rank, number) in (first..first + 3).enumerate() {
                lru.inherit(&key(number), number, age(rank, 3), &seeds, never);
            }
        }
        let mut kept: Vec<_> = lru.values().copied().collect();
        kept.sort_unstable();
        assert_eq!(kept[0], 0);
        assert!(kept.contains(&12) && kept.contains(&22), "{kept:?}");
    }
}
