//! One account by itself: what it gives back, what it tells, and what can be leased.

use std::time::Duration;

use crate::algorithm::{Blocks, Excess, LimitSpec, Verdict};
use crate::config::plan::StoreMode;
use crate::store::redis::lease::account::{LeaseAccount, LeaseGrant};
use crate::store::redis::lease::tests::{NOW, after, lease_mode, tokens};

#[test]
fn a_key_with_nothing_in_hand_gives_nothing_back() {
    let (spec, _) = tokens(100);
    let mut account = LeaseAccount::new(spec, NOW);
    assert_eq!(account.idle(after(60_000), false), None);
    assert_eq!(account.idle(after(60_000), true), None);
}

/// What is left everywhere is what the store has and what was leased from it, in requests.
#[test]
fn what_is_in_hand_is_told_as_left() {
    let (spec, _) = tokens(100);
    let lease_mode = lease_mode(StoreMode::Leased, 2);
    let mut account = LeaseAccount::new(spec, NOW);
    account.prepare(NOW, lease_mode);
    let grant = LeaseGrant {
        outcome: Verdict::Pass { excess: Excess(0) },
        remaining: 10,
        granted: 5,
        lasts: None,
        window: 0,
        penalty: None,
    };
    account.settle(NOW, NOW, &grant, lease_mode);
    assert_eq!(account.unreported(NOW), Some(15));
    assert_eq!(account.unreported(NOW), None, "it was passed on");
}

#[test]
fn buckets_and_windows_can_be_leased_and_blocks_cannot() {
    let (spec, _) = tokens(100);
    assert!(spec.info().leasable);
    let blocks = Blocks {
        limit: Excess::requests(10),
        window: Duration::from_secs(10),
        precision: Duration::from_secs(1),
    };
    assert!(!LimitSpec::Blocks(blocks).info().leasable);
}
