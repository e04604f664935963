//! The token bucket against an oracle that counts tokens, and edge cases.

use proptest::prelude::*;

use super::*;
use crate::algorithm::testing::{Key, rates, refused, requests, retry, whole};

fn key(rate: Rate, capacity: u32) -> Key<TokenBucket> {
    Key::new(TokenBucket {
        rate,
        capacity: Excess::requests(capacity),
    })
}

#[test]
fn a_new_bucket_is_full_and_its_capacity_is_the_burst() {
    let mut key = key(Rate::per_second(1_000), 5);
    assert_eq!(key.passed(0, 9), 5);
    assert_eq!(retry(&key.peek(0, Cost::ONE)), Some(1_000));
    assert_eq!(key.passed(2_000, 9), 2);
    assert_eq!(key.passed(1_000_000, 9), 5, "never more than it holds");
}

#[test]
fn a_cost_beyond_the_capacity_is_refused_without_a_time_to_retry() {
    let mut key = key(Rate::per_second(1_000), 5);
    assert_eq!(retry(&key.charge_cost(0, whole(6))), None);
    assert!(!refused(&key.charge_cost(0, whole(5))));
}

#[test]
fn a_debt_is_paid_first() {
    let mut key = key(Rate::per_second(1_000), 5);
    key.debit(0, whole(8));
    assert_eq!(retry(&key.peek(0, Cost(0))), Some(3_000));
    assert!(!refused(&key.peek(3_000, Cost(0))));
    assert_eq!(retry(&key.peek(0, Cost::ONE)), Some(4_000));
    assert_eq!(key.key_status(0).remaining, 0);
}

#[test]
fn a_clock_set_back_refills_nothing() {
    let mut key = key(Rate::per_second(1_000), 5);
    assert_eq!(key.passed(100_000, 9), 5);
    assert_eq!(key.passed(90_000, 9), 0);
    assert_eq!(key.passed(30_000, 9), 0, "nor when it jumps");
}

#[test]
fn a_slower_rate_keeps_the_taken_tokens() {
    let mut key = key(Rate::per_second(1_000), 5);
    assert_eq!(key.passed(0, 9), 5);
    key.spec.rate = Rate::per_minute(1_000);
    assert_eq!(key.passed(59_999, 9), 0);
    assert_eq!(key.passed(60_000, 9), 1);
}

#[test]
fn a_long_idle_key_is_full_and_no_number_wraps() {
    let mut key = key(Rate::per_second(Rate::MAX_PER_SECOND * 1000), 5);
    assert_eq!(key.passed(0, 9), 5);
    assert_eq!(key.passed(u64::MAX, 9), 5);
    key.debit(u64::MAX, Cost(u64::MAX));
    key.debit(u64::MAX, Cost(u64::MAX));
    assert_eq!(key.passed(u64::MAX, 9), 0);
}

proptest! {
    /// Tokens counted moment by moment: they come at the rate, and never more than fit.
    #[test]
    fn every_verdict_matches_counted_tokens(
        (rate, per_period, period) in rates(),
        capacity in 1..20u32,
        requests in requests(),
    ) {
        // A token is `period` of these; a millisecond brings `per_period`.
        let full = u128::from(capacity) * period;
        let (mut jar, mut then, mut now) = (full, 7, 7);
        let mut key = key(rate, capacity);
        for (gap, milli) in requests {
            now += gap;
            let cost = u128::from(milli) * period / 1000;
            let exact = u128::from(milli) * period % 1000 == 0;
            prop_assume!(exact);
            jar = full.min(jar + per_period * u128::from(now - then));
            then = now;
            let verdict = key.charge_cost(now, Cost::milli(milli));
            prop_assert_eq!(refused(&verdict), cost > jar);
            if cost <= jar {
                jar -= cost;
            } else if cost > full {
                prop_assert_eq!(retry(&verdict), None);
            } else {
                let needed = (cost - jar).div_ceil(per_period);
                prop_assert_eq!(u128::from(retry(&verdict).unwrap()), needed);
            }
            prop_assert_eq!(u128::from(key.key_status(now).remaining), jar / period);
        }
    }

    #[test]
    fn a_refund_leaves_no_trace_in_any_history((rate, ..) in rates(), requests in requests()) {
        let (mut one, mut other) = (key(rate, 3), key(rate, 3));
        let mut now = 0;
        for (gap, milli) in requests {
            now += gap;
            other.charge_and_refund(now, whole(1));
            let cost = Cost::milli(milli);
            prop_assert_eq!(one.charge_cost(now, cost), other.charge_cost(now, cost));
        }
    }
}
