//! The limits of a location: whether a request may pass, and when.
//!
//! Policy, where `store` is state: which rules hold at a location, what a request's key is, in what order rules are asked
//! and charged, what is logged and what a refusal tells the client. The order is nginx's: all `limit_req` first, then the
//! wait if one asks for it, then the `limit_conn`, so that a request that waits holds no slot.
//!
//! A `shadow` is asked about every request, counts in zones of its own and is never enforced: what counts is where its
//! decisions differ. Keys that operators have blocked are refused before any limit is asked.

mod concurrency;
mod cost;
mod headers;
mod inspect;
mod key;
mod key_admin;
mod log;
mod overrides;
mod rule;
mod shared_rule;
#[cfg(test)]
mod tests;
mod verdict;
mod zone;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::HeaderValue;

use self::concurrency::SlotRefusal;
use self::headers::{PolicyBalance, add_connections, add_requests};
use self::key::{KeyLookup, key_prefix};
use self::log::{LimitLogger, RefusalDetails, RefusalReason};
use self::rule::{ConnRule, Decision, ReqRules, RuleRefusal};
use self::shared_rule::SharedDecision;
use self::zone::RuleKey;
use crate::algorithm::{LimitSpec, VerdictKind};
use crate::clock::{Clock, Millis};
use crate::config::plan::{HeaderForm, HeaderScope, LimitHeaders, LocationConf};
use crate::message::{LimitStatus, RequestRecord};
use crate::store::{self, Key};
use crate::telemetry::REFUSALS;

pub use self::concurrency::SlotKeys;
pub use self::cost::bad_costs;
pub use self::headers::{AllowedHeaders, whole_seconds};
pub use self::inspect::{KeyState, RuleEvaluation, RuleExplanation, SlotOutcome, TopKeyRow};
pub use self::key::{KeySource, ParsedKey};
pub use self::key_admin::{KeyAction, KeyActionEntry, KeyAdmin, MAX_KEY_ACTIONS, TooManyActions};
pub use self::log::LimitKind;
pub use self::rule::DeferredCharge;
pub use self::verdict::{Admission, Permit, Refusal};
pub use self::zone::{ConnZone, ReqZone, ShadowDifferences, ShadowZone, Zones, forgotten_zones};

/// The limits of one location.
///
/// ```
/// use std::sync::Arc;
///
/// use weir::clock::Millis;
/// use weir::config::load_text;
/// use weir::limits::{Admission, Limits, Zones};
/// use weir::message::{ClientConnection, RemoteAddr, RequestRecord, Target};
///
/// let text = "
/// limit_req_zones: { per_ip: { key: $binary_remote_addr, rate: 10r/s } }
/// servers:
///   - listen: 8080
///     limit_req: { zone: per_ip, burst: 1, nodelay: true }
///     return: 204
/// ";
/// let (plan, _) = load_text("weir.yaml", text, |_| None).expect("it is valid");
/// let plan = Arc::new(plan);
/// let limits = Limits::compile(&plan.servers[0].fallback, &Zones::build(&plan));
///
/// let client = RemoteAddr::Ip("192.0.2.7:4711".parse().expect("an address"));
/// let mut record = RequestRecord::begin(
///     Arc::clone(&plan),
///     0,
///     Arc::new(ClientConnection::new(client, None, 1, Millis(0))),
///     http::Request::new(()).into_parts().0,
///     Target::default(),
///     Millis(0),
/// );
/// let mut decide = |millis| limits.ask_requests(&mut record, Millis(millis));
/// assert!(matches!(decide(0), Admission::Pass));
/// assert!(matches!(decide(0), Admission::Pass), "the burst");
/// assert!(matches!(decide(0), Admission::Refuse(_)));
/// assert!(matches!(decide(100), Admission::Pass));
/// ```
#[derive(Debug)]
pub struct Limits {
    requests: ReqRules,
    connections: Box<[ConnRule]>,
    shadow: Option<Box<Shadow>>,
    request_logger: LimitLogger,
    connection_logger: LimitLogger,
    /// `RateLimit-Policy` where no override applies.
    policy: Option<Arc<HeaderValue>>,
    has_overrides: bool,
    /// The form of the header fields in responses to admitted requests, where they are wanted.
    allowed_form: Option<HeaderForm>,
}

/// What the `limit_req` rules mean for a request.
struct Decided {
    admission: Admission,
    charges: Vec<DeferredCharge>,
    allowed_headers: Option<Box<AllowedHeaders>>,
}

impl Limits {
    /// The limits of a location; `zones` are those of the plan it comes from.
    #[must_use]
    pub fn compile(conf: &LocationConf, zones: &Zones) -> Self {
        let settings = &conf.limits;
        let request_logger = LimitLogger {
            kind: LimitKind::Requests,
            dry_run: settings.limit_req_dry_run,
            level: settings.limit_req_log_level,
        };
        let status = settings.limit_req_status;
        let connections = conf.limit_conn.iter().map(|rule| ConnRule {
            zone: Arc::clone(&zones.conn[rule.zone]),
            limit: rule.limit,
            queue: rule.queue,
            action: rule.action.clone(),
            status: rule.action.status.unwrap_or(settings.limit_conn_status),
        });
        let mut limits = Self {
            requests: ReqRules::compile(&conf.limit_req, status, |zone| zones.req.get(zone)),
            connections: connections.collect(),
            shadow: Shadow::compile(conf, zones, request_logger),
            request_logger,
            connection_logger: LimitLogger {
                kind: LimitKind::Connections,
                dry_run: settings.limit_conn_dry_run,
                level: settings.limit_conn_log_level,
            },
            policy: None,
            has_overrides: false,
            allowed_form: None,
        };
        let mut rules = limits.requests.iter();
        limits.has_overrides = rules.any(|rule| !rule.zone.overrides.is_empty());
        limits.policy = limits.policy_with(|rule| Some(limits.requests[rule].spec));
        let LimitHeaders { form, on } = conf.limit_headers;
        let wanted = on == HeaderScope::All && form != HeaderForm::Off && limits.policy.is_some();
        limits.allowed_form = wanted.then_some(form);
        limits
    }

    /// Admits a request that comes `now`: waits where a rule delays it, and puts what it holds into its permit.
    ///
    /// # Errors
    /// The refusal, if a rule refuses it.
    pub async fn admit(
        &self,
        record: &mut RequestRecord,
        permit: &mut Permit,
        mut now: Millis,
        clock: &Clock,
    ) -> Result<(), Refusal> {
        if key_admin::any_key_actions()
            && let Some(refusal) = self.refuse_blocked(record, now)
        {
            return Err(refusal);
        }
        let Decided {
            admission,
            charges,
            mut allowed_headers,
        } = match self.requests.shared {
            false => self.decide(record, now),
            // Boxed: most locations have no use for it, and every request would keep room.
            true => Box::pin(self.decide_shared(record, now)).await,
        };
        match admission {
            Admission::Delay(wait) => {
                let began = now;
                tokio::time::sleep(wait).await;
                now = clock.now();
                record.waited(began, now);
            }
            Admission::Pass => {}
            Admission::Refuse(refusal) => return Err(refusal),
        }
        if !self.connections.is_empty() {
            let keys = SlotKeys::find(&self.connections, record);
            let (rules, dry_run) = (&self.connections, self.connection_logger.dry_run);
            let acquiring = concurrency::acquire(rules, &keys, dry_run, permit, record, clock, now);
            let refused = acquiring.await.err();
            self.sample_slots(&keys, refused.as_ref(), now, record);
            if let Some(refused) = refused {
                permit.release();
                self.refuse_slot(refused, &keys, record)?;
            }
            if let Some(headers) = &mut allowed_headers {
                self.add_slot_balances(headers, &keys);
            }
        }
        permit.charges = charges;
        permit.allowed_headers = allowed_headers;
        Ok(())
    }

    /// What the `limit_req` rules decide on a request; unless they refuse it, it is charged.
    pub fn ask_requests(&self, record: &mut RequestRecord, now: Millis) -> Admission {
        self.decide(record, now).admission
    }

    fn decide(&self, record: &mut RequestRecord, now: Millis) -> Decided {
        let keys = self.requests.find_keys(record);
        let decision = self.requests.decide(&keys, record, now, &mut ());
        self.conclude(decision, None, &keys, record, now)
    }

    /// The same where some rules count in a store.
    async fn decide_shared(&self, record: &mut RequestRecord, now: Millis) -> Decided {
        let keys = self.requests.find_keys(record);
        match SharedDecision::begin(&self.requests, &keys, record, now) {
            Ok(mut shared) => {
                let decision = shared.decide(&keys, now).await;
                self.conclude(decision, Some(&shared), &keys, record, now)
            }
            Err(decision) => self.conclude(decision, None, &keys, record, now),
        }
    }

    /// What a decision means for a request, now and when it is over; `shared` has the verdicts of stores.
    fn conclude(
        &self,
        decision: Decision,
        shared: Option<&SharedDecision<'_>>,
        keys: &[KeyLookup<RuleKey>],
        record: &mut RequestRecord,
        now: Millis,
    ) -> Decided {
        self.sample_requests(&decision, keys, record, now);
        let mut allowed_headers = None;
        if let Decision::Refuse(refused) = &decision {
            if REFUSALS.wants(now) {
                self.record_refusal(refused, keys, record);
            }
        } else if let Some(form) = self.allowed_form {
            allowed_headers = Some(self.allowed_headers(form, shared, keys, now));
        }
        if key_admin::any_key_actions() {
            self.use_grants(record, now);
        }
        let admission = self.apply(decision, keys, record, now);
        let mut charges = Vec::new();
        if let Some(LimitStatus::Pass | LimitStatus::Delay | LimitStatus::DelayDryRun) =
            record.limit_req
        {
            charges.extend(self.requests.deferred_charge(keys, record));
        }
        if let Some(shadow) = &self.shadow {
            let refused = matches!(admission, Admission::Refuse(_));
            charges.extend(shadow.observe(record, now, refused));
        }
        Decided {
            admission,
            charges,
            allowed_headers,
        }
    }

    /// Puts a decision in force, unless this is a dry run.
    fn apply(
        &self,
        decision: Decision,
        keys: &[KeyLookup<RuleKey>],
        record: &mut RequestRecord,
        now: Millis,
    ) -> Admission {
        let logger = self.request_logger;
        match decision {
            Decision::Delay { rule, excess, wait } => {
                let zone = &self.requests[rule].zone;
                logger.delayed(excess, &zone.name.plain, record, now);
                if logger.dry_run {
                    record.limit_req = Some(LimitStatus::DelayDryRun);
                    return Admission::Pass;
                }
                record.limit_req = Some(LimitStatus::Delay);
                record.limit_zone = Some(Arc::clone(&zone.name.plain));
                zone.store.delays.observe(wait);
                Admission::Delay(wait)
            }
            Decision::NotLimited => Admission::Pass,
            Decision::Pass => {
                record.limit_req = Some(LimitStatus::Pass);
                Admission::Pass
            }
            Decision::Refuse(refused) => {
                let zone = &self.requests[refused.rule].zone.name.plain;
                logger.refused(&refused.reason, zone, record, now);
                let is_penalty = matches!(refused.reason, RefusalReason::Penalty(_));
                record.limit_req = Some(match (is_penalty, logger.dry_run) {
                    (false, false) => LimitStatus::Refuse,
                    (false, true) => LimitStatus::RefuseDryRun,
                    (true, false) => LimitStatus::Penalize,
                    (true, true) => LimitStatus::PenalizeDryRun,
                });
                if logger.dry_run {
                    return Admission::Pass;
                }
                record.limit_zone = Some(Arc::clone(zone));
                Admission::Refuse(self.refusal(&refused, keys, record, now))
            }
        }
    }

    /// The refusal of a request by a `limit_req`.
    fn refusal(
        &self,
        refused: &RuleRefusal,
        keys: &[KeyLookup<RuleKey>],
        record: &RequestRecord,
        now: Millis,
    ) -> Refusal {
        let rule = &self.requests[refused.rule];
        let mut refusal = Refusal::of_requests(rule);
        refusal.policy = self.policy_of(keys);
        if let RefusalReason::NoKey(fault) = refused.reason {
            return refusal.without_key(fault);
        }
        refusal.retry_after = refused.retry_after;
        refusal.own = refused.own_retry_after;
        if let KeyLookup::Key(rule_key) = &keys[refused.rule] {
            refusal.left = rule.remaining(rule_key, record, now, refused.remaining);
            if let Some(spec) = rule.override_spec(rule_key) {
                refusal.quota = spec.quota();
            }
        }
        refusal
    }

    /// Refuses a request that gets no slot, unless this is a dry run.
    fn refuse_slot(
        &self,
        refused: SlotRefusal,
        keys: &SlotKeys,
        record: &mut RequestRecord,
    ) -> Result<(), Refusal> {
        let SlotRefusal {
            rule: index,
            fault,
            now,
        } = refused;
        let rule = &self.connections[index];
        let (zone, logger) = (&rule.zone, self.connection_logger);
        if fault.is_some() {
            zone.store.count_refusal(&Key::from_bytes(b""));
        }
        let reason = match fault {
            Some(fault) => RefusalReason::NoKey(fault),
            None => RefusalReason::Connections { limit: rule.limit },
        };
        logger.refused(&reason, &zone.name.plain, record, now);
        if REFUSALS.wants(now) {
            let details = RefusalDetails {
                logger,
                zone: &zone.name.plain,
                source: &zone.source,
                key: keys.0[index].key(),
                key_bytes: key_prefix(&zone.source.bytes(record)),
                reason,
                status: rule.status,
                retry_after: None,
            };
            details.record(record);
        }
        if logger.dry_run {
            record.limit_conn = Some(LimitStatus::RefuseDryRun);
            return Ok(());
        }
        record.limit_conn = Some(LimitStatus::Refuse);
        record.limit_zone = Some(Arc::clone(&zone.name.plain));
        let mut refusal = Refusal::of_connections(rule);
        refusal.policy = match self.has_overrides {
            true => self.policy_of(&self.requests.find_keys(record)),
            false => self.policy.clone(),
        };
        Err(match fault {
            Some(fault) => refusal.without_key(fault),
            None => refusal,
        })
    }

    /// Adds a refusal to the last ones.
    #[cold]
    fn record_refusal(
        &self,
        refused: &RuleRefusal,
        keys: &[KeyLookup<RuleKey>],
        record: &RequestRecord,
    ) {
        let rule = &self.requests[refused.rule];
        let zone = &rule.zone;
        let details = RefusalDetails {
            logger: self.request_logger,
            zone: &zone.name.plain,
            source: &zone.source,
            key: match refused.reason {
                RefusalReason::NoKey(_) => None,
                _ => keys[refused.rule].key().map(|rule_key| rule_key.key),
            },
            key_bytes: key_prefix(&zone.key_bytes(record)),
            reason: refused.reason,
            status: rule.status,
            retry_after: refused.retry_after,
        };
        details.record(record);
    }

    /// Counts the decision on some of the requests for the busiest keys of the zones.
    fn sample_requests(
        &self,
        decision: &Decision,
        keys: &[KeyLookup<RuleKey>],
        record: &RequestRecord,
        now: Millis,
    ) {
        let refused_by = match decision {
            Decision::NotLimited => return,
            Decision::Refuse(refused) if matches!(refused.reason, RefusalReason::NoKey(_)) => {
                return;
            }
            Decision::Refuse(refused) => Some(refused.rule),
            Decision::Delay { .. } | Decision::Pass => None,
        };
        let weight = store::sampling_weight(now);
        if weight == 0 {
            return;
        }
        for (index, (rule, lookup)) in self.requests.iter().zip(keys).enumerate() {
            let KeyLookup::Key(RuleKey { key, .. }) = lookup else {
                continue;
            };
            let verdict = match (refused_by, decision) {
                (Some(refused_by), _) if refused_by == index => VerdictKind::Refuse,
                (Some(_), _) => continue,
                (None, Decision::Delay { rule, wait, .. }) if *rule == index => {
                    VerdictKind::Delay(*wait)
                }
                (None, _) => VerdictKind::Pass,
            };
            let (zone, bytes) = (&rule.zone, || key_prefix(&rule.zone.key_bytes(record)));
            zone.key_admin
                .busiest
                .record(key, verdict, weight, now, bytes);
        }
    }

    /// The same for the slots a request got, or the one it was refused. In a dry run all passes.
    fn sample_slots(
        &self,
        keys: &SlotKeys,
        refused: Option<&SlotRefusal>,
        now: Millis,
        record: &RequestRecord,
    ) {
        let weight = store::sampling_weight(now);
        if weight == 0 {
            return;
        }
        let refused = refused.filter(|_| !self.connection_logger.dry_run);
        for (index, (rule, lookup)) in self.connections.iter().zip(&keys.0).enumerate() {
            let KeyLookup::Key(key) = lookup else {
                continue;
            };
            let verdict = match refused {
                None => VerdictKind::Pass,
                Some(refused) if refused.rule == index => VerdictKind::Refuse,
                // Refused by another rule.
                Some(_) => continue,
            };
            let (zone, bytes) = (&rule.zone, || key_prefix(&rule.zone.source.bytes(record)));
            zone.key_admin
                .busiest
                .record(key, verdict, weight, now, bytes);
        }
    }

    /// The header fields of the response to an admitted request; those of the `limit_conn` are added later.
    fn allowed_headers(
        &self,
        form: HeaderForm,
        shared: Option<&SharedDecision<'_>>,
        keys: &[KeyLookup<RuleKey>],
        now: Millis,
    ) -> Box<AllowedHeaders> {
        let mut balances = Vec::new();
        if !self.request_logger.dry_run {
            for (index, (rule, lookup)) in self.requests.iter().zip(keys).enumerate() {
                balances.extend(match (shared, lookup) {
                    (Some(shared), _) => shared.balance(index, now),
                    (None, KeyLookup::Key(rule_key)) => Some(rule.with_spec(rule_key, |spec| {
                        let key_status = rule.zone.store.key_status(&rule_key.key, now, spec);
                        PolicyBalance::of_key(&rule.zone.name, spec, key_status)
                    })),
                    (None, KeyLookup::Nothing | KeyLookup::Refuse(_)) => None,
                });
            }
        }
        Box::new(AllowedHeaders {
            form,
            policy: self.policy_of(keys),
            balances,
        })
    }

    /// Adds what is left of the `limit_conn`, for a request that has its slots.
    fn add_slot_balances(&self, headers: &mut AllowedHeaders, keys: &SlotKeys) {
        if self.connection_logger.dry_run {
            return;
        }
        for (rule, lookup) in self.connections.iter().zip(&keys.0) {
            // The slots of other gateways are known to the store alone.
            if let (None, KeyLookup::Key(key)) = (&rule.zone.shared, lookup) {
                let free = rule.limit.saturating_sub(rule.zone.store.taken(key));
                let (name, limit) = (&rule.zone.name, rule.limit.into());
                let balance = PolicyBalance::new(name, limit, free.into());
                headers.balances.push(balance);
            }
        }
    }

    /// The `RateLimit-Policy` of a request.
    fn policy_of(&self, keys: &[KeyLookup<RuleKey>]) -> Option<Arc<HeaderValue>> {
        let is_usual = |lookup: &KeyLookup<RuleKey>| match lookup {
            KeyLookup::Key(rule_key) => rule_key.own.is_none(),
            KeyLookup::Nothing => false,
            KeyLookup::Refuse(_) => true,
        };
        if !self.has_overrides || keys.iter().all(is_usual) {
            return self.policy.clone();
        }
        self.policy_with(|index| {
            let rule = &self.requests[index];
            match &keys[index] {
                KeyLookup::Key(rule_key) => Some(rule.with_spec(rule_key, Clone::clone)),
                // A key without a limit, or none at all.
                KeyLookup::Nothing => None,
                KeyLookup::Refuse(_) => Some(rule.spec),
            }
        })
    }

    /// The `RateLimit-Policy` of what is enforced; `spec` gives the numbers of a `limit_req` rule where it applies.
    fn policy_with(&self, spec: impl Fn(usize) -> Option<LimitSpec>) -> Option<Arc<HeaderValue>> {
        let mut text = String::new();
        if !self.request_logger.dry_run {
            for (index, rule) in self.requests.iter().enumerate() {
                if let Some(spec) = spec(index) {
                    add_requests(&mut text, &rule.zone.name, &spec, &rule.cost_source);
                }
            }
        }
        if !self.connection_logger.dry_run {
            for rule in &self.connections {
                add_connections(&mut text, &rule.zone.name, rule.limit);
            }
        }
        headers::value(text).map(Arc::new)
    }

    /// The refusal of a request with a blocked key in a zone of this location.
    #[cold]
    fn refuse_blocked(&self, record: &mut RequestRecord, now: Millis) -> Option<Refusal> {
        for rule in self.requests.iter() {
            let zone = &rule.zone;
            let Some(block) = Block::find(&zone.key_admin, || zone.admin_keys(record), now) else {
                continue;
            };
            zone.store.count_refusal(&block.key);
            let refusal = Refusal::of_requests(rule);
            let (logger, source) = (self.request_logger, &zone.source);
            if let Some(refusal) = self.refuse_block(block, refusal, logger, source, record, now) {
                record.limit_req = Some(LimitStatus::Refuse);
                return Some(refusal);
            }
        }
        for rule in &self.connections {
            let zone = &rule.zone;
            let Some(block) = Block::find(&zone.key_admin, || zone.source.key(record), now) else {
                continue;
            };
            zone.store.count_refusal(&block.key);
            let refusal = Refusal::of_connections(rule);
            let (logger, source) = (self.connection_logger, &zone.source);
            if let Some(refusal) = self.refuse_block(block, refusal, logger, source, record, now) {
                record.limit_conn = Some(LimitStatus::Refuse);
                return Some(refusal);
            }
        }
        None
    }

    /// Logs that a key is blocked; the refusal, unless this is a dry run.
    fn refuse_block(
        &self,
        block: Block,
        refusal: Refusal,
        logger: LimitLogger,
        source: &KeySource,
        record: &RequestRecord,
        now: Millis,
    ) -> Option<Refusal> {
        let left = block.left;
        let reason = RefusalReason::Block {
            left,
            reason: block.reason.as_deref(),
        };
        logger.refused(&reason, refusal.zone(), record, now);
        if REFUSALS.wants(now) {
            let details = RefusalDetails {
                logger,
                zone: refusal.zone(),
                source,
                key: Some(block.key),
                key_bytes: key_prefix(&source.bytes(record)),
                reason,
                status: refusal.status,
                retry_after: Some(left),
            };
            details.record(record);
        }
        (!logger.dry_run).then(|| Refusal {
            retry_after: Some(left),
            own: Some(left),
            policy: self.policy.clone(),
            ..refusal
        })
    }

    /// Takes one request off what the keys of a request were granted.
    #[cold]
    fn use_grants(&self, record: &RequestRecord, now: Millis) {
        for rule in self.requests.iter() {
            for key in rule.zone.admin_keys(record) {
                rule.zone.key_admin.use_grant(&key, now);
            }
        }
    }
}

/// A key that an operator has blocked.
struct Block {
    key: Key,
    left: Duration,
    reason: Option<Box<str>>,
}

impl Block {
    /// The first of these keys that is blocked.
    fn find<K: IntoIterator<Item = Key>>(
        key_admin: &KeyAdmin,
        keys: impl FnOnce() -> K,
        now: Millis,
    ) -> Option<Self> {
        if key_admin.count() == 0 {
            return None;
        }
        keys().into_iter().find_map(|key| {
            let (left, reason) = key_admin.block(&key, now)?;
            Some(Self { key, left, reason })
        })
    }
}

/// The `shadow` of a location: limits that are counted and never enforced.
#[derive(Debug)]
struct Shadow {
    rules: ReqRules,
    zones: Box<[Arc<ShadowZone>]>,
    logger: LimitLogger,
}

impl Shadow {
    /// The shadow of a location, if it has one.
    fn compile(conf: &LocationConf, zones: &Zones, logger: LimitLogger) -> Option<Box<Self>> {
        if conf.shadow.is_empty() {
            return None;
        }
        let zone = |index: usize| zones.shadow.get(index)?.as_ref();
        let status = conf.limits.limit_req_status;
        let shadowed = conf
            .shadow
            .iter()
            .filter_map(|rule| zone(rule.zone).cloned());
        Some(Box::new(Self {
            rules: ReqRules::compile(&conf.shadow, status, |index| Some(&zone(index)?.zone)),
            zones: shadowed.collect(),
            logger,
        }))
    }

    /// Decides on a request that the enforced limits have refused or not. What it would be charged when it is over, had it
    /// been admitted by these rules.
    fn observe(
        &self,
        record: &RequestRecord,
        now: Millis,
        is_refused: bool,
    ) -> Option<DeferredCharge> {
        let keys = self.rules.find_keys(record);
        match self.rules.decide(&keys, record, now, &mut ()) {
            Decision::Delay { .. } | Decision::Pass => {
                if is_refused && let Some(zone) = self.zones.first() {
                    zone.laxer.fetch_add(1, Ordering::Relaxed);
                }
                self.rules.deferred_charge(&keys, record)
            }
            Decision::NotLimited => None,
            Decision::Refuse(refused) => {
                if !is_refused && let Some(zone) = self.zones.get(refused.rule) {
                    zone.stricter.fetch_add(1, Ordering::Relaxed);
                    let name = &zone.zone.name.plain;
                    self.logger
                        .shadow_refused(&refused.reason, name, record, now);
                }
                None
            }
        }
    }
}
