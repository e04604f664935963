//! The latest of something, within so many bytes: what was not asked for longest makes room.
//!
//! A value that is still being received takes a [`Reservation`] of these bytes, so that values on their way count like those
//! that are kept.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

/// A bounded map whose values are shared with whoever asks.
#[derive(Debug)]
pub struct LruCache<V> {
    bound: usize,
    shelf: Mutex<LruShard<V>>,
}

#[derive(Debug)]
struct LruShard<V> {
    // The standard hasher is seeded: nobody can choose keys that collide.
    entries: HashMap<Arc<[u8]>, LruEntry<V>>,
    /// By when they were last asked for.
    order: BTreeMap<u64, Arc<[u8]>>,
    time: u64,
    /// Of the entries.
    bytes: usize,
    /// Of all [`Reservation`]s.
    reserved: usize,
}

/// Bytes reserved for a value that is still being received, given back when dropped.
// Not `Clone`: two owners of the same bytes would give them back twice.
#[derive(Debug)]
pub struct Reservation<V> {
    recent: Arc<LruCache<V>>,
    bytes: usize,
}

#[derive(Debug)]
struct LruEntry<V> {
    value: Arc<V>,
    bytes: usize,
    used: u64,
}

impl<V> LruCache<V> {
    /// One that holds about so many bytes.
    #[must_use]
    pub fn new(bound: usize) -> Self {
        Self {
            bound,
            shelf: Mutex::new(LruShard {
                entries: HashMap::new(),
                order: BTreeMap::new(),
                time: 0,
                bytes: 0,
                reserved: 0,
            }),
        }
    }

    /// The same within so many bytes: the latest, where there is less room.
    #[must_use]
    pub fn heir(&self, bound: usize) -> Self {
        let heir = Self::new(bound);
        let mine = self.shelf.lock();
        let mut theirs = heir.shelf.lock();
        for key in mine.order.values() {
            let Some(entry) = mine.entries.get(key) else {
                continue;
            };
            if entry.bytes <= heir.largest() {
                theirs.put(key, Arc::clone(&entry.value), entry.bytes, bound);
            }
        }
        drop(theirs);
        heir
    }

    /// In how many bytes they are kept.
    #[must_use]
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// The largest value that is taken.
    #[must_use]
    pub fn largest(&self) -> usize {
        // One of them must not push out all the others.
        self.bound / 8
    }

    /// Keeps a value that takes so many bytes, in place of what was kept under its key.
    pub fn put(&self, key: &[u8], value: V, bytes: usize) {
        self.replace(&mut self.shelf.lock(), key, value, bytes);
    }

    /// Room for a value that is still being received; it begins with nothing reserved.
    #[must_use]
    pub fn reserve(self: &Arc<Self>) -> Reservation<V> {
        Reservation {
            recent: Arc::clone(self),
            bytes: 0,
        }
    }

    fn replace(&self, shelf: &mut LruShard<V>, key: &[u8], value: V, bytes: usize) {
        let bytes = bytes + 2 * key.len() + OVERHEAD;
        shelf.remove(key);
        if bytes > self.largest() {
            return;
        }
        shelf.put(key, Arc::new(value), bytes, self.bound);
    }

    /// How much may be reserved at a time.
    fn most_reserved(&self) -> usize {
        // Values that never become complete must not push out all those that are.
        self.bound / 2
    }

    /// What is kept under a key.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Arc<V>> {
        let mut shelf = self.shelf.lock();
        let used = shelf.tick();
        let shelf = &mut *shelf;
        let entry = shelf.entries.get_mut(key)?;
        if let Some(key) = shelf.order.remove(&entry.used) {
            shelf.order.insert(used, key);
        }
        entry.used = used;
        Some(Arc::clone(&entry.value))
    }

    /// Forgets what is kept under a key.
    pub fn remove(&self, key: &[u8]) {
        self.shelf.lock().remove(key);
    }

    /// How many values it holds, and how many bytes they take with those that are reserved.
    #[must_use]
    pub fn usage(&self) -> (usize, usize) {
        let shelf = self.shelf.lock();
        (shelf.entries.len(), shelf.bytes + shelf.reserved)
    }
}

impl<V> Reservation<V> {
    /// Reserves so many bytes more; false, and nothing is reserved, where there is no room for them.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let mut shelf = self.recent.shelf.lock();
        let reserved = shelf.reserved.saturating_add(bytes);
        if reserved > self.recent.most_reserved() {
            return false;
        }
        shelf.reserved = reserved;
        self.bytes += bytes;
        shelf.make_room(self.recent.bound);
        true
    }

    /// Keeps the value that it was reserved for, which takes so many bytes.
    pub fn fill(mut self, key: &[u8], value: V, bytes: usize) {
        let mut shelf = self.recent.shelf.lock();
        shelf.reserved -= std::mem::take(&mut self.bytes);
        self.recent.replace(&mut shelf, key, value, bytes);
    }
}

impl<V> Drop for Reservation<V> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.recent.shelf.lock().reserved -= self.bytes;
        }
    }
}

impl<V> LruShard<V> {
    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    /// Adds what is not there yet; what was not asked for longest makes room.
    fn put(&mut self, key: &[u8], value: Arc<V>, bytes: usize, bound: usize) {
        let key: Arc<[u8]> = key.into();
        let used = self.tick();
        let entry = LruEntry { value, bytes, used };
        self.order.insert(used, Arc::clone(&key));
        self.entries.insert(key, entry);
        self.bytes += bytes;
        self.make_room(bound);
    }

    /// Drops what was not asked for longest until all fit.
    fn make_room(&mut self, bound: usize) {
        while self.bytes + self.reserved > bound
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            let oldest = Arc::clone(oldest);
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.used);
            self.bytes -= entry.bytes;
        }
    }
}

/// What a value costs besides itself: its places in the map and in the order, and its counts.
const OVERHEAD: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_not_asked_for_longest_makes_room() {
        let recent = LruCache::new(10_000);
        for key in 0..9u8 {
            recent.put(&[key], key, 1_000 - OVERHEAD - 2);
        }
        assert_eq!(recent.get(&[0]).as_deref(), Some(&0));
        for key in 9..11u8 {
            recent.put(&[key], key, 1_000 - OVERHEAD - 2);
        }
        assert_eq!(recent.usage(), (10, 10_000));
        assert_eq!(recent.get(&[1]), None);
        assert_eq!(recent.get(&[0]).as_deref(), Some(&0));
    }

    #[test]
    fn the_latest_are_kept_in_less_room() {
        let recent = LruCache::new(80_000);
        for key in 0..10u8 {
            recent.put(&[key], key, 1_000 - OVERHEAD - 2);
        }
        recent.put(b"large", 99, 5_000);
        let smaller = recent.heir(8_000);
        assert_eq!(smaller.usage(), (8, 8_000));
        assert_eq!(smaller.get(&[9]).as_deref(), Some(&9));
        assert_eq!((smaller.get(&[1]), smaller.get(b"large")), (None, None));
        assert_eq!(recent.heir(1 << 20).usage(), recent.usage());
    }

    #[test]
    fn what_is_put_again_takes_its_place() {
        let recent = LruCache::new(10_000);
        recent.put(b"a", 1, 500);
        recent.put(b"a", 2, 700);
        assert_eq!(recent.get(b"a").as_deref(), Some(&2));
        assert_eq!(recent.usage(), (1, 700 + 2 + OVERHEAD));
        recent.remove(b"a");
        assert_eq!(recent.usage(), (0, 0));
    }

    #[test]
    fn what_is_too_large_is_not_taken_and_what_it_replaces_is_gone() {
        let recent = LruCache::new(8_000);
        recent.put(b"a", 1, 100);
        recent.put(b"a", 2, 1_000);
        assert_eq!(recent.get(b"a"), None);
    }

    #[test]
    fn what_is_being_received_counts() {
        let recent = Arc::new(LruCache::new(10_000));
        for key in 0..10u8 {
            recent.put(&[key], key, 1_000 - OVERHEAD - 2);
        }
        let mut first = recent.reserve();
        assert!(first.grow(3_000));
        assert_eq!(recent.usage(), (7, 10_000));
        assert_eq!(recent.get(&[2]), None, "the oldest make room");
        let mut second = recent.reserve();
        assert!(second.grow(2_000));
        assert!(!second.grow(1), "half of it stays with what is complete");
        assert_eq!(recent.usage(), (5, 10_000));
        drop(first);
        assert_eq!(recent.usage(), (5, 7_000));
        second.fill(b"a", 99, 1_000 - OVERHEAD - 2);
        assert_eq!(recent.get(b"a").as_deref(), Some(&99));
        assert_eq!(recent.usage(), (6, 6_000));
    }
}
