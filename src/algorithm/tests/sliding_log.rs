//! The log against a list of the requests that passed, and its memory.

use proptest::prelude::*;

use super::*;
use crate::algorithm::testing::{Key, refused, requests, retry, whole};

fn key(limit: u32, window: u64) -> Key<SlidingLog> {
    Key::new(SlidingLog {
        limit: Excess::requests(limit),
        window: Duration::from_millis(window),
    })
}

#[test]
fn no_window_holds_more_than_the_limit() {
    let mut key = key(10, 60_000);
    assert_eq!(key.passed(59_999, 4), 4);
    assert_eq!(key.passed(60_001, 20), 6);
    assert_eq!(retry(&key.peek(60_001, Cost::ONE)), Some(59_998));
    assert_eq!(key.passed(119_998, 20), 0);
    assert_eq!(key.passed(119_999, 20), 4);
    assert_eq!(key.passed(120_001, 20), 6);
}

#[test]
fn a_cost_beyond_the_limit_is_refused_without_a_time_to_retry() {
    let mut key = key(10, 60_000);
    assert_eq!(retry(&key.charge_cost(0, whole(11))), None);
    assert!(!refused(&key.charge_cost(0, whole(10))));
    assert!(!refused(&key.charge_cost(0, Cost(0))));
    key.debit(5, Cost::ONE);
    assert_eq!(retry(&key.peek(5, Cost(0))), Some(59_995));
}

#[test]
fn requests_of_less_than_one_take_no_more_memory() {
    let mut key = key(5, 60_000);
    for tick in 0..200 {
        key.charge_cost(tick, Cost::milli(100));
    }
    let log = key.state.as_ref().unwrap();
    assert_eq!(log.entries.len(), 5);
    assert!(SlidingLog::heap(log) <= key.spec.max_heap());
    assert_eq!(key.key_status(200).remaining, 0);
    assert_eq!(key.key_status(60_004).remaining, 0, "stricter, never laxer");
    assert_eq!(key.key_status(60_049).remaining, 5);
}

#[test]
fn the_log_never_takes_more_than_max_heap() {
    for limit in [1, 2, 3, 7, 100, 1_000] {
        let mut key = key(limit, 60_000);
        for tick in 0..3_000 {
            key.charge(tick);
            let log = key.state.as_ref().unwrap();
            assert!(SlidingLog::heap(log) <= key.spec.max_heap());
        }
    }
}

#[test]
fn a_clock_set_back_drops_nothing() {
    let mut key = key(10, 1_000);
    assert_eq!(key.passed(99_500, 3), 3);
    assert_eq!(key.passed(100_000, 20), 7);
    assert_eq!(key.passed(99_000, 20), 0);
    assert_eq!(key.passed(30_000, 20), 0, "a jump");
    assert_eq!(key.passed(30_499, 20), 0);
    assert_eq!(key.passed(30_500, 20), 3, "time goes on from there");
    assert_eq!(key.passed(31_000, 20), 7);
}

#[test]
fn counted_refusals_keep_a_client_out() {
    let mut key = key(10, 1_000);
    let passed = (0..100)
        .filter(|tick| key.charge_counting_refusals(tick * 50))
        .count();
    assert_eq!(passed, 10);
    assert!(key.charge_counting_refusals(5_500));
}

#[test]
fn a_long_idle_key_starts_again_and_no_number_wraps() {
    let mut key = key(10, 60_000);
    assert_eq!(key.passed(0, 20), 10);
    assert_eq!(key.passed(u64::MAX, 20), 10);
    key.debit(u64::MAX, Cost(u64::MAX));
    key.debit(u64::MAX, Cost(u64::MAX));
    assert_eq!(key.passed(u64::MAX, 20), 0);
}

#[test]
fn a_smaller_limit_applies_at_once() {
    let mut key = key(10, 60_000);
    assert_eq!(key.passed(0, 20), 10);
    key.spec.limit = Excess::requests(4);
    assert_eq!(key.passed(59_999, 20), 0);
    assert_eq!(key.passed(60_000, 20), 4);
}

proptest! {
    #[test]
    fn every_verdict_matches_a_list_of_requests(
        limit in 1..20u32,
        window in 1..60_000u64,
        gaps in prop::collection::vec((prop_oneof![Just(0u64), 0..5u64, 0..2_000u64, 0..50_000u64], 0..5u64), 1..80),
    ) {
        let mut list: Vec<(u64, u64)> = Vec::new();
        let mut now = 7u64;
        let mut key = key(limit, window);
        for (gap, count) in gaps {
            now += gap;
            let fits = |list: &[(u64, u64)], now: u64| {
                let used: u64 = list.iter().filter(|(at, _)| now - at < window).map(|(_, count)| count).sum();
                used + count <= u64::from(limit)
            };
            let verdict = key.charge_cost(now, whole(count));
            prop_assert_eq!(!refused(&verdict), fits(&list, now));
            if fits(&list, now) {
                list.push((now, count));
            } else if count > u64::from(limit) {
                prop_assert_eq!(retry(&verdict), None);
            } else {
                let wait = retry(&verdict).unwrap();
                prop_assert!(fits(&list, now + wait) && !fits(&list, now + wait - 1), "after {wait}");
            }
        }
    }

    /// As Caddy does it: a ring of times, and a request passes if the oldest is out of the window.
    #[test]
    fn a_ring_of_times_gives_the_same_verdicts(
        limit in 1..20usize,
        window in 1..60_000u64,
        gaps in crate::algorithm::testing::gaps(),
    ) {
        let mut ring = vec![None::<u64>; limit];
        let (mut cursor, mut now) = (0, 7u64);
        let mut key = key(u32::try_from(limit).unwrap(), window);
        for gap in gaps {
            now += gap;
            let admits = ring[cursor].is_none_or(|at| now - at >= window);
            prop_assert_eq!(key.passes(now), admits);
            if admits {
                ring[cursor] = Some(now);
                cursor = (cursor + 1) % limit;
            }
        }
    }

    #[test]
    fn a_refund_leaves_no_trace_in_any_history(requests in requests()) {
        let (mut one, mut other) = (key(50, 9_000), key(50, 9_000));
        let mut now = 0;
        for (gap, milli) in requests {
            now += gap;
            other.charge_and_refund(now, whole(1));
            let cost = Cost::milli(milli);
            prop_assert_eq!(one.charge_cost(now, cost), other.charge_cost(now, cost));
        }
    }
}
