//! Connections kept open between requests, the warmest used first.
//!
//! Each event loop keeps its own: a connection is never handed to another thread, and nothing is locked. As
//! in nginx the bound is per upstream, not per backend, and the one longest unused makes room.

mod shelf;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinHandle;

use self::shelf::OwnedLru;
use super::backend::Backend;
use super::wire::UpstreamConnection;
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
