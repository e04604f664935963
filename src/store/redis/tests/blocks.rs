//! The sliding window in blocks: the script against its function, also when the clock is set back or a block gets another length.

use std::time::Duration;

use proptest::prelude::*;

use crate::algorithm::{Blocks, Cost, Excess, LimitSpec, Verdict};
use crate::store::rate_zone::StoreVerdict;
use crate::store::redis::script::KeyCheck;
use crate::store::redis::tests::{ScriptRunner, Server, hold_through, steps, windows};

#[test]
fn the_sliding_window_in_blocks_is_the_same_in_redis() {
    let spec = (windows(), 1..50u32).prop_map(|((limit, window), blocks)| {
        let precision = (window / blocks).max(Duration::from_millis(1));
        LimitSpec::Blocks(Blocks {
            limit,
            window,
            precision: Duration::from_millis(u64::try_from(precision.as_millis()).unwrap()),
        })
    });
    hold_through(spec, steps(1));
}

/// A reload may change `precision`. What came in a block may have come at its end.
#[test]
fn blocks_of_another_length_fall_out_no_earlier() {
    let server = Server::start();
    let mut script_runner = ScriptRunner::new(&server);
    let check = |precision| {
        let spec = LimitSpec::Blocks(Blocks {
            limit: Excess::requests(10),
            window: Duration::from_secs(60),
            precision: Duration::from_secs(precision),
        });
        KeyCheck::new(b"key".to_vec(), &spec, Cost::ONE, false)
    };
    let mut passed = |precision, now| {
        let verdicts = (0..20).map(|_| script_runner.run("charge", &[check(precision)], now));
        let passes =
            |verdicts: &Vec<StoreVerdict>| matches!(verdicts[0].outcome, Verdict::Pass { .. });
        verdicts.filter(passes).count()
    };
    assert_eq!(passed(30, 89_999), 10);
    let finer = [89_999, 120_000, 149_998, 151_000].map(|now| passed(1, now));
    assert_eq!(finer, [0, 0, 0, 10]);
    let coarser = [151_000, 211_000, 239_999, 240_000].map(|now| passed(30, now));
    assert_eq!(coarser, [0, 0, 0, 10]);
}
