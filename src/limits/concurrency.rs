//! The slots a request needs: one in every `limit_conn` zone of its location, or none.
//!
//! Those of this process are taken first, in the order of the rules. Those that gateways share are then requested
//! together, with one request to each store; while they are held each is a slot here as well, so that this gateway knows
//! its own when the store is away.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::key::{KeyBytes, KeyFault, KeyLookup};
use super::rule::ConnRule;
use super::verdict::Permit;
use super::zone::ConnZone;
use crate::clock::{Clock, Millis};
use crate::config::plan::{ConnQueue, OnOutage};
use crate::message::{LimitStatus, RequestRecord};
use crate::store::{ConnSlot, Key, SharedSlotGuard, SharedStore, SlotClaim};

/// The keys of a request in the zones of a location's `limit_conn`, in the order of the rules.
#[derive(Debug, Default)]
pub struct SlotKeys(pub(super) SmallVec<[KeyLookup<Key>; 2]>);

/// No slot, and the rule that refuses the request.
pub(super) struct SlotRefusal {
    pub(super) rule: usize,
    /// Why the request has no key, if that is the reason.
    pub(super) fault: Option<KeyFault>,
    pub(super) now: Millis,
}

/// The slots a request needs in one store.
struct StoreClaim<'r> {
    store: Arc<SharedStore>,
    needs: Vec<SlotNeed<'r>>,
    /// The same as the store wants it.
    claim: Arc<SlotClaim>,
}

/// One slot.
struct SlotNeed<'r> {
    rule: &'r ConnRule,
    /// The index of the rule.
    index: usize,
    key: Key,
    bytes: KeyBytes,
    /// The queue in which the request may wait for it.
    queue: Option<&'r ConnQueue>,
}

/// Counts a request that waits in a queue.
struct QueueGauge<'z>(&'z ConnZone);

/// The slots of a claim.
struct AcquiredSlots {
    here: SmallVec<[ConnSlot; 2]>,
    there: SharedSlotGuard,
}

/// Why a claim was not granted.
enum SlotError {
    /// The store does not respond.
    Away,
    /// No slot is free for the need with this index.
    Full(usize),
}

impl SlotKeys {
    pub(super) fn find(rules: &[ConnRule], record: &RequestRecord) -> Self {
        Self(rules.iter().map(|rule| rule.zone.find(record)).collect())
    }
}

/// Takes a slot in every zone of these rules into a permit. After a refusal, the caller releases those already taken.
pub(super) async fn acquire(
    rules: &[ConnRule],
    keys: &SlotKeys,
    dry_run: bool,
    permit: &mut Permit,
    record: &mut RequestRecord,
    clock: &Clock,
    mut now: Millis,
) -> Result<(), SlotRefusal> {
    let mut shared = false;
    for (index, (rule, lookup)) in rules.iter().zip(&keys.0).enumerate() {
        let (zone, limit) = (&rule.zone, rule.limit);
        if zone.shared.is_some() {
            shared = true;
            continue;
        }
        let refuse = |fault, now| SlotRefusal {
            rule: index,
            fault,
            now,
        };
        let key = match lookup {
            KeyLookup::Key(key) => key,
            KeyLookup::Nothing => continue,
            KeyLookup::Refuse(fault) => return Err(refuse(Some(*fault), now)),
        };
        let slot = match &rule.queue {
            // A dry run changes nothing for the client, so no request waits in one.
            Some(queue) if !dry_run => {
                let gauge = QueueGauge::new(zone);
                let (began, slot) = (now, zone.store.wait(key, limit, queue, now).await);
                drop(gauge);
                now = clock.now();
                // A free slot is taken in the same moment.
                if slot.is_ok() && now > began {
                    zone.delays.observe(now.since(began));
                    record.limit_zone = Some(Arc::clone(&zone.name.plain));
                    record.waited(began, now);
                }
                slot
            }
            _ => zone.store.take(key, limit, now),
        };
        permit.slots.push(slot.map_err(|_| refuse(None, now))?);
        record.limit_conn = Some(LimitStatus::Pass);
    }
    match shared {
        // Boxed: most locations have no use for it, and every request would keep room.
        true => Box::pin(acquire_shared(rules, keys, dry_run, permit, record, clock)).await,
        false => Ok(()),
    }
}

/// Takes the slots that gateways share, for a request that has all others.
async fn acquire_shared(
    rules: &[ConnRule],
    keys: &SlotKeys,
    dry_run: bool,
    permit: &mut Permit,
    record: &mut RequestRecord,
    clock: &Clock,
) -> Result<(), SlotRefusal> {
    let refuse = |rule, fault| SlotRefusal {
        rule,
        fault,
        now: clock.now(),
    };
    let claims = claims(rules, keys, dry_run, record);
    for claim in claims.map_err(|(rule, fault)| refuse(rule, Some(fault)))? {
        let acquired = claim.take(clock).await;
        let acquired = acquired.map_err(|which| refuse(claim.needs[which].index, None))?;
        record.limit_conn = Some(LimitStatus::Pass);
        permit.slots.extend(acquired.here);
        permit.shared_slots.push(acquired.there);
    }
    Ok(())
}

/// The slots a request needs, store by store; or the rule that refuses it because it has no key, and why it has none.
fn claims<'r>(
    rules: &'r [ConnRule],
    keys: &SlotKeys,
    dry_run: bool,
    record: &RequestRecord,
) -> Result<Vec<StoreClaim<'r>>, (usize, KeyFault)> {
    let mut claims: Vec<(Arc<SharedStore>, Vec<SlotNeed<'_>>)> = Vec::new();
    for (index, (rule, lookup)) in rules.iter().zip(&keys.0).enumerate() {
        let Some(store) = &rule.zone.shared else {
            continue;
        };
        let key = match lookup {
            KeyLookup::Key(key) => *key,
            KeyLookup::Nothing => continue,
            KeyLookup::Refuse(fault) => return Err((index, *fault)),
        };
        let need = SlotNeed {
            rule,
            index,
            key,
            bytes: rule.zone.source.bytes(record),
            queue: rule.queue.as_ref().filter(|_| !dry_run),
        };
        match claims.iter_mut().find(|(at, _)| Arc::ptr_eq(at, store)) {
            Some((_, needs)) => needs.push(need),
            None => claims.push((Arc::clone(store), vec![need])),
        }
    }
    let claims = claims.into_iter();
    Ok(claims
        .map(|(store, needs)| StoreClaim::new(store, needs))
        .collect())
}

impl<'z> QueueGauge<'z> {
    fn new(zone: &'z ConnZone) -> Self {
        zone.waiting.fetch_add(1, Ordering::Relaxed);
        Self(zone)
    }
}

impl Drop for QueueGauge<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<'r> StoreClaim<'r> {
    fn new(store: Arc<SharedStore>, needs: Vec<SlotNeed<'r>>) -> Self {
        let mut claim = SlotClaim::default();
        for need in &needs {
            let name = &need.rule.zone.name.plain;
            claim.add(&store.handle.prefix, name, &need.bytes, need.rule.limit);
        }
        Self {
            store,
            needs,
            claim: Arc::new(claim),
        }
    }

    /// Takes all slots, and waits for them where that is allowed; or gives the index of the need that cannot be met.
    async fn take(&self, clock: &Clock) -> Result<AcquiredSlots, usize> {
        // A request that comes later waits behind.
        let queued = self.needs.iter().enumerate().position(|(which, need)| {
            need.queue.is_some() && self.store.slots.has_queue(&self.claim, which)
        });
        let full = match queued {
            Some(which) => which,
            None => match self.try_take(clock.now()).await {
                Ok(acquired) => {
                    self.count_passes(false);
                    return Ok(acquired);
                }
                Err(SlotError::Away) => return self.take_without_store(clock).await,
                Err(SlotError::Full(which)) => which,
            },
        };
        let began = clock.now();
        let acquired = match self.needs[full].queue {
            Some(queue) => self.wait(full, queue, clock).await,
            None => Err(SlotError::Full(full)),
        };
        match acquired {
            Ok(acquired) => {
                self.count_passes(true);
                let waited = clock.now().since(began);
                self.needs[full].rule.zone.delays.observe(waited);
                Ok(acquired)
            }
            Err(SlotError::Away) => self.take_without_store(clock).await,
            Err(SlotError::Full(which)) => {
                let need = &self.needs[which];
                need.rule.zone.store.count_refusal(&need.key);
                Err(which)
            }
        }
    }

    /// Waits in the queue of one of its slots until all of them are free.
    async fn wait(
        &self,
        full: usize,
        queue: &ConnQueue,
        clock: &Clock,
    ) -> Result<AcquiredSlots, SlotError> {
        let waiter = self.store.slots.join_queue(&self.claim, full, queue.size);
        let waiter = waiter.ok_or(SlotError::Full(full))?;
        let _gauge = QueueGauge::new(&self.needs[full].rule.zone);
        let waiting = async {
            let _turn = waiter.turn().await;
            loop {
                match self.try_take(clock.now()).await {
                    Err(SlotError::Full(which)) if self.needs[which].queue.is_some() => {
                        waiter.pause().await;
                    }
                    other => return other,
                }
            }
        };
        let waited = tokio::time::timeout(queue.timeout, waiting).await;
        waited.unwrap_or(Err(SlotError::Full(full)))
    }

    /// Asks the store once; not where this gateway alone holds all slots.
    async fn try_take(&self, now: Millis) -> Result<AcquiredSlots, SlotError> {
        if self.store.handle.is_away() {
            return Err(SlotError::Away);
        }
        let mut here = SmallVec::new();
        for (which, need) in self.needs.iter().enumerate() {
            let store = &need.rule.zone.store;
            let slot = store.take_uncounted(&need.key, need.rule.limit, now);
            here.push(slot.map_err(|_| SlotError::Full(which))?);
        }
        match self.store.slots.take(&self.claim, now).await {
            Ok(Ok(there)) => Ok(AcquiredSlots { here, there }),
            Ok(Err(which)) => Err(SlotError::Full(which.min(self.needs.len() - 1))),
            Err(_) => Err(SlotError::Away),
        }
    }

    /// Takes the slots while the store is away.
    async fn take_without_store(&self, clock: &Clock) -> Result<AcquiredSlots, usize> {
        let mut here = SmallVec::new();
        for (which, need) in self.needs.iter().enumerate() {
            let (slots, now) = (&need.rule.zone.store, clock.now());
            let slot = match (self.store.handle.on_outage, need.queue) {
                (OnOutage::Allow, _) => slots.take(&need.key, u32::MAX, now),
                (OnOutage::Local, queue) => {
                    let limit = self.store.slots.share_of(need.rule.limit);
                    match queue {
                        Some(queue) => {
                            let _gauge = QueueGauge::new(&need.rule.zone);
                            slots.wait(&need.key, limit, queue, now).await
                        }
                        None => slots.take(&need.key, limit, now),
                    }
                }
                (OnOutage::Refuse, _) => {
                    slots.count_refusal(&need.key);
                    return Err(which);
                }
            };
            here.push(slot.map_err(|_| which)?);
        }
        let there = self.store.slots.hold_anyway(&self.claim);
        Ok(AcquiredSlots { here, there })
    }

    /// Counts that all of its needs are met.
    fn count_passes(&self, waited: bool) {
        for need in &self.needs {
            need.rule.zone.store.count_pass(&need.key, waited);
        }
    }
}
