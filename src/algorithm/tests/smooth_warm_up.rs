//! Guava's `RateLimiterTest` for warming up, Sentinel's curve, and an oracle that adds up small slices.

use proptest::prelude::*;

use super::*;
use crate::algorithm::testing::{Key, requests, wait, whole};
use crate::algorithm::{Algorithm, Cost};

const FOREVER: Duration = Duration::from_hours(1_000_000);

fn numbers(milli_per_second: u64, warm_up: u64) -> Smooth<WarmUp> {
    Smooth::warm_up(
        Rate::per_second(milli_per_second),
        FOREVER,
        Duration::from_millis(warm_up),
    )
}

/// Acquires permits one after the other, sleeps each wait, and prints them as Guava's test does.
fn acquire(limiter: &mut Key<Smooth<WarmUp>>, now: &mut u64, times: usize) -> String {
    let waits = (0..times).map(|_| {
        let wait = wait(&limiter.charge(*now));
        *now += wait;
        let hundredths = (wait + 5) / 10;
        format!("R{}.{:02}", hundredths / 100, hundredths % 100)
    });
    waits.collect::<Vec<_>>().join(", ")
}

const COLD: &str = "R0.00, R1.38, R1.13, R0.88, R0.63, R0.50, R0.50, R0.50";

#[test]
fn guavas_warm_up() {
    let (mut limiter, mut now) = (Key::new(numbers(2_000, 4_000)), 0);
    assert_eq!(acquire(&mut limiter, &mut now, 8), COLD);
    now += 500 + 4_000;
    assert_eq!(acquire(&mut limiter, &mut now, 8), COLD, "cold again");
    now += 500 + 2_000;
    assert_eq!(
        acquire(&mut limiter, &mut now, 8),
        "R0.00, R0.50, R0.50, R0.50, R0.50, R0.50, R0.50, R0.50",
        "it takes another two seconds to go cold"
    );
}

#[test]
fn guavas_warm_up_and_update() {
    let (mut limiter, mut now) = (Key::new(numbers(2_000, 4_000)), 0);
    assert_eq!(acquire(&mut limiter, &mut now, 8), COLD);
    now += 4_500;
    assert_eq!(acquire(&mut limiter, &mut now, 3), "R0.00, R1.38, R1.13");
    limiter.spec = numbers(4_000, 4_000);
    assert_eq!(
        acquire(&mut limiter, &mut now, 1),
        "R0.88",
        "the old rate's"
    );
    assert_eq!(
        acquire(&mut limiter, &mut now, 4),
        "R0.34, R0.28, R0.25, R0.25"
    );
    now += 4_250;
    assert_eq!(
        acquire(&mut limiter, &mut now, 11),
        "R0.00, R0.72, R0.66, R0.59, R0.53, R0.47, R0.41, R0.34, R0.28, R0.25, R0.25"
    );
}

/// As in Guava. With a cold factor of three, what is beyond the threshold is half of what can be saved.
#[test]
fn the_warm_up_time_does_not_depend_on_costs() {
    for weights in [&[10][..], &[1; 10], &[5, 1, 4], &[3, 3, 3, 1]] {
        for milli_per_second in [4_000, 2_000, 1_000, 500, 100] {
            let warm_up = 20 * 1_000_000 / milli_per_second;
            let mut limiter = Key::new(numbers(milli_per_second, warm_up));
            let mut now = 0;
            for &permits in weights {
                now += wait(&limiter.charge_cost(now, whole(permits)));
            }
            now += wait(&limiter.charge(now));
            assert_eq!(now, warm_up);
        }
    }
}

/// Sentinel's curve for 10 per second in 10 s: 3.33 per second when all is saved, and the full rate from half on.
#[test]
fn a_cold_key_has_a_third_of_the_rate_and_a_warm_one_all_of_it() {
    let price = |saved: u64| {
        let most = 10_000_000_000;
        WarmUp::of(Nanos(saved), Nanos(1_000_000), Nanos(most)).0
    };
    assert_eq!(price(10_000_000_000) / 1_000, 2_999);
    assert_eq!(price(7_500_500_000) / 1_000, 2_000);
    assert_eq!(price(5_000_000_000), 1_000_000);
    assert_eq!(price(1_000_000), 1_000_000);
}

#[test]
fn a_request_that_would_wait_too_long_is_refused() {
    let rate = Rate::per_second(2_000);
    let spec = Smooth::warm_up(rate, Duration::from_secs(1), Duration::from_secs(4));
    let mut key = Key::new(spec);
    assert_eq!(key.passed(0, 9), 1);
    assert_eq!(key.passed(374, 9), 0);
    assert_eq!(key.passed(375, 9), 1);
    assert_eq!(key.key_status(375).remaining, 0);
}

#[test]
fn a_forgotten_key_is_cold_and_gains_nothing() {
    let mut key = Key::new(numbers(2_000, 4_000));
    let mut now = 0;
    acquire(&mut key, &mut now, 8);
    let drained = key.drained_at();
    assert_eq!(drained, now + 500 + 4_000);
    let fresh = key.spec.new_state(Millis(drained));
    let key_status = |state| key.spec.key_status(state, Millis(drained));
    assert_eq!(key_status(key.state.as_ref().unwrap()), key_status(&fresh));
}

#[test]
fn a_clock_set_back_pays_nothing() {
    let rate = Rate::per_second(1_000);
    let mut key = Key::new(Smooth::warm_up(
        rate,
        Duration::ZERO,
        Duration::from_secs(4),
    ));
    assert_eq!(key.passed(100_000, 9), 1);
    assert_eq!(key.passed(90_000, 9), 0);
    assert_eq!(key.passed(20_000, 9), 0);
}

#[test]
fn no_number_wraps() {
    let mut key = Key::new(Smooth::warm_up(
        Rate::per_day(1),
        FOREVER,
        Duration::from_secs(u64::MAX),
    ));
    key.debit(0, Cost(u64::MAX));
    key.charge(u64::MAX);
    key.charge(0);
}

proptest! {
    /// The price of each permit by Guava's curve, added up in slices of a thousandth.
    #[test]
    fn every_wait_matches_the_area_under_guavas_curve(
        milli in 500..20_000u64,
        warm_up in 1_000..20_000u64,
        requests in requests(),
    ) {
        let stable = 1e6 / milli as f64;
        let most = warm_up as f64 / stable;
        let threshold = most / 2.0;
        let slope = 2.0 * stable / (most - threshold);
        let (mut stored, mut next_free) = (most, 7.0f64);
        let mut key = Key::new(numbers(milli, warm_up));
        let mut now = 7;
        for (gap, milli) in requests {
            now += gap;
            let present = now as f64;
            if present > next_free {
                stored = most.min(stored + (present - next_free) / stable);
                next_free = present;
            }
            let waits = next_free - present;
            for _ in 0..milli {
                let slice = stored.min(0.001);
                let middle = stored - slice / 2.0;
                let interval = stable + slope * (middle - threshold).max(0.0);
                next_free += slice * interval + (0.001 - slice) * stable;
                stored -= slice;
            }
            let waited = wait(&key.charge_cost(now, Cost::milli(milli))) as f64;
            prop_assert!(waited <= waits + 0.1 && waited > waits - 1.1, "{waited} for {waits}");
        }
    }

    #[test]
    fn a_refund_leaves_no_trace_in_any_history(requests in requests()) {
        let (mut one, mut other) = (Key::new(numbers(2_000, 4_000)), Key::new(numbers(2_000, 4_000)));
        let mut now = 0;
        for (gap, milli) in requests {
            now += gap;
            other.charge_and_refund(now, whole(3));
            let cost = Cost::milli(milli);
            let difference = wait(&one.charge_cost(now, cost)).abs_diff(wait(&other.charge_cost(now, cost)));
            // A nanosecond is lost now and then to the rounding of the area.
            prop_assert!(difference <= 1);
        }
    }
}
