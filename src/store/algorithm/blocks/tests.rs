//! The blocks against the list of what was let through.

use proptest::prelude::*;

use super::*;
use crate::store::algorithm::testing::{Key, refused, requests, retry, whole};

fn key(limit: u32, window: u64, precision: u64) -> Key<Blocks> {
    Key::new(Blocks {
        limit: Excess::requests(limit),
        window: Duration::from_millis(window),
        precision: Duration::from_millis(precision),
    })
}

#[test]
fn a_block_falls_out_as_a_whole() {
    let mut key = key(10, 60_000, 5_000);
    assert_eq!(key.passed(4_999, 4), 4);
    assert_eq!(key.passed(5_000, 20), 6);
    assert_eq!(retry(&key.ask(5_000, Cost::ONE)), Some(55_000));
    assert_eq!(retry(&key.ask(5_000, whole(5))), Some(60_000));
    assert_eq!(key.passed(59_999, 20), 0);
    assert_eq!(key.passed(60_000, 20), 4);
    assert_eq!(key.passed(65_000, 20), 6);
}

#[test]
fn a_cost_beyond_the_limit_never_passes_and_names_no_time() {
    let mut key = key(10, 60_000, 5_000);
    assert_eq!(retry(&key.charge_cost(0, whole(11))), None);
    assert!(!refused(&key.charge_cost(0, whole(10))));
    assert!(!refused(&key.charge_cost(0, Cost(0))));
    key.debit(0, Cost::ONE);
    assert_eq!(retry(&key.ask(0, Cost(0))), Some(60_000));
}

#[test]
fn a_clock_that_goes_back_lets_nothing_fall_out() {
    let mut key = key(10, 1_000, 300);
    assert_eq!(key.passed(99_400, 3), 3);
    assert_eq!(key.passed(100_000, 20), 7);
    assert_eq!(key.passed(99_000, 20), 0);
    assert_eq!(key.passed(30_000, 20), 0, "a jump");
    let _refused = key.charge_all(30_000);
    // Blocks keep their ages: the three are two blocks older than the seven, and the refused one took the place of one
    // of them.
    assert_eq!(key.passed(30_000 + 600, 20), 2);
    assert_eq!(key.passed(30_000 + 1_200, 20), 8);
}

#[test]
fn who_goes_on_asking_stays_out_where_refusals_count() {
    let mut key = key(10, 1_000, 100);
    let passed = (0..100).filter(|tick| key.charge_all(tick * 50)).count();
    assert_eq!(passed, 10);
    assert!(key.charge_all(5_950));
}

#[test]
fn idle_forever_starts_over_and_nothing_wraps() {
    let mut key = key(10, 60_000, 7_000);
    assert_eq!(key.passed(0, 20), 10);
    assert_eq!(key.passed(u64::MAX, 20), 10);
    key.debit(u64::MAX, Cost(u64::MAX));
    key.debit(u64::MAX, Cost(u64::MAX));
    assert_eq!(key.passed(u64::MAX, 20), 0);
}

proptest! {
    #[test]
    fn every_answer_is_that_of_the_list(
        limit in 1..20u32,
        blocks in 1..12u64,
        precision in 1..9_000u64,
        requests in requests(),
    ) {
        let mut list: Vec<(u64, u64)> = Vec::new();
        let mut now = 7u64;
        let mut key = key(limit, blocks * precision, precision);
        for (gap, milli) in requests {
            now += gap;
            let used = |list: &[(u64, u64)], now: u64| -> u64 {
                let oldest = (now / precision + 1).saturating_sub(blocks);
                list.iter().filter(|(at, _)| at / precision >= oldest).map(|(_, milli)| milli).sum()
            };
            let fits = |list: &[(u64, u64)], now| used(list, now) + milli <= u64::from(limit) * 1000;
            let outcome = key.charge_cost(now, Cost::milli(milli));
            prop_assert_eq!(!refused(&outcome), fits(&list, now));
            if fits(&list, now) {
                list.push((now, milli));
            } else if milli > u64::from(limit) * 1000 {
                prop_assert_eq!(retry(&outcome), None);
            } else {
                let wait = retry(&outcome).unwrap();
                prop_assert!(fits(&list, now + wait) && !fits(&list, now + wait - 1), "after {wait}");
            }
            let left = (u64::from(limit) * 1000).saturating_sub(used(&list, now));
            prop_assert_eq!(key.standing(now).remaining, left / 1000);
        }
    }

    #[test]
    fn a_charge_taken_back_leaves_no_trace(requests in requests()) {
        let (mut one, mut other) = (key(5, 9_000, 1_000), key(5, 9_000, 1_000));
        let mut now = 0;
        for (gap, milli) in requests {
            now += gap;
            other.charge_in_vain(now, whole(1));
            let cost = Cost::milli(milli);
            prop_assert_eq!(one.charge_cost(now, cost), other.charge_cost(now, cost));
        }
    }
}
