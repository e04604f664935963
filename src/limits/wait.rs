//! Requests over the burst that wait instead of being refused: `on_excess: delay`.

use super::rule::ReqRule;
use super::zones::RuleKey;
use crate::clock::Millis;
use crate::config::plan::Cost;
use crate::store::algorithm::{LimitSpec, Verdict};

impl ReqRule {
    /// What becomes of a request that is over the burst and may wait until it is not; `None` where it is not, or may not.
    pub(super) fn waits(&self, keyed: &RuleKey, now: Millis, cost: Cost) -> Option<Verdict> {
        self.sanction.max_wait?;
        self.with_terms(keyed, |terms| self.waits_by(terms, keyed, now, cost))
    }

    /// The same by other numbers than the rule's.
    pub(super) fn waits_by(
        &self,
        terms: &LimitSpec,
        keyed: &RuleKey,
        now: Millis,
        cost: Cost,
    ) -> Option<Verdict> {
        let most = self.sanction.max_wait?;
        let ask = |at| self.zone.store.ask(&keyed.key, at, cost, terms);
        let Verdict::Refuse {
            excess,
            retry_after: Some(turn),
        } = ask(now)
        else {
            return None;
        };
        // When it is its turn, it is as if it came then.
        let wait = match ask(now.after(turn)) {
            Verdict::Delay { wait, .. } => turn.saturating_add(wait),
            Verdict::Pass { .. } | Verdict::Refuse { .. } => turn,
        };
        (wait <= most).then_some(Verdict::Delay { excess, wait })
    }
}
