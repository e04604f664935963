//! What a zone knows, what it evicts, and what it costs.

use super::*;
use crate::algorithm::{Delay, Excess, LeakyBucket, Rate};
use crate::store::table::{BYTES_PER_KEY, MAX_KEYS};

const RATE: Rate = Rate::per_second(10_000);

fn spec(burst: u32) -> LimitSpec {
    leaky(RATE, burst, Delay::Never)
}

fn leaky(rate: Rate, burst: u32, delay: Delay) -> LimitSpec {
    LimitSpec::LeakyBucket(LeakyBucket {
        rate,
        burst: Excess::requests(burst),
        delay,
    })
}

fn zone(size: usize) -> RateZone {
    RateZone::new("one", size, &spec(0), false)
}

/// A plain request, and whether it passes.
fn charge(zone: &RateZone, key: &Key, now: u64, spec: &LimitSpec) -> bool {
    passes(&zone.charge(key, Millis(now), Cost::ONE, spec).0)
}

fn is_known(zone: &RateZone, key: &Key) -> bool {
    zone.key_status(key, Millis(0), &spec(0)).is_some()
}

fn passes(outcome: &Verdict) -> bool {
    !matches!(outcome, Verdict::Refuse { .. })
}

#[test]
fn keys_do_not_share_a_bucket() {
    let zone = zone(32 << 10);
    let (a, b) = (Key::from_bytes(b"a"), Key::from_bytes(b"b"));
    assert!(charge(&zone, &a, 0, &spec(0)));
    assert!(!charge(&zone, &a, 0, &spec(0)));
    assert!(charge(&zone, &b, 0, &spec(0)));
    assert_eq!(zone.len(), 2);
}

#[test]
fn a_peek_changes_nothing() {
    let zone = zone(32 << 10);
    let key = Key::from_bytes(b"a");
    for _ in 0..3 {
        assert!(passes(&zone.peek(&key, Millis(0), Cost::ONE, &spec(0))));
    }
    assert_eq!((zone.len(), zone.counts()), (0, ZoneCounts::default()));
}

#[test]
fn counts_are_kept_by_verdict() {
    let zone = zone(32 << 10);
    let key = Key::from_bytes(b"a");
    let spec = leaky(RATE, 1, Delay::After(Excess(0)));
    for _ in 0..5 {
        charge(&zone, &key, 0, &spec);
    }
    zone.count_refusal(&key);
    let ZoneCounts {
        pass,
        delay,
        refuse,
    } = zone.counts();
    assert_eq!((pass, delay, refuse, zone.evictions()), (1, 1, 4, 0));
}

#[test]
fn a_refund_takes_back_the_charge_and_the_count() {
    let zone = zone(32 << 10);
    let key = Key::from_bytes(b"a");
    let now = Millis(5_000);
    let (_, receipt) = zone.charge(&key, now, Cost::ONE, &spec(0));
    zone.refund(&key, receipt, now, Cost::ONE, &spec(0));
    assert_eq!(zone.counts().pass, 0);
    assert!(charge(&zone, &key, 5_000, &spec(0)));
}

#[test]
fn a_debit_is_charged_and_not_counted() {
    let zone = zone(32 << 10);
    let key = Key::from_bytes(b"a");
    zone.debit(&key, Millis(0), Cost(0), &spec(0));
    assert!(zone.is_empty(), "nothing is owed");
    zone.debit(&key, Millis(0), Cost::milli(3_000), &spec(0));
    assert_eq!(zone.counts(), ZoneCounts::default());
    let peek = |now, cost| passes(&zone.peek(&key, Millis(now), cost, &spec(0)));
    assert!(!peek(199, Cost(0)) && peek(200, Cost(0)));
    assert!(!peek(299, Cost::ONE) && peek(300, Cost::ONE));
}

#[test]
fn requests_that_cost_nothing_or_too_much_take_no_room() {
    let zone = zone(32 << 10);
    for (number, cost) in [(1, Cost(0)), (2, Cost::milli(1_001))] {
        let key = Key::from_bytes(&[number]);
        zone.charge(&key, Millis(0), cost, &spec(0));
    }
    assert!(zone.is_empty());
    let ZoneCounts { pass, refuse, .. } = zone.counts();
    assert_eq!((pass, refuse), (1, 1));
}

#[test]
fn refusals_are_charged_with_count_refused() {
    let zone = RateZone::new("one", 32 << 10, &spec(0), true);
    let key = Key::from_bytes(b"a");
    let passed = (0..1_000).step_by(50);
    assert_eq!(
        passed
            .filter(|now| charge(&zone, &key, *now, &spec(0)))
            .count(),
        1
    );
    assert!(charge(&zone, &key, 1_050, &spec(0)));
}

#[test]
fn a_forgotten_key_starts_with_all_of_its_limit() {
    let zone = zone(32 << 10);
    let key = Key::from_bytes(b"a");
    charge(&zone, &key, 0, &spec(0));
    assert!(zone.forget(&key));
    assert!(!zone.forget(&key));
    assert!(!is_known(&zone, &key));
    assert!(charge(&zone, &key, 0, &spec(0)));
}

#[test]
fn a_million_keys_fit_in_a_small_zone_and_a_key_in_debt_stays_known() {
    let zone = zone(256 << 10);
    let debtor = Key::from_bytes(b"debtor");
    while charge(&zone, &debtor, 0, &spec(200)) {}
    for number in 0..1_000_000u32 {
        // Ten seconds in all: half of the time in which the debt drains.
        let now = u64::from(number) / 100;
        charge(
            &zone,
            &Key::from_bytes(&number.to_be_bytes()),
            now,
            &spec(200),
        );
    }
    assert!(zone.len() <= zone.capacity());
    assert!(zone.evictions() > 900_000);
    let key_status = zone.key_status(&debtor, Millis(0), &spec(200));
    let key_status = key_status.expect("the key in debt is still known");
    assert_eq!(key_status.excess, Excess::requests(200));
    assert!(zone.memory() <= 256 << 10, "{} bytes", zone.memory());
}

#[test]
fn drained_keys_are_replaced_first_and_not_counted_as_evicted() {
    let zone = zone(32 << 10);
    let capacity = u32::try_from(zone.capacity()).unwrap();
    for number in 0..capacity {
        charge(&zone, &Key::from_bytes(&number.to_be_bytes()), 0, &spec(5));
    }
    // All but the first hundred are used again and in debt when the others have drained.
    for number in 100..capacity {
        charge(&zone, &Key::from_bytes(&number.to_be_bytes()), 99, &spec(5));
    }
    for number in 0..100u32 {
        charge(
            &zone,
            &Key::from_bytes(&(number + capacity).to_be_bytes()),
            100,
            &spec(5),
        );
    }
    assert_eq!(zone.evictions(), 0);
    assert_eq!(zone.len(), zone.capacity());
    for number in 100..capacity {
        assert!(is_known(&zone, &Key::from_bytes(&number.to_be_bytes())));
    }
}

#[test]
fn drained_keys_are_replaced_first_however_late_they_were_used() {
    let zone = zone(32 << 10);
    let capacity = u32::try_from(zone.capacity()).unwrap();
    let deep = |number: u32| number.is_multiple_of(2);
    for number in 0..capacity {
        let key = Key::from_bytes(&number.to_be_bytes());
        for _ in 0..if deep(number) { 6 } else { 1 } {
            charge(&zone, &key, 0, &spec(5));
        }
    }
    // Keys with little to drain are used last, and have drained long before the others.
    for number in (0..capacity).filter(|number| !deep(*number)) {
        charge(&zone, &Key::from_bytes(&number.to_be_bytes()), 50, &spec(5));
    }
    // Each new key has drained when the next one comes, and key 1, which is used again and again, has not.
    for (new, now) in (capacity..).zip(300..350) {
        charge(&zone, &Key::from_bytes(&1u32.to_be_bytes()), now, &spec(5));
        charge(&zone, &Key::from_bytes(&new.to_be_bytes()), now, &spec(5));
    }
    assert_eq!(zone.evictions(), 0);
    for number in (0..capacity).filter(|number| deep(*number)) {
        assert!(is_known(&zone, &Key::from_bytes(&number.to_be_bytes())));
    }
    assert!(is_known(&zone, &Key::from_bytes(&1u32.to_be_bytes())));
}

#[test]
fn forgetting_while_full_keeps_the_eviction_order() {
    let zone = zone(32 << 10);
    let capacity = u32::try_from(zone.capacity()).unwrap();
    let charge = |number: u32| charge(&zone, &Key::from_bytes(&number.to_be_bytes()), 0, &spec(5));
    for number in 0..=capacity {
        charge(number);
    }
    // The last one takes the slot of the one that is forgotten.
    zone.forget(&Key::from_bytes(&2u32.to_be_bytes()));
    charge(3);
    for number in capacity + 1..capacity + 11 {
        charge(number);
    }
    let gone = |number| number == 2 || number < 12 && number != 3;
    for number in 0..capacity + 11 {
        let known = is_known(&zone, &Key::from_bytes(&number.to_be_bytes()));
        assert_eq!(known, !gone(number), "{number}");
    }
    assert_eq!(zone.len(), zone.capacity());
}

/// The eviction order stores times in few bits; years make no difference.
#[test]
fn drained_keys_are_replaced_first_at_any_time() {
    let zone = zone(32 << 10);
    let capacity = u32::try_from(zone.capacity()).unwrap();
    let mut new = 0u32;
    for days in [0, 20, 30, 49, 50, 60, 400, 4_000] {
        let now = days * 86_400_000;
        for _ in 0..capacity {
            charge(&zone, &Key::from_bytes(&new.to_be_bytes()), now, &spec(5));
            new += 1;
        }
        assert_eq!(zone.evictions(), 0, "after {days} days");
    }
    let now = 4_000 * 86_400_000 - 70_000;
    charge(&zone, &Key::from_bytes(b"late"), now, &spec(5));
    assert_eq!(zone.evictions(), 1, "nothing has drained by then");
}

#[test]
fn a_key_costs_at_most_64_bytes_in_zones_of_every_size() {
    for size in [32 << 10, 100_000, 115_000, 230_000, 300_000, 1 << 20] {
        let zone = zone(size);
        // Three times over, so that every shard is full and has evicted often enough to need its order.
        for number in 0..u32::try_from(zone.capacity() * 3).unwrap() {
            charge(&zone, &Key::from_bytes(&number.to_be_bytes()), 0, &spec(5));
        }
        assert_eq!(zone.len(), zone.capacity());
        let each = zone.memory().div_ceil(zone.capacity());
        assert!(each <= BYTES_PER_KEY, "{each} bytes a key in {size}");
        assert!(zone.memory() <= size);
    }
}

/// Growing, cleaning up and evicting are all done within one shard, however large the zone is.
#[test]
fn no_insert_touches_more_than_one_shard() {
    let zone = zone(4 << 20);
    let keys = u32::try_from(zone.capacity()).unwrap();
    let mut most = 0;
    // Filled, then flooded; all known keys used once more, then flooded again.
    for number in (0..keys * 2).chain(keys..keys * 3) {
        let key = Key::from_bytes(&number.to_be_bytes());
        crate::store::key::take_steps();
        charge(&zone, &key, u64::from(number / keys), &spec(5));
        most = most.max(crate::store::key::take_steps());
    }
    assert!(zone.evictions() > 0, "it was full");
    assert!(most > 500, "something was counted: {most}");
    // Moved once and hashed once when it grows, or sorted by when they drain and all checked again.
    assert!(most <= 2 * MAX_KEYS + 2, "{most} keys");
}

#[test]
fn a_zone_takes_memory_as_keys_come() {
    let zone = zone(10 << 20);
    let empty = zone.memory();
    for number in 0..100u32 {
        charge(&zone, &Key::from_bytes(&number.to_be_bytes()), 0, &spec(5));
    }
    assert!(empty < 40 << 10 && zone.memory() < 80 << 10);
}

#[test]
fn a_key_is_evictable_when_it_has_drained_at_the_slowest_rate() {
    let zone = RateZone::new(
        "one",
        0,
        &leaky(Rate::per_minute(1_000), 0, Delay::Never),
        false,
    );
    charge(&zone, &Key::from_bytes(b"slow"), 0, &spec(0));
    charge(&zone, &Key::from_bytes(b"other"), 59_999, &spec(0));
    assert_eq!(zone.evictions(), 1);
    charge(&zone, &Key::from_bytes(b"third"), 120_000, &spec(0));
    assert_eq!(zone.evictions(), 1);
}

#[test]
fn threads_on_one_key_pass_no_more_than_its_burst() {
    let zone = zone(32 << 10);
    let passed: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let key = Key::from_bytes(b"a");
                    (0..500)
                        .filter(|_| charge(&zone, &key, 1, &spec(99)))
                        .count()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(passed, 100);
}
