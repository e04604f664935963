//! The estimate against Cloudflare's example and against fractions.

use proptest::prelude::*;

use super::*;
use crate::algorithm::testing::{Key, refused, requests, retry, whole};

fn key(limit: u32, window: u64) -> Key<SlidingWindow> {
    Key::new(SlidingWindow {
        limit: Excess::requests(limit),
        window: Duration::from_millis(window),
    })
}

/// Limit 50 per minute; 42 in the whole minute before and 18 in the 15 seconds since make 49.5.
#[test]
fn the_estimate_matches_cloudflares_example() {
    let mut key = key(50, 60_000);
    assert_eq!(key.passed(0, 42), 42);
    assert_eq!(key.passed(75_000, 18), 18);
    assert_eq!(key.key_status(75_000).remaining, 0);
    assert!(refused(&key.peek(75_000, Cost::ONE)));
    assert!(
        !refused(&key.peek(75_000, Cost::milli(500))),
        "49.5 and a half"
    );
    assert!(refused(&key.peek(75_000, Cost::milli(501))));
    // 42 × (60 − 15.715)/60 + 18 + 1 = 49.9995
    assert_eq!(retry(&key.peek(75_000, Cost::ONE)), Some(715));
}

#[test]
fn around_an_edge_no_more_than_the_limit_passes() {
    let mut key = key(10, 60_000);
    assert_eq!(key.passed(59_999, 20), 10);
    assert_eq!(key.passed(60_000, 20), 0);
    assert_eq!(key.passed(66_000, 20), 1);
    assert_eq!(key.passed(90_000, 20), 4);
}

/// As docs/algorithms.md says of the estimate: not at once, but in the course of a window.
#[test]
fn a_burst_and_then_an_even_flow_pass_nearly_twice_the_limit() {
    let mut key = key(100, 10_000);
    assert_eq!(key.passed(9_999, 150), 100);
    assert_eq!(key.passed(10_099, 150), 0);
    let after: usize = (10_100..19_999).map(|now| key.passed(now, 1)).sum();
    assert_eq!(after, 99);
}

#[test]
fn a_full_window_passes_nothing_before_the_next_one() {
    let mut key = key(10, 60_000);
    assert_eq!(key.passed(0, 20), 10);
    assert_eq!(retry(&key.peek(0, Cost::ONE)), Some(66_000));
    assert_eq!(retry(&key.peek(0, whole(10))), Some(120_000));
    assert_eq!(retry(&key.peek(0, whole(11))), None);
}

#[test]
fn a_debt_counts_for_two_windows() {
    let mut key = key(10, 1_000);
    key.debit(0, whole(40));
    assert!(refused(&key.peek(1_749, Cost(0))));
    assert!(!refused(&key.peek(1_750, Cost(0))));
    assert_eq!(retry(&key.peek(0, Cost(0))), Some(1_750));
    assert_eq!(key.drained_at(), 2_000);
}

#[test]
fn a_clock_set_back_starts_no_window() {
    let mut key = key(10, 1_000);
    assert_eq!(key.passed(100_000, 20), 10);
    assert_eq!(key.passed(99_500, 20), 0);
    assert_eq!(key.passed(30_000, 20), 0, "a jump");
}

#[test]
fn counted_refusals_keep_a_client_out() {
    let mut key = key(10, 1_000);
    let passed = (0..100)
        .filter(|tick| key.charge_counting_refusals(tick * 50))
        .count();
    assert!((10..=12).contains(&passed), "{passed}");
    assert!(key.charge_counting_refusals(7_000));
}

#[test]
fn a_long_idle_key_starts_again_and_no_number_wraps() {
    let mut key = key(100_000_000, u64::MAX);
    key.debit(0, Cost(u64::MAX));
    assert!(refused(&key.peek(u64::MAX, Cost::ONE)));
    let mut other = self::key(10, 60_000);
    assert_eq!(other.passed(0, 20), 10);
    assert_eq!(other.passed(u64::MAX, 20), 10);
}

proptest! {
    #[test]
    fn no_window_holds_more_than_twice_the_limit(
        limit in 1..20u32,
        window in 1..60_000u64,
        requests in requests(),
    ) {
        let (mut list, mut now, mut key) = (Vec::<(u64, u64)>::new(), 7u64, key(limit, window));
        for (gap, milli) in requests {
            now += gap;
            if !refused(&key.charge_cost(now, Cost::milli(milli))) {
                list.push((now, milli));
            }
            let recent = list.iter().filter(|(at, _)| now - at < window);
            let sum: u64 = recent.map(|(_, milli)| milli).sum();
            prop_assert!(sum <= 2 * 1000 * u64::from(limit), "{sum}");
        }
    }

    /// In fractions of whole numbers, from the list of requests that passed.
    #[test]
    fn every_verdict_matches_a_list_of_requests(
        limit in 1..20u32,
        window in 1..100_000u64,
        requests in requests(),
    ) {
        let mut list: Vec<(u64, u64)> = Vec::new();
        let mut now = 7u64;
        let mut key = key(limit, window);
        let most = u128::from(limit) * 1000 * u128::from(window);
        for (gap, milli) in requests {
            now += gap;
            let fits = |list: &[(u64, u64)], at: u64| {
                let index = at / window;
                let count = |which| -> u128 {
                    list.iter().filter(|(at, _)| Some(at / window) == which).map(|(_, milli)| u128::from(*milli)).sum()
                };
                let left = u128::from(window - at % window);
                let estimate = count(index.checked_sub(1)) * left + count(Some(index)) * u128::from(window);
                estimate + u128::from(milli) * u128::from(window) <= most
            };
            let verdict = key.charge_cost(now, Cost::milli(milli));
            prop_assert_eq!(!refused(&verdict), fits(&list, now));
            if fits(&list, now) {
                list.push((now, milli));
            } else if milli > u64::from(limit) * 1000 {
                prop_assert_eq!(retry(&verdict), None);
            } else {
                let wait = retry(&verdict).unwrap();
                prop_assert!(fits(&list, now + wait) && !fits(&list, now + wait - 1), "after {wait}");
            }
        }
    }
}
