//! What passed here without its store, and is charged there as soon as that can be told.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use redis::RedisError;

use super::connection::RedisConnection;
use super::request::tell;
use super::script::KeyCheck;
use super::{SharedStore, script};
use crate::algorithm::{Cost, Excess, LimitSpec};
use crate::clock::{Clock, Millis};
use crate::store::key::Key;
use crate::store::rate_zone::RateZone;

/// What is to be charged, by the name of its key.
#[derive(Debug, Default)]
pub(super) struct OutageCharges {
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
        store: &SharedStore,
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

    fn due(&self, now: Millis, gateways: u32) -> Cost {
        let key_status = self.zone.key_status(&self.key, now, &self.spec);
        let left = key_status.map(|key_status| key_status.remaining);
        due(self.cost, &self.spec, left, gateways)
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
    pub(super) fn is_empty(&self) -> bool {
        self.owed.lock().is_empty()
    }

    fn add(&self, debt: OutageCharge) {
        let mut owed = self.owed.lock();
        if let Some(known) = owed.get_mut(&debt.name) {
            known.cost.0 = known.cost.0.saturating_add(debt.cost.0);
        } else if owed.len() < MOST {
            owed.insert(debt.name.clone(), debt);
        }
    }

    fn take(&self) -> Vec<OutageCharge> {
        let owed = std::mem::take(&mut *self.owed.lock());
        owed.into_values().collect()
    }
}

impl SharedStore {
    /// Charges what passed without the store, as soon as that can be told.
    pub fn owe(&self, debt: OutageCharge) {
        self.debts.add(debt);
    }

    /// Charges what passed without the store while it can be told, for as long as it is polled.
    pub(super) async fn book(&self, clock: &Clock) {
        let mut link: Option<RedisConnection> = None;
        loop {
            tokio::time::sleep(BOOK).await;
            if self.debts.is_empty() || !self.is_in_reach() {
                continue;
            }
            let mut sound = match link.take() {
                Some(link) => link,
                None => match tokio::time::timeout(HEARD, self.connector.connect()).await {
                    Ok(Ok(link)) => link,
                    Ok(Err(_)) | Err(_) => continue,
                },
            };
            if self.book_all(&mut sound, clock.now()).await.is_ok() {
                link = Some(sound);
            }
        }
    }

    /// Charges all that passed without the store.
    pub(super) async fn book_all(
        &self,
        link: &mut RedisConnection,
        now: Millis,
    ) -> Result<(), String> {
        let gateways = self.fleet_size();
        let mut debts = self.debts.take().into_iter();
        loop {
            let together: Vec<_> = debts.by_ref().take(TOGETHER).collect();
            if together.is_empty() {
                return Ok(());
            }
            let questions: Vec<_> = together
                .iter()
                .map(|debt| {
                    let due = debt.due(now, gateways);
                    KeyCheck::new(debt.name.clone(), &debt.spec, due, false)
                })
                .collect();
            self.desk.asked.fetch_add(1, Ordering::Relaxed);
            let told = tokio::time::timeout(HEARD, tell(link, "debit", &questions)).await;
            let why = match told {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => RedisError::to_string(&error),
                Err(_) => format!("no answer within {HEARD:?}"),
            };
            // It may have been heard. What is charged twice is on the safe side.
            for debt in together.into_iter().chain(debts) {
                self.owe(debt);
            }
            return Err(why);
        }
    }
}

/// How often it is looked whether something is owed.
const BOOK: Duration = Duration::from_millis(50);

/// How long a server may take to hear.
const HEARD: Duration = Duration::from_secs(1);

/// How many keys are charged at once: so many do not keep a server from others for long.
const TOGETHER: usize = 32;

/// How long it may take until gateways that still reach the store leave a lost one its part. What passed in that time
/// is charged in full.
const GRACE: Duration = Duration::from_secs(1);

/// More keys than this are not remembered, some thirty megabytes. Those that come later are not charged.
const MOST: usize = 100_000;
