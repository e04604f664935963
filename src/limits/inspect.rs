//! The keys of a zone for those who look in: who is busy, and where one stands.
//!
//! What rules would say of a request that nobody has made: asked, and nothing charged, counted or logged.
//!
//! The same decisions for those who only want to know: what every rule said of a request, and under which key.
//!
//! Nothing is decided here. What happens on the road is asked of the road's own functions, and told rule by rule.

use std::time::Duration;

use http::StatusCode;
use smallvec::SmallVec;

use super::key::{KeyFault, KeyLookup, KeySource, ParsedKey};
use super::key_admin::{KeyAction, KeyActionEntry, KeyAdmin};
use super::log::RefusalReason;
use super::rule::{ConnRule, Decision, ReqRule, RuleObserver};
use super::verdict::{Admission, LimitKind, Permit};
use super::zone::{ConnZone, OverrideMatch, ReqZone, parted};
use super::{Limits, log};
use crate::algorithm::{Delay, Excess, KeyStatus, LimitSpec, Verdict, VerdictKind};
use crate::clock::Millis;
use crate::config::plan::ConnQueue;
use crate::limits;
use crate::message::RequestRecord;
use crate::store::{Key, KeyRates, SharedStore, ZoneCounts};

/// A key and how often it was told what.
#[derive(Debug, Clone)]
pub struct TopKeyRow {
    /// As people read it.
    pub key: String,
    /// Since it is counted.
    pub counts: ZoneCounts,
    /// How many requests more there may have been before.
    pub missed: u64,
    /// How often of late.
    pub pace: KeyRates,
    /// Requests above its rate, or places taken.
    pub excess: f64,
    /// What holds for it besides the zone's limits, in a word.
    pub mark: Option<&'static str>,
}

/// Where one key stands.
#[derive(Debug, Clone)]
pub struct KeyState {
    /// The key, and whether it is among those that are counted one by one.
    pub counted: TopKeyRow,
    /// See `counted`.
    pub listed: bool,
    /// Whether the zone remembers it.
    pub known: bool,
    /// Where it stands.
    pub key_status: KeyStatus,
    /// Its own rate, where it has one.
    pub own: Option<String>,
    /// For how much longer it has to stay out.
    pub penalty: Option<Duration>,
    /// What operators have put on it.
    pub marks: Vec<KeyActionEntry>,
    /// Whether other gateways count it, too.
    pub shared: bool,
}

impl ReqZone {
    /// The keys a text may stand for; none if it is no key of this zone.
    #[must_use]
    pub fn read(&self, text: &str) -> Vec<ParsedKey> {
        self.source.read(text)
    }

    /// How a key is written.
    #[must_use]
    pub fn spell(&self, key: &Key, bytes: Option<&[u8]>) -> String {
        self.source.spell(key, bytes)
    }

    /// Its busiest keys, in no order; `burst` is that of a rule.
    #[must_use]
    pub fn busiest(&self, burst: Excess, now: Millis) -> Vec<TopKeyRow> {
        let spec = LimitSpec::new(&self.algorithm, burst, Delay::Never);
        let found = self.watch.busiest.list(now).into_iter();
        found
            .map(|busy| {
                let key_status = self.store.key_status(&busy.key, now, &spec);
                let penalty = || self.penalty(&busy.key, now).map(|_| "penalty");
                TopKeyRow {
                    key: self.spell(&busy.key, busy.name.as_deref()),
                    counts: busy.counts,
                    missed: busy.missed,
                    pace: busy.rates,
                    excess: key_status.map_or(0.0, |it| log::requests(it.excess)),
                    mark: self.watch.mark(&busy.key, now).or_else(penalty),
                }
            })
            .collect()
    }

    /// Where a key stands that a text stands for; `burst` is that of a rule.
    #[must_use]
    pub fn inspect(&self, text: &str, burst: Excess, now: Millis) -> Option<KeyState> {
        let readings = self.read(text);
        let spec = LimitSpec::new(&self.algorithm, burst, Delay::Never);
        let is_known = |key: &Key| self.store.key_status(key, now, &spec).is_some();
        let known = readings.iter().find(|it| is_known(&it.key));
        let ParsedKey { key, bytes } = known.or_else(|| readings.first())?;
        let (spec, own) = self.terms_of(bytes.as_deref(), spec);
        let key_status = self.store.key_status(key, now, &spec);
        let found = self.watch.busiest.find(key, now);
        let name = found.as_ref().and_then(|busy| busy.name.as_deref());
        Some(KeyState {
            counted: TopKeyRow {
                key: self.spell(key, bytes.as_deref().or(name)),
                counts: found.as_ref().map(|busy| busy.counts).unwrap_or_default(),
                missed: found.as_ref().map_or(0, |busy| busy.missed),
                pace: found.as_ref().map(|busy| busy.rates).unwrap_or_default(),
                excess: key_status.map_or(0.0, |it| log::requests(it.excess)),
                mark: self.watch.mark(key, now),
            },
            listed: found.is_some(),
            known: key_status.is_some(),
            key_status: key_status.unwrap_or_else(|| untouched(spec.quota())),
            own,
            penalty: self.penalty(key, now),
            marks: self.watch.marks_on(key, now),
            shared: self.shared.is_some(),
        })
    }

    /// Forgets a key and its penalty here; whether there was something to forget.
    pub fn forget(&self, key: &Key) -> bool {
        let penalties = self.penalties.as_ref();
        let punished = penalties.is_some_and(|penalties| penalties.forget(key));
        self.watch.busiest.forget(key);
        if let Some(leases) = &self.leases {
            leases.forget_key(key);
        }
        self.store.forget(key) || punished
    }

    /// How many penalties were not given for want of room, where its rules give some.
    #[must_use]
    pub fn penalties_dropped(&self) -> Option<u64> {
        let penalties = self.penalties.as_ref()?;
        Some(penalties.dropped())
    }

    /// Where it counts together with other gateways.
    #[must_use]
    pub fn shared(&self) -> Option<&SharedStore> {
        self.shared.as_deref()
    }

    fn penalty(&self, key: &Key, now: Millis) -> Option<Duration> {
        self.penalties.as_ref()?.remaining(key, now)
    }

    /// What a key of these bytes is held to, and its own rate in words.
    fn terms_of(&self, bytes: Option<&[u8]>, spec: LimitSpec) -> (LimitSpec, Option<String>) {
        let Some(bytes) = bytes.filter(|_| !self.overrides.is_empty()) else {
            return (spec, None);
        };
        let held = match parted(bytes) {
            Some((network, _)) => self.overrides.of(&network),
            None => {
                let address = self.source.address(bytes);
                let text = address.is_none().then_some(bytes);
                self.overrides.find(text, address)
            }
        };
        match held {
            OverrideMatch::Own(index) => match self.overrides.own(index) {
                Some(own) => {
                    let burst = own.burst.unwrap_or_default();
                    let spec = LimitSpec::new(&own.algorithm, burst, Delay::Never);
                    (spec, Some(own.algorithm.to_string()))
                }
                None => (spec, None),
            },
            OverrideMatch::Same => (spec, None),
            OverrideMatch::Unlimited(_) => (spec, Some("unlimited".to_owned())),
        }
    }
}

impl ConnZone {
    /// The keys a text may stand for; none if it is no key of this zone.
    #[must_use]
    pub fn read(&self, text: &str) -> Vec<ParsedKey> {
        self.source.read(text)
    }

    /// How a key is written.
    #[must_use]
    pub fn spell(&self, key: &Key, bytes: Option<&[u8]>) -> String {
        self.source.spell(key, bytes)
    }

    /// Its busiest keys, in no order.
    #[must_use]
    pub fn busiest(&self, now: Millis) -> Vec<TopKeyRow> {
        let found = self.watch.busiest.list(now).into_iter();
        found
            .map(|busy| TopKeyRow {
                key: self.spell(&busy.key, busy.name.as_deref()),
                counts: busy.counts,
                missed: busy.missed,
                pace: busy.rates,
                excess: self.store.taken(&busy.key).into(),
                mark: self.watch.mark(&busy.key, now),
            })
            .collect()
    }

    /// Where a key stands that a text stands for, where it may have `limit` places.
    #[must_use]
    pub fn inspect(&self, text: &str, limit: u32, now: Millis) -> Option<KeyState> {
        let readings = self.read(text);
        let known = readings.iter().find(|it| self.store.taken(&it.key) > 0);
        let ParsedKey { key, bytes } = known.or_else(|| readings.first())?;
        let taken = self.store.taken(key);
        let found = self.watch.busiest.find(key, now);
        let name = found.as_ref().and_then(|busy| busy.name.as_deref());
        Some(KeyState {
            counted: TopKeyRow {
                key: self.spell(key, bytes.as_deref().or(name)),
                counts: found.as_ref().map(|busy| busy.counts).unwrap_or_default(),
                missed: found.as_ref().map_or(0, |busy| busy.missed),
                pace: found.as_ref().map(|busy| busy.rates).unwrap_or_default(),
                excess: taken.into(),
                mark: self.watch.mark(key, now),
            },
            listed: found.is_some(),
            known: taken > 0,
            key_status: KeyStatus {
                remaining: limit.saturating_sub(taken).into(),
                excess: Excess::requests(taken),
                ..untouched(limit.into())
            },
            own: None,
            penalty: None,
            marks: self.watch.marks_on(key, now),
            shared: self.shared.is_some(),
        })
    }
}

impl KeyAdmin {
    /// The strongest mark on a key, in a word.
    fn mark(&self, key: &Key, now: Millis) -> Option<&'static str> {
        let marks = self.marks_on(key, now);
        let block = marks.iter().find(|marked| marked.mark == KeyAction::Block);
        let strongest = block.or_else(|| marks.first());
        strongest.map(|marked| marked.mark.as_str())
    }
}

/// Where a key stands of which nothing is known.
pub(super) fn untouched(limit: u64) -> KeyStatus {
    KeyStatus {
        excess: Excess(0),
        limit,
        remaining: limit,
        retry_after: Duration::ZERO,
        reset_after: Duration::ZERO,
    }
}

/// What one rule would say, and why.
#[derive(Debug, Clone)]
pub struct RuleExplanation {
    /// What it limits.
    pub kind: LimitKind,
    /// Its zone.
    pub zone: Box<str>,
    /// The request's key there, if it has one.
    pub key: Option<String>,
    /// The entry of `overrides` that applies.
    pub overridden_by: Option<String>,
    /// What a key is held to.
    pub rate: Option<String>,
    /// The burst of a `limit_req`.
    pub burst: Option<f64>,
    /// The limit of a `limit_conn`.
    pub limit: Option<u32>,
    /// It is only tried out.
    pub dry_run: bool,
    /// Where the key stands before this request.
    pub key_status: Option<KeyStatus>,
    /// Its verdict.
    pub verdict: VerdictKind,
    /// When it would be let in, where it is not.
    pub retry_after: Option<Duration>,
    /// What a refusal is answered with.
    pub status: StatusCode,
    /// Why.
    pub reason: String,
    /// Whether this is asked before the limits themselves: a block, a penalty.
    pub is_first: bool,
}

/// The part of it that depends on the key.
struct Evaluation {
    verdict: VerdictKind,
    retry_after: Option<Duration>,
    reason: String,
    is_first: bool,
    own_status: Option<StatusCode>,
}

impl Evaluation {
    fn pass(reason: impl Into<String>) -> Self {
        Self {
            verdict: VerdictKind::Pass,
            retry_after: None,
            reason: reason.into(),
            is_first: false,
            own_status: None,
        }
    }

    /// The status of a refusal, where the limit's own is `status`.
    fn status(&self, status: StatusCode) -> StatusCode {
        self.own_status.unwrap_or(status)
    }

    fn refuse(why: &RefusalReason, retry_after: Option<Duration>) -> Self {
        Self {
            verdict: VerdictKind::Refuse,
            retry_after,
            reason: why.to_string(),
            is_first: matches!(why, RefusalReason::Block(_) | RefusalReason::Penalty(_)),
            own_status: match why {
                RefusalReason::NoKey(KeyFault::Ambiguous) => Some(StatusCode::BAD_REQUEST),
                RefusalReason::NoKey(KeyFault::Empty(own)) => *own,
                _ => None,
            },
        }
    }
}

impl Limits {
    /// What every rule would say of a request that comes now: the `limit_req`, then the `limit_conn`.
    #[must_use]
    pub fn explain(&self, record: &RequestRecord, now: Millis) -> Vec<RuleExplanation> {
        let requests = self.requests.iter().map(|rule| {
            let (key, word) = rule.word(record, now);
            let zone = &rule.zone;
            let own = match zone.find(record) {
                KeyLookup::Key(rule_key) => zone.own(&rule_key),
                KeyLookup::Nothing | KeyLookup::Refuse(_) => None,
            };
            RuleExplanation {
                kind: LimitKind::Requests,
                zone: (*zone.name.plain).into(),
                overridden_by: zone.override_name(record),
                rate: Some(own.map_or(zone.algorithm, |own| own.algorithm).to_string()),
                burst: Some(log::requests(
                    own.and_then(|own| own.burst).unwrap_or(rule.burst),
                )),
                limit: None,
                dry_run: self.requests_voice.dry_run,
                key_status: key.map(|key| rule.key_status(&key, record, now)),
                key: key.map(|key| zone.source.spell(&key, Some(&zone.key_name(record)))),
                status: word.status(rule.action.status.unwrap_or(self.requests_status)),
                verdict: word.verdict,
                retry_after: word.retry_after,
                reason: word.reason,
                is_first: word.is_first,
            }
        });
        let connections = self.connections.iter().map(|rule| {
            let (key, word) = rule.word(record, now);
            let zone = &rule.zone;
            let taken = key.map(|key| zone.store.taken(&key));
            RuleExplanation {
                kind: LimitKind::Connections,
                zone: (*zone.name.plain).into(),
                overridden_by: None,
                rate: None,
                burst: None,
                limit: Some(rule.limit),
                dry_run: self.connections_voice.dry_run,
                key_status: taken.map(|taken| KeyStatus {
                    remaining: rule.limit.saturating_sub(taken).into(),
                    excess: Excess::requests(taken),
                    ..untouched(rule.limit.into())
                }),
                key: key.map(|key| spelled(&zone.source, &key, record)),
                status: word.status(rule.action.status.unwrap_or(self.connections_status)),
                verdict: word.verdict,
                retry_after: word.retry_after,
                reason: word.reason,
                is_first: word.is_first,
            }
        });
        requests.chain(connections).collect()
    }
}

impl ReqRule {
    /// The key of a request, and what is said of it.
    fn word(&self, record: &RequestRecord, now: Millis) -> (Option<Key>, Evaluation) {
        let zone = &self.zone;
        let found = zone.find(record);
        let keys = zone.marked_keys(record);
        // That of the bucket, where it is one apart.
        let Some(key) = keys.last().copied() else {
            let unlimited = zone.override_name(record).is_some();
            return (None, keyless(&found, unlimited));
        };
        if let Some((left, reason)) = keys.iter().find_map(|key| zone.watch.block(key, now)) {
            return (
                Some(key),
                Evaluation::refuse(&RefusalReason::Block(reason), Some(left)),
            );
        }
        if let Some(mark) = keys.iter().find_map(|key| zone.watch.freedom(key, now)) {
            return (Some(key), free(mark));
        }
        let KeyLookup::Key(rule_key) = found else {
            return (Some(key), Evaluation::pass("unlimited by `overrides`"));
        };
        if self.is_ambiguous(record) {
            return (Some(key), keyless(&AMBIGUOUS, false));
        }
        let punishes = self.action.penalty.is_some();
        let penalties = zone.penalties.as_ref().filter(|_| punishes);
        if let Some(left) = penalties.and_then(|it| it.remaining(&key, now)) {
            return (
                Some(key),
                Evaluation::refuse(&RefusalReason::Penalty(left), Some(left)),
            );
        }
        let cost = self.cost(record);
        let outcome = self.waits(&rule_key, now, cost).unwrap_or_else(|| {
            self.with_terms(&rule_key, |spec| zone.store.peek(&key, now, cost, spec))
        });
        let own = zone.own(&rule_key).and_then(|own| own.burst);
        let burst = own.unwrap_or(self.burst);
        let over = |excess| {
            let (excess, burst) = (log::requests(excess), log::requests(burst));
            format!("excess {excess:.3} of a burst of {burst}")
        };
        let word = match outcome {
            Verdict::Delay { excess, wait } => Evaluation {
                verdict: VerdictKind::Delay(wait),
                ..Evaluation::pass(format!("it waits for its turn: {}", over(excess)))
            },
            Verdict::Pass { excess: Excess(0) } => Evaluation::pass("within the rate"),
            Verdict::Pass { excess } => {
                Evaluation::pass(format!("within the burst: {}", over(excess)))
            }
            Verdict::Refuse {
                excess,
                retry_after,
            } => Evaluation::refuse(&RefusalReason::Rate { excess, burst }, retry_after),
        };
        (Some(key), word)
    }

    fn key_status(&self, key: &Key, record: &RequestRecord, now: Millis) -> KeyStatus {
        let key_status = |spec: &_| {
            let known = self.zone.store.key_status(key, now, spec);
            known.unwrap_or_else(|| untouched(spec.quota()))
        };
        match self.zone.find(record) {
            KeyLookup::Key(rule_key) => self.with_terms(&rule_key, key_status),
            KeyLookup::Nothing | KeyLookup::Refuse(_) => key_status(&self.spec),
        }
    }
}

impl ConnRule {
    /// The key of a request, and what is said of it.
    fn word(&self, record: &RequestRecord, now: Millis) -> (Option<Key>, Evaluation) {
        let zone = &self.zone;
        let Some(key) = limits::key(&zone.source, record) else {
            return (None, keyless(&zone.find(record), false));
        };
        if let Some((left, reason)) = zone.watch.block(&key, now) {
            return (
                Some(key),
                Evaluation::refuse(&RefusalReason::Block(reason), Some(left)),
            );
        }
        if let Some(mark) = zone.watch.freedom(&key, now) {
            return (Some(key), free(mark));
        }
        let (taken, limit) = (zone.store.taken(&key), self.limit);
        let word = match &self.queue {
            _ if taken < limit => Evaluation::pass(format!("{taken} of {limit} places are taken")),
            Some(queue) => Evaluation {
                verdict: VerdictKind::Delay(Duration::ZERO),
                ..Evaluation::pass(format!(
                    "all {limit} places are taken: it waits in line for one, up to {:?}",
                    queue.timeout
                ))
            },
            None => Evaluation::refuse(&RefusalReason::Connections(limit.into()), None),
        };
        (Some(key), word)
    }
}

fn keyless<T>(found: &KeyLookup<T>, unlimited: bool) -> Evaluation {
    match found {
        KeyLookup::Refuse(fault) => Evaluation::refuse(&RefusalReason::NoKey(*fault), None),
        KeyLookup::Key(_) | KeyLookup::Nothing if unlimited => {
            Evaluation::pass("unlimited by `overrides`")
        }
        KeyLookup::Key(_) | KeyLookup::Nothing => {
            Evaluation::pass("it has no key here, and is not limited")
        }
    }
}

/// What is said of a request that gives its cost more than once.
const AMBIGUOUS: KeyLookup<Key> = KeyLookup::Refuse(KeyFault::Ambiguous);

fn free(mark: KeyAction) -> Evaluation {
    Evaluation::pass(match mark {
        KeyAction::Grant(left) => format!("granted by operator: {left} requests are left"),
        KeyAction::Block | KeyAction::Exempt => "exempt by operator".to_owned(),
    })
}

fn spelled(source: &KeySource, key: &Key, record: &RequestRecord) -> String {
    source.spell(key, Some(&log::bytes(source, record)))
}

/// The places a request needs in `limit_conn` zones, to be taken when its time has come.
#[derive(Debug, Default)]
pub struct SlotKeys {
    keys: SmallVec<[Option<Key>; 2]>,
    /// The rule that turns it away because it has no key.
    keyless: Option<usize>,
}

/// What came of wanting a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotOutcome {
    /// There was none, which changes nothing in a dry run.
    DryRun,
    /// There was none; one may wait for it in this line, if there is room in it.
    Line(ConnQueue),
    /// There was none.
    No,
    /// None is needed.
    NotNeeded,
    /// It is held.
    Yes,
}

impl Limits {
    /// As [`Limits::ask_requests`], and tells what each rule said that had a say: the request, the rule's
    /// index, the request's key there, and its word. Of a request that is refused, only the rule that refused it had one.
    pub fn ask_requests_aloud(
        &self,
        record: &mut RequestRecord,
        now: Millis,
        mut tell: impl FnMut(&RequestRecord, usize, &[u8], VerdictKind),
    ) -> Admission {
        let mut heard = VerdictRecorder::default();
        let decision = self.requests.decide(record, now, &mut heard);
        match &decision {
            Decision::NoKey { rule, .. } => tell(record, *rule, b"", VerdictKind::Refuse),
            Decision::NotLimited => {}
            Decision::Delay { .. } | Decision::Pass => {
                for (rule, said) in heard.0 {
                    self.requests[rule]
                        .zone
                        .with_key(record, |key| tell(record, rule, key, said));
                }
            }
            Decision::Penalize { rule, .. } | Decision::Refuse { rule, .. } => {
                let zone = &self.requests[*rule].zone;
                zone.with_key(record, |key| tell(record, *rule, key, VerdictKind::Refuse));
            }
        }
        self.pronounce(decision, record, now)
    }

    /// Whether a request's key has numbers of its own in the zone of a `limit_req`.
    #[must_use]
    pub fn has_own_numbers(&self, rule: usize, record: &RequestRecord) -> bool {
        let zone = &self.requests[rule].zone;
        match zone.find(record) {
            KeyLookup::Key(rule_key) => zone.own(&rule_key).is_some(),
            KeyLookup::Nothing | KeyLookup::Refuse(_) => false,
        }
    }

    /// What the key of a request looks like to people, in the zone of a `limit_req`.
    #[must_use]
    pub fn requests_label(&self, rule: usize, record: &RequestRecord) -> String {
        self.requests[rule].zone.label(record)
    }

    /// The same in the zone of a `limit_conn`.
    #[must_use]
    pub fn connections_label(&self, rule: usize, record: &RequestRecord) -> String {
        self.connections[rule].zone.label(record)
    }

    /// The key of a request in the zone of a `limit_conn`.
    pub fn with_connections_key(
        &self,
        rule: usize,
        record: &RequestRecord,
        act: impl FnOnce(&[u8]),
    ) {
        self.connections[rule].zone.with_key(record, act);
    }

    /// Which places a request needs.
    #[must_use]
    pub fn places(&self, record: &RequestRecord) -> SlotKeys {
        let mut places = SlotKeys::default();
        for (index, rule) in self.connections.iter().enumerate() {
            places.keys.push(match rule.zone.find(record) {
                KeyLookup::Key(key) => Some(key),
                KeyLookup::Nothing => None,
                KeyLookup::Refuse(_) => {
                    places.keyless.get_or_insert(index);
                    None
                }
            });
        }
        places
    }

    /// Takes the place a request needs in the zone of one `limit_conn`, if there is one, into its permit.
    pub fn take_place_aloud(
        &self,
        rule: usize,
        places: &SlotKeys,
        now: Millis,
        permit: &mut Permit,
    ) -> SlotOutcome {
        let ConnRule {
            zone, limit, queue, ..
        } = &self.connections[rule];
        let taken = match places.keys.get(rule).copied().flatten() {
            Some(key) => zone.store.take(&key, *limit, now).map_err(|_| *queue),
            None if places.keyless == Some(rule) => Err(None),
            None => return SlotOutcome::NotNeeded,
        };
        match (taken, self.connections_voice.dry_run) {
            (Ok(place), _) => {
                permit.hold(place);
                SlotOutcome::Yes
            }
            (Err(_), true) => SlotOutcome::DryRun,
            (Err(Some(queue)), false) => SlotOutcome::Line(queue),
            (Err(None), false) => SlotOutcome::No,
        }
    }
}

#[derive(Default)]
struct VerdictRecorder(SmallVec<[(usize, VerdictKind); 4]>);

impl RuleObserver for VerdictRecorder {
    fn hear(&mut self, rule: usize, outcome: &Verdict) {
        self.0.push((rule, outcome.into()));
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::limits::tests::support::{
        conn_rule, conn_zone, exchange_from, limits, plan, req_rule, req_zone,
    };

    fn ask(limits: &Limits, record: &mut RequestRecord, now: u64) -> Vec<(usize, VerdictKind)> {
        let mut told = Vec::new();
        let verdict = limits.ask_requests_aloud(record, Millis(now), |_, rule, key, said| {
            assert_eq!(key, [192, 0, 2, 1]);
            told.push((rule, said));
        });
        let refused = told.iter().any(|(_, said)| *said == VerdictKind::Refuse);
        assert_eq!(refused, matches!(verdict, Admission::Refuse(_)));
        told
    }

    #[test]
    fn only_who_refuses_has_said_something_of_a_refused_request() {
        let plan = plan(vec![req_zone("a", 1_000), req_zone("b", 1_000)], vec![]);
        let limits = limits(&plan, &[req_rule(0, 5), req_rule(1, 0)], &[]);
        let mut record = exchange_from("192.0.2.1", &[]);
        assert_eq!(
            ask(&limits, &mut record, 0),
            [(0, VerdictKind::Pass), (1, VerdictKind::Pass)]
        );
        assert_eq!(ask(&limits, &mut record, 1), [(1, VerdictKind::Refuse)]);
        assert_eq!(limits.requests_label(0, &record), "192.0.2.1");
    }

    #[test]
    fn places_are_held_until_they_are_let_go() {
        let plan = plan(vec![], vec![conn_zone("c")]);
        let limits = limits(&plan, &[], &[conn_rule(0, 1)]);
        let record = exchange_from("192.0.2.1", &[]);
        let places = limits.places(&record);
        let take = |now| {
            let mut permit = Permit::default();
            let taken = limits.take_place_aloud(0, &places, Millis(now), &mut permit);
            (taken, permit)
        };
        let (taken, permit) = take(0);
        assert_eq!(taken, SlotOutcome::Yes);
        assert_eq!(take(1).0, SlotOutcome::No);
        drop(permit);
        assert_eq!(take(2).0, SlotOutcome::Yes);
    }
}
