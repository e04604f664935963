//! The ledger of the slots that this gateway holds.

use std::time::Duration;

use super::{SlotRef, *};

const LONG: Duration = Duration::from_secs(3);

fn claim(keys: &[&str]) -> Arc<SlotClaim> {
    let mut claim = SlotClaim::default();
    for key in keys {
        claim.add("weir", "zone", key.as_bytes(), 2);
    }
    Arc::new(claim)
}

fn sets(slots: &[SlotRef]) -> Vec<String> {
    let name = |slot: &SlotRef| String::from_utf8_lossy(&slot.set).into_owned();
    let mut sets: Vec<_> = slots.iter().map(name).collect();
    sets.sort();
    sets
}

#[test]
fn a_place_is_given_back_once() {
    let mut ledger = SlotLedger::default();
    let id = ledger.hold(&claim(&["a", "b"]), Millis(5));
    assert_eq!(ledger.held.len(), 1);
    assert!(ledger.give(id));
    assert!(!ledger.give(id));
    let given = std::mem::take(&mut ledger.given);
    assert_eq!(
        sets(&given),
        ["weir:{zone:a}:places", "weir:{zone:b}:places"]
    );
    assert!(ledger.given.is_empty());
    assert_eq!(ledger.held.len(), 0);
}

#[test]
fn a_slot_being_released_does_not_count_at_this_gateway() {
    let mut ledger = SlotLedger::default();
    let both = claim(&["a", "b"]);
    let id = ledger.hold(&both, Millis(5));
    let none = |ledger: &SlotLedger| ledger.leaving(&both.wants).iter().all(|ids| ids.is_empty());
    assert!(none(&ledger));
    ledger.give(id);
    let other = claim(&["b", "c"]);
    let leaving = ledger.leaving(&other.wants);
    assert_eq!((&leaving[0][..], &leaving[1][..]), (&[id][..], &[][..]));
    let given = std::mem::take(&mut ledger.given);
    ledger.gone(&given);
    assert!(none(&ledger));
}

#[test]
fn only_slots_held_for_long_are_renewed_and_a_failed_renewal_is_repeated() {
    let mut ledger = SlotLedger::default();
    let id = ledger.hold(&claim(&["old"]), Millis(1_000));
    ledger.hold(&claim(&["new"]), Millis(3_500));
    let due = ledger.due(Millis(4_000), LONG);
    assert_eq!(sets(&due), ["weir:{zone:old}:places"]);
    assert!(ledger.due(Millis(4_100), LONG).is_empty());
    ledger.not_renewed(&due);
    assert_eq!(ledger.due(Millis(4_200), LONG), due);
    ledger.give(id);
    ledger.not_renewed(&due);
    assert!(ledger.due(Millis(4_300), LONG).is_empty());
    assert!(ledger.is_time(Millis(4_300), 0));
    assert!(ledger.due(Millis(4_300), LONG).is_empty());
    assert!(
        !ledger.is_time(Millis(4_400), 0),
        "another thread has looked"
    );
    assert!(
        ledger.is_time(Millis(4_400), 1),
        "the store may know nothing"
    );
    assert_eq!(
        sets(&ledger.due(Millis(4_400), LONG)),
        ["weir:{zone:new}:places"]
    );
}

#[test]
fn what_the_store_has_never_given_is_not_given_back() {
    let mut ledger = SlotLedger::default();
    let id = ledger.hold(&claim(&["a"]), Millis(5));
    ledger.held.remove(&id);
    assert!(!ledger.give(id));
    assert!(ledger.given.is_empty() && ledger.all().is_empty());
}
