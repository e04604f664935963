//! Requests over the burst that wait instead of being refused: `on_excess: delay`.

use super::rule::Requests;
use super::zones::Keyed;
use crate::clock::Millis;
use crate::config::plan::Cost;
use crate::store::algorithm::{Outcome, Terms};

impl Requests {
    /// What becomes of a request that is over the burst and may wait until it is not; `None` where it is not, or may not.
    pub(super) fn waits(&self, keyed: &Keyed, now: Millis, cost: Cost) -> Option<Outcome> {
        self.sanction.max_wait?;
        self.with_terms(keyed, |terms| self.waits_by(terms, keyed, now, cost))
    }

    /// The same by other numbers than the rule's.
    pub(super) fn waits_by(
        &self,
        terms: &Terms,
        keyed: &Keyed,
        now: Millis,
        cost: Cost,
    ) -> Option<Outcome> {
        let most = self.sanction.max_wait?;
        let ask = |at| self.zone.store.ask(&keyed.key, at, cost, terms);
        let Outcome::Refuse {
            excess,
            retry_after: Some(turn),
        } = ask(now)
        else {
            return None;
        };
        // When it is its turn, it is as if it came then.
        let wait = match ask(now.after(turn)) {
            Outcome::Delay { wait, .. } => turn.saturating_add(wait),
            Outcome::Pass { .. } | Outcome::Refuse { .. } => turn,
        };
        (wait <= most).then_some(Outcome::Delay { excess, wait })
    }
}
