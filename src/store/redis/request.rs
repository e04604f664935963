//! The query of one request to a store.
//!
//! A request whose reply misses the deadline is decided by this gateway, and the reply is still waited for: the store may have
//! charged what was refused here, which is then returned, or refused what passed here, which is then charged. What is known only
//! after the response is sent without a request that waits.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use redis::cluster_routing::Slot;
use redis::{RedisError, Value};
use tokio::task::JoinSet;

use super::connection::{self, RedisConnection};
use super::handle::{StoreHandle, StoreMiss};
use super::script::{self, DECIDE, KeyCheck, UNEXPECTED_REPLY};
use crate::algorithm::{Cost, LimitSpec, Verdict};
use crate::clock::Millis;
use crate::store::rate_zone::StoreVerdict;

/// The questions of one request to one store.
#[derive(Debug, Default)]
pub struct StoreRequest {
    pub(super) checks: Vec<KeyCheck>,
    /// The time in which the slowest of its keys drains.
    period: Duration,
    /// Whether the store is known to have lost its memory.
    lost: bool,
}

/// A request that this gateway has to decide by itself.
#[derive(Debug)]
pub struct LocalDecision {
    /// The store's reply, if it may still come.
    pub(super) reply: Option<PendingReply>,
}

/// A reply that did not come in time.
pub(super) struct PendingReply {
    // A request is shared between threads while it waits, and a reply on its way is not.
    reply: Mutex<ReplyFuture>,
    request: Arc<StoreRequest>,
}

/// A reply on its way. It gives the connection back.
type ReplyFuture = Pin<Box<dyn Future<Output = (RedisConnection, KeyVerdicts)> + Send>>;

type KeyVerdicts = Result<Vec<Option<StoreVerdict>>, RedisError>;

/// What remains to be done when a late reply comes.
pub(super) type LateReply = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Charges and penalties that are sent when a request is over.
#[derive(Debug, Default)]
pub(super) struct DeferredCharges {
    charges: Mutex<Vec<StoreRequest>>,
    /// Keys that serve a penalty, each until a moment.
    penalties: Mutex<Vec<(StoreRequest, Millis)>>,
}

impl StoreRequest {
    /// Adds one about a key of a zone.
    pub fn add(
        &mut self,
        store: &StoreHandle,
        zone: &str,
        key: &[u8],
        spec: &LimitSpec,
        cost: Cost,
        refused: bool,
    ) {
        let mut name = Vec::with_capacity(64);
        script::append(&mut name, &store.prefix, zone, key);
        let cost = store.weigh(cost, spec);
        self.checks.push(KeyCheck::new(name, spec, cost, refused));
        self.period = self.period.max(spec.period());
    }

    /// What was added last may wait so long until it would pass, where it is over the burst.
    pub fn may_wait(&mut self, longest: Option<Duration>) {
        if let Some(check) = self.checks.last_mut() {
            check.patience = longest;
        }
    }

    /// What was added last may be serving a penalty that another gateway gave.
    pub fn may_be_punished(&mut self, punishable: bool) {
        if let Some(check) = self.checks.last_mut() {
            check.punishable = punishable;
        }
    }

    /// What was added last has no more than this left, as far as this gateway knows.
    pub fn has_left(&mut self, left: Option<u64>) {
        if let Some(check) = self.checks.last_mut() {
            check.left = left;
        }
    }

    /// Queries all its keys, and charges all unless one is refused. The verdicts are in its order; where a cluster spreads the
    /// keys, some are missing after a refusal.
    ///
    /// # Errors
    /// When no reply comes in time, or none can: the caller decides, and passes the error to [`super::SharedStore::settle`].
    pub async fn send(
        mut self,
        store: &StoreHandle,
        now: Millis,
    ) -> Result<Vec<Option<StoreVerdict>>, LocalDecision> {
        let Ok(mut connection) = store.connection() else {
            return Err(LocalDecision { reply: None });
        };
        self.lost = store.fleet.has_lost(now, self.period);
        let request = Arc::new(self);
        store.asked.fetch_add(1, Ordering::Relaxed);
        let sent = Arc::clone(&request);
        let mut reply: ReplyFuture = Box::pin(async move {
            let verdicts = verdicts(&mut connection, &sent).await;
            (connection, verdicts)
        });
        match store.in_time(async { (&mut reply).await.1 }, now).await {
            Ok(verdicts) => Ok(verdicts),
            Err(StoreMiss::Failed) => Err(LocalDecision { reply: None }),
            Err(StoreMiss::Late) => {
                let reply = Mutex::new(reply);
                let reply = Some(PendingReply { reply, request });
                Err(LocalDecision { reply })
            }
        }
    }

    /// Returns what was charged, for a request that another rule refused.
    pub async fn refund(&self, store: &StoreHandle, now: Millis) {
        let Ok(mut connection) = store.connection() else {
            return;
        };
        let refund = tell(&mut connection, REFUND, &self.checks);
        if let Ok(Err(error)) = tokio::time::timeout(store.timeout, refund).await {
            store.failed(&error, now);
        }
    }
}

impl PendingReply {
    /// Waits for the reply to a request that was decided without it; whether what passed is still to be charged.
    pub(super) async fn settle(self, refused: bool) -> bool {
        let Ok((mut connection, Ok(verdicts))) =
            tokio::time::timeout(LATE_TIMEOUT, self.reply.into_inner()).await
        else {
            return true;
        };
        let is_refused = verdicts.iter().flatten().any(is_refusal);
        if refused && !is_refused {
            // Should this get lost, the key has less than it could.
            let refund = tell(&mut connection, REFUND, &self.request.checks);
            if let Ok(Err(error)) = tokio::time::timeout(LATE_TIMEOUT, refund).await {
                tracing::debug!(%error, "could not give back");
            }
        }
        is_refused
    }
}

impl DeferredCharges {
    /// Charges a request whatever is left.
    pub(super) fn charge(&self, store: &StoreHandle, request: StoreRequest) {
        let mut charges = self.charges.lock();
        if charges.len() < MOST_DEFERRED {
            charges.push(request);
        } else {
            store.missed.fetch_add(1, Ordering::Relaxed);
        }
        drop(charges);
        connection::wake(store.id);
    }

    /// Keeps the keys of a request out until a moment.
    pub(super) fn punish(&self, store: &StoreHandle, request: StoreRequest, until: Millis) {
        let mut penalties = self.penalties.lock();
        if penalties.len() < MOST_DEFERRED {
            penalties.push((request, until));
        }
        drop(penalties);
        connection::wake(store.id);
    }

    /// Sends all of them. Without a connection they are kept until there is one again.
    pub(super) fn send(&self, store: &Arc<StoreHandle>, now: Millis, tasks: &mut JoinSet<()>) {
        let Ok(connection) = store.connection() else {
            return;
        };
        let send = |act: &'static str, request: StoreRequest| {
            let (mut connection, store) = (connection.clone(), Arc::clone(store));
            async move {
                let sending = tell(&mut connection, act, &request.checks);
                if let Ok(Err(error)) = tokio::time::timeout(REPLY_TIMEOUT, sending).await {
                    store.failed(&error, now);
                }
            }
        };
        for (mut request, until) in std::mem::take(&mut *self.penalties.lock()) {
            if until > now {
                request.may_wait(Some(until.since(now)));
                tasks.spawn(send(PUNISH, request));
            }
        }
        for request in std::mem::take(&mut *self.charges.lock()) {
            tasks.spawn(send(DEBIT, request));
        }
    }

    /// Sends the charges that are left, for a gateway that stops.
    pub(super) async fn send_last(&self, connection: &mut RedisConnection) {
        let charges = std::mem::take(&mut *self.charges.lock());
        for request in charges {
            if tell(connection, DEBIT, &request.checks).await.is_err() {
                return;
            }
        }
    }
}

fn is_refusal(verdict: &StoreVerdict) -> bool {
    matches!(verdict.outcome, Verdict::Refuse { .. })
}

/// Queries the servers of the keys: one server all at once, a cluster slot by slot. What was charged is returned when a
/// later slot refuses.
async fn verdicts(connection: &mut RedisConnection, request: &StoreRequest) -> KeyVerdicts {
    let checks = &request.checks;
    let slots = by_slot(connection, checks);
    let mut verdicts = vec![None; checks.len()];
    for (done, slot) in slots.iter().enumerate() {
        let reply = perform(connection, CHARGE, request.lost, slot).await?;
        let replied = script::verdicts(slot.iter().copied(), &reply).ok_or(UNEXPECTED_REPLY)?;
        let refused = replied.iter().any(is_refusal);
        for (check, verdict) in slot.iter().zip(replied) {
            if let Some(index) = checks.iter().position(|other| std::ptr::eq(*check, other)) {
                verdicts[index] = Some(verdict);
            }
        }
        if refused {
            for reserved in &slots[..done] {
                perform(connection, REFUND, false, reserved).await?;
            }
            break;
        }
    }
    Ok(verdicts)
}

/// Runs an act on keys for which no verdict is needed.
pub(super) async fn tell(
    connection: &mut RedisConnection,
    act: &str,
    checks: &[KeyCheck],
) -> Result<(), RedisError> {
    for slot in &by_slot(connection, checks) {
        perform(connection, act, false, slot).await?;
    }
    Ok(())
}

/// One script, run once.
async fn perform(
    connection: &mut RedisConnection,
    act: &str,
    lost: bool,
    checks: &[&KeyCheck],
) -> Result<Value, RedisError> {
    let write = |command: &mut redis::Cmd| {
        command.arg(checks.len());
        for check in checks {
            command.arg(&check.name);
        }
        command.arg(act).arg(u8::from(lost));
        for check in checks {
            check.write(command);
        }
    };
    DECIDE.perform(connection, write).await
}

/// Questions whose keys live together, in the order of the first of each.
fn by_slot<'q>(connection: &RedisConnection, checks: &'q [KeyCheck]) -> Vec<Vec<&'q KeyCheck>> {
    if !connection.is_cluster() {
        return vec![checks.iter().collect()];
    }
    let mut slots: Vec<(Slot, Vec<&KeyCheck>)> = Vec::new();
    for check in checks {
        let slot = Slot::for_key(&check.name);
        match slots.iter_mut().find(|(known, _)| *known == slot) {
            Some((_, together)) => together.push(check),
            None => slots.push((slot, vec![check])),
        }
    }
    slots.into_iter().map(|(_, together)| together).collect()
}

impl std::fmt::Debug for PendingReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingReply").finish_non_exhaustive()
    }
}

/// What a script does with the keys of a request.
const CHARGE: &str = "charge";
pub(super) const DEBIT: &str = "debit";
const PUNISH: &str = "punish";
const REFUND: &str = "refund";

/// For how long a late reply is waited for.
const LATE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a server may take to reply where no request waits.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// More than this is not kept for a slow server.
const MOST_DEFERRED: usize = 10_000;
