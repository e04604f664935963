//! Limits that several gateways share, counted in Redis.
//!
//! One script decides about all rules of a request at once, by the server's own clock, and is one round trip. A limit must never
//! become an outage: a verdict has a deadline of a few milliseconds, and a store that misses it is not queried until probes find
//! it in time again. Meanwhile each gateway counts alone, from the state it last saw of each key.
//!
//! [`handle::StoreHandle`] is what all parts share; [`lease`], [`conn_slots`], [`request`] and [`outage`] are the parts, and
//! [`SharedStore`] is all of them together.

mod background;
pub(super) mod conn_slots;
pub(super) mod connection;
pub(super) mod fleet;
pub(super) mod handle;
pub(super) mod lease;
pub(super) mod outage;
pub(super) mod request;
pub(super) mod script;
#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{RedisError, Value};

use self::conn_slots::SharedSlots;
use self::connection::Error;
use self::fleet::{FleetMember, LeaseHoldings, ResetKey};
use self::handle::{StoreHandle, StoreOutage};
use self::lease::LeaseQueue;
use self::outage::{OutageCharge, OutageCharges};
use self::request::{DeferredCharges, LateReply, LocalDecision, StoreRequest};
use crate::clock::Millis;
use crate::config::plan::Store;

/// A store that several gateways share.
pub struct SharedStore {
    /// What its parts share.
    pub handle: Arc<StoreHandle>,
    /// The leases of all its zones.
    pub leases: Arc<LeaseQueue>,
    /// The shared slots of its `limit_conn` zones.
    pub slots: Arc<SharedSlots>,
    deferred: DeferredCharges,
    /// What passed without it.
    pub charges: Arc<OutageCharges>,
    /// Late replies that this process waits for.
    late: Mutex<Vec<LateReply>>,
    /// The zones that it has keys of.
    zones: Mutex<Vec<Weak<dyn ForgetKeys>>>,
}

impl SharedStore {
    /// A store as planned; nothing is connected yet.
    ///
    /// # Errors
    /// When its settings cannot work, whatever the server says.
    pub fn new(store: &Store) -> Result<Arc<Self>, Error> {
        let handle = Arc::new(StoreHandle::new(store)?);
        Ok(Arc::new(Self {
            leases: Arc::new(LeaseQueue::new(&handle)),
            slots: Arc::new(SharedSlots::new(&handle)),
            deferred: DeferredCharges::default(),
            charges: Arc::default(),
            late: Mutex::default(),
            zones: Mutex::default(),
            handle,
        }))
    }

    /// Decides about a request that passed or was refused without the store's reply: `passed` is what this gateway let pass. A late
    /// reply is still used.
    pub fn settle(&self, undecided: LocalDecision, refused: bool, passed: Vec<OutageCharge>) {
        let Some(reply) = undecided.reply else {
            // A query whose connection broke may have been executed. What is charged twice is on the safe side.
            return self.charges.add_all(passed);
        };
        let charges = Arc::clone(&self.charges);
        self.late.lock().push(Box::pin(async move {
            if reply.settle(refused).await {
                charges.add_all(passed);
            }
        }));
        connection::wake(self.handle.id);
    }

    /// Charges a request whose cost is known only now, whatever is left.
    pub fn charge_later(&self, request: StoreRequest) {
        self.deferred.charge(&self.handle, request);
    }

    /// Lets the other gateways know that the keys of a request serve a penalty for so long.
    pub fn punish_later(&self, request: StoreRequest, now: Millis, term: Duration) {
        self.deferred.punish(&self.handle, request, now.after(term));
    }

    /// Its status, for the admin API and the metrics.
    #[must_use]
    pub fn status(&self) -> StoreStatus {
        let handle = &self.handle;
        StoreStatus {
            gateway: handle.gateway.clone(),
            gateways: handle.fleet.gateways.lock().clone(),
            outage: handle.outage.lock().clone(),
            asked: handle.asked.load(Ordering::Relaxed),
            missed: handle.missed.load(Ordering::Relaxed),
            late: handle.late.load(Ordering::Relaxed),
            asked_behind: handle.asked_behind.load(Ordering::Relaxed),
            decided_here: self.leases.decided.load(Ordering::Relaxed),
            leased: self.leases.leased.load(Ordering::Relaxed),
            returned: self.leases.returned.load(Ordering::Relaxed),
            held: self.leases.held.lock().clone(),
        }
    }

    /// Forgets a key of a zone; whether there was something to forget. Over a connection of its own: who asks for this is
    /// no event loop, and in no hurry.
    ///
    /// # Errors
    /// When the store does not answer, or says no.
    pub async fn forget(&self, zone: &str, key: &[u8]) -> Result<bool, ResetError> {
        let mut named = Vec::new();
        script::append(&mut named, &self.handle.prefix, zone, key);
        let forgetting = async {
            let mut connection = self.handle.connector.connect().await?;
            // First of all: no gateway may bring back what it remembers of the key.
            let mut command = redis::cmd("SET");
            let anew = [&named[..], b":anew"].concat();
            command.arg(anew).arg("1").arg("PX").arg(ANEW);
            connection.send(&command).await?;
            let mut command = redis::cmd("DEL");
            command.arg(named);
            let answer = connection.send(&command).await?;
            self.handle.lists.forget(&mut connection, zone, key).await?;
            Ok::<_, RedisError>(answer)
        };
        let answer = tokio::time::timeout(DEADLINE, forgetting).await??;
        Ok(answer == Value::Int(1))
    }

    /// The keys of this zone are forgotten here, too, when they are anywhere.
    pub fn forget_in(&self, zone: Weak<dyn ForgetKeys>) {
        let mut zones = self.zones.lock();
        zones.retain(|zone| zone.strong_count() > 0);
        zones.push(zone);
    }

    /// An operator had these forgotten at some gateway.
    fn forget_here(&self, forgotten: &[ResetKey]) {
        if forgotten.is_empty() {
            return;
        }
        let zones: Vec<_> = self.zones.lock().iter().filter_map(Weak::upgrade).collect();
        for one in forgotten {
            for zone in zones.iter().filter(|zone| zone.zone() == one.zone) {
                zone.forget_bytes(&one.key);
            }
        }
    }
}

// The late replies are futures.
impl std::fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.handle.fmt(f)
    }
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
    /// How often it was queried while no request waited.
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

const DEADLINE: Duration = Duration::from_secs(2);

/// For how long nothing is believed that gateways remember of a key that was forgotten, in milliseconds.
const ANEW: u32 = 3_600_000;
