//! Better numbers for a zone: the smallest rate and burst that would have refused at most a given share.
//!
//! The smaller the rate, the larger the burst it takes, so there is not one answer but a row of them. For every rate of
//! a fixed ladder the smallest burst is found, exactly: the number of refused requests never grows with rate or
//! burst, so halving finds it. Of these pairs, one is recommended: that which lets a single key through with the fewest
//! requests in a minute. Every key is judged as if this zone were alone.

mod arrivals;
mod ladder;

pub(super) use arrivals::{Arrivals, ArrivalsByKey};
pub(super) use ladder::ladder;

use crate::config::plan::Rate;

/// A rate and the smallest burst for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateAndBurst {
    /// Requests in a time.
    pub rate: Rate,
    /// How far above it a key may go.
    pub burst: u32,
    /// Requests that would have been refused.
    pub refused: u64,
    /// Keys with such requests.
    pub touched: u64,
}

impl RateAndBurst {
    /// The most requests of one key that it lets through in a minute.
    #[must_use]
    pub fn a_minute(&self) -> u64 {
        let drained = u128::from(self.rate.units_per_milli()) * 60_000 / u128::from(UNITS);
        u64::from(self.burst) + 1 + u64::try_from(drained).unwrap_or(u64::MAX)
    }

    /// The rate, in requests a second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        per_second(self.rate)
    }
}

/// A rate in requests a second.
pub(super) fn per_second(rate: Rate) -> f64 {
    rate.units_per_milli() as f64 * 1000.0 / UNITS as f64
}

/// What was found.
#[derive(Debug, Clone)]
pub struct Suggestion {
    /// The share that may be refused, in millionths.
    pub at_most_millionths: u64,
    /// Requests it is a share of.
    pub requests: u64,
    /// Every pair of which none is better in both, slowest rate first.
    pub frontier: Vec<RateAndBurst>,
    /// The one that lets the least through in a minute.
    pub best: RateAndBurst,
    /// Requests that would have waited with it, had it no `nodelay`, and the longest of their waits in milliseconds.
    pub delayed: u64,
    /// See `delayed`.
    pub longest: u64,
    /// The most that one key sent in any minute.
    pub busiest_minute: u64,
    /// The hundredth of the keys that sent the most.
    pub heavy: TopSenders,
}

/// The keys that sent the most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TopSenders {
    /// How many they are.
    pub keys: u64,
    /// What they sent.
    pub requests: u64,
    /// What would have been refused of it.
    pub refused: u64,
}

/// Finds better numbers for a zone; none if nobody asked anything of it.
pub(super) fn suggest(arrivals: &ArrivalsByKey, at_most_millionths: u64) -> Option<Suggestion> {
    let requests = arrivals.requests();
    let allowed =
        u64::try_from(u128::from(requests) * u128::from(at_most_millionths) / 1_000_000).ok()?;
    let mut frontier: Vec<RateAndBurst> = Vec::new();
    // With this burst nobody is ever refused, whatever the rate.
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
            let (refused, touched) = arrivals.refused(rate, low);
            frontier.push(RateAndBurst {
                rate,
                burst: low,
                refused,
                touched,
            });
        }
        if low == 0 {
            break;
        }
    }
    let best = *frontier.iter().min_by_key(|pair| pair.a_minute())?;
    let (delayed, longest) = arrivals.delayed(best.rate, best.burst);
    Some(Suggestion {
        at_most_millionths,
        requests,
        best,
        delayed,
        longest,
        busiest_minute: arrivals.busiest_minute(),
        heavy: arrivals.heavy(best.rate, best.burst),
        frontier,
    })
}

/// Which share would have been refused at every rate of the ladder, with this burst.
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

/// One request, in the units that rates are exact in.
const UNITS: u64 = crate::config::plan::Excess::ONE.0;

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
    fn nobody_is_refused_when_nobody_may_be() {
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
    fn a_share_that_may_be_refused_lets_the_heaviest_go() {
        // A hundred keys with one request each, and one with a hundred at once.
        let mut times: Vec<_> = (1..=9_900).map(|key| (key, u64::from(key))).collect();
        times.extend((0..100).map(|_| (0, 50)));
        times.sort_by_key(|(_, at)| *at);
        let strict = suggest(&grouped(&times), 0).unwrap();
        assert_eq!(strict.best.burst, 99);
        let loose = suggest(&grouped(&times), 10_000).unwrap();
        assert_eq!(loose.best.burst, 0);
        assert_eq!((loose.best.refused, loose.best.touched), (99, 1));
        assert_eq!(loose.heavy.keys, 100);
        assert_eq!(loose.heavy.refused, 99);
    }

    #[test]
    fn nothing_is_suggested_for_nobody() {
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
        fn the_smallest_burst_is_the_smallest(
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
            prop_assert!(found.frontier.iter().all(|pair| pair.a_minute() >= found.best.a_minute()));
        }

        /// What makes halving right.
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
