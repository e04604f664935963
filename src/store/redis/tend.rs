//! What goes on beside the requests: connections are kept, gateways say that they are there, and a store that is away
//! is asked now and then whether it is back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::RedisError;

use super::fleet::{self, Fleet};
use super::lane;
use super::link::Link;
use super::{Held, Outage, Shared, in_words};
use crate::clock::{Clock, Millis};
use crate::config::plan::OnOutage;

impl Shared {
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
        tokio::join!(self.beat(&clock), self.keep(&clock));
    }

    /// Says that this gateway is there and finds out whether the store is.
    async fn beat(&self, clock: &Clock) {
        let mut link = None;
        loop {
            let away = self.breaker.is_open();
            match self.probe(&mut link, away).await {
                Ok(fleet) => {
                    self.fleet_size.store(fleet.size, Ordering::Relaxed);
                    *self.fleet.lock() = fleet;
                    if self.breaker.recover() {
                        self.note_recovery(clock.now());
                    }
                }
                Err(why) => {
                    link = None;
                    self.give_up(clock.now(), why);
                }
            }
            let pause = if self.breaker.is_open() { PROBE } else { BEAT };
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
            self.clear_places(&mut link).await;
            self.clear_owed(&mut link).await;
            fleet::goodbye(&mut link, &self.gateway).await
        };
        if !self.breaker.is_open()
            && let Err(why) = timed(GOODBYE, leaving).await
        {
            tracing::debug!(store = &*self.name, why, "could not say goodbye");
        }
    }

    async fn probe(&self, link: &mut Option<Link>, away: bool) -> Result<Fleet, String> {
        let link = match link {
            Some(link) => link,
            None => link.insert(timed(CONNECTED, self.connector.connect()).await?),
        };
        let held = Held::write(&self.desk.held());
        // Taught and warm before it is measured.
        timed(HEARD, link.all_there()).await?;
        let fleet = timed(HEARD, fleet::hello(link, &self.gateway, &held)).await?;
        if away {
            // Whoever is too slow for requests is not back.
            timed(self.timeout, fleet::hello(link, &self.gateway, &held)).await?;
        }
        Ok(fleet)
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
        *self.outage.lock() = Some(Outage { since: now, why });
    }

    fn note_recovery(&self, now: Millis) {
        let outage = self.outage.lock().take();
        let lasted = outage.map_or(Duration::ZERO, |outage| now.since(outage.since));
        tracing::info!("store \"{}\" is back after {lasted:?}", self.name);
        // It may have been emptied, or be another server: what it said before is not worth much.
        self.desk.forget();
        self.alone.forget();
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

/// How often a store that is away is asked.
const PROBE: Duration = Duration::from_millis(400);

/// How often a connection is tried that may have nothing to do.
const IDLE: Duration = Duration::from_secs(10);
