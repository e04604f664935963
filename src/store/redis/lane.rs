//! The connection of one event loop to a store: all its requests share it, and no other loop's do.

use std::cell::RefCell;
use std::sync::Arc;

use tokio::sync::Notify;

use super::link::RedisConnection;

/// What a thread knows of one store.
struct LoopConnection {
    store: u64,
    link: Option<RedisConnection>,
    /// How often the store had come back when the link was made: what was connected before an outage is not trusted
    /// after it.
    epoch: u64,
    lost: Arc<Notify>,
}

/// This thread's link to a store, if there is a sound one.
pub(super) fn link(store: u64, epoch: u64) -> Option<RedisConnection> {
    LANES.with_borrow(|lanes| {
        let lane = lanes.iter().find(|lane| lane.store == store)?;
        lane.link.clone().filter(|_| lane.epoch == epoch)
    })
}

/// This thread has a new one.
pub(super) fn set(store: u64, epoch: u64, link: RedisConnection) {
    with(store, |lane| {
        lane.link = Some(link);
        lane.epoch = epoch;
    });
}

/// What this thread had is broken; whoever tends it is told.
pub(super) fn lose(store: u64) {
    with(store, |lane| {
        if lane.link.take().is_some() {
            lane.lost.notify_one();
        }
    });
}

/// What tells that this thread's link is lost.
pub(super) fn lost(store: u64) -> Arc<Notify> {
    with(store, |lane| Arc::clone(&lane.lost))
}

/// This thread has nothing more to do with it.
pub(super) fn part(store: u64) {
    // Dropped after the borrow: closing a connection runs code that is not ours.
    let _gone = LANES.with_borrow_mut(|lanes| {
        let index = lanes.iter().position(|lane| lane.store == store)?;
        Some(lanes.swap_remove(index))
    });
}

fn with<T>(store: u64, act: impl FnOnce(&mut LoopConnection) -> T) -> T {
    LANES.with_borrow_mut(|lanes| {
        let index = lanes.iter().position(|lane| lane.store == store);
        let index = index.unwrap_or_else(|| {
            lanes.push(LoopConnection {
                store,
                link: None,
                epoch: 0,
                lost: Arc::default(),
            });
            lanes.len() - 1
        });
        act(&mut lanes[index])
    })
}

thread_local! {
    static LANES: RefCell<Vec<LoopConnection>> = const { RefCell::new(Vec::new()) };
}
