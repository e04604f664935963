//! Requests that passed without the store, and are charged there as soon as it can be reached.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use redis::RedisError;

use super::connection::RedisConnection;
use super::handle::StoreHandle;
use super::request::{DEBIT, tell};
use super::script::{self, KeyCheck};
use crate::algorithm::{Cost, Excess, LimitSpec};
use crate::clock::{Clock, Millis};
use crate::store::key::Key;
use crate::store::rate_zone::RateZone;

/// What is to be charged, by the name of its key.
#[derive(Debug, Default)]
pub struct OutageCharges {
    owed: Mutex<HashMap<Vec<u8>, OutageCharge>>,
}

/// What passed of one key.
#[derive(Debug)]
pub struct OutageCharge {
    name: Vec<u8>,
    zone: RateZone,
    key: Key,
    spec: LimitSpec,
    cost: Cost,
}

impl OutageCharge {
    /// A request of this cost that passed; `bytes` is what its key was made from.
    #[must_use]
    pub fn new(
        store: &StoreHandle,
        zone: &RateZone,
        key: &Key,
        bytes: &[u8],
        spec: &LimitSpec,
        cost: Cost,
    ) -> Self {
        let mut full = Vec::with_capacity(64);
        script::append(&mut full, &store.prefix, &zone.name, bytes);
        Self {
            name: full,
            zone: zone.clone(),
            key: *key,
            spec: *spec,
            cost,
        }
    }
}

/// What has to be charged for what passed, when so many gateways may have been without their store; `left` is what this one knows
/// the key to have left.
///
/// No more than the key has not worked off since. And no more than this gateway's part of the quota and of a few seconds:
/// what passed before that has drained, and each gateway that was without the store charges its part.
pub(super) fn due(passed: Cost, spec: &LimitSpec, left: Option<u64>, gateways: u32) -> Cost {
    let quota = spec.quota();
    let drained = u128::from(quota) * GRACE.as_millis();
    let drained = drained / spec.period().as_millis().max(1);
    let drained = u64::try_from(drained).unwrap_or(u64::MAX);
    let part = quota.saturating_add(drained).div_ceil(gateways.into());
    let used = match spec.info().windowed {
        // The windows of a server begin at other moments than those that are counted here.
        true => quota,
        false => left.map_or(0, |left| quota - left.min(quota)),
    };
    passed.min(Cost(part.min(used).saturating_mul(Excess::ONE.0)))
}

impl OutageCharges {
    /// Takes note of what passed, to be charged as soon as the store can be reached.
    pub fn add(&self, charge: OutageCharge) {
        let mut owed = self.owed.lock();
        if let Some(known) = owed.get_mut(&charge.name) {
            known.cost.0 = known.cost.0.saturating_add(charge.cost.0);
        } else if owed.len() < MOST {
            owed.insert(charge.name.clone(), charge);
        }
    }

    pub(super) fn add_all(&self, charges: impl IntoIterator<Item = OutageCharge>) {
        charges.into_iter().for_each(|charge| self.add(charge));
    }

    /// Charges what passed without the store while that can be reached, for as long as it is polled.
    pub(super) async fn send_always(&self, store: &StoreHandle, clock: &Clock) {
        let mut connection: Option<RedisConnection> = None;
        loop {
            tokio::time::sleep(SEND_INTERVAL).await;
            if self.owed.lock().is_empty() || !store.in_reach.load(Ordering::Relaxed) {
                continue;
            }
            let mut sound = match connection.take() {
                Some(connection) => connection,
                None => {
                    match tokio::time::timeout(REPLY_TIMEOUT, store.connector.connect()).await {
                        Ok(Ok(connection)) => connection,
                        Ok(Err(_)) | Err(_) => continue,
                    }
                }
            };
            if self.send_all(store, &mut sound, clock.now()).await.is_ok() {
                connection = Some(sound);
            }
        }
    }

    /// Charges all that passed without the store.
    pub(super) async fn send_all(
        &self,
        store: &StoreHandle,
        connection: &mut RedisConnection,
        now: Millis,
    ) -> Result<(), String> {
        let gateways = store.fleet.size();
        let mut owed = std::mem::take(&mut *self.owed.lock()).into_values();
        loop {
            let together: Vec<_> = owed.by_ref().take(TOGETHER).collect();
            if together.is_empty() {
                return Ok(());
            }
            let checks: Vec<_> = together
                .iter()
                .map(|charge| {
                    let status = charge.zone.key_status(&charge.key, now, &charge.spec);
                    let left = status.map(|status| status.remaining);
                    let due = due(charge.cost, &charge.spec, left, gateways);
                    KeyCheck::new(charge.name.clone(), &charge.spec, due, false)
                })
                .collect();
            store.asked_behind.fetch_add(1, Ordering::Relaxed);
            let sent = tokio::time::timeout(REPLY_TIMEOUT, tell(connection, DEBIT, &checks)).await;
            let why = match sent {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => RedisError::to_string(&error),
                Err(_) => format!("no answer within {REPLY_TIMEOUT:?}"),
            };
            // It may have been executed. What is charged twice is on the safe side.
            self.add_all(together.into_iter().chain(owed));
            return Err(why);
        }
    }
}

/// How often what is owed is charged.
const SEND_INTERVAL: Duration = Duration::from_millis(50);

/// How long a server may take to reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// How many keys are charged at once: so many do not keep a server from others for long.
const TOGETHER: usize = 32;

/// How long it may take until gateways that still reach the store leave a lost one its part. What passed in that time
/// is charged in full.
const GRACE: Duration = Duration::from_secs(1);

/// More keys than this are not remembered, some thirty megabytes. Those that come later are not charged.
const MOST: usize = 100_000;
