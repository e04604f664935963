//! What a request turned out to cost when it was over, charged in its store without anybody waiting for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::aside;
use super::link::Link;
use super::{Inquiry, Shared, tell};
use crate::clock::Millis;

/// What is still to be charged.
#[derive(Debug, Default)]
pub(super) struct Later {
    owed: Mutex<Vec<Inquiry>>,
}

impl Shared {
    /// Charges an inquiry that was let in before its cost was known, whatever is left. Not while the store is away:
    /// what it is worth then is known to this gateway alone.
    pub fn charge_later(&self, inquiry: Inquiry) {
        if self.is_away() {
            return;
        }
        let mut owed = self.later.owed.lock();
        if owed.len() < MOST {
            owed.push(inquiry);
        } else {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
        drop(owed);
        aside::wake(self.id);
    }

    /// Sends what is to be charged.
    pub(super) fn send_owed(self: &Arc<Self>, now: Millis, sending: &mut JoinSet<()>) {
        // Without a connection it stays owed until there is one again.
        let Ok(link) = self.link() else { return };
        for inquiry in self.owed() {
            let (mut link, store) = (link.clone(), Arc::clone(self));
            sending.spawn(async move {
                let telling = tell(&mut link, DEBIT, &inquiry.questions);
                if let Ok(Err(error)) = tokio::time::timeout(HEARD, telling).await {
                    store.failed(&error, now);
                }
            });
        }
    }

    /// Sends what is left of it, for a gateway that is going.
    pub(super) async fn clear_owed(&self, link: &mut Link) {
        for inquiry in self.owed() {
            if tell(link, DEBIT, &inquiry.questions).await.is_err() {
                return;
            }
        }
    }

    fn owed(&self) -> Vec<Inquiry> {
        std::mem::take(&mut *self.later.owed.lock())
    }
}

const DEBIT: &str = "debit";

/// More than this is not kept for a server that is slow to hear.
const MOST: usize = 10_000;

/// How long a server may take to hear.
const HEARD: Duration = Duration::from_secs(1);
