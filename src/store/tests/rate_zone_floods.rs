//! What an attacker gets who brings many keys: no fresh bucket before half a zone of them has come.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::algorithm::{AlgorithmParams, Delay, Excess, Rate};
use crate::store::rate_zone::kinds::{all, passes, spec, zone};

/// One part, and four.
const SIZES: [usize; 2] = [64 << 10, 300_000];

fn numbered(zone: &RateZone, number: u64) -> Key {
    zone.key(&number.to_be_bytes())
}

fn half(zone: &RateZone) -> u64 {
    zone.capacity() as u64 / 2
}

/// Takes all that a key has left; how many requests that was.
fn exhaust(zone: &RateZone, key: &Key, now: u64, spec: &LimitSpec) -> usize {
    (0..100)
        .take_while(|_| passes(zone, key, now, spec))
        .count()
}

/// Fills every part of a zone with keys that have nothing left.
fn fill(zone: &RateZone, now: u64, spec: &LimitSpec) {
    for number in 0..zone.capacity() as u64 * 2 {
        exhaust(zone, &numbered(zone, number), now, spec);
    }
    assert_eq!(zone.len(), zone.capacity());
}

/// Forty tries of one login name with 400 new keys between two of them, in a zone that was filled with debts.
#[test]
fn a_zone_full_of_debts_lets_a_login_name_try_as_often_as_an_empty_one() {
    let spec = LimitSpec::new(
        &AlgorithmParams::LeakyBucket {
            rate: Rate::per_minute(1_000),
        },
        Excess::requests(5),
        Delay::Never,
    );
    let zone = RateZone::new("login", 10 << 20, &spec, false);
    for number in 0..zone.capacity() as u64 * 9 / 8 {
        let key = numbered(&zone, number);
        zone.debit(&key, Millis(0), Cost::milli(6_000), &spec);
    }
    let name = zone.key(b"alice");
    let mut new = 1 << 32;
    let mut passed = 0;
    for _ in 0..40 {
        passed += usize::from(passes(&zone, &name, 1, &spec));
        for _ in 0..400 {
            new += 1;
            passes(&zone, &numbered(&zone, new), 1, &spec);
        }
    }
    assert_eq!(passed, 6);
}

/// The same for every algorithm, with as many new keys between two tries as half a zone holds, five times over.
#[test]
fn a_refused_request_counts_as_asking() {
    for (algorithm, size) in all().iter().flat_map(|it| SIZES.map(|size| (it, size))) {
        let (zone, spec) = (zone(algorithm, size), spec(algorithm));
        fill(&zone, 0, &spec);
        let key = zone.key(b"alice");
        exhaust(&zone, &key, 0, &spec);
        for round in 1..=5u64 {
            for number in 0..half(&zone) {
                passes(&zone, &numbered(&zone, round << 32 | number), 0, &spec);
            }
            assert!(!passes(&zone, &key, 0, &spec), "{algorithm:?} of {size}");
        }
    }
}

/// Refusals that were decided without asking for the bucket count as asking for it, too.
#[test]
fn a_refusal_without_a_question_counts_as_asking() {
    let algorithm = &all()[3];
    let (zone, spec) = (zone(algorithm, SIZES[1]), spec(algorithm));
    fill(&zone, 0, &spec);
    let key = zone.key(b"alice");
    exhaust(&zone, &key, 0, &spec);
    for round in 1..=10u64 {
        for number in 0..half(&zone) {
            passes(&zone, &numbered(&zone, round << 32 | number), 0, &spec);
        }
        if round % 2 == 0 {
            zone.count_refusal(&key);
        } else {
            let outcome = zone.ask(&key, Millis(0), Cost::ONE, &spec);
            assert!(matches!(outcome, Verdict::Refuse { .. }));
        }
    }
    assert!(!passes(&zone, &key, 0, &spec));
}

/// Of those that came once. Keys that came back stay while they are fewer than half.
#[test]
fn the_key_asked_for_longest_ago_is_the_one_to_go() {
    for algorithm in all() {
        let (zone, spec) = (zone(&algorithm, SIZES[0]), spec(&algorithm));
        let capacity = zone.capacity() as u64;
        let known = |number| {
            let key_status = zone.key_status(&numbered(&zone, number), Millis(0), &spec);
            key_status.is_some()
        };
        for number in 0..capacity {
            for _ in 0..if number < 100 { 9 } else { 1 } {
                passes(&zone, &numbered(&zone, number), 0, &spec);
            }
        }
        passes(&zone, &numbered(&zone, 107), 0, &spec);
        for new in 0..100 {
            passes(&zone, &numbered(&zone, capacity + new), 0, &spec);
        }
        assert!((0..100).all(known) && known(107), "{algorithm:?}");
        assert!((100..201).all(|number| number == 107 || !known(number)));
        assert!((201..capacity + 100).all(known), "{algorithm:?}");
        assert_eq!(zone.counts().evictions, 100, "{algorithm:?}");
    }
}

/// A key over its limit that stays silent is not forgotten for keys that come once, however many: nginx would forget it.
#[test]
fn a_silent_key_over_its_limit_is_not_forgotten_for_keys_that_come_once() {
    for (algorithm, size) in all().iter().flat_map(|it| SIZES.map(|size| (it, size))) {
        let (zone, spec) = (zone(algorithm, size), spec(algorithm));
        let key = zone.key(b"alice");
        exhaust(&zone, &key, 0, &spec);
        for number in 0..zone.capacity() as u64 * 5 {
            passes(&zone, &numbered(&zone, number), 0, &spec);
        }
        assert!(!passes(&zone, &key, 0, &spec), "{algorithm:?} of {size}");
    }
}

/// A zone that is made smaller or larger, or is given other numbers, still knows who was asked for last.
#[test]
fn who_was_asked_for_last_is_known_in_other_memory_too() {
    for algorithm in all() {
        let spec = spec(&algorithm);
        let old = zone(&algorithm, 1 << 20);
        let many = old.capacity() as u64;
        for number in 0..many {
            passes(&old, &numbered(&old, number), 0, &spec);
        }
        // Asked for once more, in another order than they came in.
        for number in (0..many).rev() {
            passes(&old, &numbered(&old, number), 0, &spec);
        }
        let is_known = |zone: &RateZone, number| {
            let key_status = zone.key_status(&numbered(zone, number), Millis(0), &spec);
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
        // Whoever asks now is newer than all that was inherited.
        let key = smaller.key(b"alice");
        exhaust(&smaller, &key, 0, &spec);
        let larger = smaller.resized(512 << 10, &spec, false).unwrap();
        let smaller = larger.resized(256 << 10, &spec, false).unwrap();
        for number in 0..half(&smaller) {
            passes(&smaller, &numbered(&smaller, 1 << 32 | number), 0, &spec);
        }
        assert!(!passes(&smaller, &key, 0, &spec), "{algorithm:?}");
    }
}

/// Whatever was asked for before, in whatever order, and whichever old and new keys are asked for then.
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
            passes(&zone, &numbered(&zone, number), 0, &spec);
        }
    }
    for _ in 0..draw(many) {
        passes(&zone, &numbered(&zone, draw(many)), 0, &spec);
    }
    let key = zone.key(b"alice");
    exhaust(&zone, &key, 0, &spec);
    let (new, mut others) = (1 + draw(4), HashSet::new());
    while (others.len() as u64) < half(&zone) {
        let number = match draw(4) < new {
            true => many + others.len() as u64,
            false => draw(many),
        };
        others.insert(number);
        passes(&zone, &numbered(&zone, number), 0, &spec);
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
    fn no_key_is_forgotten_before_half_a_zone_of_others_was_asked_for(random in 1..u64::MAX) {
        for (number, algorithm) in all().iter().enumerate() {
            flood(algorithm, SIZES[number % 2], random)?;
        }
    }
}
