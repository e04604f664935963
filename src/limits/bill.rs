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

/// What one request owes to the rules that let it in.
#[derive(Debug)]
#[must_use = "what nobody settles is never charged"]
pub struct Bill {
    rules: Arc<[Requests]>,
    /// Which rules, and by which key.
    owed: SmallVec<[(usize, Keyed); 1]>,
}

impl Bill {
    /// Of a request that these rules have let in.
    pub(super) fn new(rules: Arc<[Requests]>, exchange: &Exchange) -> Self {
        let late = rules.iter().enumerate().filter(|it| it.1.weight.is_late());
        let owed = late
            .filter_map(|(index, rule)| match rule.zone.find(exchange) {
                Found::Key(keyed) => Some((index, keyed)),
                Found::Nothing | Found::Refuse => None,
            })
            .collect();
        Self { rules, owed }
    }

    /// Charges it, now that the request is over, however it ended.
    pub fn settle(self, exchange: &Exchange, now: Millis) {
        for (index, keyed) in self.owed {
            let rule = &self.rules[index];
            let cost = weight::after(&rule.weight, exchange, now);
            if cost > Cost(0) {
                rule.with_terms(&keyed, |terms| {
                    rule.zone.store.debit(&keyed.key, now, cost, terms);
                });
            }
        }
    }
}
