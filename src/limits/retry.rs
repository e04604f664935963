//! When a refused request would pass: by the rule that refused it, and by all that hold for it.

use std::time::Duration;

use super::key::KeyLookup;
use super::rule::{Decision, ReqRule};
use crate::clock::Millis;
use crate::config::plan::Delay;
use crate::message::RequestRecord;
use crate::store::algorithm::{LimitSpec, Verdict};

impl Decision {
    /// Makes a refusal by `rule` tell when a retry would be let in to wait for the rest of the time.
    pub(super) fn may_wait(&mut self, rule: &ReqRule, terms: &LimitSpec) {
        if let Self::Refuse {
            retry_after, own, ..
        } = self
        {
            *own = rule.enters_after(*own, terms);
            *retry_after = *own;
        }
    }

    /// Makes a refusal tell when a retry would pass the `later` rules too, which nobody has asked yet.
    pub(super) fn until_all_pass(
        &mut self,
        later: &[ReqRule],
        exchange: &RequestRecord,
        now: Millis,
    ) {
        for rule in later {
            let KeyLookup::Key(keyed) = rule.zone.find(exchange) else {
                continue;
            };
            let cost = rule.cost(exchange);
            let refused = rule.with_terms(&keyed, |terms| {
                let outcome = rule.zone.store.ask(&keyed.key, now, cost, terms);
                rule.passes_at(&outcome, terms)
            });
            if let Some(after) = refused {
                self.not_before(after);
            }
        }
    }

    /// One of several rules refuses: the first has the say, and the longest time to wait.
    pub(super) fn hear_refusal(&mut self, other: Self, remaining: Option<u64>) {
        match (self.is_refusal(), other) {
            (true, Self::Refuse { retry_after, .. }) => self.not_before(retry_after),
            (_, other) => {
                *self = other;
                if let Self::Refuse { left, .. } = self {
                    *left = remaining;
                }
            }
        }
    }

    /// Makes a refusal tell no earlier time than another rule does; `None` where no waiting helps.
    pub(super) fn not_before(&mut self, after: Option<Duration>) {
        if let Self::Refuse { retry_after, .. } = self {
            *retry_after = after.zip(*retry_after).map(|(one, other)| one.max(other));
        }
    }
}

impl ReqRule {
    /// When a request would pass that this rule refuses; `None` if it does not refuse it.
    pub(super) fn passes_at(
        &self,
        outcome: &Verdict,
        terms: &LimitSpec,
    ) -> Option<Option<Duration>> {
        match *outcome {
            Verdict::Refuse { retry_after, .. } => Some(self.enters_after(retry_after, terms)),
            Verdict::Delay { .. } | Verdict::Pass { .. } => None,
        }
    }

    /// When a request that would be within the burst after `turn` is let in: at once then, or earlier to wait.
    fn enters_after(&self, turn: Option<Duration>, terms: &LimitSpec) -> Option<Duration> {
        let most = self.sanction.max_wait.unwrap_or_default();
        // At its turn it still waits as the burst has it, and all of that has to fit into the longest wait.
        let before_its_turn = most.saturating_sub(wait_in_burst(terms));
        turn.map(|turn| turn.saturating_sub(before_its_turn))
    }
}

/// How long a request waits that fills the burst.
fn wait_in_burst(terms: &LimitSpec) -> Duration {
    match terms {
        LimitSpec::LeakyBucket(terms) => match terms.delay {
            Delay::After(threshold) => {
                let above = terms.burst.0.saturating_sub(threshold.0);
                Duration::from_millis(above / terms.rate.units_per_milli().max(1))
            }
            Delay::Never => Duration::ZERO,
        },
        _ => Duration::ZERO,
    }
}
