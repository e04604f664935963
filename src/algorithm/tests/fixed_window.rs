//! The window against a list of the requests that passed, and its edges.

use proptest::prelude::*;

use super::*;
use crate::algorithm::testing::{Key, refused, requests, retry, whole};

fn key(limit: u32, window: u64) -> Key<FixedWindow> {
    Key::new(FixedWindow {
        limit: Excess::requests(limit),
        window: Duration::from_millis(window),
    })
}

#[test]
fn twice_the_limit_passes_around_an_edge() {
    let mut key = key(10, 60_000);
    assert_eq!(key.passed(59_999, 20), 10);
    assert_eq!(retry(&key.peek(59_999, Cost::ONE)), Some(1));
    assert_eq!(key.passed(60_000, 20), 10);
    assert_eq!(retry(&key.peek(60_000, Cost::ONE)), Some(60_000));
    assert_eq!(key.passed(119_999, 20), 0);
}

#[test]
fn a_cost_beyond_the_limit_is_refused_without_a_time_to_retry() {
    let mut key = key(10, 60_000);
    assert_eq!(retry(&key.charge_cost(0, whole(11))), None);
    assert!(!refused(&key.charge_cost(0, whole(10))));
    assert!(!refused(&key.charge_cost(0, Cost(0))));
}

#[test]
fn a_debt_is_charged_to_the_following_windows() {
    let mut key = key(10, 1_000);
    key.debit(500, whole(25));
    assert_eq!(retry(&key.peek(500, Cost(0))), Some(1_500));
    assert_eq!(retry(&key.peek(500, Cost::ONE)), Some(1_500));
    assert_eq!(retry(&key.peek(500, whole(6))), Some(2_500));
    assert_eq!(key.passed(2_000, 20), 5);
    assert_eq!(key.passed(3_000, 20), 10);
}

#[test]
fn a_clock_set_back_starts_no_window() {
    let mut key = key(10, 1_000);
    assert_eq!(key.passed(100_000, 20), 10);
    assert_eq!(key.passed(99_500, 20), 0);
    assert_eq!(key.passed(40_000, 20), 0);
    assert_eq!(key.passed(39_999, 20), 0, "a jump");
    let _refused = key.charge_counting_refusals(39_999);
    assert_eq!(key.passed(40_000, 20), 10, "time goes on from there");
}

#[test]
fn a_changed_limit_applies_at_once_and_keeps_the_count() {
    let mut key = key(10, 60_000);
    assert_eq!(key.passed(0, 20), 10);
    key.spec.limit = Excess::requests(15);
    assert_eq!(key.passed(1, 20), 5);
    key.spec.limit = Excess::requests(5);
    assert_eq!(key.passed(59_999, 20), 0);
}

#[test]
fn counted_refusals_change_nothing_after_the_window() {
    let mut key = key(2, 1_000);
    let passed = (0..40)
        .filter(|tick| key.charge_counting_refusals(tick * 50))
        .count();
    assert_eq!(passed, 4);
}

#[test]
fn a_long_idle_key_starts_again_and_no_number_wraps() {
    let mut key = key(10, 60_000);
    assert_eq!(key.passed(0, 20), 10);
    assert_eq!(key.passed(u64::MAX, 20), 10);
    key.debit(u64::MAX, Cost(u64::MAX));
    assert_eq!(key.drained_at(), u64::MAX);
    assert_eq!(key.passed(u64::MAX, 20), 0);
}

proptest! {
    #[test]
    fn every_verdict_matches_a_list_of_requests(
        limit in 1..20u32,
        window in 1..100_000u64,
        requests in requests(),
    ) {
        let (mut list, mut now) = (Vec::new(), 7u64);
        let mut key = key(limit, window);
        for (gap, milli) in requests {
            now += gap;
            let used: u64 = list.iter().filter(|(at, _)| at / window == now / window).map(|(_, milli)| milli).sum();
            let verdict = key.charge_cost(now, Cost::milli(milli));
            let over = used + milli > u64::from(limit) * 1000;
            prop_assert_eq!(refused(&verdict), over);
            if !over {
                list.push((now, milli));
            } else if milli > u64::from(limit) * 1000 {
                prop_assert_eq!(retry(&verdict), None);
            } else {
                prop_assert_eq!(retry(&verdict), Some((now / window + 1) * window - now));
            }
            let left = u64::from(limit) * 1000 - used - if over { 0 } else { milli };
            prop_assert_eq!(key.key_status(now).remaining, left / 1000);
        }
    }
}
