//! Counting together with other gateways, in Redis.
//!
//! One script decides about all rules of a request at once, by the server's own clock, and is one round trip. What
//! shaped the rest is that a limit must never become an outage: a decision has a deadline of a few milliseconds,
//! and a store that misses it is left alone until one probe a gateway finds it well again. Meanwhile each gateway
//! goes on by itself, from where it last saw every key stand.

mod alone;
mod aside;
mod breaker;
mod fleet;
mod forget;
mod lane;
mod later;
mod lease;
mod link;
mod name;
mod places;
mod script;
mod share;
mod tend;
#[cfg(test)]
mod tests;
mod units;
mod view;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::cluster_routing::Slot;
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::sync::watch;

pub use self::fleet::Gateway;
pub use self::forget::Unforgotten;
pub use self::lease::{Held, Leases, Verdicts, Word};
pub use self::places::{Claim, Lease, Waiter};
pub use self::script::Answer;
pub use self::view::{Outage, View};

use self::alone::Alone;
use self::breaker::Breaker;
use self::fleet::Fleet;
use self::later::Later;
use self::lease::Desk;
use self::link::{Connector, Link};
use self::places::Places;
use self::script::{DECIDE, Question};
use super::algorithm::{Outcome, Terms};
use crate::clock::Millis;
use crate::config::plan::{Cost, CountRefused, OnOutage, Store, StoreMode};

/// A store that several gateways share.
pub struct Shared {
    /// Tells stores apart where threads keep their connections.
    id: u64,
    name: Box<str>,
    timeout: Duration,
    on_outage: OnOutage,
    mode: StoreMode,
    /// Beyond which multiple of its limit a key is decided about here.
    local_above: Option<u32>,
    connector: Connector,
    /// This gateway's name among those that share it.
    gateway: String,
    breaker: Breaker,
    /// How often it has come back.
    revived: watch::Sender<u64>,
    fleet: Mutex<Fleet>,
    fleet_size: AtomicU32,
    outage: Mutex<Option<Outage>>,
    asked: AtomicU64,
    missed: AtomicU64,
    desk: Desk,
    places: Places,
    later: Later,
    alone: Alone,
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
pub struct Away;

/// The questions of one request to one store.
#[derive(Debug, Default)]
pub struct Inquiry {
    questions: Vec<Question>,
}

impl Inquiry {
    /// Adds one about a key of a zone.
    pub fn add(
        &mut self,
        zone: &str,
        key: &[u8],
        terms: &Terms,
        cost: Cost,
        refused: CountRefused,
    ) {
        let mut name = Vec::with_capacity(64);
        name::append(&mut name, zone, key);
        self.questions
            .push(Question::new(name, terms, cost, refused));
    }

    /// What was added last may wait so long until it would pass, where it is over the burst.
    pub fn may_wait(&mut self, longest: Option<Duration>) {
        if let Some(question) = self.questions.last_mut() {
            question.patience = longest;
        }
    }
}

impl Shared {
    /// A store as planned; nothing is connected yet.
    ///
    /// # Errors
    /// When its settings cannot work, whatever the server says.
    pub fn new(store: &Store) -> Result<Arc<Self>, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name: store.name.clone(),
            timeout: store.timeout,
            on_outage: store.on_outage,
            mode: store.mode,
            local_above: store.local_above,
            connector: Connector::new(store)?,
            gateway: fleet::name(),
            breaker: Breaker::default(),
            revived: watch::Sender::new(0),
            fleet: Mutex::default(),
            fleet_size: AtomicU32::new(1),
            outage: Mutex::default(),
            asked: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            desk: Desk::default(),
            places: Places::default(),
            later: Later::default(),
            alone: Alone::default(),
        }))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What decides while it is away.
    #[must_use]
    pub fn on_outage(&self) -> OnOutage {
        self.on_outage
    }

    /// How many gateways shared it when that was last known.
    #[must_use]
    pub fn fleet_size(&self) -> u32 {
        self.fleet_size.load(Ordering::Relaxed)
    }

    /// What this gateway holds keys to while it counts alone.
    #[must_use]
    pub fn part_of(&self, terms: &Terms) -> Terms {
        share::of(terms, self.fleet_size())
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

    /// Asks all of an inquiry, and charges all unless one is refused. The answers are in its order; where a cluster
    /// spreads the keys, some are missing after a refusal.
    ///
    /// # Errors
    /// When no answer comes in time, or none can.
    pub async fn ask(&self, inquiry: &Inquiry, now: Millis) -> Result<Vec<Option<Answer>>, Away> {
        let mut link = self.link()?;
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.in_time(converse(&mut link, &inquiry.questions), now)
            .await
    }

    /// An answer that a decision waits for, if it comes in time.
    async fn in_time<T>(
        &self,
        asking: impl Future<Output = Result<T, RedisError>>,
        now: Millis,
    ) -> Result<T, Away> {
        match tokio::time::timeout(self.timeout, asking).await {
            Ok(Ok(answer)) => {
                self.breaker.hit();
                Ok(answer)
            }
            Ok(Err(error)) => Err(self.failed(&error, now)),
            Err(_) => {
                self.missed.fetch_add(1, Ordering::Relaxed);
                if self.breaker.miss() {
                    self.note_outage(now, format!("no answer within {:?}", self.timeout));
                }
                Err(Away)
            }
        }
    }

    /// Takes back what was charged, for a request that somebody else refused.
    pub async fn give_back(&self, inquiry: &Inquiry, now: Millis) {
        let Ok(mut link) = self.link() else { return };
        let giving = tell(&mut link, "refund", &inquiry.questions);
        if let Ok(Err(error)) = tokio::time::timeout(self.timeout, giving).await {
            self.failed(&error, now);
        }
    }

    /// This thread's connection.
    fn link(&self) -> Result<Link, Away> {
        if self.breaker.is_open() {
            return Err(Away);
        }
        lane::link(self.id, self.epoch()).ok_or(Away)
    }

    /// How often it has come back.
    fn epoch(&self) -> u64 {
        *self.revived.borrow()
    }

    fn failed(&self, error: &RedisError, now: Millis) -> Away {
        self.missed.fetch_add(1, Ordering::Relaxed);
        if error.is_unrecoverable_error() {
            // Servers close idle connections. Whether this was more is seen when it is opened again.
            lane::lose(self.id);
        } else if self.breaker.fail() {
            self.note_outage(now, in_words(error));
        }
        Away
    }
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
impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Asks where the keys are: at one server all at once; in a cluster slot by slot, and what was reserved is given back
/// when a later one refuses.
async fn converse(
    link: &mut Link,
    questions: &[Question],
) -> Result<Vec<Option<Answer>>, RedisError> {
    let slots = if link.is_cluster() {
        by_slot(questions)
    } else {
        vec![questions.iter().collect()]
    };
    let mut answers = vec![None; questions.len()];
    for (done, slot) in slots.iter().enumerate() {
        let answer = perform(link, "charge", slot).await?;
        let heard = script::answers(slot.iter().copied(), &answer);
        let heard = heard.ok_or((ErrorKind::UnexpectedReturnType, "not an answer of ours"))?;
        let refused = heard
            .iter()
            .any(|answer| matches!(answer.outcome, Outcome::Refuse { .. }));
        for (question, answer) in slot.iter().zip(heard) {
            if let Some(index) = questions
                .iter()
                .position(|other| std::ptr::eq(*question, other))
            {
                answers[index] = Some(answer);
            }
        }
        if refused {
            for reserved in &slots[..done] {
                perform(link, "refund", reserved).await?;
            }
            break;
        }
    }
    Ok(answers)
}

/// What nobody waits for an answer to.
async fn tell(link: &mut Link, act: &str, questions: &[Question]) -> Result<(), RedisError> {
    let slots = if link.is_cluster() {
        by_slot(questions)
    } else {
        vec![questions.iter().collect()]
    };
    for slot in &slots {
        perform(link, act, slot).await?;
    }
    Ok(())
}

/// One script, run once.
async fn perform(link: &mut Link, act: &str, questions: &[&Question]) -> Result<Value, RedisError> {
    let write = |command: &mut redis::Cmd| {
        command.arg(questions.len());
        for question in questions {
            command.arg(&question.name);
        }
        command.arg(act);
        for question in questions {
            question.write(command);
        }
    };
    DECIDE.perform(link, write).await
}

/// Questions whose keys live together, in the order of the first of each.
fn by_slot(questions: &[Question]) -> Vec<Vec<&Question>> {
    let mut slots: Vec<(Slot, Vec<&Question>)> = Vec::new();
    for question in questions {
        let slot = Slot::for_key(&question.name);
        match slots.iter_mut().find(|(known, _)| *known == slot) {
            Some((_, together)) => together.push(question),
            None => slots.push((slot, vec![question])),
        }
    }
    slots.into_iter().map(|(_, together)| together).collect()
}
