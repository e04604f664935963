//! Deciding here about what is counted elsewhere.
//!
//! A gateway takes leases from the shared count in the background and spends them with nobody waiting; it remembers until
//! when a key is over its limit, and it stops asking about a key of which far more is wanted than can pass. All of
//! that is one account for each key, in bounded memory and shared by the loops of the process. Where there is no room
//! for an account the store is asked, so a flood of keys makes a gateway ask more and never let more pass.
//!
//! Where gateways' wants are collected, and what became of them.
//!
//! Letting a key begin anew: what this gateway holds for it, and what it was told of it, is gone.

mod account;
mod keeper;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;
use parking_lot::Mutex;
use tokio::sync::Notify;

use self::account::{LeaseAccount, LeaseGrant, LeaseRequest};
use super::{SharedStore, script};
use crate::algorithm::{Cost, Excess, LimitSpec, Verdict};
use crate::clock::Millis;
use crate::config::plan::StoreMode;
use crate::store::key::{Key, PackedKey};
use crate::store::penalties::Penalties;
use crate::store::rate_zone::StoreVerdict;
use crate::store::table::{ShardLayout, ShardLock};

/// The keys of one zone, as this gateway knows them.
#[derive(Debug)]
pub struct ZoneLeases {
    zone: Box<str>,
    store: Arc<SharedStore>,
    verdicts: Verdicts,
    /// Where those are who stay out, if a rule of the zone punishes.
    penalties: Mutex<Option<Arc<Penalties>>>,
    division: ShardLayout,
    tables: Box<[ShardLock<HashTable<Box<LeaseEntry>>>]>,
}

/// Whether a refusal is remembered until the moment it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdicts {
    /// No: what a refused request took elsewhere may be given back before.
    Forget,
    /// Yes: nobody can pass before.
    Keep,
}

/// What this gateway says of a request by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseVerdict {
    /// Nothing: the store has to be asked.
    Ask,
    /// It is refused.
    Refuse(Verdict),
    /// It passes, at once or after a wait.
    Spent(Verdict),
}

/// How a key's requests are decided about.
#[derive(Debug, Clone, Copy)]
struct LeaseMode {
    mode: StoreMode,
    gateways: u32,
    local_above: Option<u32>,
}

#[derive(Debug)]
struct LeaseEntry {
    key: PackedKey,
    hash: u64,
    /// The key apart from the numbers that it is held to.
    plain: PackedKey,
    /// What it is called in Redis, once that was needed.
    name: Option<Arc<[u8]>>,
    account: LeaseAccount,
}

impl ZoneLeases {
    /// Accounts for the keys of a zone in a store, in at most `size` bytes.
    #[must_use]
    pub fn new(zone: &str, size: usize, store: &Arc<SharedStore>, verdicts: Verdicts) -> Arc<Self> {
        let division = ShardLayout::of(size, bytes(zone));
        let leases = Arc::new(Self {
            zone: zone.into(),
            store: Arc::clone(store),
            verdicts,
            penalties: Mutex::default(),
            division,
            tables: (0..division.tables)
                .map(|_| ShardLock::new(HashTable::new()))
                .collect(),
        });
        store.desk.enter(&leases);
        leases
    }

    /// Those who stay out are kept here from now on.
    pub fn punish_in(&self, penalties: Option<&Arc<Penalties>>) {
        *self.penalties.lock() = penalties.cloned();
    }

    /// Whether these are what [`ZoneLeases::new`] would make for the same zone.
    #[must_use]
    pub fn fits(&self, size: usize, store: &Arc<SharedStore>, verdicts: Verdicts) -> bool {
        let division = ShardLayout::of(size, bytes(&self.zone));
        Arc::ptr_eq(&self.store, store) && (self.division, self.verdicts) == (division, verdicts)
    }

    /// Whether keys that are counted like this can be leased.
    #[must_use]
    pub fn can_hold(spec: &LimitSpec) -> bool {
        spec.info().leasable
    }

    /// A refusal that was heard before and still holds.
    #[must_use]
    pub fn refusal(&self, key: &Key, now: Millis, cost: Cost, spec: &LimitSpec) -> Option<Verdict> {
        let key = key.with_class(spec.class());
        let table = self.table(&key).lock();
        let entry = table.find(key.hash, |entry| entry.key == key.packed)?;
        let account = &entry.account;
        (account.spec == *spec).then(|| account.refusal(now, cost))?
    }

    /// Decides about a request where that can be done here, and says how many more would pass if that was heard just now;
    /// `bytes` is what the key was made from.
    pub fn spend(
        self: &Arc<Self>,
        key: &Key,
        bytes: &[u8],
        now: Millis,
        cost: Cost,
        spec: &LimitSpec,
    ) -> (LeaseVerdict, Option<u64>) {
        let plain = key.packed;
        let key = key.with_class(spec.class());
        let manner = self.manner();
        let mut table = self.table(&key).lock();
        let Some(entry) = self.entry(&mut table, (&key, plain), now, spec) else {
            return (LeaseVerdict::Ask, None);
        };
        let (word, wanting) = entry.account.spend(now, cost, manner);
        let news = entry.account.news(now);
        if wanting && entry.name.is_none() {
            let mut full = Vec::with_capacity(64);
            script::append(&mut full, &self.store.prefix, &self.zone, bytes);
            entry.name = Some(full.into());
        }
        drop(table);
        if wanting {
            self.store.desk.want(Arc::clone(self), key);
        }
        if word != LeaseVerdict::Ask {
            self.store.desk.decided.fetch_add(1, Ordering::Relaxed);
        }
        (word, news)
    }

    /// Takes back what was spent on a request, which somebody else refused.
    pub fn unspend(&self, key: &Key, now: Millis, cost: Cost, spec: &LimitSpec) {
        let key = key.with_class(spec.class());
        self.with(&key, |entry| entry.account.unspend(now, cost));
    }

    /// Remembers what the store said of a request that came `now`.
    pub fn learn(
        &self,
        key: &Key,
        now: Millis,
        cost: Cost,
        spec: &LimitSpec,
        answer: &StoreVerdict,
    ) {
        if self.verdicts == Verdicts::Keep && matches!(answer.outcome, Verdict::Refuse { .. }) {
            let key = key.with_class(spec.class());
            self.with(&key, |entry| {
                if entry.account.spec == *spec {
                    entry.account.learn(now, cost, &answer.outcome);
                }
            });
        }
    }

    fn manner(&self) -> LeaseMode {
        LeaseMode {
            mode: self.store.mode,
            gateways: self.store.fleet_size().max(1),
            local_above: self.store.local_above,
        }
    }

    /// What is to be asked about a key; `None` where it is not known any more.
    fn prepare(self: &Arc<Self>, key: Key, now: Millis) -> Option<LeaseTask> {
        let manner = self.manner();
        let (name, spec, ask) = self.with(&key, |entry| {
            let name = entry.name.clone()?;
            Some((name, entry.account.spec, entry.account.prepare(now, manner)))
        })??;
        Some(LeaseTask {
            name,
            spec,
            ask,
            punishable: self.penalties.lock().is_some(),
            whose: Some((Arc::clone(self), key)),
        })
    }

    fn settle(&self, key: &Key, sent: Millis, now: Millis, grant: &LeaseGrant) {
        let manner = self.manner();
        let plain = self.with(key, |entry| {
            entry.account.settle(sent, now, grant, manner);
            entry.plain
        });
        if let (Some(plain), Some(left)) = (plain, grant.penalty)
            && let Some(penalties) = &*self.penalties.lock()
        {
            penalties.punish(&Key::from(plain), now, left);
        }
    }

    fn fail(&self, key: &Key, ask: &LeaseRequest) {
        self.with(key, |entry| entry.account.fail(ask));
    }

    fn lose_leases(&self) {
        for table in &self.tables {
            for entry in table.lock().iter_mut() {
                entry.account.lose_lease();
            }
        }
    }

    /// Forgets who has not come for long, takes out what lies unused, and counts the rest.
    fn sweep(
        self: &Arc<Self>,
        now: Millis,
        all: bool,
        tasks: &mut Vec<LeaseTask>,
    ) -> LeaseHoldings {
        let mut held = LeaseHoldings::new(&self.zone);
        for table in &self.tables {
            let mut wake = Vec::new();
            table.lock().retain(|entry| {
                let account = &mut entry.account;
                if let (Some(ask), Some(name)) = (account.idle(now, all), &entry.name) {
                    tasks.push(LeaseTask {
                        name: Arc::clone(name),
                        spec: account.spec,
                        ask,
                        punishable: false,
                        whose: None,
                    });
                }
                held.keys += u64::from(account.left() > 0);
                held.units.0 = held.units.0.saturating_add(account.left());
                held.crowded += u64::from(account.is_crowded());
                if account.wakes() {
                    wake.push(Key::new(entry.key, entry.hash));
                }
                !account.is_over(now)
            });
            for key in wake {
                self.store.desk.want(Arc::clone(self), key);
            }
        }
        held
    }

    /// A key's account, opened where there is none; `None` where there is no room, or where a rule with other numbers
    /// has it.
    fn entry<'t>(
        &self,
        table: &'t mut HashTable<Box<LeaseEntry>>,
        (key, plain): (&Key, PackedKey),
        now: Millis,
        spec: &LimitSpec,
    ) -> Option<&'t mut LeaseEntry> {
        let full = table.len() >= self.division.keys;
        match table.entry(
            key.hash,
            |entry| entry.key == key.packed,
            |entry| entry.hash,
        ) {
            Slot::Occupied(found) => {
                let entry = found.into_mut();
                (entry.account.spec == *spec).then_some(entry)
            }
            Slot::Vacant(_) if full => None,
            Slot::Vacant(free) => {
                let entry = LeaseEntry {
                    key: key.packed,
                    hash: key.hash,
                    plain,
                    name: None,
                    account: LeaseAccount::new(*spec, now),
                };
                Some(free.insert(Box::new(entry)).into_mut())
            }
        }
    }

    fn with<T>(&self, key: &Key, act: impl FnOnce(&mut LeaseEntry) -> T) -> Option<T> {
        let mut table = self.table(key).lock();
        let entry = table.find_mut(key.hash, |entry| entry.key == key.packed)?;
        Some(act(entry))
    }

    fn table(&self, key: &Key) -> &ShardLock<HashTable<Box<LeaseEntry>>> {
        &self.tables[self.division.table(key)]
    }
}

impl LeaseMode {
    /// Whether there is something for each gateway to take: less than one request is no lease.
    fn leases(self, spec: &LimitSpec) -> bool {
        spec.quota() >= self.gateways.into()
    }

    /// The most that one gateway has in hand of a key.
    fn most(self, spec: &LimitSpec) -> u64 {
        let part = spec.quota() / u64::from(self.gateways.max(1));
        part.max(1).saturating_mul(Excess::ONE.0)
    }

    /// How long a gateway waits that was told that there is nothing, before it asks again: long enough for something to come
    /// together, and not so long that what comes together is lost.
    fn pace(self, spec: &LimitSpec) -> Duration {
        (spec.period() / 4).min(PACE)
    }
}

/// What an account takes all in.
fn bytes(zone: &str) -> usize {
    size_of::<LeaseEntry>() + BESIDES + zone.len()
}

/// A request of more than this is not let in before it is charged.
const CREDIT: Cost = Cost::ONE;

/// For how long a lease is good, and how much of what is asked for it should last.
const TERM: Duration = Duration::from_secs(1);

/// After which time a key that is not asked for gives back what it has.
const IDLE: Duration = Duration::from_millis(500);

/// The longest pause between two questions about a key that is over its limit.
const PACE: Duration = Duration::from_millis(100);

/// What an account takes besides itself, in bytes: its place in the table, its name and what the allocator keeps.
const BESIDES: usize = 176;

/// The leases of one store, whatever their zones.
#[derive(Debug, Default)]
pub(super) struct LeaseQueue {
    zones: Mutex<Vec<Weak<ZoneLeases>>>,
    wants: Mutex<Vec<(Arc<ZoneLeases>, Key)>>,
    woken: Notify,
    held: Mutex<Vec<LeaseHoldings>>,
    /// Decisions that nobody was asked for.
    pub(super) decided: AtomicU64,
    /// Questions that no request waited for.
    pub(super) asked: AtomicU64,
    /// Requests that were leased, and those of them that were given back.
    pub(super) leased: AtomicU64,
    pub(super) returned: AtomicU64,
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
struct LeaseTask {
    name: Arc<[u8]>,
    spec: LimitSpec,
    ask: LeaseRequest,
    /// Whether the key may be serving a penalty.
    punishable: bool,
    /// Who waits for the answer.
    whose: Option<(Arc<ZoneLeases>, Key)>,
}

impl LeaseQueue {
    fn enter(&self, leases: &Arc<ZoneLeases>) {
        self.zones.lock().push(Arc::downgrade(leases));
    }

    /// A key wants more.
    fn want(&self, leases: Arc<ZoneLeases>, key: Key) {
        self.wants.lock().push((leases, key));
        self.woken.notify_one();
    }

    /// All that is wanted now.
    fn wanted(&self, now: Millis) -> Vec<LeaseTask> {
        let wants = std::mem::take(&mut *self.wants.lock());
        wants
            .into_iter()
            .filter_map(|(leases, key)| leases.prepare(key, now))
            .collect()
    }

    /// Looks through all accounts; what nobody needs is added to `tasks`.
    fn sweep(&self, now: Millis, all: bool, tasks: &mut Vec<LeaseTask>) {
        let mut zones = self.zones.lock();
        zones.retain(|zone| zone.strong_count() > 0);
        let held = zones
            .iter()
            .filter_map(Weak::upgrade)
            .map(|leases| leases.sweep(now, all, tasks));
        *self.held.lock() = held.collect();
    }

    /// Drops all leases, which the store has lost; what it said of the keys before is kept.
    pub(super) fn lose_leases(&self) {
        for leases in self.zones.lock().iter().filter_map(Weak::upgrade) {
            leases.lose_leases();
        }
    }

    /// What this gateway had in hand when that was last looked at.
    pub(super) fn held(&self) -> Vec<LeaseHoldings> {
        self.held.lock().clone()
    }

    fn note(&self, task: &LeaseTask, granted: u64) {
        self.leased.fetch_add(granted, Ordering::Relaxed);
        let returned = task.ask.back / Excess::ONE.0;
        self.returned.fetch_add(returned, Ordering::Relaxed);
    }
}

impl LeaseHoldings {
    fn new(zone: &str) -> Self {
        Self {
            zone: zone.into(),
            ..Self::default()
        }
    }

    /// As gateways tell each other.
    pub(super) fn write(all: &[Self]) -> String {
        all.iter()
            .filter(|held| held.keys + held.crowded > 0)
            .map(|held| {
                let (zone, milli) = (held.zone.replace('\n', " "), held.units.milli());
                format!("{} {milli} {} {zone}\n", held.keys, held.crowded)
            })
            .collect()
    }

    /// As they hear it; what makes no sense is left out.
    pub(super) fn read(text: &str) -> Vec<Self> {
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

impl ZoneLeases {
    /// Forgets a key by whichever numbers it is held to.
    pub fn forget_key(&self, key: &Key) {
        // Every rule's numbers have an account of their own, in a place of its own: nobody asks for this often.
        for table in &self.tables {
            table.lock().retain(|entry| {
                let own = key.with_class(entry.account.spec.class());
                own.packed != entry.key
            });
        }
    }
}
