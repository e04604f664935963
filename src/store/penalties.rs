//! Keys that stay out for a while, whatever their bucket says.
//!
//! They have a table of their own beside a zone's: a penalty says nothing about how much a key has left, and a bucket
//! nothing about how it was used. A full table forgets the penalty that ends first, so nobody gets out by having others punished.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::BYTES_PER_KEY;
use super::bounded::Bounded;
use super::key::{Key, Seeds};
use super::lock::Lock;
use super::table::Division;
use crate::clock::Millis;

/// Keys that stay out, each until its moment.
#[derive(Debug)]
pub struct Penalties {
    seeds: Seeds,
    division: Division,
    shards: Box<[Lock<Bounded<Millis>>]>,
    /// When the last of them ends, so that nobody looks for any where there is none.
    last: AtomicU64,
}

impl Penalties {
    /// None so far, and at most as many as fit in `size` bytes.
    #[must_use]
    pub fn new(size: usize) -> Self {
        let division = Division::of(size, BYTES_PER_KEY);
        Self {
            seeds: Seeds::default(),
            division,
            shards: (0..division.tables)
                .map(|_| Lock::new(Bounded::new(division.keys)))
                .collect(),
            last: AtomicU64::new(0),
        }
    }

    /// The same penalties within so many bytes: those that end last, where there is less room.
    #[must_use]
    pub fn heir(&self, size: usize) -> Self {
        let heir = Self::new(size);
        for shard in &self.shards {
            for (packed, end) in shard.lock().entries() {
                let key = heir.seeds.unpacked(packed);
                let mut there = heir.shard(&key).lock();
                there.insert(&key, *end, &heir.seeds, |end| *end);
            }
        }
        let last = self.last.load(Ordering::Relaxed);
        heir.last.store(last, Ordering::Relaxed);
        heir
    }

    /// Whether so many bytes are what it has.
    #[must_use]
    pub fn fits(&self, size: usize) -> bool {
        self.division == Division::of(size, BYTES_PER_KEY)
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

    /// Keeps a key out for this long. Who is kept out already stays so for no longer; says for how much longer that is.
    pub fn punish(&self, key: &Key, now: Millis, term: Duration) -> Duration {
        let end = now.after(term);
        let mut shard = self.shard(key).lock();
        match shard.get_mut(key) {
            Some(known) if *known > now => return known.since(now),
            Some(known) => *known = end,
            None => {
                shard.insert(key, end, &self.seeds, |end| *end);
            }
        }
        self.last.fetch_max(end.0, Ordering::Relaxed);
        term
    }

    /// Lets a key in again; whether it was kept out.
    pub fn forget(&self, key: &Key) -> bool {
        self.shard(key).lock().forget(key, &self.seeds)
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

    fn shard(&self, key: &Key) -> &Lock<Bounded<Millis>> {
        &self.shards[self.division.table(key)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Duration = Duration::from_secs(30);

    fn key(number: u32) -> Key {
        Seeds::default().key(&number.to_be_bytes())
    }

    fn left(penalties: &Penalties, number: u32, now: u64) -> Option<u64> {
        let left = penalties.left(&key(number), Millis(now))?;
        Some(u64::try_from(left.as_millis()).unwrap())
    }

    #[test]
    fn a_penalty_lasts_its_time_and_is_not_prolonged() {
        let penalties = Penalties::new(1 << 20);
        assert_eq!(left(&penalties, 1, 5), None);
        assert_eq!(penalties.punish(&key(1), Millis(1000), TERM), TERM);
        assert_eq!(left(&penalties, 1, 1000), Some(30_000));
        assert_eq!(left(&penalties, 2, 1000), None);
        let rest = penalties.punish(&key(1), Millis(11_000), TERM);
        assert_eq!(rest, Duration::from_secs(20));
        assert_eq!(left(&penalties, 1, 30_999), Some(1));
        assert_eq!(left(&penalties, 1, 31_000), None);
        penalties.punish(&key(1), Millis(40_000), TERM);
        assert_eq!(left(&penalties, 1, 40_000), Some(30_000));
        assert!(penalties.forget(&key(1)) && !penalties.forget(&key(1)));
        assert_eq!(left(&penalties, 1, 40_000), None);
    }

    #[test]
    fn penalties_are_served_in_other_memory_too() {
        let penalties = Penalties::new(1 << 20);
        for number in 0..1000 {
            penalties.punish(&key(number), Millis(u64::from(number)), TERM);
        }
        let larger = penalties.heir(64 << 20);
        assert!(
            (0..1000).all(|number| left(&larger, number, 1000) == left(&penalties, number, 1000))
        );
        let smaller = penalties.heir(100 * BYTES_PER_KEY);
        assert_eq!(smaller.len(), 100);
        assert_eq!(left(&smaller, 999, 1000), Some(29_999));
    }

    /// Whoever is kept out for long is not let in by a flood of others.
    #[test]
    fn a_full_table_forgets_what_ends_first() {
        let room = 512;
        let penalties = Penalties::new(room * BYTES_PER_KEY);
        let long = Duration::from_secs(86_400);
        penalties.punish(&key(u32::MAX), Millis(0), long);
        for number in 0..10_000 {
            let now = Millis(u64::from(number));
            penalties.punish(&key(number), now, TERM);
            assert!(penalties.len() <= room);
        }
        assert!(penalties.memory() <= room * BYTES_PER_KEY);
        assert!(left(&penalties, u32::MAX, 10_000).is_some());
        let kept: Vec<_> = (0..10_000)
            .filter(|number| left(&penalties, *number, 10_000).is_some())
            .collect();
        assert_eq!(kept, (10_001 - 512..10_000).collect::<Vec<_>>());
    }
}
