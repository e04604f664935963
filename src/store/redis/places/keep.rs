//! What is said of places beside the requests: that they are given back, and that they are still held.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::ledger::Place;
use super::{KEEP, LEASE, millis};
use crate::clock::{Clock, Millis};
use crate::store::redis::Shared;
use crate::store::redis::link::Link;

/// What is said of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    GivenBack,
    Held,
}

impl Shared {
    /// Gives back the places that requests of this thread let go of, and speaks for those that are held for long; for
    /// as long as it is polled.
    pub async fn keep_places(self: Arc<Self>, clock: Clock) {
        let given = given(self.id);
        let mut epoch = self.epoch();
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // What is said is not waited for: who lets go next would wait for those before.
        let mut saying = JoinSet::new();
        loop {
            tokio::select! {
                () = given.notified() => {}
                _ = beat.tick() => {
                    // It may have come back with nothing in it.
                    if epoch != self.epoch() {
                        epoch = self.epoch();
                        self.places.ledger.lock().none_told();
                    }
                    let due = self.places.ledger.lock().due(clock.now(), RENEW);
                    self.say(Word::Held, due, clock.now(), &mut saying);
                }
                Some(_) = saying.join_next(), if !saying.is_empty() => continue,
            }
            let given = self.places.ledger.lock().given();
            self.say(Word::GivenBack, given, clock.now(), &mut saying);
        }
    }

    /// Gives everything back, for a gateway that is going.
    pub(in crate::store::redis) async fn clear_places(&self, link: &mut Link) {
        let all = self.places.ledger.lock().all();
        for parcel in parcels(link, &all) {
            if self.utter(Word::GivenBack, parcel, link).await.is_err() {
                return;
            }
        }
    }

    fn say(
        self: &Arc<Self>,
        word: Word,
        places: Vec<Place>,
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
    fn said(&self, word: Word, places: &[Place], heard: bool) {
        match word {
            // Unheard, a place is free when its time is over.
            Word::GivenBack => {
                self.places.ledger.lock().gone(places);
                self.places.lines.wake(places);
            }
            Word::Held if heard => {}
            Word::Held => self.places.ledger.lock().not_told(places),
        }
    }

    async fn utter(
        &self,
        word: Word,
        places: &[Place],
        link: &mut Link,
    ) -> Result<(), redis::RedisError> {
        let lease = match word {
            Word::GivenBack => Duration::ZERO,
            Word::Held => LEASE,
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
fn parcels<'p>(link: &Link, places: &'p [Place]) -> std::slice::Chunks<'p, Place> {
    places.chunks(if link.is_cluster() { 1 } else { PARCEL })
}

/// Tells this thread's task that something was given back.
pub(super) fn wake(store: u64) {
    // At the very end of a thread there is nobody left to tell; its places are free when their time is over.
    let _gone = GIVEN.try_with(|all| notify(&mut all.borrow_mut(), store).notify_one());
}

/// What tells that something was given back on this thread.
fn given(store: u64) -> Arc<Notify> {
    GIVEN.with_borrow_mut(|all| Arc::clone(notify(all, store)))
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
    static GIVEN: RefCell<Vec<(u64, Arc<Notify>)>> = const { RefCell::new(Vec::new()) };
}

/// How often it is looked which places have to be spoken for.
const BEAT: Duration = Duration::from_secs(1);

/// A place is spoken for when this long nothing was said of it: most are given back before. Of the time that it is
/// kept without a word there is enough left to try again more than once.
const RENEW: Duration = Duration::from_secs(3);

/// How long a server may take to hear.
const HEARD: Duration = Duration::from_secs(1);

/// How many places are spoken of at once; others wait for the server meanwhile.
const PARCEL: usize = 128;
