//! The order in which the keys of a full table leave, kept lazily: what the trees say is a lower bound.

use crate::clock::Millis;
use crate::store::lowest::MinTree;
use crate::store::table::Table;
use crate::store::work;

#[derive(Debug)]
pub(super) struct EvictionOrder {
    /// The time that [`EvictionOrder::drained_at`] counts from, in milliseconds.
    base: Millis,
    /// The key of a slot is not drained earlier.
    pub(super) drained_at: Box<[u32]>,
    pub(super) drained: MinTree,
    /// The stamp of a slot's key is not lower.
    pub(super) stamps: Box<[u32]>,
    /// Of the slots with a stamp of a key that came once.
    once: MinTree,
    /// And of those with a stamp of a key that has come back.
    again: MinTree,
}

impl EvictionOrder {
    pub(super) fn new<V>(
        base: Millis,
        table: &Table<V, u16>,
        asked: &[u32],
        drained_at: impl Fn(&V) -> Millis,
    ) -> Box<Self> {
        let slots = table.len();
        work::count(slots);
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

    pub(super) fn set_drained(&mut self, slot: usize, at: u32) {
        self.drained_at[slot] = at;
        self.drained.update(slot, |slot| self.drained_at[slot]);
    }

    pub(super) fn set_stamp(&mut self, slot: usize, stamp: u32) {
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
    pub(super) fn first_once(&mut self, stamps: &[u32]) -> Option<usize> {
        loop {
            work::count(1);
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
    pub(super) fn first_again(&mut self, stamps: &[u32]) -> Option<usize> {
        loop {
            work::count(1);
            let slot = self.again.first();
            match self.stamps[slot] {
                bound if !has_come_back(bound) => return None,
                bound if bound == stamps[slot] => return Some(slot),
                _ => self.set_stamp(slot, stamps[slot]),
            }
        }
    }

    /// Whether the present can be told from the future: for 24 days.
    pub(super) fn reaches(&self, now: Millis) -> bool {
        self.since_base(now) < u32::MAX / 2
    }

    pub(super) fn since_base(&self, at: Millis) -> u32 {
        since(self.base, at)
    }

    pub(super) fn memory(&self) -> usize {
        let trees = self.drained.memory() + self.once.memory() + self.again.memory();
        let numbers = size_of_val(&*self.drained_at) + size_of_val(&*self.stamps);
        size_of::<Self>() + trees + numbers
    }
}

/// Whether this is the stamp of a key that has come back.
pub(super) fn has_come_back(stamp: u32) -> bool {
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
pub(super) const AGAIN: u32 = 1;
