//! Where numbers are counted that every event loop counts: each in a place of its own.
//!
//! Two loops that counted in one place would take turns owning it at every request; a scrape, which comes every few
//! seconds, can just as well add up.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A `T` for every event loop, made by the loop itself when it first counts.
// Boxed one by one: they are then memory of the loop's own, and no two share a cache line.
#[derive(Debug)]
pub(super) struct PerLoop<T>([OnceLock<Box<T>>; CELLS]);

impl<T: Default> PerLoop<T> {
    /// None yet.
    pub(super) const fn new() -> Self {
        Self([const { OnceLock::new() }; CELLS])
    }

    /// That of the present thread.
    #[inline]
    pub(super) fn mine(&self) -> &T {
        self.0[index()].get_or_init(Box::default)
    }

    /// What all have counted.
    pub(super) fn sum(&self, counter: impl Fn(&T) -> &AtomicU64) -> u64 {
        let made = self.0.iter().filter_map(OnceLock::get);
        made.map(|cell| counter(cell).load(Ordering::Relaxed)).sum()
    }
}

/// One more.
#[inline]
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[inline]
fn index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % CELLS;
    }
    MINE.try_with(|mine| *mine).unwrap_or(0)
}

/// More loops than this share cells, which is slower and still right.
const CELLS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_count_apart_is_added_up() {
        let cells: PerLoop<AtomicU64> = PerLoop::new();
        std::thread::scope(|scope| {
            for _ in 0..2 * CELLS {
                scope.spawn(|| count(cells.mine()));
            }
        });
        assert_eq!(cells.sum(|counter| counter), 2 * CELLS as u64);
    }
}
