//! What is said to a store beside the requests: each event loop has a task that says what its requests left behind.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::SharedStore;
use crate::clock::Clock;

impl SharedStore {
    /// Gives back the places that requests of this thread let go of, charges what they turned out to cost, waits for answers
    /// that they did not wait for, and speaks for places that are held for long; for as long as it is polled.
    pub async fn follow_up(self: Arc<Self>, clock: Clock) {
        let left = left(self.id);
        let mut beat = tokio::time::interval(BEAT);
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
const BEAT: Duration = Duration::from_secs(1);

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
