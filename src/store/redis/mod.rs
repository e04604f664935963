//! Counting together with other gateways, in Redis.
//!
//! One script decides about all rules of a request at once, by the server's own clock, and is one round trip. What
//! shaped the rest is that a limit must never become an outage: a decision has a deadline of a few milliseconds,
//! and a store that misses it is left alone until one probe a gateway finds it well again. Meanwhile each gateway
//! goes on by itself, from where it last saw every key stand.
//!
//! What can be seen of a store from outside.
//!
//! Letting a key begin anew for all gateways.

mod background;
pub(super) mod conn_slots;
mod connection;
pub(super) mod fleet;
pub(super) mod lease;
pub(super) mod outage;
pub(super) mod request;
pub(super) mod script;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::sync::watch;

use self::background::DeferredCharges;
use self::conn_slots::SharedSlots;
use self::connection::{RedisConnection, RedisConnector, StoreBreaker};
use self::fleet::{Fleet, FleetKeys, ResetKey};
use self::lease::LeaseQueue;
use self::outage::OutageCharges;
use self::request::LateReplies;
use crate::algorithm::{Cost, LimitSpec};
use crate::clock::Millis;
use crate::config::plan::{OnOutage, Store, StoreMode};

pub(super) use self::fleet::{CostShare, FleetMember};
pub(super) use self::lease::LeaseHoldings;

/// A store that several gateways share.
pub struct SharedStore {
    /// Tells stores apart where threads keep their connections.
    id: u64,
    name: Box<str>,
    /// What the names of its keys begin with.
    prefix: Box<str>,
    timeout: Duration,
    on_outage: OnOutage,
    mode: StoreMode,
    /// Beyond which multiple of its limit a key is decided about here.
    local_above: Option<u32>,
    connector: RedisConnector,
    /// This gateway's name among those that share it.
    gateway: String,
    breaker: StoreBreaker,
    /// How often it has come back.
    revived: watch::Sender<u64>,
    /// Whether it has answered the last time that it was looked after, in time or late.
    in_reach: AtomicBool,
    lists: FleetKeys,
    fleet: Fleet,
    outage: Mutex<Option<StoreOutage>>,
    asked: AtomicU64,
    missed: AtomicU64,
    late: AtomicU64,
    desk: LeaseQueue,
    places: SharedSlots,
    later: DeferredCharges,
    debts: OutageCharges,
    unsettled: LateReplies,
    /// The zones that it has keys of.
    forgetting: Mutex<Vec<Weak<dyn ForgetKeys>>>,
}

/// Why a store cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of its TLS settings cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Its settings contradict each other, or what stands in a file is no certificate.
    #[error("the store \"{store}\" cannot be used")]
    Store {
        /// Its name.
        store: Box<str>,
        /// Why.
        #[source]
        source: RedisError,
    },
}

/// No answer: the store is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreDown;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreMiss {
    /// There will be none.
    Failed,
    /// It is not there in time.
    Late,
}

impl SharedStore {
    /// A store as planned; nothing is connected yet.
    ///
    /// # Errors
    /// When its settings cannot work, whatever the server says.
    pub fn new(store: &Store) -> Result<Arc<Self>, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name: store.name.clone(),
            prefix: store.prefix.clone(),
            timeout: store.timeout,
            on_outage: store.on_outage,
            mode: store.mode,
            local_above: store.local_above,
            connector: RedisConnector::new(store)?,
            gateway: fleet::name(),
            breaker: StoreBreaker::default(),
            revived: watch::Sender::new(0),
            in_reach: AtomicBool::new(true),
            lists: FleetKeys::of(&store.prefix),
            fleet: Fleet::of(store.gateways),
            outage: Mutex::default(),
            asked: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            late: AtomicU64::new(0),
            desk: LeaseQueue::default(),
            places: SharedSlots::default(),
            later: DeferredCharges::default(),
            debts: OutageCharges::default(),
            unsettled: LateReplies::default(),
            forgetting: Mutex::default(),
        }))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the names of its keys begin with.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// What decides while it is away.
    #[must_use]
    pub fn on_outage(&self) -> OnOutage {
        self.on_outage
    }

    /// How many gateways may let requests pass, as far as is known: those that were heard of in the last minute and have not
    /// said goodbye, and no fewer than the configuration says.
    #[must_use]
    pub fn fleet_size(&self) -> u32 {
        self.fleet.size()
    }

    /// How many gateways shared it when that was last known.
    #[must_use]
    pub fn gateways(&self) -> u32 {
        self.fleet.present()
    }

    /// What a request costs while this gateway counts alone.
    #[must_use]
    pub fn alone(&self, cost: Cost, spec: &LimitSpec) -> CostShare {
        fleet::of(cost, spec, self.fleet_size(), 1)
    }

    /// What a request costs in the store. More than by itself while some gateways are missing: they may count alone, so their
    /// part is left to them.
    fn weigh(&self, cost: Cost, spec: &LimitSpec) -> Cost {
        match self.fleet.parts() {
            (all, present) if all <= present => cost,
            (all, present) => fleet::of(cost, spec, all, present).needs,
        }
    }

    /// How its zones are decided about.
    #[must_use]
    pub fn mode(&self) -> StoreMode {
        self.mode
    }

    /// Whether it is away.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.breaker.is_open()
    }

    /// Whether it can be told something, however late it answers.
    fn is_in_reach(&self) -> bool {
        self.in_reach.load(Ordering::Relaxed)
    }

    /// An answer that a decision waits for, if it comes in time.
    async fn in_time<T>(
        &self,
        asking: impl Future<Output = Result<T, RedisError>>,
        now: Millis,
    ) -> Result<T, StoreMiss> {
        // Who does not know of the others yet would take all of the limit for itself.
        let timeout = match self.fleet.is_known() {
            true => self.timeout,
            false => self.timeout.max(FIRST),
        };
        match tokio::time::timeout(timeout, asking).await {
            Ok(Ok(answer)) => {
                self.breaker.hit();
                Ok(answer)
            }
            Ok(Err(error)) => {
                self.failed(&error, now);
                Err(StoreMiss::Failed)
            }
            Err(_) => {
                self.missed.fetch_add(1, Ordering::Relaxed);
                self.late.fetch_add(1, Ordering::Relaxed);
                if self.breaker.miss() {
                    self.note_outage(now, format!("no answer within {timeout:?}"));
                }
                Err(StoreMiss::Late)
            }
        }
    }

    /// This thread's connection.
    fn link(&self) -> Result<RedisConnection, StoreDown> {
        if self.breaker.is_open() {
            return Err(StoreDown);
        }
        connection::link(self.id, self.epoch()).ok_or(StoreDown)
    }

    /// How often it has come back.
    fn epoch(&self) -> u64 {
        *self.revived.borrow()
    }

    fn failed(&self, error: &RedisError, now: Millis) {
        self.missed.fetch_add(1, Ordering::Relaxed);
        if error.is_unrecoverable_error() {
            // Servers close idle connections. Whether this was more is seen when it is opened again.
            connection::lose(self.id);
        } else if self.connector.is_cluster() && is_on_the_move(error) {
            if self.breaker.miss() {
                self.note_outage(now, in_words(error));
            }
        } else if self.breaker.fail() {
            self.note_outage(now, in_words(error));
        }
    }
}

/// Whether a slot of a cluster was between two nodes, which passes.
fn is_on_the_move(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, ClusterDown, MasterDown, Moved, TryAgain};
    matches!(
        error.kind(),
        ErrorKind::Server(Ask | ClusterDown | MasterDown | Moved | TryAgain)
            | ErrorKind::ClusterConnectionNotFound
    )
}

/// What went wrong, in one line.
fn in_words(error: &RedisError) -> String {
    if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) {
        return "it is a node of a cluster, which `cluster: true` has to say".to_owned();
    }
    let text = error.to_string();
    text.split(char::is_control).collect::<Vec<_>>().join(" ")
}

// What a connection has to show is nobody's business.
impl std::fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// How long a decision may wait for its answer before the store was heard for the first time.
const FIRST: Duration = Duration::from_secs(1);

/// Since when a store is away, and why.
#[derive(Debug, Clone)]
pub struct StoreOutage {
    /// Since when.
    pub since: Millis,
    /// What went wrong first.
    pub why: String,
}

/// A store at this moment.
#[derive(Debug, Clone)]
pub struct StoreStatus {
    /// This gateway's name.
    pub gateway: String,
    /// All that were heard of lately, this one among them.
    pub gateways: Vec<FleetMember>,
    /// Set while it is away.
    pub outage: Option<StoreOutage>,
    /// How often it was asked.
    pub asked: u64,
    /// How often no answer came in time, or none that made sense.
    pub missed: u64,
    /// How often an answer came after the deadline, or not at all.
    pub late: u64,
    /// How often it was asked with nobody waiting.
    pub asked_behind: u64,
    /// Decisions that it was not asked for.
    pub decided_here: u64,
    /// Requests that were leased from it.
    pub leased: u64,
    /// And those of them that were given back.
    pub returned: u64,
    /// What this gateway has in hand.
    pub held: Vec<LeaseHoldings>,
}

impl SharedStore {
    /// How it is.
    #[must_use]
    pub fn view(&self) -> StoreStatus {
        StoreStatus {
            gateway: self.gateway.clone(),
            gateways: self.fleet.gateways(),
            outage: self.outage.lock().clone(),
            asked: self.asked.load(Ordering::Relaxed),
            missed: self.missed.load(Ordering::Relaxed),
            late: self.late.load(Ordering::Relaxed),
            asked_behind: self.desk.asked.load(Ordering::Relaxed),
            decided_here: self.desk.decided.load(Ordering::Relaxed),
            leased: self.desk.leased.load(Ordering::Relaxed),
            returned: self.desk.returned.load(Ordering::Relaxed),
            held: self.desk.held(),
        }
    }
}

/// Keys of a zone that can be forgotten.
pub trait ForgetKeys: Send + Sync {
    /// The zone's name.
    fn zone(&self) -> &str;

    /// Forgets what is known in this process of a key of these bytes.
    fn forget_bytes(&self, bytes: &[u8]);
}

/// Why nothing was forgotten.
#[derive(Debug, thiserror::Error)]
pub enum ResetError {
    /// The store said no, or could not be reached.
    #[error(transparent)]
    Failed(#[from] RedisError),
    /// No answer came.
    #[error("no answer within {DEADLINE:?}")]
    Late(#[from] tokio::time::error::Elapsed),
}

impl SharedStore {
    /// Forgets a key of a zone; whether there was something to forget. Over a connection of its own: who asks for this is
    /// no event loop, and in no hurry.
    ///
    /// # Errors
    /// When the store does not answer, or says no.
    pub async fn forget(&self, zone: &str, key: &[u8]) -> Result<bool, ResetError> {
        let mut named = Vec::new();
        script::append(&mut named, &self.prefix, zone, key);
        let forgetting = async {
            let mut link = self.connector.connect().await?;
            // First of all: no gateway may bring back what it remembers of the key.
            let mut command = redis::cmd("SET");
            let anew = [&named[..], b":anew"].concat();
            command.arg(anew).arg("1").arg("PX").arg(ANEW);
            link.send(&command).await?;
            let mut command = redis::cmd("DEL");
            command.arg(named);
            let answer = link.send(&command).await?;
            self.lists.forget(&mut link, zone, key).await?;
            Ok::<_, RedisError>(answer)
        };
        let answer = tokio::time::timeout(DEADLINE, forgetting).await??;
        Ok(answer == Value::Int(1))
    }

    /// The keys of this zone are forgotten here, too, when they are anywhere.
    pub fn forget_in(&self, zone: Weak<dyn ForgetKeys>) {
        let mut zones = self.forgetting.lock();
        zones.retain(|zone| zone.strong_count() > 0);
        zones.push(zone);
    }

    /// An operator had these forgotten at some gateway.
    fn forget_here(&self, forgotten: &[ResetKey]) {
        if forgotten.is_empty() {
            return;
        }
        let zones: Vec<_> = self
            .forgetting
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        for one in forgotten {
            for zone in zones.iter().filter(|zone| zone.zone() == one.zone) {
                zone.forget_bytes(&one.key);
            }
        }
    }
}

const DEADLINE: Duration = Duration::from_secs(2);

/// For how long nothing is believed that gateways remember of a key that was forgotten, in milliseconds.
const ANEW: u32 = 3_600_000;
