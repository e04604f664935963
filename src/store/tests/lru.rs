//! What leaves, in which order.

use proptest::prelude::*;

use super::*;

fn key(number: u32) -> Key {
    HashSeeds::default().key(&number.to_be_bytes())
}

fn insert(lru: &mut SegmentedLru<u32>, number: u32) -> Option<u32> {
    let never = |_: &u32| Millis(u64::MAX);
    lru.insert(
        &key(number),
        number,
        Millis(0),
        &HashSeeds::default(),
        never,
    )
}

/// It takes two billion questions; a client that sends those must not have keys forgotten by it.
#[test]
fn the_order_outlives_the_clock() {
    let mut lru = SegmentedLru::new(8);
    for number in 0..8 {
        insert(&mut lru, number);
    }
    assert_eq!(insert(&mut lru, 8), Some(0));
    lru.asked[0] = LAST - 3 * TICK;
    for number in [3, 1, 4, 7] {
        assert_eq!(lru.ask(&key(number)), Some(&mut { number }));
    }
    assert!(lru.asked[0] < 2 * START);
    let gone: Vec<_> = (100..108).map(|new| insert(&mut lru, new)).collect();
    assert_eq!(gone, [2, 5, 6, 8, 100, 101, 102, 103].map(Some));
    for number in 104..108 {
        lru.ask(&key(number));
    }
    let gone: Vec<_> = (108..112).map(|new| insert(&mut lru, new)).collect();
    assert_eq!(gone, [3, 1, 4, 7].map(Some));
}

#[test]
fn a_key_that_came_back_stays_however_many_come_once() {
    let mut lru = SegmentedLru::new(8);
    for number in [0, 1, 2, 3] {
        insert(&mut lru, number);
        lru.ask(&key(number));
    }
    for number in 10..100 {
        insert(&mut lru, number);
    }
    assert!((0..4).all(|number| lru.get(&key(number)).is_some()));
    // One more that came back is too many: of all, the one asked for longest ago leaves.
    lru.ask(&key(99));
    assert_eq!(insert(&mut lru, 100), Some(0));
    assert_eq!(insert(&mut lru, 101), Some(96));
    assert!(lru.forget(&key(99), &HashSeeds::default()));
    assert_eq!(lru.asked[1], 3);
}

proptest! {
    /// Whatever is asked for in whatever order, a key stays until half as many others as there is room for were.
    #[test]
    fn a_key_stays_until_half_as_many_others_came(steps in prop::collection::vec((0..40u32, 1..4u8), 0..400)) {
        let mut lru = SegmentedLru::new(10);
        let mut last: Vec<u32> = Vec::new();
        for (number, times) in steps {
            for _ in 0..times {
                if lru.ask(&key(number)).is_none() {
                    let since = last.iter().rev().position(|other| *other == number);
                    prop_assert!(since.is_none_or(|others| others >= 5));
                    insert(&mut lru, number);
                }
            }
            last.retain(|other| *other != number);
            last.push(number);
            let again = lru.asked[FIRST..].iter().filter(|stamp| has_come_back(**stamp));
            prop_assert_eq!(again.count(), lru.asked[1] as usize);
        }
    }
}

#[test]
fn what_is_inherited_is_older_than_what_is_asked_for() {
    let never = |_: &u32| Millis(u64::MAX);
    let seeds = HashSeeds::default();
    let mut lru = SegmentedLru::new(4);
    insert(&mut lru, 0);
    // Two tables of three keys each, oldest first, for which three places are left.
    for first in [10, 20] {
        for (rank, number) in (first..first + 3).enumerate() {
            lru.inherit(&key(number), number, stamp(rank, 3), &seeds, never);
        }
    }
    let mut kept: Vec<_> = lru.values().copied().collect();
    kept.sort_unstable();
    assert_eq!(kept[0], 0);
    assert!(kept.contains(&12) && kept.contains(&22), "{kept:?}");
}
