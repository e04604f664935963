//! Which backend is asked next.
//!
//! One standing for all event loops, unlike nginx without a `zone`: what one loop learned of a dead backend
//! spares the others the same failure. The lock is held for a few numbers, however many servers there are.

mod round_robin;
mod tournament;

use std::sync::Arc;

use parking_lot::Mutex;

pub(super) use round_robin::{Round, Verdict};

use self::round_robin::RoundRobin;
use super::backend::{Backend, Lease};
use super::condition::Notices;
use crate::clock::Millis;
use crate::config::plan;

/// The balancer of one upstream.
#[derive(Debug)]
pub(super) enum Balance {
    /// Smooth weighted round robin.
    RoundRobin {
        servers: Box<Mutex<RoundRobin>>,
        notices: Arc<Notices>,
    },
    /// One server: there is nothing to choose and nobody to spare it for, so it is never left alone.
    Single,
}

/// A backend to ask.
#[derive(Debug)]
pub(super) struct Pick {
    pub(super) lease: Lease,
    index: usize,
    blemished: bool,
}

impl Balance {
    pub(super) fn new(
        method: plan::Balance,
        backends: &[Arc<Backend>],
        notices: Arc<Notices>,
    ) -> Self {
        match (method, backends) {
            (_, [only]) if !only.server.backup => Self::Single,
            (plan::Balance::RoundRobin, _) => {
                let servers = backends.iter().map(|backend| &backend.server);
                Self::RoundRobin {
                    servers: Box::new(Mutex::new(RoundRobin::new(servers))),
                    notices,
                }
            }
        }
    }

    /// The backend to ask next in this round, if there is one.
    pub(super) fn pick(
        &self,
        backends: &[Arc<Backend>],
        round: &mut Round,
        now: Millis,
    ) -> Option<Pick> {
        match self {
            Self::RoundRobin { servers, notices } => {
                // The lease is taken under the lock too: between the two another loop could fill the backend.
                let mut servers = servers.lock();
                notices.take(|index| servers.consider(index, backends[index].is_free(), now));
                let index = servers.pick(round, now)?;
                let lease = backends[index].lease();
                if lease.is_full() {
                    servers.consider(index, false, now);
                }
                Some(Pick {
                    lease,
                    index,
                    blemished: servers.is_blemished(index),
                })
            }
            Self::Single => {
                let backend = &backends[0];
                if !backend.may_be_asked() {
                    return None;
                }
                let lease = backend.lease();
                let limit = backend.server.max_conns;
                // Counted first, looked at then: two loops that come at once are both in the number.
                (limit == 0 || backend.active() <= limit).then_some(Pick {
                    lease,
                    index: 0,
                    blemished: false,
                })
            }
        }
    }

    pub(super) fn failed(&self, pick: &Pick, now: Millis) -> Verdict {
        match self {
            Self::RoundRobin { servers, .. } => servers.lock().failed(pick.index, now),
            Self::Single => Verdict::Keep,
        }
    }

    pub(super) fn succeeded(&self, pick: &Pick) {
        match self {
            // Nearly all are without blemish when picked: no second lock for them.
            Self::RoundRobin { servers, .. } if pick.blemished => {
                servers.lock().succeeded(pick.index);
            }
            Self::RoundRobin { .. } | Self::Single => {}
        }
    }
}
