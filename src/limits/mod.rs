//! May a request pass, and when.
//!
//! Policy, where `store` is state: which rules hold at a location, what a request's key is, in what order
//! rules are asked and charged, what the log says and what a refusal tells the client. The order is
//! nginx's: all `limit_req` first, then the wait if one asks for it, then the `limit_conn`, so that a
//! request waiting for its turn holds no place.
//!
//! Limits that are only proposed: asked about every request, counted by themselves, and never enforced.
//!
//! They live as if they were the only ones, in zones of their own: what they would refuse is not charged to them, what the
//! real limits refuse is. Of interest is where the two differ.
//!
//! Keys that operators have marked: blocked ones are refused before any limit is asked.
//!
//! All of this is asked for only where keys are marked at all.

mod concurrency;
mod cost;
mod headers;
mod inspect;
mod key;
mod key_admin;
mod log;
mod rule;
mod shared_rule;
#[cfg(test)]
mod tests;
mod verdict;
mod zone;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderValue, StatusCode};

use self::headers::ZoneName;
use self::key::{KeyFault, KeyLookup, KeySource};
use self::log::{LimitLogger, RefusalDetails, RefusalReason};
use self::rule::{ConnRule, Decision, ReqRule, ReqRules};
use self::shared_rule::SharedDecision;
use self::zone::RuleKey;
use crate::algorithm::LimitSpec;
use crate::clock::{Clock, Millis};
use crate::config::plan::{HeaderForm, HeaderScope, LimitHeaders, LocationConf, RefusalAction};
use crate::message::{LimitStatus, RequestRecord};
use crate::store::Key;
use crate::telemetry::REFUSALS;

pub use self::cost::{DeferredCharge, bad_costs};
pub use self::headers::AllowedHeaders;
pub use self::inspect::{KeyState, RuleExplanation, SlotKeys, SlotOutcome, TopKeyRow};
pub use self::key::ParsedKey;
pub use self::key_admin::{KeyAction, KeyActionEntry, KeyAdmin, MAX_KEY_ACTIONS, TooManyActions};
pub use self::verdict::{Admission, LimitKind, Permit, Refusal};
pub use self::zone::{ConnZone, ReqZone, Zones, forgotten_zones};

/// The limits of one location.
#[derive(Debug)]
pub struct Limits {
    requests: ReqRules,
    shadow: Option<Box<Shadow>>,
    connections: Box<[ConnRule]>,
    requests_voice: LimitLogger,
    connections_voice: LimitLogger,
    requests_status: StatusCode,
    connections_status: StatusCode,
    /// `RateLimit-Policy`, the same for everybody who has no numbers of their own.
    policy: Option<Arc<HeaderValue>>,
    /// Whether keys may have numbers of their own.
    overridden: bool,
    /// How responses to requests that were let in tell of the limits, where they do.
    tells: Option<HeaderForm>,
}

/// How far a refused request is from passing.
#[derive(Debug, Clone, Copy, Default)]
struct RetryHint {
    /// When all rules would let it pass; `None` where no waiting helps.
    retry_after: Option<Duration>,
    /// When the rule would that refused it.
    own: Option<Duration>,
    /// What its key has left there, in whole requests.
    left: u64,
}

impl RetryHint {
    fn new(retry_after: Option<Duration>, own: Option<Duration>, left: u64) -> Self {
        Self {
            retry_after,
            own,
            left,
        }
    }
}

impl Limits {
    /// The limits of a location; `zones` are those of the plan it comes from.
    #[must_use]
    pub fn compile(conf: &LocationConf, zones: &Zones) -> Self {
        let requests_voice = LimitLogger {
            dry_run: conf.limits.limit_req_dry_run,
            level: conf.limits.limit_req_log_level,
        };
        let mut limits = Self {
            requests: ReqRules::compile(&conf.limit_req, |zone| zones.req.get(zone)),
            shadow: Shadow::compile(conf, zones, requests_voice),
            connections: conf
                .limit_conn
                .iter()
                .map(|rule| ConnRule {
                    zone: Arc::clone(&zones.conn[rule.zone]),
                    limit: rule.limit,
                    queue: rule.queue,
                    action: rule.action.clone(),
                })
                .collect(),
            requests_voice,
            connections_voice: LimitLogger {
                dry_run: conf.limits.limit_conn_dry_run,
                level: conf.limits.limit_conn_log_level,
            },
            requests_status: conf.limits.limit_req_status,
            connections_status: conf.limits.limit_conn_status,
            policy: None,
            overridden: false,
            tells: None,
        };
        let mut zones = limits.requests.iter().map(|rule| &rule.zone);
        limits.overridden = zones.any(|zone| !zone.overrides.is_empty());
        limits.policy = limits.policy_by(|rule| Some(rule.spec));
        let LimitHeaders { form, on } = conf.limit_headers;
        let tells = on == HeaderScope::All && form != HeaderForm::Off && limits.policy.is_some();
        limits.tells = tells.then_some(form);
        limits
    }

    /// Lets a request in that comes `now`: waits where a rule says so, and gives what it holds while it is in progress.
    ///
    /// # Errors
    /// The refusal, if a rule refuses it.
    pub async fn admit(
        &self,
        record: &mut RequestRecord,
        mut now: Millis,
        clock: &Clock,
    ) -> Result<Permit, Refusal> {
        if key_admin::any_marks()
            && let Some(refusal) = self.barred(record, now)
        {
            return Err(refusal);
        }
        let mut allowance = None;
        let decision = if self.requests.are_shared() {
            match self.requests.open(record, now) {
                // Boxed: most locations have no use for it, and every request would keep room.
                Ok(case) => {
                    let decided = Box::pin(self.decide_shared(case, record, now)).await;
                    allowance = decided.1;
                    decided.0
                }
                Err(decision) => decision,
            }
        } else {
            let decision = self.requests.decide(record, now, &mut ());
            if self.tells.is_some() && !decision.is_refusal() {
                allowance = self.allowance(record, now, None);
            }
            decision
        };
        let (verdict, mut bills) = self.conclude(decision, record, now);
        match verdict {
            Admission::Delay(wait) => {
                let began = now;
                tokio::time::sleep(wait).await;
                now = clock.now();
                record.waited(began, now);
            }
            Admission::Pass => {}
            Admission::Refuse(refusal) => return Err(refusal),
        }
        let mut permit = match self.connections.is_empty() {
            true => Permit::default(),
            false => {
                let taken = self.take_places(record, clock, now).await;
                self.note_places(&taken, record, now);
                taken?
            }
        };
        permit.bills.append(&mut bills);
        if let Some(allowance) = &mut allowance {
            self.add_places(allowance, record);
        }
        permit.allowance = allowance;
        Ok(permit)
    }

    /// What the rules say of a request where some count in a store, and what its client is told of them.
    async fn decide_shared(
        &self,
        mut case: SharedDecision,
        record: &RequestRecord,
        now: Millis,
    ) -> (Decision, Option<Box<AllowedHeaders>>) {
        let decision = self.requests.decide_shared(&mut case, now).await;
        let allowance = match self.tells.is_some() && !decision.is_refusal() {
            true => self.allowance(record, now, Some(&case)),
            false => None,
        };
        (decision, allowance)
    }

    /// What the `limit_req` rules say of a request; unless they refuse it, it is charged.
    pub fn ask_requests(&self, record: &mut RequestRecord, now: Millis) -> Admission {
        let decision = self.requests.decide(record, now, &mut ());
        self.conclude(decision, record, now).0
    }

    /// What a decision means for a request, and what that owes when it is over.
    fn conclude(
        &self,
        decision: Decision,
        record: &mut RequestRecord,
        now: Millis,
    ) -> (Admission, Vec<DeferredCharge>) {
        self.note(&decision, record, now);
        if decision.is_refusal()
            && REFUSALS.wants(now)
            && let Some(case) = self.case(&decision, record)
        {
            case.record(record);
        }
        if key_admin::any_marks() {
            self.spend_grants(record, now);
        }
        let verdict = self.pronounce(decision, record, now);
        let mut bills = Vec::new();
        if let Some(LimitStatus::Pass | LimitStatus::Delay | LimitStatus::DelayDryRun) =
            record.limit_req
        {
            bills.extend(self.requests.bill(record));
        }
        if let Some(shadow) = &self.shadow {
            bills.extend(shadow.watch(record, now, &verdict));
        }
        (verdict, bills)
    }

    fn pronounce(&self, decision: Decision, record: &mut RequestRecord, now: Millis) -> Admission {
        let voice = self.requests_voice;
        match decision {
            Decision::Delay { rule, excess, wait } => {
                let zone = &self.requests[rule].zone;
                voice.delayed_request(record, now, excess, &zone.name.plain);
                record.limit_req = Some(match voice.dry_run {
                    false => LimitStatus::Delay,
                    true => LimitStatus::DelayDryRun,
                });
                match voice.dry_run {
                    false => {
                        zone.store.delays.observe(wait);
                        record.limit_zone = Some(Arc::clone(&zone.name.plain));
                        Admission::Delay(wait)
                    }
                    true => Admission::Pass,
                }
            }
            Decision::Pass => {
                record.limit_req = Some(LimitStatus::Pass);
                Admission::Pass
            }
            Decision::NoKey { rule, fault } => self.refuse_without_key(record, now, rule, fault),
            Decision::NotLimited => Admission::Pass,
            Decision::Penalize {
                rule,
                rule_key,
                left,
                retry_after,
            } => {
                voice.penalized_request(record, now, left, &self.requests[rule].zone.name.plain);
                let shortfall = RetryHint::new(retry_after, retry_after, 0);
                let verdict = self.refuse_key(record, rule, &rule_key, shortfall);
                record.limit_req = Some(match voice.dry_run {
                    false => LimitStatus::Penalize,
                    true => LimitStatus::PenalizeDryRun,
                });
                verdict
            }
            Decision::Refuse {
                rule,
                rule_key,
                excess,
                retry_after,
                own,
                left,
            } => {
                let refused = &self.requests[rule];
                voice.refused_request(record, now, excess, &refused.zone.name.plain);
                let left = refused.left_of(&rule_key, record, now, left);
                let shortfall = RetryHint::new(retry_after, own, left);
                self.refuse_key(record, rule, &rule_key, shortfall)
            }
        }
    }

    /// What becomes of a request that has no key, or an ambiguous one, where the rule's zone wants one.
    fn refuse_without_key(
        &self,
        record: &mut RequestRecord,
        now: Millis,
        rule: usize,
        fault: KeyFault,
    ) -> Admission {
        let rule = &self.requests[rule];
        let name = &rule.zone.name.plain;
        let voice = self.requests_voice;
        voice.without_key(record, now, fault, (LimitKind::Requests, name));
        let policy = self.policy_of(record);
        let none = RetryHint::default();
        match self.refuse_request(record, rule, &rule.spec, none, policy) {
            Admission::Refuse(refusal) => Admission::Refuse(match fault {
                KeyFault::Ambiguous => refusal.of_a_bad_request(),
                KeyFault::Empty(status) => refusal.without_key(status),
            }),
            verdict => verdict,
        }
    }

    /// Refuses a request with a key, which may have numbers of its own.
    fn refuse_key(
        &self,
        record: &mut RequestRecord,
        rule: usize,
        rule_key: &RuleKey,
        shortfall: RetryHint,
    ) -> Admission {
        let refused = &self.requests[rule];
        let policy = self.policy_of(record);
        refused.with_terms(rule_key, |spec| {
            self.refuse_request(record, refused, spec, shortfall, policy)
        })
    }

    fn refuse_request(
        &self,
        record: &mut RequestRecord,
        rule: &ReqRule,
        spec: &LimitSpec,
        shortfall: RetryHint,
        policy: Option<Arc<HeaderValue>>,
    ) -> Admission {
        if self.requests_voice.dry_run {
            record.limit_req = Some(LimitStatus::RefuseDryRun);
            return Admission::Pass;
        }
        record.limit_req = Some(LimitStatus::Refuse);
        record.limit_zone = Some(Arc::clone(&rule.zone.name.plain));
        Admission::Refuse(Refusal {
            kind: LimitKind::Requests,
            status: rule.action.status.unwrap_or(self.requests_status),
            body: rule.action.body.clone(),
            retry_after: shortfall.retry_after,
            name: Arc::clone(&rule.zone.name),
            quota: spec.quota(),
            left: shortfall.left,
            own: shortfall.own,
            policy,
            is_bad_request: false,
            lacks_key: false,
        })
    }
}

/// The shadow of a location's `limit_req`.
#[derive(Debug)]
struct Shadow {
    rules: ReqRules,
    zones: Box<[Arc<ShadowZone>]>,
    voice: LimitLogger,
}

/// A zone in which a shadow counts.
#[derive(Debug)]
pub struct ShadowZone {
    /// The zone, apart from the one of its name that is enforced.
    pub zone: Arc<ReqZone>,
    stricter: AtomicU64,
    laxer: AtomicU64,
}

/// How often a shadow and what was enforced said different things.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShadowDifferences {
    /// The shadow would have refused what passed.
    pub refuse: u64,
    /// The shadow would have let pass what was refused.
    pub pass: u64,
}

impl ShadowZone {
    fn new(zone: ReqZone, old: Option<&Self>) -> Self {
        let differed = old.map(Self::differs).unwrap_or_default();
        Self {
            zone: Arc::new(zone),
            stricter: AtomicU64::new(differed.refuse),
            laxer: AtomicU64::new(differed.pass),
        }
    }

    /// How often it differed.
    #[must_use]
    pub fn differs(&self) -> ShadowDifferences {
        ShadowDifferences {
            refuse: self.stricter.load(Ordering::Relaxed),
            pass: self.laxer.load(Ordering::Relaxed),
        }
    }
}

impl Shadow {
    /// The shadow of a location, if it has one.
    fn compile(conf: &LocationConf, zones: &Zones, voice: LimitLogger) -> Option<Box<Self>> {
        if conf.shadow.is_empty() {
            return None;
        }
        let zone = |index: usize| zones.shadow.get(index)?.as_ref();
        Some(Box::new(Self {
            rules: ReqRules::compile(&conf.shadow, |index| Some(&zone(index)?.zone)),
            zones: conf
                .shadow
                .iter()
                .filter_map(|rule| zone(rule.zone).cloned())
                .collect(),
            voice,
        }))
    }

    /// Looks at a request of which this was said; with what it would owe, had it been let in by these rules.
    fn watch(
        &self,
        record: &RequestRecord,
        now: Millis,
        said: &Admission,
    ) -> Option<DeferredCharge> {
        let refused = matches!(said, Admission::Refuse(_));
        let (rule, excess) = match self.rules.decide(record, now, &mut ()) {
            Decision::Delay { .. } | Decision::Pass => {
                if refused {
                    self.count(0, |zone| &zone.laxer);
                }
                return self.rules.bill(record);
            }
            Decision::NotLimited => return None,
            Decision::NoKey { rule, .. } | Decision::Penalize { rule, .. } => (rule, None),
            Decision::Refuse { rule, excess, .. } => (rule, Some(excess)),
        };
        if !refused {
            self.count(rule, |zone| &zone.stricter);
            let name = &self.rules[rule].zone.name.plain;
            self.voice.shadow_refusal(record, now, excess, name);
        }
        None
    }

    fn count(&self, rule: usize, counter: impl Fn(&ShadowZone) -> &AtomicU64) {
        if let Some(zone) = self.zones.get(rule) {
            counter(zone).fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A key that is blocked.
struct BlockedKey {
    key: Key,
    left: Duration,
    reason: Option<Box<str>>,
}

impl Limits {
    /// The refusal of a request that has a blocked key in a zone of this location.
    #[cold]
    fn barred(&self, record: &mut RequestRecord, now: Millis) -> Option<Refusal> {
        for rule in self.requests.iter() {
            let zone = &rule.zone;
            let keys = || zone.marked_keys(record);
            let Some(barred) = zone.watch.barred(keys, now) else {
                continue;
            };
            zone.store.count_refusal(&barred.key);
            let status = rule.action.status.unwrap_or(self.requests_status);
            let (dry_run, left) = (self.requests_voice.dry_run, barred.left);
            let voice = self.requests_voice;
            voice.blocked(record, now, left, (LimitKind::Requests, &zone.name.plain));
            let kind = LimitKind::Requests;
            barred.record(
                kind,
                (&zone.name, &zone.source),
                status,
                dry_run,
                record,
                now,
            );
            if !dry_run {
                record.limit_req = Some(LimitStatus::Refuse);
                let quota = rule.spec.quota();
                return Some(self.blocked(kind, status, &rule.action, left, (&zone.name, quota)));
            }
        }
        for rule in &self.connections {
            let zone = &rule.zone;
            let keys = || key(&zone.source, record);
            let Some(barred) = zone.watch.barred(keys, now) else {
                continue;
            };
            zone.store.count_refusal(&barred.key);
            let status = rule.action.status.unwrap_or(self.connections_status);
            let (dry_run, left) = (self.connections_voice.dry_run, barred.left);
            let (voice, kind) = (self.connections_voice, LimitKind::Connections);
            voice.blocked(record, now, left, (kind, &zone.name.plain));
            barred.record(
                kind,
                (&zone.name, &zone.source),
                status,
                dry_run,
                record,
                now,
            );
            if !dry_run {
                record.limit_conn = Some(LimitStatus::Refuse);
                let quota = u64::from(rule.limit);
                return Some(self.blocked(kind, status, &rule.action, left, (&zone.name, quota)));
            }
        }
        None
    }

    fn blocked(
        &self,
        kind: LimitKind,
        status: StatusCode,
        action: &RefusalAction,
        left: Duration,
        (name, quota): (&Arc<ZoneName>, u64),
    ) -> Refusal {
        Refusal {
            kind,
            status,
            body: action.body.clone(),
            retry_after: Some(left),
            name: Arc::clone(name),
            quota,
            left: 0,
            own: Some(left),
            policy: self.policy.clone(),
            is_bad_request: false,
            lacks_key: false,
        }
    }

    /// Takes one off what the keys of a request were granted.
    #[cold]
    fn spend_grants(&self, record: &RequestRecord, now: Millis) {
        for rule in self.requests.iter() {
            for key in rule.zone.marked_keys(record) {
                rule.zone.watch.spend(&key, now);
            }
        }
    }
}

impl BlockedKey {
    fn record(
        self,
        kind: LimitKind,
        (name, source): (&ZoneName, &KeySource),
        status: StatusCode,
        dry_run: bool,
        record: &RequestRecord,
        now: Millis,
    ) {
        let case = RefusalDetails {
            kind,
            zone: &name.plain,
            source,
            name: log::bytes(source, record),
            key: Some(self.key),
            why: RefusalReason::Block(self.reason),
            status,
            retry_after: Some(self.left),
            dry_run,
        };
        if REFUSALS.wants(now) {
            case.record(record);
        }
    }
}

impl KeyAdmin {
    /// The first of these keys that is blocked.
    fn barred<K: IntoIterator<Item = Key>>(
        &self,
        keys: impl FnOnce() -> K,
        now: Millis,
    ) -> Option<BlockedKey> {
        if !self.has_marks() {
            return None;
        }
        keys().into_iter().find_map(|key| {
            let (left, reason) = self.block(&key, now)?;
            Some(BlockedKey { key, left, reason })
        })
    }
}

/// A request's key, whatever else holds for it.
fn key(source: &KeySource, record: &RequestRecord) -> Option<Key> {
    match source.find(record, |bytes| KeyLookup::Key(Key::from_bytes(bytes))) {
        KeyLookup::Key(key) => Some(key),
        KeyLookup::Nothing | KeyLookup::Refuse(_) => None,
    }
}
