//! What a client with many keys gains: no new bucket for a key before it has used half a zone of others.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::algorithm::{AlgorithmParams, Delay, Excess, Rate};
use crate::store::rate_zone::algorithm_tests::{all, passes, spec, zone};

/// One shard, and four.
const SIZES: [usize; 2] = [64 << 10, 300_000];

fn numbered(number: u64) -> Key {
    Key::from_bytes(&number.to_be_bytes())
}

fn half(zone: &RateZone) -> u64 {
    zone.capacity() as u64 / 2
}

/// Sends requests of a key until one is refused; returns how many passed.
fn exhaust(zone: &RateZone, key: &Key, now: u64, spec: &LimitSpec) -> usize {
    (0..100)
        .take_while(|_| passes(zone, key, now, spec))
        .count()
}

/// Fills every shard with keys that have nothing left.
fn fill(zone: &RateZone, now: u64, spec: &LimitSpec) {
    for number in 0..zone.capacity() as u64 * 2 {
        exhaust(zone, &numbered(number), now, spec);
    }
    assert_eq!(zone.len(), zone.capacity());
}

/// Forty tries of one login name, with 400 new keys before each, in a zone full of keys in debt.
#[test]
fn a_zone_full_of_debts_admits_as_many_logins_as_an_empty_one() {
    let spec = LimitSpec::new(
        &AlgorithmParams::LeakyBucket {
            rate: Rate::per_minute(1_000),
        },
        Excess::requests(5),
        Delay::Never,
    );
    let zone = RateZone::new("login", 10 << 20, &spec, false);
    for number in 0..zone.capacity() as u64 * 9 / 8 {
        let key = numbered(number);
        zone.debit(&key, Millis(0), Cost::milli(6_000), &spec);
    }
    let name = Key::from_bytes(b"alice");
    let mut new = 1 << 32;
    let mut passed = 0;
    for _ in 0..40 {
        passed += usize::from(passes(&zone, &name, 1, &spec));
        for _ in 0..400 {
            new += 1;
            passes(&zone, &numbered(new), 1, &spec);
        }
    }
    assert_eq!(passed, 6);
}

/// The same for every algorithm, with half a zone of new keys between two tries, five times over.
#[test]
fn a_refused_request_counts_as_a_use() {
    for (algorithm, size) in all().iter().flat_map(|it| SIZES.map(|size| (it, size))) {
        let (zone, spec) = (zone(algorithm, size), spec(algorithm));
        fill(&zone, 0, &spec);
        let key = Key::from_bytes(b"alice");
        exhaust(&zone, &key, 0, &spec);
        for round in 1..=5u64 {
            for number in 0..half(&zone) {
                passes(&zone, &numbered(round << 32 | number), 0, &spec);
            }
            assert!(!passes(&zone, &key, 0, &spec), "{algorithm:?} of {size}");
        }
    }
}

/// A refusal that was decided without the zone counts as a use, too.
#[test]
fn a_counted_refusal_and_a_peek_count_as_uses() {
    let algorithm = &all()[3];
    let (zone, spec) = (zone(algorithm, SIZES[1]), spec(algorithm));
    fill(&zone, 0, &spec);
    let key = Key::from_bytes(b"alice");
    exhaust(&zone, &key, 0, &spec);
    for round in 1..=10u64 {
        for number in 0..half(&zone) {
            passes(&zone, &numbered(round << 32 | number), 0, &spec);
        }
        if round % 2 == 0 {
            zone.count_refusal(&key);
        } else {
            let outcome = zone.peek(&key, Millis(0), Cost::ONE, &spec);
            assert!(matches!(outcome, Verdict::Refuse { .. }));
        }
    }
    assert!(!passes(&zone, &key, 0, &spec));
}

/// Of the keys used once. Keys used twice stay while they are fewer than half.
#[test]
fn the_least_recently_used_key_is_evicted() {
    for algorithm in all() {
        let (zone, spec) = (zone(&algorithm, SIZES[0]), spec(&algorithm));
        let capacity = zone.capacity() as u64;
        let known = |number| {
            let key_status = zone.key_status(&numbered(number), Millis(0), &spec);
            key_status.is_some()
        };
        for number in 0..capacity {
            for _ in 0..if number < 100 { 9 } else { 1 } {
                passes(&zone, &numbered(number), 0, &spec);
            }
        }
        passes(&zone, &numbered(107), 0, &spec);
        for new in 0..100 {
            passes(&zone, &numbered(capacity + new), 0, &spec);
        }
        assert!((0..100).all(known) && known(107), "{algorithm:?}");
        assert!((100..201).all(|number| number == 107 || !known(number)));
        assert!((201..capacity + 100).all(known), "{algorithm:?}");
        assert_eq!(zone.evictions(), 100, "{algorithm:?}");
    }
}

/// nginx would evict it.
#[test]
fn an_idle_key_over_its_limit_is_not_evicted_for_keys_used_once() {
    for (algorithm, size) in all().iter().flat_map(|it| SIZES.map(|size| (it, size))) {
        let (zone, spec) = (zone(algorithm, size), spec(algorithm));
        let key = Key::from_bytes(b"alice");
        exhaust(&zone, &key, 0, &spec);
        for number in 0..zone.capacity() as u64 * 5 {
            passes(&zone, &numbered(number), 0, &spec);
        }
        assert!(!passes(&zone, &key, 0, &spec), "{algorithm:?} of {size}");
    }
}

/// A zone that becomes smaller or larger, or gets other parameters, keeps the order of uses.
#[test]
fn a_resized_zone_keeps_the_order_of_uses() {
    for algorithm in all() {
        let spec = spec(&algorithm);
        let old = zone(&algorithm, 1 << 20);
        let many = old.capacity() as u64;
        for number in 0..many {
            passes(&old, &numbered(number), 0, &spec);
        }
        // Used once more, in another order than they came in.
        for number in (0..many).rev() {
            passes(&old, &numbered(number), 0, &spec);
        }
        let is_known = |zone: &RateZone, number| {
            let key_status = zone.key_status(&numbered(number), Millis(0), &spec);
            key_status.is_some()
        };
        let same = old.resized(1 << 20, &spec, false).unwrap();
        let smaller = same.resized(256 << 10, &spec, false).unwrap();
        let last = half(&smaller);
        assert!(
            (0..last).all(|number| is_known(&smaller, number)),
            "{algorithm:?}"
        );
        assert!((many - last..many).all(|number| !is_known(&smaller, number)));
        assert_eq!(smaller.len(), smaller.capacity(), "{algorithm:?}");
        // A key that is used now is newer than all that have moved.
        let key = Key::from_bytes(b"alice");
        exhaust(&smaller, &key, 0, &spec);
        let larger = smaller.resized(512 << 10, &spec, false).unwrap();
        let smaller = larger.resized(256 << 10, &spec, false).unwrap();
        for number in 0..half(&smaller) {
            passes(&smaller, &numbered(1 << 32 | number), 0, &spec);
        }
        assert!(!passes(&smaller, &key, 0, &spec), "{algorithm:?}");
    }
}

/// Any keys used before, in any order, and any old and new keys used then.
fn flood(algorithm: &AlgorithmParams, size: usize, mut random: u64) -> Result<(), TestCaseError> {
    // Xorshift, so that a case is one number.
    let mut draw = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let (zone, spec) = (zone(algorithm, size), spec(algorithm));
    // More than a zone of keys, so that it is full, in debts of every depth.
    let many = zone.capacity() as u64 * 5 / 4;
    for number in 0..many {
        for _ in 0..=draw(7) {
            passes(&zone, &numbered(number), 0, &spec);
        }
    }
    for _ in 0..draw(many) {
        passes(&zone, &numbered(draw(many)), 0, &spec);
    }
    let key = Key::from_bytes(b"alice");
    exhaust(&zone, &key, 0, &spec);
    let (new, mut others) = (1 + draw(4), HashSet::new());
    while (others.len() as u64) < half(&zone) {
        let number = match draw(4) < new {
            true => many + others.len() as u64,
            false => draw(many),
        };
        others.insert(number);
        passes(&zone, &numbered(number), 0, &spec);
    }
    prop_assert!(
        !passes(&zone, &key, 0, &spec),
        "{:?} of {}",
        algorithm,
        size
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn no_key_is_evicted_before_half_a_zone_of_others_was_used(random in 1..u64::MAX) {
        for (number, algorithm) in all().iter().enumerate() {
            flood(algorithm, SIZES[number % 2], random)?;
        }
    }
}
