//! Guava's `RateLimiterTest`, and an oracle in permits and seconds.

use proptest::prelude::*;

use super::*;
use crate::algorithm::Algorithm;
use crate::algorithm::testing::{Key, millis, requests, wait, whole};
use crate::clock::Millis;

const FOREVER: Duration = Duration::from_hours(1_000_000);

/// As Guava's: a second's worth is saved.
fn limiter(milli_per_second: u64) -> Key<Smooth<Bursty>> {
    Key::new(numbers(milli_per_second, FOREVER))
}

fn numbers(milli_per_second: u64, max_wait: Duration) -> Smooth<Bursty> {
    let rate = Rate::per_second(milli_per_second);
    Smooth::bursty(rate, max_wait, Excess(rate.units_per_milli() * 1000))
}

/// Acquires as Guava's test does: sleeps and records each wait.
struct Stopwatch {
    now: u64,
    events: Vec<String>,
}

impl Stopwatch {
    fn new() -> Self {
        Self {
            now: 0,
            events: vec![],
        }
    }

    fn acquire(&mut self, limiter: &mut Key<Smooth<Bursty>>, permits: u64) {
        let wait = wait(&limiter.charge_cost(self.now, whole(permits)));
        self.now += wait;
        let hundredths = (wait + 5) / 10;
        self.events
            .push(format!("R{}.{:02}", hundredths / 100, hundredths % 100));
    }
}

#[test]
fn simple_with_wait() {
    let (mut watch, mut limiter) = (Stopwatch::new(), limiter(5_000));
    watch.acquire(&mut limiter, 1);
    watch.now += 200;
    watch.acquire(&mut limiter, 1);
    watch.acquire(&mut limiter, 1);
    assert_eq!(watch.events, ["R0.00", "R0.00", "R0.20"]);
}

#[test]
fn one_second_burst() {
    let (mut watch, mut limiter) = (Stopwatch::new(), limiter(5_000));
    // A key is known from its first request on; Guava's limiter is from when it is made.
    limiter.debit(0, Cost(0));
    watch.now += 2_000;
    for permits in [1, 1, 3, 1, 1] {
        watch.acquire(&mut limiter, permits);
    }
    assert_eq!(watch.events, ["R0.00", "R0.00", "R0.00", "R0.00", "R0.20"]);
}

#[test]
fn simple_weights() {
    let (mut watch, mut limiter) = (Stopwatch::new(), limiter(1_000));
    for permits in [1, 1, 2, 4, 8, 1] {
        watch.acquire(&mut limiter, permits);
    }
    assert_eq!(
        watch.events,
        ["R0.00", "R1.00", "R1.00", "R2.00", "R4.00", "R8.00"]
    );
}

#[test]
fn bursty_and_update() {
    let (mut watch, mut limiter) = (Stopwatch::new(), limiter(1_000));
    watch.acquire(&mut limiter, 1);
    watch.acquire(&mut limiter, 1);
    limiter.spec = numbers(2_000, FOREVER);
    for permits in [1, 2, 4, 1] {
        watch.acquire(&mut limiter, permits);
    }
    assert_eq!(
        watch.events,
        ["R0.00", "R1.00", "R1.00", "R0.50", "R1.00", "R2.00"]
    );
}

#[test]
fn try_acquire_with_some_wait_allowed() {
    let mut limiter = limiter(5_000);
    let mut acquire = |now, timeout| {
        limiter.spec = numbers(5_000, Duration::from_millis(timeout));
        limiter.passes(now)
    };
    assert!(acquire(0, 0));
    assert!(acquire(0, 200));
    assert!(!acquire(0, 100));
    // 300 ms of the 400 are left, of which it would wait 100 only.
    assert!(!acquire(100, 100));
    assert!(acquire(300, 100));
}

#[test]
fn a_burst_of_a_rule_is_saved() {
    let rate = Rate::per_second(10_000);
    let mut key = Key::new(Smooth::bursty(rate, Duration::ZERO, Excess::requests(3)));
    assert_eq!(key.passed(0, 9), 1, "nothing is saved at the start");
    assert_eq!(key.passed(60_000, 9), 4);
    assert_eq!(key.key_status(120_000).remaining, 4);
    assert_eq!(key.spec.quota(), 4);
}

#[test]
fn counted_refusals_keep_a_client_out() {
    let mut key = Key::new(numbers(1_000, Duration::ZERO));
    let passed = (0..60)
        .filter(|tick| key.charge_counting_refusals(tick * 500))
        .count();
    assert_eq!(passed, 1);
    assert!(key.charge_counting_refusals(60 * 500 + 500));
}

#[test]
fn a_clock_set_back_saves_nothing() {
    let mut key = Key::new(numbers(1_000, Duration::ZERO));
    assert_eq!(key.passed(100_000, 9), 1);
    assert_eq!(key.passed(90_000, 9), 0);
    assert_eq!(key.passed(20_000, 9), 0, "a jump");
    key.debit(20_000, Cost(0));
    assert_eq!(key.passed(21_000, 9), 1, "time goes on from there");
}

#[test]
fn no_number_wraps() {
    let mut key = Key::new(numbers(1_000, Duration::ZERO));
    key.debit(0, Cost(u64::MAX));
    assert!(!key.passes(1));
    assert!(millis(key.key_status(1).reset_after) > 1_000_000_000);
    assert!(key.passes(u64::MAX));
}

proptest! {
    /// Guava's arithmetic in permits and seconds: floating point, so off by less than a millisecond.
    #[test]
    fn every_wait_matches_guava(
        milli in 100..1_000_000u64,
        requests in requests(),
    ) {
        let interval = 1e6 / milli as f64;
        let most = 1_000.0 / interval;
        let (mut stored, mut next_free) = (0.0f64, 7.0f64);
        let mut key = limiter(milli);
        key.debit(7, Cost(0));
        let mut now = 7;
        for (gap, milli) in requests {
            now += gap;
            let present = now as f64;
            if present > next_free {
                stored = most.min(stored + (present - next_free) / interval);
                next_free = present;
            }
            let waits = next_free - present;
            let permits = milli as f64 / 1000.0;
            let spend = permits.min(stored);
            next_free += (permits - spend) * interval;
            stored -= spend;
            let waited = wait(&key.charge_cost(now, Cost::milli(milli))) as f64;
            prop_assert!(waited <= waits + 0.01 && waited > waits - 1.01, "{waited} for {waits}");
        }
    }

    #[test]
    fn a_refund_leaves_no_trace_in_any_history(requests in requests()) {
        let (mut one, mut other) = (limiter(1_000), limiter(1_000));
        let mut now = 0;
        for (gap, milli) in requests {
            now += gap;
            other.charge_and_refund(now, whole(3));
            let cost = Cost::milli(milli);
            prop_assert_eq!(one.charge_cost(now, cost), other.charge_cost(now, cost));
            let at = Millis(now);
            let key_status = |key: &Key<Smooth<Bursty>>| key.spec.key_status(key.state.as_ref().unwrap(), at);
            prop_assert_eq!(key_status(&one), key_status(&other));
        }
    }
}
