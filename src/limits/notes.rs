//! What is written down of decisions for those who look in: who is busy, and who was refused why.
//!
//! After the decision, apart from it, and only of some where there are many.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use smallvec::SmallVec;

use super::Limits;
use super::key::{KeyFault, KeyLookup, KeySource};
use super::rule::{ConnRule, Decision};
use super::spelling::LONGEST;
use super::verdict::{LimitKind, Permit, Refusal};
use super::watch::{KeyAdmin, any_marks};
use super::zones::ReqZone;
use crate::clock::{Clock, Millis};
use crate::config::plan::{DryRun, Excess};
use crate::message::RequestRecord;
use crate::store::Key;
use crate::store::busiest::{self, VerdictKind};
use crate::telemetry::{REFUSALS, RefusalRecord};

/// A refusal, and all there is to say of it.
#[derive(Debug)]
pub(super) struct RefusalDetails<'a> {
    pub(super) kind: LimitKind,
    pub(super) zone: &'a str,
    pub(super) source: &'a KeySource,
    /// As much of the bytes of the key as is worth keeping.
    pub(super) name: Box<[u8]>,
    pub(super) key: Option<Key>,
    pub(super) why: RefusalReason,
    pub(super) status: StatusCode,
    pub(super) retry_after: Option<Duration>,
    pub(super) dry_run: DryRun,
}

/// Why a request was refused.
#[derive(Debug, Clone)]
pub(super) enum RefusalReason {
    /// An operator said so, perhaps for this reason.
    Block(Option<Box<str>>),
    /// So many places are taken.
    Connections(u64),
    /// It has none, for this reason.
    NoKey(KeyFault),
    /// For so much longer.
    Penalty(Duration),
    /// So much is more than the burst.
    Rate { excess: Excess, burst: Excess },
}

impl Limits {
    /// Notes who asked and what the `limit_req` rules said to them.
    pub(super) fn note(&self, decision: &Decision, exchange: &RequestRecord, now: Millis) {
        let (delays, refused) = match decision {
            Decision::NoKey { .. } | Decision::NotLimited => return,
            Decision::Delay { rule, .. } => (Some(*rule), None),
            Decision::Pass => (None, None),
            Decision::Penalize { rule, keyed, .. } | Decision::Refuse { rule, keyed, .. } => {
                (None, Some((*rule, keyed.key)))
            }
        };
        let weight = busiest::weight(now);
        if weight == 0 {
            return;
        }
        if let Some((rule, key)) = refused {
            let zone = &self.requests[rule].zone;
            let noted = (VerdictKind::Refuse, weight, now);
            return zone.watch.note(&key, noted, || zone.key_name(exchange));
        }
        let mut keys = SmallVec::<[Option<Key>; 4]>::new();
        for (index, rule) in self.requests.iter().enumerate() {
            // An operator's marks belong to one zone, so with marks every zone has to find the key by itself.
            let key = match rule.same_key_as.filter(|_| !any_marks()) {
                Some(same) => keys[same],
                None => match rule.zone.find(exchange) {
                    KeyLookup::Key(keyed) => Some(keyed.key),
                    KeyLookup::Nothing | KeyLookup::Refuse(_) => None,
                },
            };
            keys.push(key);
            let Some(key) = key else { continue };
            let said = match delays == Some(index) {
                true => VerdictKind::Delay,
                false => VerdictKind::Pass,
            };
            let (zone, noted) = (&rule.zone, (said, weight, now));
            zone.watch.note(&key, noted, || zone.key_name(exchange));
        }
    }

    /// What there is to say of a decision to refuse.
    pub(super) fn case(
        &self,
        decision: &Decision,
        exchange: &RequestRecord,
    ) -> Option<RefusalDetails<'_>> {
        let (rule, keyed, retry_after, why) = match decision {
            Decision::Delay { .. } | Decision::NotLimited | Decision::Pass => return None,
            Decision::NoKey { rule, fault } => (*rule, None, None, RefusalReason::NoKey(*fault)),
            Decision::Penalize {
                rule,
                keyed,
                left,
                retry_after,
            } => (
                *rule,
                Some(keyed),
                *retry_after,
                RefusalReason::Penalty(*left),
            ),
            Decision::Refuse {
                rule,
                keyed,
                excess,
                retry_after,
                ..
            } => {
                let (excess, burst) = (*excess, self.requests[*rule].burst);
                (
                    *rule,
                    Some(keyed),
                    *retry_after,
                    RefusalReason::Rate { excess, burst },
                )
            }
        };
        let rule = &self.requests[rule];
        Some(RefusalDetails {
            kind: LimitKind::Requests,
            zone: &rule.zone.name.plain,
            source: &rule.zone.source,
            name: rule.zone.key_name(exchange),
            key: keyed.map(|keyed| keyed.key),
            status: why.status(rule.sanction.status.unwrap_or(self.requests_status)),
            why,
            retry_after,
            dry_run: self.requests_voice.dry_run,
        })
    }

    /// Notes who wanted a place, and whether they got it.
    pub(super) fn note_places(
        &self,
        taken: &Result<Permit, Refusal>,
        exchange: &RequestRecord,
        now: Millis,
    ) {
        let weight = busiest::weight(now);
        for rule in &self.connections {
            let zone = &rule.zone;
            let refusal = taken.as_ref().err();
            let own = refusal.filter(|refusal| Arc::ptr_eq(&refusal.name, &zone.name));
            let key = match zone.find(exchange) {
                KeyLookup::Key(key) => Some(key),
                KeyLookup::Nothing | KeyLookup::Refuse(_) => None,
            };
            let said = match (refusal, own) {
                (None, _) => VerdictKind::Pass,
                (_, Some(_)) => VerdictKind::Refuse,
                // Somebody else's doing.
                (Some(_), None) => continue,
            };
            if let (Some(key), 1..) = (&key, weight) {
                let noted = (said, weight, now);
                let name = || bytes(&zone.source, exchange);
                zone.watch.note(key, noted, name);
            }
            if own.is_some() {
                self.record_crowd(rule, exchange, now);
            }
        }
    }

    /// Writes down that there was no place by this rule.
    pub(super) fn record_crowd(&self, rule: &ConnRule, exchange: &RequestRecord, now: Millis) {
        if !REFUSALS.wants(now) {
            return;
        }
        let zone = &rule.zone;
        let (key, why) = match zone.find(exchange) {
            KeyLookup::Key(key) => (Some(key), RefusalReason::Connections(rule.limit.into())),
            KeyLookup::Nothing => (None, RefusalReason::NoKey(KeyFault::Empty(None))),
            KeyLookup::Refuse(fault) => (None, RefusalReason::NoKey(fault)),
        };
        let case = RefusalDetails {
            kind: LimitKind::Connections,
            zone: &zone.name.plain,
            source: &zone.source,
            name: bytes(&zone.source, exchange),
            key,
            status: why.status(rule.sanction.status.unwrap_or(self.connections_status)),
            why,
            retry_after: None,
            dry_run: self.connections_voice.dry_run,
        };
        case.record(exchange);
    }
}

impl RefusalDetails<'_> {
    /// Writes it down.
    #[cold]
    pub(super) fn record(self, exchange: &RequestRecord) {
        REFUSALS.note(|id| {
            let head = &exchange.head;
            RefusalRecord {
                id,
                time: u64::try_from(Clock::wall().as_millis()).unwrap_or_default(),
                kind: self.kind.as_str(),
                zone: self.zone.into(),
                key: self
                    .key
                    .map(|key| self.source.spell(&key, Some(&self.name)).into()),
                reason: self.why.as_str(),
                detail: self.why.to_string().into(),
                excess: match self.why {
                    RefusalReason::Rate { excess, .. } => Some(requests(excess)),
                    _ => None,
                },
                retry_after: self.retry_after.map(|after| after.as_secs_f64()),
                status: self.status.as_u16(),
                dry_run: self.dry_run == DryRun::On,
                client: exchange.client().text().into(),
                server: exchange.server().name.clone(),
                method: cut(head.method.as_str().as_bytes()),
                host: cut(exchange.target.host(head)),
                path: cut(head.uri.path().as_bytes()),
            }
        });
    }
}

impl RefusalReason {
    /// The status it is answered with, where the limit's own is `status`.
    pub(super) fn status(&self, status: StatusCode) -> StatusCode {
        match self {
            Self::NoKey(KeyFault::Ambiguous) => StatusCode::BAD_REQUEST,
            Self::NoKey(KeyFault::Empty(Some(own))) => *own,
            _ => status,
        }
    }

    fn as_str(&self) -> &'static str {
        match self {
            Self::Block(_) => "block",
            Self::Connections(_) => "connections",
            Self::NoKey(KeyFault::Ambiguous) => "ambiguous_key",
            Self::NoKey(KeyFault::Empty(_)) => "no_key",
            Self::Penalty(_) => "penalty",
            Self::Rate { .. } => "rate",
        }
    }
}

impl std::fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Block(None) => f.write_str("blocked by operator"),
            Self::Block(Some(reason)) => write!(f, "blocked by operator: {reason}"),
            Self::Connections(places) => write!(f, "all {places} places are taken"),
            Self::NoKey(KeyFault::Ambiguous) => {
                f.write_str("a header, cookie or argument of its key is given more than once")
            }
            Self::NoKey(KeyFault::Empty(_)) => {
                f.write_str("it has no key, and the zone does not take such requests")
            }
            Self::Penalty(left) => {
                write!(
                    f,
                    "it was over the limit, and stays out for {:.1}s more",
                    left.as_secs_f64()
                )
            }
            Self::Rate { excess, burst } => {
                let (excess, burst) = (requests(*excess), requests(*burst));
                write!(f, "excess {excess:.3} over a burst of {burst}")
            }
        }
    }
}

impl KeyAdmin {
    fn note(
        &self,
        key: &Key,
        (said, weight, now): (VerdictKind, u64, Millis),
        name: impl FnOnce() -> Box<[u8]>,
    ) {
        self.busiest.note(key, said, weight, now, name);
    }
}

impl ReqZone {
    /// As much of the bytes of a request's bucket as is worth keeping.
    pub(super) fn key_name(&self, exchange: &RequestRecord) -> Box<[u8]> {
        let mut kept = Box::default();
        self.with_key(exchange, |bytes| kept = worth_keeping(bytes));
        kept
    }
}

/// As much of a request's key as is worth keeping.
pub(super) fn bytes(source: &KeySource, exchange: &RequestRecord) -> Box<[u8]> {
    let mut kept = Box::default();
    source.with(exchange, |bytes| kept = worth_keeping(bytes));
    kept
}

fn worth_keeping(bytes: &[u8]) -> Box<[u8]> {
    bytes[..bytes.len().min(LONGEST + 1)].into()
}

/// As much of what a client has written as is worth keeping.
fn cut(bytes: &[u8]) -> Box<str> {
    let text = String::from_utf8_lossy(bytes);
    let (front, _) = text.split_at(text.floor_char_boundary(LONGEST_TEXT));
    front.into()
}

/// In requests, for people.
pub(super) fn requests(excess: Excess) -> f64 {
    excess.0 as f64 / Excess::ONE.0 as f64
}

const LONGEST_TEXT: usize = 256;
