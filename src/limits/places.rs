//! The places a request needs: one in every `limit_conn` zone of its location, or none.
//!
//! Those of this process are taken first, in the order of the rules. Those that gateways share are then asked for
//! together, one question for each store; while they are held each is a place here as well, so that this gateway
//! knows its own when the store is away.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::Limits;
use super::key::{Found, KeyFault};
use super::rule::Connections;
use super::verdict::{Kind, Permit, Refusal};
use super::zones::ConnZone;
use crate::clock::{Clock, Millis};
use crate::config::plan::{DryRun, OnOutage, Queue};
use crate::message::{Exchange, LimitStatus};
use crate::store::{Claim, Key, Lease, Place, Shared};

/// What a request needs at one store.
struct Party<'r> {
    store: Arc<Shared>,
    needs: Vec<Need<'r>>,
    /// The same in the store's words.
    claim: Arc<Claim>,
}

/// One place.
struct Need<'r> {
    rule: &'r Connections,
    key: Key,
    bytes: Vec<u8>,
    /// How it may be waited for.
    queue: Option<&'r Queue>,
}

/// Somebody in line, who is counted for that long.
struct InLine<'z>(&'z ConnZone);

/// What it has got.
struct Got {
    here: SmallVec<[Place; 2]>,
    there: Lease,
}

/// Why it has got nothing.
enum Lack {
    /// The store does not answer.
    Away,
    /// This need cannot be met.
    Full(usize),
}

impl Limits {
    /// Takes a place in every `limit_conn` zone. A refusal lets go of those already taken, with the permit.
    pub(super) async fn take_places(
        &self,
        exchange: &mut Exchange,
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
            let place = match (rule.zone.find(exchange), &rule.queue) {
                // A dry run changes nothing for the client, so nobody waits in one.
                (Found::Key(key), Some(queue)) if voice.dry_run == DryRun::Off => {
                    let in_line = InLine::new(&rule.zone);
                    let (began, place) = (now, store.wait(&key, rule.limit, queue, now).await);
                    drop(in_line);
                    now = clock.now();
                    // Who finds a place free has it in the same moment.
                    if place.is_ok() && now > began {
                        rule.zone.delays.observe(now.since(began));
                        exchange.limit_zone = Some(Arc::clone(name));
                        exchange.waited(began, now);
                    }
                    place
                }
                (Found::Key(key), _) => store.take(&key, rule.limit, now),
                (Found::Nothing, _) => continue,
                (Found::Refuse(fault), _) => {
                    return self.refuse_keyless((rule, fault), exchange, now);
                }
            };
            let Ok(place) = place else {
                voice.refused_connection(exchange, now, name);
                return self.refuse_connection(rule, exchange, now);
            };
            exchange.limit_conn = Some(LimitStatus::Pass);
            permit.hold(place);
        }
        if shared {
            // Boxed: most locations have no use for it, and every request would keep room.
            return Box::pin(self.take_shared_places(exchange, clock, permit)).await;
        }
        Ok(permit)
    }

    /// Takes those places that gateways share, for a request that has all others.
    async fn take_shared_places(
        &self,
        exchange: &mut Exchange,
        clock: &Clock,
        mut permit: Permit,
    ) -> Result<Permit, Refusal> {
        let parties = match self.parties(exchange) {
            Ok(parties) => parties,
            Err(keyless) => return self.refuse_keyless(keyless, exchange, clock.now()),
        };
        for party in parties {
            match party.take(clock).await {
                Ok(got) => {
                    exchange.limit_conn = Some(LimitStatus::Pass);
                    got.here.into_iter().for_each(|place| permit.hold(place));
                    permit.lease(got.there);
                }
                Err(which) => {
                    let rule = party.needs[which].rule;
                    let (name, now) = (&rule.zone.name.plain, clock.now());
                    self.connections_voice
                        .refused_connection(exchange, now, name);
                    return self.refuse_connection(rule, exchange, now);
                }
            }
        }
        Ok(permit)
    }

    /// What a request needs, store by store; or the rule that does not take one without a key, and why it has none.
    fn parties(&self, exchange: &Exchange) -> Result<Vec<Party<'_>>, (&Connections, KeyFault)> {
        let mut parties: Vec<(Arc<Shared>, Vec<Need<'_>>)> = Vec::new();
        for rule in &self.connections {
            let Some(store) = &rule.zone.shared else {
                continue;
            };
            let mut bytes = Vec::new();
            let key = match rule.zone.find_in_full(exchange, &mut bytes) {
                Found::Key(key) => key,
                Found::Nothing => continue,
                Found::Refuse(fault) => return Err((rule, fault)),
            };
            let dry = self.connections_voice.dry_run;
            let queue = rule.queue.as_ref().filter(|_| dry == DryRun::Off);
            let need = Need {
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
        Ok(parties.map(|(at, needs)| Party::new(at, needs)).collect())
    }

    fn refuse_keyless(
        &self,
        (rule, fault): (&Connections, KeyFault),
        exchange: &mut Exchange,
        now: Millis,
    ) -> Result<Permit, Refusal> {
        let store = &rule.zone.store;
        store.count_refusal(&store.key(b""));
        let name = &rule.zone.name.plain;
        self.connections_voice
            .without_key(exchange, now, fault, (Kind::Connections, name));
        let refused = self.refuse_connection(rule, exchange, now);
        match fault {
            KeyFault::Ambiguous => refused.map_err(Refusal::of_a_bad_request),
            KeyFault::Empty(status) => refused.map_err(|refusal| refusal.without_key(status)),
        }
    }

    fn refuse_connection(
        &self,
        rule: &Connections,
        exchange: &mut Exchange,
        now: Millis,
    ) -> Result<Permit, Refusal> {
        if self.connections_voice.dry_run == DryRun::On {
            exchange.limit_conn = Some(LimitStatus::RefuseDryRun);
            self.record_crowd(rule, exchange, now);
            return Ok(Permit::default());
        }
        exchange.limit_conn = Some(LimitStatus::Refuse);
        exchange.limit_zone = Some(Arc::clone(&rule.zone.name.plain));
        Err(Refusal {
            kind: Kind::Connections,
            status: rule.sanction.status.unwrap_or(self.connections_status),
            body: rule.sanction.body.clone(),
            retry_after: None,
            name: Arc::clone(&rule.zone.name),
            quota: u64::from(rule.limit),
            left: 0,
            own: None,
            policy: self.policy_of(exchange),
            is_bad_request: false,
            lacks_key: false,
        })
    }
}

impl<'z> InLine<'z> {
    fn new(zone: &'z ConnZone) -> Self {
        zone.waiting.fetch_add(1, Ordering::Relaxed);
        Self(zone)
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<'r> Party<'r> {
    fn new(store: Arc<Shared>, needs: Vec<Need<'r>>) -> Self {
        let mut claim = Claim::default();
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
    async fn take(&self, clock: &Clock) -> Result<Got, usize> {
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
                Err(Lack::Away) => return self.go_on_without(clock).await,
                Err(Lack::Full(which)) => which,
            },
        };
        let began = clock.now();
        let got = match self.needs[full].queue {
            Some(queue) => self.wait(full, queue, clock).await,
            None => Err(Lack::Full(full)),
        };
        match got {
            Ok(got) => {
                self.count(true);
                let waited = clock.now().since(began);
                self.needs[full].rule.zone.delays.observe(waited);
                Ok(got)
            }
            Err(Lack::Away) => self.go_on_without(clock).await,
            Err(Lack::Full(which)) => {
                let need = &self.needs[which];
                need.rule.zone.store.count_refusal(&need.key);
                Err(which)
            }
        }
    }

    /// Stands in line for one of its places until it can have all of them.
    async fn wait(&self, full: usize, queue: &Queue, clock: &Clock) -> Result<Got, Lack> {
        let waiter = self.store.join_line(&self.claim, full, queue.size);
        let waiter = waiter.ok_or(Lack::Full(full))?;
        let _in_line = InLine::new(&self.needs[full].rule.zone);
        let waiting = async {
            let _turn = waiter.turn().await;
            loop {
                match self.attempt(clock.now()).await {
                    Err(Lack::Full(which)) if self.needs[which].queue.is_some() => {
                        waiter.pause().await;
                    }
                    other => return other,
                }
            }
        };
        let waited = tokio::time::timeout(queue.timeout, waiting).await;
        waited.unwrap_or(Err(Lack::Full(full)))
    }

    /// Asks the store once; not where this gateway alone has all places there are.
    async fn attempt(&self, now: Millis) -> Result<Got, Lack> {
        if self.store.is_away() {
            return Err(Lack::Away);
        }
        let mut here = SmallVec::new();
        for (which, need) in self.needs.iter().enumerate() {
            let store = &need.rule.zone.store;
            let place = store.reserve(&need.key, need.rule.limit, now);
            here.push(place.map_err(|_| Lack::Full(which))?);
        }
        match self.store.take(&self.claim, now).await {
            Ok(Ok(there)) => Ok(Got { here, there }),
            Ok(Err(which)) => Err(Lack::Full(which.min(self.needs.len() - 1))),
            Err(_) => Err(Lack::Away),
        }
    }

    /// The store is away.
    async fn go_on_without(&self, clock: &Clock) -> Result<Got, usize> {
        let mut here = SmallVec::new();
        for (which, need) in self.needs.iter().enumerate() {
            let (slots, now) = (&need.rule.zone.store, clock.now());
            let place = match (self.store.on_outage(), need.queue) {
                (OnOutage::Allow, _) => slots.take(&need.key, u32::MAX, now),
                (OnOutage::Local, queue) => {
                    let limit = self.store.part_of_places(need.rule.limit);
                    match queue {
                        Some(queue) => {
                            let _in_line = InLine::new(&need.rule.zone);
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
        Ok(Got { here, there })
    }

    /// All of its needs are met.
    fn count(&self, waited: bool) {
        for need in &self.needs {
            need.rule.zone.store.count_pass(&need.key, waited);
        }
    }
}
