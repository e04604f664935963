//! The questions of one request to a store, and what becomes of those whose answer comes too late.
//!
//! A question that misses its deadline is decided by this gateway, and its answer is still waited for: the store may
//! have charged what was refused here, which is then given back, or refused what passed here, which is then owed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use redis::cluster_routing::Slot;
use redis::{ErrorKind, RedisError, Value};
use tokio::task::JoinSet;

use super::connection::RedisConnection;
use super::outage::OutageCharge;
use super::script::{DECIDE, KeyCheck};
use super::{SharedStore, StoreMiss, background, script};
use crate::algorithm::{Cost, LimitSpec, Verdict};
use crate::clock::Millis;
use crate::store::rate_zone::StoreVerdict;

/// The questions of one request to one store.
#[derive(Debug, Default)]
pub struct StoreRequest {
    pub(super) questions: Vec<KeyCheck>,
    /// The time in which the slowest of its keys drains.
    period: Duration,
    /// Whether the store is known to have lost its memory.
    lost: bool,
}

/// A question that this gateway has to decide by itself.
// A request is shared between threads while it waits, and an answer on its way is not.
pub struct LocalDecision(Option<(Mutex<PendingReply>, Arc<StoreRequest>)>);

/// The answer to a question, on its way. It gives the connection back.
type PendingReply = Pin<Box<dyn Future<Output = (RedisConnection, PendingReplies)> + Send>>;

type PendingReplies = Result<Vec<Option<StoreVerdict>>, RedisError>;

/// What remains to be done about late answers.
#[derive(Default)]
pub(super) struct LateReplies(Mutex<Vec<Pin<Box<dyn Future<Output = ()> + Send>>>>);

impl StoreRequest {
    /// Adds one about a key of a zone.
    pub fn add(
        &mut self,
        store: &SharedStore,
        zone: &str,
        key: &[u8],
        spec: &LimitSpec,
        cost: Cost,
        refused: bool,
    ) {
        let mut name = Vec::with_capacity(64);
        script::append(&mut name, &store.prefix, zone, key);
        let cost = store.weigh(cost, spec);
        self.questions
            .push(KeyCheck::new(name, spec, cost, refused));
        self.period = self.period.max(spec.period());
    }

    /// What was added last may wait so long until it would pass, where it is over the burst.
    pub fn may_wait(&mut self, longest: Option<Duration>) {
        if let Some(question) = self.questions.last_mut() {
            question.patience = longest;
        }
    }

    /// What was added last may be serving a penalty that another gateway gave.
    pub fn may_be_punished(&mut self, punishable: bool) {
        if let Some(question) = self.questions.last_mut() {
            question.punishable = punishable;
        }
    }

    /// What was added last has no more than this left, as far as this gateway knows.
    pub fn has_left(&mut self, left: Option<u64>) {
        if let Some(question) = self.questions.last_mut() {
            question.left = left;
        }
    }
}

impl SharedStore {
    /// Asks all of an inquiry, and charges all unless one is refused. The answers are in its order; where a cluster
    /// spreads the keys, some are missing after a refusal.
    ///
    /// # Errors
    /// When no answer comes in time, or none can: whoever asked decides, and says so to [`SharedStore::settle`].
    pub async fn ask(
        &self,
        mut inquiry: StoreRequest,
        now: Millis,
    ) -> Result<Vec<Option<StoreVerdict>>, LocalDecision> {
        let Ok(link) = self.link() else {
            return Err(LocalDecision(None));
        };
        inquiry.lost = self.fleet.has_lost(now, inquiry.period);
        let inquiry = Arc::new(inquiry);
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut answering: PendingReply = Box::pin(converse(link, Arc::clone(&inquiry)));
        let heard = async { (&mut answering).await.1 };
        match self.in_time(heard, now).await {
            Ok(answers) => Ok(answers),
            Err(StoreMiss::Failed) => Err(LocalDecision(None)),
            Err(StoreMiss::Late) => Err(LocalDecision(Some((Mutex::new(answering), inquiry)))),
        }
    }

    /// Takes note of what this gateway made of a question by itself: `passed` is what it has let in.
    pub fn settle(
        self: &Arc<Self>,
        unanswered: LocalDecision,
        refused: bool,
        passed: Vec<OutageCharge>,
    ) {
        let Some((answering, inquiry)) = unanswered.0 else {
            // Nobody knows whether a question was heard whose connection broke: what was charged twice is on the safe side.
            return passed.into_iter().for_each(|debt| self.owe(debt));
        };
        let store = Arc::clone(self);
        let settling = async move {
            match tokio::time::timeout(HEARD, answering.into_inner()).await {
                Ok((mut link, Ok(answers))) => match (is_refusal(&answers), refused) {
                    (false, true) => {
                        // Should this get lost, the key has less than it could.
                        let giving = tell(&mut link, "refund", &inquiry.questions);
                        if let Ok(Err(error)) = tokio::time::timeout(HEARD, giving).await {
                            tracing::debug!(%error, "could not give back");
                        }
                    }
                    (true, false) => passed.into_iter().for_each(|debt| store.owe(debt)),
                    _ => {}
                },
                _ => passed.into_iter().for_each(|debt| store.owe(debt)),
            }
        };
        self.unsettled.0.lock().push(Box::pin(settling));
        background::wake(self.id);
    }

    /// Goes on waiting for late answers.
    pub(super) fn wait_for_late(&self, waiting: &mut JoinSet<()>) {
        for settling in std::mem::take(&mut *self.unsettled.0.lock()) {
            waiting.spawn(settling);
        }
    }

    /// Takes back what was charged, for a request that somebody else refused.
    pub async fn give_back(&self, inquiry: &StoreRequest, now: Millis) {
        let Ok(mut link) = self.link() else { return };
        let giving = tell(&mut link, "refund", &inquiry.questions);
        if let Ok(Err(error)) = tokio::time::timeout(self.timeout, giving).await {
            self.failed(&error, now);
        }
    }
}

fn is_refusal(answers: &[Option<StoreVerdict>]) -> bool {
    let mut heard = answers.iter().flatten();
    heard.any(|answer| matches!(answer.outcome, Verdict::Refuse { .. }))
}

async fn converse(
    mut link: RedisConnection,
    inquiry: Arc<StoreRequest>,
) -> (RedisConnection, PendingReplies) {
    let answers = answers(&mut link, &inquiry).await;
    (link, answers)
}

/// Asks where the keys are: at one server all at once; in a cluster slot by slot, and what was reserved is given back
/// when a later one refuses.
async fn answers(link: &mut RedisConnection, inquiry: &StoreRequest) -> PendingReplies {
    let questions = &inquiry.questions;
    let slots = by_slot(link, questions);
    let mut answers = vec![None; questions.len()];
    for (done, slot) in slots.iter().enumerate() {
        let answer = perform(link, "charge", inquiry.lost, slot).await?;
        let heard = script::answers(slot.iter().copied(), &answer);
        let heard = heard.ok_or((ErrorKind::UnexpectedReturnType, "not an answer of ours"))?;
        let refused = heard
            .iter()
            .any(|answer| matches!(answer.outcome, Verdict::Refuse { .. }));
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
                perform(link, "refund", false, reserved).await?;
            }
            break;
        }
    }
    Ok(answers)
}

/// What nobody waits for an answer to.
pub(super) async fn tell(
    link: &mut RedisConnection,
    act: &str,
    questions: &[KeyCheck],
) -> Result<(), RedisError> {
    for slot in &by_slot(link, questions) {
        perform(link, act, false, slot).await?;
    }
    Ok(())
}

/// One script, run once.
async fn perform(
    link: &mut RedisConnection,
    act: &str,
    lost: bool,
    questions: &[&KeyCheck],
) -> Result<Value, RedisError> {
    let write = |command: &mut redis::Cmd| {
        command.arg(questions.len());
        for question in questions {
            command.arg(&question.name);
        }
        command.arg(act).arg(u8::from(lost));
        for question in questions {
            question.write(command);
        }
    };
    DECIDE.perform(link, write).await
}

/// Questions whose keys live together, in the order of the first of each.
fn by_slot<'q>(link: &RedisConnection, questions: &'q [KeyCheck]) -> Vec<Vec<&'q KeyCheck>> {
    if !link.is_cluster() {
        return vec![questions.iter().collect()];
    }
    let mut slots: Vec<(Slot, Vec<&KeyCheck>)> = Vec::new();
    for question in questions {
        let slot = Slot::for_key(&question.name);
        match slots.iter_mut().find(|(known, _)| *known == slot) {
            Some((_, together)) => together.push(question),
            None => slots.push((slot, vec![question])),
        }
    }
    slots.into_iter().map(|(_, together)| together).collect()
}

impl std::fmt::Debug for LocalDecision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = if self.0.is_some() { "late" } else { "unheard" };
        f.debug_tuple("Unanswered").field(&word).finish()
    }
}

/// For how long a late answer is waited for.
const HEARD: Duration = Duration::from_secs(5);
