//! What is said of places beside the requests: that they are given back, and that they are still held.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;
use tokio::task::JoinSet;

use super::ledger::SlotRef;
use super::{KEEP, LEASE, millis};
use crate::clock::Millis;
use crate::store::redis::SharedStore;
use crate::store::redis::link::RedisConnection;

/// What is said of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotUpdate {
    GivenBack,
    Held,
}

impl SharedStore {
    /// Says which places were given back.
    pub(in crate::store::redis) fn give_places_back(
        self: &Arc<Self>,
        now: Millis,
        saying: &mut JoinSet<()>,
    ) {
        let given = self.places.ledger.lock().given();
        self.say(SlotUpdate::GivenBack, given, now, saying);
    }

    /// Speaks for those that are held and were not spoken of for long, or, to a store that may have forgotten them, for all.
    pub(in crate::store::redis) fn renew_places(
        self: &Arc<Self>,
        now: Millis,
        saying: &mut JoinSet<()>,
    ) {
        let mut ledger = self.places.ledger.lock();
        if !ledger.is_time(now, self.epoch()) {
            return;
        }
        let due = ledger.due(now, RENEW);
        drop(ledger);
        self.say(SlotUpdate::Held, due, now, saying);
    }

    /// Gives everything back, for a gateway that is going.
    pub(in crate::store::redis) async fn clear_places(&self, link: &mut RedisConnection) {
        let all = self.places.ledger.lock().all();
        for parcel in parcels(link, &all) {
            if self
                .utter(SlotUpdate::GivenBack, parcel, link)
                .await
                .is_err()
            {
                return;
            }
        }
    }

    fn say(
        self: &Arc<Self>,
        word: SlotUpdate,
        places: Vec<SlotRef>,
        now: Millis,
        saying: &mut JoinSet<()>,
    ) {
        if places.is_empty() {
            return;
        }
        let Ok(link) = self.link() else {
            return self.said(word, &places, false);
        };
        for parcel in parcels(&link, &places) {
            let (store, mut link, parcel) = (Arc::clone(self), link.clone(), parcel.to_vec());
            saying.spawn(async move {
                let uttered = tokio::time::timeout(HEARD, store.utter(word, &parcel, &mut link));
                let heard = match uttered.await {
                    Ok(Ok(())) => true,
                    Ok(Err(error)) => {
                        store.failed(&error, now);
                        false
                    }
                    Err(_) => false,
                };
                store.said(word, &parcel, heard);
            });
        }
    }

    /// It was said, and heard or not.
    fn said(&self, word: SlotUpdate, places: &[SlotRef], heard: bool) {
        match word {
            // Unheard, a place is free when its time is over.
            SlotUpdate::GivenBack => {
                self.places.ledger.lock().gone(places);
                self.places.lines.wake(places);
            }
            SlotUpdate::Held if heard => {}
            SlotUpdate::Held => self.places.ledger.lock().not_told(places),
        }
    }

    async fn utter(
        &self,
        word: SlotUpdate,
        places: &[SlotRef],
        link: &mut RedisConnection,
    ) -> Result<(), redis::RedisError> {
        let lease = match word {
            SlotUpdate::GivenBack => Duration::ZERO,
            SlotUpdate::Held => LEASE,
        };
        let write = |command: &mut Cmd| {
            command.arg(places.len());
            for place in places {
                command.arg(&*place.set);
            }
            command.arg(millis(lease));
            for place in places {
                command.arg(self.place(place.id));
            }
        };
        KEEP.perform(link, write).await.map(drop)
    }
}

/// What is said at once: in a cluster every set may lie elsewhere.
fn parcels<'p>(link: &RedisConnection, places: &'p [SlotRef]) -> std::slice::Chunks<'p, SlotRef> {
    places.chunks(if link.is_cluster() { 1 } else { PARCEL })
}

/// A place is spoken for when this long nothing was said of it: most are given back before. Of the time that it is
/// kept without a word there is enough left to try again more than once.
const RENEW: Duration = Duration::from_secs(3);

/// How long a server may take to hear.
const HEARD: Duration = Duration::from_secs(1);

/// How many places are spoken of at once; others wait for the server meanwhile.
const PARCEL: usize = 128;
