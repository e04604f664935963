//! What goes on beside the requests: connections are kept, gateways say that they are there, and a store that is away
//! is asked now and then whether it is back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::RedisError;

use super::breaker::RecoveryProbes;
use super::lane;
use super::lateness::LateShare;
use super::link::RedisConnection;
use super::{LeaseHoldings, SharedStore, StoreOutage, in_words};
use crate::clock::{Clock, Millis};
use crate::config::plan::OnOutage;

impl SharedStore {
    /// Connects this thread.
    pub async fn connect(&self, clock: &Clock) {
        let epoch = self.epoch();
        match timed(CONNECTED, self.connector.connect()).await {
            Ok(link) => lane::set(self.id, epoch, link),
            Err(why) => self.give_up(clock.now(), why),
        }
    }

    /// Keeps this thread connected, for as long as it is polled.
    pub async fn tend(self: Arc<Self>, clock: Clock) {
        let mut revived = self.revived.subscribe();
        let lost = lane::lost(self.id);
        loop {
            tokio::select! {
                () = lost.notified() => {}
                _ = revived.changed() => {}
                () = tokio::time::sleep(IDLE) => {
                    if self.is_alive().await {
                        continue;
                    }
                    lane::lose(self.id);
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
        lane::part(self.id);
    }

    /// What is done once for the whole process.
    pub async fn watch(self: Arc<Self>, clock: Clock) {
        tokio::join!(self.beat(&clock), self.keep(&clock), self.book(&clock));
    }

    /// Says that this gateway is there and finds out whether the store is.
    async fn beat(&self, clock: &Clock) {
        let mut link = None;
        let mut way_back = RecoveryProbes::default();
        let mut was_away = false;
        let mut lateness = LateShare::default();
        loop {
            let (asked, late) = (&self.asked, &self.late);
            let (asked, late) = (asked.load(Ordering::Relaxed), late.load(Ordering::Relaxed));
            if let Some(percent) = lateness.look(clock.now(), asked, late) {
                self.note_lateness(percent);
            }
            let away = self.breaker.is_open();
            if away && !was_away {
                way_back.begin(clock.now());
            }
            let probed = self.probe(&mut link, away, clock).await;
            self.in_reach.store(probed.is_ok(), Ordering::Relaxed);
            match probed {
                Ok(in_time) => {
                    if away && way_back.answered(clock.now(), in_time) && self.breaker.recover() {
                        self.note_recovery(clock.now());
                    }
                }
                Err(why) => {
                    link = None;
                    way_back.missed();
                    self.give_up(clock.now(), why);
                }
            }
            was_away = away && self.breaker.is_open();
            let pause = if was_away { way_back.pause() } else { BEAT };
            // A fleet that lost its store at one moment must not ask for it in step.
            let pause = pause.mul_f64(0.75 + fastrand::f64() / 2.0);
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

    /// Whether it answers in time, where that is asked for. What passed without it is charged before it can be back.
    async fn probe(
        &self,
        link: &mut Option<RedisConnection>,
        away: bool,
        clock: &Clock,
    ) -> Result<bool, String> {
        let link = match link {
            Some(link) => link,
            None => link.insert(timed(CONNECTED, self.connector.connect()).await?),
        };
        let held = LeaseHoldings::write(&self.desk.held());
        // Taught and warm before it is measured.
        timed(HEARD, link.all_there()).await?;
        let hello = async |link: &mut RedisConnection| {
            let saying = self.lists.hello(link, &self.gateway, &held);
            timed(HEARD, saying).await
        };
        let roll = hello(link).await?;
        let news = self.fleet.hear(roll, clock.now());
        self.forget_here(&news.forgotten);
        if news.lost {
            tracing::warn!("store \"{}\" has lost its memory", self.name);
            // What was leased there is not charged any more.
            self.desk.forget();
        }
        if !away {
            return Ok(true);
        }
        self.book_all(link, clock.now()).await?;
        let asked = tokio::time::Instant::now();
        hello(link).await?;
        Ok(asked.elapsed() <= self.timeout)
    }

    async fn is_alive(&self) -> bool {
        match lane::link(self.id, self.epoch()) {
            Some(mut link) => timed(HEARD, link.send(&redis::cmd("PING"))).await.is_ok(),
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
const HEARD: Duration = Duration::from_secs(1);

/// How long leaving may take, all in: a new connection, over TLS perhaps, and everything that is given back. Whoever goes
/// in a hurry leaves behind what others could have had.
const GOODBYE: Duration = Duration::from_secs(2);

/// How often a gateway says that it is there.
const BEAT: Duration = Duration::from_secs(1);

/// How often a connection is tried that may have nothing to do.
const IDLE: Duration = Duration::from_secs(10);
