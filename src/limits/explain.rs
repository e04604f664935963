//! What rules would say of a request that nobody has made: asked, and nothing charged, counted or logged.

use std::time::Duration;

use http::StatusCode;

use super::inspect::untouched;
use super::key::{KeyFault, KeyLookup, KeySource};
use super::notes::{self, RefusalReason};
use super::rule::{ConnRule, ReqRule};
use super::verdict::LimitKind;
use super::watch::KeyAction;
use super::{Limits, RuleVerdict, marked};
use crate::clock::Millis;
use crate::config::plan::{DryRun, Excess};
use crate::message::RequestRecord;
use crate::store::Key;
use crate::store::algorithm::{KeyStatus, Verdict};

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
    pub standing: Option<KeyStatus>,
    /// What is said.
    pub said: RuleVerdict,
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
    said: RuleVerdict,
    retry_after: Option<Duration>,
    reason: String,
    is_first: bool,
    own_status: Option<StatusCode>,
}

impl Evaluation {
    fn pass(reason: impl Into<String>) -> Self {
        Self {
            said: RuleVerdict::Pass,
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
            said: RuleVerdict::Refuse,
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
    pub fn explain(&self, exchange: &RequestRecord, now: Millis) -> Vec<RuleExplanation> {
        let requests = self.requests.iter().map(|rule| {
            let (key, word) = rule.word(exchange, now);
            let zone = &rule.zone;
            let own = match zone.find(exchange) {
                KeyLookup::Key(keyed) => zone.own(&keyed),
                KeyLookup::Nothing | KeyLookup::Refuse(_) => None,
            };
            RuleExplanation {
                kind: LimitKind::Requests,
                zone: (*zone.name.plain).into(),
                overridden_by: zone.override_name(exchange),
                rate: Some(own.map_or(zone.algorithm, |own| own.algorithm).to_string()),
                burst: Some(notes::requests(
                    own.and_then(|own| own.burst).unwrap_or(rule.burst),
                )),
                limit: None,
                dry_run: self.requests_voice.dry_run == DryRun::On,
                standing: key.map(|key| rule.standing(&key, exchange, now)),
                key: key.map(|key| zone.source.spell(&key, Some(&zone.key_name(exchange)))),
                status: word.status(rule.sanction.status.unwrap_or(self.requests_status)),
                said: word.said,
                retry_after: word.retry_after,
                reason: word.reason,
                is_first: word.is_first,
            }
        });
        let connections = self.connections.iter().map(|rule| {
            let (key, word) = rule.word(exchange, now);
            let zone = &rule.zone;
            let taken = key.map(|key| zone.store.taken(&key));
            RuleExplanation {
                kind: LimitKind::Connections,
                zone: (*zone.name.plain).into(),
                overridden_by: None,
                rate: None,
                burst: None,
                limit: Some(rule.limit),
                dry_run: self.connections_voice.dry_run == DryRun::On,
                standing: taken.map(|taken| KeyStatus {
                    remaining: rule.limit.saturating_sub(taken).into(),
                    excess: Excess::requests(taken),
                    ..untouched(rule.limit.into())
                }),
                key: key.map(|key| spelled(&zone.source, &key, exchange)),
                status: word.status(rule.sanction.status.unwrap_or(self.connections_status)),
                said: word.said,
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
    fn word(&self, exchange: &RequestRecord, now: Millis) -> (Option<Key>, Evaluation) {
        let zone = &self.zone;
        let found = zone.find(exchange);
        let keys = zone.marked_keys(exchange);
        // That of the bucket, where it is one apart.
        let Some(key) = keys.last().copied() else {
            let unlimited = zone.override_name(exchange).is_some();
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
        let KeyLookup::Key(keyed) = found else {
            return (Some(key), Evaluation::pass("unlimited by `overrides`"));
        };
        if self.is_ambiguous(exchange) {
            return (Some(key), keyless(&AMBIGUOUS, false));
        }
        let punishes = self.sanction.penalty.is_some();
        let penalties = zone.penalties.as_ref().filter(|_| punishes);
        if let Some(left) = penalties.and_then(|it| it.left(&key, now)) {
            return (
                Some(key),
                Evaluation::refuse(&RefusalReason::Penalty(left), Some(left)),
            );
        }
        let cost = self.cost(exchange);
        let outcome = self.waits(&keyed, now, cost).unwrap_or_else(|| {
            self.with_terms(&keyed, |terms| zone.store.ask(&key, now, cost, terms))
        });
        let own = zone.own(&keyed).and_then(|own| own.burst);
        let burst = own.unwrap_or(self.burst);
        let over = |excess| {
            let (excess, burst) = (notes::requests(excess), notes::requests(burst));
            format!("excess {excess:.3} of a burst of {burst}")
        };
        let word = match outcome {
            Verdict::Delay { excess, wait } => Evaluation {
                said: RuleVerdict::Delay(wait),
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

    fn standing(&self, key: &Key, exchange: &RequestRecord, now: Millis) -> KeyStatus {
        let standing = |terms: &_| {
            let known = self.zone.store.standing(key, now, terms);
            known.unwrap_or_else(|| untouched(terms.quota()))
        };
        match self.zone.find(exchange) {
            KeyLookup::Key(keyed) => self.with_terms(&keyed, standing),
            KeyLookup::Nothing | KeyLookup::Refuse(_) => standing(&self.terms),
        }
    }
}

impl ConnRule {
    /// The key of a request, and what is said of it.
    fn word(&self, exchange: &RequestRecord, now: Millis) -> (Option<Key>, Evaluation) {
        let zone = &self.zone;
        let Some(key) = marked::key(&zone.source, exchange) else {
            return (None, keyless(&zone.find(exchange), false));
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
                said: RuleVerdict::Delay(Duration::ZERO),
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

fn spelled(source: &KeySource, key: &Key, exchange: &RequestRecord) -> String {
    source.spell(key, Some(&notes::bytes(source, exchange)))
}
