//! The background tasks of a store: each event loop keeps its connection and sends what its requests left behind, and one task of the
//! process reports to the store and probes it while it is away.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::RedisError;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::SharedStore;
use super::connection::{self, LateShare, RecoveryProbes, RedisConnection};
use super::fleet::LeaseHoldings;
use super::handle::describe;
use crate::clock::{Clock, Millis};

impl SharedStore {
    /// Connects this thread.
    pub async fn connect(&self, clock: &Clock) {
        let epoch = self.handle.epoch();
        match timed(CONNECTED, self.handle.connector.connect()).await {
            Ok(connection) => connection::set(self.handle.id, epoch, connection),
            Err(why) => self.handle.give_up(clock.now(), why),
        }
    }

    /// Keeps this thread connected, for as long as it is polled.
    pub async fn tend(self: Arc<Self>, clock: Clock) {
        let mut revived = self.handle.revived.subscribe();
        let lost = connection::lost(self.handle.id);
        loop {
            tokio::select! {
                () = lost.notified() => {}
                _ = revived.changed() => {}
                () = tokio::time::sleep(IDLE) => {
                    if self.is_alive().await {
                        continue;
                    }
                    connection::lose(self.handle.id);
                }
            }
            // Not all loops of all gateways at the same moment.
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..20))).await;
            // While it is away, one probe does for all threads.
            if !self.handle.breaker.is_open() {
                self.connect(&clock).await;
            }
        }
    }

    /// Closes this thread's connection.
    pub fn part(&self) {
        connection::part(self.handle.id);
    }

    /// What is done once for the whole process.
    pub async fn watch(self: Arc<Self>, clock: Clock) {
        tokio::join!(
            self.report(&clock),
            self.leases.run(&clock),
            self.charges.send_always(&self.handle, &clock)
        );
    }

    /// Releases the slots of finished requests of this thread, sends their deferred charges, waits for replies that came too
    /// late for them, and renews slots that are held for long; for as long as it is polled.
    pub async fn follow_up(self: Arc<Self>, clock: Clock) {
        let pending = connection::pending(self.handle.id);
        let mut beat = tokio::time::interval(SLOTS_INTERVAL);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Updates are not awaited one by one: the next would wait for the one before.
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                () = pending.notified() => {}
                _ = beat.tick() => self.slots.renew(clock.now(), &mut tasks),
                Some(_) = tasks.join_next(), if !tasks.is_empty() => continue,
            }
            self.slots.release(clock.now(), &mut tasks);
            self.deferred.send(&self.handle, clock.now(), &mut tasks);
            for reply in std::mem::take(&mut *self.late.lock()) {
                tasks.spawn(reply);
            }
        }
    }

    /// Reports to the store that this gateway is there, and probes it while it is away.
    async fn report(&self, clock: &Clock) {
        let mut reports = Reports::default();
        let mut recovery = RecoveryProbes::default();
        // When the store is probed next, while it is away.
        let mut probe_at: Option<Millis> = None;
        let mut lateness = LateShare::default();
        loop {
            let (asked, late) = (&self.handle.asked, &self.handle.late);
            let (asked, late) = (asked.load(Ordering::Relaxed), late.load(Ordering::Relaxed));
            if let Some(percent) = lateness.look(clock.now(), asked, late) {
                self.handle.note_lateness(percent);
            }
            let probes = probe_at.is_some_and(|at| clock.now() >= at);
            let reported = self.report_once(&mut reports, probes, clock).await;
            let now = clock.now();
            self.handle
                .in_reach
                .store(reported.is_ok(), Ordering::Relaxed);
            let mut pause = REPORT_INTERVAL;
            match reported {
                Ok(in_time) => {
                    if probes && recovery.answered(now, in_time) && self.handle.breaker.recover() {
                        self.handle.note_recovery(now);
                        probe_at = None;
                    }
                }
                Err(why) => {
                    reports = Reports::default();
                    recovery.answered(now, false);
                    self.handle.give_up(now, why);
                    pause = Duration::MAX;
                }
            }
            if self.handle.breaker.is_open() {
                if probe_at.is_none() {
                    recovery.begin(now);
                }
                let next = match probe_at {
                    // One that became due meanwhile is made at once.
                    Some(at) if !probes => at,
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

    /// Gives everything back and signs this gateway off.
    pub async fn leave(&self, clock: &Clock) {
        let leaving = async {
            let mut connection = self.handle.connector.connect().await?;
            self.leases.return_all(&connection, clock).await;
            if let Err(why) = self
                .charges
                .send_all(&self.handle, &mut connection, clock.now())
                .await
            {
                tracing::debug!(
                    store = &*self.handle.name,
                    why,
                    "could not charge what passed"
                );
            }
            self.slots.release_all(&mut connection).await;
            self.deferred.send_last(&mut connection).await;
            self.handle
                .lists
                .sign_off(&mut connection, &self.handle.gateway)
                .await
        };
        if !self.handle.breaker.is_open()
            && let Err(why) = timed(SIGN_OFF_TIMEOUT, leaving).await
        {
            tracing::debug!(store = &*self.handle.name, why, "could not say goodbye");
        }
    }

    /// Reports once; whether a probe is answered in time. What passed without the store is charged before it can be back.
    async fn report_once(
        &self,
        reports: &mut Reports,
        probes: bool,
        clock: &Clock,
    ) -> Result<bool, String> {
        let connection = match &mut reports.connection {
            Some(connection) => connection,
            empty => empty.insert(timed(CONNECTED, self.handle.connector.connect()).await?),
        };
        let now = clock.now();
        let lists = probes
            || reports
                .listed
                .is_none_or(|at| now.since(at) >= LIST_INTERVAL);
        let held = lists.then(|| LeaseHoldings::write(&self.leases.held.lock()));
        if lists {
            // Taught and warm before it is measured.
            timed(PROBE_TIMEOUT, connection.ping_masters()).await?;
            reports.listed = Some(now);
        }
        let report = async |connection: &mut RedisConnection| {
            let report = self.handle.lists.report(
                connection,
                &self.handle.gateway,
                &self.handle.fleet,
                held.as_deref(),
            );
            timed(PROBE_TIMEOUT, report).await
        };
        let reply = report(connection).await?;
        let change = self.handle.fleet.update(reply, clock.now());
        self.forget_here(&change.forgotten);
        if change.lost {
            tracing::warn!("store \"{}\" has lost its memory", self.handle.name);
            // What was leased there is not charged any more.
            self.leases.lose_leases();
        }
        if !probes {
            return Ok(true);
        }
        self.charges
            .send_all(&self.handle, connection, clock.now())
            .await?;
        let asked = tokio::time::Instant::now();
        report(connection).await?;
        Ok(asked.elapsed() <= self.handle.timeout)
    }

    async fn is_alive(&self) -> bool {
        match connection::current(self.handle.id, self.handle.epoch()) {
            Some(mut connection) => timed(PROBE_TIMEOUT, connection.send(&redis::cmd("PING")))
                .await
                .is_ok(),
            // The code that lost it has notified this task.
            None => true,
        }
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
        Ok(done) => done.map_err(|error| describe(&error)),
        Err(_) => Err(format!("no answer within {most:?}")),
    }
}

/// How long a connection may take, all in.
const CONNECTED: Duration = Duration::from_secs(2);

/// How long a server may take over a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long signing off may take, all in: a new connection, over TLS perhaps, and everything that is given back. What a
/// gateway does not give back is lost to the others for a while.
const SIGN_OFF_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a gateway reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// How often it asks for the list of all gateways.
const LIST_INTERVAL: Duration = Duration::from_secs(1);

/// How often a connection is tried that may have nothing to do.
const IDLE: Duration = Duration::from_secs(10);

/// How often it is checked which slots have to be renewed.
const SLOTS_INTERVAL: Duration = Duration::from_secs(1);
