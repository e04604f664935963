//! The sliding window as Cloudflare estimates it: two counters, and the older one counts for less and less.
//!
//! Of the window before, as much is taken to lie in the last `window` as still overlaps with it: 42 requests, a
//! quarter of a window ago, count as 31.5. That is as if they had come evenly. Two counters a key, no edge at
//! which twice the limit passes, and an answer that is wrong for few.
//!
//! The sliding window in blocks: one counter per block of `precision`, and the oldest block falls out as a whole.
//!
//! Counted are the current block and, besides it, as many whole blocks as make a window. What came within the last window is
//! therefore always counted, wherever in its block the current moment lies: no window ever holds more than the limit. The
//! price is that a request is forgotten up to one block late.

#[cfg(test)]
#[path = "tests/sliding_window_blocks.rs"]
mod blocks_tests;
#[cfg(test)]
#[path = "tests/sliding_window.rs"]
mod tests;

use std::time::Duration;

use super::core::{ALLOCATION, Algorithm, AlgorithmInfo};
use super::quantities::{Cost, Delay, Excess, KeyStatus, Spent, Verdict};
use super::script::{ExcessScale, ScriptArgs, THOUSANDTH};
use super::time::{KeyTime, millis, window_start};
use crate::clock::Millis;

/// The numbers a key is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingWindow {
    /// How many in any window.
    pub limit: Excess,
    /// How long it is.
    pub window: Duration,
}

/// What is remembered of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowCounters {
    /// When the current window began.
    start: Millis,
    /// What came in the one before.
    previous: Excess,
    /// What came in this one.
    current: Excess,
}

/// Requests times milliseconds: what estimates are compared in, so that nothing is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Area(u128);

impl Area {
    fn of(excess: Excess, millis: u64) -> Self {
        Self(u128::from(excess.0) * u128::from(millis))
    }

    fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// As many requests as make it in so many milliseconds.
    fn over(self, millis: u64) -> Excess {
        Excess(narrow(self.0 / u128::from(millis.max(1))))
    }

    /// In as many milliseconds as so many requests make it.
    fn by(self, excess: Excess) -> u64 {
        narrow(self.0 / u128::from(excess.0.max(1)))
    }
}

impl SlidingWindow {
    pub(super) fn for_rule(limit: u32, window: Duration, _: Excess, _: Delay) -> Self {
        Self {
            limit: Excess::requests(limit),
            window,
        }
    }

    fn millis(&self) -> u64 {
        millis(self.window)
    }

    /// The key's counters in the window of now, and how much of it is still to come, in milliseconds.
    fn at(&self, counters: &WindowCounters, now: Millis) -> (WindowCounters, u64) {
        let length = self.millis();
        let moment = KeyTime::of(counters.start, now);
        let start = window_start(moment.now, length);
        let passed = start.0.saturating_sub(moment.taken(counters.start).0) / length;
        let (previous, current) = match passed {
            0 => (counters.previous, counters.current),
            1 => (counters.current, Excess(0)),
            _ => (Excess(0), Excess(0)),
        };
        let counters = WindowCounters {
            start,
            previous,
            current,
        };
        (counters, length - (moment.now.0 - start.0))
    }

    /// What is estimated to lie within a window's length before now.
    fn estimate(&self, counters: &WindowCounters, left: u64) -> Area {
        Area::of(counters.previous, left).plus(Area::of(counters.current, self.millis()))
    }

    /// When there is room for `cost`, if nobody comes before; `None` for more than there ever is.
    fn room_at(&self, counters: &WindowCounters, left: u64, cost: Cost) -> Option<Millis> {
        let length = self.millis();
        let room = Excess(self.limit.0.checked_sub(cost.0)?);
        let end = Millis(counters.start.0.saturating_add(length));
        // Of a window that counts for ever less, so many milliseconds may be left.
        let within = |counted: Excess, room: Excess| Area::of(room, length).by(counted);
        if let Some(room) = room.0.checked_sub(counters.current.0) {
            let left = left.min(within(counters.previous, Excess(room)));
            return Some(Millis(end.0.saturating_sub(left)));
        }
        let left = length.min(within(counters.current, room));
        Some(Millis(end.0.saturating_add(length).saturating_sub(left)))
    }
}

impl Algorithm for SlidingWindow {
    const INFO: AlgorithmInfo =
        AlgorithmInfo::windowed("sliding_window", include_str!("lua/sliding_window.lua"));

    type State = WindowCounters;

    fn fresh(&self, now: Millis) -> WindowCounters {
        WindowCounters {
            start: window_start(now, self.millis()),
            previous: Excess(0),
            current: Excess(0),
        }
    }

    fn ask(&self, counters: &WindowCounters, now: Millis, cost: Cost) -> Verdict {
        let length = self.millis();
        let (counters, left) = self.at(counters, now);
        let with_this = self
            .estimate(&counters, left)
            .plus(Area::of(Excess(cost.0), length));
        let limit = Area::of(self.limit, length);
        if with_this > limit {
            let room_at = self.room_at(&counters, left, cost);
            return Verdict::Refuse {
                excess: with_this.minus(limit).over(length),
                retry_after: room_at.map(|at| at.since(now)),
            };
        }
        Verdict::Pass { excess: Excess(0) }
    }

    fn refund(&self, counters: &mut WindowCounters, now: Millis, cost: Cost, _: Spent) {
        // Of an earlier window there is nothing left to give back.
        if self.at(counters, now).0.start == counters.start {
            counters.current.0 = counters.current.0.saturating_sub(cost.0);
        }
    }

    fn debit(&self, counters: &mut WindowCounters, now: Millis, cost: Cost) {
        *counters = self.at(counters, now).0;
        counters.current.0 = counters.current.0.saturating_add(cost.0);
    }

    fn count_refused(&self, counters: &mut WindowCounters, now: Millis, cost: Cost) {
        *counters = self.at(counters, now).0;
        // Not past the limit: hammering for a while must not keep somebody out for long.
        let filled = counters.current.0.saturating_add(cost.0).min(self.limit.0);
        counters.current.0 = counters.current.0.max(filled);
    }

    fn drained_at(&self, counters: &WindowCounters) -> Millis {
        let windows = match counters {
            WindowCounters {
                current: Excess(1..),
                ..
            } => 2,
            WindowCounters {
                previous: Excess(1..),
                ..
            } => 1,
            _ => 0,
        };
        Millis(
            counters
                .start
                .0
                .saturating_add(self.millis().saturating_mul(windows)),
        )
    }

    fn key_status(&self, counters: &WindowCounters, now: Millis) -> KeyStatus {
        let length = self.millis();
        let (counters, left) = self.at(counters, now);
        let (used, limit) = (self.estimate(&counters, left), Area::of(self.limit, length));
        let fits = used.plus(Area::of(Excess::ONE, length)) <= limit;
        let room_at = self.room_at(&counters, left, Cost::ONE);
        KeyStatus {
            excess: used.minus(limit).over(length),
            limit: self.quota(),
            remaining: limit.minus(used).over(length).0 / Excess::ONE.0,
            retry_after: room_at
                .filter(|_| !fits)
                .map_or(Duration::ZERO, |at| at.since(now)),
            reset_after: self.drained_at(&counters).since(now),
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

    fn script_args(&self, cost: Cost) -> ScriptArgs {
        let scale = ExcessScale::Area {
            unit: THOUSANDTH,
            length: self.millis(),
        };
        ScriptArgs {
            scale,
            ..ScriptArgs::windowed("sliding_window", cost, self.limit, self.window, 0)
        }
    }
}

fn narrow(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

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
    pub(super) fn for_rule(
        limit: u32,
        window: Duration,
        precision: Duration,
        _: Excess,
        _: Delay,
    ) -> Self {
        Self {
            limit: Excess::requests(limit),
            window,
            precision,
        }
    }

    /// How many blocks are counted: those that make a window, and the current one.
    fn count(&self) -> usize {
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
    const INFO: AlgorithmInfo = AlgorithmInfo {
        leasable: false,
        ..AlgorithmInfo::windowed("sliding_window", include_str!("lua/blocks.lua"))
    };

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

    fn key_status(&self, ring: &BlockRing, now: Millis) -> KeyStatus {
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

    // Blocks are counted from the beginning of time, and are as many as fit in a window.
    fn reads_state_of(&self, other: &Self) -> bool {
        self.window == other.window && self.precision == other.precision
    }

    fn script_args(&self, cost: Cost) -> ScriptArgs {
        let blocks = self.count() as u64;
        ScriptArgs::windowed("blocks", cost, self.limit, self.precision, blocks)
    }

    fn most_heap(&self) -> usize {
        self.count().saturating_mul(size_of::<u64>()) + ALLOCATION
    }

    fn heap(ring: &BlockRing) -> usize {
        size_of_val::<[u64]>(&ring.counts) + ALLOCATION
    }
}

const ONE_REQUEST: u64 = Excess::ONE.0;
