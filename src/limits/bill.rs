//! What a request turns out to cost, charged when it is over.
//!
//! Until then it has cost nothing: it was let in because its key was not in debt. So what is charged here may leave the
//! key in debt, and keeps the next request out until that is paid.

use std::sync::Arc;

use smallvec::SmallVec;

use super::key::KeyLookup;
use super::rule::ReqRule;
use super::weight;
use super::zones::RuleKey;
use crate::clock::Millis;
use crate::config::plan::Cost;
use crate::message::RequestRecord;
use crate::store::algorithm::LimitSpec;
use crate::store::{OutageCharge, StoreRequest};

/// What one request owes to the rules that let it in.
#[derive(Debug)]
#[must_use = "what nobody settles is never charged"]
pub struct DeferredCharge {
    rules: Arc<[ReqRule]>,
    owed: SmallVec<[OwedRule; 1]>,
}

/// To one rule.
#[derive(Debug)]
struct OwedRule {
    rule: usize,
    keyed: RuleKey,
    /// What the key was made from, where a store has to be told.
    bytes: Vec<u8>,
}

impl DeferredCharge {
    /// Of a request that these rules have let in.
    pub(super) fn new(rules: Arc<[ReqRule]>, exchange: &RequestRecord) -> Self {
        let late = rules.iter().enumerate().filter(|it| it.1.weight.is_late());
        let owed = late
            .filter_map(|(rule, ReqRule { zone, .. })| {
                let mut bytes = Vec::new();
                let found = match zone.shared {
                    Some(_) => zone.find_in_full(exchange, &mut bytes),
                    None => zone.find(exchange),
                };
                match found {
                    KeyLookup::Key(keyed) => Some(OwedRule { rule, keyed, bytes }),
                    KeyLookup::Nothing | KeyLookup::Refuse(_) => None,
                }
            })
            .collect();
        Self { rules, owed }
    }

    /// Charges it, now that the request is over, however it ended.
    pub fn settle(self, exchange: &RequestRecord, now: Millis) {
        for owed in self.owed {
            let rule = &self.rules[owed.rule];
            let parts = rule.zone.source.parts();
            let cost = weight::after(&rule.weight, parts, exchange, now);
            if cost > Cost(0) {
                rule.with_terms(&owed.keyed, |terms| owed.charge(rule, terms, cost, now));
            }
        }
    }
}

impl OwedRule {
    fn charge(&self, rule: &ReqRule, terms: &LimitSpec, cost: Cost, now: Millis) {
        let zone = &rule.zone;
        let debit = |cost: Cost| zone.store.debit(&self.keyed.key, now, cost, terms);
        match &zone.shared {
            Some(store) if store.is_away() => {
                let share = store.alone(cost, terms);
                debit(share.needs);
                debit(share.owes);
                let key = &self.keyed.key;
                store.owe(OutageCharge::new(
                    store,
                    &zone.store,
                    key,
                    &self.bytes,
                    terms,
                    cost,
                ));
            }
            Some(store) => {
                // Here, too: this gateway goes on from there when the store is away.
                debit(cost);
                let mut inquiry = StoreRequest::default();
                let name = &zone.name.plain;
                inquiry.add(store, name, &self.bytes, terms, cost, zone.count_refused);
                store.charge_later(inquiry);
            }
            None => debit(cost),
        }
    }
}
