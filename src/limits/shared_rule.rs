//! The rules of a location of which some count in a store that gateways share.
//!
//! The order is the other way round than where all is local: what can be asked here is asked first, and nobody waits
//! for a store to hear a refusal that was known before. What was charged here is given back when a store refuses.
//!
//! A rule that applies to a request, some of whose rules count in a store that gateways share.
//!
//! Which override holds for a request, and which bucket it is counted in.
//!
//! An override by address gives the clients it names other numbers in the zone, and one bucket cannot be drained at two
//! rates. Where the key tells these clients from all others, as an address does, its bucket is theirs alone. Where others
//! have the same key, those who are named are counted apart: together, as all others are.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::key::KeyLookup;
use super::rule::{Decision, ReqRule};
use super::zone::{OverrideMatch, ReqZone, RuleKey, apart, parted};
use crate::algorithm::{Cost, Excess, LimitSpec, Verdict};
use crate::clock::Millis;
use crate::config::plan::{OnOutage, StoreMode};
use crate::message::RequestRecord;
use crate::store::{
    CostShare, Key, LeaseVerdict, LocalDecision, OutageCharge, Receipt, SharedStore, StoreRequest,
    StoreVerdict, ZoneLeases,
};

/// A request as its rules see it: everything that has to be known before anything is waited for.
#[derive(Debug)]
pub(super) struct SharedDecision {
    pub(super) keys: Vec<PendingRule>,
    /// Questions that were decided without their answer.
    unanswered: Vec<(Arc<SharedStore>, LocalDecision)>,
}

impl SharedDecision {
    /// What the rules need to know of a request; otherwise the decision at once.
    pub(super) fn open(rules: &[ReqRule], record: &RequestRecord) -> Result<Self, Decision> {
        let mut keys = Vec::with_capacity(rules.len());
        for (index, rule) in rules.iter().enumerate() {
            let mut bytes = Vec::new();
            match rule.zone.find_in_full(record, &mut bytes) {
                KeyLookup::Key(rule_key) => keys.push(PendingRule {
                    rule: index,
                    cost: rule.cost(record),
                    spec: rule.with_terms(&rule_key, Clone::clone),
                    rule_key,
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
                    held.mirror(rules, now, answer);
                }
                RuleResult::Waits(_, share) => {
                    let (store, cost) = (&rules[held.rule].zone.store, share.whole());
                    store.charge_delayed(&held.rule_key.key, now, cost, &held.spec);
                }
                RuleResult::Here(_, _, share) if share.owes > Cost(0) => {
                    let store = &rules[held.rule].zone.store;
                    store.debit(&held.rule_key.key, now, share.owes, &held.spec);
                }
                _ => {}
            }
            decision.hear(held.rule, &held.rule_key, outcome, &mut ());
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
        let ReqRule { zone, action, .. } = &rules[rule];
        if let (Some(held), Some(store), Some(term)) = (held, &zone.shared, action.penalty) {
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
                && let Some(outcome) =
                    leases.refusal(&held.rule_key.key, now, held.cost, &held.spec)
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
                    store.refund(&held.rule_key.key, receipt, now, share.needs, &held.spec);
                }
                RuleResult::Leased(_) => {
                    if let Some(leases) = &rules[held.rule].zone.leases {
                        leases.unspend(&held.rule_key.key, now, held.cost, &held.spec);
                    }
                }
                RuleResult::There(answer) if held.refuses() => held.mirror(rules, now, answer),
                _ => {}
            }
            if let Some(left) = held.penalty_elsewhere(rules, now) {
                decision = Decision::Penalize {
                    rule: held.rule,
                    rule_key: held.rule_key,
                    left,
                    retry_after: Some(left),
                };
                break;
            }
            if let Some(outcome @ Verdict::Refuse { .. }) = held.outcome() {
                let mut own = Decision::NotLimited;
                own.hear(held.rule, &held.rule_key, outcome, &mut ());
                own.may_wait(&rules[held.rule], &held.spec);
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

/// A rule that applies.
#[derive(Debug)]
pub(super) struct PendingRule {
    pub(super) rule: usize,
    pub(super) rule_key: RuleKey,
    pub(super) bytes: Vec<u8>,
    pub(super) cost: Cost,
    pub(super) spec: LimitSpec,
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
        if let Some(outcome) = rule.waits_by(&self.spec, &self.rule_key, now, share.needs) {
            self.spoken = RuleResult::Waits(outcome, share);
            return;
        }
        let store = &rule.zone.store;
        let (outcome, receipt) = store.charge(&self.rule_key.key, now, share.needs, &self.spec);
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
        inquiry.add(store, name, &self.bytes, &self.spec, self.cost, refused);
        inquiry.may_wait(rule.action.max_wait);
        inquiry.may_be_punished(rule.action.penalty.is_some());
    }

    /// How many requests it has left at most, by this process's own picture. Not for windows: those of a server begin at
    /// moments that are not known here.
    pub(super) fn known_left(
        &self,
        rules: &[ReqRule],
        store: &SharedStore,
        now: Millis,
    ) -> Option<u64> {
        if self.spec.info().windowed {
            return None;
        }
        let zone = &rules[self.rule].zone.store;
        let key_status = zone.key_status(&self.rule_key.key, now, &self.spec)?;
        // What passed on credit is about to be charged.
        let credit = match store.mode() {
            StoreMode::Exact => 0,
            StoreMode::Leased => 1,
        };
        let left = key_status.remaining + credit;
        (left < key_status.limit).then_some(left)
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
        let stays = penalties.punish(&self.rule_key.key, now, left);
        Some(stays.unwrap_or(left))
    }

    /// What its store has to be charged, where it passed without.
    pub(super) fn debt(&self, rules: &[ReqRule], store: &SharedStore) -> Option<OutageCharge> {
        let (RuleResult::Here(..) | RuleResult::Waits(..)) = self.spoken else {
            return None;
        };
        let (zone, key) = (&rules[self.rule].zone.store, &self.rule_key.key);
        let debt = OutageCharge::new(store, zone, key, &self.bytes, &self.spec, self.cost);
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
        let waits = rule.action.max_wait.is_some();
        rule.zone.leases.as_ref().filter(|_| !away && !waits)
    }

    /// Decides here where that can be done.
    pub(super) fn spend(&mut self, rules: &[ReqRule], now: Millis) {
        let Some(leases) = self.leases(rules) else {
            return;
        };
        let key = &self.rule_key.key;
        match leases.spend(key, &self.bytes, now, self.cost, &self.spec) {
            (LeaseVerdict::Ask, _) => {}
            (LeaseVerdict::Refuse(outcome), None) => self.rule_out(rules, outcome),
            (LeaseVerdict::Refuse(outcome), Some(remaining)) => {
                self.mirror(rules, now, leased(outcome, remaining));
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
            leases.learn(&self.rule_key.key, now, self.cost, &self.spec, answer);
        }
    }

    /// It is refused without asking.
    pub(super) fn rule_out(&mut self, rules: &[ReqRule], outcome: Verdict) {
        rules[self.rule]
            .zone
            .store
            .count_refusal(&self.rule_key.key);
        self.spoken = RuleResult::Ruled(outcome);
    }

    /// The store is away.
    pub(super) fn go_on_without(&mut self, rules: &[ReqRule], store: &SharedStore, now: Millis) {
        self.spoken = match store.on_outage() {
            OnOutage::Local => {
                let share = store.alone(self.cost, &self.spec);
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
    pub(super) fn mirror(&self, rules: &[ReqRule], now: Millis, answer: StoreVerdict) {
        let store = &rules[self.rule].zone.store;
        store.mirror(&self.rule_key.key, now, self.cost, &self.spec, answer);
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
        let (rule, key) = (&rules[self.rule], &self.rule_key.key);
        let outcome = match rule.zone.shared {
            Some(_) => self
                .leases(rules)?
                .refusal(key, now, self.cost, &self.spec)?,
            None => rule.zone.store.peek(key, now, self.cost, &self.spec),
        };
        rule.passes_at(&outcome, &self.spec)
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

impl ReqZone {
    /// The key of a request in a zone where some have numbers of their own.
    pub(super) fn find_own(
        &self,
        record: &RequestRecord,
        note: impl FnOnce(&[u8]),
    ) -> KeyLookup<RuleKey> {
        self.find_held(record, |bytes, apart, held| {
            let own = match held {
                OverrideMatch::Own(index) => Some(index),
                OverrideMatch::Same => None,
                OverrideMatch::Unlimited(_) => return KeyLookup::Nothing,
            };
            let frees = |bytes| self.watch.frees(&Key::from_bytes(bytes), record);
            if frees(bytes) || apart.is_some_and(frees) {
                return KeyLookup::Nothing;
            }
            let bytes = apart.unwrap_or(bytes);
            note(bytes);
            let key = Key::from_bytes(bytes);
            KeyLookup::Key(RuleKey { key, own })
        })
    }

    /// Makes something of the bytes of a request's key, those of its bucket where that is one apart, and what holds for it.
    fn find_held<T>(
        &self,
        record: &RequestRecord,
        make: impl FnOnce(&[u8], Option<&[u8]>, OverrideMatch) -> KeyLookup<T>,
    ) -> KeyLookup<T> {
        let client = record.client();
        let found = self.source.find(record, |bytes| {
            // The bytes of an address may read like a text.
            let text = (!self.source.is_address_of(client, bytes)).then_some(bytes);
            let held = self.overrides.find(text, client.ip());
            let named = match held {
                OverrideMatch::Own(index) => self.overrides.clients(index),
                OverrideMatch::Same | OverrideMatch::Unlimited(_) => None,
            };
            let shared = named.filter(|clients| !self.source.is_within(*clients, client, bytes));
            match shared {
                Some(clients) => make(bytes, Some(&apart(clients, bytes)), held),
                None => make(bytes, None, held),
            }
        });
        match found {
            // Who is not limited here needs no key.
            KeyLookup::Refuse(_) if self.is_unlimited(record) => KeyLookup::Nothing,
            found => found,
        }
    }

    /// Whether an override frees the client of a request from this zone, whatever its key is.
    fn is_unlimited(&self, record: &RequestRecord) -> bool {
        let held = self.overrides.find(None, record.client().ip());
        matches!(held, OverrideMatch::Unlimited(_))
    }

    /// The keys under which a request can be marked: its own, and that of its bucket where that is one apart.
    pub(super) fn marked_keys(&self, record: &RequestRecord) -> SmallVec<[Key; 2]> {
        let mut keys = SmallVec::new();
        self.find_held(record, |bytes, apart, _| {
            keys.push(Key::from_bytes(bytes));
            keys.extend(apart.map(Key::from_bytes));
            KeyLookup::<()>::Nothing
        });
        keys
    }

    /// The bytes of a request's bucket, if it has one; nothing is held while `act` looks at them.
    pub(super) fn with_key(&self, record: &RequestRecord, act: impl FnOnce(&[u8])) {
        let copied = self.find_held(record, |bytes, apart, _| {
            let bytes = apart.unwrap_or(bytes);
            KeyLookup::Key(SmallVec::<[u8; 32]>::from_slice(bytes))
        });
        if let KeyLookup::Key(key) = copied {
            act(&key);
        }
    }

    /// What a request's bucket is called for people.
    pub(super) fn label(&self, record: &RequestRecord) -> String {
        let mut network = None;
        self.with_key(record, |bytes| {
            network = parted(bytes).map(|(network, _)| network);
        });
        match network {
            Some(network) => format!("({network}) {}", self.source.label(record)),
            None => self.source.label(record),
        }
    }

    /// What the override that applies to a request is written under.
    pub(super) fn override_name(&self, record: &RequestRecord) -> Option<String> {
        let index = |held| match held {
            OverrideMatch::Own(index) | OverrideMatch::Unlimited(index) => Some(index),
            OverrideMatch::Same => None,
        };
        let found = self.find_held(record, |_, _, held| KeyLookup::Key(held));
        let held = match found {
            KeyLookup::Key(held) => held,
            KeyLookup::Nothing | KeyLookup::Refuse(_) => {
                self.overrides.find(None, record.client().ip())
            }
        };
        self.overrides.name(index(held)?)
    }
}
