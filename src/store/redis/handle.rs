//! What every part of a shared store needs of it: its settings, its connections, whether it is available, and who shares it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{ErrorKind, RedisError, ServerErrorKind};
use tokio::sync::watch;

use super::connection::{self, Error, RedisConnection, RedisConnector, StoreBreaker};
use super::fleet::{self, CostShare, Fleet, FleetKeys};
use crate::algorithm::{Cost, LimitSpec};
use crate::clock::Millis;
use crate::config::plan::{OnOutage, Store, StoreMode};

/// A store as its parts see it: leases, slots, requests and charges.
pub struct StoreHandle {
    /// Tells stores apart where threads keep their connections.
    pub(super) id: u64,
    /// Its name.
    pub name: Box<str>,
    /// What the names of its keys begin with.
    pub prefix: Box<str>,
    pub(super) timeout: Duration,
    /// How verdicts are made while it is unavailable.
    pub on_outage: OnOutage,
    /// Whether it is queried for each request, or for leases.
    pub mode: StoreMode,
    /// Beyond which multiple of its limit a key is decided about here.
    pub(super) local_above: Option<u32>,
    pub(super) connector: RedisConnector,
    /// This gateway's name among those that share it.
    pub(super) gateway: String,
    pub(super) breaker: StoreBreaker,
    /// How often it has come back.
    pub(super) revived: watch::Sender<u64>,
    /// Whether the last report was answered, in time or late.
    pub(super) in_reach: AtomicBool,
    pub(super) lists: FleetKeys,
    /// The gateways that share it.
    pub fleet: Fleet,
    pub(super) outage: Mutex<Option<StoreOutage>>,
    /// Queries that a request waited for, those of them without a reply in time or at all, and those late.
    pub(super) asked: AtomicU64,
    pub(super) missed: AtomicU64,
    pub(super) late: AtomicU64,
    /// Queries that no request waited for.
    pub(super) asked_behind: AtomicU64,
}

/// Since when a store is away, and why.
#[derive(Debug, Clone)]
pub struct StoreOutage {
    /// Since when.
    pub since: Millis,
    /// What went wrong first.
    pub why: String,
}

/// No answer: the store is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreDown;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreMiss {
    /// There will be none.
    Failed,
    /// It is not there in time.
    Late,
}

impl StoreHandle {
    /// A store as planned; nothing is connected yet.
    ///
    /// # Errors
    /// When its settings cannot work, whatever the server says.
    pub(super) fn new(store: &Store) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
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
            asked_behind: AtomicU64::new(0),
        })
    }

    /// What a request costs while this gateway counts alone.
    #[must_use]
    pub fn alone(&self, cost: Cost, spec: &LimitSpec) -> CostShare {
        fleet::share(cost, spec, self.fleet.size(), 1)
    }

    /// What a request costs in the store. More than by itself while some gateways are missing: they may count alone, so their
    /// part is left to them.
    pub(super) fn weigh(&self, cost: Cost, spec: &LimitSpec) -> Cost {
        match self.fleet.parts() {
            (all, present) if all <= present => cost,
            (all, present) => fleet::share(cost, spec, all, present).needs,
        }
    }

    /// Whether it is away.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.breaker.is_open()
    }

    /// An answer that a decision waits for, if it comes in time.
    pub(super) async fn in_time<T>(
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
    pub(super) fn connection(&self) -> Result<RedisConnection, StoreDown> {
        if self.breaker.is_open() {
            return Err(StoreDown);
        }
        connection::current(self.id, self.epoch()).ok_or(StoreDown)
    }

    /// How often it has come back.
    pub(super) fn epoch(&self) -> u64 {
        *self.revived.borrow()
    }

    pub(super) fn failed(&self, error: &RedisError, now: Millis) {
        self.missed.fetch_add(1, Ordering::Relaxed);
        if error.is_unrecoverable_error() {
            // Servers close idle connections. Whether this was more is seen when it is opened again.
            connection::lose(self.id);
        } else if self.connector.is_cluster() && is_migrating(error) {
            if self.breaker.miss() {
                self.note_outage(now, describe(error));
            }
        } else {
            self.give_up(now, describe(error));
        }
    }

    pub(super) fn give_up(&self, now: Millis, why: String) {
        if self.breaker.fail() {
            self.note_outage(now, why);
        }
    }

    pub(super) fn note_outage(&self, now: Millis, why: String) {
        let meanwhile = match self.on_outage {
            OnOutage::Allow => "all requests pass its zones".to_owned(),
            OnOutage::Local => match self.fleet.size() {
                1 => "its zones are counted by this gateway alone".to_owned(),
                many => format!("its zones are counted by each gateway with 1/{many} of the rate"),
            },
            OnOutage::Refuse => "its zones refuse all requests".to_owned(),
        };
        tracing::warn!("store \"{}\" is away, {why}: {meanwhile}", self.name);
        *self.outage.lock() = Some(StoreOutage { since: now, why });
    }

    pub(super) fn note_lateness(&self, percent: u64) {
        tracing::warn!(
            "store \"{}\" answers too late: {percent} % of the decisions of the last minute took longer than its timeout of \
             {:?}, and were made without it; a longer timeout may suit it better",
            self.name,
            self.timeout,
        );
    }

    pub(super) fn note_recovery(&self, now: Millis) {
        let outage = self.outage.lock().take();
        let lasted = outage.map_or(Duration::ZERO, |outage| now.since(outage.since));
        tracing::info!("store \"{}\" is back after {lasted:?}", self.name);
        self.revived.send_modify(|times| *times += 1);
    }
}

impl std::fmt::Debug for StoreHandle {
    // The connector holds passwords.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreHandle")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Whether a slot of a cluster was between two nodes, which passes.
fn is_migrating(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, ClusterDown, MasterDown, Moved, TryAgain};
    matches!(
        error.kind(),
        ErrorKind::Server(Ask | ClusterDown | MasterDown | Moved | TryAgain)
            | ErrorKind::ClusterConnectionNotFound
    )
}

/// What went wrong, in one line.
pub(super) fn describe(error: &RedisError) -> String {
    if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) {
        return "it is a node of a cluster, which `cluster: true` has to say".to_owned();
    }
    let text = error.to_string();
    text.split(char::is_control).collect::<Vec<_>>().join(" ")
}

/// How long a decision may wait for its answer before the store was heard for the first time.
const FIRST: Duration = Duration::from_secs(1);
