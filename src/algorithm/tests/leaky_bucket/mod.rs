//! The bucket against nginx's numbers, and against an oracle that shares no arithmetic with it.

mod costs;

use proptest::prelude::*;

use super::*;

impl Verdict {
    /// The excess with this request.
    fn excess(&self) -> Excess {
        match *self {
            Self::Delay { excess, .. } | Self::Pass { excess } | Self::Refuse { excess, .. } => {
                excess
            }
        }
    }

    /// How long the request waits; zero unless it is delayed.
    fn wait(&self) -> Duration {
        match *self {
            Self::Delay { wait, .. } => wait,
            Self::Pass { .. } | Self::Refuse { .. } => Duration::ZERO,
        }
    }
}

/// One zone and one key.
struct Key {
    spec: LeakyBucket,
    bucket: Option<Level>,
}

impl Key {
    fn new(rate: Rate, burst: u32, delay: Delay) -> Self {
        Self {
            spec: LeakyBucket {
                rate,
                burst: Excess::requests(burst),
                delay,
            },
            bucket: None,
        }
    }

    fn charge(&mut self, now: u64) -> Verdict {
        self.charge_cost(now, Cost::ONE)
    }

    fn charge_cost(&mut self, now: u64, cost: Cost) -> Verdict {
        let now = Millis(now);
        let bucket = self.bucket.get_or_insert_with(|| self.spec.new_state(now));
        self.spec.charge(bucket, now, cost).0
    }

    /// A request at `now` as nginx logs it: the excess and the decision.
    fn describe(&mut self, now: u64) -> String {
        match self.charge(now) {
            Verdict::Delay { excess, wait } => format!("{} d{}", excess.milli(), wait.as_millis()),
            Verdict::Pass { excess } => format!("{} pass", excess.milli()),
            Verdict::Refuse { excess, .. } => format!("{} reject", excess.milli()),
        }
    }
}

fn check(mut key: Key, script: &[(u64, &str)]) {
    for (now, expected) in script {
        assert_eq!(key.describe(*now), *expected, "at {now} ms");
    }
}

const EACH: Delay = Delay::After(Excess(0));

#[test]
fn ten_per_second_with_burst_five_delays_as_nginx_does() {
    check(
        Key::new(Rate::per_second(10_000), 5, EACH),
        &[
            (0, "0 pass"),
            (4, "960 d96"),
            (8, "1920 d192"),
            (12, "2880 d288"),
            (16, "3840 d384"),
            (20, "4800 d480"),
            (24, "5760 reject"),
            (28, "5720 reject"),
        ],
    );
}

#[test]
fn delay_two_passes_two_excess_requests_at_once() {
    check(
        Key::new(
            Rate::per_second(10_000),
            5,
            Delay::After(Excess::requests(2)),
        ),
        &[
            (0, "0 pass"),
            (4, "960 pass"),
            (8, "1920 pass"),
            (12, "2880 d88"),
            (16, "3840 d184"),
            (20, "4800 d280"),
            (24, "5760 reject"),
            (28, "5720 reject"),
        ],
    );
}

#[test]
fn fifty_nine_a_minute_in_nginx_passes_after_1018_ms() {
    check(
        Key::new(Rate::per_second(983), 0, EACH),
        &[
            (0, "0 pass"),
            (1011, "7 reject"),
            (1016, "2 reject"),
            (1018, "0 pass"),
        ],
    );
}

#[test]
fn thirty_a_minute_with_burst_three_admits_four() {
    check(
        Key::new(Rate::per_minute(30_000), 3, Delay::Never),
        &[
            (0, "0 pass"),
            (0, "1000 pass"),
            (0, "2000 pass"),
            (0, "3000 pass"),
            (0, "4000 reject"),
            (658, "3671 reject"),
        ],
    );
}

#[test]
fn one_a_minute_in_nginx_is_one_in_62500_ms() {
    check(
        Key::new(Rate::per_second(16), 1, Delay::Never),
        &[
            (0, "0 pass"),
            (0, "1000 pass"),
            (100, "1999 reject"),
            (62_500, "1000 pass"),
        ],
    );
}

#[test]
fn one_a_minute_here_is_one_in_60000_ms() {
    check(
        Key::new(Rate::per_minute(1_000), 0, Delay::Never),
        &[(0, "0 pass"), (59_999, "1 reject"), (60_000, "0 pass")],
    );
}

#[test]
fn two_a_second_with_burst_one() {
    check(
        Key::new(Rate::per_second(2_000), 1, Delay::Never),
        &[
            (0, "0 pass"),
            (0, "1000 pass"),
            (0, "2000 reject"),
            (499, "1002 reject"),
            (500, "1000 pass"),
        ],
    );
}

#[test]
fn three_a_second_passes_after_334_ms() {
    check(
        Key::new(Rate::per_second(3_000), 0, EACH),
        &[(0, "0 pass"), (333, "1 reject"), (334, "0 pass")],
    );
}

#[test]
fn a_thousand_a_second_waits_one_millisecond() {
    check(
        Key::new(Rate::per_second(1_000_000), 1, EACH),
        &[
            (0, "0 pass"),
            (0, "1000 d1"),
            (1, "1000 d1"),
            (100, "0 pass"),
        ],
    );
}

#[test]
fn a_delay_of_less_than_a_millisecond_is_none() {
    check(
        Key::new(Rate::per_second(100_000_000), 1, EACH),
        &[(0, "0 pass"), (0, "1000 pass")],
    );
}

#[test]
fn a_clock_slightly_behind_drains_nothing_and_keeps_the_later_time() {
    let mut key = Key::new(Rate::per_second(1_000), 5, Delay::Never);
    key.charge(1000);
    assert_eq!(key.describe(900), "1000 pass");
    assert_eq!(key.bucket.unwrap().last, Millis(1000));
}

#[test]
fn a_clock_set_back_starts_again() {
    let mut key = Key::new(Rate::per_second(1_000), 5, Delay::Never);
    key.charge(100_000);
    assert_eq!(key.describe(30_000), "999 pass");
    assert_eq!(key.bucket.unwrap().last, Millis(30_000));
}

#[test]
fn a_clock_exactly_a_minute_behind_is_not_set_back() {
    let mut key = Key::new(Rate::per_second(1_000), 5, Delay::Never);
    key.charge(100_000);
    assert_eq!(key.describe(40_000), "1000 pass");
    assert_eq!(key.bucket.unwrap().last, Millis(100_000));
}

#[test]
fn a_refund_leaves_no_trace() {
    let spec = Key::new(Rate::per_second(10_000), 5, Delay::Never).spec;
    let mut bucket = spec.new_state(Millis(5_000));
    let charge = |bucket: &mut Level, now| spec.charge(bucket, now, Cost::ONE);
    let (_, spent) = charge(&mut bucket, Millis(5_000));
    spec.refund(&mut bucket, Millis(5_000), Cost::ONE, spent);
    assert!(spec.drained_at(&bucket) <= Millis(5_000));

    for _ in 0..4 {
        charge(&mut bucket, Millis(5_000));
    }
    let before = bucket;
    let (_, spent) = charge(&mut bucket, Millis(5_150));
    spec.refund(&mut bucket, Millis(5_150), Cost::ONE, spent);
    for later in [5_150, 5_151, 5_200, 9_000] {
        let peek = |bucket| spec.peek(bucket, Millis(later), Cost::ONE);
        assert_eq!(peek(&bucket), peek(&before), "at {later}");
    }
}

#[test]
fn extreme_numbers_do_not_wrap() {
    let spec = LeakyBucket {
        rate: Rate::per_second(Rate::MAX_PER_SECOND * 1000),
        burst: Excess(u64::MAX),
        delay: EACH,
    };
    let full = Level {
        height: Excess(u64::MAX),
        last: Millis(0),
    };
    let after = |now| {
        let mut bucket = full;
        spec.charge(&mut bucket, now, Cost::ONE);
        bucket.height
    };
    assert_eq!(after(Millis(0)), Excess(u64::MAX));
    assert_eq!(after(Millis(u64::MAX)), Excess::ONE);
    let slow = LeakyBucket {
        rate: Rate::per_day(1),
        ..spec
    };
    assert_eq!(
        slow.drained_at(&full),
        Millis(u64::MAX),
        "one unit a millisecond"
    );
}

/// The level from the list of accepted requests alone: each adds one request, and the level drains with the time between
/// them, never below zero. In u128, as a numerator over a denominator of requests × milliseconds.
fn oracle(accepted: &[u64], now: u64, per_period: u128, period: u128) -> u128 {
    // A level of one request is `period` of these; a millisecond drains `per_period`.
    let mut level: Option<(u128, u64)> = None;
    for &at in accepted.iter().chain([&now]) {
        level = Some(match level {
            None => (0, at),
            Some((level, last)) => {
                let drain = per_period * u128::from(at - last);
                let with_this = level + period;
                (with_this.saturating_sub(drain), at)
            }
        });
    }
    level.map_or(0, |(level, _)| level)
}

fn rates() -> impl Strategy<Value = (Rate, u128, u128)> {
    (1..2_000_000u64, 0..4usize).prop_map(|(milli, period)| {
        let (rate, millis): (Rate, u128) = match period {
            0 => (Rate::per_second(milli), 1_000),
            1 => (Rate::per_minute(milli), 60_000),
            2 => (Rate::per_hour(milli), 3_600_000),
            _ => (Rate::per_day(milli), 86_400_000),
        };
        (rate, u128::from(milli), millis * 1000)
    })
}

proptest! {
    #[test]
    fn every_verdict_matches_exact_arithmetic(
        (rate, per_period, period) in rates(),
        burst in 0..20u32,
        threshold in 0..20u32,
        gaps in prop::collection::vec(prop_oneof![Just(0u64), 0..5u64, 0..2_000u64, 0..100_000u64], 1..80),
    ) {
        let mut key = Key::new(rate, burst, Delay::After(Excess::requests(threshold)));
        let mut accepted = Vec::new();
        let mut now = 7;
        for gap in gaps {
            now += gap;
            let level = oracle(&accepted, now, per_period, period);
            let verdict = key.charge(now);
            if level > u128::from(burst) * period {
                let Verdict::Refuse { retry_after, .. } = verdict else {
                    return Err(TestCaseError::fail(format!("{verdict:?} where the oracle refuses")));
                };
                let retry = u64::try_from(retry_after.unwrap().as_millis()).unwrap();
                let allowed = |at| oracle(&accepted, at, per_period, period) <= u128::from(burst) * period;
                prop_assert!(allowed(now + retry) && !allowed(now + retry - 1), "retry after {retry}");
            } else {
                let waits = level.saturating_sub(u128::from(threshold) * period) / per_period;
                prop_assert_eq!(verdict.wait().as_millis(), waits);
                let refused = matches!(verdict, Verdict::Refuse { .. });
                prop_assert!(!refused);
                accepted.push(now);
            }
            prop_assert_eq!(
                u128::from(verdict.excess().0) * period,
                level * u128::from(Excess::ONE.0)
            );
        }
    }

    #[test]
    fn only_a_drained_bucket_can_be_forgotten(
        (rate, ..) in rates(),
        excess in 0..50_000_000_000_000u64,
        later in 0..10_000_000u64,
    ) {
        let spec = LeakyBucket { rate, burst: Excess(u64::MAX), delay: Delay::Never };
        let bucket = Level { height: Excess(excess), last: Millis(1_000) };
        let now = Millis(1_000 + later);
        let peek = |bucket| spec.peek(&bucket, now, Cost::ONE);
        // An excess of less than one request is not shown, but counts.
        let same = spec.key_status(&bucket, now) == spec.key_status(&spec.new_state(now), now);
        prop_assert_eq!(spec.drained_at(&bucket) <= now, same);
        prop_assert!(!same || peek(bucket) == peek(spec.new_state(now)));
    }

    #[test]
    fn no_more_pass_than_rate_and_burst_allow(
        (rate, per_period, period) in rates(),
        burst in 0..10u32,
        gaps in prop::collection::vec(0..500u64, 1..200),
    ) {
        let mut key = Key::new(rate, burst, Delay::Never);
        let (mut now, mut passed) = (0, 0u128);
        for gap in gaps {
            now += gap;
            passed += u128::from(!matches!(key.charge(now), Verdict::Refuse { .. }));
        }
        prop_assert!(passed <= u128::from(burst) + 1 + u128::from(now) * per_period / period);
    }
}
