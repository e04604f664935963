//! Requests that cost more or less than one, and debits.

use super::*;

#[test]
fn a_request_with_a_higher_cost_counts_as_several() {
    let mut key = Key::new(Rate::per_second(1_000), 9, Delay::Never);
    let cost = |count: u64| Cost::milli(count * 1000);
    assert_eq!(
        key.charge_cost(0, cost(4)),
        Verdict::Pass {
            excess: Excess::requests(3)
        }
    );
    assert!(matches!(key.charge_cost(0, cost(6)), Verdict::Pass { .. }));
    assert_eq!(
        key.charge_cost(0, cost(3)),
        Verdict::Refuse {
            excess: Excess::requests(12),
            retry_after: Some(Duration::from_secs(3)),
        }
    );
    assert!(matches!(
        key.charge_cost(3_000, cost(3)),
        Verdict::Pass { .. }
    ));
}

#[test]
fn a_cost_beyond_the_capacity_is_refused_without_a_time_to_retry() {
    let mut key = Key::new(Rate::per_second(1_000), 9, Delay::Never);
    for now in [0, 1_000_000] {
        let verdict = key.charge_cost(now, Cost::milli(10_001));
        assert!(
            matches!(
                verdict,
                Verdict::Refuse {
                    retry_after: None,
                    ..
                }
            ),
            "{verdict:?}"
        );
    }
    assert!(matches!(
        key.charge_cost(1_000_000, Cost::milli(10_000)),
        Verdict::Pass { .. }
    ));
}

#[test]
fn a_cost_of_zero_passes_unless_the_key_is_in_debt() {
    let mut key = Key::new(Rate::per_second(1_000), 0, Delay::Never);
    key.charge(0);
    assert!(matches!(key.charge_cost(0, Cost(0)), Verdict::Pass { .. }));
    let bucket = key.bucket.as_mut().unwrap();
    key.spec.debit(bucket, Millis(0), Cost::milli(2_000));
    let refused = |wait| Verdict::Refuse {
        excess: Excess::requests(2),
        retry_after: Some(Duration::from_millis(wait)),
    };
    assert_eq!(key.charge_cost(0, Cost(0)), refused(2_000));
    assert!(matches!(
        key.charge_cost(2_000, Cost(0)),
        Verdict::Pass { .. }
    ));
}

#[test]
fn counted_refusals_keep_a_client_out() {
    let mut key = Key::new(Rate::per_second(1_000), 2, Delay::Never);
    for now in (0..30_000).step_by(500) {
        let verdict = key.charge(now);
        let refused = matches!(verdict, Verdict::Refuse { .. });
        assert_eq!(refused, now > 2_000, "at {now}");
        if refused {
            let bucket = key.bucket.as_mut().unwrap();
            key.spec.count_refused(bucket, Millis(now), Cost::ONE);
        }
    }
    assert!(matches!(key.charge(30_500), Verdict::Pass { .. }));
}

#[test]
fn the_status_predicts_the_next_verdicts() {
    let mut key = Key::new(Rate::per_second(1_000), 4, Delay::Never);
    let key_status = |key: &Key, now| {
        key.spec
            .key_status(key.bucket.as_ref().unwrap(), Millis(now))
    };
    let expected = |excess, remaining, retry, reset| KeyStatus {
        excess: Excess::requests(excess),
        limit: 5,
        remaining,
        retry_after: Duration::from_millis(retry),
        reset_after: Duration::from_millis(reset),
    };
    key.charge(0);
    assert_eq!(key_status(&key, 0), expected(0, 4, 0, 1_000));
    for _ in 0..4 {
        key.charge(0);
    }
    assert_eq!(key_status(&key, 0), expected(4, 0, 1_000, 5_000));
    assert_eq!(key_status(&key, 9_000), expected(0, 5, 0, 0));
}
