//! What a zone remembers, what it forgets, and what it costs.

use super::*;
use crate::config::plan::{Delay, Excess};
use crate::store::table::LARGEST;
use crate::store::work;

const RATE: Rate = Rate::per_second(10_000);

fn terms(burst: u32) -> Terms {
    Terms {
        rate: RATE,
        burst: Excess::requests(burst),
        delay: Delay::Never,
    }
}

fn zone(size: usize) -> Zone {
    Zone::new("one", size, RATE)
}

fn passes(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::Refuse { .. })
}

#[test]
fn keys_do_not_share_a_bucket() {
    let zone = zone(32 << 10);
    let (a, b) = (zone.key(b"a"), zone.key(b"b"));
    assert!(passes(&zone.charge(&a, Millis(0), &terms(0)).0));
    assert!(!passes(&zone.charge(&a, Millis(0), &terms(0)).0));
    assert!(passes(&zone.charge(&b, Millis(0), &terms(0)).0));
    assert_eq!(zone.len(), 2);
}

#[test]
fn asking_changes_nothing() {
    let zone = zone(32 << 10);
    let key = zone.key(b"a");
    for _ in 0..3 {
        assert!(passes(&zone.ask(&key, Millis(0), &terms(0))));
    }
    assert_eq!((zone.len(), zone.counts()), (0, Counts::default()));
}

#[test]
fn counts_are_kept_by_verdict() {
    let zone = zone(32 << 10);
    let key = zone.key(b"a");
    let terms = Terms {
        delay: Delay::After(Excess(0)),
        ..terms(1)
    };
    for _ in 0..5 {
        zone.charge(&key, Millis(0), &terms);
    }
    zone.count_refusal(&key);
    let Counts {
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
    let (_, before) = zone.charge(&key, Millis(5_000), &terms(0));
    zone.refund(&key, before, Millis(5_000), &terms(0));
    assert_eq!(zone.counts().pass, 0);
    assert!(passes(&zone.charge(&key, Millis(5_000), &terms(0)).0));
}

#[test]
fn a_forgotten_key_starts_anew() {
    let zone = zone(32 << 10);
    let key = zone.key(b"a");
    zone.charge(&key, Millis(0), &terms(0));
    assert!(zone.forget(&key));
    assert!(!zone.forget(&key));
    assert_eq!(zone.peek(&key), None);
    assert!(passes(&zone.charge(&key, Millis(0), &terms(0)).0));
}

#[test]
fn a_million_keys_stay_in_a_small_zone_and_the_debtor_stays_known() {
    let zone = zone(256 << 10);
    let debtor = zone.key(b"debtor");
    while passes(&zone.charge(&debtor, Millis(0), &terms(200)).0) {}
    for number in 0..1_000_000u32 {
        // Ten seconds in all: half of what the debtor has to wait off.
        let now = Millis(u64::from(number) / 100);
        zone.charge(&zone.key(&number.to_be_bytes()), now, &terms(200));
    }
    assert!(zone.len() <= zone.capacity());
    assert!(zone.counts().evictions > 900_000);
    let bucket = zone.peek(&debtor).expect("the debtor is still known");
    assert_eq!(bucket.excess, Excess::requests(200));
    assert!(zone.memory() <= 256 << 10, "{} bytes", zone.memory());
}

#[test]
fn drained_keys_go_first_and_are_not_counted_as_evicted() {
    let zone = zone(32 << 10);
    let capacity = u32::try_from(zone.capacity()).unwrap();
    for number in 0..capacity {
        zone.charge(&zone.key(&number.to_be_bytes()), Millis(0), &terms(5));
    }
    // All but the first hundred are used again and in debt when the others have drained.
    for number in 100..capacity {
        zone.charge(&zone.key(&number.to_be_bytes()), Millis(99), &terms(5));
    }
    for number in 0..100u32 {
        zone.charge(
            &zone.key(&(number + capacity).to_be_bytes()),
            Millis(100),
            &terms(5),
        );
    }
    assert_eq!(zone.counts().evictions, 0);
    assert_eq!(zone.len(), zone.capacity());
    for number in 100..capacity {
        assert!(zone.peek(&zone.key(&number.to_be_bytes())).is_some());
    }
}

#[test]
fn the_least_in_debt_is_the_one_to_go() {
    let zone = zone(32 << 10);
    let capacity = u32::try_from(zone.capacity()).unwrap();
    for number in 0..capacity {
        let key = zone.key(&number.to_be_bytes());
        for _ in 0..if number == 77 { 2 } else { 3 } {
            zone.charge(&key, Millis(0), &terms(5));
        }
    }
    zone.charge(&zone.key(b"new"), Millis(0), &terms(5));
    assert_eq!(zone.peek(&zone.key(&77u32.to_be_bytes())), None);
    assert_eq!(zone.counts().evictions, 1);
}

#[test]
fn forgetting_while_full_keeps_the_order_of_leaving_right() {
    let zone = zone(32 << 10);
    let capacity = u32::try_from(zone.capacity()).unwrap();
    for number in 0..=capacity {
        zone.charge(&zone.key(&number.to_be_bytes()), Millis(0), &terms(5));
    }
    zone.forget(&zone.key(&capacity.to_be_bytes()));
    let debtor = zone.key(&400u32.to_be_bytes());
    while passes(&zone.charge(&debtor, Millis(0), &terms(5)).0) {}
    for number in 0..capacity * 2 {
        zone.charge(
            &zone.key(&(number + 1_000_000).to_be_bytes()),
            Millis(1),
            &terms(5),
        );
    }
    assert!(zone.peek(&debtor).is_some());
    assert_eq!(zone.len(), zone.capacity());
}

#[test]
fn a_key_costs_at_most_64_bytes_in_zones_of_every_size() {
    for size in [32 << 10, 100_000, 115_000, 230_000, 300_000, 1 << 20] {
        let zone = zone(size);
        // Three times over, so that every shard is full, has its heap, and has forgotten often enough to need order.
        for number in 0..u32::try_from(zone.capacity() * 3).unwrap() {
            zone.charge(&zone.key(&number.to_be_bytes()), Millis(0), &terms(5));
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
        work::steps();
        zone.charge(&key, Millis(u64::from(number / keys)), &terms(5));
        most = most.max(work::steps());
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
        zone.charge(&zone.key(&number.to_be_bytes()), Millis(0), &terms(5));
    }
    assert!(empty < 16 << 10 && zone.memory() < 64 << 10);
}

#[test]
fn with_several_rates_the_slowest_says_when_a_key_may_be_forgotten() {
    let zone = Zone::new("one", 0, Rate::per_minute(1_000));
    zone.charge(&zone.key(b"slow"), Millis(0), &terms(0));
    zone.charge(&zone.key(b"other"), Millis(59_999), &terms(0));
    assert_eq!(zone.counts().evictions, 1);
    zone.charge(&zone.key(b"third"), Millis(120_000), &terms(0));
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
                        .filter(|_| passes(&zone.charge(&key, Millis(1), &terms(99)).0))
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
