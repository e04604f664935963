//! When every key of a zone asked: what other numbers would have met.
//!
//! Twelve bytes a request while the log is read, eight more while it is put in order; and no more requests than that
//! fits into some hundreds of megabytes.

use std::time::Duration;

use crate::clock::Millis;
use crate::config::plan::{Cost, Delay, Excess, Rate};
use crate::store::algorithm::leaky_bucket::LeakyBucket;
use crate::store::algorithm::{Algorithm as _, Verdict};

/// Requests in the order they came.
#[derive(Debug, Default)]
pub(in crate::replay) struct Arrivals {
    keys: Vec<u32>,
    times: Vec<u64>,
    /// How many more there were than could be kept.
    pub(in crate::replay) left_out: u64,
}

impl Arrivals {
    pub(in crate::replay) fn add(&mut self, key: u32, at: u64) {
        if self.times.len() >= MOST {
            self.left_out += 1;
            return;
        }
        self.keys.push(key);
        self.times.push(at);
    }

    /// By key, those with the most requests first.
    pub(in crate::replay) fn group(self) -> ArrivalsByKey {
        let count = self.keys.iter().max().map_or(0, |most| *most as usize + 1);
        let mut counts = vec![0_usize; count];
        for key in &self.keys {
            counts[*key as usize] += 1;
        }
        let mut order: Vec<u32> = (0..).take(count).collect();
        order.sort_by_key(|key| std::cmp::Reverse(counts[*key as usize]));
        order.retain(|key| counts[*key as usize] > 0);
        let mut next = vec![0_usize; count];
        let mut ends = Vec::with_capacity(order.len());
        let mut at = 0;
        for key in &order {
            next[*key as usize] = at;
            at += counts[*key as usize];
            ends.push(at);
        }
        let mut times = vec![0; self.times.len()];
        for (key, time) in self.keys.iter().zip(&self.times) {
            let place = &mut next[*key as usize];
            times[*place] = *time;
            *place += 1;
        }
        ArrivalsByKey { times, ends }
    }
}

/// Requests by key.
#[derive(Debug)]
pub(in crate::replay) struct ArrivalsByKey {
    /// Of each key in their order; the key with the most requests first.
    times: Vec<u64>,
    /// Where each key's end.
    ends: Vec<usize>,
}

impl ArrivalsByKey {
    pub(super) fn requests(&self) -> u64 {
        self.times.len() as u64
    }

    /// The most requests of one key.
    pub(super) fn largest(&self) -> usize {
        self.ends.first().copied().unwrap_or(0)
    }

    /// How many requests these numbers refuse, and of how many keys.
    pub(super) fn refused(&self, rate: Rate, burst: u32) -> (u64, u64) {
        let (mut refused, mut touched) = (0, 0);
        for times in self.at_risk(burst) {
            let of_key = refused_of(times, rate, burst);
            refused += of_key;
            touched += u64::from(of_key > 0);
        }
        (refused, touched)
    }

    /// The same, as far as it takes to know.
    pub(super) fn refuses_more_than(&self, allowed: u64, rate: Rate, burst: u32) -> bool {
        let mut refused = 0;
        self.at_risk(burst).any(|times| {
            refused += refused_of(times, rate, burst);
            refused > allowed
        })
    }

    /// How many requests wait with these numbers, and the longest wait in milliseconds.
    pub(super) fn delayed(&self, rate: Rate, burst: u32) -> (u64, u64) {
        let (mut delayed, mut longest) = (0, Duration::ZERO);
        for times in self.keys().take_while(|times| times.len() > 1) {
            meet(times, rate, burst, Delay::After(Excess(0)), |outcome| {
                if let Verdict::Delay { wait, .. } = outcome {
                    delayed += 1;
                    longest = wait.max(longest);
                }
            });
        }
        (
            delayed,
            u64::try_from(longest.as_millis()).unwrap_or(u64::MAX),
        )
    }

    /// What the hundredth of keys with the most requests sent, and what is refused of it.
    pub(super) fn heavy(&self, rate: Rate, burst: u32) -> super::TopSenders {
        let keys = self.ends.len().div_ceil(100);
        let refused = self
            .keys()
            .take(keys)
            .map(|times| refused_of(times, rate, burst));
        super::TopSenders {
            keys: keys as u64,
            requests: keys.checked_sub(1).map_or(0, |last| self.ends[last] as u64),
            refused: refused.sum(),
        }
    }

    /// The most that one key sent in any minute.
    pub(super) fn busiest_minute(&self) -> u64 {
        let mut busiest = 0;
        for times in self.keys() {
            // Those with the most come first.
            if times.len() <= busiest {
                break;
            }
            let mut first = 0;
            for (last, at) in times.iter().enumerate() {
                while at - times[first] >= 60_000 {
                    first += 1;
                }
                busiest = busiest.max(last + 1 - first);
            }
        }
        busiest as u64
    }

    fn keys(&self) -> impl Iterator<Item = &[u64]> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|(start, end)| &self.times[start..*end])
    }

    /// Keys that send more than fits into an empty bucket: nobody else can be refused.
    fn at_risk(&self, burst: u32) -> impl Iterator<Item = &[u64]> {
        self.keys()
            .take_while(move |times| times.len() > burst as usize + 1)
    }
}

fn refused_of(times: &[u64], rate: Rate, burst: u32) -> u64 {
    let mut refused = 0;
    meet(times, rate, burst, Delay::Never, |outcome| {
        refused += u64::from(matches!(outcome, Verdict::Refuse { .. }));
    });
    refused
}

/// Lets one key's requests meet a limit.
fn meet(times: &[u64], rate: Rate, burst: u32, delay: Delay, mut hear: impl FnMut(Verdict)) {
    let burst = Excess::requests(burst);
    let numbers = LeakyBucket { rate, burst, delay };
    let mut state = numbers.fresh(Millis(times.first().copied().unwrap_or(0)));
    for at in times {
        hear(numbers.charge(&mut state, Millis(*at), Cost::ONE).0);
    }
}

/// Requests that are kept, of all zones that numbers are looked for.
const MOST: usize = 20_000_000;
