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
use super::script::{self, LuaScript};
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

    /// Those who stay out are kept here from now on.
    pub fn punish_in(&self, penalties: Option<&Arc<Penalties>>) {
        *self.penalties.lock() = penalties.cloned();
    }

    /// Whether these are what [`ZoneLeases::new`] would make for the same zone.
    #[must_use]
    pub fn fits(&self, size: usize, queue: &Arc<LeaseQueue>, verdicts: Verdicts) -> bool {
        let division = ShardLayout::of(size, bytes(&self.zone));
        Arc::ptr_eq(&self.queue, queue) && (self.division, self.verdicts) == (division, verdicts)
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
        let lease_mode = self.lease_mode();
        let mut table = self.table(&key).lock();
        let Some(entry) = self.entry(&mut table, (&key, plain), now, spec) else {
            return (LeaseVerdict::Ask, None);
        };
        let (verdict, wanting) = entry.account.spend(now, cost, lease_mode);
        let news = entry.account.news(now);
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
        (verdict, news)
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

    fn lease_mode(&self) -> LeaseMode {
        LeaseMode {
            mode: self.queue.store.mode,
            gateways: self.queue.store.fleet.size(),
            local_above: self.queue.store.local_above,
        }
    }

    /// What is to be asked about a key; `None` where it is not known any more.
    fn prepare(self: &Arc<Self>, key: Key, now: Millis) -> Option<LeaseTask> {
        let lease_mode = self.lease_mode();
        let (name, spec, ask) = self.with(&key, |entry| {
            let name = entry.name.clone()?;
            Some((
                name,
                entry.account.spec,
                entry.account.prepare(now, lease_mode),
            ))
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
    held: Mutex<Vec<LeaseHoldings>>,
    /// Decisions that nobody was asked for.
    pub(super) decided: AtomicU64,
    /// Requests that were leased, and those of them that were given back.
    pub(super) leased: AtomicU64,
    pub(super) returned: AtomicU64,
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

    /// Gets keys what they want, for as long as it is polled.
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
            tasks.extend(self.wanted(clock.now()));
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

    /// Gives back all that is in hand.
    pub(in crate::store::redis) async fn return_all(
        &self,
        connection: &RedisConnection,
        clock: &Clock,
    ) {
        let mut tasks = Vec::new();
        self.sweep(clock.now(), true, &mut tasks);
        self.perform(connection, tasks, clock).await;
    }

    fn sharing(&self, now: Millis) -> FleetShare {
        let (all, present) = self.store.fleet.parts();
        // In a cluster the list may lie on another server than the keys.
        let list = match self.store.connector.is_cluster() {
            true => String::new(),
            false => self.store.lists.names.clone(),
        };
        FleetShare {
            list,
            gateway: self.store.gateway.clone(),
            gateways: all,
            weight: f64::from(all.max(present)) / f64::from(present),
            lost: self.store.fleet.has_lost(now, LOST),
        }
    }

    async fn reach(&self, clock: &Clock) -> Option<RedisConnection> {
        match tokio::time::timeout(LATE, self.store.connector.connect()).await {
            Ok(Ok(connection)) => Some(connection),
            Ok(Err(error)) => {
                self.store.give_up(clock.now(), error.to_string());
                None
            }
            Err(_) => None,
        }
    }

    /// Asks about all, and tells those who wait; whether the connection is still good.
    async fn perform(
        &self,
        connection: &RedisConnection,
        tasks: Vec<LeaseTask>,
        clock: &Clock,
    ) -> bool {
        let sent = clock.now();
        let sharing = self.sharing(sent);
        let tasks = Arc::new(tasks);
        // In a cluster every key has its own place.
        let together = if connection.is_cluster() { 1 } else { TOGETHER };
        let mut asking = JoinSet::new();
        for start in (0..tasks.len()).step_by(together) {
            let part = start..tasks.len().min(start + together);
            let (mut connection, tasks) = (connection.clone(), Arc::clone(&tasks));
            let sharing = sharing.clone();
            self.store.asked_behind.fetch_add(1, Ordering::Relaxed);
            asking.spawn(async move {
                let answer = ask(&mut connection, &tasks[part.clone()], &sharing).await;
                (part, answer)
            });
        }
        let mut open: Vec<bool> = vec![true; tasks.len()];
        let mut sound = true;
        let heard = async {
            while let Some(Ok((part, answer))) = asking.join_next().await {
                open[part.clone()].fill(false);
                match answer {
                    Ok(grants) => {
                        self.store.breaker.hit();
                        for (task, grant) in tasks[part].iter().zip(&grants) {
                            self.note(task, grant.granted);
                            if let Some((leases, key)) = &task.whose {
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
        let in_time = tokio::time::timeout(LATE.max(self.store.timeout), heard).await;
        for (task, open) in tasks.iter().zip(open) {
            if open {
                give_up(std::slice::from_ref(task));
            }
        }
        sound && in_time.is_ok()
    }
}

/// Takes leases and gives them back.
pub(super) static LEASE: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::with_algorithms(include_str!("lease.lua")));

/// How a store is shared.
#[derive(Debug, Clone)]
struct FleetShare {
    /// The list of gateways, where scripts can read it, and the name of this one in it.
    list: String,
    gateway: String,
    gateways: u32,
    /// For how many requests one counts, while some gateways are missing that may count alone.
    weight: f64,
    /// Whether the store is known to have lost its memory.
    lost: bool,
}

fn give_up(tasks: &[LeaseTask]) {
    for task in tasks {
        if let Some((leases, key)) = &task.whose {
            leases.fail(key, &task.ask);
        }
    }
}

/// One script, run once.
async fn ask(
    connection: &mut RedisConnection,
    tasks: &[LeaseTask],
    sharing: &FleetShare,
) -> Result<Vec<LeaseGrant>, RedisError> {
    let answer = LEASE
        .perform(connection, |command| write(command, tasks, sharing))
        .await?;
    grants(tasks, &answer).ok_or_else(|| {
        (
            redis::ErrorKind::UnexpectedReturnType,
            "not an answer of ours",
        )
            .into()
    })
}

fn write(command: &mut Cmd, tasks: &[LeaseTask], sharing: &FleetShare) {
    command.arg(tasks.len());
    for task in tasks {
        command.arg(&*task.name);
    }
    command.arg(u8::from(sharing.lost));
    command.arg(&sharing.list).arg(&sharing.gateway);
    command.arg(sharing.gateways).arg(sharing.weight);
    for task in tasks {
        let owed = task.spec.script_args(Cost(task.ask.owed));
        let back = task.spec.script_args(Cost(task.ask.back));
        let left = task.ask.left.and_then(|left| i64::try_from(left).ok());
        command.arg(owed.algorithm).arg(left.unwrap_or(-1));
        command.arg(owed.cost).arg(back.cost);
        command.arg(task.ask.window).arg(task.ask.want);
        command.arg(u8::from(task.punishable));
        for number in owed.numbers {
            command.arg(number);
        }
    }
}

/// What was answered to each; `None` for what no script of ours says.
fn grants(tasks: &[LeaseTask], answer: &Value) -> Option<Vec<LeaseGrant>> {
    let Value::Array(numbers) = answer else {
        return None;
    };
    let numbers = numbers
        .iter()
        .map(|number| match number {
            Value::Int(number) => Some(*number),
            _ => None,
        })
        .collect::<Option<Vec<_>>>()?;
    let (answers, []) = numbers.as_chunks::<8>() else {
        return None;
    };
    if answers.len() != tasks.len() {
        return None;
    }
    tasks
        .iter()
        .zip(answers)
        .map(|(task, answer)| grant(task, answer))
        .collect()
}

fn grant(task: &LeaseTask, answer: &[i64; 8]) -> Option<LeaseGrant> {
    let [kind, excess, wait, left, granted, lasts, window, penalty] = *answer;
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

/// How often accounts are looked through.
const SWEEP: Duration = Duration::from_millis(250);

/// How long an answer may take that nobody waits for.
const LATE: Duration = Duration::from_millis(250);

/// How many keys are one question: so many do not keep a server from others for long.
const TOGETHER: usize = 32;

/// For how long what is known here counts after a store has lost its memory.
const LOST: Duration = Duration::from_secs(10);
