//! One key for tests, and streams of requests for tests against an oracle.

use std::time::Duration;

use proptest::prelude::*;

use super::{Algorithm, Cost, KeyStatus, Rate, Verdict};
use crate::clock::Millis;

/// One zone and one key.
pub(super) struct Key<A: Algorithm> {
    pub(super) spec: A,
    pub(super) state: Option<A::State>,
}

impl<A: Algorithm> Key<A> {
    pub(super) fn new(spec: A) -> Self {
        Self { spec, state: None }
    }

    pub(super) fn charge(&mut self, now: u64) -> Verdict {
        self.charge_cost(now, Cost::ONE)
    }

    pub(super) fn charge_cost(&mut self, now: u64, cost: Cost) -> Verdict {
        let spec = self.spec;
        spec.charge(self.state(now), Millis(now), cost).0
    }

    pub(super) fn peek(&mut self, now: u64, cost: Cost) -> Verdict {
        let spec = self.spec;
        spec.peek(self.state(now), Millis(now), cost)
    }

    pub(super) fn passes(&mut self, now: u64) -> bool {
        !matches!(self.charge(now), Verdict::Refuse { .. })
    }

    /// How many of `of` requests pass at one moment.
    pub(super) fn passed(&mut self, now: u64, of: usize) -> usize {
        (0..of).filter(|_| self.passes(now)).count()
    }

    pub(super) fn debit(&mut self, now: u64, cost: Cost) {
        let spec = self.spec;
        spec.debit(self.state(now), Millis(now), cost);
    }

    /// Charges a request, also if it is refused.
    pub(super) fn charge_counting_refusals(&mut self, now: u64) -> bool {
        let passes = self.passes(now);
        if !passes {
            let spec = self.spec;
            spec.count_refused(self.state(now), Millis(now), Cost::ONE);
        }
        passes
    }

    /// Charges a request and takes it back.
    pub(super) fn charge_and_refund(&mut self, now: u64, cost: Cost) {
        let spec = self.spec;
        let (verdict, spent) = spec.charge(self.state(now), Millis(now), cost);
        if !matches!(verdict, Verdict::Refuse { .. }) {
            spec.refund(self.state(now), Millis(now), cost, spent);
        }
    }

    pub(super) fn key_status(&mut self, now: u64) -> KeyStatus {
        let spec = self.spec;
        spec.key_status(self.state(now), Millis(now))
    }

    pub(super) fn drained_at(&mut self) -> u64 {
        let spec = self.spec;
        spec.drained_at(self.state(0)).0
    }

    fn state(&mut self, now: u64) -> &mut A::State {
        let spec = self.spec;
        self.state
            .get_or_insert_with(|| spec.new_state(Millis(now)))
    }
}

pub(super) fn whole(count: u64) -> Cost {
    Cost::milli(count * 1000)
}

pub(super) fn wait(verdict: &Verdict) -> u64 {
    match verdict {
        Verdict::Delay { wait, .. } => millis(*wait),
        Verdict::Pass { .. } => 0,
        Verdict::Refuse { .. } => panic!("refused"),
    }
}

/// The milliseconds after which a refused request would pass; `None` for never.
pub(super) fn retry(verdict: &Verdict) -> Option<u64> {
    match verdict {
        Verdict::Refuse { retry_after, .. } => retry_after.map(millis),
        other => panic!("{other:?} is no refusal"),
    }
}

pub(super) fn refused(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Refuse { .. })
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}

/// Times between requests in milliseconds: zero, short and long.
pub(super) fn gaps() -> impl Strategy<Value = Vec<u64>> {
    let gap = prop_oneof![Just(0u64), 0..5u64, 0..2_000u64, 0..100_000u64];
    prop::collection::vec(gap, 1..80)
}

/// Costs in thousandths of a request, each with the time since the one before.
pub(super) fn requests() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let gap = prop_oneof![Just(0u64), 0..5u64, 0..2_000u64, 0..50_000u64];
    let cost = prop_oneof![4 => Just(1_000u64), 1 => 0..4_000u64];
    prop::collection::vec((gap, cost), 1..80)
}

/// A rate, and the same as thousandths of a request per thousandths of a millisecond.
pub(super) fn rates() -> impl Strategy<Value = (Rate, u128, u128)> {
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
