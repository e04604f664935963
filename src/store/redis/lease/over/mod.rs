//! A refusal as the store gave it, and what it says of requests with another cost.

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::clock::Millis;
use crate::config::plan::{Cost, Excess, Rate};
use crate::store::algorithm::{LimitSpec, Verdict};

/// Until when requests of some cost are refused.
#[derive(Debug, Clone, Copy)]
pub(super) struct RefusedUntil {
    pub(super) until: Millis,
    /// When one of this cost would pass, as the store said.
    pub(super) retry: Millis,
    pub(super) cost: Cost,
    pub(super) excess: Excess,
}

impl RefusedUntil {
    /// The refusal of a request of `cost`; `None` where it does not follow from this one, and the store has to be asked.
    pub(super) fn refusal(&self, now: Millis, cost: Cost, terms: &LimitSpec) -> Option<Verdict> {
        if now >= self.until {
            return None;
        }
        let more = Cost(cost.0.checked_sub(self.cost.0)?);
        let never = more.0 > 0 && weighs(terms) && cost.0 > capacity(terms);
        let retry_after = if never {
            None
        } else {
            let retry = self.retry.after(later(terms, self.excess, more)?);
            Some(retry.max(self.until).since(now))
        };
        Some(Verdict::Refuse {
            excess: Excess(self.excess.0.saturating_add(more.0)),
            retry_after,
        })
    }
}

/// How long a key that has nothing left takes to have room for `cost`, at most; `None` where nobody can tell.
pub(super) fn earned_in(terms: &LimitSpec, cost: Cost) -> Option<Duration> {
    later(terms, Excess(0), cost)
}

/// How much later a refused request would have passed if it had weighed `more`; `None` where that depends on what came when.
fn later(terms: &LimitSpec, excess: Excess, more: Cost) -> Option<Duration> {
    if more.0 == 0 || !weighs(terms) {
        return Some(Duration::ZERO);
    }
    match terms {
        LimitSpec::FixedWindow(terms) => {
            // `excess` is what has to be made up for, a limit with each window.
            let windows = |surplus: u64| surplus.div_ceil(terms.limit.0.max(1));
            let all = windows(excess.0.saturating_add(more.0)) - windows(excess.0);
            let all = u32::try_from(all).unwrap_or(u32::MAX);
            Some(terms.window.saturating_mul(all))
        }
        LimitSpec::Gcra(terms) => Some(Duration::from_nanos(terms.in_nanos(more).2)),
        LimitSpec::LeakyBucket(terms) => Some(drained_in(more, terms.rate)),
        LimitSpec::TokenBucket(terms) => Some(drained_in(more, terms.rate)),
        _ => None,
    }
}

/// Whether a request that weighs more passes later. Where the next one pays for the last, it does not.
fn weighs(terms: &LimitSpec) -> bool {
    !matches!(
        terms,
        LimitSpec::Bursty(_) | LimitSpec::Paced(_) | LimitSpec::WarmUp(_)
    )
}

/// The most that a request can weigh and ever pass.
fn capacity(terms: &LimitSpec) -> u64 {
    terms.quota().saturating_mul(Excess::ONE.0)
}

fn drained_in(cost: Cost, rate: Rate) -> Duration {
    Duration::from_millis(cost.0.div_ceil(rate.units_per_milli().max(1)))
}
