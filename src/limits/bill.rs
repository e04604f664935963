//! What a request turns out to cost, charged when it is over.
//!
//! Until then it has cost nothing: it was let in because its key was not in debt. So what is charged here may leave the
//! key in debt, and keeps the next request out until that is paid.

use std::sync::Arc;

use smallvec::SmallVec;

use super::key::Found;
use super::rule::Requests;
use super::weight;
use super::zones::Keyed;
use crate::clock::Millis;
use crate::config::plan::Cost;
use crate::message::Exchange;
use crate::store::algorithm::Terms;
use crate::store::{Debt, Inquiry};

/// What one request owes to the rules that let it in.
#[derive(Debug)]
#[must_use = "what nobody settles is never charged"]
pub struct Bill {
    rules: Arc<[Requests]>,
    owed: SmallVec<[Owed; 1]>,
}

/// To one rule.
#[derive(Debug)]
struct Owed {
    rule: usize,
    keyed: Keyed,
    /// What the key was made from, where a store has to be told.
    bytes: Vec<u8>,
}

impl Bill {
    /// Of a request that these rules have let in.
    pub(super) fn new(rules: Arc<[Requests]>, exchange: &Exchange) -> Self {
        let late = rules.iter().enumerate().filter(|it| it.1.weight.is_late());
        let owed = late
            .filter_map(|(rule, Requests { zone, .. })| {
                let mut bytes = Vec::new();
                let found = match zone.shared {
                    Some(_) => zone.find_in_full(exchange, &mut bytes),
                    None => zone.find(exchange),
                };
                match found {
                    Found::Key(keyed) => Some(Owed { rule, keyed, bytes }),
                    Found::Nothing | Found::Refuse(_) => None,
                }
            })
            .collect();
        Self { rules, owed }
    }

    /// Charges it, now that the request is over, however it ended.
    pub fn settle(self, exchange: &Exchange, now: Millis) {
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

impl Owed {
    fn charge(&self, rule: &Requests, terms: &Terms, cost: Cost, now: Millis) {
        let zone = &rule.zone;
        let debit = |cost: Cost| zone.store.debit(&self.keyed.key, now, cost, terms);
        match &zone.shared {
            Some(store) if store.is_away() => {
                let share = store.alone(cost, terms);
                debit(share.needs);
                debit(share.owes);
                let key = &self.keyed.key;
                store.owe(Debt::new(store, &zone.store, key, &self.bytes, terms, cost));
            }
            Some(store) => {
                // Here, too: this gateway goes on from there when the store is away.
                debit(cost);
                let mut inquiry = Inquiry::default();
                let name = &zone.name.plain;
                inquiry.add(store, name, &self.bytes, terms, cost, zone.count_refused);
                store.charge_later(inquiry);
            }
            None => debit(cost),
        }
    }
}
