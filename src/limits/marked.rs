//! Keys that operators have marked: blocked ones are refused before any limit is asked.
//!
//! All of this is asked for only where keys are marked at all.

use std::sync::Arc;
use std::time::Duration;

use super::Limits;
use super::fields::ZoneName;
use super::key::{KeyLookup, KeySource};
use super::notes::{self, RefusalDetails, RefusalReason};
use super::verdict::{LimitKind, Refusal};
use super::watch::KeyAdmin;
use crate::clock::Millis;
use crate::config::plan::{DryRun, RefusalAction};
use crate::message::{LimitStatus, RequestRecord};
use crate::store::Key;
use crate::telemetry::REFUSALS;

/// A key that is blocked.
struct BlockedKey {
    key: Key,
    left: Duration,
    reason: Option<Box<str>>,
}

impl Limits {
    /// The refusal of a request that has a blocked key in a zone of this location.
    #[cold]
    pub(super) fn barred(&self, exchange: &mut RequestRecord, now: Millis) -> Option<Refusal> {
        for rule in self.requests.iter() {
            let zone = &rule.zone;
            let keys = || zone.marked_keys(exchange);
            let Some(barred) = zone.watch.barred(keys, now) else {
                continue;
            };
            zone.store.count_refusal(&barred.key);
            let status = rule.sanction.status.unwrap_or(self.requests_status);
            let (dry_run, left) = (self.requests_voice.dry_run, barred.left);
            let voice = self.requests_voice;
            voice.blocked(exchange, now, left, (LimitKind::Requests, &zone.name.plain));
            let kind = LimitKind::Requests;
            barred.record(
                kind,
                (&zone.name, &zone.source),
                status,
                dry_run,
                exchange,
                now,
            );
            if dry_run == DryRun::Off {
                exchange.limit_req = Some(LimitStatus::Refuse);
                let quota = rule.terms.quota();
                return Some(self.blocked(kind, status, &rule.sanction, left, (&zone.name, quota)));
            }
        }
        for rule in &self.connections {
            let zone = &rule.zone;
            let keys = || key(&zone.source, exchange);
            let Some(barred) = zone.watch.barred(keys, now) else {
                continue;
            };
            zone.store.count_refusal(&barred.key);
            let status = rule.sanction.status.unwrap_or(self.connections_status);
            let (dry_run, left) = (self.connections_voice.dry_run, barred.left);
            let (voice, kind) = (self.connections_voice, LimitKind::Connections);
            voice.blocked(exchange, now, left, (kind, &zone.name.plain));
            barred.record(
                kind,
                (&zone.name, &zone.source),
                status,
                dry_run,
                exchange,
                now,
            );
            if dry_run == DryRun::Off {
                exchange.limit_conn = Some(LimitStatus::Refuse);
                let quota = u64::from(rule.limit);
                return Some(self.blocked(kind, status, &rule.sanction, left, (&zone.name, quota)));
            }
        }
        None
    }

    fn blocked(
        &self,
        kind: LimitKind,
        status: http::StatusCode,
        sanction: &RefusalAction,
        left: Duration,
        (name, quota): (&Arc<ZoneName>, u64),
    ) -> Refusal {
        Refusal {
            kind,
            status,
            body: sanction.body.clone(),
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
    pub(super) fn spend_grants(&self, exchange: &RequestRecord, now: Millis) {
        for rule in self.requests.iter() {
            for key in rule.zone.marked_keys(exchange) {
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
        status: http::StatusCode,
        dry_run: DryRun,
        exchange: &RequestRecord,
        now: Millis,
    ) {
        let case = RefusalDetails {
            kind,
            zone: &name.plain,
            source,
            name: notes::bytes(source, exchange),
            key: Some(self.key),
            why: RefusalReason::Block(self.reason),
            status,
            retry_after: Some(self.left),
            dry_run,
        };
        if REFUSALS.wants(now) {
            case.record(exchange);
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
pub(super) fn key(source: &KeySource, exchange: &RequestRecord) -> Option<Key> {
    match source.find(exchange, |bytes| KeyLookup::Key(Key::from_bytes(bytes))) {
        KeyLookup::Key(key) => Some(key),
        KeyLookup::Nothing | KeyLookup::Refuse(_) => None,
    }
}
