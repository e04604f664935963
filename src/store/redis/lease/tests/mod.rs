//! Accounts of several gateways at one count, with answers that take their time.

mod account;

use std::time::Duration;

use proptest::prelude::*;

use super::account::{IDLE, LeaseAccount, LeaseGrant, LeaseMode, LeaseRequest, LeaseVerdict};
use crate::algorithm::{
    Algorithm, Cost, Delay, Excess, FixedWindow, LeakyBucket, LimitSpec, Rate, Spent, TokenBucket,
    Verdict,
};
use crate::clock::Millis;
use crate::config::plan::StoreMode;

/// The shared count, as `lease.lua` keeps it.
struct Count<A: Algorithm> {
    numbers: A,
    state: A::State,
    window: u64,
}

impl<A: Algorithm> Count<A> {
    fn answer(&mut self, ask: &LeaseRequest, now: Millis, gateways: u32) -> LeaseGrant {
        let (numbers, state) = (self.numbers, &mut self.state);
        let window = now.0.checked_div(self.window).unwrap_or(0);
        if ask.back > 0 && ask.window == window {
            numbers.refund(state, now, Cost(ask.back), Spent::default());
        }
        numbers.debit(state, now, Cost(ask.owed));
        let outcome = numbers.peek(state, now, Cost::ONE);
        let left = numbers.key_status(state, now).remaining;
        let granted = match outcome {
            Verdict::Refuse { .. } => 0,
            _ => ask.want.min(left).min((left / u64::from(gateways)).max(1)),
        };
        numbers.debit(state, now, Cost(granted * Cost::ONE.0));
        LeaseGrant {
            outcome,
            remaining: left - granted,
            granted,
            lasts: (self.window > 0)
                .then(|| Duration::from_millis(self.window - now.0 % self.window)),
            window,
            penalty: None,
        }
    }
}

/// One gateway, and what it waits for: the question, when it is heard and when the answer is.
struct Gateway {
    account: LeaseAccount,
    asked: Option<(LeaseRequest, Millis, u64)>,
}

fn lease_mode(mode: StoreMode, gateways: u32) -> LeaseMode {
    LeaseMode {
        mode,
        gateways,
        local_above: Some(5),
    }
}

/// When each request passed that was let in, and the most that was ever in hand.
fn simulate<A: Algorithm>(
    spec: LimitSpec,
    mut count: Count<A>,
    lease_mode: LeaseMode,
    steps: &[(u64, usize, u64)],
) -> (Vec<u64>, u64) {
    let start = 1_000_000;
    let mut gateways: Vec<_> = (0..lease_mode.gateways)
        .map(|_| Gateway {
            account: LeaseAccount::new(spec, Millis(start)),
            asked: None,
        })
        .collect();
    let (mut passed, mut most) = (Vec::new(), 0);
    let mut now = start;
    for &(pause, whose, latency) in steps {
        for _ in 0..=pause {
            now += 1;
            let at = Millis(now);
            for gateway in &mut gateways {
                let idle = gateway.account.idle(at, false);
                if let Some(ask) = idle {
                    count.answer(&ask, at, lease_mode.gateways);
                }
                if let Some((ask, sent, heard)) = gateway.asked
                    && heard <= now
                {
                    let grant = count.answer(&ask, at, lease_mode.gateways);
                    gateway.account.settle(sent, at, &grant, lease_mode);
                    gateway.asked = None;
                }
            }
            most = most.max(gateways.iter().map(|one| one.account.left).sum());
        }
        let (at, index) = (Millis(now), whose % gateways.len());
        let gateway = &mut gateways[index];
        let (verdict, wanting) = gateway.account.spend(at, Cost::ONE, lease_mode);
        match verdict {
            LeaseVerdict::Ask => {
                let outcome = count.numbers.charge(&mut count.state, at, Cost::ONE).0;
                gateway.account.learn(at, Cost::ONE, &outcome);
                if !matches!(outcome, Verdict::Refuse { .. }) {
                    passed.push(now);
                }
            }
            LeaseVerdict::Refuse(_) => {}
            LeaseVerdict::Spent(_) => passed.push(now),
        }
        if wanting {
            let ask = gateway.account.prepare(at, lease_mode);
            gateway.asked = Some((ask, at, now + latency));
        }
    }
    (passed, most / Excess::ONE.0)
}

fn steps() -> impl Strategy<Value = Vec<(u64, usize, u64)>> {
    let pause = prop_oneof![10 => Just(0u64), 5 => 0..5u64, 1 => 0..2_000u64];
    prop::collection::vec((pause, 0..4usize, 0..30u64), 1..300)
}

/// The most that passes within any stretch of time, beyond what a rate allows for it.
fn beyond(passed: &[u64], per_second: u64) -> i128 {
    let mut worst = i128::MIN;
    for (first, from) in passed.iter().enumerate() {
        for (last, to) in passed.iter().enumerate().skip(first) {
            let allowed = i128::from(per_second * (to - from)) / 1000;
            let count = i128::try_from(last - first + 1).unwrap();
            worst = worst.max(count - allowed);
        }
    }
    worst
}

proptest! {
    /// From a key's first request on, what passes is the limit and one on credit for each gateway; in any stretch of
    /// time, that and what was in hand when it began.
    #[test]
    fn leases_keep_within_their_bound(
        steps in steps(),
        burst in 0..60u32,
        per_second in 1..500u64,
        gateways in 1..5u32,
        leased in any::<bool>(),
    ) {
        let rate = Rate::per_second(per_second * 1000);
        let numbers = LeakyBucket { rate, burst: Excess::requests(burst), delay: Delay::Never };
        let spec = LimitSpec::LeakyBucket(numbers);
        let count = Count { numbers, state: numbers.new_state(Millis(0)), window: 0 };
        let mode = if leased { StoreMode::Leased } else { StoreMode::Exact };
        let (passed, most) = simulate(spec, count, lease_mode(mode, gateways), &steps);
        let credit = if leased { gateways } else { 0 };
        let limit = i128::from(burst + 1 + credit);
        prop_assert!(most <= spec.quota(), "{most} in hand");
        prop_assert!(beyond(&passed, per_second) <= limit + i128::from(most));
        if let Some((first, last)) = passed.first().zip(passed.last()) {
            let allowed = i128::from(per_second * (last - first)) / 1000;
            prop_assert!(passed.len() as i128 <= limit + allowed);
        }
    }

    #[test]
    fn a_window_lets_pass_what_it_may_and_one_for_each_gateway(
        steps in steps(),
        limit in 1..60u32,
        window in 1..3_000u64,
        gateways in 1..5u32,
    ) {
        let numbers = FixedWindow {
            limit: Excess::requests(limit),
            window: Duration::from_millis(window),
        };
        let spec = LimitSpec::FixedWindow(numbers);
        let count = Count { numbers, state: numbers.new_state(Millis(0)), window };
        let lease_mode = lease_mode(StoreMode::Leased, gateways);
        let (passed, _) = simulate(spec, count, lease_mode, &steps);
        for part in passed.chunk_by(|one, other| one / window == other / window) {
            prop_assert!(part.len() <= (limit + gateways) as usize, "{} of {limit}", part.len());
        }
    }
}

const NOW: Millis = Millis(5_000);

fn after(millis: u64) -> Millis {
    Millis(NOW.0 + millis)
}

fn tokens(burst: u32) -> (LimitSpec, Count<TokenBucket>) {
    let numbers = TokenBucket {
        rate: Rate::per_second(100_000),
        capacity: Excess::requests(burst),
    };
    let count = Count {
        numbers,
        state: numbers.new_state(NOW),
        window: 0,
    };
    (LimitSpec::TokenBucket(numbers), count)
}

fn settle(
    account: &mut LeaseAccount,
    count: &mut Count<TokenBucket>,
    now: Millis,
    lease_mode: LeaseMode,
) -> LeaseRequest {
    let ask = account.prepare(now, lease_mode);
    let grant = count.answer(&ask, now, lease_mode.gateways);
    account.settle(now, now, &grant, lease_mode);
    ask
}

#[test]
fn hot_keys_get_more_and_those_that_come_once_get_nothing() {
    let (spec, mut count) = tokens(100);
    let lease_mode = lease_mode(StoreMode::Leased, 2);
    let mut account = LeaseAccount::new(spec, NOW);
    let pass = LeaseVerdict::Spent(Verdict::Pass { excess: Excess(0) });
    assert_eq!(account.spend(NOW, Cost::ONE, lease_mode), (pass, true));
    let first = settle(&mut account, &mut count, NOW, lease_mode);
    assert_eq!((first.owed, first.want), (Excess::ONE.0, 0));
    let mut wants = Vec::new();
    for step in (10..2_000).step_by(10) {
        let (verdict, wanting) = account.spend(after(step), Cost::ONE, lease_mode);
        assert_eq!(verdict, pass, "at {step}");
        if wanting {
            wants.push(settle(&mut account, &mut count, after(step), lease_mode).want);
        }
    }
    assert_eq!(wants[..3], [2, 8, 30], "{wants:?}");
    assert!(
        wants.iter().all(|want| *want <= 50),
        "half is for the other"
    );
}

#[test]
fn what_lies_idle_goes_back_and_nothing_is_owed() {
    let (spec, mut count) = tokens(100);
    let lease_mode = lease_mode(StoreMode::Leased, 1);
    let mut account = LeaseAccount::new(spec, NOW);
    for step in 0..20 {
        if account.spend(after(step), Cost::ONE, lease_mode).1 {
            settle(&mut account, &mut count, after(step), lease_mode);
        }
    }
    let left = account.left;
    assert!(left > 0);
    assert_eq!(account.idle(after(30), false), None);
    let idle = u64::try_from(IDLE.as_millis()).unwrap();
    let ask = account.idle(after(20 + idle), false).unwrap();
    assert_eq!((ask.back, ask.owed, ask.want), (left, 0, 0));
    assert!(account.is_over(after(20_000)));
}

#[test]
fn what_is_owed_is_told_again_until_it_is_heard() {
    let (spec, mut count) = tokens(100);
    let lease_mode = lease_mode(StoreMode::Leased, 1);
    let mut account = LeaseAccount::new(spec, NOW);
    assert!(!account.wakes(), "nothing is owed");
    account.spend(NOW, Cost::ONE, lease_mode);
    let unheard = account.prepare(NOW, lease_mode);
    assert!(!account.wakes(), "it is being told");
    account.fail(&unheard);
    assert!(account.wakes());
    let heard = settle(&mut account, &mut count, after(10), lease_mode);
    assert_eq!((unheard.owed, heard.owed), (Excess::ONE.0, Excess::ONE.0));
    assert!(!account.wakes());
}

#[test]
fn a_refusal_holds_until_a_moment_before_its_time() {
    let (spec, _) = tokens(10);
    let lease_mode = lease_mode(StoreMode::Exact, 3);
    let mut account = LeaseAccount::new(spec, NOW);
    let refusal = Verdict::Refuse {
        excess: Excess(7),
        retry_after: Some(Duration::from_millis(40)),
    };
    account.learn(NOW, Cost::ONE, &refusal);
    for (later, left) in [(0, 40), (10, 30), (38, 2)] {
        let said = Verdict::Refuse {
            excess: Excess(7),
            retry_after: Some(Duration::from_millis(left)),
        };
        let verdict = account.spend(after(later), Cost::ONE, lease_mode).0;
        assert_eq!(verdict, LeaseVerdict::Refuse(said));
    }
    let smaller = Cost::milli(500);
    assert_eq!(
        account.spend(after(10), smaller, lease_mode).0,
        LeaseVerdict::Ask
    );
    assert_eq!(
        account.spend(after(39), Cost::ONE, lease_mode).0,
        LeaseVerdict::Ask
    );
}

/// A forgotten key would pass on credit like a new one.
#[test]
fn a_key_over_its_limit_is_known_until_it_may_come_back() {
    let numbers = TokenBucket {
        rate: Rate::per_minute(1_000),
        capacity: Excess::requests(1),
    };
    let mut count = Count {
        numbers,
        state: numbers.new_state(NOW),
        window: 0,
    };
    let lease_mode = lease_mode(StoreMode::Leased, 1);
    let mut account = LeaseAccount::new(LimitSpec::TokenBucket(numbers), NOW);
    let passes = |verdict| matches!(verdict, LeaseVerdict::Spent(_));
    assert!(passes(account.spend(NOW, Cost::ONE, lease_mode).0));
    settle(&mut account, &mut count, NOW, lease_mode);
    assert_eq!(
        account.unreported(after(30_000)),
        Some(0),
        "nothing came back"
    );
    assert!(!account.is_over(after(59_000)));
    assert!(!passes(
        account.spend(after(59_000), Cost::ONE, lease_mode).0
    ));
    assert!(!account.is_over(after(61_000)), "it was asked for just now");
    assert!(account.is_over(after(70_000)));
}

#[test]
fn a_limit_smaller_than_the_fleet_is_not_leased() {
    let (spec, _) = tokens(2);
    let mut account = LeaseAccount::new(spec, NOW);
    let lease_mode = lease_mode(StoreMode::Leased, 3);
    for step in 0..100 {
        let verdict = account.spend(after(step), Cost::ONE, lease_mode);
        assert_eq!(verdict, (LeaseVerdict::Ask, false));
    }
}

#[test]
fn too_much_of_a_key_is_noticed_and_forgotten_again() {
    let (spec, mut count) = tokens(10);
    let lease_mode = lease_mode(StoreMode::Exact, 1);
    let mut account = LeaseAccount::new(spec, NOW);
    // Five times the limit: fifty at once, and five hundred a second.
    for step in 0..50 {
        assert_eq!(
            account.spend(NOW, Cost::ONE, lease_mode),
            (LeaseVerdict::Ask, false),
            "{step}"
        );
    }
    assert_eq!(
        account.spend(NOW, Cost::ONE, lease_mode),
        (LeaseVerdict::Ask, true)
    );
    assert!(account.demand.crowded);
    assert!(matches!(
        account.spend(NOW, Cost::ONE, lease_mode).0,
        LeaseVerdict::Refuse(_)
    ));
    assert_eq!(settle(&mut account, &mut count, NOW, lease_mode).want, 10);
    assert!(matches!(
        account.spend(NOW, Cost::ONE, lease_mode).0,
        LeaseVerdict::Spent(_)
    ));
    account.spend(after(40), Cost::ONE, lease_mode);
    assert!(account.demand.crowded, "some less is not enough");
    account.spend(after(100), Cost::ONE, lease_mode);
    assert!(!account.demand.crowded);
}

#[test]
fn leased_requests_wait_where_they_would_have_waited() {
    let numbers = LeakyBucket {
        rate: Rate::per_second(10_000),
        burst: Excess::requests(20),
        delay: Delay::After(Excess(0)),
    };
    let mut account = LeaseAccount::new(LimitSpec::LeakyBucket(numbers), NOW);
    let lease_mode = lease_mode(StoreMode::Leased, 1);
    account.spend(NOW, Cost::ONE, lease_mode);
    account.prepare(NOW, lease_mode);
    let grant = LeaseGrant {
        outcome: Verdict::Delay {
            excess: Excess::requests(3),
            wait: Duration::from_millis(300),
        },
        remaining: 10,
        granted: 5,
        lasts: None,
        window: 0,
        penalty: None,
    };
    account.settle(NOW, NOW, &grant, lease_mode);
    let mut wait = |later| match account.spend(after(later), Cost::ONE, lease_mode).0 {
        LeaseVerdict::Spent(Verdict::Delay { wait, .. }) => wait.as_millis(),
        other => panic!("{other:?}"),
    };
    assert_eq!([wait(0), wait(0), wait(50)], [300, 400, 450]);
}
