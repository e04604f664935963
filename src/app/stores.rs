//! The stores that zones count in together with other gateways: connected while they are wanted, and not longer.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::loops::EventLoops;
use crate::clock::Clock;
use crate::proxy::Generation;
use crate::store::SharedStore;
use crate::telemetry::{BackgroundTask, supervise};

/// The stores of the running gateway.
#[derive(Debug, Default)]
pub(super) struct StoreTasks(Vec<StoreTask>);

#[derive(Debug)]
struct StoreTask {
    store: Arc<SharedStore>,
    clock: Clock,
    until: CancellationToken,
    watch: JoinHandle<()>,
}

impl StoreTasks {
    /// Has all loops connected to those that are new. Before anybody asks: who comes first must not find a limit that
    /// is not there yet.
    pub(super) async fn join(
        &mut self,
        wanted: &[Arc<SharedStore>],
        loops: &EventLoops,
        clock: &Clock,
    ) {
        for store in wanted {
            if self.0.iter().any(|known| Arc::ptr_eq(&known.store, store)) {
                continue;
            }
            let until = CancellationToken::new();
            loops.join(store, &until).await;
            let watch = tokio::spawn({
                let (store, clock) = (Arc::clone(store), clock.clone());
                supervise(BackgroundTask::Store, move || {
                    Arc::clone(&store).watch(clock.clone())
                })
            });
            self.0.push(StoreTask {
                store: Arc::clone(store),
                clock: clock.clone(),
                until,
                watch,
            });
        }
    }

    /// Gives up those that nobody wants any more, as soon as the generation `before` is gone with its last request.
    pub(super) fn leave_others(&mut self, wanted: &[Arc<SharedStore>], before: &Weak<Generation>) {
        let is_wanted = |tended: &StoreTask| wanted.iter().any(|it| Arc::ptr_eq(it, &tended.store));
        let (kept, given_up) = std::mem::take(&mut self.0).into_iter().partition(is_wanted);
        self.0 = kept;
        for tended in given_up {
            let before = Weak::clone(before);
            tokio::spawn(async move {
                while before.strong_count() > 0 {
                    tokio::time::sleep(LOOK).await;
                }
                tended.leave().await;
            });
        }
    }

    /// Gives all of them up, at once: one that does not answer must not hold up the end for each of them.
    pub(super) async fn leave(self) {
        let leaving: JoinSet<()> = self.0.into_iter().map(StoreTask::leave).collect();
        leaving.join_all().await;
    }
}

impl StoreTask {
    async fn leave(self) {
        self.until.cancel();
        self.watch.abort();
        self.store.leave(&self.clock).await;
    }
}

/// How often it is looked whether somebody may still ask.
const LOOK: Duration = Duration::from_secs(1);
