//! The order of evictions.

use proptest::prelude::*;

use super::*;

fn key(number: u32) -> Key {
    Key::from_bytes(&number.to_be_bytes())
}

fn insert(lru: &mut SegmentedLru<u32>, number: u32) -> Option<u32> {
    let never = |_: &u32| Millis(u64::MAX);
    lru.insert(&key(number), number, Millis(0), never)
}

/// A client that sends two billion requests must not have keys evicted by it.
#[test]
fn the_order_survives_a_restart_of_the_clock() {
    let mut lru = SegmentedLru::new(8);
    for number in 0..8 {
        insert(&mut lru, number);
    }
    assert_eq!(insert(&mut lru, 8), Some(0));
    lru.stamps[0] = LAST - 3 * TICK;
    for number in [3, 1, 4, 7] {
        assert_eq!(lru.touch(&key(number)), Some(&mut { number }));
    }
    assert!(lru.stamps[0] < 2 * START);
    let gone: Vec<_> = (100..108).map(|new| insert(&mut lru, new)).collect();
    assert_eq!(gone, [2, 5, 6, 8, 100, 101, 102, 103].map(Some));
    for number in 104..108 {
        lru.touch(&key(number));
    }
    let gone: Vec<_> = (108..112).map(|new| insert(&mut lru, new)).collect();
    assert_eq!(gone, [3, 1, 4, 7].map(Some));
}

#[test]
fn a_key_used_twice_stays_however_many_are_used_once() {
    let mut lru = SegmentedLru::new(8);
    for number in [0, 1, 2, 3] {
        insert(&mut lru, number);
        lru.touch(&key(number));
    }
    for number in 10..100 {
        insert(&mut lru, number);
    }
    assert!((0..4).all(|number| lru.get(&key(number)).is_some()));
    // One more protected key is too many: the least recently used of all is evicted.
    lru.touch(&key(99));
    assert_eq!(insert(&mut lru, 100), Some(0));
    assert_eq!(insert(&mut lru, 101), Some(96));
    assert!(lru.remove(&key(99)));
    assert_eq!(lru.stamps[1], 3);
}

proptest! {
    /// For any keys in any order, a key stays until half as many others as there is room for were used.
    #[test]
    fn a_key_stays_until_half_a_table_of_others_was_used(steps in prop::collection::vec((0..40u32, 1..4u8), 0..400)) {
        let mut lru = SegmentedLru::new(10);
        let mut last: Vec<u32> = Vec::new();
        for (number, times) in steps {
            for _ in 0..times {
                if lru.touch(&key(number)).is_none() {
                    let since = last.iter().rev().position(|other| *other == number);
                    prop_assert!(since.is_none_or(|others| others >= 5));
                    insert(&mut lru, number);
                }
            }
            last.retain(|other| *other != number);
            last.push(number);
            let protected = lru.stamps[FIRST..].iter().filter(|stamp| segment(**stamp) == 1);
            prop_assert_eq!(protected.count(), lru.stamps[1] as usize);
        }
    }
}

#[test]
fn keys_from_another_table_are_older_than_keys_used_here() {
    let never = |_: &u32| Millis(u64::MAX);
    let mut lru = SegmentedLru::new(4);
    insert(&mut lru, 0);
    // Two tables of three keys each, the oldest first, and room for three of them.
    for first in [10, 20] {
        for (rank, number) in (first..first + 3).enumerate() {
            lru.insert_stamped(&key(number), number, stamp(rank, 3), never);
        }
    }
    let mut kept: Vec<_> = lru.values().copied().collect();
    kept.sort_unstable();
    assert_eq!(kept[0], 0);
    assert!(kept.contains(&12) && kept.contains(&22), "{kept:?}");
}

proptest! {
    #[test]
    fn a_min_tree_finds_the_lowest_number(
        numbers in prop::collection::vec(0..50u32, 1..40),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..50u32), 0..60),
    ) {
        let mut model = numbers;
        let mut tree = MinTree::new(model.len(), |slot| model[slot]);
        for (slot, number) in changes {
            let slot = slot.index(model.len());
            model[slot] = number;
            tree.update(slot, |slot| model[slot]);
            prop_assert_eq!(model.iter().min(), Some(&model[tree.first()]));
        }
    }
}
