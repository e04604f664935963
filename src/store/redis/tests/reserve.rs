//! Keys that save what they do not use: the scripts against their functions.

use std::time::Duration;

use proptest::prelude::*;

use crate::algorithm::{Excess, LimitSpec, Rate, Smooth};
use crate::store::redis::tests::hold;

/// Rates at which the largest cost of a test is still a time that scripts can count in.
pub(super) fn brisk() -> impl Strategy<Value = Rate> {
    prop_oneof![
        (1_000..2_000_000u64).prop_map(Rate::per_second),
        (10_000..2_000_000u64).prop_map(Rate::per_minute),
    ]
}

pub(super) fn bursty() -> impl Strategy<Value = LimitSpec> {
    (brisk(), 0..5_000u64, 0..30u32).prop_map(|(rate, longest, burst)| {
        let longest = Duration::from_millis(longest);
        LimitSpec::Bursty(Smooth::bursty(rate, longest, Excess::requests(burst)))
    })
}

#[test]
fn bursty_is_the_same_in_redis() {
    hold(bursty());
}

pub(super) fn warm_up() -> impl Strategy<Value = LimitSpec> {
    (brisk(), 0..5_000u64, 1..60_000u64).prop_map(|(rate, longest, warm_up)| {
        let longest = Duration::from_millis(longest);
        let warm_up = Duration::from_millis(warm_up);
        LimitSpec::WarmUp(Smooth::warm_up(rate, longest, warm_up))
    })
}

#[test]
fn warm_up_is_the_same_in_redis() {
    hold(warm_up());
}
