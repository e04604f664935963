//! Keys that a rule keeps out for a while, whatever their state says.
//!
//! Penalties have a table of their own beside a zone's: a penalty says nothing about how much a key has left, and the state of
//! a key nothing about when it was used. A full table gives no more penalties until some have ended: if one were evicted
//! for another, a client with many keys could end every penalty by having those keys penalized.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::key::Key;
use super::table::{BYTES_PER_KEY, EvictingTable, ShardLayout, Shards};
use crate::clock::Millis;

/// The penalties of a zone.
///
/// ```
/// use std::time::Duration;
///
/// use weir::clock::Millis;
/// use weir::store::{Key, Penalties};
///
/// let penalties = Penalties::new("login", 1 << 20);
/// let key = Key::from_bytes(b"alice");
/// penalties.punish(&key, Millis(0), Duration::from_secs(30));
/// assert_eq!(penalties.remaining(&key, Millis(10_000)), Some(Duration::from_secs(20)));
/// assert_eq!(penalties.remaining(&key, Millis(30_000)), None);
/// ```
#[derive(Debug)]
pub struct Penalties {
    zone: Box<str>,
    /// When the penalty of each key ends.
    shards: Shards<EvictingTable<Millis>>,
    /// When the last penalty ends, so that no lookup is made where there is none.
    last_end: AtomicU64,
    /// When the latest penalty was given.
    last_given: AtomicU64,
}

impl Penalties {
    /// No penalties, with room for as many as fit in `size` bytes.
    #[must_use]
    pub fn new(zone: &str, size: usize) -> Self {
        let layout = ShardLayout::of(size, BYTES_PER_KEY);
        Self {
            zone: zone.into(),
            shards: Shards::new(layout, EvictingTable::new),
            last_end: AtomicU64::new(0),
            last_given: AtomicU64::new(0),
        }
    }

    /// The same penalties within `size` bytes; where those that have not ended do not fit, in the bytes they have.
    #[must_use]
    pub fn resized(self: &Arc<Self>, size: usize) -> Arc<Self> {
        if self.shards.layout == ShardLayout::of(size, BYTES_PER_KEY) {
            return Arc::clone(self);
        }
        let resized = Self::new(&self.zone, size);
        // The caller has no clock, and penalties that have ended since then only take room.
        let now = Millis(self.last_given.load(Ordering::Relaxed));
        for shard in self.shards.iter() {
            for (packed, end) in shard.entries() {
                if *end > now && !resized.give(&Key::from(packed), *end, now) {
                    tracing::warn!(
                        "zone \"{}\" keeps the room of its penalties: those that have not ended do not fit \
                         in less",
                        self.zone,
                    );
                    return Arc::clone(self);
                }
            }
        }
        resized.shards.overflows.add(self.dropped());
        Arc::new(resized)
    }

    /// The rest of a key's penalty.
    #[must_use]
    pub fn remaining(&self, key: &Key, now: Millis) -> Option<Duration> {
        if self.last_end.load(Ordering::Relaxed) <= now.0 {
            return None;
        }
        let end = *self.shards.shard(key).get(key)?;
        (end > now).then(|| end.since(now))
    }

    /// Gives a key a penalty, unless it serves one: that is not prolonged. Returns the rest of the key's penalty, or `None`
    /// where there is no room for another one.
    pub fn punish(&self, key: &Key, now: Millis, term: Duration) -> Option<Duration> {
        if let Some(rest) = self.remaining(key, now) {
            return Some(rest);
        }
        if self.give(key, now.after(term), now) {
            return Some(term);
        }
        if let Some(times) = self.shards.overflows.note(now) {
            tracing::warn!(
                "zone \"{}\" has no room for more penalties: {times} keys that went over were refused and not kept out; \
                 a penalty takes {BYTES_PER_KEY} bytes of the part of its size that is for them",
                self.zone,
            );
        }
        None
    }

    /// Ends a key's penalty; false if it had none.
    pub fn forget(&self, key: &Key) -> bool {
        self.shards.shard(key).remove(key)
    }

    /// How many penalties were not given because there was no room for them.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.shards.overflows.total()
    }

    /// Sets the end of a key's penalty; false if there is no room for it.
    fn give(&self, key: &Key, end: Millis, now: Millis) -> bool {
        let mut shard = self.shards.shard(key);
        match shard.get_mut(key) {
            // Another thread was faster.
            Some(known) => *known = end.max(*known),
            None => {
                if !shard.insert_if_room(key, end, now, |end| *end) {
                    return false;
                }
            }
        }
        self.last_end.fetch_max(end.0, Ordering::Relaxed);
        self.last_given.fetch_max(now.0, Ordering::Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    const TERM: Duration = Duration::from_secs(30);

    impl Penalties {
        /// The number of stored keys, those whose penalty has ended among them.
        fn len(&self) -> usize {
            self.shards.iter().map(|shard| shard.len()).sum()
        }

        fn memory(&self) -> usize {
            self.shards.iter().map(|shard| shard.memory()).sum()
        }
    }

    fn key(number: u32) -> Key {
        Key::from_bytes(&number.to_be_bytes())
    }

    fn remaining(penalties: &Penalties, number: u32, now: u64) -> Option<u64> {
        let rest = penalties.remaining(&key(number), Millis(now))?;
        Some(u64::try_from(rest.as_millis()).unwrap())
    }

    #[test]
    fn a_penalty_lasts_its_time_and_is_not_prolonged() {
        let penalties = Penalties::new("one", 1 << 20);
        assert_eq!(remaining(&penalties, 1, 5), None);
        assert_eq!(penalties.punish(&key(1), Millis(1000), TERM), Some(TERM));
        assert_eq!(remaining(&penalties, 1, 1000), Some(30_000));
        assert_eq!(remaining(&penalties, 2, 1000), None);
        let rest = penalties.punish(&key(1), Millis(11_000), TERM);
        assert_eq!(rest, Some(Duration::from_secs(20)));
        assert_eq!(remaining(&penalties, 1, 30_999), Some(1));
        assert_eq!(remaining(&penalties, 1, 31_000), None);
        penalties.punish(&key(1), Millis(40_000), TERM);
        assert_eq!(remaining(&penalties, 1, 40_000), Some(30_000));
        assert!(penalties.forget(&key(1)) && !penalties.forget(&key(1)));
        assert_eq!(remaining(&penalties, 1, 40_000), None);
    }

    /// All end at about the same time, the oldest first, and none is evicted for another.
    #[test]
    fn a_penalty_is_served_however_many_other_keys_are_punished() {
        let room = 512;
        let penalties = Penalties::new("one", room * BYTES_PER_KEY);
        for number in 0..10_000 {
            let now = Millis(u64::from(number));
            let given = penalties.punish(&key(number), now, TERM);
            assert_eq!(given, (number < 512).then_some(TERM));
        }
        assert_eq!((penalties.len(), penalties.dropped()), (room, 10_000 - 512));
        assert!(penalties.memory() <= room * BYTES_PER_KEY);
        assert!((0..512).all(|number| remaining(&penalties, number, 29_999).is_some()));
        assert!((512..10_000).all(|number| remaining(&penalties, number, 10_000).is_none()));
    }

    #[test]
    fn ended_penalties_make_room() {
        let room = 512;
        let penalties = Penalties::new("one", room * BYTES_PER_KEY);
        for number in 0..512 {
            penalties.punish(&key(number), Millis(u64::from(number)), TERM);
        }
        // By then, the first 101 penalties have ended.
        for number in 1_000..1_200 {
            penalties.punish(&key(number), Millis(30_100), TERM);
        }
        assert_eq!((penalties.len(), penalties.dropped()), (room, 99));
        assert!((1_000..1_101).all(|number| remaining(&penalties, number, 30_100) == Some(30_000)));
        assert!((101..512).all(|number| remaining(&penalties, number, 30_100).is_some()));
        assert!(penalties.forget(&key(200)));
        assert_eq!(
            penalties.punish(&key(2_000), Millis(30_100), TERM),
            Some(TERM)
        );
    }

    #[test]
    fn penalties_survive_a_change_of_size() {
        let penalties = Arc::new(Penalties::new("one", 1 << 20));
        for number in 0..1000 {
            penalties.punish(&key(number), Millis(u64::from(number)), TERM);
        }
        let same = |other: &Penalties| {
            (0..1000)
                .all(|number| remaining(other, number, 1000) == remaining(&penalties, number, 1000))
        };
        assert!(Arc::ptr_eq(&penalties, &penalties.resized(1 << 20)));
        let larger = penalties.resized(64 << 20);
        assert!(same(&larger) && larger.len() == 1000);
        let smaller = penalties.resized(1000 * BYTES_PER_KEY);
        assert!(same(&smaller) && smaller.memory() <= 1000 * BYTES_PER_KEY);
    }

    /// Penalties that do not fit keep their room; once enough have ended, they fit.
    #[test]
    fn less_room_ends_no_penalty() {
        let penalties = Arc::new(Penalties::new("one", 1 << 20));
        for number in 0..1000 {
            penalties.punish(&key(number), Millis(u64::from(number)), TERM);
        }
        let kept = penalties.resized(100 * BYTES_PER_KEY);
        assert!(Arc::ptr_eq(&penalties, &kept));
        kept.punish(&key(5_000), Millis(30_950), TERM);
        let smaller = kept.resized(100 * BYTES_PER_KEY);
        assert_eq!(smaller.len(), 50);
        assert!((951..1000).all(|number| remaining(&smaller, number, 30_950).is_some()));
        assert_eq!(remaining(&smaller, 5_000, 30_950), Some(30_000));
    }
}
