//! The rules of a location of which some count in a store that gateways share.
//!
//! The order is the other way round than where all is local: what can be asked here is asked first, and nobody waits
//! for a store to hear a refusal that was known before. What was charged here is given back when a store refuses.

use std::sync::Arc;

use super::applied::{PendingRule, RuleResult};
use super::key::KeyLookup;
use super::rule::{Decision, ReqRule};
use crate::clock::Millis;
use crate::config::plan::Cost;
use crate::message::RequestRecord;
use crate::store::algorithm::Verdict;
use crate::store::{LocalDecision, SharedStore, StoreRequest};

/// A request as its rules see it: everything that has to be known before anything is waited for.
#[derive(Debug)]
pub(super) struct SharedDecision {
    pub(super) keys: Vec<PendingRule>,
    /// Questions that were decided without their answer.
    unanswered: Vec<(Arc<SharedStore>, LocalDecision)>,
}

impl SharedDecision {
    /// What the rules need to know of a request; otherwise the decision at once.
    pub(super) fn open(rules: &[ReqRule], exchange: &RequestRecord) -> Result<Self, Decision> {
        let mut keys = Vec::with_capacity(rules.len());
        for (index, rule) in rules.iter().enumerate() {
            let mut bytes = Vec::new();
            match rule.zone.find_in_full(exchange, &mut bytes) {
                KeyLookup::Key(keyed) => keys.push(PendingRule {
                    rule: index,
                    cost: rule.cost(exchange),
                    terms: rule.with_terms(&keyed, Clone::clone),
                    keyed,
                    bytes,
                    spoken: RuleResult::Nothing,
                }),
                KeyLookup::Nothing => {}
                KeyLookup::Refuse(fault) => return Err(rule.no_key(index, fault)),
            }
        }
        Ok(Self {
            keys,
            unanswered: Vec::new(),
        })
    }

    /// Asks all, and charges all unless one refuses.
    pub(super) async fn decide(&mut self, rules: &[ReqRule], now: Millis) -> Decision {
        if self.keys.len() > 1 && self.recall(rules, now) {
            return self.refuse(rules, now).await;
        }
        for held in &mut self.keys {
            if rules[held.rule].zone.shared.is_none() {
                held.charge(rules, now, held.own_share());
                if held.refuses() {
                    return self.refuse(rules, now).await;
                }
            }
        }
        for held in &mut self.keys {
            held.spend(rules, now);
        }
        if self.keys.iter().any(PendingRule::refuses) {
            return self.refuse(rules, now).await;
        }
        while let Some(store) = self.next_store(rules) {
            self.ask(rules, &store, now).await;
            if self.keys.iter().any(PendingRule::refuses) {
                return self.refuse(rules, now).await;
            }
        }
        let mut decision = Decision::NotLimited;
        for held in &self.keys {
            let Some(outcome) = held.outcome() else {
                continue;
            };
            match held.spoken {
                RuleResult::Leased(answer) | RuleResult::There(answer) => {
                    held.witness(rules, now, answer);
                }
                RuleResult::Waits(_, share) => {
                    let (store, cost) = (&rules[held.rule].zone.store, share.whole());
                    store.reserve(&held.keyed.key, now, cost, &held.terms);
                }
                RuleResult::Here(_, _, share) if share.owes > Cost(0) => {
                    let store = &rules[held.rule].zone.store;
                    store.debit(&held.keyed.key, now, share.owes, &held.terms);
                }
                _ => {}
            }
            decision.hear(held.rule, &held.keyed, outcome, &mut ());
        }
        for (store, unanswered) in std::mem::take(&mut self.unanswered) {
            let passed = self.keys.iter().filter(|held| held.is_at(rules, &store));
            let passed = passed.filter_map(|held| held.debt(rules, &store));
            store.settle(unanswered, false, passed.collect());
        }
        decision
    }

    /// Lets the other gateways know that a rule keeps its key out from now on.
    pub(super) fn tell_penalty(&self, rules: &[ReqRule], rule: usize, now: Millis) {
        let held = self.keys.iter().find(|held| held.rule == rule);
        let ReqRule { zone, sanction, .. } = &rules[rule];
        if let (Some(held), Some(store), Some(term)) = (held, &zone.shared, sanction.penalty) {
            let mut inquiry = StoreRequest::default();
            held.ask_about(rules, store, &mut inquiry);
            store.punish_later(inquiry, now, term);
        }
    }

    /// Whether some are known to be refused; nothing is charged then.
    fn recall(&mut self, rules: &[ReqRule], now: Millis) -> bool {
        let mut refused = false;
        for held in &mut self.keys {
            if let Some(leases) = held.leases(rules)
                && let Some(outcome) = leases.refusal(&held.keyed.key, now, held.cost, &held.terms)
            {
                refused = true;
                held.rule_out(rules, outcome);
            }
        }
        refused
    }

    /// The store of the first rule that has not spoken.
    fn next_store(&self, rules: &[ReqRule]) -> Option<Arc<SharedStore>> {
        let silent = self.keys.iter().find(|held| held.outcome().is_none())?;
        rules[silent.rule].zone.shared.clone()
    }

    /// Asks one store about all keys it has.
    async fn ask(&mut self, rules: &[ReqRule], store: &Arc<SharedStore>, now: Millis) {
        let mut inquiry = StoreRequest::default();
        for held in &self.keys {
            if held.is_at(rules, store) && held.outcome().is_none() {
                held.ask_about(rules, store, &mut inquiry);
                inquiry.has_left(held.known_left(rules, store, now));
            }
        }
        let mut answers = match store.ask(inquiry, now).await {
            Ok(answers) => Some(answers.into_iter()),
            Err(unanswered) => {
                self.unanswered.push((Arc::clone(store), unanswered));
                None
            }
        };
        for held in &mut self.keys {
            if held.outcome().is_some() || !held.is_at(rules, store) {
                continue;
            }
            match &mut answers {
                Some(answers) => {
                    if let Some(Some(answer)) = answers.next() {
                        if !answer.penalized {
                            held.learn(rules, now, &answer);
                        }
                        held.spoken = RuleResult::There(answer);
                    }
                }
                None => held.go_on_without(rules, store, now),
            }
        }
    }

    /// Takes back what was charged, and says why.
    async fn refuse(&mut self, rules: &[ReqRule], now: Millis) -> Decision {
        let mut decision = Decision::NotLimited;
        for held in &self.keys {
            match held.spoken {
                RuleResult::Here(Verdict::Delay { .. } | Verdict::Pass { .. }, receipt, share) => {
                    let store = &rules[held.rule].zone.store;
                    store.refund(&held.keyed.key, receipt, now, share.needs, &held.terms);
                }
                RuleResult::Leased(_) => {
                    if let Some(leases) = &rules[held.rule].zone.leases {
                        leases.unspend(&held.keyed.key, now, held.cost, &held.terms);
                    }
                }
                RuleResult::There(answer) if held.refuses() => held.witness(rules, now, answer),
                _ => {}
            }
            if let Some(left) = held.penalty_elsewhere(rules, now) {
                decision = Decision::Penalize {
                    rule: held.rule,
                    keyed: held.keyed,
                    left,
                    retry_after: Some(left),
                };
                break;
            }
            if let Some(outcome @ Verdict::Refuse { .. }) = held.outcome() {
                let mut own = Decision::NotLimited;
                own.hear(held.rule, &held.keyed, outcome, &mut ());
                own.may_wait(&rules[held.rule], &held.terms);
                decision.hear_refusal(own, held.left());
            }
        }
        for held in &self.keys {
            if let Some(after) = held.known_to_refuse(rules, now) {
                decision.not_before(after);
            }
        }
        for (store, unanswered) in std::mem::take(&mut self.unanswered) {
            store.settle(unanswered, true, Vec::new());
        }
        self.give_back(rules, now).await;
        decision
    }

    /// Gives back to those stores that let it pass; one that refused has charged nothing.
    async fn give_back(&self, rules: &[ReqRule], now: Millis) {
        let stores = rules.iter().filter_map(|rule| rule.zone.shared.as_ref());
        let mut done: Vec<&Arc<SharedStore>> = Vec::new();
        for store in stores {
            let mut there = self.keys.iter().filter(|held| held.is_at(rules, store));
            if done.iter().any(|known| Arc::ptr_eq(known, store)) || there.any(PendingRule::refuses)
            {
                continue;
            }
            done.push(store);
            let mut inquiry = StoreRequest::default();
            let mut charged = false;
            for held in &self.keys {
                if matches!(held.spoken, RuleResult::There(_)) && held.is_at(rules, store) {
                    held.ask_about(rules, store, &mut inquiry);
                    charged = true;
                }
            }
            if charged {
                store.give_back(&inquiry, now).await;
            }
        }
    }
}
