//! The sliding window in blocks: one counter per block of `precision`, and the oldest block falls out as a whole.
//!
//! Counted are the current block and, besides it, as many whole blocks as make a window. What came within the last window is
//! therefore always counted, wherever in its block the current moment lies: no window ever holds more than the limit. The
//! price is that a request is forgotten up to one block late.

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::fixed_window::millis;
use super::moment::KeyTime;
use super::{Algorithm, KeyStatus, Spent, Verdict};
use crate::clock::Millis;
use crate::config::plan::{Cost, Excess};

/// The numbers a key is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// How many in any window.
    pub limit: Excess,
    /// How long it is.
    pub window: Duration,
    /// How long a block is.
    pub precision: Duration,
}

/// What is remembered of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRing {
    /// The number of the newest block since the clock began.
    newest: u64,
    /// All blocks together.
    total: u64,
    /// Each under its number, modulo how many there are.
    counts: Box<[u64]>,
}

/// What is left of a ring at some moment.
struct BlockView {
    moment: KeyTime,
    /// How many of its blocks have fallen out.
    gone: usize,
    total: u64,
}

impl BlockRing {
    /// Gives the newest block the number `block` after a jump of the clock, and each other block its age less one.
    // Where in its block the clock stood before the jump is not known. Blocks that kept their ages could fall out up to one
    // block too early.
    fn renumber(&mut self, block: u64) {
        let (newest, before) = (
            self.index(self.newest),
            self.index(self.newest.wrapping_sub(1)),
        );
        let moved = self.counts.get_mut(newest).map(std::mem::take);
        if let (Some(moved), Some(count)) = (moved, self.counts.get_mut(before)) {
            *count += moved;
        }
        let length = self.counts.len().max(1);
        let shift = (self.index(block) + length - before) % length;
        self.counts.rotate_right(shift);
        self.newest = block;
    }

    fn index(&self, block: u64) -> usize {
        usize::try_from(block % (self.counts.len() as u64).max(1)).unwrap_or_default()
    }

    /// What came in each block, the oldest first.
    fn oldest_first(&self) -> impl Iterator<Item = u64> + '_ {
        let oldest = self.index(self.newest.wrapping_add(1));
        let (after, before) = self.counts.split_at(oldest);
        before.iter().chain(after).copied()
    }

    fn add(&mut self, cost: u64) {
        let newest = self.index(self.newest);
        if let Some(count) = self.counts.get_mut(newest) {
            let room = u64::MAX - self.total;
            *count += cost.min(room);
            self.total += cost.min(room);
        }
    }

    /// Takes so much out, the oldest first.
    fn drop_oldest(&mut self, mut amount: u64) {
        let oldest = self.newest.wrapping_add(1);
        for block in 0..self.counts.len() as u64 {
            let index = self.index(oldest.wrapping_add(block));
            if let Some(count) = self.counts.get_mut(index) {
                let taken = amount.min(*count);
                *count -= taken;
                self.total -= taken;
                amount -= taken;
            }
        }
    }
}

impl Blocks {
    /// How many blocks are counted: those that make a window, and the current one.
    pub(in crate::store) fn count(&self) -> usize {
        let blocks = millis(self.window).div_ceil(millis(self.precision));
        usize::try_from(blocks)
            .unwrap_or(usize::MAX)
            .saturating_add(1)
    }

    fn moment(&self, ring: &BlockRing, now: Millis) -> KeyTime {
        let newest = ring.newest.saturating_mul(millis(self.precision));
        KeyTime::of(Millis(newest), now)
    }

    fn view(&self, ring: &BlockRing, now: Millis) -> BlockView {
        let moment = self.moment(ring, now);
        let passed = match moment.back {
            0 => (moment.now.0 / millis(self.precision)).saturating_sub(ring.newest),
            _ => 0,
        };
        let gone = usize::try_from(passed).unwrap_or(usize::MAX);
        let gone = gone.min(ring.counts.len());
        BlockView {
            moment,
            gone,
            total: ring.total - ring.oldest_first().take(gone).sum::<u64>(),
        }
    }

    /// Moves a ring on to now.
    fn advance(&self, ring: &mut BlockRing, now: Millis) {
        let BlockView {
            moment,
            gone,
            total,
        } = self.view(ring, now);
        let block = moment.now.0 / millis(self.precision);
        if moment.back > 0 {
            ring.renumber(block);
        }
        for passed in 1..=gone as u64 {
            let index = ring.index(ring.newest.wrapping_add(passed));
            if let Some(count) = ring.counts.get_mut(index) {
                *count = 0;
            }
        }
        ring.newest = block;
        ring.total = total;
    }

    /// How long until `cost` fits; `None` if it never does.
    fn room_after(&self, ring: &BlockRing, now: Millis, cost: Cost) -> Option<Duration> {
        let room = self.limit.0.checked_sub(cost.0)?;
        let length = millis(self.precision);
        let BlockView {
            moment,
            gone,
            total,
        } = self.view(ring, now);
        let (newest, younger) = match moment.back {
            0 => (ring.newest, 0),
            _ => (moment.now.0 / length, 1),
        };
        let (mut left, mut passed) = (total, gone as u64);
        for count in ring.oldest_first().skip(gone) {
            if left <= room {
                break;
            }
            left -= count;
            passed += 1;
        }
        // After a jump of the clock, as `renumber` has it.
        let passed = (passed + younger).min(ring.counts.len() as u64);
        let at = newest.saturating_add(passed).saturating_mul(length);
        Some(Millis(at).since(now))
    }
}

impl Algorithm for Blocks {
    type State = BlockRing;

    fn fresh(&self, now: Millis) -> BlockRing {
        BlockRing {
            newest: now.0 / millis(self.precision),
            total: 0,
            counts: vec![0; self.count()].into(),
        }
    }

    fn ask(&self, ring: &BlockRing, now: Millis, cost: Cost) -> Verdict {
        let with_this = self.view(ring, now).total.saturating_add(cost.0);
        let surplus = with_this.saturating_sub(self.limit.0);
        if surplus > 0 {
            return Verdict::Refuse {
                excess: Excess(surplus),
                retry_after: self.room_after(ring, now, cost),
            };
        }
        Verdict::Pass { excess: Excess(0) }
    }

    fn charge(&self, ring: &mut BlockRing, now: Millis, cost: Cost) -> (Verdict, Spent) {
        if self.moment(ring, now).back > 0 {
            // Before anything is decided: a refused key goes on from the new time, too.
            self.advance(ring, now);
        }
        let outcome = self.ask(ring, now, cost);
        if !matches!(outcome, Verdict::Refuse { .. }) {
            self.debit(ring, now, cost);
        }
        (outcome, Spent(ring.newest))
    }

    fn refund(&self, ring: &mut BlockRing, _: Millis, cost: Cost, Spent(block): Spent) {
        let block = block.min(ring.newest);
        // Of a block that has fallen out there is nothing left to give back.
        if ring.newest - block < ring.counts.len() as u64 {
            let index = ring.index(block);
            if let Some(count) = ring.counts.get_mut(index) {
                let back = cost.0.min(*count);
                *count -= back;
                ring.total -= back;
            }
        }
    }

    fn debit(&self, ring: &mut BlockRing, now: Millis, cost: Cost) {
        self.advance(ring, now);
        ring.add(cost.0);
    }

    fn count_refused(&self, ring: &mut BlockRing, now: Millis, cost: Cost) {
        self.advance(ring, now);
        let cost = cost.0.min(self.limit.0);
        // The latest of all that were asked for are those that count.
        let surplus = ring.total.saturating_add(cost).saturating_sub(self.limit.0);
        ring.drop_oldest(surplus.min(cost));
        ring.add(cost);
    }

    fn drained_at(&self, ring: &BlockRing) -> Millis {
        let blocks = if ring.total == 0 {
            0
        } else {
            ring.counts.len() as u64
        };
        let last = ring.newest.saturating_add(blocks);
        Millis(last.saturating_mul(millis(self.precision)))
    }

    fn standing(&self, ring: &BlockRing, now: Millis) -> KeyStatus {
        let total = self.view(ring, now).total;
        let free = self.limit.0.saturating_sub(total);
        KeyStatus {
            excess: Excess(total.saturating_sub(self.limit.0)),
            limit: self.quota(),
            remaining: free / Excess::ONE.0,
            retry_after: match free {
                ONE_REQUEST.. => Duration::ZERO,
                _ => self.room_after(ring, now, Cost::ONE).unwrap_or_default(),
            },
            reset_after: match total {
                0 => Duration::ZERO,
                _ => self.drained_at(ring).since(now),
            },
        }
    }

    fn quota(&self) -> u64 {
        self.limit.0 / Excess::ONE.0
    }

    fn period(&self) -> Duration {
        self.window
    }

    fn slower(self, other: Self) -> Self {
        if other.window > self.window {
            other
        } else {
            self
        }
    }

    fn most_heap(&self) -> usize {
        self.count().saturating_mul(size_of::<u64>()) + super::ALLOCATION
    }

    fn heap(ring: &BlockRing) -> usize {
        size_of_val::<[u64]>(&ring.counts) + super::ALLOCATION
    }
}

const ONE_REQUEST: u64 = Excess::ONE.0;
