//! Leases: parts of the shared count that this gateway decides about without a query.
//!
//! A gateway takes leases from the shared count in the background and spends them while no request waits for the store. It
//! remembers until when a key is over its limit, and it stops querying a key of which far more is requested than can pass.
//! [`ZoneLeases`] holds one account for each key, in bounded memory and shared by the loops of the process. Where there is
//! no room for an account the store is queried, so a flood of keys makes a gateway query more and never let more pass.
//! [`LeaseQueue`] collects the keys that need a lease and sends one script for many of them.

mod account;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;
use parking_lot::Mutex;
use redis::{Cmd, RedisError, Value};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

pub use self::account::LeaseVerdict;
use self::account::{LeaseAccount, LeaseGrant, LeaseMode, LeaseRequest};
use super::connection::RedisConnection;
use super::fleet::LeaseHoldings;
use super::handle::StoreHandle;
use super::script::{self, LuaScript, UNEXPECTED_REPLY};
use crate::algorithm::{Cost, Excess, LimitSpec, Verdict};
use crate::clock::{Clock, Millis};
use crate::store::key::{Key, PackedKey};
use crate::store::penalties::Penalties;
use crate::store::rate_zone::StoreVerdict;
use crate::store::table::{ShardLayout, ShardLock};

/// The keys of one zone, as this gateway knows them.
#[derive(Debug)]
pub struct ZoneLeases {
    zone: Box<str>,
    queue: Arc<LeaseQueue>,
    verdicts: Verdicts,
    /// The keys that serve a penalty, if a rule of the zone gives penalties.
    penalties: Mutex<Option<Arc<Penalties>>>,
    division: ShardLayout,
    tables: Box<[ShardLock<HashTable<Box<LeaseEntry>>>]>,
}

/// Whether a refusal is remembered until the moment it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdicts {
    /// No: what a refused request took elsewhere may be given back before.
    Forget,
    /// Yes: no request can pass before.
    Keep,
}

#[derive(Debug)]
struct LeaseEntry {
    key: PackedKey,
    hash: u64,
    /// The key apart from the numbers that it is held to.
    plain: PackedKey,
    /// Its name in Redis, once that was needed.
    name: Option<Arc<[u8]>>,
    account: LeaseAccount,
}

impl ZoneLeases {
    /// Accounts for the keys of a zone in a store, in at most `size` bytes.
    #[must_use]
    pub fn new(zone: &str, size: usize, queue: &Arc<LeaseQueue>, verdicts: Verdicts) -> Arc<Self> {
        let division = ShardLayout::of(size, bytes(zone));
        let leases = Arc::new(Self {
            zone: zone.into(),
            queue: Arc::clone(queue),
            verdicts,
            penalties: Mutex::default(),
            division,
            tables: (0..division.tables)
                .map(|_| ShardLock::new(HashTable::new()))
                .collect(),
        });
        queue.zones.lock().push(Arc::downgrade(&leases));
        leases
    }

    /// Keeps penalties that other gateways gave here from now on.
    pub fn punish_in(&self, penalties: Option<&Arc<Penalties>>) {
        *self.penalties.lock() = penalties.cloned();
    }

    /// Whether these are what [`ZoneLeases::new`] would make for the same zone.
    #[must_use]
    pub fn fits(&self, size: usize, queue: &Arc<LeaseQueue>, verdicts: Verdicts) -> bool {
        let division = ShardLayout::of(size, bytes(&self.zone));
        Arc::ptr_eq(&self.queue, queue) && (self.division, self.verdicts) == (division, verdicts)
    }

    /// A refusal that the store gave before and that still holds.
    #[must_use]
    pub fn refusal(&self, key: &Key, now: Millis, cost: Cost, spec: &LimitSpec) -> Option<Verdict> {
        let key = key.with_class(spec.class());
        let table = self.table(&key).lock();
        let entry = table.find(key.hash, |entry| entry.key == key.packed)?;
        let account = &entry.account;
        (account.spec == *spec).then(|| account.refusal(now, cost))?
    }

    /// Decides about a request without a query where that is possible; `bytes` is what the key was made from. Also returns how
    /// many more requests pass, once after each reply of the store.
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
        let lease_mode = self.lease_mode();
        let mut table = self.table(&key).lock();
        let Some(entry) = self.entry(&mut table, (&key, plain), now, spec) else {
            return (LeaseVerdict::Ask, None);
        };
        let (verdict, wanting) = entry.account.spend(now, cost, lease_mode);
        let unreported = entry.account.unreported(now);
        if wanting && entry.name.is_none() {
            let mut full = Vec::with_capacity(64);
            script::append(&mut full, &self.queue.store.prefix, &self.zone, bytes);
            entry.name = Some(full.into());
        }
        drop(table);
        if wanting {
            self.queue.want(Arc::clone(self), key);
        }
        if verdict != LeaseVerdict::Ask {
            self.queue.decided.fetch_add(1, Ordering::Relaxed);
        }
        (verdict, unreported)
    }

    /// Takes back what was spent on a request that another rule refused.
    pub fn unspend(&self, key: &Key, now: Millis, cost: Cost, spec: &LimitSpec) {
        let key = key.with_class(spec.class());
        self.with(&key, |entry| entry.account.unspend(now, cost));
    }

    /// Remembers the verdict of the store on a request that came `now`.
    pub fn learn(
        &self,
        key: &Key,
        now: Millis,
        cost: Cost,
        spec: &LimitSpec,
        reply: &StoreVerdict,
    ) {
        if self.verdicts == Verdicts::Keep && matches!(reply.outcome, Verdict::Refuse { .. }) {
            let key = key.with_class(spec.class());
            self.with(&key, |entry| {
                if entry.account.spec == *spec {
                    entry.account.learn(now, cost, &reply.outcome);
                }
            });
        }
    }

    /// Forgets a key by whichever numbers it is held to.
    pub fn forget_key(&self, key: &Key) {
        // The numbers of each rule have an account of their own, under a hash of its own: the reset of a key is rare.
        for table in &self.tables {
            table.lock().retain(|entry| {
                let own = key.with_class(entry.account.spec.class());
                own.packed != entry.key
            });
        }
    }

    fn lease_mode(&self) -> LeaseMode {
        LeaseMode {
            mode: self.queue.store.mode,
            gateways: self.queue.store.fleet.size(),
            local_above: self.queue.store.local_above,
        }
    }

    /// The task of a key that needs a lease; `None` where its account is gone.
    fn prepare(self: &Arc<Self>, key: Key, now: Millis) -> Option<LeaseTask> {
        let lease_mode = self.lease_mode();
        let punishable = self.penalties.lock().is_some();
        self.with(&key, |entry| {
            Some(LeaseTask {
                name: entry.name.clone()?,
                spec: entry.account.spec,
                request: entry.account.prepare(now, lease_mode),
                punishable,
                account: Some((Arc::clone(self), key)),
            })
        })?
    }

    fn settle(&self, key: &Key, sent: Millis, now: Millis, grant: &LeaseGrant) {
        let lease_mode = self.lease_mode();
        let plain = self.with(key, |entry| {
            entry.account.settle(sent, now, grant, lease_mode);
            entry.plain
        });
        if let (Some(plain), Some(left)) = (plain, grant.penalty)
            && let Some(penalties) = &*self.penalties.lock()
        {
            penalties.punish(&Key::from(plain), now, left);
        }
    }

    /// Removes accounts without requests, adds tasks that give back what lies unused, and counts the rest.
    fn sweep(
        self: &Arc<Self>,
        now: Millis,
        all: bool,
        tasks: &mut Vec<LeaseTask>,
    ) -> LeaseHoldings {
        let mut held = LeaseHoldings {
            zone: self.zone.clone(),
            ..LeaseHoldings::default()
        };
        for table in &self.tables {
            let mut wake = Vec::new();
            table.lock().retain(|entry| {
                let account = &mut entry.account;
                if let (Some(request), Some(name)) = (account.idle(now, all), &entry.name) {
                    tasks.push(LeaseTask {
                        name: Arc::clone(name),
                        spec: account.spec,
                        request,
                        punishable: false,
                        account: None,
                    });
                }
                held.keys += u64::from(account.left > 0);
                held.units.0 = held.units.0.saturating_add(account.left);
                held.crowded += u64::from(account.demand.crowded);
                if account.wakes() {
                    wake.push(Key::new(entry.key, entry.hash));
                }
                !account.is_over(now)
            });
            for key in wake {
                self.queue.want(Arc::clone(self), key);
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

/// What an account takes all in.
fn bytes(zone: &str) -> usize {
    size_of::<LeaseEntry>() + BESIDES + zone.len()
}

/// What an account takes besides itself, in bytes: its place in the table, its name and what the allocator keeps.
const BESIDES: usize = 176;

/// The leases of one store, whatever their zones.
#[derive(Debug)]
pub struct LeaseQueue {
    store: Arc<StoreHandle>,
    zones: Mutex<Vec<Weak<ZoneLeases>>>,
    wants: Mutex<Vec<(Arc<ZoneLeases>, Key)>>,
    woken: Notify,
    /// What this gateway held at the last sweep.
    pub(super) held: Mutex<Vec<LeaseHoldings>>,
    /// Decisions without a query.
    pub(super) decided: AtomicU64,
    /// Requests that were leased, and those of them that were given back.
    pub(super) leased: AtomicU64,
    pub(super) returned: AtomicU64,
}

/// One key, and what is to be done with it in the store.
#[derive(Debug)]
struct LeaseTask {
    name: Arc<[u8]>,
    spec: LimitSpec,
    request: LeaseRequest,
    /// Whether the key may be serving a penalty.
    punishable: bool,
    /// The account that takes over the reply, if one does.
    account: Option<(Arc<ZoneLeases>, Key)>,
}

impl LeaseQueue {
    pub(super) fn new(store: &Arc<StoreHandle>) -> Self {
        Self {
            store: Arc::clone(store),
            zones: Mutex::default(),
            wants: Mutex::default(),
            woken: Notify::new(),
            held: Mutex::default(),
            decided: AtomicU64::new(0),
            leased: AtomicU64::new(0),
            returned: AtomicU64::new(0),
        }
    }

    /// Adds a key that needs a lease.
    fn want(&self, leases: Arc<ZoneLeases>, key: Key) {
        self.wants.lock().push((leases, key));
        self.woken.notify_one();
    }

    /// Sweeps the accounts of all zones; the leases that lie unused are added to `tasks`.
    fn sweep(&self, now: Millis, all: bool, tasks: &mut Vec<LeaseTask>) {
        let mut zones = self.zones.lock();
        zones.retain(|zone| zone.strong_count() > 0);
        let held = zones
            .iter()
            .filter_map(Weak::upgrade)
            .map(|leases| leases.sweep(now, all, tasks));
        *self.held.lock() = held.collect();
    }

    /// Drops all leases, which the store has lost; its earlier verdicts are kept.
    pub(super) fn lose_leases(&self) {
        for leases in self.zones.lock().iter().filter_map(Weak::upgrade) {
            for table in &leases.tables {
                let mut table = table.lock();
                table
                    .iter_mut()
                    .for_each(|entry| entry.account.lose_lease());
            }
        }
    }

    /// Gets leases for the keys that need them, for as long as it is polled.
    pub(in crate::store::redis) async fn run(&self, clock: &Clock) {
        let mut connection: Option<(u64, RedisConnection)> = None;
        let mut sweep = tokio::time::interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut tasks = Vec::new();
            tokio::select! {
                () = self.woken.notified() => {}
                _ = sweep.tick() => self.sweep(clock.now(), false, &mut tasks),
            }
            let (now, wants) = (clock.now(), std::mem::take(&mut *self.wants.lock()));
            let wants = wants.into_iter();
            tasks.extend(wants.filter_map(|(leases, key)| leases.prepare(key, now)));
            if tasks.is_empty() {
                continue;
            }
            let epoch = self.store.epoch();
            let sound = connection.take().filter(|(made, _)| *made == epoch);
            connection = match sound {
                _ if self.store.is_away() => None,
                Some(connection) => Some(connection),
                None => self
                    .reach(clock)
                    .await
                    .map(|connection| (epoch, connection)),
            };
            let done = match &connection {
                Some((_, connection)) => self.perform(connection, tasks, clock).await,
                None => {
                    give_up(&tasks);
                    false
                }
            };
            if !done {
                connection = None;
            }
        }
    }

    /// Gives back all leases.
    pub(in crate::store::redis) async fn return_all(
        &self,
        connection: &RedisConnection,
        clock: &Clock,
    ) {
        let mut tasks = Vec::new();
        self.sweep(clock.now(), true, &mut tasks);
        self.perform(connection, tasks, clock).await;
    }

    async fn reach(&self, clock: &Clock) -> Option<RedisConnection> {
        match tokio::time::timeout(REPLY_TIMEOUT, self.store.connector.connect()).await {
            Ok(Ok(connection)) => Some(connection),
            Ok(Err(error)) => {
                self.store.give_up(clock.now(), error.to_string());
                None
            }
            Err(_) => None,
        }
    }

    /// Sends all tasks and hands the replies to their accounts; whether the connection is still good.
    async fn perform(
        &self,
        connection: &RedisConnection,
        tasks: Vec<LeaseTask>,
        clock: &Clock,
    ) -> bool {
        let sent = clock.now();
        let lost = self.store.fleet.has_lost(sent, LOST);
        let tasks = Arc::new(tasks);
        // In a cluster every key has its own place.
        let batch = if connection.is_cluster() { 1 } else { BATCH };
        let mut asking = JoinSet::new();
        for start in (0..tasks.len()).step_by(batch) {
            let part = start..tasks.len().min(start + batch);
            let (mut connection, tasks) = (connection.clone(), Arc::clone(&tasks));
            let store = Arc::clone(&self.store);
            self.store.asked_behind.fetch_add(1, Ordering::Relaxed);
            asking.spawn(async move {
                let reply = request(&mut connection, &tasks[part.clone()], &store, lost).await;
                (part, reply)
            });
        }
        let mut unanswered: Vec<bool> = vec![true; tasks.len()];
        let mut sound = true;
        let receive = async {
            while let Some(Ok((part, reply))) = asking.join_next().await {
                unanswered[part.clone()].fill(false);
                match reply {
                    Ok(grants) => {
                        self.store.breaker.hit();
                        for (task, grant) in tasks[part].iter().zip(&grants) {
                            let returned = task.request.back / Excess::ONE.0;
                            self.leased.fetch_add(grant.granted, Ordering::Relaxed);
                            self.returned.fetch_add(returned, Ordering::Relaxed);
                            if let Some((leases, key)) = &task.account {
                                leases.settle(key, sent, clock.now(), grant);
                            }
                        }
                    }
                    Err(error) => {
                        give_up(&tasks[part]);
                        sound &= !error.is_unrecoverable_error();
                        if !error.is_unrecoverable_error() {
                            self.store.give_up(clock.now(), error.to_string());
                        }
                    }
                }
            }
        };
        let in_time = tokio::time::timeout(REPLY_TIMEOUT.max(self.store.timeout), receive).await;
        for (task, unanswered) in tasks.iter().zip(unanswered) {
            if unanswered {
                give_up(std::slice::from_ref(task));
            }
        }
        sound && in_time.is_ok()
    }
}

/// Takes leases and gives them back.
pub(super) static LEASE: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::with_algorithms(include_str!("lease.lua")));

fn give_up(tasks: &[LeaseTask]) {
    for task in tasks {
        if let Some((leases, key)) = &task.account {
            leases.with(key, |entry| entry.account.fail(&task.request));
        }
    }
}

/// Runs one script for some tasks; `lost` says whether the store is known to have lost its memory.
async fn request(
    connection: &mut RedisConnection,
    tasks: &[LeaseTask],
    store: &StoreHandle,
    lost: bool,
) -> Result<Vec<LeaseGrant>, RedisError> {
    let (all, present) = store.fleet.parts();
    // While gateways are missing that may count alone, one request counts for more than one.
    let weight = f64::from(all.max(present)) / f64::from(present);
    // In a cluster the list of gateways may lie on another server than the keys.
    let list = match connection.is_cluster() {
        true => "",
        false => &store.lists.names,
    };
    let write = |command: &mut Cmd| {
        command.arg(tasks.len());
        for task in tasks {
            command.arg(&*task.name);
        }
        command.arg(u8::from(lost)).arg(list).arg(&store.gateway);
        command.arg(all).arg(weight);
        for task in tasks {
            let owed = task.spec.script_args(Cost(task.request.owed));
            let back = task.spec.script_args(Cost(task.request.back));
            let left = task.request.left.and_then(|left| i64::try_from(left).ok());
            command.arg(owed.algorithm).arg(left.unwrap_or(-1));
            command.arg(owed.cost).arg(back.cost);
            command.arg(task.request.window).arg(task.request.want);
            command.arg(u8::from(task.punishable));
            for number in owed.numbers {
                command.arg(number);
            }
        }
    };
    let reply = LEASE.perform(connection, write).await?;
    Ok(grants(tasks, reply).ok_or(UNEXPECTED_REPLY)?)
}

/// The grant for each task; `None` for a reply that the script cannot give.
fn grants(tasks: &[LeaseTask], reply: Value) -> Option<Vec<LeaseGrant>> {
    let numbers: Vec<i64> = redis::from_redis_value(reply).ok()?;
    let (replies, []) = numbers.as_chunks::<8>() else {
        return None;
    };
    let replies = (replies.len() == tasks.len()).then_some(replies)?;
    let grants = tasks.iter().zip(replies);
    grants.map(|(task, reply)| grant(task, reply)).collect()
}

fn grant(task: &LeaseTask, reply: &[i64; 8]) -> Option<LeaseGrant> {
    let [kind, excess, wait, left, granted, lasts, window, penalty] = *reply;
    let scale = task.spec.script_args(Cost::ONE).scale;
    let millis = |number: i64| u64::try_from(number).ok().map(Duration::from_millis);
    let excess = scale.excess(u64::try_from(excess).ok()?);
    Some(LeaseGrant {
        outcome: script::outcome(kind, excess, millis(wait))?,
        remaining: u64::try_from(left).ok()?,
        granted: u64::try_from(granted).ok()?,
        lasts: millis(lasts),
        window: u64::try_from(window).ok()?,
        penalty: millis(penalty).filter(|left| !left.is_zero()),
    })
}

/// How often the accounts are swept.
const SWEEP: Duration = Duration::from_millis(250);

/// How long a reply may take that no request waits for.
const REPLY_TIMEOUT: Duration = Duration::from_millis(250);

/// How many keys one script serves: so many do not keep a server from others for long.
const BATCH: usize = 32;

/// For how long what is known here counts after a store has lost its memory.
const LOST: Duration = Duration::from_secs(10);
