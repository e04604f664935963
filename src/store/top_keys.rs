//! The keys with the most requests and the keys with the most refusals, in bounded memory.
//!
//! Space-Saving by Metwally, Agrawal and El Abbadi, twice: over all requests and over refused ones, because a key that is
//! refused now and then may have far fewer requests than many that are not. A new key replaces the key with the lowest score
//! and starts from that score, so a key with more than one part in [`MAX_KEYS`] of all requests stays. Scores are halved
//! every minute, so recent requests count most. The counts shown are the key's own since it was added; `missed` bounds
//! what was not counted. Counts say nothing about this moment, so each key also has [`KeyRates`] of the last few seconds.

#[cfg(test)]
#[path = "tests/top_keys.rs"]
mod tests;

use std::cell::Cell;
use std::collections::HashMap;
use std::time::Duration;

use super::key::Key;
use super::table::{EvictingTable, ShardLock, ZoneCounts};
use crate::algorithm::VerdictKind;
use crate::clock::Millis;

/// The top keys of a zone.
///
/// ```
/// use weir::algorithm::VerdictKind;
/// use weir::clock::Millis;
/// use weir::store::{Key, TopKeys};
///
/// let top = TopKeys::default();
/// let key = Key::from_bytes(b"192.0.2.7");
/// for now in 0..100 {
///     top.record(&key, VerdictKind::Refuse, 1, Millis(now), Box::default);
/// }
/// let found = top.find(&key, Millis(100)).expect("it is the only key");
/// assert_eq!((found.counts.refuse, found.missed), (100, 0));
/// ```
#[derive(Debug)]
pub struct TopKeys(ShardLock<TopLists>);

/// A key and its verdicts.
#[derive(Debug, Clone)]
pub struct TopKey {
    /// The key.
    pub key: Key,
    /// The bytes of a long key, or the first of them.
    pub name: Option<Box<[u8]>>,
    /// Its verdicts since it was added.
    pub counts: ZoneCounts,
    /// The most requests it can have had before.
    pub missed: u64,
    /// Its verdicts of the last few seconds.
    pub rates: KeyRates,
}

/// The verdicts on a key per second, averaged over the last few seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KeyRates {
    /// Requests that passed at once.
    pub pass: f64,
    /// Requests that were delayed.
    pub delay: f64,
    /// Requests that were refused.
    pub refuse: f64,
}

#[derive(Debug)]
struct TopLists {
    all: EvictingTable<TrackedKey>,
    refused: EvictingTable<TrackedKey>,
    /// When scores were last halved.
    halved: Millis,
}

#[derive(Debug)]
struct TrackedKey {
    /// In units of [`REQUEST`].
    score: u64,
    counts: ZoneCounts,
    /// The counts at the start of the last window with a request, and of the window before it.
    before: [ZoneCounts; 2],
    /// The number of that window.
    window: u64,
    /// When it was added, or came back after an idle time.
    since: Millis,
    missed: u64,
    last: Millis,
    name: Option<Box<[u8]>>,
}

/// The number of requests of this thread that the present one stands for; 0 if it is not to be recorded.
///
/// While there are few requests, each stands for itself. Of many, some stand for the others, too.
#[must_use]
pub fn sampling_weight(now: Millis) -> u64 {
    SAMPLER.with(|sampler| {
        let (since, seen) = sampler.get();
        let second = now.0 / SAMPLING_PERIOD;
        let seen = if second == since { seen + 1 } else { 1 };
        sampler.set((second, seen));
        let weight = if seen <= EACH {
            1
        } else if seen <= EVERY_16TH {
            16
        } else {
            256
        };
        u64::from(seen.is_multiple_of(weight)) * weight
    })
}

impl TopKeys {
    /// Records a verdict that stands for `weight` requests; `name` gives the bytes of a key where they are needed.
    pub fn record(
        &self,
        key: &Key,
        verdict: VerdictKind,
        weight: u64,
        now: Millis,
        name: impl FnOnce() -> Box<[u8]>,
    ) {
        let mut lists = self.0.lock();
        lists.decay(now);
        let TopLists { all, refused, .. } = &mut *lists;
        let is_refused = verdict == VerdictKind::Refuse;
        // Most zones refuse nothing, and there is nothing to look up.
        let mut in_refused = false;
        if refused.len() > 0
            && let Some(tracked) = refused.get_mut(key)
        {
            in_refused = true;
            tracked.count(verdict, weight, now);
            tracked.score += u64::from(is_refused) * weight * REQUEST;
        }
        let tracked = all.get_mut(key);
        let is_tracked = tracked.is_some();
        let name = match tracked {
            Some(tracked) => {
                tracked.count(verdict, weight, now);
                tracked.score += weight * REQUEST;
                if !is_refused || in_refused {
                    return;
                }
                tracked.name.clone()
            }
            None => key.short_bytes().is_none().then(name),
        };
        if is_refused && !in_refused {
            add(refused, key, name.clone(), (verdict, weight, now));
        }
        if !is_tracked {
            add(all, key, name, (verdict, weight, now));
        }
    }

    /// All tracked keys, in no order.
    #[must_use]
    pub fn list(&self, now: Millis) -> Vec<TopKey> {
        let mut lists = self.0.lock();
        lists.decay(now);
        let mut found: HashMap<[u64; 2], TopKey> = HashMap::new();
        for (packed, tracked) in lists.all.entries().chain(lists.refused.entries()) {
            let top = tracked.top_key(Key::from(packed), now);
            match found.get_mut(&top.key.id()) {
                // The list that a key was added to first has missed less of it.
                Some(other) if other.total() >= top.total() => {}
                _ => {
                    found.insert(top.key.id(), top);
                }
            }
        }
        found.into_values().collect()
    }

    /// One tracked key.
    #[must_use]
    pub fn find(&self, key: &Key, now: Millis) -> Option<TopKey> {
        let mut lists = self.0.lock();
        lists.decay(now);
        let both = [lists.all.get(key), lists.refused.get(key)];
        let both = both.into_iter().flatten();
        let both = both.map(|tracked| tracked.top_key(*key, now));
        both.max_by_key(TopKey::total)
    }

    /// Takes a key off both lists.
    pub fn forget(&self, key: &Key) {
        let mut lists = self.0.lock();
        lists.all.remove(key);
        lists.refused.remove(key);
    }
}

impl Default for TopKeys {
    fn default() -> Self {
        Self(ShardLock::new(TopLists {
            all: EvictingTable::new(MAX_KEYS),
            refused: EvictingTable::new(MAX_KEYS),
            halved: Millis(0),
        }))
    }
}

impl KeyRates {
    /// All requests per second.
    #[must_use]
    pub fn total(self) -> f64 {
        self.pass + self.delay + self.refuse
    }
}

impl TopKey {
    /// All its requests.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.pass + self.counts.delay + self.counts.refuse
    }
}

/// Adds a new key, which replaces the key with the lowest score.
fn add(
    list: &mut EvictingTable<TrackedKey>,
    key: &Key,
    name: Option<Box<[u8]>>,
    (verdict, weight, now): (VerdictKind, u64, Millis),
) {
    let mut tracked = TrackedKey {
        score: weight * REQUEST,
        counts: ZoneCounts::default(),
        before: Default::default(),
        window: window(now),
        since: now,
        missed: 0,
        last: now,
        name,
    };
    tracked.count(verdict, weight, now);
    let replaced = list.insert(key, tracked, |tracked| Millis(tracked.score));
    if let (Some(replaced), Some(tracked)) = (replaced, list.get_mut(key)) {
        tracked.score += replaced.score;
        tracked.missed = replaced.score.div_ceil(REQUEST);
    }
}

impl TopLists {
    /// Halves all scores for every [`HALF_LIFE`] that has passed, and drops idle keys.
    fn decay(&mut self, now: Millis) {
        let halvings = now.0.saturating_sub(self.halved.0) / HALF_LIFE;
        if halvings == 0 {
            return;
        }
        let halvings = u32::try_from(halvings).unwrap_or(u32::MAX);
        self.halved = now;
        let keep = |tracked: &mut TrackedKey| {
            tracked.score = tracked.score.checked_shr(halvings).unwrap_or(0);
            now.since(tracked.last).as_millis() < MAX_IDLE
        };
        self.all.retain(keep);
        self.refused.retain(keep);
    }
}

impl TrackedKey {
    fn count(&mut self, verdict: VerdictKind, weight: u64, now: Millis) {
        self.last = now;
        if window(now) != self.window {
            self.start_window(now);
        }
        *match verdict {
            VerdictKind::Delay(_) => &mut self.counts.delay,
            VerdictKind::Pass => &mut self.counts.pass,
            VerdictKind::Refuse => &mut self.counts.refuse,
        } += weight;
    }

    /// Keeps the counts at the start of a window, when its first request comes.
    #[cold]
    fn start_window(&mut self, now: Millis) {
        let window = window(now);
        let was_idle = window > self.window + 1;
        if was_idle {
            self.since = now;
        }
        let last = if was_idle {
            self.counts
        } else {
            self.before[0]
        };
        self.before = [self.counts, last];
        self.window = window;
    }

    fn top_key(&self, key: Key, now: Millis) -> TopKey {
        let window = window(now);
        let before = match window.saturating_sub(self.window) {
            0 => self.before[1],
            1 => self.before[0],
            _ => self.counts,
        };
        // From the start of the window before, or since it was added; never so short that one request is a flood.
        let since = Millis(window.saturating_sub(1) * WINDOW_MILLIS).max(self.since);
        let seconds = now.since(since).max(WINDOW).as_secs_f64();
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        TopKey {
            key,
            name: self.name.clone(),
            counts: self.counts,
            missed: self.missed,
            rates: KeyRates {
                pass: rate(self.counts.pass, before.pass),
                delay: rate(self.counts.delay, before.delay),
                refuse: rate(self.counts.refuse, before.refuse),
            },
        }
    }
}

/// The number of the window that a moment is in.
fn window(now: Millis) -> u64 {
    now.0 / WINDOW_MILLIS
}

thread_local! {
    /// A second, and the requests in it.
    static SAMPLER: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Keys in each list.
const MAX_KEYS: usize = 256;

/// One request in a score, so that a few halvings do not round it to nothing.
const REQUEST: u64 = 16;

/// Rates are averaged over one to two of these: long enough for a mean, short enough for this moment.
const WINDOW: Duration = Duration::from_millis(WINDOW_MILLIS);
const WINDOW_MILLIS: u64 = 3_000;

/// How often scores are halved, in milliseconds.
const HALF_LIFE: u64 = 60_000;

/// After how long without a request a key is dropped, in milliseconds.
const MAX_IDLE: u128 = 600_000;

/// How often sampling starts again, in milliseconds.
const SAMPLING_PERIOD: u64 = 1000;

/// Up to this many requests in a period stand for themselves.
const EACH: u64 = 1024;

/// Up to this many, every 16th is recorded; beyond it every 256th.
const EVERY_16TH: u64 = 17 * 1024;
