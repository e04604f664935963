//! What this gateway knows of its places.

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

fn sets(places: &[SlotRef]) -> Vec<String> {
    let name = |place: &SlotRef| String::from_utf8_lossy(&place.set).into_owned();
    let mut sets: Vec<_> = places.iter().map(name).collect();
    sets.sort();
    sets
}

#[test]
fn a_place_is_given_back_once() {
    let mut ledger = SlotLedger::default();
    let id = ledger.hold(&claim(&["a", "b"]), Millis(5));
    assert_eq!(ledger.held(), 1);
    assert!(ledger.give(id));
    assert!(!ledger.give(id));
    let given = ledger.given();
    assert_eq!(
        sets(&given),
        ["weir:{zone:a}:places", "weir:{zone:b}:places"]
    );
    assert!(ledger.given().is_empty());
    assert_eq!(ledger.held(), 0);
}

#[test]
fn until_it_is_heard_of_a_place_that_was_given_back_counts_for_nobody_here() {
    let mut ledger = SlotLedger::default();
    let both = claim(&["a", "b"]);
    let id = ledger.hold(&both, Millis(5));
    let nobody = |ledger: &SlotLedger| ledger.leaving(&both.wants).iter().all(|ids| ids.is_empty());
    assert!(nobody(&ledger));
    ledger.give(id);
    let other = claim(&["b", "c"]);
    let leaving = ledger.leaving(&other.wants);
    assert_eq!((&leaving[0][..], &leaving[1][..]), (&[id][..], &[][..]));
    let given = ledger.given();
    ledger.gone(&given);
    assert!(nobody(&ledger));
}

#[test]
fn only_what_is_held_for_long_is_spoken_for_and_what_was_not_heard_at_once_again() {
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
    ledger.forget(id);
    assert!(!ledger.give(id));
    assert!(ledger.given().is_empty() && ledger.all().is_empty());
}
