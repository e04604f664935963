//! What is said to a store when a request is over, without anybody waiting for it: what it turned out to cost, and that its key has
//! to stay out for a while.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::aside;
use super::inquiry::tell;
use super::link::RedisConnection;
use super::{SharedStore, StoreRequest};
use crate::clock::Millis;

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
        aside::wake(self.id);
    }

    /// Lets the other gateways know that the keys of an inquiry have to stay out for so long.
    pub fn punish_later(&self, inquiry: StoreRequest, now: Millis, term: Duration) {
        let mut sentences = self.later.sentences.lock();
        if sentences.len() < MOST {
            sentences.push((inquiry, now.after(term)));
        }
        drop(sentences);
        aside::wake(self.id);
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
            if let Ok(Err(error)) = tokio::time::timeout(HEARD, telling).await {
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
const HEARD: Duration = Duration::from_secs(1);
