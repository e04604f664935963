//! Connections kept open between requests, the warmest used first.
//!
//! Each event loop keeps its own: a connection is never handed to another thread, and nothing is locked. As
//! in nginx the bound is per upstream, not per backend, and the one longest unused makes room.
//!
//! Things that lie ready, each for one owner: the newest of an owner is taken, the oldest of all makes room.
//!
//! Two chains run through one vector, one through everything by age and one through what each owner has. So nothing
//! is searched for, however much lies there and however many owners there are.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::backend::Backend;
use super::connection::UpstreamConnection;
use crate::clock::{Clock, Millis};
use crate::config::plan;
use crate::telemetry::{BackgroundTask, supervise};

/// What an upstream says about keeping connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeepaliveSettings {
    upstream: u64,
    most: usize,
    timeout: Duration,
    requests: u64,
}

#[derive(Debug)]
struct IdlePool {
    idle: OwnedLru<IdleUpstream>,
    sweeper: JoinHandle<()>,
}

#[derive(Debug)]
struct IdleUpstream {
    since: Millis,
    wire: Box<UpstreamConnection>,
}

thread_local! {
    // A tree, not a hash: few upstreams, looked up twice a request.
    static POOLS: RefCell<BTreeMap<u64, IdlePool>> = const { RefCell::new(BTreeMap::new()) };
}

impl KeepaliveSettings {
    /// Those of `plan`, for the upstream numbered `upstream`.
    pub(super) fn new(upstream: u64, plan: &plan::Upstream) -> Self {
        Self {
            upstream,
            most: plan.keepalive,
            timeout: plan.keepalive_timeout,
            requests: plan.keepalive_requests,
        }
    }

    /// The upstream's number, unique in this process.
    pub(super) fn upstream(self) -> u64 {
        self.upstream
    }

    /// How many requests a connection carries.
    pub(super) fn requests(self) -> u64 {
        self.requests
    }

    /// For how many whole seconds a connection without a request is kept, at least one.
    pub(super) fn idle_seconds(self) -> u64 {
        match self.most {
            0 => 1,
            _ => self.timeout.as_secs().max(1),
        }
    }
}

/// A kept connection to this backend, met in this way, if one is left that is still open.
pub(super) fn take(
    backend: &Backend,
    owner: usize,
    now: Millis,
) -> Option<Box<UpstreamConnection>> {
    let rules = backend.keep;
    loop {
        let mut idle = POOLS.with_borrow_mut(|pools| {
            let pool = pools.get_mut(&rules.upstream)?;
            pool.idle.take(owner)
        })?;
        // In its place another may have been before.
        if !idle.wire.tenure.is_over()
            && now.since(idle.since) < rules.timeout
            && idle.wire.is_quiet()
        {
            return Some(idle.wire);
        }
    }
}

/// Keeps a connection whose answer was read to its end `now`, unless it has carried enough or nobody wants it kept.
pub(super) fn put(
    backend: &Backend,
    mut wire: Box<UpstreamConnection>,
    now: Millis,
    clock: &Clock,
) {
    let rules = backend.keep;
    let unwanted = rules.most == 0 || wire.tenure.is_over();
    if unwanted || wire.requests >= rules.requests || !wire.rest() {
        return;
    }
    let idle = IdleUpstream { since: now, wire };
    // Dropped after the borrow: closing a connection runs code that is not ours.
    let _oldest = POOLS.with_borrow_mut(|pools| {
        let pool = pools.entry(rules.upstream).or_insert_with(|| IdlePool {
            idle: OwnedLru::new(),
            sweeper: spawn_sweeper(rules, clock),
        });
        // The runtime that ran it is gone.
        if pool.sweeper.is_finished() {
            pool.sweeper = spawn_sweeper(rules, clock);
        }
        let oldest = if pool.idle.len() < rules.most {
            None
        } else {
            pool.idle.take_oldest()
        };
        pool.idle.put(idle.wire.owner, idle);
        oldest
    });
}

/// Closes what is kept too long or was closed by its backend, until nothing is kept. One timer for all connections of
/// an upstream, and nobody who waits on each.
fn spawn_sweeper(rules: KeepaliveSettings, clock: &Clock) -> JoinHandle<()> {
    let clock = clock.clone();
    let sweep = async move || {
        let mut next = rules.timeout;
        loop {
            tokio::time::sleep(next.min(LOOK)).await;
            match sweep(rules, clock.now()) {
                Some(due) => next = due,
                None => return,
            }
        }
    };
    tokio::spawn(supervise(BackgroundTask::IdleConnections, sweep))
}

/// Closes what is over its time, was closed by its backend or leads to one that has left; `None` if nothing is left, else how long until
/// there is something to do.
pub(super) fn sweep(rules: KeepaliveSettings, now: Millis) -> Option<Duration> {
    let (_expired, next) = POOLS.with_borrow_mut(|pools| {
        let idle = &mut pools.get_mut(&rules.upstream)?.idle;
        let expired = idle.take_if(|idle| {
            !idle.wire.is_quiet()
                || idle.wire.tenure.is_over()
                || now.since(idle.since) >= rules.timeout
        });
        let next = idle
            .oldest()
            .map(|oldest| rules.timeout.saturating_sub(now.since(oldest.since)));
        if next.is_none() {
            pools.remove(&rules.upstream);
        }
        Some((expired, next))
    })?;
    next
}

/// How long a connection that is of no use may lie around.
const LOOK: Duration = Duration::from_secs(1);

/// How many connections of this backend's upstream this thread keeps.
#[cfg(test)]
pub(super) fn kept(backend: &Backend) -> usize {
    POOLS.with_borrow(|pools| {
        pools
            .get(&backend.keep.upstream)
            .map_or(0, |pool| pool.idle.len())
    })
}

/// Things by owner and age. Owners are small numbers.
#[derive(Debug)]
struct OwnedLru<T> {
    slots: Vec<LruSlot<T>>,
    /// By owner, the slot of the newest; [`NONE`] where there is nothing.
    newest: Vec<u32>,
    oldest_of_all: u32,
    newest_of_all: u32,
    /// The first of the empty slots, which are chained by `older`.
    empty: u32,
    length: usize,
}

#[derive(Debug)]
struct LruSlot<T> {
    thing: Option<T>,
    owner: usize,
    older: u32,
    newer: u32,
    /// The owner's own, where `older` and `newer` are anybody's.
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
        self.slots.get(self.oldest_of_all as usize)?.thing.as_ref()
    }

    /// Puts something down, the newest of all.
    fn put(&mut self, owner: usize, thing: T) {
        if owner >= self.newest.len() {
            self.newest.resize(owner + 1, NONE);
        }
        let slot = LruSlot {
            thing: Some(thing),
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
            u32::try_from(self.slots.len() - 1).expect("no shelf is as long")
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

    /// Takes everything that is `unwanted`.
    fn take_if(&mut self, mut unwanted: impl FnMut(&mut T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        let mut at = self.oldest_of_all;
        while let Some(slot) = self.slots.get_mut(at as usize) {
            let newer = slot.newer;
            if slot.thing.as_mut().is_some_and(&mut unwanted) {
                taken.extend(self.remove(at));
            }
            at = newer;
        }
        taken
    }

    fn remove(&mut self, at: u32) -> Option<T> {
        let slot = self.slots.get_mut(at as usize)?;
        let thing = slot.thing.take();
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
        thing
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
            let mut shelf = OwnedLru::new();
            let mut list: Vec<(usize, u32)> = Vec::new();
            for (number, step) in (0..).zip(steps) {
                match step {
                    Step::Put(owner) => {
                        shelf.put(owner, number);
                        list.push((owner, number));
                    }
                    Step::Take(owner) => {
                        let at = list.iter().rposition(|(whose, _)| *whose == owner);
                        prop_assert_eq!(shelf.take(owner), at.map(|at| list.remove(at).1));
                    }
                    Step::TakeOldest => {
                        let oldest = (!list.is_empty()).then(|| list.remove(0).1);
                        prop_assert_eq!(shelf.take_oldest(), oldest);
                    }
                    Step::TakeIf(divisor) => {
                        let gone: Vec<_> = list
                            .extract_if(.., |(_, thing)| *thing % divisor == 0)
                            .map(|(_, thing)| thing)
                            .collect();
                        prop_assert_eq!(shelf.take_if(|thing| *thing % divisor == 0), gone);
                    }
                }
                prop_assert_eq!(shelf.len(), list.len());
                prop_assert_eq!(shelf.oldest(), list.first().map(|(_, thing)| thing));
            }
        }
    }
}
