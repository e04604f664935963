//! What a zone remembers, what it forgets, and what it costs.

use super::*;
use crate::algorithm::{Delay, Excess, LeakyBucket, Rate};
use crate::store::BYTES_PER_KEY;
use crate::store::table::LARGEST;

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
    let (a, b) = (zone.key(b"a"), zone.key(b"b"));
    assert!(charge(&zone, &a, 0, &spec(0)));
    assert!(!charge(&zone, &a, 0, &spec(0)));
    assert!(charge(&zone, &b, 0, &spec(0)));
    assert_eq!(zone.len(), 2);
}

#[test]
fn asking_changes_nothing() {
    let zone = zone(32 << 10);
    let key = zone.key(b"a");
    for _ in 0..3 {
        assert!(passes(&zone.ask(&key, Millis(0), Cost::ONE, &spec(0))));
    }
    assert_eq!((zone.len(), zone.counts()), (0, ZoneCounts::default()));
}

#[test]
fn counts_are_kept_by_verdict() {
    let zone = zone(32 << 10);
    let key = zone.key(b"a");
    let spec = leaky(RATE, 1, Delay::After(Excess(0)));
    for _ in 0..5 {
        charge(&zone, &key, 0, &spec);
    }
    zone.count_refusal(&key);
    let ZoneCounts {
        pass,
        delay,
        refuse,
        evictions,
    } = zone.counts();
    assert_eq!((pass, delay, refuse, evictions), (1, 1, 4, 0));
}

#[test]
fn a_refund_gives_back_request_and_count() {
    let zone = zone(32 << 10);
    let key = zone.key(b"a");
    let now = Millis(5_000);
    let (_, receipt) = zone.charge(&key, now, Cost::ONE, &spec(0));
    zone.refund(&key, receipt, now, Cost::ONE, &spec(0));
    assert_eq!(zone.counts().pass, 0);
    assert!(charge(&zone, &key, 5_000, &spec(0)));
}

#[test]
fn what_is_owed_afterwards_is_charged_and_counted_as_nothing() {
    let zone = zone(32 << 10);
    let key = zone.key(b"a");
    zone.debit(&key, Millis(0), Cost(0), &spec(0));
    assert!(zone.is_empty(), "nothing is owed");
    zone.debit(&key, Millis(0), Cost::milli(3_000), &spec(0));
    assert_eq!(zone.counts(), ZoneCounts::default());
    let ask = |now, cost| passes(&zone.ask(&key, Millis(now), cost, &spec(0)));
    assert!(!ask(199, Cost(0)) && ask(200, Cost(0)));
    assert!(!ask(299, Cost::ONE) && ask(300, Cost::ONE));
}

#[test]
fn who_weighs_nothing_or_too_much_takes_no_room() {
    let zone = zone(32 << 10);
    for (number, cost) in [(1, Cost(0)), (2, Cost::milli(1_001))] {
        let key = zone.key(&[number]);
        zone.charge(&key, Millis(0), cost, &spec(0));
    }
    assert!(zone.is_empty());
    let ZoneCounts { pass, refuse, .. } = zone.counts();
    assert_eq!((pass, refuse), (1, 1));
}

#[test]
fn refusals_count_where_that_is_asked_for() {
    let zone = RateZone::new("one", 32 << 10, &spec(0), true);
    let key = zone.key(b"a");
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
fn a_forgotten_key_starts_anew() {
    let zone = zone(32 << 10);
    let key = zone.key(b"a");
    charge(&zone, &key, 0, &spec(0));
    assert!(zone.forget(&key));
    assert!(!zone.forget(&key));
    assert!(!is_known(&zone, &key));
    assert!(charge(&zone, &key, 0, &spec(0)));
}

#[test]
fn a_million_keys_stay_in_a_small_zone_and_the_debtor_stays_known() {
    let zone = zone(256 << 10);
    let debtor = zone.key(b"debtor");
    while charge(&zone, &debtor, 0, &spec(200)) {}
    for number in 0..1_000_000u32 {
        // Ten seconds in all: half of what the debtor has to wait off.
        let now = u64::from(number) / 100;
        charge(&zone, &zone.key(&number.to_be_bytes()), now, &spec(200));
    }
    assert!(zone.len() <= zone.capacity());
    assert!(zone.counts().evictions > 900_000);
    let key_status = zone.key_status(&debtor, Millis(0), &spec(200));
    let key_status = key_status.expect("the debtor is still known");
    assert_eq!(key_status.excess, Excess::requests(200));
    assert!(zone.memory() <= 256 << 10, "{} bytes", zone.memory());
}

#[test]
fn drained_keys_go_first_and_are_not_counted_as_evicted() {
    let zone = zone(32 << 10);
    let capacity = u32::try_from(zone.capacity()).unwrap();
    for number in 0..capacity {
        charge(&zone, &zone.key(&number.to_be_bytes()), 0, &spec(5));
    }
    // All but the first hundred are used again and in debt when the others have drained.
    for number in 100..capacity {
        charge(&zone, &zone.key(&number.to_be_bytes()), 99, &spec(5));
    }
    for number in 0..100u32 {
        charge(
            &zone,
            &zone.key(&(number + capacity).to_be_bytes()),
            100,
            &spec(5),
        );
    }
    assert_eq!(zone.counts().evictions, 0);
    assert_eq!(zone.len(), zone.capacity());
    for number in 100..capacity {
        assert!(is_known(&zone, &zone.key(&number.to_be_bytes())));
    }
}

#[test]
fn drained_keys_go_first_however_late_they_were_asked_for() {
    let zone = zone(32 << 10);
    let capacity = u32::try_from(zone.capacity()).unwrap();
    let deep = |number: u32| number.is_multiple_of(2);
    for number in 0..capacity {
        let key = zone.key(&number.to_be_bytes());
        for _ in 0..if deep(number) { 6 } else { 1 } {
            charge(&zone, &key, 0, &spec(5));
        }
    }
    // Those with little to drain ask last, and are drained long before the others.
    for number in (0..capacity).filter(|number| !deep(*number)) {
        charge(&zone, &zone.key(&number.to_be_bytes()), 50, &spec(5));
    }
    // Each newcomer is drained when the next one comes, and one that was asked for once more is not.
    for (new, now) in (capacity..).zip(300..350) {
        charge(&zone, &zone.key(&1u32.to_be_bytes()), now, &spec(5));
        charge(&zone, &zone.key(&new.to_be_bytes()), now, &spec(5));
    }
    assert_eq!(zone.counts().evictions, 0);
    for number in (0..capacity).filter(|number| deep(*number)) {
        assert!(is_known(&zone, &zone.key(&number.to_be_bytes())));
    }
    assert!(is_known(&zone, &zone.key(&1u32.to_be_bytes())));
}

#[test]
fn forgetting_while_full_keeps_the_order_of_leaving_right() {
    let zone = zone(32 << 10);
    let capacity = u32::try_from(zone.capacity()).unwrap();
    let ask = |number: u32| charge(&zone, &zone.key(&number.to_be_bytes()), 0, &spec(5));
    for number in 0..=capacity {
        ask(number);
    }
    // The last one takes the slot of the one that is forgotten.
    zone.forget(&zone.key(&2u32.to_be_bytes()));
    ask(3);
    for number in capacity + 1..capacity + 11 {
        ask(number);
    }
    let gone = |number| number == 2 || number < 12 && number != 3;
    for number in 0..capacity + 11 {
        let known = is_known(&zone, &zone.key(&number.to_be_bytes()));
        assert_eq!(known, !gone(number), "{number}");
    }
    assert_eq!(zone.len(), zone.capacity());
}

/// Time is kept in few bits where keys are kept in order; years make no difference.
#[test]
fn drained_keys_go_first_at_any_time() {
    let zone = zone(32 << 10);
    let capacity = u32::try_from(zone.capacity()).unwrap();
    let mut new = 0u32;
    for days in [0, 20, 30, 49, 50, 60, 400, 4_000] {
        let now = days * 86_400_000;
        for _ in 0..capacity {
            charge(&zone, &zone.key(&new.to_be_bytes()), now, &spec(5));
            new += 1;
        }
        assert_eq!(zone.counts().evictions, 0, "after {days} days");
    }
    let now = 4_000 * 86_400_000 - 70_000;
    charge(&zone, &zone.key(b"late"), now, &spec(5));
    assert_eq!(zone.counts().evictions, 1, "nothing has drained by then");
}

#[test]
fn a_key_costs_at_most_64_bytes_in_zones_of_every_size() {
    for size in [32 << 10, 100_000, 115_000, 230_000, 300_000, 1 << 20] {
        let zone = zone(size);
        // Three times over, so that every shard is full, has its heap, and has forgotten often enough to need order.
        for number in 0..u32::try_from(zone.capacity() * 3).unwrap() {
            charge(&zone, &zone.key(&number.to_be_bytes()), 0, &spec(5));
        }
        assert_eq!(zone.len(), zone.capacity());
        let each = zone.memory().div_ceil(zone.capacity());
        assert!(each <= BYTES_PER_KEY, "{each} bytes a key in {size}");
        assert!(zone.memory() <= size);
    }
}

/// Growing, tidying up and forgetting are all done within one part of the zone, however large it is.
#[test]
fn no_insert_has_to_do_with_more_than_one_part_of_the_zone() {
    let zone = zone(4 << 20);
    let keys = u32::try_from(zone.capacity()).unwrap();
    let mut most = 0;
    // Filled, then flooded; all that are known used once more, then flooded again.
    for number in (0..keys * 2).chain(keys..keys * 3) {
        let key = zone.key(&number.to_be_bytes());
        crate::store::key::steps();
        charge(&zone, &key, u64::from(number / keys), &spec(5));
        most = most.max(crate::store::key::steps());
    }
    assert!(zone.counts().evictions > 0, "it was full");
    assert!(most > 500, "something was counted: {most}");
    // Moved once and hashed once when it grows, or sorted by when they drain and all looked at anew.
    assert!(most <= 2 * LARGEST + 2, "{most} keys");
}

#[test]
fn a_zone_takes_memory_as_keys_come() {
    let zone = zone(10 << 20);
    let empty = zone.memory();
    for number in 0..100u32 {
        charge(&zone, &zone.key(&number.to_be_bytes()), 0, &spec(5));
    }
    assert!(empty < 40 << 10 && zone.memory() < 80 << 10);
}

#[test]
fn with_several_rates_the_slowest_says_when_a_key_may_be_forgotten() {
    let zone = RateZone::new(
        "one",
        0,
        &leaky(Rate::per_minute(1_000), 0, Delay::Never),
        false,
    );
    charge(&zone, &zone.key(b"slow"), 0, &spec(0));
    charge(&zone, &zone.key(b"other"), 59_999, &spec(0));
    assert_eq!(zone.counts().evictions, 1);
    charge(&zone, &zone.key(b"third"), 120_000, &spec(0));
    assert_eq!(zone.counts().evictions, 1);
}

#[test]
fn threads_on_one_key_pass_no_more_than_its_burst() {
    let zone = zone(32 << 10);
    let passed: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let key = zone.key(b"a");
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
