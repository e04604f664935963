//! The scripts against their functions when the clock of the server is set back.

use proptest::prelude::*;

use crate::algorithm::LimitSpec;
use crate::clock::Millis;
use crate::store::key::Key;
use crate::store::rate_zone::RateZone;
use crate::store::redis::tests::reserve::{bursty, warm_up};
use crate::store::redis::tests::{
    fixed_windows, gcra, hold_through, leaky_buckets, paced, sliding_logs, sliding_windows, steps,
    token_buckets,
};

/// Forgets a key that has drained, as a script does with what it saves. A zone keeps it, and with it a time that lies ahead
/// when the clock is set back. What a key has saved is kept by both.
pub(super) fn forget_drained(zone: &RateZone, key: &Key, now: u64, spec: &LimitSpec) {
    let saves = matches!(spec, LimitSpec::Bursty(_) | LimitSpec::WarmUp(_));
    let key_status = zone.key_status(key, Millis(now), spec);
    if !saves && key_status.is_some_and(|key_status| key_status.reset_after.is_zero()) {
        zone.forget(key);
    }
}

#[test]
fn all_that_drain_are_the_same_in_redis() {
    let spec = prop_oneof![
        leaky_buckets(),
        token_buckets(),
        paced(),
        gcra(),
        fixed_windows(),
        sliding_windows(),
        sliding_logs(),
    ];
    hold_through(spec, steps(2));
}

// Without refunds: a key that has all it can save again is forgotten by the script alone.
#[test]
fn all_that_save_are_the_same_in_redis() {
    hold_through(prop_oneof![bursty(), warm_up()], steps(4));
}
