//! GCRA against redis-cell's published reply, an oracle, and edge cases.

use proptest::prelude::*;

use super::*;
use crate::algorithm::testing::{Key, rates, refused, requests, retry, whole};

fn key(rate: Rate, burst: u32) -> Key<Gcra> {
    Key::new(Gcra::new(rate, Excess::requests(burst)))
}

/// redis-cell's five integers for `CL.THROTTLE key 4 1 1`: seconds are rounded up.
#[test]
fn the_reply_matches_redis_cell() {
    let mut key = key(Rate::per_second(1_000), 4);
    let mut throttle = |now| {
        let verdict = key.charge(now);
        let key_status = key.key_status(now);
        let seconds = |time: Duration| time.as_millis().div_ceil(1000);
        let retry = match verdict {
            Verdict::Refuse { retry_after, .. } => seconds(retry_after.unwrap()).to_string(),
            _ => "-1".to_owned(),
        };
        format!(
            "{} {} {} {retry} {}",
            u8::from(refused(&verdict)),
            key_status.limit,
            key_status.remaining,
            seconds(key_status.reset_after)
        )
    };
    let replies: Vec<_> = (0..6).map(|_| throttle(0)).collect();
    assert_eq!(
        replies,
        [
            "0 5 4 -1 1",
            "0 5 3 -1 2",
            "0 5 2 -1 3",
            "0 5 1 -1 4",
            "0 5 0 -1 5",
            "1 5 0 1 5"
        ]
    );
}

/// The example of redis-cell's README: `CL.THROTTLE user123 15 30 60`, called once.
#[test]
fn a_burst_of_fifteen_admits_sixteen() {
    let mut key = key(Rate::per_minute(30_000), 15);
    key.charge(0);
    let key_status = key.key_status(0);
    assert_eq!((key_status.limit, key_status.remaining), (16, 15));
    assert_eq!(key_status.reset_after, Duration::from_secs(2));
}

#[test]
fn a_fraction_of_a_second_is_enough_to_be_refused() {
    let mut key = key(Rate::per_second(1_000), 0);
    assert_eq!(key.passed(0, 3), 1);
    assert_eq!(key.passed(999, 3), 0);
    assert_eq!(key.passed(1_000, 3), 1);
}

#[test]
fn a_cost_of_zero_peeks_and_a_cost_beyond_the_burst_never_passes() {
    let mut key = key(Rate::per_second(1_000), 4);
    assert!(!refused(&key.charge_cost(0, Cost(0))));
    assert_eq!(key.key_status(0).remaining, 5);
    assert_eq!(retry(&key.charge_cost(0, whole(6))), None);
    assert!(!refused(&key.charge_cost(0, whole(5))));
    assert!(!refused(&key.charge_cost(0, Cost(0))), "full, not in debt");
    key.debit(0, whole(2));
    assert_eq!(retry(&key.charge_cost(0, Cost(0))), Some(2_000));
}

#[test]
fn a_clock_set_back_changes_nothing() {
    let mut key = key(Rate::per_second(1_000), 4);
    assert_eq!(key.passed(100_000, 9), 5);
    assert_eq!(key.passed(99_000, 9), 0);
    assert_eq!(key.passed(101_000, 9), 1);
    assert_eq!(key.passed(10_000, 9), 0, "a jump");
    assert!(refused(&key.peek(10_000, Cost::ONE)));
    key.debit(10_000, Cost(0));
    assert_eq!(key.passed(11_000, 9), 1, "time goes on from there");
}

#[test]
fn a_changed_rate_keeps_the_arrival_time() {
    let mut key = key(Rate::per_second(1_000), 4);
    assert_eq!(key.passed(0, 9), 5);
    key.spec = Gcra::new(Rate::per_second(2_000), Excess::requests(4));
    assert_eq!(key.passed(2_499, 9), 0);
    assert_eq!(key.passed(3_000, 9), 1);
}

#[test]
fn a_long_idle_key_is_full_and_no_number_wraps() {
    let mut key = key(Rate::per_day(1), 4);
    assert_eq!(key.passed(0, 9), 5);
    key.debit(1, Cost(u64::MAX));
    assert!(refused(&key.peek(1, Cost::ONE)));
    assert!(key.drained_at() > 1_000_000_000_000);
    let mut other = self::key(Rate::per_second(1_000), 4);
    other.charge(0);
    assert_eq!(other.key_status(u64::MAX / 1_000_000).remaining, 5);
}

proptest! {
    /// The textbook's theoretical arrival times, in whole nanoseconds as in redis-cell.
    #[test]
    fn every_verdict_matches_the_textbook(
        (rate, per_period, period) in rates(),
        burst in 0..20u32,
        requests in requests(),
    ) {
        let interval = i128::try_from(period * 1_000_000 / per_period).unwrap();
        let variation = interval * i128::from(burst + 1);
        let (mut arrival, mut now) = (0i128, 7u64);
        let mut key = key(rate, burst);
        for (gap, milli) in requests {
            now += gap;
            let present = i128::from(now) * 1_000_000;
            let next = arrival.max(present) + interval * i128::from(milli) / 1000;
            let allowed_at = next - variation;
            let verdict = key.charge_cost(now, Cost::milli(milli));
            prop_assert_eq!(refused(&verdict), present < allowed_at);
            if present >= allowed_at {
                arrival = next;
            } else if interval * i128::from(milli) / 1000 > variation {
                prop_assert_eq!(retry(&verdict), None);
            } else {
                let wait = u64::try_from(allowed_at - present).unwrap().div_ceil(1_000_000);
                prop_assert_eq!(retry(&verdict), Some(wait));
            }
            let left = variation - (arrival - present).max(0);
            prop_assert_eq!(i128::from(key.key_status(now).remaining), (left / interval).max(0));
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
