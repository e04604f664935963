//! The places a request needs: one in every `limit_conn` zone of its location, or none.
//!
//! Those of this process are taken first, in the order of the rules. Those that gateways share are then asked for
//! together, one question for each store; while they are held each is a place here as well, so that this gateway
//! knows its own when the store is away.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::Limits;
use super::key::{KeyFault, KeyLookup};
use super::rule::ConnRule;
use super::verdict::{LimitKind, Permit, Refusal};
use super::zone::ConnZone;
use crate::clock::{Clock, Millis};
use crate::config::plan::{ConnQueue, OnOutage};
use crate::message::{LimitStatus, RequestRecord};
use crate::store::{ConnSlot, Key, SharedSlotGuard, SharedStore, SlotClaim};

/// What a request needs at one store.
struct StoreClaim<'r> {
    store: Arc<SharedStore>,
    needs: Vec<SlotNeed<'r>>,
    /// The same in the store's words.
    claim: Arc<SlotClaim>,
}

/// One place.
struct SlotNeed<'r> {
    rule: &'r ConnRule,
    key: Key,
    bytes: Vec<u8>,
    /// How it may be waited for.
    queue: Option<&'r ConnQueue>,
}

/// Somebody in line, who is counted for that long.
struct QueueGauge<'z>(&'z ConnZone);

/// What it has got.
struct AcquiredSlots {
    here: SmallVec<[ConnSlot; 2]>,
    there: SharedSlotGuard,
}

/// Why it has got nothing.
enum SlotError {
    /// The store does not answer.
    Away,
    /// This need cannot be met.
    Full(usize),
}

impl Limits {
    /// Takes a place in every `limit_conn` zone. A refusal lets go of those already taken, with the permit.
    pub(super) async fn take_places(
        &self,
        record: &mut RequestRecord,
        clock: &Clock,
        mut now: Millis,
    ) -> Result<Permit, Refusal> {
        let voice = self.connections_voice;
        let mut permit = Permit::default();
        let mut shared = false;
        for rule in &self.connections {
            let (store, name) = (&rule.zone.store, &rule.zone.name.plain);
            if rule.zone.shared.is_some() {
                shared = true;
                continue;
            }
            let place = match (rule.zone.find(record), &rule.queue) {
                // A dry run changes nothing for the client, so nobody waits in one.
                (KeyLookup::Key(key), Some(queue)) if !voice.dry_run => {
                    let in_line = QueueGauge::new(&rule.zone);
                    let (began, place) = (now, store.wait(&key, rule.limit, queue, now).await);
                    drop(in_line);
                    now = clock.now();
                    // Who finds a place free has it in the same moment.
                    if place.is_ok() && now > began {
                        rule.zone.delays.observe(now.since(began));
                        record.limit_zone = Some(Arc::clone(name));
                        record.waited(began, now);
                    }
                    place
                }
                (KeyLookup::Key(key), _) => store.take(&key, rule.limit, now),
                (KeyLookup::Nothing, _) => continue,
                (KeyLookup::Refuse(fault), _) => {
                    return self.refuse_keyless((rule, fault), record, now);
                }
            };
            let Ok(place) = place else {
                voice.refused_connection(record, now, name);
                return self.refuse_connection(rule, record, now);
            };
            record.limit_conn = Some(LimitStatus::Pass);
            permit.hold(place);
        }
        if shared {
            // Boxed: most locations have no use for it, and every request would keep room.
            return Box::pin(self.take_shared_places(record, clock, permit)).await;
        }
        Ok(permit)
    }

    /// Takes those places that gateways share, for a request that has all others.
    async fn take_shared_places(
        &self,
        record: &mut RequestRecord,
        clock: &Clock,
        mut permit: Permit,
    ) -> Result<Permit, Refusal> {
        let parties = match self.parties(record) {
            Ok(parties) => parties,
            Err(keyless) => return self.refuse_keyless(keyless, record, clock.now()),
        };
        for party in parties {
            match party.take(clock).await {
                Ok(got) => {
                    record.limit_conn = Some(LimitStatus::Pass);
                    got.here.into_iter().for_each(|place| permit.hold(place));
                    permit.lease(got.there);
                }
                Err(which) => {
                    let rule = party.needs[which].rule;
                    let (name, now) = (&rule.zone.name.plain, clock.now());
                    self.connections_voice.refused_connection(record, now, name);
                    return self.refuse_connection(rule, record, now);
                }
            }
        }
        Ok(permit)
    }

    /// What a request needs, store by store; or the rule that does not take one without a key, and why it has none.
    fn parties(
        &self,
        record: &RequestRecord,
    ) -> Result<Vec<StoreClaim<'_>>, (&ConnRule, KeyFault)> {
        let mut parties: Vec<(Arc<SharedStore>, Vec<SlotNeed<'_>>)> = Vec::new();
        for rule in &self.connections {
            let Some(store) = &rule.zone.shared else {
                continue;
            };
            let mut bytes = Vec::new();
            let key = match rule.zone.find_in_full(record, &mut bytes) {
                KeyLookup::Key(key) => key,
                KeyLookup::Nothing => continue,
                KeyLookup::Refuse(fault) => return Err((rule, fault)),
            };
            let dry = self.connections_voice.dry_run;
            let queue = rule.queue.as_ref().filter(|_| !dry);
            let need = SlotNeed {
                rule,
                key,
                bytes,
                queue,
            };
            match parties.iter_mut().find(|(at, _)| Arc::ptr_eq(at, store)) {
                Some((_, needs)) => needs.push(need),
                None => parties.push((Arc::clone(store), vec![need])),
            }
        }
        let parties = parties.into_iter();
        Ok(parties
            .map(|(at, needs)| StoreClaim::new(at, needs))
            .collect())
    }

    fn refuse_keyless(
        &self,
        (rule, fault): (&ConnRule, KeyFault),
        record: &mut RequestRecord,
        now: Millis,
    ) -> Result<Permit, Refusal> {
        let store = &rule.zone.store;
        store.count_refusal(&Key::from_bytes(b""));
        let name = &rule.zone.name.plain;
        self.connections_voice
            .without_key(record, now, fault, (LimitKind::Connections, name));
        let refused = self.refuse_connection(rule, record, now);
        match fault {
            KeyFault::Ambiguous => refused.map_err(Refusal::of_a_bad_request),
            KeyFault::Empty(status) => refused.map_err(|refusal| refusal.without_key(status)),
        }
    }

    fn refuse_connection(
        &self,
        rule: &ConnRule,
        record: &mut RequestRecord,
        now: Millis,
    ) -> Result<Permit, Refusal> {
        if self.connections_voice.dry_run {
            record.limit_conn = Some(LimitStatus::RefuseDryRun);
            self.record_crowd(rule, record, now);
            return Ok(Permit::default());
        }
        record.limit_conn = Some(LimitStatus::Refuse);
        record.limit_zone = Some(Arc::clone(&rule.zone.name.plain));
        Err(Refusal {
            kind: LimitKind::Connections,
            status: rule.action.status.unwrap_or(self.connections_status),
            body: rule.action.body.clone(),
            retry_after: None,
            name: Arc::clone(&rule.zone.name),
            quota: u64::from(rule.limit),
            left: 0,
            own: None,
            policy: self.policy_of(record),
            is_bad_request: false,
            lacks_key: false,
        })
    }
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
            claim.add(store.prefix(), name, &need.bytes, need.rule.limit);
        }
        Self {
            store,
            needs,
            claim: Arc::new(claim),
        }
    }

    /// Takes all places, and waits for them where that is allowed; or says which need cannot be met.
    async fn take(&self, clock: &Clock) -> Result<AcquiredSlots, usize> {
        // Who comes later waits behind.
        let line = self.needs.iter().enumerate().position(|(which, need)| {
            need.queue.is_some() && self.store.has_line(&self.claim, which)
        });
        let full = match line {
            Some(which) => which,
            None => match self.attempt(clock.now()).await {
                Ok(got) => {
                    self.count(false);
                    return Ok(got);
                }
                Err(SlotError::Away) => return self.go_on_without(clock).await,
                Err(SlotError::Full(which)) => which,
            },
        };
        let began = clock.now();
        let got = match self.needs[full].queue {
            Some(queue) => self.wait(full, queue, clock).await,
            None => Err(SlotError::Full(full)),
        };
        match got {
            Ok(got) => {
                self.count(true);
                let waited = clock.now().since(began);
                self.needs[full].rule.zone.delays.observe(waited);
                Ok(got)
            }
            Err(SlotError::Away) => self.go_on_without(clock).await,
            Err(SlotError::Full(which)) => {
                let need = &self.needs[which];
                need.rule.zone.store.count_refusal(&need.key);
                Err(which)
            }
        }
    }

    /// Stands in line for one of its places until it can have all of them.
    async fn wait(
        &self,
        full: usize,
        queue: &ConnQueue,
        clock: &Clock,
    ) -> Result<AcquiredSlots, SlotError> {
        let waiter = self.store.join_line(&self.claim, full, queue.size);
        let waiter = waiter.ok_or(SlotError::Full(full))?;
        let _in_line = QueueGauge::new(&self.needs[full].rule.zone);
        let waiting = async {
            let _turn = waiter.turn().await;
            loop {
                match self.attempt(clock.now()).await {
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

    /// Asks the store once; not where this gateway alone has all places there are.
    async fn attempt(&self, now: Millis) -> Result<AcquiredSlots, SlotError> {
        if self.store.is_away() {
            return Err(SlotError::Away);
        }
        let mut here = SmallVec::new();
        for (which, need) in self.needs.iter().enumerate() {
            let store = &need.rule.zone.store;
            let place = store.take_uncounted(&need.key, need.rule.limit, now);
            here.push(place.map_err(|_| SlotError::Full(which))?);
        }
        match self.store.take(&self.claim, now).await {
            Ok(Ok(there)) => Ok(AcquiredSlots { here, there }),
            Ok(Err(which)) => Err(SlotError::Full(which.min(self.needs.len() - 1))),
            Err(_) => Err(SlotError::Away),
        }
    }

    /// The store is away.
    async fn go_on_without(&self, clock: &Clock) -> Result<AcquiredSlots, usize> {
        let mut here = SmallVec::new();
        for (which, need) in self.needs.iter().enumerate() {
            let (slots, now) = (&need.rule.zone.store, clock.now());
            let place = match (self.store.on_outage(), need.queue) {
                (OnOutage::Allow, _) => slots.take(&need.key, u32::MAX, now),
                (OnOutage::Local, queue) => {
                    let limit = self.store.part_of_places(need.rule.limit);
                    match queue {
                        Some(queue) => {
                            let _in_line = QueueGauge::new(&need.rule.zone);
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
            here.push(place.map_err(|_| which)?);
        }
        let there = self.store.hold_anyway(&self.claim);
        Ok(AcquiredSlots { here, there })
    }

    /// All of its needs are met.
    fn count(&self, waited: bool) {
        for need in &self.needs {
            need.rule.zone.store.count_pass(&need.key, waited);
        }
    }
}
