//! One key, as a test asks it; and a stream of requests for those who check against an oracle.

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

    pub(super) fn ask(&mut self, now: u64, cost: Cost) -> Verdict {
        let spec = self.spec;
        spec.ask(self.state(now), Millis(now), cost)
    }

    pub(super) fn passes(&mut self, now: u64) -> bool {
        !matches!(self.charge(now), Verdict::Refuse { .. })
    }

    /// How many of so many at one moment.
    pub(super) fn passed(&mut self, now: u64, of: usize) -> usize {
        (0..of).filter(|_| self.passes(now)).count()
    }

    pub(super) fn debit(&mut self, now: u64, cost: Cost) {
        let spec = self.spec;
        spec.debit(self.state(now), Millis(now), cost);
    }

    /// Charges, and a refusal costs, too.
    pub(super) fn charge_all(&mut self, now: u64) -> bool {
        let passes = self.passes(now);
        if !passes {
            let spec = self.spec;
            spec.count_refused(self.state(now), Millis(now), Cost::ONE);
        }
        passes
    }

    /// Charges and takes it back.
    pub(super) fn charge_in_vain(&mut self, now: u64, cost: Cost) {
        let spec = self.spec;
        let (outcome, spent) = spec.charge(self.state(now), Millis(now), cost);
        if !matches!(outcome, Verdict::Refuse { .. }) {
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
        self.state.get_or_insert_with(|| spec.fresh(Millis(now)))
    }
}

pub(super) fn whole(count: u64) -> Cost {
    Cost::milli(count * 1000)
}

pub(super) fn wait(outcome: &Verdict) -> u64 {
    match outcome {
        Verdict::Delay { wait, .. } => millis(*wait),
        Verdict::Pass { .. } => 0,
        Verdict::Refuse { .. } => panic!("refused"),
    }
}

/// After how many milliseconds a refused one may come back; `None` for never.
pub(super) fn retry(outcome: &Verdict) -> Option<u64> {
    match outcome {
        Verdict::Refuse { retry_after, .. } => retry_after.map(millis),
        other => panic!("{other:?} is no refusal"),
    }
}

pub(super) fn refused(outcome: &Verdict) -> bool {
    matches!(outcome, Verdict::Refuse { .. })
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}

/// Times between requests, in milliseconds: at once, soon, later.
pub(super) fn gaps() -> impl Strategy<Value = Vec<u64>> {
    let gap = prop_oneof![Just(0u64), 0..5u64, 0..2_000u64, 0..100_000u64];
    prop::collection::vec(gap, 1..80)
}

/// Requests in thousandths, each with the time since the one before.
pub(super) fn requests() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let gap = prop_oneof![Just(0u64), 0..5u64, 0..2_000u64, 0..50_000u64];
    let cost = prop_oneof![4 => Just(1_000u64), 1 => 0..4_000u64];
    prop::collection::vec((gap, cost), 1..80)
}

/// A rate, and the same as thousandths of a request in so many thousandths of a millisecond.
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
