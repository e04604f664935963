//! Which keys ask most and which are refused most, of any number of keys, in bounded memory.
//!
//! Space-Saving by Metwally, Agrawal and El Abbadi, twice: once over all requests and once over those refused, because
//! who is refused a little may ask much less than many who are not. A newcomer takes the place of whoever has the
//! lowest score and goes on from that score, so whoever makes more than one part in [`MOST`] of what happens stays. Scores are
//! halved every minute: it is about who is busy of late. The counts shown are the key's own and begin when it comes in;
//! what it may have missed is told with them. A count says nothing about now, so each key also has a [`KeyRates`]: what it
//! was told in the last few seconds.

#[cfg(test)]
#[path = "tests/top_keys.rs"]
mod tests;

use std::cell::Cell;
use std::collections::HashMap;
use std::time::Duration;

use super::ZoneCounts;
use super::key::{HashSeeds, Key};
use super::table::{EvictingTable, ShardLock};
use crate::algorithm::VerdictKind;
use crate::clock::Millis;

/// The busiest keys of a zone.
#[derive(Debug)]
pub struct TopKeys {
    seeds: HashSeeds,
    lists: ShardLock<TopLists>,
}

/// A key and what it was told.
#[derive(Debug, Clone)]
pub struct TopKey {
    /// The key.
    pub key: Key,
    /// The bytes of a long one, at least the first of them.
    pub name: Option<Box<[u8]>>,
    /// How often it was told what.
    pub counts: ZoneCounts,
    /// How many requests more there may have been before.
    pub missed: u64,
    /// How often of late.
    pub pace: KeyRates,
}

/// What a key is told in a second, in the mean of the last few.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KeyRates {
    /// To go on.
    pub pass: f64,
    /// To wait.
    pub delay: f64,
    /// To go away.
    pub refuse: f64,
}

#[derive(Debug)]
struct TopLists {
    demand: EvictingTable<TrackedKey>,
    refused: EvictingTable<TrackedKey>,
    /// When scores were last halved.
    faded: Millis,
}

#[derive(Debug)]
struct TrackedKey {
    /// In [`WHOLE`]s.
    score: u64,
    counts: ZoneCounts,
    /// What they were at the beginning of the last turn in which something came, and of the turn before.
    before: [ZoneCounts; 2],
    /// The number of that turn.
    turn: u64,
    /// When it came, or came back after a silence.
    began: Millis,
    missed: u64,
    seen: Millis,
    name: Option<Box<[u8]>>,
}

/// For how many requests of this thread the present one stands; 0 if it is not to be noted.
///
/// Each stands for itself as long as there are few. Where there are many, some stand for the others too.
#[must_use]
pub fn sampling_weight(now: Millis) -> u64 {
    SAMPLER.with(|sampler| {
        let (since, seen) = sampler.get();
        let second = now.0 / WINDOW;
        let seen = if second == since { seen + 1 } else { 1 };
        sampler.set((second, seen));
        let each = if seen <= EACH {
            1
        } else if seen <= SOME {
            16
        } else {
            256
        };
        u64::from(seen.is_multiple_of(each)) * each
    })
}

impl TopKeys {
    /// Notes what was said to a request that stands for `weight`; `name` gives the key's bytes where they are needed.
    pub fn note(
        &self,
        key: &Key,
        said: VerdictKind,
        weight: u64,
        now: Millis,
        name: impl FnOnce() -> Box<[u8]>,
    ) {
        let mut guard = self.lists.lock();
        let TopLists {
            demand, refused, ..
        } = guard.faded(now, &self.seeds);
        // Mostly nobody is refused, and there is nothing to look for.
        if refused.len() > 0
            && let Some(known) = refused.get_mut(key)
        {
            known.count(said, weight, now);
            known.score += u64::from(said == VerdictKind::Refuse) * weight * WHOLE;
        }
        if let Some(known) = demand.get_mut(key) {
            known.count(said, weight, now);
            known.score += weight * WHOLE;
            if said != VerdictKind::Refuse || refused.get(key).is_some() {
                return;
            }
            let name = known.name.clone();
            return enter(refused, key, name, (said, weight, now), &self.seeds);
        }
        let name = key.plain().is_none().then(name);
        if said == VerdictKind::Refuse && refused.get(key).is_none() {
            enter(refused, key, name.clone(), (said, weight, now), &self.seeds);
        }
        enter(demand, key, name, (said, weight, now), &self.seeds);
    }

    /// All that are known, in no order.
    #[must_use]
    pub fn list(&self, now: Millis) -> Vec<TopKey> {
        let mut guard = self.lists.lock();
        let lists = guard.faded(now, &self.seeds);
        let mut found: HashMap<[u64; 2], TopKey> = HashMap::new();
        for (packed, tracked) in lists.demand.entries().chain(lists.refused.entries()) {
            let key = self.seeds.unpacked(packed);
            let busy = tracked.shown(key, now);
            match found.get_mut(&key.id()) {
                // Who was longer in one list has missed less there.
                Some(other) if other.total() >= busy.total() => {}
                _ => {
                    found.insert(key.id(), busy);
                }
            }
        }
        found.into_values().collect()
    }

    /// What is known of one.
    #[must_use]
    pub fn find(&self, key: &Key, now: Millis) -> Option<TopKey> {
        let mut guard = self.lists.lock();
        let lists = guard.faded(now, &self.seeds);
        let both = [lists.demand.get(key), lists.refused.get(key)];
        let both = both.into_iter().flatten();
        let both = both.map(|it| it.shown(*key, now));
        both.max_by_key(TopKey::total)
    }

    /// Takes a key off both lists.
    pub fn forget(&self, key: &Key) {
        let mut lists = self.lists.lock();
        lists.demand.forget(key, &self.seeds);
        lists.refused.forget(key, &self.seeds);
    }
}

impl Default for TopKeys {
    fn default() -> Self {
        Self {
            seeds: HashSeeds::default(),
            lists: ShardLock::new(TopLists {
                demand: EvictingTable::new(MOST),
                refused: EvictingTable::new(MOST),
                faded: Millis(0),
            }),
        }
    }
}

impl KeyRates {
    /// All of them.
    #[must_use]
    pub fn demand(self) -> f64 {
        self.pass + self.delay + self.refuse
    }
}

impl TopKey {
    /// All requests of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        let ZoneCounts {
            pass,
            delay,
            refuse,
            ..
        } = self.counts;
        pass + delay + refuse
    }
}

/// Lets a newcomer in, in place of whoever has the lowest score.
fn enter(
    list: &mut EvictingTable<TrackedKey>,
    key: &Key,
    name: Option<Box<[u8]>>,
    (said, weight, now): (VerdictKind, u64, Millis),
    seeds: &HashSeeds,
) {
    let mut newcomer = TrackedKey {
        score: weight * WHOLE,
        counts: ZoneCounts::default(),
        before: Default::default(),
        turn: turn(now),
        began: now,
        missed: 0,
        seen: now,
        name,
    };
    newcomer.count(said, weight, now);
    let gone = list.insert(key, newcomer, seeds, |tracked| Millis(tracked.score));
    if let (Some(gone), Some(newcomer)) = (gone, list.get_mut(key)) {
        newcomer.score += gone.score;
        newcomer.missed = gone.score.div_ceil(WHOLE);
    }
}

impl TopLists {
    /// The same, with what is long ago counting for less.
    fn faded(&mut self, now: Millis, seeds: &HashSeeds) -> &mut Self {
        if now.0.saturating_sub(self.faded.0) >= HALF_LIFE {
            self.fade(now, seeds);
        }
        self
    }

    fn fade(&mut self, now: Millis, seeds: &HashSeeds) {
        let halvings = now.0.saturating_sub(self.faded.0) / HALF_LIFE;
        let halvings = u32::try_from(halvings).unwrap_or(u32::MAX);
        self.faded = now;
        let keep = |tracked: &mut TrackedKey| {
            tracked.score = tracked.score.checked_shr(halvings).unwrap_or(0);
            now.since(tracked.seen).as_millis() < SILENCE
        };
        self.demand.retain(seeds, keep);
        self.refused.retain(seeds, keep);
    }
}

impl TrackedKey {
    fn count(&mut self, said: VerdictKind, weight: u64, now: Millis) {
        self.seen = now;
        if turn(now) != self.turn {
            self.turn(now);
        }
        *match said {
            VerdictKind::Delay(_) => &mut self.counts.delay,
            VerdictKind::Pass => &mut self.counts.pass,
            VerdictKind::Refuse => &mut self.counts.refuse,
        } += weight;
    }

    /// The first that comes in a turn writes down what was before.
    #[cold]
    fn turn(&mut self, now: Millis) {
        let turn = turn(now);
        let silent = turn > self.turn + 1;
        if silent {
            self.began = now;
        }
        let last = if silent { self.counts } else { self.before[0] };
        self.before = [self.counts, last];
        self.turn = turn;
    }

    fn shown(&self, key: Key, at: Millis) -> TopKey {
        let turn = turn(at);
        let (now, before) = match turn.saturating_sub(self.turn) {
            0 => (self.counts, self.before[1]),
            1 => (self.counts, self.before[0]),
            _ => (self.counts, self.counts),
        };
        // From the beginning of the turn before, or since it is there; never so short that one request is a flood.
        let since = Millis(turn.saturating_sub(1) * MILLIS_OF_TURN).max(self.began);
        let window = at.since(since).max(TURN).as_secs_f64();
        let each = |now: u64, before: u64| now.saturating_sub(before) as f64 / window;
        TopKey {
            key,
            name: self.name.clone(),
            counts: now,
            missed: self.missed,
            pace: KeyRates {
                pass: each(now.pass, before.pass),
                delay: each(now.delay, before.delay),
                refuse: each(now.refuse, before.refuse),
            },
        }
    }
}

/// The number of the turn in which a moment is.
fn turn(now: Millis) -> u64 {
    now.0 / MILLIS_OF_TURN
}

thread_local! {
    /// A second, and how many requests it has seen.
    static SAMPLER: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Keys in each list.
pub(super) const MOST: usize = 256;

/// One request, in the units of a score: what is halved a few times should not be nothing at once.
const WHOLE: u64 = 16;

/// A pace is that of one to two of these: long enough for a mean, short enough for now.
const TURN: Duration = Duration::from_millis(MILLIS_OF_TURN);
const MILLIS_OF_TURN: u64 = 3_000;

/// After which time a score is worth half, in milliseconds.
const HALF_LIFE: u64 = 60_000;

/// After which time without a word a key is off the list, in milliseconds.
const SILENCE: u128 = 600_000;

/// In which requests are counted that stand for themselves, in milliseconds.
const WINDOW: u64 = 1000;

/// So many of a window stand for themselves.
const EACH: u64 = 1024;

/// Up to here some stand for sixteen, beyond it for more.
const SOME: u64 = 17 * 1024;
