//! The latest of something, within so many bytes: what was not asked for longest makes room.
//!
//! A value that is still being received takes a [`Reservation`] of these bytes, so that values on their way count like those
//! that are kept.
//!
//! What HTTP allows to be kept, and for how long: RFC 9111 as far as it concerns a cache that is only read when there is
//! nothing better.

#[cfg(test)]
#[path = "tests/rules_tests.rs"]
mod rules_tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use http::header::{AGE, CACHE_CONTROL, CONTENT_RANGE, DATE, EXPIRES, SET_COOKIE, VARY};
use http::{HeaderMap, HeaderName, Method, StatusCode, request, response};
use jiff::fmt::rfc2822::DateTimeParser;
use parking_lot::Mutex;

/// A bounded map whose values are shared with its readers.
#[derive(Debug)]
pub struct LruCache<V> {
    bound: usize,
    shelf: Mutex<LruShard<V>>,
}

#[derive(Debug)]
struct LruShard<V> {
    // The standard hasher is seeded: clients cannot choose keys that collide.
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
    pub fn resized(&self, bound: usize) -> Self {
        let resized = Self::new(bound);
        let mine = self.shelf.lock();
        let mut theirs = resized.shelf.lock();
        for key in mine.order.values() {
            let Some(entry) = mine.entries.get(key) else {
                continue;
            };
            if entry.bytes <= resized.largest() {
                theirs.put(key, Arc::clone(&entry.value), entry.bytes, bound);
            }
        }
        drop(theirs);
        resized
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

/// How an answer may be used once it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Freshness {
    /// How old it is already.
    pub(super) age: Duration,
    /// How long it is fresh from now on, where it says.
    pub(super) fresh: Option<Duration>,
    /// How long it may be used from now on, where it says less than for ever.
    pub(super) most: Option<Duration>,
    /// What of the request it depends on.
    pub(super) vary: Vec<HeaderName>,
}

/// Whom a kept answer may be given to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CacheScope {
    /// All clients, as of a shared cache.
    Everybody,
    /// The client it was made for, as of a private cache.
    One,
}

/// Whether the answer to a request may be kept at all.
pub(super) fn may_keep(request: &request::Parts) -> bool {
    request.method == Method::GET && !CacheControl::of(&request.headers).no_store
}

/// Whether what was kept may answer a request.
pub(super) fn may_use(request: &request::Parts) -> bool {
    matches!(request.method, Method::GET | Method::HEAD)
}

/// On what terms an answer may be kept for an audience; `None` if it may not. `now` is the time of day, since the Unix epoch.
pub(super) fn spec(
    answer: &response::Parts,
    audience: CacheScope,
    now: impl FnOnce() -> Duration,
) -> Option<Freshness> {
    if !GOOD.contains(&answer.status) {
        return None;
    }
    let headers = &answer.headers;
    let says = CacheControl::of(headers);
    let shared = audience == CacheScope::Everybody;
    if says.no_store || says.no_cache || (says.private && shared) {
        return None;
    }
    if headers.contains_key(SET_COOKIE) || headers.contains_key(CONTENT_RANGE) {
        return None;
    }
    let s_maxage = says.s_maxage.filter(|_| shared);
    let lifetime = s_maxage.or(says.max_age).map(Duration::from_secs);
    let lifetime = lifetime.or_else(|| expires(headers, now));
    // RFC 9111 would also allow what says nothing to be kept. Upstreams that say nothing often do not know of a
    // cache, and those that want none write `max-age=0`.
    let allowed = says.public
        || says.private
        || says.stale_if_error.is_some_and(|time| time > 0)
        || lifetime.is_some_and(|time| !time.is_zero());
    if !allowed {
        return None;
    }
    let age = headers
        .get(AGE)
        .and_then(|age| age.to_str().ok()?.trim().parse().ok());
    let age = Duration::from_secs(age.unwrap_or(0));
    let fresh = lifetime.map(|time| time.saturating_sub(age));
    let most = if says.must_revalidate || (says.proxy_revalidate && shared) || s_maxage.is_some() {
        Some(fresh.unwrap_or_default())
    } else {
        let stale = says.stale_if_error.map(Duration::from_secs);
        stale.map(|stale| fresh.unwrap_or_default().saturating_add(stale))
    };
    // What may never be given is not worth its room.
    if most.is_some_and(|most| most.is_zero()) {
        return None;
    }
    Some(Freshness {
        age,
        fresh,
        most,
        vary: vary_names(headers)?,
    })
}

/// How long `Expires` says an answer is fresh: not at all where it cannot be understood, or is there twice.
fn expires(headers: &HeaderMap, now: impl FnOnce() -> Duration) -> Option<Duration> {
    let seconds = |name: &HeaderName| {
        let mut values = headers.get_all(name).iter();
        let value = values.next().filter(|_| values.next().is_none())?;
        let text = value.to_str().ok()?;
        let time = DateTimeParser::new().parse_timestamp(text).ok()?;
        u64::try_from(time.as_second()).ok()
    };
    headers.get(EXPIRES)?;
    let Some(until) = seconds(&EXPIRES) else {
        return Some(Duration::ZERO);
    };
    let since = seconds(&DATE).unwrap_or_else(|| now().as_secs());
    Some(Duration::from_secs(until.saturating_sub(since)))
}

/// The request fields that a response depends on; `None` if that is unknown.
fn vary_names(headers: &HeaderMap) -> Option<Vec<HeaderName>> {
    let mut names = Vec::new();
    for value in headers.get_all(VARY) {
        for name in value.to_str().ok()?.split(',') {
            match name.trim() {
                "" => {}
                name => names.push(
                    HeaderName::from_bytes(name.as_bytes())
                        .ok()
                        .filter(|_| name != "*")?,
                ),
            }
        }
    }
    names.sort_by(|one, other| one.as_str().cmp(other.as_str()));
    names.dedup();
    Some(names)
}

/// `Cache-Control`
#[derive(Debug, Default)]
struct CacheControl {
    max_age: Option<u64>,
    must_revalidate: bool,
    no_cache: bool,
    no_store: bool,
    private: bool,
    proxy_revalidate: bool,
    public: bool,
    s_maxage: Option<u64>,
    stale_if_error: Option<u64>,
}

impl CacheControl {
    fn of(headers: &HeaderMap) -> Self {
        let mut found = Self::default();
        for value in headers.get_all(CACHE_CONTROL) {
            let Ok(text) = value.to_str() else {
                // Whatever it says, it wanted to say something.
                found.no_store = true;
                continue;
            };
            for directive in ListElements(text) {
                let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
                // Of two values the shorter holds; what is no number is nothing.
                let least = |known: Option<u64>| {
                    let seconds = value.trim().trim_matches('"').parse().unwrap_or(0);
                    Some(known.map_or(seconds, |known| known.min(seconds)))
                };
                match name.trim().to_ascii_lowercase().as_str() {
                    "max-age" => found.max_age = least(found.max_age),
                    "must-revalidate" => found.must_revalidate = true,
                    "no-cache" => found.no_cache = true,
                    "no-store" => found.no_store = true,
                    "private" => found.private = true,
                    "proxy-revalidate" => found.proxy_revalidate = true,
                    "public" => found.public = true,
                    "s-maxage" => found.s_maxage = least(found.s_maxage),
                    "stale-if-error" => found.stale_if_error = least(found.stale_if_error),
                    _ => {}
                }
            }
        }
        found
    }
}

/// The elements of a list. A comma inside quotes ends none: `ext="a, public"` does not say `public`.
struct ListElements<'t>(&'t str);

impl<'t> Iterator for ListElements<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        if self.0.is_empty() {
            return None;
        }
        let (mut quoted, mut escaped) = (false, false);
        let end = self.0.bytes().position(|byte| {
            let ends = byte == b',' && !quoted;
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = quoted,
                b'"' => quoted = !quoted,
                _ => {}
            }
            ends
        });
        let (element, rest) = match end {
            Some(end) => (self.0.get(..end)?, self.0.get(end + 1..)?),
            None => (self.0, ""),
        };
        self.0 = rest;
        Some(element)
    }
}

/// Answers worth having again: what was asked for, or where it has gone for good.
const GOOD: [StatusCode; 4] = [
    StatusCode::OK,
    StatusCode::NON_AUTHORITATIVE_INFORMATION,
    StatusCode::MOVED_PERMANENTLY,
    StatusCode::PERMANENT_REDIRECT,
];

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
        let smaller = recent.resized(8_000);
        assert_eq!(smaller.usage(), (8, 8_000));
        assert_eq!(smaller.get(&[9]).as_deref(), Some(&9));
        assert_eq!((smaller.get(&[1]), smaller.get(b"large")), (None, None));
        assert_eq!(recent.resized(1 << 20).usage(), recent.usage());
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
