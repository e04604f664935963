//! A limit that is smaller than the fleet leaves each gateway something while it counts alone.

use super::*;
use crate::algorithm::{Blocks, Smooth};

/// How many pass at once by these terms at one of so many gateways that count alone.
fn at_once(spec: &LimitSpec, gateways: u32) -> usize {
    let zone = RateZone::new("zone", 1 << 20, spec, false);
    let (key, now) = (Key::from_bytes(b"key"), Millis(1_700_000_000_000));
    let share = crate::store::redis::fleet::share(Cost::ONE, spec, gateways, 1);
    (0..50)
        .filter(|_| {
            let (outcome, _) = zone.charge(&key, now, share.needs, spec);
            let passes = matches!(outcome, Verdict::Pass { .. });
            if passes {
                zone.debit(&key, now, share.owes, spec);
            }
            passes
        })
        .count()
}

/// Of every kind one that lets so many pass at once, in an hour.
fn kinds(limit: u32) -> Vec<LimitSpec> {
    let requests = Excess::requests(limit);
    let besides = Excess::requests(limit - 1);
    let rate = Rate::per_hour(u64::from(limit) * 1_000);
    let window = Duration::from_hours(1);
    let precision = Duration::from_mins(6);
    vec![
        LimitSpec::LeakyBucket(LeakyBucket {
            rate,
            burst: besides,
            delay: Delay::Never,
        }),
        LimitSpec::TokenBucket(TokenBucket {
            rate,
            capacity: requests,
        }),
        LimitSpec::Gcra(Gcra::new(rate, besides)),
        LimitSpec::Paced(Paced {
            rate,
            max_wait: Duration::ZERO,
        }),
        LimitSpec::Bursty(Smooth::bursty(rate, Duration::ZERO, besides)),
        LimitSpec::WarmUp(Smooth::warm_up(rate, Duration::ZERO, window)),
        LimitSpec::FixedWindow(FixedWindow {
            limit: requests,
            window,
        }),
        LimitSpec::SlidingWindow(SlidingWindow {
            limit: requests,
            window,
        }),
        LimitSpec::SlidingLog(SlidingLog {
            limit: requests,
            window,
        }),
        LimitSpec::Blocks(Blocks {
            limit: requests,
            window,
            precision,
        }),
    ]
}

#[test]
fn each_of_many_gateways_lets_at_least_one_pass() {
    for limit in [1, 2, 3] {
        for spec in kinds(limit) {
            let whole = at_once(&spec, 1);
            for gateways in [2, 3, 5, 1_000] {
                let passed = at_once(&spec, gateways);
                assert!(
                    (1..=whole).contains(&passed),
                    "{passed} of {whole} at one of {gateways}: {spec:?}"
                );
            }
        }
    }
}

/// Limits that the fleet can share are divided, and together they are no more than the whole.
#[test]
fn parts_of_a_window_together_are_the_window() {
    for spec in kinds(12) {
        let (window, parts) = match spec {
            LimitSpec::Blocks(_)
            | LimitSpec::FixedWindow(_)
            | LimitSpec::SlidingLog(_)
            | LimitSpec::SlidingWindow(_) => (at_once(&spec, 1), at_once(&spec, 4) * 4),
            _ => continue,
        };
        assert_eq!((window, parts), (12, 12), "{spec:?}");
    }
}
