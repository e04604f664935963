//! A list of `limit_req` rules that are asked together.

use std::ops::Deref;
use std::sync::Arc;

use super::bill::DeferredCharge;
use super::key::{KeyFault, KeyLookup};
use super::rule::{Decision, ReqRule, RuleObserver};
use super::shared::SharedDecision;
use super::zones::ReqZone;
use super::{penalty, rule, weight};
use crate::clock::Millis;
use crate::config::plan;
use crate::message::RequestRecord;
use crate::store::algorithm::LimitSpec;

/// The rules of a location.
// What few of them have is asked for once, when they are compiled.
#[derive(Debug)]
pub(super) struct ReqRules {
    list: Arc<[ReqRule]>,
    punishes: bool,
    owed: bool,
    shared: bool,
    /// What some requests weigh depends on what the client says.
    told: bool,
}

impl ReqRules {
    /// Those of a plan; `zone` finds the one with an index.
    pub(super) fn compile<'z>(
        rules: &[plan::ReqRule],
        zone: impl Fn(usize) -> Option<&'z Arc<ReqZone>>,
    ) -> Self {
        let mut list: Vec<ReqRule> = Vec::with_capacity(rules.len());
        for rule in rules {
            let Some(zone) = zone(rule.zone) else {
                continue;
            };
            let same = |other: &ReqRule| zone.shares_keys(&other.zone);
            list.push(ReqRule {
                terms: LimitSpec::new(&zone.algorithm, rule.burst, rule.delay),
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
        exchange: &RequestRecord,
        now: Millis,
        ears: &mut impl RuleObserver,
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
    pub(super) fn open(
        &self,
        exchange: &RequestRecord,
        now: Millis,
    ) -> Result<SharedDecision, Decision> {
        if let Some(ambiguous) = self.ambiguous_cost(exchange) {
            return Err(ambiguous);
        }
        if self.punishes
            && let Some(serving) = penalty::serving(&self.list, exchange, now)
        {
            return Err(serving);
        }
        SharedDecision::open(&self.list, exchange)
    }

    /// The same as [`ReqRules::decide`], where some of them count in a store.
    pub(super) async fn decide_shared(&self, case: &mut SharedDecision, now: Millis) -> Decision {
        let mut decision = case.decide(&self.list, now).await;
        if self.punishes
            && let Some(rule) = penalty::punish(&mut decision, &self.list, now)
        {
            case.tell_penalty(&self.list, rule, now);
        }
        decision
    }

    /// The refusal of a request that gives what it costs more than once.
    fn ambiguous_cost(&self, exchange: &RequestRecord) -> Option<Decision> {
        if !self.told {
            return None;
        }
        let index = self.list.iter().position(|rule| {
            rule.is_ambiguous(exchange) && matches!(rule.zone.find(exchange), KeyLookup::Key(_))
        })?;
        Some(self.list[index].no_key(index, KeyFault::Ambiguous))
    }

    /// What a request that they let in has to pay when it is over.
    pub(super) fn bill(&self, exchange: &RequestRecord) -> Option<DeferredCharge> {
        self.owed
            .then(|| DeferredCharge::new(Arc::clone(&self.list), exchange))
    }
}

impl ReqRule {
    /// Whether what a request weighs here is given more than once.
    pub(super) fn is_ambiguous(&self, exchange: &RequestRecord) -> bool {
        let template = self.weight.template();
        template.is_some_and(|it| weight::is_ambiguous(it, self.zone.source.parts(), exchange))
    }
}

impl Deref for ReqRules {
    type Target = [ReqRule];

    fn deref(&self) -> &[ReqRule] {
        &self.list
    }
}
