//! A bounded LRU cache of responses, and what HTTP allows to be cached and for how long.
//!
//! A value that is still being received takes a [`Reservation`] of the same bytes, so that values on their way count like
//! those that are cached. The rules are those of RFC 9111, as far as they concern a cache that is read only when there is no
//! fresh response.

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

/// A bounded map that shares its values with its readers and evicts the least recently used ones.
#[derive(Debug)]
pub struct LruCache<V> {
    /// The size of the cache in bytes.
    pub max_bytes: usize,
    shard: Mutex<LruShard<V>>,
}

#[derive(Debug)]
struct LruShard<V> {
    // The standard hasher is seeded: clients cannot choose keys that collide.
    entries: HashMap<Arc<[u8]>, LruEntry<V>>,
    /// The keys by when they were last used.
    order: BTreeMap<u64, Arc<[u8]>>,
    time: u64,
    /// Of all entries.
    bytes: usize,
    /// Of all [`Reservation`]s.
    reserved: usize,
}

/// Bytes reserved for a value that is still being received, given back when dropped.
// Not `Clone`: two owners of the same bytes would give them back twice.
#[derive(Debug)]
pub struct Reservation<V> {
    cache: Arc<LruCache<V>>,
    bytes: usize,
}

#[derive(Debug)]
struct LruEntry<V> {
    value: Arc<V>,
    bytes: usize,
    used: u64,
}

impl<V> LruCache<V> {
    /// An empty cache of about `max_bytes` bytes.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            shard: Mutex::new(LruShard {
                entries: HashMap::new(),
                order: BTreeMap::new(),
                time: 0,
                bytes: 0,
                reserved: 0,
            }),
        }
    }

    /// A cache of another size with the same values, or the most recently used of them.
    #[must_use]
    pub fn resized(&self, max_bytes: usize) -> Self {
        let resized = Self::new(max_bytes);
        let old = self.shard.lock();
        let mut new = resized.shard.lock();
        for key in old.order.values() {
            if let Some(entry) = old.entries.get(key)
                && entry.bytes <= resized.max_value()
            {
                new.insert(key, Arc::clone(&entry.value), entry.bytes, max_bytes);
            }
        }
        drop(new);
        resized
    }

    /// The largest value that is cached.
    #[must_use]
    pub fn max_value(&self) -> usize {
        // One value must not evict all others.
        self.max_bytes / 8
    }

    /// Caches a value of this size, in place of the one under the same key.
    pub fn insert(&self, key: &[u8], value: V, bytes: usize) {
        self.replace(&mut self.shard.lock(), key, value, bytes);
    }

    /// Room for a value that is still being received; nothing is reserved at first.
    #[must_use]
    pub fn reserve(self: &Arc<Self>) -> Reservation<V> {
        Reservation {
            cache: Arc::clone(self),
            bytes: 0,
        }
    }

    fn replace(&self, shard: &mut LruShard<V>, key: &[u8], value: V, bytes: usize) {
        let bytes = bytes + 2 * key.len() + OVERHEAD;
        shard.remove(key);
        if bytes <= self.max_value() {
            shard.insert(key, Arc::new(value), bytes, self.max_bytes);
        }
    }

    /// The value under a key, which is thereby used.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Arc<V>> {
        let shard = &mut *self.shard.lock();
        let used = shard.tick();
        let entry = shard.entries.get_mut(key)?;
        if let Some(key) = shard.order.remove(&entry.used) {
            shard.order.insert(used, key);
        }
        entry.used = used;
        Some(Arc::clone(&entry.value))
    }

    /// Removes the value under a key.
    pub fn remove(&self, key: &[u8]) {
        self.shard.lock().remove(key);
    }

    /// The number of values, and the bytes they take with those that are reserved.
    #[must_use]
    pub fn usage(&self) -> (usize, usize) {
        let shard = self.shard.lock();
        (shard.entries.len(), shard.bytes + shard.reserved)
    }
}

impl<V> Reservation<V> {
    /// Reserves more bytes; false, and nothing is reserved, if there is no room for them.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let mut shard = self.cache.shard.lock();
        let reserved = shard.reserved.saturating_add(bytes);
        // Values that are never completed must not evict all that are.
        if reserved > self.cache.max_bytes / 2 {
            return false;
        }
        shard.reserved = reserved;
        self.bytes += bytes;
        shard.make_room(self.cache.max_bytes);
        true
    }

    /// Caches the value that the bytes were reserved for.
    pub fn fill(mut self, key: &[u8], value: V, bytes: usize) {
        let mut shard = self.cache.shard.lock();
        shard.reserved -= std::mem::take(&mut self.bytes);
        self.cache.replace(&mut shard, key, value, bytes);
    }
}

impl<V> Drop for Reservation<V> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.cache.shard.lock().reserved -= self.bytes;
        }
    }
}

impl<V> LruShard<V> {
    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    /// Adds a new key, and makes room for it.
    fn insert(&mut self, key: &[u8], value: Arc<V>, bytes: usize, max_bytes: usize) {
        let key: Arc<[u8]> = key.into();
        let used = self.tick();
        let entry = LruEntry { value, bytes, used };
        self.order.insert(used, Arc::clone(&key));
        self.entries.insert(key, entry);
        self.bytes += bytes;
        self.make_room(max_bytes);
    }

    /// Evicts the least recently used values until all fit.
    fn make_room(&mut self, max_bytes: usize) {
        while self.bytes + self.reserved > max_bytes
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

/// What a value costs besides itself, in bytes: its places in the map and in the order.
const OVERHEAD: usize = 200;

/// How a cached response may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Freshness {
    /// Its age.
    pub(super) age: Duration,
    /// For how much longer it is fresh, if the response says so.
    pub(super) fresh: Option<Duration>,
    /// For how much longer it may be used, if there is a limit.
    pub(super) usable: Option<Duration>,
    /// The request fields that it depends on.
    pub(super) vary: Vec<HeaderName>,
}

/// The clients that a cached response may be sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CacheScope {
    /// The client that it was made for, as from a private cache.
    Private,
    /// All clients, as from a shared cache.
    Shared,
}

/// Whether the response to a request may be cached at all.
pub(super) fn may_store(request: &request::Parts) -> bool {
    request.method == Method::GET && !CacheControl::of(&request.headers).no_store
}

/// Whether a cached response may be sent to a request.
pub(super) fn may_reuse(request: &request::Parts) -> bool {
    matches!(request.method, Method::GET | Method::HEAD)
}

/// The freshness of a response in a cache of this scope; `None` if it may not be cached. `now` is the time since the Unix epoch.
pub(super) fn freshness(
    response: &response::Parts,
    scope: CacheScope,
    now: impl FnOnce() -> Duration,
) -> Option<Freshness> {
    if !CACHEABLE.contains(&response.status) {
        return None;
    }
    let headers = &response.headers;
    let control = CacheControl::of(headers);
    let shared = scope == CacheScope::Shared;
    if control.no_store || control.no_cache || (control.private && shared) {
        return None;
    }
    if headers.contains_key(SET_COOKIE) || headers.contains_key(CONTENT_RANGE) {
        return None;
    }
    let s_maxage = control.s_maxage.filter(|_| shared);
    let lifetime = s_maxage.or(control.max_age).map(Duration::from_secs);
    let lifetime = lifetime.or_else(|| expires(headers, now));
    // RFC 9111 also allows responses to be cached that say nothing about it. Upstreams that say nothing often do not know of
    // a cache, and those that want none send `max-age=0`.
    let allowed = control.public
        || control.private
        || control.stale_if_error.is_some_and(|time| time > 0)
        || lifetime.is_some_and(|time| !time.is_zero());
    if !allowed {
        return None;
    }
    let age = headers
        .get(AGE)
        .and_then(|age| age.to_str().ok()?.trim().parse().ok());
    let age = Duration::from_secs(age.unwrap_or(0));
    let fresh = lifetime.map(|time| time.saturating_sub(age));
    let usable =
        if control.must_revalidate || (control.proxy_revalidate && shared) || s_maxage.is_some() {
            Some(fresh.unwrap_or_default())
        } else {
            let stale = control.stale_if_error.map(Duration::from_secs);
            stale.map(|stale| fresh.unwrap_or_default().saturating_add(stale))
        };
    // A response that may never be used is not worth its room.
    if usable.is_some_and(|usable| usable.is_zero()) {
        return None;
    }
    Some(Freshness {
        age,
        fresh,
        usable,
        vary: vary_names(headers)?,
    })
}

/// How long a response is fresh by `Expires`: not at all if it cannot be parsed or is there twice.
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

/// The request fields that a response depends on; `None` if they are unknown.
fn vary_names(headers: &HeaderMap) -> Option<Vec<HeaderName>> {
    let mut names = Vec::new();
    for value in headers.get_all(VARY) {
        let elements = value.to_str().ok()?.split(',').map(str::trim);
        for name in elements.filter(|name| !name.is_empty()) {
            let parsed = HeaderName::from_bytes(name.as_bytes()).ok();
            names.push(parsed.filter(|_| name != "*")?);
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
        let mut control = Self::default();
        for value in headers.get_all(CACHE_CONTROL) {
            let Ok(text) = value.to_str() else {
                // A directive that cannot be read may forbid caching.
                control.no_store = true;
                continue;
            };
            for directive in list_elements(text) {
                let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
                // Of two values the shorter applies; one that is no number counts as zero.
                let least = |known: Option<u64>| {
                    let seconds = value.trim().trim_matches('"').parse().unwrap_or(0);
                    Some(known.map_or(seconds, |known| known.min(seconds)))
                };
                match name.trim().to_ascii_lowercase().as_str() {
                    "max-age" => control.max_age = least(control.max_age),
                    "must-revalidate" => control.must_revalidate = true,
                    "no-cache" => control.no_cache = true,
                    "no-store" => control.no_store = true,
                    "private" => control.private = true,
                    "proxy-revalidate" => control.proxy_revalidate = true,
                    "public" => control.public = true,
                    "s-maxage" => control.s_maxage = least(control.s_maxage),
                    "stale-if-error" => control.stale_if_error = least(control.stale_if_error),
                    _ => {}
                }
            }
        }
        control
    }
}

/// The elements of a list. A comma inside quotes ends none: `ext="a, public"` does not contain `public`.
fn list_elements(text: &str) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |c: char| {
        let ends = c == ',' && !quoted;
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = quoted,
            '"' => quoted = !quoted,
            _ => {}
        }
        ends
    })
}

/// The statuses that are cached: the resource, or where it has moved for good.
const CACHEABLE: [StatusCode; 4] = [
    StatusCode::OK,
    StatusCode::NON_AUTHORITATIVE_INFORMATION,
    StatusCode::MOVED_PERMANENTLY,
    StatusCode::PERMANENT_REDIRECT,
];

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn the_least_recently_used_value_is_evicted() {
        let cache = LruCache::new(10_000);
        for key in 0..9u8 {
            cache.insert(&[key], key, 1_000 - OVERHEAD - 2);
        }
        assert_eq!(cache.get(&[0]).as_deref(), Some(&0));
        for key in 9..11u8 {
            cache.insert(&[key], key, 1_000 - OVERHEAD - 2);
        }
        assert_eq!(cache.usage(), (10, 10_000));
        assert_eq!(cache.get(&[1]), None);
        assert_eq!(cache.get(&[0]).as_deref(), Some(&0));
    }

    #[test]
    fn a_smaller_cache_keeps_the_most_recently_used_values() {
        let cache = LruCache::new(80_000);
        for key in 0..10u8 {
            cache.insert(&[key], key, 1_000 - OVERHEAD - 2);
        }
        cache.insert(b"large", 99, 5_000);
        let smaller = cache.resized(8_000);
        assert_eq!(smaller.usage(), (8, 8_000));
        assert_eq!(smaller.get(&[9]).as_deref(), Some(&9));
        assert_eq!((smaller.get(&[1]), smaller.get(b"large")), (None, None));
        assert_eq!(cache.resized(1 << 20).usage(), cache.usage());
    }

    #[test]
    fn a_value_replaces_the_one_under_the_same_key() {
        let cache = LruCache::new(10_000);
        cache.insert(b"a", 1, 500);
        cache.insert(b"a", 2, 700);
        assert_eq!(cache.get(b"a").as_deref(), Some(&2));
        assert_eq!(cache.usage(), (1, 700 + 2 + OVERHEAD));
        cache.remove(b"a");
        assert_eq!(cache.usage(), (0, 0));
    }

    #[test]
    fn a_value_that_is_too_large_removes_the_one_it_replaces() {
        let cache = LruCache::new(8_000);
        cache.insert(b"a", 1, 100);
        cache.insert(b"a", 2, 1_000);
        assert_eq!(cache.get(b"a"), None);
    }

    #[test]
    fn reserved_bytes_count() {
        let cache = Arc::new(LruCache::new(10_000));
        for key in 0..10u8 {
            cache.insert(&[key], key, 1_000 - OVERHEAD - 2);
        }
        let mut first = cache.reserve();
        assert!(first.grow(3_000));
        assert_eq!(cache.usage(), (7, 10_000));
        assert_eq!(cache.get(&[2]), None, "the oldest are evicted");
        let mut second = cache.reserve();
        assert!(second.grow(2_000));
        assert!(!second.grow(1), "half of the cache is for complete values");
        assert_eq!(cache.usage(), (5, 10_000));
        drop(first);
        assert_eq!(cache.usage(), (5, 7_000));
        second.fill(b"a", 99, 1_000 - OVERHEAD - 2);
        assert_eq!(cache.get(b"a").as_deref(), Some(&99));
        assert_eq!(cache.usage(), (6, 6_000));
    }
}
