//! The sliding window, estimated as Cloudflare does, or in blocks if `precision` is given.
//!
//! The estimate has two counters. The previous window counts as far as it overlaps with the last `window`: 42 requests, a
//! quarter of a window ago, count as 31.5, as if they had come evenly. There is no edge at which twice the limit passes, and
//! few verdicts are wrong.
//!
//! With blocks there is one counter per block of `precision`, and the oldest block drops out as a whole. The current
//! block counts and, besides it, as many whole blocks as make a window. So what came within the last window always counts,
//! wherever in its block the current moment is: no window ever holds more than the limit. The price is that a request is
//! forgotten up to one block late.

#[cfg(test)]
#[path = "tests/sliding_window_blocks.rs"]
mod blocks_tests;
#[cfg(test)]
#[path = "tests/sliding_window.rs"]
mod tests;

use std::time::Duration;

use super::core::{
    ALLOCATION, Algorithm, AlgorithmInfo, ExcessScale, ScriptArgs, THOUSANDTH, window_quota,
};
use super::quantities::{
    Cost, Excess, KeyStatus, KeyTime, Spent, Verdict, millis, narrow, plus, window_at, window_start,
};
use crate::clock::Millis;

/// The numbers of an estimated sliding window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingWindow {
    /// How many requests may come in any window.
    pub limit: Excess,
    /// The length of a window.
    pub window: Duration,
}

/// The state of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowCounters {
    /// When the current window started.
    start: Millis,
    /// The cost in the window before.
    previous: Excess,
    /// The cost in this one.
    current: Excess,
}

impl SlidingWindow {
    /// The counters in the window of now, and the rest of that window in milliseconds.
    fn at(&self, counters: &WindowCounters, now: Millis) -> (WindowCounters, u64) {
        let length = millis(self.window);
        let (start, passed, elapsed) = window_at(counters.start, now, length);
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
        (counters, length - elapsed)
    }

    /// The estimated cost within a window's length before now.
    fn estimate(&self, counters: &WindowCounters, left: u64) -> u128 {
        let current = area(counters.current, millis(self.window));
        area(counters.previous, left).saturating_add(current)
    }

    /// When there is room for `cost`, if no request comes before; `None` if there never is.
    fn room_at(&self, counters: &WindowCounters, left: u64, cost: Cost) -> Option<Millis> {
        let length = millis(self.window);
        let room = Excess(self.limit.0.checked_sub(cost.0)?);
        let end = plus(counters.start, length);
        // How much of a window may still overlap.
        let within = |counted: Excess, room: Excess| {
            narrow(area(room, length) / u128::from(counted.0.max(1)))
        };
        if let Some(room) = room.0.checked_sub(counters.current.0) {
            let left = left.min(within(counters.previous, Excess(room)));
            return Some(Millis(end.0.saturating_sub(left)));
        }
        let left = length.min(within(counters.current, room));
        Some(Millis(plus(end, length).0.saturating_sub(left)))
    }
}

impl Algorithm for SlidingWindow {
    const INFO: AlgorithmInfo =
        AlgorithmInfo::windowed("sliding_window", include_str!("lua/sliding_window.lua"));

    window_quota!();

    type State = WindowCounters;

    fn new_state(&self, now: Millis) -> WindowCounters {
        WindowCounters {
            start: window_start(now, millis(self.window)),
            previous: Excess(0),
            current: Excess(0),
        }
    }

    fn peek(&self, counters: &WindowCounters, now: Millis, cost: Cost) -> Verdict {
        let length = millis(self.window);
        let (counters, left) = self.at(counters, now);
        let with_this = self
            .estimate(&counters, left)
            .saturating_add(area(Excess(cost.0), length));
        let limit = area(self.limit, length);
        if with_this > limit {
            let room_at = self.room_at(&counters, left, cost);
            return Verdict::Refuse {
                excess: over(with_this - limit, length),
                retry_after: room_at.map(|at| at.since(now)),
            };
        }
        Verdict::Pass { excess: Excess(0) }
    }

    fn refund(&self, counters: &mut WindowCounters, now: Millis, cost: Cost, _: Spent) {
        // Of an earlier window there is nothing to give back.
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
        // Not past the limit: a short flood must not keep a client out for long.
        let filled = counters.current.0.saturating_add(cost.0).min(self.limit.0);
        counters.current.0 = counters.current.0.max(filled);
    }

    fn drained_at(&self, counters: &WindowCounters) -> Millis {
        let windows = match counters.current {
            Excess(0) => u64::from(counters.previous > Excess(0)),
            Excess(1..) => 2,
        };
        plus(counters.start, millis(self.window).saturating_mul(windows))
    }

    fn key_status(&self, counters: &WindowCounters, now: Millis) -> KeyStatus {
        let length = millis(self.window);
        let (counters, left) = self.at(counters, now);
        let (used, limit) = (self.estimate(&counters, left), area(self.limit, length));
        let fits = used.saturating_add(area(Excess::ONE, length)) <= limit;
        let room_at = self.room_at(&counters, left, Cost::ONE);
        KeyStatus {
            excess: over(used.saturating_sub(limit), length),
            limit: self.quota(),
            remaining: over(limit.saturating_sub(used), length).0 / Excess::ONE.0,
            retry_after: room_at
                .filter(|_| !fits)
                .map_or(Duration::ZERO, |at| at.since(now)),
            reset_after: self.drained_at(&counters).since(now),
        }
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
            length: millis(self.window),
        };
        ScriptArgs {
            scale,
            ..ScriptArgs::windowed("sliding_window", cost, self.limit, self.window, 0)
        }
    }
}

/// A cost times milliseconds, in which estimates are compared: nothing is rounded.
fn area(excess: Excess, millis: u64) -> u128 {
    u128::from(excess.0) * u128::from(millis)
}

/// The cost that makes this area in a time.
fn over(area: u128, millis: u64) -> Excess {
    Excess(narrow(area / u128::from(millis.max(1))))
}

/// The numbers of a sliding window in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// How many requests may come in any window.
    pub limit: Excess,
    /// The length of a window.
    pub window: Duration,
    /// The length of a block.
    pub precision: Duration,
}

/// The state of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRing {
    /// The number of the newest block since the start of the clock.
    newest: u64,
    /// The sum of all blocks.
    total: u64,
    /// Each block at its number modulo the number of blocks.
    counts: Box<[u64]>,
}

/// What is left of a ring at this moment.
struct BlockView {
    time: KeyTime,
    /// How many of its blocks have dropped out.
    dropped: usize,
    total: u64,
}

impl BlockRing {
    /// Gives the newest block the number `block` after the clock was set back, and every other block its age less one.
    // Where in its block the clock was before is not known. Blocks that kept their ages could drop out up to one block too
    // early.
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

    /// The cost in each block, the oldest first.
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

    /// Takes out this much, the oldest first.
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
    /// The number of blocks: those that make a window, and the current one.
    fn count(&self) -> usize {
        let blocks = millis(self.window).div_ceil(millis(self.precision));
        usize::try_from(blocks.saturating_add(1)).unwrap_or(usize::MAX)
    }

    fn time(&self, ring: &BlockRing, now: Millis) -> KeyTime {
        let newest = ring.newest.saturating_mul(millis(self.precision));
        KeyTime::new(Millis(newest), now)
    }

    fn view(&self, ring: &BlockRing, now: Millis) -> BlockView {
        let time = self.time(ring, now);
        let passed = match time.set_back {
            0 => (time.now.0 / millis(self.precision)).saturating_sub(ring.newest),
            _ => 0,
        };
        let dropped = usize::try_from(passed).unwrap_or(usize::MAX);
        let dropped = dropped.min(ring.counts.len());
        BlockView {
            time,
            dropped,
            total: ring.total - ring.oldest_first().take(dropped).sum::<u64>(),
        }
    }

    /// Moves a ring on to now.
    fn advance(&self, ring: &mut BlockRing, now: Millis) {
        let view = self.view(ring, now);
        let block = view.time.now.0 / millis(self.precision);
        if view.time.set_back > 0 {
            ring.renumber(block);
        }
        for passed in 1..=view.dropped as u64 {
            let index = ring.index(ring.newest.wrapping_add(passed));
            if let Some(count) = ring.counts.get_mut(index) {
                *count = 0;
            }
        }
        ring.newest = block;
        ring.total = view.total;
    }

    /// How long until `cost` fits; `None` if it never does.
    fn room_after(&self, ring: &BlockRing, now: Millis, cost: Cost) -> Option<Duration> {
        let room = self.limit.0.checked_sub(cost.0)?;
        let length = millis(self.precision);
        let view = self.view(ring, now);
        let (newest, younger) = match view.time.set_back {
            0 => (ring.newest, 0),
            _ => (view.time.now.0 / length, 1),
        };
        let (mut left, mut passed) = (view.total, view.dropped as u64);
        for count in ring.oldest_first().skip(view.dropped) {
            if left <= room {
                break;
            }
            left -= count;
            passed += 1;
        }
        // As `renumber` does after the clock was set back.
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

    window_quota!();

    type State = BlockRing;

    fn new_state(&self, now: Millis) -> BlockRing {
        BlockRing {
            newest: now.0 / millis(self.precision),
            total: 0,
            counts: vec![0; self.count()].into(),
        }
    }

    fn peek(&self, ring: &BlockRing, now: Millis, cost: Cost) -> Verdict {
        let with_this = self.view(ring, now).total.saturating_add(cost.0);
        let surplus = with_this.saturating_sub(self.limit.0);
        Verdict::for_surplus(surplus, || self.room_after(ring, now, cost))
    }

    fn charge(&self, ring: &mut BlockRing, now: Millis, cost: Cost) -> (Verdict, Spent) {
        if self.time(ring, now).set_back > 0 {
            // Before the decision: a refused key goes on from the new time, too.
            self.advance(ring, now);
        }
        let verdict = self.peek(ring, now, cost);
        if !matches!(verdict, Verdict::Refuse { .. }) {
            self.debit(ring, now, cost);
        }
        (verdict, Spent(ring.newest))
    }

    fn refund(&self, ring: &mut BlockRing, _: Millis, cost: Cost, Spent(block): Spent) {
        let block = block.min(ring.newest);
        // Of a block that has dropped out there is nothing to give back.
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
        // The latest requests are those that count.
        let surplus = ring.total.saturating_add(cost).saturating_sub(self.limit.0);
        ring.drop_oldest(surplus.min(cost));
        ring.add(cost);
    }

    fn drained_at(&self, ring: &BlockRing) -> Millis {
        let blocks = match ring.total {
            0 => 0,
            _ => ring.counts.len() as u64,
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

    fn slower(self, other: Self) -> Self {
        if other.window > self.window {
            other
        } else {
            self
        }
    }

    // Blocks are numbered from the start of the clock, and their number is that of a window.
    fn reads_state_of(&self, other: &Self) -> bool {
        self.window == other.window && self.precision == other.precision
    }

    fn script_args(&self, cost: Cost) -> ScriptArgs {
        let blocks = self.count() as u64;
        ScriptArgs::windowed("blocks", cost, self.limit, self.precision, blocks)
    }

    fn max_heap(&self) -> usize {
        self.count().saturating_mul(size_of::<u64>()) + ALLOCATION
    }

    fn heap(ring: &BlockRing) -> usize {
        size_of_val::<[u64]>(&ring.counts) + ALLOCATION
    }
}

const ONE_REQUEST: u64 = Excess::ONE.0;
