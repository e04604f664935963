//! The log against the list of what was let through, and how much of it is kept.

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
fn no_window_wherever_it_begins_has_more_than_the_limit() {
    let mut key = key(10, 60_000);
    assert_eq!(key.passed(59_999, 4), 4);
    assert_eq!(key.passed(60_001, 20), 6);
    assert_eq!(retry(&key.ask(60_001, Cost::ONE)), Some(59_998));
    assert_eq!(key.passed(119_998, 20), 0);
    assert_eq!(key.passed(119_999, 20), 4);
    assert_eq!(key.passed(120_001, 20), 6);
}

#[test]
fn a_cost_beyond_the_limit_never_passes_and_names_no_time() {
    let mut key = key(10, 60_000);
    assert_eq!(retry(&key.charge_cost(0, whole(11))), None);
    assert!(!refused(&key.charge_cost(0, whole(10))));
    assert!(!refused(&key.charge_cost(0, Cost(0))));
    key.debit(5, Cost::ONE);
    assert_eq!(retry(&key.ask(5, Cost(0))), Some(59_995));
}

#[test]
fn requests_of_less_than_one_take_no_more_room() {
    let mut key = key(5, 60_000);
    for tick in 0..200 {
        key.charge_cost(tick, Cost::milli(100));
    }
    let journal = key.state.as_ref().unwrap();
    assert_eq!(journal.entries.len(), 5);
    assert!(SlidingLog::heap(journal) <= key.spec.most_heap());
    assert_eq!(key.key_status(200).remaining, 0);
    assert_eq!(key.key_status(60_004).remaining, 0, "stricter, never laxer");
    assert_eq!(key.key_status(60_049).remaining, 5);
}

#[test]
fn it_never_takes_more_than_it_said() {
    for limit in [1, 2, 3, 7, 100, 1_000] {
        let mut key = key(limit, 60_000);
        for tick in 0..3_000 {
            key.charge(tick);
            let journal = key.state.as_ref().unwrap();
            assert!(SlidingLog::heap(journal) <= key.spec.most_heap());
        }
    }
}

#[test]
fn a_clock_that_goes_back_lets_nothing_fall_out() {
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
fn who_goes_on_asking_stays_out_where_refusals_count() {
    let mut key = key(10, 1_000);
    let passed = (0..100).filter(|tick| key.charge_all(tick * 50)).count();
    assert_eq!(passed, 10);
    assert!(key.charge_all(5_500));
}

#[test]
fn idle_forever_starts_over_and_nothing_wraps() {
    let mut key = key(10, 60_000);
    assert_eq!(key.passed(0, 20), 10);
    assert_eq!(key.passed(u64::MAX, 20), 10);
    key.debit(u64::MAX, Cost(u64::MAX));
    key.debit(u64::MAX, Cost(u64::MAX));
    assert_eq!(key.passed(u64::MAX, 20), 0);
}

#[test]
fn a_smaller_limit_holds_at_once() {
    let mut key = key(10, 60_000);
    assert_eq!(key.passed(0, 20), 10);
    key.spec.limit = Excess::requests(4);
    assert_eq!(key.passed(59_999, 20), 0);
    assert_eq!(key.passed(60_000, 20), 4);
}

proptest! {
    #[test]
    fn every_answer_is_that_of_the_list(
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
            let outcome = key.charge_cost(now, whole(count));
            prop_assert_eq!(!refused(&outcome), fits(&list, now));
            if fits(&list, now) {
                list.push((now, count));
            } else if count > u64::from(limit) {
                prop_assert_eq!(retry(&outcome), None);
            } else {
                let wait = retry(&outcome).unwrap();
                prop_assert!(fits(&list, now + wait) && !fits(&list, now + wait - 1), "after {wait}");
            }
        }
    }

    /// Caddy's way to the same answers: a ring of moments, and a request is let in that finds the oldest out of the window.
    #[test]
    fn a_ring_of_moments_says_the_same(
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
    fn a_charge_taken_back_leaves_no_trace(requests in requests()) {
        let (mut one, mut other) = (key(50, 9_000), key(50, 9_000));
        let mut now = 0;
        for (gap, milli) in requests {
            now += gap;
            other.charge_in_vain(now, whole(1));
            let cost = Cost::milli(milli);
            prop_assert_eq!(one.charge_cost(now, cost), other.charge_cost(now, cost));
        }
    }
}
