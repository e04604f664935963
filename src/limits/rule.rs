//! The rules of a location, and how several `limit_req` decide as one.
//!
//! A request refused by the second rule must not have spent the first one's burst. So what was charged is given back
//! when a later rule refuses: the key is then as it was before. A key that its zone does not know yet is remembered
//! only when all rules let the request pass; who is refused cannot fill a zone. Should another thread have been
//! there in between and nothing be left by now, the request is refused. nginx lets it pass, one over the burst.
//!
//! A list of `limit_req` rules that are asked together.
//!
//! Requests over the burst that wait instead of being refused: `on_excess: delay`.
//!
//! Keys that stay out for a while because they went over.
//!
//! A rule with a `penalty` asks first whether the key still serves one, and gives one to a key that it refuses. What other
//! rules refuse punishes nobody.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::cost::{self, DeferredCharge};
use super::key::{KeyFault, KeyLookup};
use super::key_admin::any_marks;
use super::shared_rule::SharedDecision;
use super::zone::{ConnZone, ReqZone, RuleKey};
use crate::algorithm::{Cost, Delay, Excess, LimitSpec, Verdict};
use crate::clock::Millis;
use crate::config::plan::{self, ConnQueue, CostSource, RefusalAction};
use crate::message::RequestRecord;
use crate::store::{Key, Penalties, Receipt};

/// One `limit_req`.
#[derive(Debug)]
pub(super) struct ReqRule {
    pub(super) zone: Arc<ReqZone>,
    pub(super) spec: LimitSpec,
    pub(super) burst: Excess,
    pub(super) delay: Delay,
    pub(super) weight: CostSource,
    pub(super) action: RefusalAction,
    /// A rule before this one in the same list whose key is this one's too.
    pub(super) same_key_as: Option<usize>,
}

/// One `limit_conn`.
#[derive(Debug)]
pub(super) struct ConnRule {
    pub(super) zone: Arc<ConnZone>,
    pub(super) limit: u32,
    pub(super) queue: Option<ConnQueue>,
    pub(super) action: RefusalAction,
}

/// What all `limit_req` of a location say together; `rule` is the index of the one that has the say.
#[derive(Debug)]
pub(super) enum Decision {
    /// It passes after a wait, the longest that any rule asks for.
    Delay {
        rule: usize,
        excess: Excess,
        wait: Duration,
    },
    /// Its key serves a penalty.
    Penalize {
        rule: usize,
        rule_key: RuleKey,
        left: Duration,
        /// `None` where no waiting helps.
        retry_after: Option<Duration>,
    },
    /// It has no key, and the rule's zone does not take such requests.
    NoKey { rule: usize, fault: KeyFault },
    /// No rule applies to it.
    NotLimited,
    /// It passes at once.
    Pass,
    /// It is over a limit.
    Refuse {
        rule: usize,
        rule_key: RuleKey,
        excess: Excess,
        /// When all rules would let it pass; `None` where no waiting helps.
        retry_after: Option<Duration>,
        /// When this one would.
        own: Option<Duration>,
        /// What the key has left, where the store has said so.
        left: Option<u64>,
    },
}

/// A rule that lets a request pass, before all have been heard.
#[derive(Debug)]
enum RuleCharge {
    /// It is charged.
    Charged {
        rule_key: RuleKey,
        cost: Cost,
        receipt: Receipt,
    },
    /// Its zone does not know the key yet.
    New { rule_key: RuleKey, cost: Cost },
    /// It does not apply.
    Skipped,
    /// It is over the burst, and waits until it is not.
    Waits { rule_key: RuleKey, cost: Cost },
}

/// Somebody who wants to know what each rule said. If one refuses, what those before it said is taken back.
pub(super) trait RuleObserver {
    /// A rule has spoken.
    fn hear(&mut self, rule: usize, outcome: &Verdict);
}

/// Nobody: on the road only the decision counts.
impl RuleObserver for () {
    fn hear(&mut self, _: usize, _: &Verdict) {}
}

/// Asks all rules about a request, and charges it unless one refuses.
pub(super) fn decide(
    rules: &[ReqRule],
    record: &RequestRecord,
    now: Millis,
    ears: &mut impl RuleObserver,
) -> Decision {
    let mut decision = Decision::NotLimited;
    match rules {
        [] => {}
        // Nearly every location: one lookup, one lock.
        [rule] if rule.action.max_wait.is_none() => match rule.zone.find(record) {
            KeyLookup::Key(rule_key) => {
                let cost = rule.cost(record);
                decision.hear(0, &rule_key, rule.charge(&rule_key, now, cost).0, ears);
            }
            KeyLookup::Nothing => {}
            KeyLookup::Refuse(fault) => decision = rule.no_key(0, fault),
        },
        rules => ASKED.with_borrow_mut(|asked| {
            asked.clear();
            ask(rules, record, now, asked, &mut decision, ears);
            if !decision.is_refusal() {
                remember(rules, asked, now, &mut decision, ears);
            }
            if decision.is_refusal() {
                refund(rules, asked, now);
            } else {
                reserve(rules, asked, now);
            }
        }),
    }
    decision
}

/// Asks in order until one refuses, and charges those that know the key. What came of each is added to `asked`.
fn ask(
    rules: &[ReqRule],
    record: &RequestRecord,
    now: Millis,
    asked: &mut Vec<RuleCharge>,
    decision: &mut Decision,
    ears: &mut impl RuleObserver,
) {
    for (index, rule) in rules.iter().enumerate() {
        let rule_key = match rule.find(record, asked) {
            KeyLookup::Key(rule_key) => rule_key,
            KeyLookup::Nothing => {
                asked.push(RuleCharge::Skipped);
                continue;
            }
            KeyLookup::Refuse(fault) => {
                *decision = rule.no_key(index, fault);
                return;
            }
        };
        let cost = rule.cost(record);
        if let Some(outcome) = rule.waits(&rule_key, now, cost) {
            decision.hear(index, &rule_key, outcome, ears);
            asked.push(RuleCharge::Waits { rule_key, cost });
            continue;
        }
        let Some((outcome, receipt)) = rule.charge_known(&rule_key, now, cost) else {
            asked.push(RuleCharge::New { rule_key, cost });
            continue;
        };
        decision.hear(index, &rule_key, outcome, ears);
        if decision.is_refusal() {
            rule.with_terms(&rule_key, |spec| decision.may_wait(rule, spec));
            decision.until_all_pass(&rules[index + 1..], record, now);
            return;
        }
        asked.push(RuleCharge::Charged {
            rule_key,
            cost,
            receipt,
        });
    }
}

/// Charges the keys that are new in their zones.
fn remember(
    rules: &[ReqRule],
    asked: &mut [RuleCharge],
    now: Millis,
    decision: &mut Decision,
    ears: &mut impl RuleObserver,
) {
    for (index, (rule, asked)) in rules.iter().zip(asked).enumerate() {
        let RuleCharge::New { rule_key, cost } = *asked else {
            continue;
        };
        let (outcome, receipt) = rule.charge(&rule_key, now, cost);
        decision.hear(index, &rule_key, outcome, ears);
        if decision.is_refusal() {
            return;
        }
        *asked = RuleCharge::Charged {
            rule_key,
            cost,
            receipt,
        };
    }
}

/// Charges the keys whose requests wait, once nobody refuses any more.
fn reserve(rules: &[ReqRule], asked: &[RuleCharge], now: Millis) {
    for (rule, asked) in rules.iter().zip(asked) {
        if let RuleCharge::Waits { rule_key, cost } = asked {
            rule.with_terms(rule_key, |spec| {
                rule.zone
                    .store
                    .charge_delayed(&rule_key.key, now, *cost, spec);
            });
        }
    }
}

/// Takes back every charge.
fn refund(rules: &[ReqRule], asked: &[RuleCharge], now: Millis) {
    for (rule, asked) in rules.iter().zip(asked) {
        if let RuleCharge::Charged {
            rule_key,
            cost,
            receipt,
        } = asked
        {
            rule.with_terms(rule_key, |spec| {
                let store = &rule.zone.store;
                store.refund(&rule_key.key, *receipt, now, *cost, spec);
            });
        }
    }
}

impl ReqRule {
    fn charge(&self, rule_key: &RuleKey, now: Millis, cost: Cost) -> (Verdict, Receipt) {
        self.with_terms(rule_key, |spec| {
            self.zone.store.charge(&rule_key.key, now, cost, spec)
        })
    }

    fn charge_known(
        &self,
        rule_key: &RuleKey,
        now: Millis,
        cost: Cost,
    ) -> Option<(Verdict, Receipt)> {
        self.with_terms(rule_key, |spec| {
            self.zone.store.charge_known(&rule_key.key, now, cost, spec)
        })
    }

    /// What a request weighs, as far as that is known when it comes.
    pub(super) fn cost(&self, record: &RequestRecord) -> Cost {
        match &self.weight {
            CostSource::Fixed(cost) => *cost,
            other => cost::before(other, self.zone.source.parts(), record),
        }
    }

    /// The numbers of a key that has its own.
    pub(super) fn own_terms(&self, rule_key: &RuleKey) -> Option<LimitSpec> {
        let own = self.zone.own(rule_key)?;
        let burst = own.burst.unwrap_or(self.burst);
        Some(LimitSpec::new(&own.algorithm, burst, self.delay))
    }

    /// Does something with the numbers that a key is held to here.
    pub(super) fn with_terms<T>(&self, rule_key: &RuleKey, act: impl FnOnce(&LimitSpec) -> T) -> T {
        match self.own_terms(rule_key) {
            Some(own) => act(&own),
            None => act(&self.spec),
        }
    }

    /// What a refused request's key has left, in whole requests; `known` is what the store said.
    pub(super) fn left_of(
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
            self.with_terms(rule_key, |spec| {
                let key_status = self.zone.store.key_status(&rule_key.key, now, spec);
                key_status.map_or_else(|| spec.quota(), |key_status| key_status.remaining)
            })
        })
    }

    /// The key of a request, taken over from a rule that has found it already.
    fn find(&self, record: &RequestRecord, asked: &[RuleCharge]) -> KeyLookup<RuleKey> {
        let same = self.same_key_as.filter(|_| !any_marks());
        match same.and_then(|same| asked.get(same)) {
            Some(
                RuleCharge::Charged { rule_key, .. }
                | RuleCharge::New { rule_key, .. }
                | RuleCharge::Waits { rule_key, .. },
            ) => KeyLookup::Key(*rule_key),
            Some(RuleCharge::Skipped) => KeyLookup::Nothing,
            None => self.zone.find(record),
        }
    }

    pub(super) fn no_key(&self, rule: usize, fault: KeyFault) -> Decision {
        let store = &self.zone.store;
        store.count_refusal(&Key::from_bytes(b""));
        Decision::NoKey { rule, fault }
    }
}

impl Decision {
    /// One more rule has spoken; of equal waits, the later rule's counts.
    pub(super) fn hear(
        &mut self,
        rule: usize,
        rule_key: &RuleKey,
        outcome: Verdict,
        ears: &mut impl RuleObserver,
    ) {
        ears.hear(rule, &outcome);
        match outcome {
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
                *self = Self::Refuse {
                    rule,
                    rule_key: *rule_key,
                    excess,
                    retry_after,
                    own: retry_after,
                    left: None,
                };
            }
        }
    }

    pub(super) fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::NoKey { .. } | Self::Penalize { .. } | Self::Refuse { .. }
        )
    }
}

thread_local! {
    // Kept by the thread, so that a request with several limits allocates nothing either.
    static ASKED: RefCell<Vec<RuleCharge>> = const { RefCell::new(Vec::new()) };
}

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
                spec: LimitSpec::new(&zone.algorithm, rule.burst, rule.delay),
                burst: rule.burst,
                delay: rule.delay,
                same_key_as: list.iter().position(same),
                zone: Arc::clone(zone),
                weight: rule.weight.clone(),
                action: rule.action.clone(),
            });
        }
        Self {
            punishes: list.iter().any(|rule| rule.action.penalty.is_some()),
            told: list.iter().any(|rule| rule.weight.template().is_some()),
            owed: list.iter().any(|rule| rule.weight.is_late()),
            shared: list.iter().any(|rule| rule.zone.shared.is_some()),
            list: list.into(),
        }
    }

    /// What they say of a request together; unless they refuse it, it is charged.
    pub(super) fn decide(
        &self,
        record: &RequestRecord,
        now: Millis,
        ears: &mut impl RuleObserver,
    ) -> Decision {
        if let Some(ambiguous) = self.ambiguous_cost(record) {
            return ambiguous;
        }
        if !self.punishes {
            return decide(&self.list, record, now, ears);
        }
        serving(&self.list, record, now).unwrap_or_else(|| {
            let mut decision = decide(&self.list, record, now, ears);
            punish(&mut decision, &self.list, now);
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
        record: &RequestRecord,
        now: Millis,
    ) -> Result<SharedDecision, Decision> {
        if let Some(ambiguous) = self.ambiguous_cost(record) {
            return Err(ambiguous);
        }
        if self.punishes
            && let Some(serving) = serving(&self.list, record, now)
        {
            return Err(serving);
        }
        SharedDecision::open(&self.list, record)
    }

    /// The same as [`ReqRules::decide`], where some of them count in a store.
    pub(super) async fn decide_shared(&self, case: &mut SharedDecision, now: Millis) -> Decision {
        let mut decision = case.decide(&self.list, now).await;
        if self.punishes
            && let Some(rule) = punish(&mut decision, &self.list, now)
        {
            case.tell_penalty(&self.list, rule, now);
        }
        decision
    }

    /// The refusal of a request that gives what it costs more than once.
    fn ambiguous_cost(&self, record: &RequestRecord) -> Option<Decision> {
        if !self.told {
            return None;
        }
        let index = self.list.iter().position(|rule| {
            rule.is_ambiguous(record) && matches!(rule.zone.find(record), KeyLookup::Key(_))
        })?;
        Some(self.list[index].no_key(index, KeyFault::Ambiguous))
    }

    /// What a request that they let in has to pay when it is over.
    pub(super) fn bill(&self, record: &RequestRecord) -> Option<DeferredCharge> {
        self.owed
            .then(|| DeferredCharge::new(Arc::clone(&self.list), record))
    }
}

impl ReqRule {
    /// Whether what a request weighs here is given more than once.
    pub(super) fn is_ambiguous(&self, record: &RequestRecord) -> bool {
        let template = self.weight.template();
        template.is_some_and(|it| cost::is_ambiguous(it, self.zone.source.parts(), record))
    }
}

impl Deref for ReqRules {
    type Target = [ReqRule];

    fn deref(&self) -> &[ReqRule] {
        &self.list
    }
}

impl ReqRule {
    /// What becomes of a request that is over the burst and may wait until it is not; `None` where it is not, or may not.
    pub(super) fn waits(&self, rule_key: &RuleKey, now: Millis, cost: Cost) -> Option<Verdict> {
        self.action.max_wait?;
        self.with_terms(rule_key, |spec| self.waits_by(spec, rule_key, now, cost))
    }

    /// The same by other numbers than the rule's.
    pub(super) fn waits_by(
        &self,
        spec: &LimitSpec,
        rule_key: &RuleKey,
        now: Millis,
        cost: Cost,
    ) -> Option<Verdict> {
        let most = self.action.max_wait?;
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
        (wait <= most).then_some(Verdict::Delay { excess, wait })
    }
}

/// The rule of these that still keeps a request's key out, if one does.
pub(super) fn serving(rules: &[ReqRule], record: &RequestRecord, now: Millis) -> Option<Decision> {
    for (index, rule) in rules.iter().enumerate() {
        let Some(penalties) = rule.penalties() else {
            continue;
        };
        let KeyLookup::Key(rule_key) = rule.zone.find(record) else {
            continue;
        };
        if let Some(left) = penalties.remaining(&rule_key.key, now) {
            rule.zone.store.count_refusal(&rule_key.key);
            return Some(Decision::Penalize {
                rule: index,
                rule_key,
                left,
                // Who comes back when the penalty is over and is still over the rate would get the next one.
                retry_after: rule
                    .passes_after(&rule_key, record, now)
                    .map(|after| after.max(left)),
            });
        }
    }
    None
}

/// Gives a key that was refused its penalty, where there is room for one: for how long it has to stay away. The rule, where
/// the key had none before.
pub(super) fn punish(decision: &mut Decision, rules: &[ReqRule], now: Millis) -> Option<usize> {
    if let Decision::Refuse {
        rule,
        rule_key,
        retry_after,
        own,
        left,
        ..
    } = decision
        && let Some(penalties) = rules[*rule].penalties()
        && let Some(term) = rules[*rule].action.penalty
        && let Some(stays) = penalties.punish(&rule_key.key, now, term)
    {
        *retry_after = retry_after.map(|after| after.max(stays));
        *own = own.map(|after| after.max(stays));
        *left = Some(0);
        return (stays == term).then_some(*rule);
    }
    None
}

impl ReqRule {
    /// When a request would pass that comes now; `None` where no waiting helps. Changes nothing.
    fn passes_after(
        &self,
        rule_key: &RuleKey,
        record: &RequestRecord,
        now: Millis,
    ) -> Option<Duration> {
        let cost = self.cost(record);
        self.with_terms(rule_key, |spec| {
            let outcome = self.zone.store.peek(&rule_key.key, now, cost, spec);
            self.passes_at(&outcome, spec)
                .unwrap_or(Some(Duration::ZERO))
        })
    }

    /// Where those are remembered who stay out, if this rule punishes.
    pub(super) fn penalties(&self) -> Option<&Penalties> {
        self.action.penalty.and(self.zone.penalties.as_deref())
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::limits::tests::support::{limits, plan, record, req_rule, req_zone};

    /// Between asking and charging, another thread takes the last request of the first zone, where the key is new.
    #[test]
    fn a_race_for_the_last_request_is_lost_without_charging_anyone() {
        let plan = plan(vec![req_zone("a", 1_000), req_zone("b", 1_000)], vec![]);
        let limits = limits(&plan, &[req_rule(0, 0), req_rule(1, 5)], &[]);
        let (record, now) = (record(&[]), Millis(50_000));
        let rules = &limits.requests;
        let key = Key::from_bytes(&[127, 0, 0, 1]);
        let charge = |rule: &ReqRule, now| {
            rule.zone.store.charge(&key, now, Cost::ONE, &rule.spec);
        };
        charge(&rules[1], Millis(0));
        let key_status = || rules[1].zone.store.key_status(&key, now, &rules[1].spec);
        let before = key_status();
        let (mut asked, mut decision) = (Vec::new(), Decision::NotLimited);
        ask(rules, &record, now, &mut asked, &mut decision, &mut ());
        assert!(matches!(decision, Decision::Pass));

        charge(&rules[0], now);

        remember(rules, &mut asked, now, &mut decision, &mut ());
        assert!(matches!(decision, Decision::Refuse { rule: 0, .. }));
        refund(rules, &asked, now);
        assert_eq!(rules[1].zone.store.counts().pass, 1);
        assert_eq!(key_status(), before, "as if it had never been charged");
    }
}
