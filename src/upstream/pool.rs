//! Idle connections, kept for the next request; the one used last is taken first.
//!
//! Each event loop keeps its own, so nothing is locked. As in nginx the limit is per upstream, not per backend, and the
//! connection idle for longest makes room.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::backend::{Backend, KeepaliveSettings};
use super::connection::UpstreamConnection;
use crate::clock::{Clock, Millis};
use crate::telemetry::{BackgroundTask, supervise};

#[derive(Debug)]
struct IdlePool {
    idle: OwnedLru<IdleUpstream>,
    sweeper: JoinHandle<()>,
}

#[derive(Debug)]
struct IdleUpstream {
    since: Millis,
    connection: Box<UpstreamConnection>,
}

thread_local! {
    // A tree, not a hash: few upstreams, looked up twice a request.
    static POOLS: RefCell<BTreeMap<u64, IdlePool>> = const { RefCell::new(BTreeMap::new()) };
}

/// Takes an idle connection of this [owner](Backend::owner) that is still open.
pub(super) fn take(
    backend: &Backend,
    owner: usize,
    now: Millis,
) -> Option<Box<UpstreamConnection>> {
    let keepalive = backend.keepalive;
    loop {
        let mut idle = POOLS.with_borrow_mut(|pools| {
            let pool = pools.get_mut(&keepalive.upstream)?;
            pool.idle.take(owner)
        })?;
        // Its backend may have been retired and replaced.
        if !idle.connection.retired.is_set()
            && now.since(idle.since) < keepalive.timeout
            && idle.connection.socket.is_quiet()
        {
            return Some(idle.connection);
        }
    }
}

/// Keeps a connection whose response was read to its end `now`, unless its last request was the last it may carry.
pub(super) fn put(
    backend: &Backend,
    mut connection: Box<UpstreamConnection>,
    now: Millis,
    clock: &Clock,
) {
    let keepalive = backend.keepalive;
    let unwanted = keepalive.most == 0 || connection.retired.is_set();
    if unwanted || connection.requests >= keepalive.requests || !connection.reset_for_reuse() {
        return;
    }
    let idle = IdleUpstream {
        since: now,
        connection,
    };
    // Dropped after the borrow: closing a connection runs code of other crates.
    let _oldest = POOLS.with_borrow_mut(|pools| {
        let pool = pools.entry(keepalive.upstream).or_insert_with(|| IdlePool {
            idle: OwnedLru::new(),
            sweeper: spawn_sweeper(keepalive, clock),
        });
        // The runtime that ran it is gone.
        if pool.sweeper.is_finished() {
            pool.sweeper = spawn_sweeper(keepalive, clock);
        }
        let oldest = if pool.idle.len() < keepalive.most {
            None
        } else {
            pool.idle.take_oldest()
        };
        pool.idle.put(idle.connection.owner, idle);
        oldest
    });
}

/// Closes idle connections that are kept too long or were closed by their backend, until none is left. One timer for all
/// connections of an upstream, rather than a task for each.
fn spawn_sweeper(keepalive: KeepaliveSettings, clock: &Clock) -> JoinHandle<()> {
    let clock = clock.clone();
    let sweep = async move || {
        let mut next = keepalive.timeout;
        loop {
            tokio::time::sleep(next.min(SWEEP)).await;
            match sweep(keepalive, clock.now()) {
                Some(due) => next = due,
                None => return,
            }
        }
    };
    tokio::spawn(supervise(BackgroundTask::IdleConnections, sweep))
}

/// Closes connections that are idle for too long, closed by their backend or retired; returns when the next one is due,
/// `None` if none is left.
pub(super) fn sweep(keepalive: KeepaliveSettings, now: Millis) -> Option<Duration> {
    let (_expired, next) = POOLS.with_borrow_mut(|pools| {
        let idle = &mut pools.get_mut(&keepalive.upstream)?.idle;
        let expired = idle.take_if(|idle| {
            !idle.connection.socket.is_quiet()
                || idle.connection.retired.is_set()
                || now.since(idle.since) >= keepalive.timeout
        });
        let next = idle
            .oldest()
            .map(|oldest| keepalive.timeout.saturating_sub(now.since(oldest.since)));
        if next.is_none() {
            pools.remove(&keepalive.upstream);
        }
        Some((expired, next))
    })?;
    next
}

/// How long a connection that is closed or retired may be kept.
const SWEEP: Duration = Duration::from_secs(1);

/// How many connections of this backend's upstream this thread keeps.
#[cfg(test)]
pub(super) fn kept(backend: &Backend) -> usize {
    POOLS.with_borrow(|pools| {
        pools
            .get(&backend.keepalive.upstream)
            .map_or(0, |pool| pool.idle.len())
    })
}

/// Items with an owner each, a small number: the newest of an owner is taken, the oldest of all makes room.
// Two chains run through one vector, one through all items by age and one through those of each owner. So nothing is
// searched for, however many items and owners there are.
#[derive(Debug)]
struct OwnedLru<T> {
    slots: Vec<LruSlot<T>>,
    /// By owner, the slot of its newest; [`NONE`] where it has none.
    newest: Vec<u32>,
    oldest_of_all: u32,
    newest_of_all: u32,
    /// The first of the empty slots, which are chained by `older`.
    empty: u32,
    length: usize,
}

#[derive(Debug)]
struct LruSlot<T> {
    item: Option<T>,
    owner: usize,
    older: u32,
    newer: u32,
    /// The same among the items of its owner.
    own_older: u32,
    own_newer: u32,
}

impl<T> OwnedLru<T> {
    fn new() -> Self {
        Self {
            slots: Vec::new(),
            newest: Vec::new(),
            oldest_of_all: NONE,
            newest_of_all: NONE,
            empty: NONE,
            length: 0,
        }
    }

    fn len(&self) -> usize {
        self.length
    }

    /// The oldest of all.
    fn oldest(&self) -> Option<&T> {
        self.slots.get(self.oldest_of_all as usize)?.item.as_ref()
    }

    /// Adds an item, the newest of all.
    fn put(&mut self, owner: usize, item: T) {
        if owner >= self.newest.len() {
            self.newest.resize(owner + 1, NONE);
        }
        let slot = LruSlot {
            item: Some(item),
            owner,
            older: self.newest_of_all,
            newer: NONE,
            own_older: self.newest[owner],
            own_newer: NONE,
        };
        let at = if let Some(empty) = self.slots.get_mut(self.empty as usize) {
            let at = std::mem::replace(&mut self.empty, empty.older);
            *empty = slot;
            at
        } else {
            self.slots.push(slot);
            u32::try_from(self.slots.len() - 1).expect("no pool has as many slots")
        };
        let own_older = std::mem::replace(&mut self.newest[owner], at);
        let older = std::mem::replace(&mut self.newest_of_all, at);
        match self.slots.get_mut(older as usize) {
            Some(older) => older.newer = at,
            None => self.oldest_of_all = at,
        }
        if let Some(own_older) = self.slots.get_mut(own_older as usize) {
            own_older.own_newer = at;
        }
        self.length += 1;
    }

    /// Takes the newest of an owner.
    fn take(&mut self, owner: usize) -> Option<T> {
        self.remove(*self.newest.get(owner)?)
    }

    /// Takes the oldest of all.
    fn take_oldest(&mut self) -> Option<T> {
        self.remove(self.oldest_of_all)
    }

    /// Takes all items that are `unwanted`.
    fn take_if(&mut self, mut unwanted: impl FnMut(&mut T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        let mut at = self.oldest_of_all;
        while let Some(slot) = self.slots.get_mut(at as usize) {
            let newer = slot.newer;
            if slot.item.as_mut().is_some_and(&mut unwanted) {
                taken.extend(self.remove(at));
            }
            at = newer;
        }
        taken
    }

    fn remove(&mut self, at: u32) -> Option<T> {
        let slot = self.slots.get_mut(at as usize)?;
        let item = slot.item.take();
        let &mut LruSlot {
            owner,
            older,
            newer,
            own_older,
            own_newer,
            ..
        } = slot;
        slot.older = std::mem::replace(&mut self.empty, at);
        match self.slots.get_mut(older as usize) {
            Some(slot) => slot.newer = newer,
            None => self.oldest_of_all = newer,
        }
        match self.slots.get_mut(newer as usize) {
            Some(slot) => slot.older = older,
            None => self.newest_of_all = older,
        }
        if let Some(slot) = self.slots.get_mut(own_older as usize) {
            slot.own_newer = own_newer;
        }
        match self.slots.get_mut(own_newer as usize) {
            Some(slot) => slot.own_older = own_older,
            None => self.newest[owner] = own_older,
        }
        self.length -= 1;
        item
    }
}

const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Put(usize),
        Take(usize),
        TakeOldest,
        TakeIf(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..5usize).prop_map(Step::Put),
            4 => (0..6usize).prop_map(Step::Take),
            2 => Just(Step::TakeOldest),
            1 => (2..5u32).prop_map(Step::TakeIf),
        ]
    }

    proptest! {
        #[test]
        fn it_does_what_a_plain_list_does(steps in prop::collection::vec(step(), 0..200)) {
            let mut lru = OwnedLru::new();
            let mut list: Vec<(usize, u32)> = Vec::new();
            for (number, step) in (0..).zip(steps) {
                match step {
                    Step::Put(owner) => {
                        lru.put(owner, number);
                        list.push((owner, number));
                    }
                    Step::Take(owner) => {
                        let at = list.iter().rposition(|(whose, _)| *whose == owner);
                        prop_assert_eq!(lru.take(owner), at.map(|at| list.remove(at).1));
                    }
                    Step::TakeOldest => {
                        let oldest = (!list.is_empty()).then(|| list.remove(0).1);
                        prop_assert_eq!(lru.take_oldest(), oldest);
                    }
                    Step::TakeIf(divisor) => {
                        let gone: Vec<_> = list
                            .extract_if(.., |(_, item)| *item % divisor == 0)
                            .map(|(_, item)| item)
                            .collect();
                        prop_assert_eq!(lru.take_if(|item| *item % divisor == 0), gone);
                    }
                }
                prop_assert_eq!(lru.len(), list.len());
                prop_assert_eq!(lru.oldest(), list.first().map(|(_, item)| item));
            }
        }
    }
}
