//! The limits as operators see them: the busiest keys of a zone, the state of one key, and what the rules would decide on a
//! request that was not made. Replay asks here, too, and gets the verdict of every rule.
//!
//! Nothing is decided here: every decision comes from the functions that decide on requests. What is only explained is not
//! charged, counted or logged.

use std::time::Duration;

use http::StatusCode;
use smallvec::{SmallVec, smallvec};

use super::key::{
    KeyBytes, KeyFault, KeyLookup, KeySource, ParsedKey, key_prefix, split_network_bucket,
};
use super::key_admin::{KeyAction, KeyActionEntry, KeyAdmin};
use super::log::{LimitKind, LimitLogger, RefusalReason, in_requests};
use super::rule::{ConnRule, Decision, ReqRule, RuleObserver};
use super::verdict::{Admission, Permit};
use super::zone::{ConnZone, ReqZone, RuleKey};
use super::{Limits, SlotKeys};
use crate::algorithm::{Delay, Excess, KeyStatus, LimitSpec, Verdict, VerdictKind};
use crate::clock::Millis;
use crate::config::plan::ConnQueue;
use crate::message::RequestRecord;
use crate::store::{Key, KeyRates, TopKey, ZoneCounts};

/// A key and its verdicts.
#[derive(Debug, Clone)]
pub struct TopKeyRow {
    /// The key as text.
    pub key: String,
    /// Its verdicts since it is counted.
    pub counts: ZoneCounts,
    /// How many requests more there may have been before.
    pub missed: u64,
    /// Its verdicts of the last seconds.
    pub pace: KeyRates,
    /// Requests above its rate, or slots in use.
    pub excess: f64,
    /// What holds for it besides the zone's limits, in a word.
    pub action: Option<&'static str>,
}

/// The state of one key.
#[derive(Debug, Clone)]
pub struct KeyState {
    /// The key and its verdicts.
    pub row: TopKeyRow,
    /// Whether it is among the keys that are counted one by one.
    pub listed: bool,
    /// Whether the zone remembers it.
    pub known: bool,
    /// Its status.
    pub key_status: KeyStatus,
    /// Its own rate, where it has an override.
    pub own: Option<String>,
    /// The rest of its penalty.
    pub penalty: Option<Duration>,
    /// What operators have done to it.
    pub actions: Vec<KeyActionEntry>,
    /// Whether other gateways count it, too.
    pub shared: bool,
}

impl TopKeyRow {
    fn new(
        key_admin: &KeyAdmin,
        source: &KeySource,
        key: &Key,
        bytes: Option<&[u8]>,
        counted: Option<&TopKey>,
        excess: Excess,
        now: Millis,
    ) -> Self {
        let bytes = bytes.or_else(|| counted?.name.as_deref());
        Self {
            key: source.format(key, bytes),
            counts: counted.map(|counted| counted.counts).unwrap_or_default(),
            missed: counted.map_or(0, |counted| counted.missed),
            pace: counted.map(|counted| counted.rates).unwrap_or_default(),
            excess: in_requests(excess),
            action: key_admin.strongest(key, now),
        }
    }
}

impl KeyState {
    fn new(
        key_admin: &KeyAdmin,
        source: &KeySource,
        ParsedKey { key, bytes }: &ParsedKey,
        known: bool,
        key_status: KeyStatus,
        shared: bool,
        now: Millis,
    ) -> Self {
        let (counted, bytes) = (key_admin.busiest.find(key, now), bytes.as_deref());
        let (row, excess) = (counted.as_ref(), key_status.excess);
        Self {
            row: TopKeyRow::new(key_admin, source, key, bytes, row, excess, now),
            listed: counted.is_some(),
            known,
            key_status,
            own: None,
            penalty: None,
            actions: key_admin.actions_on(key, now),
            shared,
        }
    }
}

impl ReqZone {
    /// Its busiest keys, in no order; `burst` is that of a rule.
    #[must_use]
    pub fn busiest(&self, burst: Excess, now: Millis) -> Vec<TopKeyRow> {
        let spec = LimitSpec::new(&self.algorithm, burst, Delay::Never);
        let busiest = self.key_admin.busiest.list(now);
        let rows = busiest.iter().map(|top| {
            let key_status = self.store.key_status(&top.key, now, &spec);
            let excess = key_status.map_or(Excess(0), |it| it.excess);
            let (admin, source) = (&self.key_admin, &self.source);
            let mut row = TopKeyRow::new(admin, source, &top.key, None, Some(top), excess, now);
            let penalty = || self.penalty(&top.key, now).map(|_| "penalty");
            row.action = row.action.or_else(penalty);
            row
        });
        rows.collect()
    }

    /// The state of the key that a text means; `burst` is that of a rule.
    #[must_use]
    pub fn inspect(&self, text: &str, burst: Excess, now: Millis) -> Option<KeyState> {
        let parsed = self.source.parse(text);
        let spec = LimitSpec::new(&self.algorithm, burst, Delay::Never);
        let is_known = |key: &Key| self.store.key_status(key, now, &spec).is_some();
        let known = parsed.iter().find(|it| is_known(&it.key));
        let parsed = known.or_else(|| parsed.first())?;
        let (spec, own) = self.override_of(parsed.bytes.as_deref(), spec);
        let key_status = self.store.key_status(&parsed.key, now, &spec);
        let (known, shared) = (key_status.is_some(), self.shared.is_some());
        let key_status = key_status.unwrap_or_else(|| untouched(spec.quota()));
        let (admin, source) = (&self.key_admin, &self.source);
        Some(KeyState {
            own,
            penalty: self.penalty(&parsed.key, now),
            ..KeyState::new(admin, source, parsed, known, key_status, shared, now)
        })
    }

    fn penalty(&self, key: &Key, now: Millis) -> Option<Duration> {
        self.penalties.as_ref()?.remaining(key, now)
    }

    /// The numbers that hold for a key of these bytes, and its own rate in words.
    fn override_of(&self, bytes: Option<&[u8]>, spec: LimitSpec) -> (LimitSpec, Option<String>) {
        let Some(bytes) = bytes.filter(|_| !self.overrides.is_empty()) else {
            return (spec, None);
        };
        let matching = match split_network_bucket(bytes) {
            Some((network, _)) => self.overrides.of_network(&network),
            None => {
                let address = self.source.address(bytes);
                let text = address.is_none().then_some(bytes);
                self.overrides.find(text, address)
            }
        };
        let Some(index) = matching.index() else {
            return (spec, None);
        };
        let Some(own) = self.overrides.limits(index) else {
            return (spec, Some("unlimited".to_owned()));
        };
        let burst = own.burst.unwrap_or_default();
        let spec = LimitSpec::new(&own.algorithm, burst, Delay::Never);
        (spec, Some(own.algorithm.to_string()))
    }
}

impl ConnZone {
    /// Its busiest keys, in no order.
    #[must_use]
    pub fn busiest(&self, now: Millis) -> Vec<TopKeyRow> {
        let busiest = self.key_admin.busiest.list(now);
        let rows = busiest.iter().map(|top| {
            let taken = Excess::requests(self.store.taken(&top.key));
            let (admin, source) = (&self.key_admin, &self.source);
            TopKeyRow::new(admin, source, &top.key, None, Some(top), taken, now)
        });
        rows.collect()
    }

    /// The state of the key that a text means, where it may have `limit` slots.
    #[must_use]
    pub fn inspect(&self, text: &str, limit: u32, now: Millis) -> Option<KeyState> {
        let parsed = self.source.parse(text);
        let known = parsed.iter().find(|it| self.store.taken(&it.key) > 0);
        let parsed = known.or_else(|| parsed.first())?;
        let (taken, shared) = (self.store.taken(&parsed.key), self.shared.is_some());
        let (admin, source) = (&self.key_admin, &self.source);
        let (known, key_status) = (taken > 0, slot_status(taken, limit));
        Some(KeyState::new(
            admin, source, parsed, known, key_status, shared, now,
        ))
    }
}

/// The status of a key that its zone does not know.
fn untouched(limit: u64) -> KeyStatus {
    KeyStatus {
        excess: Excess(0),
        limit,
        remaining: limit,
        retry_after: Duration::ZERO,
        reset_after: Duration::ZERO,
    }
}

/// The status of a key with so many slots in use.
fn slot_status(taken: u32, limit: u32) -> KeyStatus {
    KeyStatus {
        remaining: limit.saturating_sub(taken).into(),
        excess: Excess::requests(taken),
        ..untouched(limit.into())
    }
}

/// What one rule would decide on a request, and why.
#[derive(Debug, Clone)]
pub struct RuleExplanation {
    /// The kind of limit.
    pub kind: LimitKind,
    /// Its zone.
    pub zone: Box<str>,
    /// The request's key there, if it has one.
    pub key: Option<String>,
    /// The entry of `overrides` that applies.
    pub overridden_by: Option<String>,
    /// The rate of the key.
    pub rate: Option<String>,
    /// The burst of a `limit_req`.
    pub burst: Option<f64>,
    /// The limit of a `limit_conn`.
    pub limit: Option<u32>,
    /// Whether it is a dry run.
    pub dry_run: bool,
    /// The status of the key before this request.
    pub key_status: Option<KeyStatus>,
    /// Its decision.
    pub evaluation: RuleEvaluation,
}

/// What one rule would decide on a request.
#[derive(Debug, Clone)]
pub struct RuleEvaluation {
    /// Its verdict.
    pub verdict: VerdictKind,
    /// When the request would be admitted, where it is not.
    pub retry_after: Option<Duration>,
    /// The status of a refusal.
    pub status: Option<StatusCode>,
    /// Why.
    pub reason: String,
    /// Whether this is asked before the limits themselves: a block, a penalty.
    pub is_first: bool,
}

impl RuleEvaluation {
    fn pass(reason: impl Into<String>) -> Self {
        Self {
            verdict: VerdictKind::Pass,
            retry_after: None,
            status: None,
            reason: reason.into(),
            is_first: false,
        }
    }

    fn delay(wait: Duration, reason: String) -> Self {
        Self {
            verdict: VerdictKind::Delay(wait),
            ..Self::pass(reason)
        }
    }

    /// A refusal; `status` is the rule's own.
    fn refuse(
        reason: &RefusalReason<'_>,
        status: StatusCode,
        retry_after: Option<Duration>,
    ) -> Self {
        Self {
            verdict: VerdictKind::Refuse,
            retry_after,
            status: Some(reason.status(status)),
            reason: reason.to_string(),
            is_first: matches!(
                reason,
                RefusalReason::Block { .. } | RefusalReason::Penalty(_)
            ),
        }
    }

    /// What operators have done to one of these keys, if they have.
    fn by_operator(
        key_admin: &KeyAdmin,
        keys: &[Key],
        status: StatusCode,
        now: Millis,
    ) -> Option<Self> {
        if let Some((left, reason)) = keys.iter().find_map(|key| key_admin.block(key, now)) {
            let reason = RefusalReason::Block {
                left,
                reason: reason.as_deref(),
            };
            return Some(Self::refuse(&reason, status, Some(left)));
        }
        let action = keys.iter().find_map(|key| key_admin.exemption(key, now))?;
        Some(Self::pass(match action {
            KeyAction::Grant(left) => format!("granted by operator: {left} requests are left"),
            KeyAction::Block | KeyAction::Exempt => "exempt by operator".to_owned(),
        }))
    }
}

impl Limits {
    /// What every rule would decide on a request that comes now: the `limit_req`, then the `limit_conn`.
    #[must_use]
    pub fn explain(&self, record: &RequestRecord, now: Millis) -> Vec<RuleExplanation> {
        let requests = self.requests.iter();
        let requests = requests.map(|rule| rule.explain(self.request_logger, record, now));
        let connections = self.connections.iter();
        let connections = connections.map(|rule| rule.explain(self.connection_logger, record, now));
        requests.chain(connections).collect()
    }

    /// As [`Limits::ask_requests`], and tells the verdict of each rule that had one: the request, the rule's index, the
    /// request's key there, and the verdict. Of a refused request, only the rule that refused it had one.
    pub fn ask_requests_with_observer(
        &self,
        record: &mut RequestRecord,
        now: Millis,
        mut observe: impl FnMut(&RequestRecord, usize, &[u8], VerdictKind),
    ) -> Admission {
        let mut recorder = VerdictRecorder::default();
        let keys = self.requests.find_keys(record);
        let decision = self.requests.decide(&keys, record, now, &mut recorder);
        if let Decision::Refuse(refused) = &decision {
            recorder.0 = smallvec![(refused.rule, VerdictKind::Refuse)];
        }
        for (rule, verdict) in recorder.0 {
            let bytes = match &keys[rule] {
                KeyLookup::Key(_) => self.requests[rule].zone.key_bytes(record),
                KeyLookup::Nothing | KeyLookup::Refuse(_) => KeyBytes::new(),
            };
            observe(record, rule, &bytes, verdict);
        }
        self.apply(decision, &keys, record, now)
    }

    /// Whether a request's key has an override in the zone of a `limit_req`.
    #[must_use]
    pub fn has_override(&self, rule: usize, record: &RequestRecord) -> bool {
        let lookup = self.requests[rule].zone.find(record);
        matches!(lookup, KeyLookup::Key(RuleKey { own: Some(_), .. }))
    }

    /// A request's key for people, in the zone of a `limit_req`.
    #[must_use]
    pub fn request_label(&self, rule: usize, record: &RequestRecord) -> String {
        self.requests[rule].zone.label(record)
    }

    /// The keys of a request in the zones of the `limit_conn`.
    #[must_use]
    pub fn slot_keys(&self, record: &RequestRecord) -> SlotKeys {
        SlotKeys::find(&self.connections, record)
    }

    /// The bytes of a request's key in the zone of a `limit_conn`, and the key for people.
    #[must_use]
    pub fn slot_key(&self, rule: usize, record: &RequestRecord) -> (Vec<u8>, String) {
        let source = &self.connections[rule].zone.source;
        (source.bytes(record).to_vec(), source.label(record))
    }

    /// Takes the slot a request needs in the zone of one `limit_conn`, if there is one, into its permit.
    pub fn take_slot(
        &self,
        rule: usize,
        keys: &SlotKeys,
        now: Millis,
        permit: &mut Permit,
    ) -> SlotOutcome {
        let ConnRule {
            zone, limit, queue, ..
        } = &self.connections[rule];
        let taken = match &keys.0[rule] {
            KeyLookup::Key(key) => zone.store.take(key, *limit, now).map_err(|_| *queue),
            KeyLookup::Nothing => return SlotOutcome::NotNeeded,
            KeyLookup::Refuse(_) => Err(None),
        };
        match (taken, self.connection_logger.dry_run) {
            (Ok(slot), _) => {
                permit.slots.push(slot);
                SlotOutcome::Taken
            }
            (Err(_), true) => SlotOutcome::DryRun,
            (Err(Some(queue)), false) => SlotOutcome::Queue(queue),
            (Err(None), false) => SlotOutcome::Refused,
        }
    }
}

impl ReqRule {
    fn explain(&self, logger: LimitLogger, record: &RequestRecord, now: Millis) -> RuleExplanation {
        let zone = &self.zone;
        let lookup = zone.find(record);
        // The key of the bucket, where that is another one.
        let keys = zone.admin_keys(record);
        let evaluation = self.evaluate(&lookup, &keys, record, now);
        let rule_key = lookup.key();
        let own = rule_key.and_then(|rule_key| zone.override_limits(&rule_key));
        let spec = rule_key.and_then(|rule_key| self.override_spec(&rule_key));
        let spec = spec.unwrap_or(self.spec);
        let key = keys.last();
        let text = key.map(|key| {
            let prefix = key_prefix(&zone.key_bytes(record));
            zone.source.format(key, Some(&prefix))
        });
        let key_status = key.map(|key| {
            let key_status = zone.store.key_status(key, now, &spec);
            key_status.unwrap_or_else(|| untouched(spec.quota()))
        });
        let burst = own.and_then(|own| own.burst).unwrap_or(self.burst);
        RuleExplanation {
            kind: logger.kind,
            zone: (&*zone.name.plain).into(),
            key: text,
            overridden_by: zone.override_name(record),
            rate: Some(own.map_or(zone.algorithm, |own| own.algorithm).to_string()),
            burst: Some(in_requests(burst)),
            limit: None,
            dry_run: logger.dry_run,
            key_status,
            evaluation,
        }
    }

    fn evaluate(
        &self,
        lookup: &KeyLookup<RuleKey>,
        keys: &[Key],
        record: &RequestRecord,
        now: Millis,
    ) -> RuleEvaluation {
        let (zone, status) = (&self.zone, self.status);
        let refuse = |reason, retry_after| RuleEvaluation::refuse(&reason, status, retry_after);
        let no_key = |fault| refuse(RefusalReason::NoKey(fault), None);
        if !keys.is_empty()
            && let Some(evaluation) =
                RuleEvaluation::by_operator(&zone.key_admin, keys, status, now)
        {
            return evaluation;
        }
        let rule_key = match lookup {
            KeyLookup::Key(rule_key) => rule_key,
            KeyLookup::Refuse(fault) if keys.is_empty() => return no_key(*fault),
            _ if !keys.is_empty() || zone.override_name(record).is_some() => {
                return RuleEvaluation::pass("unlimited by `overrides`");
            }
            _ => return RuleEvaluation::pass(NOT_LIMITED),
        };
        if self.has_ambiguous_cost(record) {
            return no_key(KeyFault::Ambiguous);
        }
        let key = &rule_key.key;
        if let Some(left) = self.penalties().and_then(|it| it.remaining(key, now)) {
            return refuse(RefusalReason::Penalty(left), Some(left));
        }
        let cost = self.cost(record);
        let verdict = self
            .wait_over_burst(rule_key, now, cost)
            .unwrap_or_else(|| {
                self.with_spec(rule_key, |spec| zone.store.peek(key, now, cost, spec))
            });
        let own = zone.override_limits(rule_key).and_then(|own| own.burst);
        let burst = own.unwrap_or(self.burst);
        let over = |excess| {
            let (excess, burst) = (in_requests(excess), in_requests(burst));
            format!("excess {excess:.3} of a burst of {burst}")
        };
        match verdict {
            Verdict::Delay { excess, wait } => {
                let reason = format!("it waits for its turn: {}", over(excess));
                RuleEvaluation::delay(wait, reason)
            }
            Verdict::Pass { excess: Excess(0) } => RuleEvaluation::pass("within the rate"),
            Verdict::Pass { excess } => {
                RuleEvaluation::pass(format!("within the burst: {}", over(excess)))
            }
            Verdict::Refuse {
                excess,
                retry_after,
            } => refuse(RefusalReason::Rate { excess, burst }, retry_after),
        }
    }
}

impl ConnRule {
    fn explain(&self, logger: LimitLogger, record: &RequestRecord, now: Millis) -> RuleExplanation {
        let (zone, limit) = (&self.zone, self.limit);
        let key = zone.source.key(record);
        let evaluation = match &key {
            Some(key) => self.evaluate(key, now),
            None => match zone.find(record) {
                KeyLookup::Refuse(fault) => {
                    RuleEvaluation::refuse(&RefusalReason::NoKey(fault), self.status, None)
                }
                KeyLookup::Key(_) | KeyLookup::Nothing => RuleEvaluation::pass(NOT_LIMITED),
            },
        };
        let text = key.map(|key| {
            let prefix = key_prefix(&zone.source.bytes(record));
            zone.source.format(&key, Some(&prefix))
        });
        let key_status = key.map(|key| slot_status(zone.store.taken(&key), limit));
        RuleExplanation {
            kind: logger.kind,
            zone: (&*zone.name.plain).into(),
            key: text,
            overridden_by: None,
            rate: None,
            burst: None,
            limit: Some(limit),
            dry_run: logger.dry_run,
            key_status,
            evaluation,
        }
    }

    fn evaluate(&self, key: &Key, now: Millis) -> RuleEvaluation {
        let (zone, limit, status) = (&self.zone, self.limit, self.status);
        let keys = std::slice::from_ref(key);
        if let Some(evaluation) = RuleEvaluation::by_operator(&zone.key_admin, keys, status, now) {
            return evaluation;
        }
        let taken = zone.store.taken(key);
        match &self.queue {
            _ if taken < limit => {
                RuleEvaluation::pass(format!("{taken} of {limit} places are taken"))
            }
            Some(queue) => {
                let timeout = queue.timeout;
                let reason = format!(
                    "all {limit} places are taken: it waits in line for one, up to {timeout:?}"
                );
                RuleEvaluation::delay(Duration::ZERO, reason)
            }
            None => RuleEvaluation::refuse(&RefusalReason::Connections { limit }, status, None),
        }
    }
}

/// The reason of a request without a key in a zone that does not want one.
const NOT_LIMITED: &str = "it has no key here, and is not limited";

/// The result of taking a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotOutcome {
    /// None was free, which changes nothing in a dry run.
    DryRun,
    /// None is needed.
    NotNeeded,
    /// None was free; the request may wait in this queue, if there is room in it.
    Queue(ConnQueue),
    /// None was free.
    Refused,
    /// It is in the permit.
    Taken,
}

/// Records the verdict of each rule.
#[derive(Default)]
struct VerdictRecorder(SmallVec<[(usize, VerdictKind); 4]>);

impl RuleObserver for VerdictRecorder {
    fn on_verdict(&mut self, rule: usize, verdict: &Verdict) {
        self.0.push((rule, verdict.into()));
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::limits::tests::support::{
        conn_rule, conn_zone, exchange_from, limits, plan, req_rule, req_zone,
    };

    fn ask(limits: &Limits, record: &mut RequestRecord, now: u64) -> Vec<(usize, VerdictKind)> {
        let mut verdicts = Vec::new();
        let admission =
            limits.ask_requests_with_observer(record, Millis(now), |_, rule, key, verdict| {
                assert_eq!(key, [192, 0, 2, 1]);
                verdicts.push((rule, verdict));
            });
        let refused = verdicts
            .iter()
            .any(|(_, verdict)| *verdict == VerdictKind::Refuse);
        assert_eq!(refused, matches!(admission, Admission::Refuse(_)));
        verdicts
    }

    #[test]
    fn only_the_rule_that_refuses_has_a_verdict_on_a_refused_request() {
        let plan = plan(vec![req_zone("a", 1_000), req_zone("b", 1_000)], vec![]);
        let limits = limits(&plan, &[req_rule(0, 5), req_rule(1, 0)], &[]);
        let mut record = exchange_from("192.0.2.1", &[]);
        assert_eq!(
            ask(&limits, &mut record, 0),
            [(0, VerdictKind::Pass), (1, VerdictKind::Pass)]
        );
        assert_eq!(ask(&limits, &mut record, 1), [(1, VerdictKind::Refuse)]);
        assert_eq!(limits.request_label(0, &record), "192.0.2.1");
    }

    #[test]
    fn slots_are_held_until_they_are_released() {
        let plan = plan(vec![], vec![conn_zone("c")]);
        let limits = limits(&plan, &[], &[conn_rule(0, 1)]);
        let record = exchange_from("192.0.2.1", &[]);
        let keys = limits.slot_keys(&record);
        let take = |now| {
            let mut permit = Permit::default();
            let taken = limits.take_slot(0, &keys, Millis(now), &mut permit);
            (taken, permit)
        };
        let (taken, permit) = take(0);
        assert_eq!(taken, SlotOutcome::Taken);
        assert_eq!(take(1).0, SlotOutcome::Refused);
        drop(permit);
        assert_eq!(take(2).0, SlotOutcome::Taken);
    }
}
