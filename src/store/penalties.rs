//! Keys that stay out for a while, whatever their bucket says.
//!
//! They have a table of their own beside a zone's: a penalty says nothing about how much a key has left, and a bucket
//! nothing about how it was used. A full table gives no more penalties until some have ended: were one forgotten for
//! another, whoever has many keys could end every penalty by having those punished.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::BYTES_PER_KEY;
use super::key::{HashSeeds, Key};
use super::table::{EvictingTable, ShardLayout, ShardLock};
use crate::clock::Millis;
use crate::telemetry::RateLimitedLog;

/// Keys that stay out, each until its moment.
#[derive(Debug)]
pub struct Penalties {
    zone: Box<str>,
    seeds: HashSeeds,
    division: ShardLayout,
    shards: Box<[ShardLock<EvictingTable<Millis>>]>,
    /// When the last of them ends, so that nobody looks for any where there is none.
    last: AtomicU64,
    /// When the latest of them was given.
    latest: AtomicU64,
    /// Penalties that were not given for want of room.
    dropped: RateLimitedLog,
}

impl Penalties {
    /// Those of a zone: none so far, and at most as many as fit in `size` bytes.
    #[must_use]
    pub fn new(zone: &str, size: usize) -> Self {
        let division = ShardLayout::of(size, BYTES_PER_KEY);
        Self {
            zone: zone.into(),
            seeds: HashSeeds::default(),
            division,
            shards: (0..division.tables)
                .map(|_| ShardLock::new(EvictingTable::new(division.keys)))
                .collect(),
            last: AtomicU64::new(0),
            latest: AtomicU64::new(0),
            dropped: RateLimitedLog::default(),
        }
    }

    /// The same penalties within so many bytes; where those that have not ended do not fit, in the bytes they have.
    #[must_use]
    pub fn resized(self: &Arc<Self>, size: usize) -> Arc<Self> {
        if self.division == ShardLayout::of(size, BYTES_PER_KEY) {
            return Arc::clone(self);
        }
        let resized = Self::new(&self.zone, size);
        // Nobody tells the time here; what has ended since is only in the way.
        let now = Millis(self.latest.load(Ordering::Relaxed));
        for shard in &self.shards {
            for (packed, end) in shard.lock().entries() {
                let key = resized.seeds.unpacked(packed);
                if *end > now && !resized.give(&key, *end, now) {
                    tracing::warn!(
                        "zone \"{}\" keeps the room of its penalties: those that have not ended do not fit \
                         in less",
                        self.zone,
                    );
                    return Arc::clone(self);
                }
            }
        }
        resized.dropped.add(self.dropped.total());
        Arc::new(resized)
    }

    /// For how much longer a key stays out.
    #[must_use]
    pub fn left(&self, key: &Key, now: Millis) -> Option<Duration> {
        if self.last.load(Ordering::Relaxed) <= now.0 {
            return None;
        }
        let end = *self.shard(key).lock().get(key)?;
        (end > now).then(|| end.since(now))
    }

    /// Keeps a key out for this long. Who is kept out already stays so for no longer; says for how much longer that is, and
    /// `None` where there is no room for one more penalty.
    pub fn punish(&self, key: &Key, now: Millis, term: Duration) -> Option<Duration> {
        if let Some(left) = self.left(key, now) {
            return Some(left);
        }
        if self.give(key, now.after(term), now) {
            return Some(term);
        }
        if let Some(times) = self.dropped.note(now) {
            tracing::warn!(
                "zone \"{}\" has no room for more penalties: {times} keys that went over were refused and not kept out; \
                 a penalty takes {BYTES_PER_KEY} bytes of the part of its size that is for them",
                self.zone,
            );
        }
        None
    }

    /// Lets a key in again; whether it was kept out.
    pub fn forget(&self, key: &Key) -> bool {
        self.shard(key).lock().forget(key, &self.seeds)
    }

    /// How many penalties were not given because there was no room for them.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.total()
    }

    /// How many keys are remembered, those whose penalty has ended among them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it takes from the machine at this moment, in bytes; never more than its size.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().memory()).sum()
    }

    /// Keeps a key out until `end`; whether there was room for that.
    fn give(&self, key: &Key, end: Millis, now: Millis) -> bool {
        let mut shard = self.shard(key).lock();
        match shard.get_mut(key) {
            // Another thread was faster.
            Some(known) => *known = end.max(*known),
            None => {
                if !shard.insert_unneeded(key, end, now, &self.seeds, |end| *end) {
                    return false;
                }
            }
        }
        self.last.fetch_max(end.0, Ordering::Relaxed);
        self.latest.fetch_max(now.0, Ordering::Relaxed);
        true
    }

    fn shard(&self, key: &Key) -> &ShardLock<EvictingTable<Millis>> {
        &self.shards[self.division.table(key)]
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    const TERM: Duration = Duration::from_secs(30);

    fn key(number: u32) -> Key {
        HashSeeds::default().key(&number.to_be_bytes())
    }

    fn left(penalties: &Penalties, number: u32, now: u64) -> Option<u64> {
        let left = penalties.left(&key(number), Millis(now))?;
        Some(u64::try_from(left.as_millis()).unwrap())
    }

    #[test]
    fn a_penalty_lasts_its_time_and_is_not_prolonged() {
        let penalties = Penalties::new("one", 1 << 20);
        assert_eq!(left(&penalties, 1, 5), None);
        assert_eq!(penalties.punish(&key(1), Millis(1000), TERM), Some(TERM));
        assert_eq!(left(&penalties, 1, 1000), Some(30_000));
        assert_eq!(left(&penalties, 2, 1000), None);
        let rest = penalties.punish(&key(1), Millis(11_000), TERM);
        assert_eq!(rest, Some(Duration::from_secs(20)));
        assert_eq!(left(&penalties, 1, 30_999), Some(1));
        assert_eq!(left(&penalties, 1, 31_000), None);
        penalties.punish(&key(1), Millis(40_000), TERM);
        assert_eq!(left(&penalties, 1, 40_000), Some(30_000));
        assert!(penalties.forget(&key(1)) && !penalties.forget(&key(1)));
        assert_eq!(left(&penalties, 1, 40_000), None);
    }

    /// All end at about the same time, so the oldest is the first to end, and not one leaves for another.
    #[test]
    fn a_penalty_is_served_however_many_others_are_punished() {
        let room = 512;
        let penalties = Penalties::new("one", room * BYTES_PER_KEY);
        for number in 0..10_000 {
            let now = Millis(u64::from(number));
            let given = penalties.punish(&key(number), now, TERM);
            assert_eq!(given, (number < 512).then_some(TERM));
        }
        assert_eq!((penalties.len(), penalties.dropped()), (room, 10_000 - 512));
        assert!(penalties.memory() <= room * BYTES_PER_KEY);
        assert!((0..512).all(|number| left(&penalties, number, 29_999).is_some()));
        assert!((512..10_000).all(|number| left(&penalties, number, 10_000).is_none()));
    }

    #[test]
    fn ended_penalties_make_room() {
        let room = 512;
        let penalties = Penalties::new("one", room * BYTES_PER_KEY);
        for number in 0..512 {
            penalties.punish(&key(number), Millis(u64::from(number)), TERM);
        }
        // By this time, those of the first hundred and one are over.
        for number in 1_000..1_200 {
            penalties.punish(&key(number), Millis(30_100), TERM);
        }
        assert_eq!((penalties.len(), penalties.dropped()), (room, 99));
        assert!((1_000..1_101).all(|number| left(&penalties, number, 30_100) == Some(30_000)));
        assert!((101..512).all(|number| left(&penalties, number, 30_100).is_some()));
        assert!(penalties.forget(&key(200)));
        assert_eq!(
            penalties.punish(&key(2_000), Millis(30_100), TERM),
            Some(TERM)
        );
    }

    #[test]
    fn penalties_are_served_in_other_memory_too() {
        let penalties = Arc::new(Penalties::new("one", 1 << 20));
        for number in 0..1000 {
            penalties.punish(&key(number), Millis(u64::from(number)), TERM);
        }
        let same = |other: &Penalties| {
            (0..1000).all(|number| left(other, number, 1000) == left(&penalties, number, 1000))
        };
        assert!(Arc::ptr_eq(&penalties, &penalties.resized(1 << 20)));
        let larger = penalties.resized(64 << 20);
        assert!(same(&larger) && larger.len() == 1000);
        let smaller = penalties.resized(1000 * BYTES_PER_KEY);
        assert!(same(&smaller) && smaller.memory() <= 1000 * BYTES_PER_KEY);
    }

    /// What does not fit keeps the room it has; once enough has ended, it fits.
    #[test]
    fn less_room_lets_nobody_in() {
        let penalties = Arc::new(Penalties::new("one", 1 << 20));
        for number in 0..1000 {
            penalties.punish(&key(number), Millis(u64::from(number)), TERM);
        }
        let kept = penalties.resized(100 * BYTES_PER_KEY);
        assert!(Arc::ptr_eq(&penalties, &kept));
        kept.punish(&key(5_000), Millis(30_950), TERM);
        let smaller = kept.resized(100 * BYTES_PER_KEY);
        assert_eq!(smaller.len(), 50);
        assert!((951..1000).all(|number| left(&smaller, number, 30_950).is_some()));
        assert_eq!(left(&smaller, 5_000, 30_950), Some(30_000));
    }
}
