//! Which backend is asked next.
//!
//! One standing for all event loops, unlike nginx without a `zone`: what one loop learned of a dead backend
//! spares the others the same failure. The lock is held for a few numbers, however many servers there are.

mod least_conn;
mod members;
mod ring;
mod round;
mod round_robin;
mod shares;
mod standing;
mod standings;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;

use self::members::Peers;
use self::round::HashSearch;
pub(super) use self::round::TriedPeers;
pub(super) use self::standing::BackendSnapshot;
pub(super) use self::standings::FailResult;
use super::backend::{ActiveRequest, Backend, GroupSettings};
use super::condition::ChangeList;
use super::resolve::MembershipChange;
use crate::clock::Millis;
use crate::config::plan::{self, Template};
use crate::message::{RequestRecord, vars};

/// The balancer of one upstream.
#[derive(Debug)]
pub(super) enum Balancer {
    /// Several servers.
    Group(Box<PeerGroup>),
    /// One server: there is nothing to choose and nobody to spare it for, so it is never left alone.
    Single(Arc<Backend>),
}

/// Servers that stand for each other.
#[derive(Debug)]
pub(super) struct PeerGroup {
    seek: SelectionKey,
    members: Mutex<Peers>,
    notices: Arc<ChangeList>,
}

/// What of a request decides who is asked.
#[derive(Debug)]
enum SelectionKey {
    /// The client's address.
    Address,
    /// What is hashed.
    Key(Template),
    /// Nothing: lots are drawn.
    Lot,
    /// Nothing: whose turn it is.
    Turn,
}

/// A backend to ask.
#[derive(Debug)]
pub(super) struct Pick {
    pub(super) lease: ActiveRequest,
    blemished: bool,
}

impl Balancer {
    /// Without `notices` there is one server, of which nobody wants to hear.
    pub(super) fn new(
        plan: &plan::Upstream,
        backends: Vec<Arc<Backend>>,
        notices: Option<Arc<ChangeList>>,
    ) -> Self {
        match (&backends[..], notices) {
            ([only], None) => Self::Single(Arc::clone(only)),
            (_, notices) => Self::Group(Box::new(PeerGroup {
                seek: SelectionKey::new(&plan.balance),
                members: Mutex::new(Peers::new(plan, backends)),
                notices: notices.unwrap_or_default(),
            })),
        }
    }

    /// Every backend, with those that are leaving. In the plan's order, but for who has come later.
    pub(super) fn backends(&self) -> Vec<Arc<Backend>> {
        match self {
            Self::Group(group) => {
                let members = group.members.lock();
                let here = members.backends.iter().filter(|backend| !backend.is_gone());
                here.map(Arc::clone).collect()
            }
            Self::Single(only) => vec![Arc::clone(only)],
        }
    }

    /// The addresses of the server in this place of the plan are these from now on.
    pub(super) fn resettle(
        &self,
        common: &GroupSettings,
        listed: usize,
        addresses: &[SocketAddr],
        now: Millis,
    ) -> MembershipChange {
        let Self::Group(group) = self else {
            return MembershipChange::default();
        };
        let (change, places) = {
            let mut members = group.members.lock();
            members.resettle(common, listed, addresses, now)
        };
        // Somebody may be waiting for them.
        places
            .into_iter()
            .for_each(|place| group.notices.post(place));
        change
    }

    /// A round for this request, in which nobody has been asked.
    pub(super) fn round(&self, exchange: &RequestRecord) -> TriedPeers {
        let mut round = TriedPeers::default();
        if let Self::Group(group) = self {
            round.search = group.seek.search(exchange);
        }
        round
    }

    /// The backend to ask next in this round, if there is one.
    pub(super) fn pick(&self, round: &mut TriedPeers, now: Millis) -> Option<Pick> {
        match self {
            Self::Group(group) => {
                let mut members = group.members.lock();
                group.notices.take(|index| members.consider(index, now));
                members.pick(round, now)
            }
            Self::Single(backend) => {
                if !round.is_empty() || !backend.may_be_asked() {
                    return None;
                }
                let lease = backend.lease_within_limit()?;
                round.mark(backend.index);
                Some(Pick {
                    lease,
                    blemished: false,
                })
            }
        }
    }

    /// Whether somebody could be asked in this round but for having enough to do.
    pub(super) fn is_crowded(&self, round: &TriedPeers) -> bool {
        match self {
            Self::Group(group) => group.members.lock().standings.is_crowded(round),
            Self::Single(backend) => backend.may_be_asked() && backend.is_full(),
        }
    }

    pub(super) fn failed(&self, pick: &Pick, now: Millis) -> FailResult {
        match self {
            Self::Group(group) => group.members.lock().failed(pick.lease.index, now),
            Self::Single(_) => FailResult::Keep,
        }
    }

    pub(super) fn succeeded(&self, pick: &Pick) {
        match self {
            // Nearly all are without blemish when picked: no second lock for them.
            Self::Group(group) if pick.blemished => {
                group.members.lock().standings.succeeded(pick.lease.index);
            }
            Self::Group(_) | Self::Single(_) => {}
        }
    }
}

impl SelectionKey {
    fn new(method: &plan::Balance) -> Self {
        match method {
            plan::Balance::ConsistentHash(key) | plan::Balance::Hash(key) => Self::Key(key.clone()),
            plan::Balance::IpHash => Self::Address,
            plan::Balance::LeastConn | plan::Balance::RoundRobin => Self::Turn,
            plan::Balance::Random => Self::Lot,
        }
    }

    /// The search for a server that begins with this request. None where nothing is to be searched by: an empty key
    /// leads to nobody.
    fn search(&self, exchange: &RequestRecord) -> Option<Box<HashSearch>> {
        let mut search = Box::<HashSearch>::default();
        match self {
            Self::Turn => return None,
            Self::Lot => {}
            Self::Key(key) => {
                vars::render(key, exchange, &mut search.key);
                if search.key.is_empty() {
                    return None;
                }
            }
            Self::Address => match exchange.client().ip() {
                // A network of 256 addresses is taken for one client.
                Some(IpAddr::V4(address)) => search.key.extend(&address.octets()[..3]),
                Some(IpAddr::V6(address)) => search.key.extend(address.octets()),
                None => search.key.extend([0; 3]),
            },
        }
        Some(search)
    }
}
