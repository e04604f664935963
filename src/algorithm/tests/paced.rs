//! The queue against one that is simulated request by request.

use proptest::prelude::*;

use super::*;
use crate::algorithm::testing::{Key, rates, refused, requests, retry, wait, whole};

fn key(rate: Rate, max_wait: u64) -> Key<Paced> {
    Key::new(Paced {
        rate,
        max_wait: Duration::from_millis(max_wait),
    })
}

#[test]
fn requests_at_once_leave_one_after_the_other() {
    let mut key = key(Rate::per_second(10_000), 500);
    let waits: Vec<_> = (0..6).map(|_| wait(&key.charge(0))).collect();
    assert_eq!(waits, [0, 100, 200, 300, 400, 500]);
    assert_eq!(retry(&key.charge(0)), Some(100));
    assert_eq!(wait(&key.charge(100)), 500);
}

#[test]
fn nothing_is_saved_while_idle() {
    let mut key = key(Rate::per_second(10_000), 500);
    key.charge(0);
    assert_eq!(wait(&key.charge(1_000_000)), 0);
    assert_eq!(wait(&key.charge(1_000_000)), 100);
}

#[test]
fn a_higher_cost_passes_at_once_and_delays_the_next_request() {
    let mut key = key(Rate::per_second(10_000), 500);
    assert_eq!(wait(&key.charge_cost(0, whole(7))), 0);
    assert_eq!(retry(&key.charge(0)), Some(200));
    assert_eq!(wait(&key.charge(200)), 500);
}

#[test]
fn a_debt_delays_every_request() {
    let mut key = key(Rate::per_second(10_000), 500);
    key.debit(0, whole(50));
    assert_eq!(retry(&key.peek(0, Cost(0))), Some(4_500));
    assert_eq!(key.key_status(0).remaining, 0);
    assert_eq!(key.key_status(4_500).remaining, 1);
}

#[test]
fn without_max_wait_one_request_passes_at_a_time() {
    let mut key = key(Rate::per_second(2_000), 0);
    assert_eq!(key.passed(0, 5), 1);
    assert_eq!(key.passed(499, 5), 0);
    assert_eq!(key.passed(500, 5), 1);
}

#[test]
fn counted_refusals_keep_a_client_out() {
    let mut key = key(Rate::per_second(1_000), 2_000);
    let passed = (0..60)
        .filter(|tick| key.charge_counting_refusals(tick * 500))
        .count();
    assert_eq!(passed, 5);
    assert!(key.charge_counting_refusals(60 * 500 + 500));
}

#[test]
fn a_clock_set_back_drains_nothing() {
    let mut key = key(Rate::per_second(1_000), 2_000);
    assert_eq!(key.passed(100_000, 9), 3);
    assert_eq!(key.passed(95_000, 9), 0);
    assert_eq!(key.passed(20_000, 9), 0);
}

proptest! {
    /// Each request is served when all before it are, and refused when that is too late.
    #[test]
    fn every_verdict_matches_a_simulated_queue(
        (rate, per_period, period) in rates(),
        max_wait in 0..3_000u64,
        requests in requests(),
    ) {
        // When the next one is served, in `per_period`ths of a millisecond.
        let (mut next, mut now) = (0u128, 7);
        let mut key = key(rate, max_wait);
        for (gap, milli) in requests {
            now += gap;
            prop_assume!(u128::from(milli) * period % 1000 == 0);
            let present = u128::from(now) * per_period;
            next = next.max(present);
            let latest = present + u128::from(max_wait) * per_period;
            let verdict = key.charge_cost(now, Cost::milli(milli));
            prop_assert_eq!(refused(&verdict), next > latest);
            if next > latest {
                let early = (next - latest).div_ceil(per_period);
                prop_assert_eq!(retry(&verdict).map(u128::from), Some(early));
            } else {
                prop_assert_eq!(u128::from(wait(&verdict)), (next - present) / per_period);
                next += u128::from(milli) * period / 1000;
            }
        }
    }
}
