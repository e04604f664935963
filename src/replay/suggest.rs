//! Better limits for a zone: the smallest rate and burst that would have refused at most a given share.
//!
//! The smaller the rate, the larger the burst it takes, so there is a row of pairs. For every rate of a fixed ladder of
//! round numbers the smallest burst is found exactly: the number of refused requests never grows with rate or burst, so
//! halving finds it. Of these pairs, the recommended one lets the fewest requests of a single key through in a minute.
//! Every key is evaluated as if the zone were alone.
//!
//! The times of all requests are kept for it: twelve bytes a request while the log is read and eight more while they are
//! grouped, up to some hundreds of megabytes.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::stats;
use crate::algorithm::{Algorithm as _, Cost, Delay, Excess, LeakyBucket, Rate, Verdict};
use crate::clock::Millis;

/// A rate and the smallest burst for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RateAndBurst {
    /// The rate.
    #[serde(serialize_with = "as_text")]
    pub rate: Rate,
    /// The burst.
    pub burst: u32,
    /// Requests that would have been refused.
    #[serde(rename = "refuse")]
    pub refused: u64,
    /// Keys with such requests.
    #[serde(rename = "keys_refused")]
    pub keys: u64,
}

impl RateAndBurst {
    /// The most requests of one key that pass in a minute.
    #[must_use]
    pub fn per_minute(&self) -> u64 {
        let drained = u128::from(self.rate.units_per_milli()) * 60_000 / u128::from(UNITS);
        u64::from(self.burst) + 1 + u64::try_from(drained).unwrap_or(u64::MAX)
    }
}

/// A rate in requests a second.
pub(super) fn per_second(rate: Rate) -> f64 {
    rate.units_per_milli() as f64 * 1000.0 / UNITS as f64
}

/// Better limits for a zone.
#[derive(Debug, Clone, Serialize)]
pub struct Suggestion {
    /// The share that may be refused, in millionths.
    #[serde(rename = "refuse_at_most", serialize_with = "as_share")]
    pub at_most_millionths: u64,
    /// All requests of the zone.
    pub requests: u64,
    /// The pair that lets the fewest requests of a key through in a minute.
    #[serde(flatten)]
    pub best: RateAndBurst,
    /// Requests that would have waited with it and without `nodelay`, and the longest of their waits in milliseconds.
    #[serde(rename = "delay_without_nodelay")]
    pub delayed: u64,
    /// See `delayed`.
    #[serde(rename = "longest_delay_ms")]
    pub longest: u64,
    /// The most requests of one key that pass in a minute.
    pub most_a_minute: u64,
    /// The most that one key sent in any minute.
    pub busiest_minute: u64,
    /// The hundredth of the keys with the most requests.
    #[serde(flatten)]
    pub heavy: TopSenders,
    /// Every pair of which none is better in both, slowest rate first.
    pub frontier: Vec<RateAndBurst>,
}

/// The keys with the most requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TopSenders {
    /// How many keys there are.
    #[serde(rename = "heaviest_keys")]
    pub keys: u64,
    /// Their requests.
    #[serde(rename = "heaviest_requests")]
    pub requests: u64,
    /// The requests that would have been refused.
    #[serde(rename = "heaviest_refused")]
    pub refused: u64,
}

fn as_text<S: Serializer>(rate: &Rate, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(rate)
}

fn as_share<S: Serializer>(millionths: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(*millionths as f64 / 1e6)
}

/// Finds better limits for a zone; `None` for a zone without requests.
pub(super) fn suggest(arrivals: &ArrivalsByKey, at_most_millionths: u64) -> Option<Suggestion> {
    let requests = arrivals.requests();
    let allowed =
        u64::try_from(u128::from(requests) * u128::from(at_most_millionths) / 1_000_000).ok()?;
    let mut frontier: Vec<RateAndBurst> = Vec::new();
    // With this burst no request is refused, whatever the rate.
    let mut enough = u32::try_from(arrivals.largest().checked_sub(1)?).unwrap_or(u32::MAX);
    for rate in ladder() {
        let (mut low, mut high) = (0, enough);
        while low < high {
            let middle = low + (high - low) / 2;
            if arrivals.refuses_more_than(allowed, rate, middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        enough = low;
        if frontier.last().is_none_or(|last| last.burst > low) {
            let (refused, keys) = arrivals.refused(rate, low);
            frontier.push(RateAndBurst {
                rate,
                burst: low,
                refused,
                keys,
            });
        }
        if low == 0 {
            break;
        }
    }
    let best = *frontier.iter().min_by_key(|pair| pair.per_minute())?;
    let (delayed, longest) = arrivals.delayed(best.rate, best.burst);
    Some(Suggestion {
        at_most_millionths,
        requests,
        best,
        delayed,
        longest,
        most_a_minute: best.per_minute(),
        busiest_minute: arrivals.busiest_minute(),
        heavy: arrivals.heavy(best.rate, best.burst),
        frontier,
    })
}

/// The share that would have been refused at every rate of the ladder, with this burst.
pub(super) fn curve(arrivals: &ArrivalsByKey, burst: u32) -> Vec<(f64, f64)> {
    let requests = arrivals.requests().max(1) as f64;
    let mut points: Vec<(f64, f64)> = Vec::new();
    for rate in ladder() {
        let share = arrivals.refused(rate, burst).0 as f64 / requests;
        // As long as nothing changes, one point is enough.
        if let [.., (_, before), (at, last)] = &mut points[..]
            && (*before, *last) == (share, share)
        {
            *at = per_second(rate);
        } else {
            points.push((per_second(rate), share));
        }
        if share == 0.0 && points.len() > 2 {
            break;
        }
    }
    points
}

/// One request, in the units of a rate.
const UNITS: u64 = Excess::ONE.0;

/// When requests came and of which keys, in order.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    keys: Vec<u32>,
    times: Vec<u64>,
}

impl Arrivals {
    pub(super) fn add(&mut self, key: u32, at: u64) {
        if self.times.len() < MOST_REQUESTS {
            self.keys.push(key);
            self.times.push(at);
        }
    }

    /// The same by key, the key with the most requests first.
    pub(super) fn group(self) -> ArrivalsByKey {
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

/// When requests came, by key.
#[derive(Debug)]
pub(super) struct ArrivalsByKey {
    /// The times of each key in order; the key with the most requests first.
    times: Vec<u64>,
    /// Where the times of each key end.
    ends: Vec<usize>,
}

impl ArrivalsByKey {
    fn requests(&self) -> u64 {
        self.times.len() as u64
    }

    /// The most requests of one key.
    fn largest(&self) -> usize {
        self.ends.first().copied().unwrap_or(0)
    }

    /// How many requests are refused, and of how many keys.
    fn refused(&self, rate: Rate, burst: u32) -> (u64, u64) {
        let refused = self
            .at_risk(burst)
            .map(|times| refused_of(times, rate, burst));
        refused.fold((0, 0), |(refused, keys), of_key| {
            (refused + of_key, keys + u64::from(of_key > 0))
        })
    }

    /// Whether more requests are refused than allowed; stops counting when it is known.
    fn refuses_more_than(&self, allowed: u64, rate: Rate, burst: u32) -> bool {
        let mut refused = 0;
        self.at_risk(burst).any(|times| {
            refused += refused_of(times, rate, burst);
            refused > allowed
        })
    }

    /// How many requests wait, and the longest wait in milliseconds.
    fn delayed(&self, rate: Rate, burst: u32) -> (u64, u64) {
        let (mut delayed, mut longest) = (0, Duration::ZERO);
        for times in self.keys().take_while(|times| times.len() > 1) {
            for verdict in verdicts(times, rate, burst, Delay::After(Excess(0))) {
                if let Verdict::Delay { wait, .. } = verdict {
                    delayed += 1;
                    longest = wait.max(longest);
                }
            }
        }
        (delayed, stats::millis(longest))
    }

    /// The hundredth of the keys with the most requests.
    fn heavy(&self, rate: Rate, burst: u32) -> TopSenders {
        let keys = self.ends.len().div_ceil(100);
        let refused = self
            .keys()
            .take(keys)
            .map(|times| refused_of(times, rate, burst));
        TopSenders {
            keys: keys as u64,
            requests: keys.checked_sub(1).map_or(0, |last| self.ends[last] as u64),
            refused: refused.sum(),
        }
    }

    /// The most that one key sent in any minute.
    fn busiest_minute(&self) -> u64 {
        let mut busiest = 0;
        for times in self.keys() {
            // The keys with the most requests come first.
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

    /// Keys that send more than fits into an empty bucket: no other key can be refused.
    fn at_risk(&self, burst: u32) -> impl Iterator<Item = &[u64]> {
        self.keys()
            .take_while(move |times| times.len() > burst as usize + 1)
    }
}

fn refused_of(times: &[u64], rate: Rate, burst: u32) -> u64 {
    let verdicts = verdicts(times, rate, burst, Delay::Never);
    verdicts
        .map(|verdict| u64::from(matches!(verdict, Verdict::Refuse { .. })))
        .sum()
}

/// The verdicts of a limit on the requests of one key.
fn verdicts(
    times: &[u64],
    rate: Rate,
    burst: u32,
    delay: Delay,
) -> impl Iterator<Item = Verdict> + use<'_> {
    let burst = Excess::requests(burst);
    let bucket = LeakyBucket { rate, burst, delay };
    let mut state = bucket.new_state(Millis(times.first().copied().unwrap_or(0)));
    times
        .iter()
        .map(move |at| bucket.charge(&mut state, Millis(*at), Cost::ONE).0)
}

/// The most requests of a zone that are kept.
const MOST_REQUESTS: usize = 20_000_000;

/// The rates that are tried: round numbers from one a minute to a million a second, slowest first.
fn ladder() -> impl Iterator<Item = Rate> {
    let minutes = MINUTES.iter().map(|rate| Rate::per_minute(rate * 1000));
    let seconds = (0..6).flat_map(|power| {
        let times = 10_u64.pow(power) * 100;
        SECONDS
            .iter()
            .map(move |tenths| Rate::per_second(tenths * times))
    });
    minutes.chain(seconds)
}

const MINUTES: [u64; 15] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50];

/// In tenths of a request.
const SECONDS: [u64; 13] = [10, 12, 15, 20, 25, 30, 35, 40, 50, 60, 70, 80, 90];

#[cfg(test)]
mod tests {

    use proptest::prelude::*;

    use super::*;

    fn grouped(times: &[(u32, u64)]) -> ArrivalsByKey {
        let mut arrivals = Arrivals::default();
        for (key, at) in times {
            arrivals.add(*key, *at);
        }
        arrivals.group()
    }

    #[test]
    fn a_share_of_zero_refuses_no_request() {
        // Ten at once, and again every ten seconds.
        let times: Vec<_> = (0..100).map(|n| (0, n / 10 * 10_000)).collect();
        let found = suggest(&grouped(&times), 0).unwrap();
        assert!(
            found.frontier.iter().all(|pair| pair.refused == 0),
            "{found:?}"
        );
        let one_a_second = found
            .frontier
            .iter()
            .find(|pair| pair.rate == Rate::per_second(1_000))
            .unwrap();
        assert_eq!(one_a_second.burst, 9);
        assert_eq!(found.best, *one_a_second);
        assert_eq!((found.requests, found.busiest_minute), (100, 60));
    }

    #[test]
    fn an_allowed_share_is_spent_on_the_heaviest_key() {
        // A hundred keys with one request each, and one with a hundred at once.
        let mut times: Vec<_> = (1..=9_900).map(|key| (key, u64::from(key))).collect();
        times.extend((0..100).map(|_| (0, 50)));
        times.sort_by_key(|(_, at)| *at);
        let strict = suggest(&grouped(&times), 0).unwrap();
        assert_eq!(strict.best.burst, 99);
        let loose = suggest(&grouped(&times), 10_000).unwrap();
        assert_eq!(loose.best.burst, 0);
        assert_eq!((loose.best.refused, loose.best.keys), (99, 1));
        assert_eq!(loose.heavy.keys, 100);
        assert_eq!(loose.heavy.refused, 99);
    }

    #[test]
    fn nothing_is_suggested_without_requests() {
        assert!(suggest(&grouped(&[]), 1_000).is_none());
        assert!(
            curve(&grouped(&[]), 5)
                .iter()
                .all(|(_, share)| *share == 0.0)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Against trying every burst there is.
        #[test]
        fn the_burst_is_the_smallest_that_keeps_the_share(
            gaps in prop::collection::vec((0..4_u32, 0..2_000_u64), 1..80),
            millionths in prop::sample::select(vec![0_u64, 10_000, 100_000, 500_000]),
        ) {
            let mut at = 0;
            let times: Vec<_> = gaps.iter().map(|(key, gap)| { at += gap; (*key, at) }).collect();
            let arrivals = grouped(&times);
            let found = suggest(&arrivals, millionths).unwrap();
            let allowed = times.len() as u64 * millionths / 1_000_000;
            for pair in &found.frontier {
                prop_assert!(pair.refused <= allowed);
                for burst in 0..pair.burst {
                    prop_assert!(arrivals.refused(pair.rate, burst).0 > allowed, "{pair:?} {burst}");
                }
            }
            for pair in found.frontier.windows(2) {
                prop_assert!(pair[0].rate.units_per_milli() < pair[1].rate.units_per_milli());
                prop_assert!(pair[0].burst > pair[1].burst);
            }
            prop_assert!(found.frontier.iter().all(|pair| pair.per_minute() >= found.best.per_minute()));
        }

        /// Halving relies on it.
        #[test]
        fn more_rate_or_burst_never_refuses_more(
            gaps in prop::collection::vec((0..3_u32, 0..700_u64), 1..60),
            burst in 0..10_u32,
            milli in 1..5_000_u64,
        ) {
            let mut at = 0;
            let times: Vec<_> = gaps.iter().map(|(key, gap)| { at += gap; (*key, at) }).collect();
            let arrivals = grouped(&times);
            let refused = |milli, burst| arrivals.refused(Rate::per_second(milli), burst).0;
            prop_assert!(refused(milli, burst + 1) <= refused(milli, burst));
            prop_assert!(refused(milli + 100, burst) <= refused(milli, burst));
        }
    }
}

#[cfg(test)]
mod ladder_tests {

    use super::*;

    #[test]
    fn the_ladder_of_rates_ascends() {
        let units: Vec<_> = ladder().map(Rate::units_per_milli).collect();
        assert!(units.is_sorted_by(|a, b| a < b));
        let texts: Vec<_> = ladder().map(|rate| rate.to_string()).collect();
        assert_eq!(
            (&*texts[0], &*texts[14], &*texts[15], &*texts[16]),
            ("1r/m", "50r/m", "1r/s", "1.2r/s")
        );
        assert_eq!(texts.last().map(String::as_str), Some("900000r/s"));
    }
}
