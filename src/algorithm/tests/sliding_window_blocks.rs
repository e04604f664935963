//! The blocks against a list of the requests that passed.

use proptest::prelude::*;

use super::*;
use crate::algorithm::testing::{Key, refused, requests, retry, whole};

fn key(limit: u32, window: u64, precision: u64) -> Key<Blocks> {
    Key::new(Blocks {
        limit: Excess::requests(limit),
        window: Duration::from_millis(window),
        precision: Duration::from_millis(precision),
    })
}

#[test]
fn a_block_drops_out_as_a_whole() {
    let mut key = key(10, 60_000, 5_000);
    assert_eq!(key.passed(4_999, 4), 4);
    assert_eq!(key.passed(5_000, 20), 6);
    assert_eq!(retry(&key.peek(5_000, Cost::ONE)), Some(60_000));
    assert_eq!(retry(&key.peek(5_000, whole(5))), Some(65_000));
    assert_eq!(key.passed(64_999, 20), 0);
    assert_eq!(key.passed(65_000, 20), 4);
    assert_eq!(key.passed(69_999, 20), 0);
    assert_eq!(key.passed(70_000, 20), 6);
}

/// 100 in 10 s, in blocks of 5 s. With two blocks in all, 100 passed at 4.999 s and 100 more at 10 s.
#[test]
fn twice_the_limit_does_not_pass_around_the_edge_of_a_block() {
    let mut key = key(100, 10_000, 5_000);
    let passed = [4_999, 9_999, 10_000, 14_998, 14_999].map(|now| key.passed(now, 150));
    assert_eq!(passed, [100, 0, 0, 0, 0]);
    assert_eq!(key.passed(15_000, 150), 100);
}

#[test]
fn a_window_of_one_block_is_two_blocks_long_at_most() {
    let mut key = key(10, 1_000, 1_000);
    assert_eq!(key.passed(999, 20), 10);
    assert_eq!(key.passed(1_999, 20), 0);
    assert_eq!(key.passed(2_000, 20), 10);
    assert_eq!(key.passed(3_999, 20), 0);
}

#[test]
fn a_cost_beyond_the_limit_is_refused_without_a_time_to_retry() {
    let mut key = key(10, 60_000, 5_000);
    assert_eq!(retry(&key.charge_cost(0, whole(11))), None);
    assert!(!refused(&key.charge_cost(0, whole(10))));
    assert!(!refused(&key.charge_cost(0, Cost(0))));
    key.debit(0, Cost::ONE);
    assert_eq!(retry(&key.peek(0, Cost(0))), Some(65_000));
}

#[test]
fn a_clock_set_back_drops_nothing() {
    let mut key = key(10, 1_000, 300);
    assert_eq!(key.passed(99_400, 3), 3);
    assert_eq!(key.passed(100_000, 20), 7);
    assert_eq!(key.passed(99_000, 20), 0);
    assert_eq!(key.passed(30_000, 20), 0, "a jump");
    // The three are two blocks older than the seven; after the jump they count as one block older, in the block of 29.7 s.
    assert_eq!(retry(&key.peek(30_000, Cost::ONE)), Some(1_200));
    assert_eq!(retry(&key.peek(30_000, whole(4))), Some(1_500));
    let _refused = key.charge_counting_refusals(30_000);
    // The refused one replaced one of the three.
    assert_eq!(key.passed(30_000 + 1_199, 20), 0);
    assert_eq!(key.passed(30_000 + 1_200, 20), 2);
    assert_eq!(key.passed(30_000 + 1_500, 20), 8);
}

/// Another request of the key comes in between, in the next block.
#[test]
fn a_refund_reaches_the_block_that_was_charged() {
    let mut key = key(10, 1_000, 100);
    let spec = key.spec;
    assert_eq!(key.passed(1_050, 4), 4);
    let (_, spent) = spec.charge(key.state.as_mut().unwrap(), Millis(1_150), whole(3));
    assert_eq!(key.passed(1_250, 2), 2);
    spec.refund(key.state.as_mut().unwrap(), Millis(1_150), whole(3), spent);
    assert_eq!(key.key_status(1_250).remaining, 4);
    // Those of 1.0 s go first, then those of 1.2 s; nothing was left at 1.1 s.
    let left = [2_099, 2_100, 2_200, 2_299, 2_300].map(|now| key.key_status(now).remaining);
    assert_eq!(left, [4, 8, 8, 8, 10]);
}

#[test]
fn counted_refusals_keep_a_client_out() {
    let mut key = key(10, 1_000, 100);
    let passed = (0..100)
        .filter(|tick| key.charge_counting_refusals(tick * 50))
        .count();
    assert_eq!(passed, 10);
    assert!(key.charge_counting_refusals(6_000));
}

#[test]
fn a_long_idle_key_starts_again_and_no_number_wraps() {
    let mut key = key(10, 60_000, 7_000);
    assert_eq!(key.passed(0, 20), 10);
    assert_eq!(key.passed(u64::MAX, 20), 10);
    key.debit(u64::MAX, Cost(u64::MAX));
    key.debit(u64::MAX, Cost(u64::MAX));
    assert_eq!(key.passed(u64::MAX, 20), 0);
}

proptest! {
    #[test]
    fn every_verdict_matches_a_list_of_requests(
        limit in 1..20u32,
        blocks in 1..12u64,
        precision in 1..9_000u64,
        requests in requests(),
    ) {
        let mut list: Vec<(u64, u64)> = Vec::new();
        let mut now = 7u64;
        let mut key = key(limit, blocks * precision, precision);
        for (gap, milli) in requests {
            now += gap;
            let used = |list: &[(u64, u64)], now: u64| -> u64 {
                let oldest = (now / precision).saturating_sub(blocks);
                list.iter().filter(|(at, _)| at / precision >= oldest).map(|(_, milli)| milli).sum()
            };
            let fits = |list: &[(u64, u64)], now| used(list, now) + milli <= u64::from(limit) * 1000;
            let verdict = key.charge_cost(now, Cost::milli(milli));
            prop_assert_eq!(!refused(&verdict), fits(&list, now));
            if fits(&list, now) {
                list.push((now, milli));
            } else if milli > u64::from(limit) * 1000 {
                prop_assert_eq!(retry(&verdict), None);
            } else {
                let wait = retry(&verdict).unwrap();
                prop_assert!(fits(&list, now + wait) && !fits(&list, now + wait - 1), "after {wait}");
            }
            let left = (u64::from(limit) * 1000).saturating_sub(used(&list, now));
            prop_assert_eq!(key.key_status(now).remaining, left / 1000);
        }
    }

    #[test]
    fn a_refund_leaves_no_trace_in_any_history(requests in requests()) {
        let (mut one, mut other) = (key(5, 9_000, 1_000), key(5, 9_000, 1_000));
        let mut now = 0;
        for (gap, milli) in requests {
            now += gap;
            other.charge_and_refund(now, whole(1));
            let cost = Cost::milli(milli);
            prop_assert_eq!(one.charge_cost(now, cost), other.charge_cost(now, cost));
        }
    }

    /// For any steps and any clock: every request passes that the list of the last window lets pass, and a refused one would
    /// not pass within a window that is one block longer.
    #[test]
    fn no_window_holds_more_than_the_limit(
        limit in 1..20u32,
        window in 1..60_000u64,
        blocks in 1..60u64,
        steps in steps(),
    ) {
        let precision = (window / blocks).max(1);
        let limit_milli = u64::from(limit) * 1000;
        let longest = (window.div_ceil(precision) + 1) * precision;
        let mut key = key(limit, window, precision);
        // What passed or was owed; and what counts besides, where refused requests do.
        let (mut log, mut counted) = (Log::default(), Log::default());
        // Microseconds since the beginning, and what the clock is ahead of that, in milliseconds.
        let (mut time, mut ahead, mut steady) = (10_000_000u64, 200_000_000u64, true);
        for (gap, step) in steps {
            time += gap;
            let now = time / 1000 + ahead;
            let milli = match step {
                Step::Ask(milli) | Step::AskCounted(milli) | Step::AskInVain(milli) => milli,
                Step::Back(by) => {
                    // Less than a minute is no time, more is a jump; both are as strict as a clock that goes on.
                    ahead = ahead.saturating_sub(by);
                    steady = false;
                    continue;
                }
                Step::Debit(milli) => {
                    key.debit(now, Cost::milli(milli));
                    log.push((time, milli));
                    continue;
                }
            };
            let cost = Cost::milli(milli);
            let spec = key.spec;
            let state = key.state.get_or_insert_with(|| spec.new_state(Millis(now)));
            let (verdict, spent) = spec.charge(state, Millis(now), cost);
            if !refused(&verdict) {
                let used = log.within(time, window);
                prop_assert!(used + milli <= limit_milli, "{used} + {milli} in {window} ms");
                match step {
                    Step::AskInVain(_) => spec.refund(state, Millis(now), cost, spent),
                    _ => log.push((time, milli)),
                }
                continue;
            }
            if steady {
                let used = log.within(time, longest) + counted.within(time, longest);
                prop_assert!(used + milli > limit_milli, "{used} + {milli} in {longest} ms");
            }
            if let Some(after) = retry(&verdict) {
                prop_assert!(after > 0);
                prop_assert!(refused(&key.peek(now + after - 1, cost)), "the time to retry is too late");
                prop_assert!(!refused(&key.peek(now + after, cost)), "the time to retry is too early");
            } else {
                prop_assert!(milli > limit_milli);
            }
            if let Step::AskCounted(_) = step {
                spec.count_refused(key.state.as_mut().unwrap(), Millis(now), cost);
                counted.push((time, milli));
            }
        }
    }
}

/// One step of a key's history.
#[derive(Debug, Clone, Copy)]
enum Step {
    Ask(u64),
    /// A request that is charged if it is refused, too.
    AskCounted(u64),
    /// A request that another rule refuses, and that is refunded.
    AskInVain(u64),
    /// The clock is set back by this many milliseconds.
    Back(u64),
    Debit(u64),
}

/// Steps, each with the microseconds since the one before.
fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let gap = prop_oneof![Just(0u64), 0..5_000u64, 0..2_000_000u64, 0..30_000_000u64];
    let cost = || prop_oneof![4 => Just(1_000u64), 1 => 0..4_000u64];
    let step = prop_oneof![
        12 => cost().prop_map(Step::Ask),
        2 => cost().prop_map(Step::AskCounted),
        2 => cost().prop_map(Step::AskInVain),
        1 => prop_oneof![1..60_000u64, 60_000..2_000_000u64].prop_map(Step::Back),
        1 => cost().prop_map(Step::Debit),
    ];
    prop::collection::vec((gap, step), 1..120)
}

/// The oracle: all requests, in microseconds and thousandths of a request.
#[derive(Debug, Default)]
struct Log(Vec<(u64, u64)>);

impl Log {
    fn push(&mut self, entry: (u64, u64)) {
        self.0.push(entry);
    }

    fn within(&self, time: u64, millis: u64) -> u64 {
        let recent = self.0.iter().filter(|(at, _)| time - at < millis * 1000);
        recent.map(|(_, milli)| milli).sum()
    }
}
