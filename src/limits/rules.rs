//! A list of `limit_req` rules that are asked together.

use std::ops::Deref;
use std::sync::Arc;

use super::bill::Bill;
use super::key::{Found, KeyFault};
use super::rule::{Decision, Ears, Requests};
use super::shared::Case;
use super::zones::ReqZone;
use super::{penalty, rule, weight};
use crate::clock::Millis;
use crate::config::plan::ReqRule;
use crate::message::Exchange;
use crate::store::algorithm::Terms;

/// The rules of a location.
// What few of them have is asked for once, when they are compiled.
#[derive(Debug)]
pub(super) struct Rules {
    list: Arc<[Requests]>,
    punishes: bool,
    owed: bool,
    shared: bool,
    /// What some requests weigh depends on what the client says.
    told: bool,
}

impl Rules {
    /// Those of a plan; `zone` finds the one with an index.
    pub(super) fn compile<'z>(
        rules: &[ReqRule],
        zone: impl Fn(usize) -> Option<&'z Arc<ReqZone>>,
    ) -> Self {
        let mut list: Vec<Requests> = Vec::with_capacity(rules.len());
        for rule in rules {
            let Some(zone) = zone(rule.zone) else {
                continue;
            };
            let same = |other: &Requests| zone.shares_keys(&other.zone);
            list.push(Requests {
                terms: Terms::new(&zone.algorithm, rule.burst, rule.delay),
                burst: rule.burst,
                delay: rule.delay,
                same_key_as: list.iter().position(same),
                zone: Arc::clone(zone),
                weight: rule.weight.clone(),
                sanction: rule.sanction.clone(),
            });
        }
        Self {
            punishes: list.iter().any(|rule| rule.sanction.penalty.is_some()),
            told: list.iter().any(|rule| rule.weight.template().is_some()),
            owed: list.iter().any(|rule| rule.weight.is_late()),
            shared: list.iter().any(|rule| rule.zone.shared.is_some()),
            list: list.into(),
        }
    }

    /// What they say of a request together; unless they refuse it, it is charged.
    pub(super) fn decide(
        &self,
        exchange: &Exchange,
        now: Millis,
        ears: &mut impl Ears,
    ) -> Decision {
        if let Some(ambiguous) = self.ambiguous_cost(exchange) {
            return ambiguous;
        }
        if !self.punishes {
            return rule::decide(&self.list, exchange, now, ears);
        }
        penalty::serving(&self.list, exchange, now).unwrap_or_else(|| {
            let mut decision = rule::decide(&self.list, exchange, now, ears);
            penalty::punish(&mut decision, &self.list, now);
            decision
        })
    }

    /// Whether some of them count in a store.
    pub(super) fn are_shared(&self) -> bool {
        self.shared
    }

    /// All that a store has to be told of a request; otherwise the decision at once.
    pub(super) fn open(&self, exchange: &Exchange, now: Millis) -> Result<Case, Decision> {
        if let Some(ambiguous) = self.ambiguous_cost(exchange) {
            return Err(ambiguous);
        }
        if self.punishes
            && let Some(serving) = penalty::serving(&self.list, exchange, now)
        {
            return Err(serving);
        }
        Case::open(&self.list, exchange)
    }

    /// The same as [`Rules::decide`], where some of them count in a store.
    pub(super) async fn decide_shared(&self, case: &mut Case, now: Millis) -> Decision {
        let mut decision = case.decide(&self.list, now).await;
        if self.punishes
            && let Some(rule) = penalty::punish(&mut decision, &self.list, now)
        {
            case.tell_penalty(&self.list, rule, now);
        }
        decision
    }

    /// The refusal of a request that gives what it costs more than once.
    fn ambiguous_cost(&self, exchange: &Exchange) -> Option<Decision> {
        if !self.told {
            return None;
        }
        let index = self.list.iter().position(|rule| {
            rule.is_ambiguous(exchange) && matches!(rule.zone.find(exchange), Found::Key(_))
        })?;
        Some(self.list[index].no_key(index, KeyFault::Ambiguous))
    }

    /// What a request that they let in has to pay when it is over.
    pub(super) fn bill(&self, exchange: &Exchange) -> Option<Bill> {
        self.owed
            .then(|| Bill::new(Arc::clone(&self.list), exchange))
    }
}

impl Requests {
    /// Whether what a request weighs here is given more than once.
    pub(super) fn is_ambiguous(&self, exchange: &Exchange) -> bool {
        let template = self.weight.template();
        template.is_some_and(|it| weight::is_ambiguous(it, self.zone.source.parts(), exchange))
    }
}

impl Deref for Rules {
    type Target = [Requests];

    fn deref(&self) -> &[Requests] {
        &self.list
    }
}
