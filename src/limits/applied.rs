//! A rule that applies to a request, some of whose rules count in a store that gateways share.

use std::sync::Arc;
use std::time::Duration;

use super::rule::ReqRule;
use super::zones::RuleKey;
use crate::clock::Millis;
use crate::config::plan::{Cost, Excess, OnOutage, StoreMode};
use crate::store::algorithm::{LimitSpec, Verdict};
use crate::store::{
    CostShare, LeaseVerdict, OutageCharge, Receipt, SharedStore, StoreRequest, StoreVerdict,
    ZoneLeases,
};

/// A rule that applies.
#[derive(Debug)]
pub(super) struct PendingRule {
    pub(super) rule: usize,
    pub(super) keyed: RuleKey,
    pub(super) bytes: Vec<u8>,
    pub(super) cost: Cost,
    pub(super) terms: LimitSpec,
    pub(super) spoken: RuleResult,
}

/// What came of it.
#[derive(Debug)]
pub(super) enum RuleResult {
    /// Charged in this process, where its store did not answer for more than itself.
    Here(Verdict, Receipt, CostShare),
    Nothing,
    /// Said without asking: the store is away, and this is what is done then.
    Ruled(Verdict),
    /// Spent from what this gateway has in hand.
    Leased(StoreVerdict),
    /// Charged in its store.
    There(StoreVerdict),
    /// Over the burst here, and waits until it is not; charged once nobody refuses any more.
    Waits(Verdict, CostShare),
}

impl PendingRule {
    pub(super) fn charge(&mut self, rules: &[ReqRule], now: Millis, share: CostShare) {
        let rule = &rules[self.rule];
        if let Some(outcome) = rule.waits_by(&self.terms, &self.keyed, now, share.needs) {
            self.spoken = RuleResult::Waits(outcome, share);
            return;
        }
        let store = &rule.zone.store;
        let (outcome, receipt) = store.charge(&self.keyed.key, now, share.needs, &self.terms);
        self.spoken = RuleResult::Here(outcome, receipt, share);
    }

    /// What it costs where nobody else counts.
    pub(super) fn own_share(&self) -> CostShare {
        CostShare {
            needs: self.cost,
            owes: Cost(0),
        }
    }

    /// Adds the question about it.
    pub(super) fn ask_about(
        &self,
        rules: &[ReqRule],
        store: &SharedStore,
        inquiry: &mut StoreRequest,
    ) {
        let rule = &rules[self.rule];
        let (zone, name) = (&rule.zone, &rule.zone.name.plain);
        let refused = zone.count_refused;
        inquiry.add(store, name, &self.bytes, &self.terms, self.cost, refused);
        inquiry.may_wait(rule.sanction.max_wait);
        inquiry.may_be_punished(rule.sanction.penalty.is_some());
    }

    /// How many requests it has left at most, by this process's own picture. Not for windows: those of a server begin at
    /// moments that are not known here.
    pub(super) fn known_left(
        &self,
        rules: &[ReqRule],
        store: &SharedStore,
        now: Millis,
    ) -> Option<u64> {
        if self.terms.is_windowed() {
            return None;
        }
        let zone = &rules[self.rule].zone.store;
        let standing = zone.standing(&self.keyed.key, now, &self.terms)?;
        // What passed on credit is about to be charged.
        let credit = match store.mode() {
            StoreMode::Exact => 0,
            StoreMode::Leased => 1,
        };
        let left = standing.remaining + credit;
        (left < standing.limit).then_some(left)
    }

    /// For how long it has to stay out because another gateway said so; from now on here, too.
    pub(super) fn penalty_elsewhere(&self, rules: &[ReqRule], now: Millis) -> Option<Duration> {
        let RuleResult::There(StoreVerdict {
            outcome:
                Verdict::Refuse {
                    retry_after: Some(left),
                    ..
                },
            penalized: true,
            ..
        }) = self.spoken
        else {
            return None;
        };
        let penalties = rules[self.rule].penalties()?;
        // Without room for it here, it is asked about again.
        let stays = penalties.punish(&self.keyed.key, now, left);
        Some(stays.unwrap_or(left))
    }

    /// What its store has to be charged, where it passed without.
    pub(super) fn debt(&self, rules: &[ReqRule], store: &SharedStore) -> Option<OutageCharge> {
        let (RuleResult::Here(..) | RuleResult::Waits(..)) = self.spoken else {
            return None;
        };
        let (zone, key) = (&rules[self.rule].zone.store, &self.keyed.key);
        let debt = OutageCharge::new(store, zone, key, &self.bytes, &self.terms, self.cost);
        Some(debt)
    }

    /// What this gateway can say of it without its store. Not while that is away: then it goes on as it does without. Nor
    /// where requests wait in the line that all gateways share.
    pub(super) fn leases<'r>(&self, rules: &'r [ReqRule]) -> Option<&'r Arc<ZoneLeases>> {
        let rule = &rules[self.rule];
        let away = rule
            .zone
            .shared
            .as_ref()
            .is_some_and(|store| store.is_away());
        let waits = rule.sanction.max_wait.is_some();
        rule.zone.leases.as_ref().filter(|_| !away && !waits)
    }

    /// Decides here where that can be done.
    pub(super) fn spend(&mut self, rules: &[ReqRule], now: Millis) {
        let Some(leases) = self.leases(rules) else {
            return;
        };
        let key = &self.keyed.key;
        match leases.spend(key, &self.bytes, now, self.cost, &self.terms) {
            (LeaseVerdict::Ask, _) => {}
            (LeaseVerdict::Refuse(outcome), None) => self.rule_out(rules, outcome),
            (LeaseVerdict::Refuse(outcome), Some(remaining)) => {
                self.witness(rules, now, leased(outcome, remaining));
                self.spoken = RuleResult::Ruled(outcome);
            }
            (LeaseVerdict::Spent(outcome), news) => {
                let remaining = news.unwrap_or(u64::MAX);
                self.spoken = RuleResult::Leased(leased(outcome, remaining));
            }
        }
    }

    /// Remembers a refusal for as long as it holds.
    pub(super) fn learn(&self, rules: &[ReqRule], now: Millis, answer: &StoreVerdict) {
        if let Some(leases) = self.leases(rules) {
            leases.learn(&self.keyed.key, now, self.cost, &self.terms, answer);
        }
    }

    /// It is refused without asking.
    pub(super) fn rule_out(&mut self, rules: &[ReqRule], outcome: Verdict) {
        rules[self.rule].zone.store.count_refusal(&self.keyed.key);
        self.spoken = RuleResult::Ruled(outcome);
    }

    /// The store is away.
    pub(super) fn go_on_without(&mut self, rules: &[ReqRule], store: &SharedStore, now: Millis) {
        self.spoken = match store.on_outage() {
            OnOutage::Local => {
                let share = store.alone(self.cost, &self.terms);
                return self.charge(rules, now, share);
            }
            OnOutage::Allow => RuleResult::Ruled(Verdict::Pass { excess: Excess(0) }),
            OnOutage::Refuse => {
                let refusal = Verdict::Refuse {
                    excess: Excess(0),
                    retry_after: Some(AWHILE),
                };
                return self.rule_out(rules, refusal);
            }
        };
    }

    /// Keeps this process's own picture of the key, for when the store is away.
    pub(super) fn witness(&self, rules: &[ReqRule], now: Millis, answer: StoreVerdict) {
        let store = &rules[self.rule].zone.store;
        store.witness(&self.keyed.key, now, self.cost, &self.terms, answer);
    }

    pub(super) fn outcome(&self) -> Option<Verdict> {
        match self.spoken {
            RuleResult::Here(outcome, ..)
            | RuleResult::Ruled(outcome)
            | RuleResult::Waits(outcome, _) => Some(outcome),
            RuleResult::Leased(answer) | RuleResult::There(answer) => Some(answer.outcome),
            RuleResult::Nothing => None,
        }
    }

    pub(super) fn refuses(&self) -> bool {
        matches!(self.outcome(), Some(Verdict::Refuse { .. }))
    }

    /// How many more would pass, where the store has said so.
    pub(super) fn left(&self) -> Option<u64> {
        match self.spoken {
            RuleResult::There(answer) => Some(answer.remaining),
            _ => None,
        }
    }

    /// When a rule that was not asked would let the request pass, where this gateway knows that it would refuse it now.
    pub(super) fn known_to_refuse(
        &self,
        rules: &[ReqRule],
        now: Millis,
    ) -> Option<Option<Duration>> {
        if self.outcome().is_some() {
            return None;
        }
        let (rule, key) = (&rules[self.rule], &self.keyed.key);
        let outcome = match rule.zone.shared {
            Some(_) => self
                .leases(rules)?
                .refusal(key, now, self.cost, &self.terms)?,
            None => rule.zone.store.ask(key, now, self.cost, &self.terms),
        };
        rule.passes_at(&outcome, &self.terms)
    }

    pub(super) fn is_at(&self, rules: &[ReqRule], store: &Arc<SharedStore>) -> bool {
        let own = rules[self.rule].zone.shared.as_ref();
        own.is_some_and(|own| Arc::ptr_eq(own, store))
    }
}

/// What this gateway says by itself.
fn leased(outcome: Verdict, remaining: u64) -> StoreVerdict {
    StoreVerdict {
        outcome,
        remaining,
        penalized: false,
    }
}

/// When somebody may try again who was refused for want of a store.
const AWHILE: Duration = Duration::from_secs(1);
