//! Keys that stay out for a while because they went over.
//!
//! A rule with a `penalty` asks first whether the key still serves one, and gives one to a key that it refuses. What other
//! rules refuse punishes nobody.

use std::time::Duration;

use super::key::KeyLookup;
use super::rule::{Decision, ReqRule};
use super::zones::RuleKey;
use crate::clock::Millis;
use crate::message::RequestRecord;
use crate::store::Penalties;

/// The rule of these that still keeps a request's key out, if one does.
pub(super) fn serving(
    rules: &[ReqRule],
    exchange: &RequestRecord,
    now: Millis,
) -> Option<Decision> {
    for (index, rule) in rules.iter().enumerate() {
        let Some(penalties) = rule.penalties() else {
            continue;
        };
        let KeyLookup::Key(keyed) = rule.zone.find(exchange) else {
            continue;
        };
        if let Some(left) = penalties.left(&keyed.key, now) {
            rule.zone.store.count_refusal(&keyed.key);
            return Some(Decision::Penalize {
                rule: index,
                keyed,
                left,
                // Who comes back when the penalty is over and is still over the rate would get the next one.
                retry_after: rule
                    .passes_after(&keyed, exchange, now)
                    .map(|after| after.max(left)),
            });
        }
    }
    None
}

/// Gives a key that was refused its penalty, where there is room for one: for how long it has to stay away. The rule, where
/// the key had none before.
pub(super) fn punish(decision: &mut Decision, rules: &[ReqRule], now: Millis) -> Option<usize> {
    if let Decision::Refuse {
        rule,
        keyed,
        retry_after,
        own,
        left,
        ..
    } = decision
        && let Some(penalties) = rules[*rule].penalties()
        && let Some(term) = rules[*rule].sanction.penalty
        && let Some(stays) = penalties.punish(&keyed.key, now, term)
    {
        *retry_after = retry_after.map(|after| after.max(stays));
        *own = own.map(|after| after.max(stays));
        *left = Some(0);
        return (stays == term).then_some(*rule);
    }
    None
}

impl ReqRule {
    /// When a request would pass that comes now; `None` where no waiting helps. Changes nothing.
    fn passes_after(
        &self,
        keyed: &RuleKey,
        exchange: &RequestRecord,
        now: Millis,
    ) -> Option<Duration> {
        let cost = self.cost(exchange);
        self.with_terms(keyed, |terms| {
            let outcome = self.zone.store.ask(&keyed.key, now, cost, terms);
            self.passes_at(&outcome, terms)
                .unwrap_or(Some(Duration::ZERO))
        })
    }

    /// Where those are remembered who stay out, if this rule punishes.
    pub(super) fn penalties(&self) -> Option<&Penalties> {
        self.sanction.penalty.and(self.zone.penalties.as_deref())
    }
}
