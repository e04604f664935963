//! What holds for a zone of any algorithm.

use std::time::Duration;

use super::*;
use crate::algorithm::{AlgorithmParams, Delay, Excess, Rate};

/// Two requests per second and a burst of five, or ten in five seconds, in the parameters of each algorithm.
pub(super) fn all() -> [AlgorithmParams; 10] {
    all_of(Rate::per_second(2_000), Duration::from_secs(5))
}

fn all_of(rate: Rate, window: Duration) -> [AlgorithmParams; 10] {
    let limit = 10;
    let max_wait = Duration::from_secs(2);
    [
        AlgorithmParams::Bursty { rate, max_wait },
        AlgorithmParams::FixedWindow { limit, window },
        AlgorithmParams::Gcra { rate },
        AlgorithmParams::LeakyBucket { rate },
        AlgorithmParams::Paced { rate, max_wait },
        AlgorithmParams::SlidingLog { limit, window },
        AlgorithmParams::SlidingWindow { limit, window },
        AlgorithmParams::Blocks {
            limit,
            window,
            precision: Duration::from_millis(250),
        },
        AlgorithmParams::TokenBucket { rate },
        AlgorithmParams::WarmUp {
            rate,
            warm_up: Duration::from_secs(4),
            max_wait,
        },
    ]
}

pub(super) fn spec(algorithm: &AlgorithmParams) -> LimitSpec {
    LimitSpec::new(algorithm, Excess::requests(5), Delay::Never)
}

pub(super) fn zone(algorithm: &AlgorithmParams, size: usize) -> RateZone {
    RateZone::new("one", size, &spec(algorithm), false)
}

pub(super) fn passes(zone: &RateZone, key: &Key, now: u64, spec: &LimitSpec) -> bool {
    let (outcome, _) = zone.charge(key, Millis(now), Cost::ONE, spec);
    !matches!(outcome, Verdict::Refuse { .. })
}

#[test]
fn memory_stays_within_the_size_of_every_zone() {
    for algorithm in all() {
        let spec = spec(&algorithm);
        for size in [32 << 10, 100_000, 300_000, 1 << 20] {
            let zone = zone(&algorithm, size);
            // More than three times as many keys as fit, each until it is refused.
            for number in 0..u32::try_from(zone.capacity() * 3).unwrap() {
                let key = Key::from_bytes(&number.to_be_bytes());
                for tick in 0..12 {
                    passes(&zone, &key, tick, &spec);
                }
            }
            assert_eq!(zone.len(), zone.capacity(), "{algorithm:?}");
            let memory = zone.memory();
            assert!(memory <= size, "{algorithm:?}: {memory} bytes of {size}");
            assert!(memory > size / 3, "{algorithm:?}: {memory} bytes of {size}");
            assert!(zone.capacity() * zone.bytes_per_key() <= size);
        }
    }
}

#[test]
fn a_key_with_a_state_of_two_words_takes_64_bytes() {
    let bytes =
        all().map(|algorithm| (algorithm.name(), zone(&algorithm, 1 << 20).bytes_per_key()));
    let expected = [
        ("bursty", 96),
        ("fixed_window", 64),
        ("gcra", 64),
        ("leaky_bucket", 64),
        ("paced", 64),
        ("sliding_log", 96 + 16 + 10 * 16),
        ("sliding_window", 96),
        ("sliding_window", 96 + 16 + 21 * 8),
        ("token_bucket", 64),
        ("warm_up", 96),
    ];
    assert_eq!(bytes, expected);
}

#[test]
fn a_zone_of_a_few_heavy_keys_keeps_within_its_size() {
    for limit in [100, 500, 1_900] {
        let algorithm = AlgorithmParams::SlidingLog {
            limit,
            window: Duration::from_secs(60),
        };
        let (zone, spec) = (zone(&algorithm, 32 << 10), spec(&algorithm));
        for number in 0..100u8 {
            let key = Key::from_bytes(&[number]);
            for tick in 0..u64::from(limit) + 3 {
                passes(&zone, &key, tick, &spec);
            }
        }
        assert!(zone.len() == zone.capacity() && zone.memory() <= 32 << 10);
    }
}

#[test]
fn drained_keys_are_replaced_and_none_is_evicted() {
    for algorithm in all() {
        let (zone, spec) = (zone(&algorithm, 64 << 10), spec(&algorithm));
        for round in 0..4u32 {
            // Long enough for a cold key to be cold again.
            let now = u64::from(round) * 20_000;
            for number in 0..u32::try_from(zone.capacity()).unwrap() {
                let key = Key::from_bytes(&(round << 24 | number).to_be_bytes());
                assert!(passes(&zone, &key, now, &spec));
            }
        }
        // Shards fill unevenly: one may be full before all are.
        let evictions = zone.evictions();
        assert!(
            evictions * 10 < zone.capacity() as u64,
            "{algorithm:?}: {evictions}"
        );
    }
}

#[test]
fn a_peek_and_a_refunded_charge_change_nothing() {
    for algorithm in all() {
        let (zone, spec) = (zone(&algorithm, 64 << 10), spec(&algorithm));
        let key = Key::from_bytes(b"a");
        passes(&zone, &key, 0, &spec);
        let key_status = |now| zone.key_status(&key, Millis(now), &spec);
        let before = key_status(7);
        for _ in 0..20 {
            let _outcome = zone.peek(&key, Millis(7), Cost::ONE, &spec);
            let (outcome, receipt) = zone.charge(&key, Millis(7), Cost::ONE, &spec);
            assert!(!matches!(outcome, Verdict::Refuse { .. }), "{algorithm:?}");
            zone.refund(&key, receipt, Millis(7), Cost::ONE, &spec);
        }
        assert_eq!(key_status(7), before, "{algorithm:?}");
        let ZoneCounts { pass, delay, .. } = zone.counts();
        assert_eq!(pass + delay, 1, "{algorithm:?}");
    }
}

#[test]
fn as_many_requests_pass_as_remain() {
    for algorithm in all() {
        let (zone, spec) = (zone(&algorithm, 64 << 10), spec(&algorithm));
        let key = Key::from_bytes(b"a");
        passes(&zone, &key, 3_000, &spec);
        for now in [3_000, 3_400, 6_100, 30_000, 100_000] {
            let key_status = zone.key_status(&key, Millis(now), &spec).unwrap();
            assert_eq!(key_status.limit, spec.quota());
            let passed = (0..100).filter(|_| passes(&zone, &key, now, &spec)).count();
            assert_eq!(
                passed as u64, key_status.remaining,
                "{algorithm:?} at {now}"
            );
            let key_status = zone.key_status(&key, Millis(now), &spec).unwrap();
            let retry = u64::try_from(key_status.retry_after.as_millis()).unwrap();
            let peek = |now| zone.peek(&key, Millis(now), Cost::ONE, &spec);
            assert!(matches!(peek(now + retry - 1), Verdict::Refuse { .. }));
            assert!(!matches!(peek(now + retry), Verdict::Refuse { .. }));
        }
    }
}

#[test]
fn the_slower_of_two_specs_drains_no_sooner_than_either() {
    for algorithm in all() {
        let one = spec(&algorithm);
        assert_eq!(one.slower(one), one);
    }
    let slow = all_of(Rate::per_second(1_000), Duration::from_secs(10));
    for (fast, slow) in all().iter().map(spec).zip(slow.iter().map(spec)) {
        assert_eq!((fast.slower(slow), slow.slower(fast)), (slow, slow));
    }
    let log = |limit| {
        spec(&AlgorithmParams::SlidingLog {
            limit,
            window: Duration::from_secs(1),
        })
    };
    assert_eq!(log(5).slower(log(9)), log(9), "it needs the most room");
}
