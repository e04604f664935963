//! What an account says of requests with another cost than the store spoke of.

use proptest::prelude::*;

use super::{LeaseAccount, LeaseGrant, *};
use crate::algorithm::{
    Algorithm, Delay, FixedWindow, Gcra, LeakyBucket, Rate, SlidingLog, TokenBucket,
};
use crate::config::plan::StoreMode;
use crate::store::redis::lease::{LeaseMode, LeaseVerdict};

const NOW: Millis = Millis(5_000);

fn after(millis: u64) -> Millis {
    Millis(NOW.0 + millis)
}

fn lease_mode(mode: StoreMode, gateways: u32) -> LeaseMode {
    LeaseMode {
        mode,
        gateways,
        local_above: Some(5),
    }
}

fn retry_after(verdict: LeaseVerdict) -> Option<u64> {
    match verdict {
        LeaseVerdict::Refuse(Verdict::Refuse { retry_after, .. }) => {
            retry_after.map(|after| u64::try_from(after.as_millis()).unwrap())
        }
        other => panic!("{other:?}"),
    }
}

/// 1r/s and a burst of 9 of which each request takes 5: the third one has to wait for five seconds, not for one.
#[test]
fn a_refusal_that_was_told_for_one_request_names_the_time_of_a_heavier_one() {
    let numbers = LeakyBucket {
        rate: Rate::per_second(1_000),
        burst: Excess::requests(9),
        delay: Delay::Never,
    };
    let spec = LimitSpec::LeakyBucket(numbers);
    let mut state = numbers.new_state(NOW);
    let (lease_mode, five) = (lease_mode(StoreMode::Leased, 2), Cost::milli(5_000));
    let mut account = LeaseAccount::new(spec, NOW);
    for _ in 0..2 {
        assert_eq!(account.spend(NOW, five, lease_mode).0, LeaseVerdict::Ask);
        let outcome = numbers.charge(&mut state, NOW, five).0;
        assert!(matches!(outcome, Verdict::Pass { .. }));
    }
    account.prepare(NOW, lease_mode);
    let grant = LeaseGrant {
        outcome: numbers.peek(&state, NOW, Cost::ONE),
        remaining: 0,
        granted: 0,
        lasts: None,
        window: 0,
        penalty: None,
    };
    account.settle(NOW, after(3), &grant, lease_mode);
    let mut told = |later, cost| retry_after(account.spend(after(later), cost, lease_mode).0);
    assert_eq!(told(3, five), Some(5_000));
    assert_eq!(told(103, five), Some(4_900));
    assert_eq!(told(103, Cost::ONE), Some(901));
    assert_eq!(told(103, Cost::milli(2_500)), Some(2_400));
    assert_eq!(told(103, Cost::milli(10_000)), Some(9_900));
    assert_eq!(told(103, Cost::milli(10_001)), None, "it never passes");
    assert_eq!(
        account.spend(after(1_100), five, lease_mode).0,
        LeaseVerdict::Ask
    );
    let outcome = numbers.peek(&state, after(5_003), five);
    assert!(matches!(outcome, Verdict::Pass { .. }));
}

proptest! {
    /// What the store said of one cost is said of another as the store would have said it, or not at all.
    #[test]
    fn a_remembered_refusal_is_true_for_every_cost(
        kind in 0..5u8,
        limit in 1..20u32,
        debt in 0..40_000u64,
        told in 1..8_000u64,
        asked in 1..25_000u64,
        later in 0..500u64,
    ) {
        let (rate, requests) = (Rate::per_second(3_000), Excess::requests(limit));
        let window = Duration::from_secs(2);
        match kind {
            0 => remembered(LimitSpec::FixedWindow, FixedWindow { limit: requests, window }, debt, told, asked, later),
            1 => remembered(LimitSpec::Gcra, Gcra::new(rate, requests), debt, told, asked, later),
            2 => {
                let numbers = LeakyBucket { rate, burst: requests, delay: Delay::Never };
                remembered(LimitSpec::LeakyBucket, numbers, debt, told, asked, later)
            }
            3 => remembered(LimitSpec::SlidingLog, SlidingLog { limit: requests, window }, debt, told, asked, later),
            _ => remembered(LimitSpec::TokenBucket, TokenBucket { rate, capacity: requests }, debt, told, asked, later),
        }?;
    }
}

fn remembered<A: Algorithm>(
    spec: fn(A) -> LimitSpec,
    numbers: A,
    debt: u64,
    told: u64,
    asked: u64,
    later: u64,
) -> Result<(), TestCaseError> {
    let lease_mode = lease_mode(StoreMode::Exact, 2);
    let mut account = LeaseAccount::new(spec(numbers), NOW);
    let mut state = numbers.new_state(NOW);
    numbers.debit(&mut state, NOW, Cost::milli(debt));
    let told = Cost::milli(told);
    account.learn(NOW, told, &numbers.peek(&state, NOW, told));
    let cost = Cost::milli(asked);
    let LeaseVerdict::Refuse(said) = account.spend(after(later), cost, lease_mode).0 else {
        return Ok(());
    };
    match (said, numbers.peek(&state, after(later), cost)) {
        (
            Verdict::Refuse {
                retry_after: said, ..
            },
            Verdict::Refuse { retry_after, .. },
        ) => {
            // gcra counts in nanoseconds and both round up.
            let millis = |after: Option<Duration>| after.map(|after| after.as_millis());
            let apart = millis(said)
                .zip(millis(retry_after))
                .map(|(one, other)| one.abs_diff(other));
            prop_assert_eq!(said.is_some(), retry_after.is_some());
            prop_assert!(
                apart.is_none_or(|apart| apart <= 1),
                "{:?} and not {:?}",
                said,
                retry_after
            );
        }
        (said, true_one) => prop_assert!(false, "{:?} and not {:?}", said, true_one),
    }
    Ok(())
}

/// Far more is wanted than can pass, and the answer is on its way.
#[test]
fn who_is_refused_in_a_crowd_is_told_when_so_much_is_earned() {
    let spec = LimitSpec::TokenBucket(TokenBucket {
        rate: Rate::per_second(100_000),
        capacity: Excess::requests(10),
    });
    let lease_mode = lease_mode(StoreMode::Exact, 1);
    let mut account = LeaseAccount::new(spec, NOW);
    for _ in 0..51 {
        account.spend(NOW, Cost::ONE, lease_mode);
    }
    assert!(account.demand.crowded);
    let mut told = |cost| retry_after(account.spend(NOW, cost, lease_mode).0);
    // A hundred a second; no sooner than the next question.
    assert_eq!(told(Cost::ONE), Some(25));
    assert_eq!(told(Cost::milli(8_000)), Some(80));
}
