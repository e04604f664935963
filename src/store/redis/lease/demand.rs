//! How much of a key is asked for at this gateway, against what it may have.
//!
//! A bucket as wide and as fast as a multiple of the limit. When it is full, so much more is asked for than can pass that
//! asking about each is waste; when half of it has drained that is over. What lies between keeps it from going to
//! and fro.

use crate::clock::Millis;
use crate::config::plan::{Cost, Excess};
use crate::store::algorithm::LimitSpec;

/// The demand for one key.
#[derive(Debug)]
pub(super) struct KeyDemand {
    height: u64,
    last: Millis,
    crowded: bool,
}

impl KeyDemand {
    pub(super) fn new(now: Millis) -> Self {
        Self {
            height: 0,
            last: now,
            crowded: false,
        }
    }

    /// One more; whether that is too many, where `above` times the limit is.
    pub(super) fn note(&mut self, now: Millis, cost: Cost, terms: &LimitSpec, above: u32) -> bool {
        let quota = terms.quota().saturating_mul(Excess::ONE.0);
        let most = quota.saturating_mul(above.into());
        let elapsed = now.since(self.last).as_millis();
        let drained = u128::from(most) * elapsed / terms.period().as_millis().max(1);
        let drained = u64::try_from(drained).unwrap_or(u64::MAX);
        // What is less than a unit must not be lost time after time.
        if drained > 0 {
            self.last = now;
        }
        let height = self.height.saturating_sub(drained).saturating_add(cost.0);
        self.height = height.min(most);
        self.crowded = match self.crowded {
            true => self.height > most / 2,
            false => height > most,
        };
        self.crowded
    }

    pub(super) fn is_crowded(&self) -> bool {
        self.crowded
    }
}
