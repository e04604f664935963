//! The rules of a location of which some count in a store that gateways share.
//!
//! The order is the other way round than where all is local: what can be asked here is asked first, and nobody waits
//! for a store to hear a refusal that was known before. What was charged here is given back when a store refuses.

use std::sync::Arc;
use std::time::Duration;

use super::key::Found;
use super::rule::{Decision, Requests};
use super::zones::Keyed;
use crate::clock::Millis;
use crate::config::plan::{Cost, Excess, OnOutage};
use crate::message::Exchange;
use crate::store::algorithm::{Outcome, Terms};
use crate::store::{Answer, Inquiry, Leases, Receipt, Shared, Word};

/// A request as its rules see it: everything that has to be known before anything is waited for.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) keys: Vec<Held>,
}

/// A rule that applies.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) rule: usize,
    pub(super) keyed: Keyed,
    bytes: Vec<u8>,
    cost: Cost,
    terms: Terms,
    pub(super) spoken: Spoken,
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Spoken {
    /// Charged in this process.
    Here(Outcome, Receipt, Terms),
    Nothing,
    /// Said without asking: the store is away, and this is what is done then.
    Ruled(Outcome),
    /// Spent from what this gateway has in hand.
    Leased(Answer),
    /// Charged in its store.
    There(Answer),
    /// Over the burst here, and waits until it is not; charged once nobody refuses any more.
    Waits(Outcome, Terms),
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
        Ok(Self { keys })
    }

    /// Asks all, and charges all unless one refuses.
    pub(super) async fn decide(&mut self, rules: &[Requests], now: Millis) -> Decision {
        if self.keys.len() > 1 && self.recall(rules, now) {
            return self.refuse(rules, now).await;
        }
        for held in &mut self.keys {
            if rules[held.rule].zone.shared.is_none() {
                held.charge(rules, now, held.terms);
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
                Spoken::Waits(_, terms) => {
                    let store = &rules[held.rule].zone.store;
                    store.reserve(&held.keyed.key, now, held.cost, &terms);
                }
                _ => {}
            }
            decision.hear(held.rule, &held.keyed, outcome, &mut ());
        }
        decision
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
        let inquiry = self.inquiry(rules, store, |held| held.outcome().is_none());
        let answers = store.ask(&inquiry, now).await;
        let mut answers = answers.map(Vec::into_iter);
        for held in &mut self.keys {
            if held.outcome().is_some() || !held.is_at(rules, store) {
                continue;
            }
            match &mut answers {
                Ok(answers) => {
                    if let Some(Some(answer)) = answers.next() {
                        held.learn(rules, now, &answer);
                        held.spoken = Spoken::There(answer);
                    }
                }
                Err(_) => held.go_on_without(rules, store, now),
            }
        }
    }

    /// Takes back what was charged, and says why.
    async fn refuse(&self, rules: &[Requests], now: Millis) -> Decision {
        let mut decision = Decision::NotLimited;
        for held in &self.keys {
            match held.spoken {
                Spoken::Here(Outcome::Delay { .. } | Outcome::Pass { .. }, receipt, terms) => {
                    let store = &rules[held.rule].zone.store;
                    store.refund(&held.keyed.key, receipt, now, held.cost, &terms);
                }
                Spoken::Leased(_) => {
                    if let Some(leases) = &rules[held.rule].zone.leases {
                        leases.unspend(&held.keyed.key, now, held.cost, &held.terms);
                    }
                }
                Spoken::There(answer) if held.refuses() => held.witness(rules, now, answer),
                _ => {}
            }
            if let Some(outcome @ Outcome::Refuse { .. }) = held.outcome() {
                let mut own = Decision::NotLimited;
                own.hear(held.rule, &held.keyed, outcome, &mut ());
                own.may_wait(&rules[held.rule], held.terms_used());
                decision.hear_refusal(own, held.left());
            }
        }
        for held in &self.keys {
            if let Some(after) = held.known_to_refuse(rules, now) {
                decision.not_before(after);
            }
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
            let charged = |held: &Held| matches!(held.spoken, Spoken::There(_));
            if self
                .keys
                .iter()
                .any(|held| charged(held) && held.is_at(rules, store))
            {
                let inquiry = self.inquiry(rules, store, charged);
                store.give_back(&inquiry, now).await;
            }
        }
    }

    fn inquiry(
        &self,
        rules: &[Requests],
        store: &Arc<Shared>,
        which: impl Fn(&Held) -> bool,
    ) -> Inquiry {
        let mut inquiry = Inquiry::default();
        for held in &self.keys {
            if held.is_at(rules, store) && which(held) {
                let zone = &rules[held.rule].zone;
                let name = &zone.name.plain;
                inquiry.add(
                    name,
                    &held.bytes,
                    &held.terms,
                    held.cost,
                    zone.count_refused,
                );
                inquiry.may_wait(rules[held.rule].sanction.max_wait);
            }
        }
        inquiry
    }
}

impl Held {
    fn charge(&mut self, rules: &[Requests], now: Millis, terms: Terms) {
        let rule = &rules[self.rule];
        if let Some(outcome) = rule.waits_by(&terms, &self.keyed, now, self.cost) {
            self.spoken = Spoken::Waits(outcome, terms);
            return;
        }
        let store = &rule.zone.store;
        let (outcome, receipt) = store.charge(&self.keyed.key, now, self.cost, &terms);
        self.spoken = Spoken::Here(outcome, receipt, terms);
    }

    /// What this gateway can say of it without its store. Not while that is away: then it goes on as it does without. Nor
    /// where requests wait in the line that all gateways share.
    fn leases<'r>(&self, rules: &'r [Requests]) -> Option<&'r Arc<Leases>> {
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
    fn spend(&mut self, rules: &[Requests], now: Millis) {
        let Some(leases) = self.leases(rules) else {
            return;
        };
        let key = &self.keyed.key;
        match leases.spend(key, &self.bytes, now, self.cost, &self.terms) {
            (Word::Ask, _) => {}
            (Word::Refuse(outcome), None) => self.rule_out(rules, outcome),
            (Word::Refuse(outcome), Some(remaining)) => {
                self.witness(rules, now, Answer { outcome, remaining });
                self.spoken = Spoken::Ruled(outcome);
            }
            (Word::Spent(outcome), news) => {
                let remaining = news.unwrap_or(u64::MAX);
                self.spoken = Spoken::Leased(Answer { outcome, remaining });
            }
        }
    }

    /// Remembers a refusal for as long as it holds.
    fn learn(&self, rules: &[Requests], now: Millis, answer: &Answer) {
        if let Some(leases) = self.leases(rules) {
            leases.learn(&self.keyed.key, now, self.cost, &self.terms, answer);
        }
    }

    /// It is refused without asking.
    fn rule_out(&mut self, rules: &[Requests], outcome: Outcome) {
        rules[self.rule].zone.store.count_refusal(&self.keyed.key);
        self.spoken = Spoken::Ruled(outcome);
    }

    /// The store is away.
    fn go_on_without(&mut self, rules: &[Requests], store: &Shared, now: Millis) {
        self.spoken = match store.on_outage() {
            OnOutage::Local => return self.charge_part(rules, store, now),
            OnOutage::Allow => Spoken::Ruled(Outcome::Pass { excess: Excess(0) }),
            OnOutage::Refuse => {
                let refusal = Outcome::Refuse {
                    excess: Excess(0),
                    retry_after: Some(AWHILE),
                };
                return self.rule_out(rules, refusal);
            }
        };
    }

    /// Charges it here, by this gateway's part of the limit and of what is left.
    fn charge_part(&mut self, rules: &[Requests], store: &Shared, now: Millis) {
        let part = store.part_of(&self.terms);
        let (zone, key) = (&rules[self.rule].zone, &self.keyed.key);
        let left = || {
            let standing = zone.store.standing(key, now, &part)?;
            Some(standing.remaining)
        };
        if let Some(gone) = store.left_to_others(&zone.name.plain, key, &part, left) {
            zone.store.debit(key, now, gone, &part);
        }
        self.charge(rules, now, part);
        if let Spoken::Here(Outcome::Refuse { retry_after, .. }, ..) = &mut self.spoken
            && retry_after.is_none()
            && self.cost.0 <= self.terms.quota().saturating_mul(Cost::ONE.0)
        {
            // More than this gateway's part, but not more than the whole that the store has when it is back.
            *retry_after = Some(AWHILE);
        }
    }

    /// Keeps this process's own picture of the key, for when the store is away.
    fn witness(&self, rules: &[Requests], now: Millis, answer: Answer) {
        let store = &rules[self.rule].zone.store;
        store.witness(&self.keyed.key, now, self.cost, &self.terms, answer);
    }

    fn outcome(&self) -> Option<Outcome> {
        match self.spoken {
            Spoken::Here(outcome, ..) | Spoken::Ruled(outcome) | Spoken::Waits(outcome, _) => {
                Some(outcome)
            }
            Spoken::Leased(answer) | Spoken::There(answer) => Some(answer.outcome),
            Spoken::Nothing => None,
        }
    }

    fn refuses(&self) -> bool {
        matches!(self.outcome(), Some(Outcome::Refuse { .. }))
    }

    /// The numbers that were asked: a gateway that counts alone has its part of them.
    pub(super) fn terms_used(&self) -> &Terms {
        match &self.spoken {
            Spoken::Here(_, _, terms) | Spoken::Waits(_, terms) => terms,
            _ => &self.terms,
        }
    }

    /// How many more would pass, where the store has said so.
    fn left(&self) -> Option<u64> {
        match self.spoken {
            Spoken::There(answer) => Some(answer.remaining),
            _ => None,
        }
    }

    /// When a rule that was not asked would let the request pass, where this gateway knows that it would refuse it now.
    fn known_to_refuse(&self, rules: &[Requests], now: Millis) -> Option<Option<Duration>> {
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

    fn is_at(&self, rules: &[Requests], store: &Arc<Shared>) -> bool {
        let own = rules[self.rule].zone.shared.as_ref();
        own.is_some_and(|own| Arc::ptr_eq(own, store))
    }
}

/// When somebody may try again who was refused for want of a store.
const AWHILE: Duration = Duration::from_secs(1);
