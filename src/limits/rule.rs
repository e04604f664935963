//! The rules of a location, and how several `limit_req` decide as one.
//!
//! A request that the second rule refuses must not have spent the first one's burst. So what was charged is refunded when
//! a later rule refuses: the key is then as it was before. A key that its zone does not know yet is remembered only when
//! all rules let the request pass; refused requests cannot fill a zone. If another thread has spent what was left in
//! between, the request is refused. nginx lets it pass, one over the burst.
//!
//! `on_excess: delay` lets requests over the burst wait instead. A rule with a `penalty` first asks whether the key still
//! serves one, and gives one to a key that it refuses; refusals by other rules give none.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use smallvec::SmallVec;

use super::cost;
use super::key::{KeyBytes, KeyFault, KeyLookup};
use super::key_admin::any_key_actions;
use super::log::RefusalReason;
use super::zone::{ConnZone, ReqZone, RuleKey};
use crate::algorithm::{Cost, Delay, Excess, LimitSpec, Verdict};
use crate::clock::Millis;
use crate::config::plan::{self, ConnQueue, CostSource, RefusalAction};
use crate::message::RequestRecord;
use crate::store::{Key, OutageCharge, Penalties, Receipt, StoreRequest};

/// One `limit_req`.
#[derive(Debug)]
pub(super) struct ReqRule {
    pub(super) zone: Arc<ReqZone>,
    pub(super) spec: LimitSpec,
    pub(super) burst: Excess,
    delay: Delay,
    pub(super) cost_source: CostSource,
    pub(super) action: RefusalAction,
    /// The status of a refusal.
    pub(super) status: StatusCode,
    /// An earlier rule of the same list under which every request has the same key.
    same_key_as: Option<usize>,
}

/// One `limit_conn`.
#[derive(Debug)]
pub(super) struct ConnRule {
    pub(super) zone: Arc<ConnZone>,
    pub(super) limit: u32,
    pub(super) queue: Option<ConnQueue>,
    pub(super) action: RefusalAction,
    /// The status of a refusal.
    pub(super) status: StatusCode,
}

/// The keys of a request under the rules of a list, in their order: found once, for all that is done with them.
pub(super) type RuleKeys = SmallVec<[KeyLookup<RuleKey>; 2]>;

/// The decision of all `limit_req` of a location together; `rule` is the index of the one that decided.
#[derive(Debug)]
pub(super) enum Decision {
    /// The request passes after a wait, the longest that any rule asks for.
    Delay {
        rule: usize,
        excess: Excess,
        wait: Duration,
    },
    /// No rule applies.
    NotLimited,
    /// The request passes at once.
    Pass,
    /// A rule refuses the request.
    Refuse(RuleRefusal),
}

/// A refusal by a `limit_req`.
#[derive(Debug)]
pub(super) struct RuleRefusal {
    pub(super) rule: usize,
    pub(super) reason: RefusalReason<'static>,
    /// When all rules would let the request pass; `None` where no waiting helps.
    pub(super) retry_after: Option<Duration>,
    /// When this rule would.
    pub(super) own_retry_after: Option<Duration>,
    /// What the key has left, where it is known already.
    pub(super) remaining: Option<u64>,
}

/// What a rule has done for a request that it lets pass, before all rules have decided.
#[derive(Debug, Clone, Copy)]
enum RuleCharge {
    /// Charged the key.
    Charged { cost: Cost, receipt: Receipt },
    /// Nothing: its zone does not know the key yet.
    New { cost: Cost },
    /// Nothing: it does not apply.
    Skipped,
    /// Nothing: the request is over the burst and waits until it is not.
    Waits { cost: Cost },
}

/// Observes the verdict of each rule. If one refuses, the verdicts before it are void.
pub(super) trait RuleObserver {
    /// A rule has decided.
    fn on_verdict(&mut self, rule: usize, verdict: &Verdict);
}

/// For requests, only the decision counts.
impl RuleObserver for () {
    fn on_verdict(&mut self, _: usize, _: &Verdict) {}
}

impl Decision {
    /// The refusal of a request without a key, or with an ambiguous one.
    pub(super) fn without_key(rules: &[ReqRule], rule: usize, fault: KeyFault) -> Self {
        let store = &rules[rule].zone.store;
        store.count_refusal(&Key::from_bytes(b""));
        Self::Refuse(RuleRefusal::new(rule, RefusalReason::NoKey(fault), None))
    }

    /// Adds the verdict of one more rule; of equal waits, the later rule's counts.
    pub(super) fn add(&mut self, rules: &[ReqRule], rule: usize, verdict: Verdict) {
        match verdict {
            Verdict::Delay { excess, wait } => {
                if !matches!(self, Self::Delay { wait: longest, .. } if wait < *longest) {
                    *self = Self::Delay { rule, excess, wait };
                }
            }
            Verdict::Pass { .. } => {
                if let Self::NotLimited = self {
                    *self = Self::Pass;
                }
            }
            Verdict::Refuse {
                excess,
                retry_after,
            } => {
                let burst = rules[rule].burst;
                let reason = RefusalReason::Rate { excess, burst };
                *self = Self::Refuse(RuleRefusal::new(rule, reason, retry_after));
            }
        }
    }

    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refuse(_))
    }
}

impl RuleRefusal {
    pub(super) fn new(
        rule: usize,
        reason: RefusalReason<'static>,
        retry_after: Option<Duration>,
    ) -> Self {
        Self {
            rule,
            reason,
            retry_after,
            own_retry_after: retry_after,
            remaining: match reason {
                RefusalReason::Penalty(_) => Some(0),
                _ => None,
            },
        }
    }

    /// Sets the time of a retry to when the rule admits it, be it to wait for the rest of the time.
    pub(super) fn allow_waiting(&mut self, rule: &ReqRule, spec: &LimitSpec) {
        self.own_retry_after = rule.admits_after(self.own_retry_after, spec);
        self.retry_after = self.own_retry_after;
    }

    /// Puts a retry off until another rule lets it pass too; `None` where no waiting helps.
    pub(super) fn not_before(&mut self, after: Option<Duration>) {
        if let RefusalReason::Rate { .. } = self.reason {
            let both = after.zip(self.retry_after);
            self.retry_after = both.map(|(one, other)| one.max(other));
        }
    }

    /// Puts a retry off until the rules after this one, which were not asked yet, let it pass too.
    fn until_later_rules_pass(
        &mut self,
        rules: &[ReqRule],
        keys: &[KeyLookup<RuleKey>],
        record: &RequestRecord,
        now: Millis,
    ) {
        for (rule, lookup) in rules.iter().zip(keys).skip(self.rule + 1) {
            let KeyLookup::Key(rule_key) = lookup else {
                continue;
            };
            let cost = rule.cost(record);
            let refused = rule.with_spec(rule_key, |spec| {
                let verdict = rule.zone.store.peek(&rule_key.key, now, cost, spec);
                rule.passes_after(&verdict, spec)
            });
            if let Some(after) = refused {
                self.not_before(after);
            }
        }
    }
}

/// Asks all rules about a request, and charges it unless one refuses.
pub(super) fn decide(
    rules: &[ReqRule],
    keys: &[KeyLookup<RuleKey>],
    record: &RequestRecord,
    now: Millis,
    observer: &mut impl RuleObserver,
) -> Decision {
    let mut decision = Decision::NotLimited;
    match (rules, keys) {
        // Nearly every location: one lookup, one lock.
        ([rule], [lookup]) if rule.action.max_wait.is_none() => match lookup {
            KeyLookup::Key(rule_key) => {
                let (verdict, _) = rule.charge(rule_key, now, rule.cost(record));
                observer.on_verdict(0, &verdict);
                decision.add(rules, 0, verdict);
            }
            KeyLookup::Nothing => {}
            KeyLookup::Refuse(fault) => decision = Decision::without_key(rules, 0, *fault),
        },
        _ => CHARGES.with_borrow_mut(|charges| {
            charges.clear();
            ask(rules, keys, record, now, charges, &mut decision, observer);
            if !decision.is_refusal() {
                charge_new_keys(rules, keys, charges, now, &mut decision, observer);
            }
            match decision.is_refusal() {
                true => refund(rules, keys, charges, now),
                false => reserve(rules, keys, charges, now),
            }
        }),
    }
    decision
}

/// Asks in order until one refuses, and charges those that know the key. What each has done is added to `charges`.
fn ask(
    rules: &[ReqRule],
    keys: &[KeyLookup<RuleKey>],
    record: &RequestRecord,
    now: Millis,
    charges: &mut Vec<RuleCharge>,
    decision: &mut Decision,
    observer: &mut impl RuleObserver,
) {
    for (index, (rule, lookup)) in rules.iter().zip(keys).enumerate() {
        let rule_key = match lookup {
            KeyLookup::Key(rule_key) => rule_key,
            KeyLookup::Nothing => {
                charges.push(RuleCharge::Skipped);
                continue;
            }
            KeyLookup::Refuse(fault) => {
                *decision = Decision::without_key(rules, index, *fault);
                return;
            }
        };
        let cost = rule.cost(record);
        let (verdict, charge) = match rule.wait_over_burst(rule_key, now, cost) {
            Some(verdict) => (verdict, RuleCharge::Waits { cost }),
            None => match rule.with_spec(rule_key, |spec| {
                let store = &rule.zone.store;
                store.charge_known(&rule_key.key, now, cost, spec)
            }) {
                Some((verdict, receipt)) => (verdict, RuleCharge::Charged { cost, receipt }),
                None => {
                    charges.push(RuleCharge::New { cost });
                    continue;
                }
            },
        };
        observer.on_verdict(index, &verdict);
        decision.add(rules, index, verdict);
        if let Decision::Refuse(refusal) = decision {
            rule.with_spec(rule_key, |spec| refusal.allow_waiting(rule, spec));
            refusal.until_later_rules_pass(rules, keys, record, now);
            return;
        }
        charges.push(charge);
    }
}

/// Charges the keys that are new in their zones, until a rule refuses.
fn charge_new_keys(
    rules: &[ReqRule],
    keys: &[KeyLookup<RuleKey>],
    charges: &mut [RuleCharge],
    now: Millis,
    decision: &mut Decision,
    observer: &mut impl RuleObserver,
) {
    for (index, (lookup, charge)) in keys.iter().zip(charges).enumerate() {
        let (KeyLookup::Key(rule_key), RuleCharge::New { cost }) = (lookup, *charge) else {
            continue;
        };
        let (verdict, receipt) = rules[index].charge(rule_key, now, cost);
        observer.on_verdict(index, &verdict);
        decision.add(rules, index, verdict);
        if decision.is_refusal() {
            return;
        }
        *charge = RuleCharge::Charged { cost, receipt };
    }
}

/// Charges the keys whose requests wait, once no rule refuses any more.
fn reserve(rules: &[ReqRule], keys: &[KeyLookup<RuleKey>], charges: &[RuleCharge], now: Millis) {
    for ((rule, lookup), charge) in rules.iter().zip(keys).zip(charges) {
        if let (KeyLookup::Key(rule_key), RuleCharge::Waits { cost }) = (lookup, charge) {
            rule.with_spec(rule_key, |spec| {
                rule.zone
                    .store
                    .charge_delayed(&rule_key.key, now, *cost, spec);
            });
        }
    }
}

/// Refunds every charge.
fn refund(rules: &[ReqRule], keys: &[KeyLookup<RuleKey>], charges: &[RuleCharge], now: Millis) {
    for ((rule, lookup), charge) in rules.iter().zip(keys).zip(charges) {
        if let (KeyLookup::Key(rule_key), RuleCharge::Charged { cost, receipt }) = (lookup, charge)
        {
            rule.with_spec(rule_key, |spec| {
                let store = &rule.zone.store;
                store.refund(&rule_key.key, *receipt, now, *cost, spec);
            });
        }
    }
}

impl ReqRule {
    fn charge(&self, rule_key: &RuleKey, now: Millis, cost: Cost) -> (Verdict, Receipt) {
        self.with_spec(rule_key, |spec| {
            self.zone.store.charge(&rule_key.key, now, cost, spec)
        })
    }

    /// The cost of a request, as far as it is known when it comes.
    pub(super) fn cost(&self, record: &RequestRecord) -> Cost {
        match &self.cost_source {
            CostSource::Fixed(cost) => *cost,
            other => cost::before(other, self.zone.source.reader, record),
        }
    }

    /// Whether a client gives the cost of its request more than once.
    pub(super) fn has_ambiguous_cost(&self, record: &RequestRecord) -> bool {
        let template = self.cost_source.template();
        template.is_some_and(|it| cost::is_ambiguous(it, self.zone.source.reader, record))
    }

    /// The numbers of a key with an override.
    pub(super) fn override_spec(&self, rule_key: &RuleKey) -> Option<LimitSpec> {
        let own = self.zone.override_limits(rule_key)?;
        let burst = own.burst.unwrap_or(self.burst);
        Some(LimitSpec::new(&own.algorithm, burst, self.delay))
    }

    /// Calls a function with the numbers that hold for a key.
    pub(super) fn with_spec<T>(&self, rule_key: &RuleKey, act: impl FnOnce(&LimitSpec) -> T) -> T {
        match self.override_spec(rule_key) {
            Some(spec) => act(&spec),
            None => act(&self.spec),
        }
    }

    /// What the key of a refused request has left, in whole requests; `known` is what the store gave.
    pub(super) fn remaining(
        &self,
        rule_key: &RuleKey,
        record: &RequestRecord,
        now: Millis,
        known: Option<u64>,
    ) -> u64 {
        // A request of one or less was refused because not even one is left.
        if self.cost(record) <= Cost::ONE {
            return 0;
        }
        known.unwrap_or_else(|| {
            self.with_spec(rule_key, |spec| {
                let key_status = self.zone.store.key_status(&rule_key.key, now, spec);
                key_status.map_or_else(|| spec.quota(), |key_status| key_status.remaining)
            })
        })
    }

    /// The delay of a request that is over the burst and may wait until it is not; `None` where it is not, or may not.
    pub(super) fn wait_over_burst(
        &self,
        rule_key: &RuleKey,
        now: Millis,
        cost: Cost,
    ) -> Option<Verdict> {
        self.action.max_wait?;
        self.with_spec(rule_key, |spec| {
            self.wait_over_burst_with(spec, rule_key, now, cost)
        })
    }

    /// The same with other numbers than the rule's.
    pub(super) fn wait_over_burst_with(
        &self,
        spec: &LimitSpec,
        rule_key: &RuleKey,
        now: Millis,
        cost: Cost,
    ) -> Option<Verdict> {
        let max_wait = self.action.max_wait?;
        let ask = |at| self.zone.store.peek(&rule_key.key, at, cost, spec);
        let Verdict::Refuse {
            excess,
            retry_after: Some(turn),
        } = ask(now)
        else {
            return None;
        };
        // When it is its turn, it is as if it came then.
        let wait = match ask(now.after(turn)) {
            Verdict::Delay { wait, .. } => turn.saturating_add(wait),
            Verdict::Pass { .. } | Verdict::Refuse { .. } => turn,
        };
        (wait <= max_wait).then_some(Verdict::Delay { excess, wait })
    }

    /// When a request with this verdict would pass: `None` if it is not refused, `Some(None)` if no waiting helps.
    pub(super) fn passes_after(
        &self,
        verdict: &Verdict,
        spec: &LimitSpec,
    ) -> Option<Option<Duration>> {
        match *verdict {
            Verdict::Refuse { retry_after, .. } => Some(self.admits_after(retry_after, spec)),
            Verdict::Delay { .. } | Verdict::Pass { .. } => None,
        }
    }

    /// When a request that would be within the burst after `turn` is admitted: at once then, or earlier to wait.
    fn admits_after(&self, turn: Option<Duration>, spec: &LimitSpec) -> Option<Duration> {
        let max_wait = self.action.max_wait.unwrap_or_default();
        // At its turn it still waits as the burst has it, and all of that has to fit into the longest wait.
        let before_its_turn = max_wait.saturating_sub(spec.burst_wait());
        turn.map(|turn| turn.saturating_sub(before_its_turn))
    }

    /// The penalties of its keys, if this rule gives some.
    pub(super) fn penalties(&self) -> Option<&Penalties> {
        self.action.penalty.and(self.zone.penalties.as_deref())
    }
}

thread_local! {
    // Kept by the thread, so that a request with several limits allocates nothing either.
    static CHARGES: RefCell<Vec<RuleCharge>> = const { RefCell::new(Vec::new()) };
}

/// The `limit_req` rules of a location.
// What few of them have is checked once, when they are compiled.
#[derive(Debug)]
pub(super) struct ReqRules {
    list: Arc<[ReqRule]>,
    has_penalties: bool,
    charges_at_end: bool,
    /// Whether some of them count in a store.
    pub(super) shared: bool,
    /// Whether the cost of some requests is up to the client.
    client_names_cost: bool,
}

impl ReqRules {
    /// The rules of a plan; `zone` finds the one with an index, and `status` is that of refusals.
    pub(super) fn compile<'z>(
        rules: &[plan::ReqRule],
        status: StatusCode,
        zone: impl Fn(usize) -> Option<&'z Arc<ReqZone>>,
    ) -> Self {
        let mut list: Vec<ReqRule> = Vec::with_capacity(rules.len());
        for rule in rules {
            let Some(zone) = zone(rule.zone) else {
                continue;
            };
            let same = |other: &ReqRule| zone.shares_keys(&other.zone);
            list.push(ReqRule {
                spec: LimitSpec::new(&zone.algorithm, rule.burst, rule.delay),
                burst: rule.burst,
                delay: rule.delay,
                same_key_as: list.iter().position(same),
                zone: Arc::clone(zone),
                cost_source: rule.weight.clone(),
                action: rule.action.clone(),
                status: rule.action.status.unwrap_or(status),
            });
        }
        let any = |has: fn(&ReqRule) -> bool| list.iter().any(has);
        Self {
            has_penalties: any(|rule| rule.action.penalty.is_some()),
            charges_at_end: any(|rule| rule.cost_source.is_late()),
            shared: any(|rule| rule.zone.shared.is_some()),
            client_names_cost: any(|rule| rule.cost_source.template().is_some()),
            list: list.into(),
        }
    }

    /// The keys of a request.
    #[inline]
    pub(super) fn find_keys(&self, record: &RequestRecord) -> RuleKeys {
        let mut keys = RuleKeys::new();
        for rule in &*self.list {
            // An operator's actions belong to one zone, so with them every zone looks for its own key.
            let same = rule.same_key_as.filter(|_| !any_key_actions());
            keys.push(match same {
                Some(same) => keys[same],
                None => rule.zone.find(record),
            });
        }
        keys
    }

    /// The decision on a request where all rules count in this process; unless they refuse it, it is charged.
    pub(super) fn decide(
        &self,
        keys: &[KeyLookup<RuleKey>],
        record: &RequestRecord,
        now: Millis,
        observer: &mut impl RuleObserver,
    ) -> Decision {
        if let Some(decision) = self.decide_uncharged(keys, record, now) {
            return decision;
        }
        let mut decision = decide(&self.list, keys, record, now, observer);
        self.penalize(&mut decision, keys, now);
        decision
    }

    /// The refusal of a request that needs no bucket: it gives its cost more than once, or its key serves a penalty.
    #[inline]
    pub(super) fn decide_uncharged(
        &self,
        keys: &[KeyLookup<RuleKey>],
        record: &RequestRecord,
        now: Millis,
    ) -> Option<Decision> {
        if self.client_names_cost {
            let mut rules = self.list.iter().zip(keys);
            let index = rules.position(|(rule, lookup)| {
                matches!(lookup, KeyLookup::Key(_)) && rule.has_ambiguous_cost(record)
            });
            if let Some(index) = index {
                return Some(Decision::without_key(self, index, KeyFault::Ambiguous));
            }
        }
        match self.has_penalties {
            true => self.active_penalty(keys, record, now),
            false => None,
        }
    }

    /// The refusal by the first rule under which the key still serves a penalty.
    fn active_penalty(
        &self,
        keys: &[KeyLookup<RuleKey>],
        record: &RequestRecord,
        now: Millis,
    ) -> Option<Decision> {
        for (index, (rule, lookup)) in self.list.iter().zip(keys).enumerate() {
            if let (Some(penalties), KeyLookup::Key(rule_key)) = (rule.penalties(), lookup)
                && let Some(left) = penalties.remaining(&rule_key.key, now)
            {
                let store = &rule.zone.store;
                store.count_refusal(&rule_key.key);
                let passes_after = rule.with_spec(rule_key, |spec| {
                    let verdict = store.peek(&rule_key.key, now, rule.cost(record), spec);
                    let after = rule.passes_after(&verdict, spec);
                    after.unwrap_or(Some(Duration::ZERO))
                });
                // A request that comes when the penalty is over and is still over the rate would get the next one.
                let retry_after = passes_after.map(|after| after.max(left));
                let reason = RefusalReason::Penalty(left);
                let refusal = RuleRefusal::new(index, reason, retry_after);
                return Some(Decision::Refuse(refusal));
            }
        }
        None
    }

    /// Gives a key that was refused its penalty, where there is room for one. The rule, where the key had none before.
    pub(super) fn penalize(
        &self,
        decision: &mut Decision,
        keys: &[KeyLookup<RuleKey>],
        now: Millis,
    ) -> Option<usize> {
        if self.has_penalties
            && let Decision::Refuse(refusal) = decision
            && let (RefusalReason::Rate { .. }, KeyLookup::Key(rule_key)) =
                (refusal.reason, &keys[refusal.rule])
            && let Some(penalties) = self[refusal.rule].penalties()
            && let Some(term) = self[refusal.rule].action.penalty
            && let Some(left) = penalties.punish(&rule_key.key, now, term)
        {
            refusal.retry_after = refusal.retry_after.map(|after| after.max(left));
            refusal.own_retry_after = refusal.own_retry_after.map(|after| after.max(left));
            refusal.remaining = Some(0);
            return (left == term).then_some(refusal.rule);
        }
        None
    }

    /// What a request that they admit is charged when it is over.
    pub(super) fn deferred_charge(
        &self,
        keys: &[KeyLookup<RuleKey>],
        record: &RequestRecord,
    ) -> Option<DeferredCharge> {
        if !self.charges_at_end {
            return None;
        }
        let rules = self.list.iter().zip(keys).enumerate();
        let late = rules.filter_map(|(index, (rule, lookup))| match lookup {
            KeyLookup::Key(rule_key) if rule.cost_source.is_late() => Some(LateCharge {
                rule: index,
                rule_key: *rule_key,
                bytes: match rule.zone.shared {
                    Some(_) => rule.zone.key_bytes(record),
                    None => KeyBytes::new(),
                },
            }),
            _ => None,
        });
        Some(DeferredCharge {
            charges: late.collect(),
            rules: Arc::clone(&self.list),
        })
    }
}

impl Deref for ReqRules {
    type Target = [ReqRule];

    fn deref(&self) -> &[ReqRule] {
        &self.list
    }
}

/// What a request is charged when it is over, because its cost is not known before.
///
/// Until then it has cost nothing: it was admitted because its key was not in debt. This charge may leave the key in debt,
/// and then keeps requests out until that is paid.
#[derive(Debug)]
#[must_use = "a charge that is not settled is lost"]
pub struct DeferredCharge {
    rules: Arc<[ReqRule]>,
    charges: SmallVec<[LateCharge; 1]>,
}

/// The charge of one rule.
#[derive(Debug)]
struct LateCharge {
    rule: usize,
    rule_key: RuleKey,
    /// The bytes of the key, where a store has to be charged.
    bytes: KeyBytes,
}

impl DeferredCharge {
    /// Charges it, now that the request is over, however it ended.
    pub fn settle(self, record: &RequestRecord, now: Millis) {
        for charge in self.charges {
            let rule = &self.rules[charge.rule];
            let cost = cost::after(&rule.cost_source, rule.zone.source.reader, record, now);
            if cost > Cost(0) {
                rule.with_spec(&charge.rule_key, |spec| {
                    charge.settle(rule, spec, cost, now)
                });
            }
        }
    }
}

impl LateCharge {
    fn settle(&self, rule: &ReqRule, spec: &LimitSpec, cost: Cost, now: Millis) {
        let (zone, key) = (&rule.zone, &self.rule_key.key);
        let debit = |cost: Cost| zone.store.debit(key, now, cost, spec);
        match &zone.shared {
            Some(store) if store.handle.is_away() => {
                let share = store.handle.alone(cost, spec);
                debit(share.needs);
                debit(share.owes);
                let store_zone = &zone.store;
                store.charges.add(OutageCharge::new(
                    &store.handle,
                    store_zone,
                    key,
                    &self.bytes,
                    spec,
                    cost,
                ));
            }
            Some(store) => {
                // Here, too: this gateway goes on from there when the store is away.
                debit(cost);
                let mut request = StoreRequest::default();
                let name = &zone.name.plain;
                request.add(
                    &store.handle,
                    name,
                    &self.bytes,
                    spec,
                    cost,
                    zone.count_refused,
                );
                store.charge_later(request);
            }
            None => debit(cost),
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::limits::tests::support::{limits, plan, record, req_rule, req_zone};

    /// Between asking and charging, another thread takes the last request of the first zone, where the key is new.
    #[test]
    fn a_race_for_the_last_request_is_lost_without_any_charge() {
        let plan = plan(vec![req_zone("a", 1_000), req_zone("b", 1_000)], vec![]);
        let limits = limits(&plan, &[req_rule(0, 0), req_rule(1, 5)], &[]);
        let (record, now) = (record(&[]), Millis(50_000));
        let rules = &limits.requests;
        let keys = rules.find_keys(&record);
        let key = Key::from_bytes(&[127, 0, 0, 1]);
        let charge = |rule: &ReqRule, now| {
            rule.zone.store.charge(&key, now, Cost::ONE, &rule.spec);
        };
        charge(&rules[1], Millis(0));
        let key_status = || rules[1].zone.store.key_status(&key, now, &rules[1].spec);
        let before = key_status();
        let (mut charges, mut decision) = (Vec::new(), Decision::NotLimited);
        ask(
            rules,
            &keys,
            &record,
            now,
            &mut charges,
            &mut decision,
            &mut (),
        );
        assert!(matches!(decision, Decision::Pass));

        charge(&rules[0], now);

        charge_new_keys(rules, &keys, &mut charges, now, &mut decision, &mut ());
        assert!(matches!(
            decision,
            Decision::Refuse(RuleRefusal { rule: 0, .. })
        ));
        refund(rules, &keys, &charges, now);
        assert_eq!(rules[1].zone.store.counts().pass, 1);
        assert_eq!(key_status(), before, "as if it had never been charged");
    }
}
