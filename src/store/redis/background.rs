//! What goes on beside the requests: connections are kept, gateways say that they are there, and a store that is away
//! is asked now and then whether it is back.
//!
//! What is said to a store beside the requests: each event loop has a task that says what its requests left behind.
//!
//! What is said to a store when a request is over, without anybody waiting for it: what it turned out to cost, and that its key has
//! to stay out for a while.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use redis::RedisError;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::connection::{LateShare, RecoveryProbes, RedisConnection};
use super::lease::LeaseHoldings;
use super::request::{StoreRequest, tell};
use super::{SharedStore, StoreOutage, connection, in_words};
use crate::clock::{Clock, Millis};
use crate::config::plan::OnOutage;

impl SharedStore {
    /// Connects this thread.
    pub async fn connect(&self, clock: &Clock) {
        let epoch = self.epoch();
        match timed(CONNECTED, self.connector.connect()).await {
            Ok(link) => connection::set(self.id, epoch, link),
            Err(why) => self.give_up(clock.now(), why),
        }
    }

    /// Keeps this thread connected, for as long as it is polled.
    pub async fn tend(self: Arc<Self>, clock: Clock) {
        let mut revived = self.revived.subscribe();
        let lost = connection::lost(self.id);
        loop {
            tokio::select! {
                () = lost.notified() => {}
                _ = revived.changed() => {}
                () = tokio::time::sleep(IDLE) => {
                    if self.is_alive().await {
                        continue;
                    }
                    connection::lose(self.id);
                }
            }
            // Not all loops of all gateways at the same moment.
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..20))).await;
            // While it is away, one probe does for all threads.
            if !self.breaker.is_open() {
                self.connect(&clock).await;
            }
        }
    }

    /// Closes this thread's connection.
    pub fn part(&self) {
        connection::part(self.id);
    }

    /// What is done once for the whole process.
    pub async fn watch(self: Arc<Self>, clock: Clock) {
        tokio::join!(self.report(&clock), self.keep(&clock), self.book(&clock));
    }

    /// Reports to the store that this gateway is there, and probes it while it is away.
    async fn report(&self, clock: &Clock) {
        let mut reports = Reports::default();
        let mut recovery = RecoveryProbes::default();
        // When the store is probed next, while it is away.
        let mut probe_at: Option<Millis> = None;
        let mut lateness = LateShare::default();
        loop {
            let (asked, late) = (&self.asked, &self.late);
            let (asked, late) = (asked.load(Ordering::Relaxed), late.load(Ordering::Relaxed));
            if let Some(percent) = lateness.look(clock.now(), asked, late) {
                self.note_lateness(percent);
            }
            let probes = probe_at.is_some_and(|at| clock.now() >= at);
            let reported = self.report_once(&mut reports, probes, clock).await;
            let now = clock.now();
            self.in_reach.store(reported.is_ok(), Ordering::Relaxed);
            let mut pause = REPORT_INTERVAL;
            match reported {
                Ok(in_time) => {
                    if probes && recovery.answered(now, in_time) && self.breaker.recover() {
                        self.note_recovery(now);
                        probe_at = None;
                    }
                }
                Err(why) => {
                    reports = Reports::default();
                    recovery.missed();
                    self.give_up(now, why);
                    pause = Duration::MAX;
                }
            }
            if self.breaker.is_open() {
                if probe_at.is_none() {
                    recovery.begin(now);
                }
                let next = match probe_at {
                    Some(at) if at > now => at,
                    _ => now.after(jittered(recovery.pause())),
                };
                probe_at = Some(next);
                pause = pause.min(next.since(now));
            } else {
                probe_at = None;
                pause = pause.min(REPORT_INTERVAL);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Tells the others that this gateway is gone.
    pub async fn leave(&self, clock: &Clock) {
        let leaving = async {
            let mut link = self.connector.connect().await?;
            self.give_all_back(&link, clock).await;
            if let Err(why) = self.book_all(&mut link, clock.now()).await {
                tracing::debug!(store = &*self.name, why, "could not charge what passed");
            }
            self.clear_places(&mut link).await;
            self.clear_owed(&mut link).await;
            self.lists.goodbye(&mut link, &self.gateway).await
        };
        if !self.breaker.is_open()
            && let Err(why) = timed(GOODBYE, leaving).await
        {
            tracing::debug!(store = &*self.name, why, "could not say goodbye");
        }
    }

    /// Reports once; whether a probe is answered in time. What passed without the store is charged before it can be back.
    async fn report_once(
        &self,
        reports: &mut Reports,
        probes: bool,
        clock: &Clock,
    ) -> Result<bool, String> {
        let link = match &mut reports.connection {
            Some(link) => link,
            empty => empty.insert(timed(CONNECTED, self.connector.connect()).await?),
        };
        let now = clock.now();
        let lists = probes
            || reports
                .listed
                .is_none_or(|at| now.since(at) >= LIST_INTERVAL);
        let held = lists.then(|| LeaseHoldings::write(&self.desk.held()));
        if lists {
            // Taught and warm before it is measured.
            timed(PROBE_TIMEOUT, link.all_there()).await?;
            reports.listed = Some(now);
        }
        let report = async |link: &mut RedisConnection| {
            let report = self
                .lists
                .report(link, &self.gateway, &self.fleet, held.as_deref());
            timed(PROBE_TIMEOUT, report).await
        };
        let reply = report(link).await?;
        let change = self.fleet.hear(reply, clock.now());
        self.forget_here(&change.forgotten);
        if change.lost {
            tracing::warn!("store \"{}\" has lost its memory", self.name);
            // What was leased there is not charged any more.
            self.desk.lose_leases();
        }
        if !probes {
            return Ok(true);
        }
        self.book_all(link, clock.now()).await?;
        let asked = tokio::time::Instant::now();
        report(link).await?;
        Ok(asked.elapsed() <= self.timeout)
    }

    async fn is_alive(&self) -> bool {
        match connection::link(self.id, self.epoch()) {
            Some(mut link) => timed(PROBE_TIMEOUT, link.send(&redis::cmd("PING")))
                .await
                .is_ok(),
            // Whoever lost it has said so.
            None => true,
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
            OnOutage::Local => match self.fleet_size() {
                1 => "its zones are counted by this gateway alone".to_owned(),
                many => format!("its zones are counted by each gateway with 1/{many} of the rate"),
            },
            OnOutage::Refuse => "its zones refuse all requests".to_owned(),
        };
        tracing::warn!("store \"{}\" is away, {why}: {meanwhile}", self.name);
        *self.outage.lock() = Some(StoreOutage { since: now, why });
    }

    fn note_lateness(&self, percent: u64) {
        tracing::warn!(
            "store \"{}\" answers too late: {percent} % of the decisions of the last minute took longer than its timeout of \
             {:?}, and were made without it; a longer timeout may suit it better",
            self.name,
            self.timeout,
        );
    }

    fn note_recovery(&self, now: Millis) {
        let outage = self.outage.lock().take();
        let lasted = outage.map_or(Duration::ZERO, |outage| now.since(outage.since));
        tracing::info!("store \"{}\" is back after {lasted:?}", self.name);
        self.revived.send_modify(|times| *times += 1);
    }
}

/// The connection for reports, and when the list of gateways was last asked for over it.
#[derive(Default)]
struct Reports {
    connection: Option<RedisConnection>,
    listed: Option<Millis>,
}

/// A fleet that lost its store at one moment must not ask for it in step.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.75 + fastrand::f64() / 2.0)
}

/// Waits no longer than this, and says what went wrong in words.
async fn timed<T>(
    most: Duration,
    doing: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, String> {
    match tokio::time::timeout(most, doing).await {
        Ok(done) => done.map_err(|error| in_words(&error)),
        Err(_) => Err(format!("no answer within {most:?}")),
    }
}

/// How long a connection may take, all in.
const CONNECTED: Duration = Duration::from_secs(2);

/// How long a server may take over a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long leaving may take, all in: a new connection, over TLS perhaps, and everything that is given back. Whoever goes
/// in a hurry leaves behind what others could have had.
const GOODBYE: Duration = Duration::from_secs(2);

/// How often a gateway reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// How often it asks for the list of all gateways.
const LIST_INTERVAL: Duration = Duration::from_secs(1);

/// How often a connection is tried that may have nothing to do.
const IDLE: Duration = Duration::from_secs(10);

impl SharedStore {
    /// Gives back the places that requests of this thread let go of, charges what they turned out to cost, waits for answers
    /// that they did not wait for, and speaks for places that are held for long; for as long as it is polled.
    pub async fn follow_up(self: Arc<Self>, clock: Clock) {
        let left = left(self.id);
        let mut beat = tokio::time::interval(SLOTS_INTERVAL);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // What is said is not waited for: what comes next would wait for what came before.
        let mut saying = JoinSet::new();
        loop {
            tokio::select! {
                () = left.notified() => {}
                _ = beat.tick() => self.renew_places(clock.now(), &mut saying),
                Some(_) = saying.join_next(), if !saying.is_empty() => continue,
            }
            self.give_places_back(clock.now(), &mut saying);
            self.send_owed(clock.now(), &mut saying);
            self.wait_for_late(&mut saying);
        }
    }
}

/// Tells this thread's task that a request left something behind.
pub(super) fn wake(store: u64) {
    // At the very end of a thread there is nobody left to tell.
    let _gone = LEFT.try_with(|all| notify(&mut all.borrow_mut(), store).notify_one());
}

/// What tells that something was left behind on this thread.
fn left(store: u64) -> Arc<Notify> {
    LEFT.with_borrow_mut(|all| Arc::clone(notify(all, store)))
}

fn notify(all: &mut Vec<(u64, Arc<Notify>)>, store: u64) -> &Arc<Notify> {
    let index = all.iter().position(|(known, _)| *known == store);
    let index = index.unwrap_or_else(|| {
        all.push((store, Arc::default()));
        all.len() - 1
    });
    &all[index].1
}

thread_local! {
    static LEFT: RefCell<Vec<(u64, Arc<Notify>)>> = const { RefCell::new(Vec::new()) };
}

/// How often it is looked which places have to be spoken for.
const SLOTS_INTERVAL: Duration = Duration::from_secs(1);

/// What is still to be said.
#[derive(Debug, Default)]
pub(super) struct DeferredCharges {
    owed: Mutex<Vec<StoreRequest>>,
    /// Keys that have to stay out, each until a moment.
    sentences: Mutex<Vec<(StoreRequest, Millis)>>,
}

impl SharedStore {
    /// Charges an inquiry that was let in before its cost was known, whatever is left.
    pub fn charge_later(&self, inquiry: StoreRequest) {
        let mut owed = self.later.owed.lock();
        if owed.len() < MOST {
            owed.push(inquiry);
        } else {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
        drop(owed);
        wake(self.id);
    }

    /// Lets the other gateways know that the keys of an inquiry have to stay out for so long.
    pub fn punish_later(&self, inquiry: StoreRequest, now: Millis, term: Duration) {
        let mut sentences = self.later.sentences.lock();
        if sentences.len() < MOST {
            sentences.push((inquiry, now.after(term)));
        }
        drop(sentences);
        wake(self.id);
    }

    /// Sends what is to be said.
    pub(super) fn send_owed(self: &Arc<Self>, now: Millis, sending: &mut JoinSet<()>) {
        // Without a connection it stays owed until there is one again.
        let Ok(link) = self.link() else { return };
        for (mut inquiry, until) in std::mem::take(&mut *self.later.sentences.lock()) {
            if until > now {
                inquiry.may_wait(Some(until.since(now)));
                self.send_later(&link, PUNISH, inquiry, now, sending);
            }
        }
        for inquiry in self.owed() {
            self.send_later(&link, DEBIT, inquiry, now, sending);
        }
    }

    fn send_later(
        self: &Arc<Self>,
        link: &RedisConnection,
        act: &'static str,
        inquiry: StoreRequest,
        now: Millis,
        sending: &mut JoinSet<()>,
    ) {
        let (mut link, store) = (link.clone(), Arc::clone(self));
        sending.spawn(async move {
            let telling = tell(&mut link, act, &inquiry.questions);
            if let Ok(Err(error)) = tokio::time::timeout(CHARGE_TIMEOUT, telling).await {
                store.failed(&error, now);
            }
        });
    }

    /// Sends what is left of it, for a gateway that is going.
    pub(super) async fn clear_owed(&self, link: &mut RedisConnection) {
        for inquiry in self.owed() {
            if tell(link, DEBIT, &inquiry.questions).await.is_err() {
                return;
            }
        }
    }

    fn owed(&self) -> Vec<StoreRequest> {
        std::mem::take(&mut *self.later.owed.lock())
    }
}

const DEBIT: &str = "debit";

const PUNISH: &str = "punish";

/// More than this is not kept for a server that is slow to hear.
const MOST: usize = 10_000;

/// How long a server may take to hear.
const CHARGE_TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {

    use super::*;

    async fn is_woken(task: &Notify) -> bool {
        let woken = tokio::time::timeout(Duration::ZERO, task.notified());
        woken.await.is_ok()
    }

    #[tokio::test]
    async fn what_is_left_behind_wakes_the_task_of_its_own_store() {
        let (one, two) = (left(1), left(2));
        wake(2);
        assert!(is_woken(&two).await);
        assert!(!is_woken(&one).await);
        wake(1);
        assert!(is_woken(&one).await);
        assert!(!is_woken(&two).await, "it was told once");
    }
}
