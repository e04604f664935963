//! Which keys ask most and which are refused most, of any number of keys, in bounded memory.
//!
//! Space-Saving by Metwally, Agrawal and El Abbadi, twice: once over all requests and once over those refused, because
//! who is refused a little may ask much less than many who are not. A newcomer takes the place of whoever has the
//! lowest score and goes on from that score, so whoever makes more than one part in [`MOST`] of what happens stays. Scores are
//! halved every minute: it is about who is busy now. The counts shown are the key's own and begin when it comes in;
//! what it may have missed is told with them.

use std::cell::Cell;
use std::collections::HashMap;

use super::Counts;
use super::bounded::Bounded;
use super::key::{Key, Seeds};
use super::lock::Lock;
use crate::clock::Millis;

/// The busiest keys of a zone.
#[derive(Debug)]
pub struct Busiest {
    seeds: Seeds,
    lists: Lock<Lists>,
}

/// What a zone said to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// Wait.
    Delay,
    /// Go on.
    Pass,
    /// Go away.
    Refuse,
}

/// A key and what it was told.
#[derive(Debug, Clone)]
pub struct Busy {
    /// The key.
    pub key: Key,
    /// The bytes of a long one, at least the first of them.
    pub name: Option<Box<[u8]>>,
    /// How often it was told what.
    pub counts: Counts,
    /// How many requests more there may have been before.
    pub missed: u64,
}

#[derive(Debug)]
struct Lists {
    demand: Bounded<Tracked>,
    refused: Bounded<Tracked>,
    /// When scores were last halved.
    faded: Millis,
}

#[derive(Debug)]
struct Tracked {
    /// In [`WHOLE`]s.
    score: u64,
    counts: Counts,
    missed: u64,
    seen: Millis,
    name: Option<Box<[u8]>>,
}

/// For how many requests of this thread the present one stands; 0 if it is not to be noted.
///
/// Each stands for itself as long as there are few. Where there are many, some stand for the others too.
#[must_use]
pub fn weight(now: Millis) -> u64 {
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

impl Busiest {
    /// Notes what was said to a request that stands for `weight`; `name` gives the key's bytes where they are needed.
    pub fn note(
        &self,
        key: &Key,
        said: Said,
        weight: u64,
        now: Millis,
        name: impl FnOnce() -> Box<[u8]>,
    ) {
        let mut guard = self.lists.lock();
        let Lists {
            demand, refused, ..
        } = guard.faded(now, &self.seeds);
        if said != Said::Refuse {
            if let Some(known) = refused.get_mut(key) {
                known.count(said, weight, now);
            }
        } else if let Some(known) = refused.get_mut(key) {
            known.count(said, weight, now);
            known.score += weight * WHOLE;
        }
        if let Some(known) = demand.get_mut(key) {
            known.count(said, weight, now);
            known.score += weight * WHOLE;
            if said != Said::Refuse || refused.get(key).is_some() {
                return;
            }
            let name = known.name.clone();
            return enter(refused, key, name, (said, weight, now), &self.seeds);
        }
        let name = key.plain().is_none().then(name);
        if said == Said::Refuse && refused.get(key).is_none() {
            enter(refused, key, name.clone(), (said, weight, now), &self.seeds);
        }
        enter(demand, key, name, (said, weight, now), &self.seeds);
    }

    /// All that are known, in no order.
    #[must_use]
    pub fn list(&self, now: Millis) -> Vec<Busy> {
        let mut guard = self.lists.lock();
        let lists = guard.faded(now, &self.seeds);
        let mut found: HashMap<[u64; 2], Busy> = HashMap::new();
        for (packed, tracked) in lists.demand.entries().chain(lists.refused.entries()) {
            let key = self.seeds.unpacked(packed);
            let busy = tracked.shown(key);
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
    pub fn find(&self, key: &Key) -> Option<Busy> {
        let lists = self.lists.lock();
        let both = [lists.demand.get(key), lists.refused.get(key)];
        let both = both.into_iter().flatten().map(|it| it.shown(*key));
        both.max_by_key(Busy::total)
    }

    /// Takes a key off both lists.
    pub fn forget(&self, key: &Key) {
        let mut lists = self.lists.lock();
        lists.demand.forget(key, &self.seeds);
        lists.refused.forget(key, &self.seeds);
    }
}

impl Default for Busiest {
    fn default() -> Self {
        Self {
            seeds: Seeds::default(),
            lists: Lock::new(Lists {
                demand: Bounded::new(MOST),
                refused: Bounded::new(MOST),
                faded: Millis(0),
            }),
        }
    }
}

impl Busy {
    /// All requests of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        let Counts {
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
    list: &mut Bounded<Tracked>,
    key: &Key,
    name: Option<Box<[u8]>>,
    (said, weight, now): (Said, u64, Millis),
    seeds: &Seeds,
) {
    let mut newcomer = Tracked {
        score: weight * WHOLE,
        counts: Counts::default(),
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

impl Lists {
    /// The same, with what is long ago counting for less.
    fn faded(&mut self, now: Millis, seeds: &Seeds) -> &mut Self {
        let halvings = now.since(self.faded).as_millis() / HALF_LIFE;
        if halvings > 0 {
            self.faded = now;
            let halvings = u32::try_from(halvings).unwrap_or(u32::MAX);
            let keep = |tracked: &mut Tracked| {
                tracked.score = tracked.score.checked_shr(halvings).unwrap_or(0);
                now.since(tracked.seen).as_millis() < SILENCE
            };
            self.demand.retain(seeds, keep);
            self.refused.retain(seeds, keep);
        }
        self
    }
}

impl Tracked {
    fn count(&mut self, said: Said, weight: u64, now: Millis) {
        self.seen = now;
        *match said {
            Said::Delay => &mut self.counts.delay,
            Said::Pass => &mut self.counts.pass,
            Said::Refuse => &mut self.counts.refuse,
        } += weight;
    }

    fn shown(&self, key: Key) -> Busy {
        Busy {
            key,
            name: self.name.clone(),
            counts: self.counts,
            missed: self.missed,
        }
    }
}

thread_local! {
    /// A second, and how many requests it has seen.
    static SAMPLER: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Keys in each list.
pub const MOST: usize = 256;

/// One request, in the units of a score: what is halved a few times should not be nothing at once.
const WHOLE: u64 = 16;

/// In milliseconds.
const HALF_LIFE: u128 = 60_000;

/// After which time without a word a key is off the list, in milliseconds.
const SILENCE: u128 = 600_000;

/// In which requests are counted that stand for themselves, in milliseconds.
const WINDOW: u64 = 1000;

/// So many of a window stand for themselves.
const EACH: u64 = 1024;

/// Up to here some stand for sixteen, beyond it for more.
const SOME: u64 = 17 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn note(busiest: &Busiest, number: u32, said: Said, now: u64) {
        let key = Key::from_bytes(&number.to_be_bytes());
        busiest.note(&key, said, 1, Millis(now), Box::default);
    }

    fn find(busiest: &Busiest, number: u32) -> Option<(u64, u64, u64)> {
        let busy = busiest.find(&Key::from_bytes(&number.to_be_bytes()))?;
        Some((busy.counts.pass, busy.counts.refuse, busy.missed))
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let busiest = Busiest::default();
        for number in 0..MOST as u32 {
            for _ in 0..=number % 7 {
                note(&busiest, number, Said::Pass, 1);
            }
            note(&busiest, number, Said::Refuse, 2);
        }
        assert_eq!(busiest.list(Millis(3)).len(), MOST);
        for number in 0..MOST as u32 {
            let expected = (u64::from(number % 7) + 1, 1, 0);
            assert_eq!(find(&busiest, number), Some(expected));
        }
    }

    /// A hundred thousand keys that come once, and one in a hundred requests from one key.
    #[test]
    fn who_asks_much_is_found_among_any_number_of_others() {
        let busiest = Busiest::default();
        for number in 0..100_000u32 {
            note(&busiest, number, Said::Pass, u64::from(number) / 100);
            if number % 100 == 99 {
                note(&busiest, u32::MAX, Said::Pass, u64::from(number) / 100);
            }
        }
        let (pass, _, missed) = find(&busiest, u32::MAX).expect("it is on the list");
        assert!(pass <= 1000 && pass + missed >= 1000, "{pass} and {missed}");
        assert!(pass > 600, "{pass}");
        assert!(busiest.list(Millis(1_000)).len() <= 2 * MOST);
    }

    #[test]
    fn who_is_refused_is_found_among_those_who_ask_more_and_are_not() {
        let busiest = Busiest::default();
        for round in 0..200 {
            for number in 0..1000 {
                note(&busiest, number, Said::Pass, 1);
            }
            note(&busiest, 5000, Said::Refuse, 1);
            note(&busiest, 5001 + round, Said::Refuse, 1);
        }
        let (_, refused, missed) = find(&busiest, 5000).expect("it is on the list");
        assert_eq!((refused, missed), (200, 0));
    }

    #[test]
    fn who_has_gone_is_forgotten() {
        let busiest = Busiest::default();
        note(&busiest, 1, Said::Refuse, 0);
        note(&busiest, 2, Said::Pass, 599_000);
        assert_eq!(busiest.list(Millis(599_500)).len(), 2);
        assert_eq!(busiest.list(Millis(660_000)).len(), 1);
        busiest.forget(&Key::from_bytes(&2u32.to_be_bytes()));
        assert!(busiest.list(Millis(660_000)).is_empty());
    }

    #[test]
    fn long_keys_bring_their_bytes() {
        let busiest = Busiest::default();
        let long = b"a key of more than fifteen bytes";
        busiest.note(&Key::from_bytes(long), Said::Refuse, 1, Millis(0), || {
            (*long).into()
        });
        let names = busiest.list(Millis(0));
        assert_eq!(names[0].name.as_deref(), Some(&long[..]));
        assert_eq!(names[0].counts.refuse, 1);
    }

    #[test]
    fn of_many_some_stand_for_all() {
        for (requests, off) in [(1_000u64, 0), (10_000, 16), (100_000, 256)] {
            let now = Millis(requests * 1_000_000);
            let noted: u64 = (0..requests).map(|_| weight(now)).sum();
            assert!(noted.abs_diff(requests) <= off, "{noted} of {requests}");
        }
    }
}
