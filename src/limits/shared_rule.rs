//! The decision on a request of whose rules some count in a store that gateways share.
//!
//! The order is the other way round than where all is local: what can be decided here comes first, and no request waits
//! for a store to be refused for a reason known before. What was charged here is refunded when a store refuses.

use std::sync::Arc;
use std::time::Duration;

use super::headers::PolicyBalance;
use super::key::{KeyBytes, KeyLookup};
use super::log::RefusalReason;
use super::rule::{Decision, ReqRule, ReqRules, RuleRefusal};
use super::zone::RuleKey;
use crate::algorithm::{Cost, Excess, LimitSpec, Verdict};
use crate::clock::Millis;
use crate::config::plan::{OnOutage, StoreMode};
use crate::message::RequestRecord;
use crate::store::{
    CostShare, LeaseVerdict, LocalDecision, OutageCharge, Receipt, SharedStore, StoreRequest,
    StoreVerdict, ZoneLeases,
};

/// A request as its rules see it: everything that has to be known before anything is waited for.
#[derive(Debug)]
pub(super) struct SharedDecision<'r> {
    rules: &'r ReqRules,
    pending: Vec<PendingRule<'r>>,
    /// Requests to stores that were decided without their response.
    unanswered: Vec<(Arc<SharedStore>, LocalDecision)>,
}

/// A rule that applies to the request.
#[derive(Debug)]
struct PendingRule<'r> {
    rule: &'r ReqRule,
    index: usize,
    rule_key: RuleKey,
    bytes: KeyBytes,
    cost: Cost,
    spec: LimitSpec,
    result: RuleResult,
}

/// What a rule has decided, and where.
#[derive(Debug, Clone, Copy)]
enum RuleResult {
    /// Decided without asking: the store is away, or the refusal was known.
    Known(Verdict),
    /// Spent from this gateway's lease.
    Leased(StoreVerdict),
    /// Charged in this process, because it is the rule's own, or because its store does not respond.
    Local(Verdict, Receipt, CostShare),
    /// Not decided yet.
    Pending,
    /// Charged in its store.
    Stored(StoreVerdict),
    /// Over the burst here, and waits until it is not; charged once no rule refuses any more.
    Waits(Verdict, CostShare),
}

impl<'r> SharedDecision<'r> {
    /// Gathers what the rules need to know of a request; otherwise the decision at once.
    pub(super) fn begin(
        rules: &'r ReqRules,
        keys: &[KeyLookup<RuleKey>],
        record: &RequestRecord,
        now: Millis,
    ) -> Result<Self, Decision> {
        if let Some(decision) = rules.decide_uncharged(keys, record, now) {
            return Err(decision);
        }
        let mut pending = Vec::with_capacity(rules.len());
        for (index, (rule, lookup)) in rules.iter().zip(keys).enumerate() {
            match lookup {
                KeyLookup::Key(rule_key) => pending.push(PendingRule {
                    rule,
                    index,
                    rule_key: *rule_key,
                    bytes: rule.zone.key_bytes(record),
                    cost: rule.cost(record),
                    spec: rule.with_spec(rule_key, Clone::clone),
                    result: RuleResult::Pending,
                }),
                KeyLookup::Nothing => {}
                KeyLookup::Refuse(fault) => {
                    return Err(Decision::without_key(rules, index, *fault));
                }
            }
        }
        Ok(Self {
            rules,
            pending,
            unanswered: Vec::new(),
        })
    }

    /// The decision on the request; unless a rule refuses it, it is charged.
    pub(super) async fn decide(&mut self, keys: &[KeyLookup<RuleKey>], now: Millis) -> Decision {
        let mut decision = match self.ask_all(now).await {
            true => self.pass(now),
            false => self.refuse(now).await,
        };
        if let Some(rule) = self.rules.penalize(&mut decision, keys, now) {
            self.tell_penalty(rule, now);
        }
        decision
    }

    /// What is left under a rule for a request that is admitted.
    pub(super) fn balance(&self, rule: usize, now: Millis) -> Option<PolicyBalance> {
        let pending = self.pending.iter().find(|pending| pending.index == rule)?;
        let (zone, spec) = (&pending.rule.zone, &pending.spec);
        match pending.result {
            RuleResult::Pending | RuleResult::Known(_) => None,
            RuleResult::Stored(verdict) => Some(PolicyBalance::new(
                &zone.name,
                spec.quota(),
                verdict.remaining,
            )),
            // As far as this gateway knows: what others do with their leases becomes known later.
            RuleResult::Local(..) | RuleResult::Leased(_) | RuleResult::Waits(..) => {
                let key_status = zone.store.key_status(&pending.rule_key.key, now, spec);
                Some(PolicyBalance::of_key(&zone.name, spec, key_status))
            }
        }
    }

    /// Asks rule by rule and store by store; false as soon as one refuses.
    async fn ask_all(&mut self, now: Millis) -> bool {
        if self.pending.len() > 1 && self.recall_refusals(now) {
            return false;
        }
        for pending in &mut self.pending {
            if pending.rule.zone.shared.is_none() {
                let share = CostShare {
                    needs: pending.cost,
                    owes: Cost(0),
                };
                pending.charge(now, share);
                if pending.refuses() {
                    return false;
                }
            }
        }
        for pending in &mut self.pending {
            pending.spend_lease(now);
        }
        if self.is_refused() {
            return false;
        }
        while let Some(store) = self.next_store() {
            self.ask_store(&store, now).await;
            if self.is_refused() {
                return false;
            }
        }
        true
    }

    fn is_refused(&self) -> bool {
        self.pending.iter().any(PendingRule::refuses)
    }

    /// The decision where no rule refuses.
    fn pass(&mut self, now: Millis) -> Decision {
        let mut decision = Decision::NotLimited;
        for pending in &self.pending {
            let Some(verdict) = pending.verdict() else {
                continue;
            };
            let (store, key) = (&pending.rule.zone.store, &pending.rule_key.key);
            match pending.result {
                RuleResult::Leased(shared) | RuleResult::Stored(shared) => {
                    pending.mirror(now, shared);
                }
                RuleResult::Waits(_, share) => {
                    store.charge_delayed(key, now, share.whole(), &pending.spec);
                }
                RuleResult::Local(_, _, share) if share.owes > Cost(0) => {
                    store.debit(key, now, share.owes, &pending.spec);
                }
                _ => {}
            }
            decision.add(self.rules, pending.index, verdict);
        }
        for (store, unanswered) in std::mem::take(&mut self.unanswered) {
            let passed = self.pending.iter().filter(|pending| pending.is_at(&store));
            let owed = passed.filter_map(|pending| pending.outage_charge(&store));
            store.settle(unanswered, false, owed.collect());
        }
        decision
    }

    /// Tells the other gateways that a rule gives its key a penalty.
    fn tell_penalty(&self, rule: usize, now: Millis) {
        let pending = self.pending.iter().find(|pending| pending.index == rule);
        let ReqRule { zone, action, .. } = &self.rules[rule];
        if let (Some(pending), Some(store), Some(term)) = (pending, &zone.shared, action.penalty) {
            let mut request = StoreRequest::default();
            pending.add_to(store, &mut request);
            store.punish_later(request, now, term);
        }
    }

    /// Whether a lease knows that some of the rules refuse; nothing is charged then.
    fn recall_refusals(&mut self, now: Millis) -> bool {
        let mut refused = false;
        for pending in &mut self.pending {
            let key = &pending.rule_key.key;
            if let Some(leases) = pending.leases()
                && let Some(verdict) = leases.refusal(key, now, pending.cost, &pending.spec)
            {
                refused = true;
                pending.refuse_locally(verdict);
            }
        }
        refused
    }

    /// The store of the first rule that has not decided.
    fn next_store(&self) -> Option<Arc<SharedStore>> {
        let undecided = self.pending.iter().find(|it| it.verdict().is_none())?;
        undecided.rule.zone.shared.clone()
    }

    /// Asks one store about all keys it has.
    async fn ask_store(&mut self, store: &Arc<SharedStore>, now: Millis) {
        let mut request = StoreRequest::default();
        for pending in &self.pending {
            if pending.is_at(store) && pending.verdict().is_none() {
                pending.add_to(store, &mut request);
                request.has_left(pending.known_remaining(store, now));
            }
        }
        let mut verdicts = match request.send(&store.handle, now).await {
            Ok(verdicts) => Some(verdicts.into_iter()),
            Err(unanswered) => {
                self.unanswered.push((Arc::clone(store), unanswered));
                None
            }
        };
        for pending in &mut self.pending {
            if pending.verdict().is_some() || !pending.is_at(store) {
                continue;
            }
            match &mut verdicts {
                Some(verdicts) => {
                    if let Some(Some(verdict)) = verdicts.next() {
                        if !verdict.penalized
                            && let Some(leases) = pending.leases()
                        {
                            // A refusal is remembered for as long as it holds.
                            let key = &pending.rule_key.key;
                            leases.learn(key, now, pending.cost, &pending.spec, &verdict);
                        }
                        pending.result = RuleResult::Stored(verdict);
                    }
                }
                None => pending.decide_without_store(store, now),
            }
        }
    }

    /// Refunds what was charged, and gives the reason.
    async fn refuse(&mut self, now: Millis) -> Decision {
        let mut refused: Option<RuleRefusal> = None;
        for pending in &self.pending {
            let (zone, key) = (&pending.rule.zone, &pending.rule_key.key);
            match pending.result {
                RuleResult::Local(Verdict::Delay { .. } | Verdict::Pass { .. }, receipt, share) => {
                    let store = &zone.store;
                    store.refund(key, receipt, now, share.needs, &pending.spec);
                }
                RuleResult::Leased(_) => {
                    if let Some(leases) = &zone.leases {
                        leases.unspend(key, now, pending.cost, &pending.spec);
                    }
                }
                RuleResult::Stored(verdict) if pending.refuses() => pending.mirror(now, verdict),
                _ => {}
            }
            if let Some(left) = pending.penalty_elsewhere(now) {
                let reason = RefusalReason::Penalty(left);
                refused = Some(RuleRefusal::new(pending.index, reason, Some(left)));
                break;
            }
            match (&mut refused, pending.refusal()) {
                (_, None) => {}
                (Some(first), Some(other)) => first.not_before(other.retry_after),
                (None, refusal) => refused = refusal,
            }
        }
        if let Some(refused) = &mut refused {
            for pending in &self.pending {
                if let Some(after) = pending.known_to_refuse(now) {
                    refused.not_before(after);
                }
            }
        }
        for (store, unanswered) in std::mem::take(&mut self.unanswered) {
            store.settle(unanswered, true, Vec::new());
        }
        self.refund_stores(now).await;
        refused.map_or(Decision::NotLimited, Decision::Refuse)
    }

    /// Refunds in those stores that let the request pass; one that refused has charged nothing.
    async fn refund_stores(&self, now: Millis) {
        let mut done: Vec<&Arc<SharedStore>> = Vec::new();
        for store in self
            .rules
            .iter()
            .filter_map(|rule| rule.zone.shared.as_ref())
        {
            let mut there = self.pending.iter().filter(|pending| pending.is_at(store));
            if done.iter().any(|known| Arc::ptr_eq(known, store)) || there.any(PendingRule::refuses)
            {
                continue;
            }
            done.push(store);
            let mut request = StoreRequest::default();
            let mut charged = false;
            for pending in &self.pending {
                if matches!(pending.result, RuleResult::Stored(_)) && pending.is_at(store) {
                    pending.add_to(store, &mut request);
                    charged = true;
                }
            }
            if charged {
                request.refund(&store.handle, now).await;
            }
        }
    }
}

impl<'r> PendingRule<'r> {
    /// Charges the key in this process.
    fn charge(&mut self, now: Millis, share: CostShare) {
        let (rule, key) = (self.rule, &self.rule_key);
        self.result = match rule.wait_over_burst_with(&self.spec, key, now, share.needs) {
            Some(verdict) => RuleResult::Waits(verdict, share),
            None => {
                let store = &rule.zone.store;
                let (verdict, receipt) = store.charge(&key.key, now, share.needs, &self.spec);
                RuleResult::Local(verdict, receipt, share)
            }
        };
    }

    /// Adds it to a request to its store.
    fn add_to(&self, store: &SharedStore, request: &mut StoreRequest) {
        let (zone, name) = (&self.rule.zone, &self.rule.zone.name.plain);
        let refused = zone.count_refused;
        request.add(
            &store.handle,
            name,
            &self.bytes,
            &self.spec,
            self.cost,
            refused,
        );
        request.may_wait(self.rule.action.max_wait);
        request.may_be_punished(self.rule.action.penalty.is_some());
    }

    /// The most requests its key has left, as far as this process knows. Not for windows: those of a server begin at
    /// moments that are not known here.
    fn known_remaining(&self, store: &SharedStore, now: Millis) -> Option<u64> {
        if self.spec.info().windowed {
            return None;
        }
        let zone = &self.rule.zone.store;
        let key_status = zone.key_status(&self.rule_key.key, now, &self.spec)?;
        // What passed on credit is about to be charged.
        let credit = match store.handle.mode {
            StoreMode::Exact => 0,
            StoreMode::Leased => 1,
        };
        let remaining = key_status.remaining + credit;
        (remaining < key_status.limit).then_some(remaining)
    }

    /// The rest of a penalty that another gateway has given; from now on it holds here, too.
    fn penalty_elsewhere(&self, now: Millis) -> Option<Duration> {
        let RuleResult::Stored(StoreVerdict {
            outcome:
                Verdict::Refuse {
                    retry_after: Some(left),
                    ..
                },
            penalized: true,
            ..
        }) = self.result
        else {
            return None;
        };
        let penalties = self.rule.penalties()?;
        // Without room for it here, the store is asked about it again.
        let stays = penalties.punish(&self.rule_key.key, now, left);
        Some(stays.unwrap_or(left))
    }

    /// What its store has to charge, where the request passed without.
    fn outage_charge(&self, store: &SharedStore) -> Option<OutageCharge> {
        let (RuleResult::Local(..) | RuleResult::Waits(..)) = self.result else {
            return None;
        };
        let (zone, key) = (&self.rule.zone.store, &self.rule_key.key);
        let charge =
            OutageCharge::new(&store.handle, zone, key, &self.bytes, &self.spec, self.cost);
        Some(charge)
    }

    /// The leases by which this gateway decides without the store. None while that is away, because then it goes on as it
    /// does without; nor where requests wait in the queue that all gateways share.
    fn leases(&self) -> Option<&'r Arc<ZoneLeases>> {
        let zone = &self.rule.zone;
        let away = zone
            .shared
            .as_ref()
            .is_some_and(|store| store.handle.is_away());
        let waits = self.rule.action.max_wait.is_some();
        zone.leases.as_ref().filter(|_| !away && !waits)
    }

    /// Decides by a lease where that can be done.
    fn spend_lease(&mut self, now: Millis) {
        let Some(leases) = self.leases() else {
            return;
        };
        let key = &self.rule_key.key;
        match leases.spend(key, &self.bytes, now, self.cost, &self.spec) {
            (LeaseVerdict::Ask, _) => {}
            (LeaseVerdict::Refuse(verdict), None) => self.refuse_locally(verdict),
            (LeaseVerdict::Refuse(verdict), Some(remaining)) => {
                self.mirror(now, leased(verdict, remaining));
                self.result = RuleResult::Known(verdict);
            }
            (LeaseVerdict::Spent(verdict), remaining) => {
                let remaining = remaining.unwrap_or(u64::MAX);
                self.result = RuleResult::Leased(leased(verdict, remaining));
            }
        }
    }

    /// Refuses the request without asking.
    fn refuse_locally(&mut self, verdict: Verdict) {
        self.rule.zone.store.count_refusal(&self.rule_key.key);
        self.result = RuleResult::Known(verdict);
    }

    /// Decides while the store is away.
    fn decide_without_store(&mut self, store: &SharedStore, now: Millis) {
        match store.handle.on_outage {
            OnOutage::Local => {
                let share = store.handle.alone(self.cost, &self.spec);
                self.charge(now, share);
            }
            OnOutage::Allow => self.result = RuleResult::Known(Verdict::Pass { excess: Excess(0) }),
            OnOutage::Refuse => self.refuse_locally(Verdict::Refuse {
                excess: Excess(0),
                retry_after: Some(OUTAGE_RETRY),
            }),
        }
    }

    /// Brings the bucket of this process up to date, for when the store is away.
    fn mirror(&self, now: Millis, verdict: StoreVerdict) {
        let (store, key) = (&self.rule.zone.store, &self.rule_key.key);
        store.mirror(key, now, self.cost, &self.spec, verdict);
    }

    fn verdict(&self) -> Option<Verdict> {
        match self.result {
            RuleResult::Known(verdict)
            | RuleResult::Local(verdict, ..)
            | RuleResult::Waits(verdict, _) => Some(verdict),
            RuleResult::Leased(verdict) | RuleResult::Stored(verdict) => Some(verdict.outcome),
            RuleResult::Pending => None,
        }
    }

    fn refuses(&self) -> bool {
        matches!(self.verdict(), Some(Verdict::Refuse { .. }))
    }

    /// Its refusal, if it refuses.
    fn refusal(&self) -> Option<RuleRefusal> {
        let Some(Verdict::Refuse {
            excess,
            retry_after,
        }) = self.verdict()
        else {
            return None;
        };
        let burst = self.rule.burst;
        let reason = RefusalReason::Rate { excess, burst };
        let mut refusal = RuleRefusal::new(self.index, reason, retry_after);
        if let RuleResult::Stored(verdict) = self.result {
            refusal.remaining = Some(verdict.remaining);
        }
        refusal.allow_waiting(self.rule, &self.spec);
        Some(refusal)
    }

    /// When a rule that was not asked would let the request pass, where this gateway knows that it would refuse it now.
    fn known_to_refuse(&self, now: Millis) -> Option<Option<Duration>> {
        if self.verdict().is_some() {
            return None;
        }
        let (zone, key) = (&self.rule.zone, &self.rule_key.key);
        let verdict = match zone.shared {
            Some(_) => self.leases()?.refusal(key, now, self.cost, &self.spec)?,
            None => zone.store.peek(key, now, self.cost, &self.spec),
        };
        self.rule.passes_after(&verdict, &self.spec)
    }

    fn is_at(&self, store: &Arc<SharedStore>) -> bool {
        let own = self.rule.zone.shared.as_ref();
        own.is_some_and(|own| Arc::ptr_eq(own, store))
    }
}

/// A verdict by a lease.
fn leased(outcome: Verdict, remaining: u64) -> StoreVerdict {
    StoreVerdict {
        outcome,
        remaining,
        penalized: false,
    }
}

/// When a request may be retried that was refused because a store was away.
const OUTAGE_RETRY: Duration = Duration::from_secs(1);
