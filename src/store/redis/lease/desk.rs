//! Where gateways' wants are collected, and what became of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ZoneLeases;
use super::grant::LeaseRequest;
use crate::clock::Millis;
use crate::config::plan::{Cost, Excess};
use crate::store::algorithm::LimitSpec;
use crate::store::key::Key;

/// The leases of one store, whatever their zones.
#[derive(Debug, Default)]
pub(in crate::store::redis) struct LeaseQueue {
    zones: Mutex<Vec<Weak<ZoneLeases>>>,
    wants: Mutex<Vec<(Arc<ZoneLeases>, Key)>>,
    pub(super) woken: Notify,
    held: Mutex<Vec<LeaseHoldings>>,
    /// Decisions that nobody was asked for.
    pub(in crate::store::redis) decided: AtomicU64,
    /// Questions that no request waited for.
    pub(in crate::store::redis) asked: AtomicU64,
    /// Requests that were leased, and those of them that were given back.
    pub(in crate::store::redis) leased: AtomicU64,
    pub(in crate::store::redis) returned: AtomicU64,
}

/// What a gateway has in hand of one zone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseHoldings {
    /// Which zone.
    pub zone: Box<str>,
    /// For how many keys it has something.
    pub keys: u64,
    /// How much that is together.
    pub units: Excess,
    /// Of how many keys so much is wanted that they are decided about here.
    pub crowded: u64,
}

/// One key, and what is asked about it.
#[derive(Debug)]
pub(super) struct LeaseTask {
    pub(super) name: Arc<[u8]>,
    pub(super) terms: LimitSpec,
    pub(super) ask: LeaseRequest,
    /// Whether the key may be serving a penalty.
    pub(super) punishable: bool,
    /// Who waits for the answer.
    pub(super) whose: Option<(Arc<ZoneLeases>, Key)>,
}

impl LeaseQueue {
    pub(super) fn enter(&self, leases: &Arc<ZoneLeases>) {
        self.zones.lock().push(Arc::downgrade(leases));
    }

    /// A key wants more.
    pub(super) fn want(&self, leases: Arc<ZoneLeases>, key: Key) {
        self.wants.lock().push((leases, key));
        self.woken.notify_one();
    }

    /// All that is wanted now.
    pub(super) fn wanted(&self, now: Millis) -> Vec<LeaseTask> {
        let wants = std::mem::take(&mut *self.wants.lock());
        wants
            .into_iter()
            .filter_map(|(leases, key)| leases.prepare(key, now))
            .collect()
    }

    /// Looks through all accounts; what nobody needs is added to `tasks`.
    pub(super) fn sweep(&self, now: Millis, all: bool, tasks: &mut Vec<LeaseTask>) {
        let mut zones = self.zones.lock();
        zones.retain(|zone| zone.strong_count() > 0);
        let held = zones
            .iter()
            .filter_map(Weak::upgrade)
            .map(|leases| leases.sweep(now, all, tasks));
        *self.held.lock() = held.collect();
    }

    /// Forgets all that was heard.
    pub(in crate::store::redis) fn forget(&self) {
        for leases in self.zones.lock().iter().filter_map(Weak::upgrade) {
            leases.forget();
        }
    }

    /// What this gateway had in hand when that was last looked at.
    pub(in crate::store::redis) fn held(&self) -> Vec<LeaseHoldings> {
        self.held.lock().clone()
    }

    pub(super) fn note(&self, task: &LeaseTask, granted: u64) {
        self.leased.fetch_add(granted, Ordering::Relaxed);
        let returned = task.ask.back / Excess::ONE.0;
        self.returned.fetch_add(returned, Ordering::Relaxed);
    }
}

impl LeaseHoldings {
    pub(super) fn new(zone: &str) -> Self {
        Self {
            zone: zone.into(),
            ..Self::default()
        }
    }

    /// As gateways tell each other.
    pub(in crate::store::redis) fn write(all: &[Self]) -> String {
        all.iter()
            .filter(|held| held.keys + held.crowded > 0)
            .map(|held| {
                let (zone, milli) = (held.zone.replace('\n', " "), held.units.milli());
                format!("{} {milli} {} {zone}\n", held.keys, held.crowded)
            })
            .collect()
    }

    /// As they hear it; what makes no sense is left out.
    pub(in crate::store::redis) fn read(text: &str) -> Vec<Self> {
        let line = |line: &str| {
            let mut words = line.splitn(4, ' ');
            let mut number = || words.next()?.parse().ok();
            Some(Self {
                keys: number()?,
                units: Excess(Cost::milli(number()?).0),
                crowded: number()?,
                zone: words.next()?.into(),
            })
        };
        text.lines().filter_map(line).collect()
    }
}
