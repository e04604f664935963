//! The rules of a location of which some count in a store that gateways share.
//!
//! The order is the other way round than where all is local: what can be asked here is asked first, and nobody waits
//! for a store to hear a refusal that was known before. What was charged here is given back when a store refuses.

use std::sync::Arc;

use super::applied::{Held, Spoken};
use super::key::Found;
use super::rule::{Decision, Requests};
use crate::clock::Millis;
use crate::config::plan::Cost;
use crate::message::Exchange;
use crate::store::algorithm::Outcome;
use crate::store::{Inquiry, Shared, Unanswered};

/// A request as its rules see it: everything that has to be known before anything is waited for.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) keys: Vec<Held>,
    /// Questions that were decided without their answer.
    unanswered: Vec<(Arc<Shared>, Unanswered)>,
}

impl Case {
    /// What the rules need to know of a request; otherwise the decision at once.
    pub(super) fn open(rules: &[Requests], exchange: &Exchange) -> Result<Self, Decision> {
        let mut keys = Vec::with_capacity(rules.len());
        for (index, rule) in rules.iter().enumerate() {
            let mut bytes = Vec::new();
            match rule.zone.find_in_full(exchange, &mut bytes) {
                Found::Key(keyed) => keys.push(Held {
                    rule: index,
                    cost: rule.cost(exchange),
                    terms: rule.with_terms(&keyed, Clone::clone),
                    keyed,
                    bytes,
                    spoken: Spoken::Nothing,
                }),
                Found::Nothing => {}
                Found::Refuse(fault) => return Err(rule.no_key(index, fault)),
            }
        }
        Ok(Self {
            keys,
            unanswered: Vec::new(),
        })
    }

    /// Asks all, and charges all unless one refuses.
    pub(super) async fn decide(&mut self, rules: &[Requests], now: Millis) -> Decision {
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
        if self.keys.iter().any(Held::refuses) {
            return self.refuse(rules, now).await;
        }
        while let Some(store) = self.next_store(rules) {
            self.ask(rules, &store, now).await;
            if self.keys.iter().any(Held::refuses) {
                return self.refuse(rules, now).await;
            }
        }
        let mut decision = Decision::NotLimited;
        for held in &self.keys {
            let Some(outcome) = held.outcome() else {
                continue;
            };
            match held.spoken {
                Spoken::Leased(answer) | Spoken::There(answer) => {
                    held.witness(rules, now, answer);
                }
                Spoken::Waits(_, share) => {
                    let (store, cost) = (&rules[held.rule].zone.store, share.whole());
                    store.reserve(&held.keyed.key, now, cost, &held.terms);
                }
                Spoken::Here(_, _, share) if share.owes > Cost(0) => {
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
    pub(super) fn tell_penalty(&self, rules: &[Requests], rule: usize, now: Millis) {
        let held = self.keys.iter().find(|held| held.rule == rule);
        let Requests { zone, sanction, .. } = &rules[rule];
        if let (Some(held), Some(store), Some(term)) = (held, &zone.shared, sanction.penalty) {
            let mut inquiry = Inquiry::default();
            held.ask_about(rules, store, &mut inquiry);
            store.punish_later(inquiry, now, term);
        }
    }

    /// Whether some are known to be refused; nothing is charged then.
    fn recall(&mut self, rules: &[Requests], now: Millis) -> bool {
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
    fn next_store(&self, rules: &[Requests]) -> Option<Arc<Shared>> {
        let silent = self.keys.iter().find(|held| held.outcome().is_none())?;
        rules[silent.rule].zone.shared.clone()
    }

    /// Asks one store about all keys it has.
    async fn ask(&mut self, rules: &[Requests], store: &Arc<Shared>, now: Millis) {
        let mut inquiry = Inquiry::default();
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
                        held.spoken = Spoken::There(answer);
                    }
                }
                None => held.go_on_without(rules, store, now),
            }
        }
    }

    /// Takes back what was charged, and says why.
    async fn refuse(&mut self, rules: &[Requests], now: Millis) -> Decision {
        let mut decision = Decision::NotLimited;
        for held in &self.keys {
            match held.spoken {
                Spoken::Here(Outcome::Delay { .. } | Outcome::Pass { .. }, receipt, share) => {
                    let store = &rules[held.rule].zone.store;
                    store.refund(&held.keyed.key, receipt, now, share.needs, &held.terms);
                }
                Spoken::Leased(_) => {
                    if let Some(leases) = &rules[held.rule].zone.leases {
                        leases.unspend(&held.keyed.key, now, held.cost, &held.terms);
                    }
                }
                Spoken::There(answer) if held.refuses() => held.witness(rules, now, answer),
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
            if let Some(outcome @ Outcome::Refuse { .. }) = held.outcome() {
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
    async fn give_back(&self, rules: &[Requests], now: Millis) {
        let stores = rules.iter().filter_map(|rule| rule.zone.shared.as_ref());
        let mut done: Vec<&Arc<Shared>> = Vec::new();
        for store in stores {
            let mut there = self.keys.iter().filter(|held| held.is_at(rules, store));
            if done.iter().any(|known| Arc::ptr_eq(known, store)) || there.any(Held::refuses) {
                continue;
            }
            done.push(store);
            let mut inquiry = Inquiry::default();
            let mut charged = false;
            for held in &self.keys {
                if matches!(held.spoken, Spoken::There(_)) && held.is_at(rules, store) {
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
