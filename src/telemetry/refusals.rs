//! The last refusals and the reason for each.
//!
//! Every event loop records its own, in a ring that only it writes to, and no more than a few a second: in a flood they are
//! all alike, and recording one costs as much as the response. Those that are not recorded are counted. No reader is
//! notified; readers poll.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::clock::Millis;

/// The refusals of this process.
pub static REFUSALS: RefusalLog = RefusalLog::new();

/// The last refusals of all event loops.
#[derive(Debug)]
pub struct RefusalLog {
    next: AtomicU64,
    rings: [RefusalRing; RINGS],
}

/// A request that was refused, or would have been.
#[derive(Debug, Clone)]
pub struct RefusalRecord {
    /// The number of the refusal, counted from 1.
    pub id: u64,
    /// Milliseconds since the Unix epoch.
    pub time: u64,
    /// `limit_req` or `limit_conn`
    pub kind: &'static str,
    /// The zone that refused it.
    pub zone: Box<str>,
    /// Its key there as text.
    pub key: Option<Box<str>>,
    /// The reason, in a word.
    pub reason: &'static str,
    /// The reason, in a sentence.
    pub detail: Box<str>,
    /// How far above its rate the key would have been, in requests.
    pub excess: Option<f64>,
    /// The value of `Retry-After`, in seconds.
    pub retry_after: Option<f64>,
    /// The status of the response.
    pub status: u16,
    /// The request passed, because the limit is a dry run.
    pub dry_run: bool,
    /// The client.
    pub client: Box<str>,
    /// The server.
    pub server: Box<str>,
    /// The method.
    pub method: Box<str>,
    /// The host.
    pub host: Box<str>,
    /// The path.
    pub path: Box<str>,
}

#[derive(Debug)]
struct RefusalRing {
    last: Mutex<VecDeque<RefusalRecord>>,
    skipped: AtomicU64,
}

impl RefusalLog {
    const fn new() -> Self {
        Self {
            next: AtomicU64::new(1),
            rings: [const { RefusalRing::new() }; RINGS],
        }
    }

    /// Whether a refusal that happens `now` is to be recorded; if there were enough of late, it is counted instead.
    #[inline]
    #[must_use]
    pub fn wants(&self, now: Millis) -> bool {
        let (since, written) = FLOOD.get();
        if now.0.wrapping_sub(since) >= SECOND {
            FLOOD.set((now.0, 1));
            return true;
        }
        if written < MOST_A_SECOND {
            FLOOD.set((since, written + 1));
            return true;
        }
        self.mine().skipped.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Records a refusal.
    pub fn note(&self, make: impl FnOnce(u64) -> RefusalRecord) {
        let mut last = self.mine().last.lock();
        // Numbered under the lock: a reader that holds all rings sees no number before all smaller ones.
        let refused = make(self.next.fetch_add(1, Ordering::Relaxed));
        if last.len() >= KEPT {
            last.pop_front();
        }
        last.push_back(refused);
    }

    /// The latest refusals after this number, at most `most`, oldest first.
    #[must_use]
    pub fn last(&self, after: u64, most: usize) -> Vec<RefusalRecord> {
        let mut found = Vec::new();
        // All at once, or one that is recorded meanwhile would be missed for good.
        let rings = self.rings.each_ref().map(|ring| ring.last.lock());
        for last in &rings {
            found.extend(last.iter().filter(|it| it.id > after).cloned());
        }
        drop(rings);
        found.sort_unstable_by_key(|refused| refused.id);
        found.split_off(found.len().saturating_sub(most))
    }

    /// How many refusals were not recorded.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        let rings = self.rings.iter();
        rings.map(|it| it.skipped.load(Ordering::Relaxed)).sum()
    }

    fn mine(&self) -> &RefusalRing {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % RINGS;
        }
        &self.rings[MINE.try_with(|mine| *mine).unwrap_or(0)]
    }
}

impl RefusalRing {
    const fn new() -> Self {
        Self {
            last: Mutex::new(VecDeque::new()),
            skipped: AtomicU64::new(0),
        }
    }
}

thread_local! {
    /// When a second started, and how many refusals this thread has recorded in it.
    static FLOOD: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

/// The number of rings; more loops than this share them.
const RINGS: usize = 32;

/// How many refusals a ring keeps.
const KEPT: usize = 256;

/// How many refusals an event loop records in a second.
const MOST_A_SECOND: u32 = 25;

/// In milliseconds.
const SECOND: u64 = 1000;

#[cfg(test)]
mod tests {

    use super::*;

    fn refused(id: u64) -> RefusalRecord {
        RefusalRecord {
            id,
            time: 0,
            kind: "limit_req",
            zone: "one".into(),
            key: None,
            reason: "rate",
            detail: "".into(),
            excess: None,
            retry_after: None,
            status: 429,
            dry_run: false,
            client: "".into(),
            server: "".into(),
            method: "GET".into(),
            host: "".into(),
            path: "/".into(),
        }
    }

    #[test]
    fn the_last_are_kept_and_a_flood_is_counted() {
        let refusals = RefusalLog::new();
        for second in 1..=20 {
            for _ in 0..MOST_A_SECOND + 7 {
                if refusals.wants(Millis(second * SECOND)) {
                    refusals.note(refused);
                }
            }
        }
        assert_eq!(refusals.skipped(), 20 * 7);
        let ids = |last: Vec<RefusalRecord>| last.iter().map(|it| it.id).collect::<Vec<_>>();
        let all = ids(refusals.last(0, 10_000));
        assert_eq!((all.len(), all.last()), (KEPT, Some(&500)));
        assert_eq!(ids(refusals.last(0, 2)), [499, 500]);
        assert_eq!(ids(refusals.last(498, 100)), [499, 500]);
    }

    #[test]
    fn refusals_of_several_loops_come_in_order() {
        let refusals = RefusalLog::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10).for_each(|_| refusals.note(refused)));
            }
        });
        let last = refusals.last(0, 100);
        assert!(last.len() == 40 && last.is_sorted_by_key(|refused| refused.id));
    }
}
