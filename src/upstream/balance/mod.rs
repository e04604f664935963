//! Which backend is asked next.
//!
//! One balancer for all event loops, unlike nginx without a `zone`: what one loop learned of a dead backend spares the
//! others the same failure. The lock is held for one pass over the servers.
//!
//! A balancer is an implementation of [`Balance`](peers::Balance) in a file of its own, one line in the list of
//! `balancers!` below, and its word in `config/directive/upstream.rs`. What all of them have in common, who may be
//! asked and with what weight, stands in `peers.rs`.
//!
//! Each backend has a place in its group, and keeps it: requests in progress know their backend by it. One that has
//! left stays in its place until its last request is over and another needs the place.

mod hash;
mod least_conn;
pub(super) mod peers;
mod random;
mod round_robin;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;

use self::hash::{Hash, HashRing, IpHash};
use self::least_conn::LeastConn;
use self::peers::{Balance, HashSearch, Member, PeerStates, SelectionKey};
use self::random::Random;
use self::round_robin::RoundRobin;
use super::backend::{ActiveRequest, Backend, BackendAddress, ChangeList, GroupSettings};
use super::resolve::MembershipChange;
use crate::clock::Millis;
use crate::config::plan;
use crate::message::{RequestRecord, variables};

pub(super) use self::peers::{FailResult, TriedPeers};

/// Makes the enum of all balancers from their words in the plan.
macro_rules! balancers {
    ($($word:ident => $balancer:ident),* $(,)?) => {
        /// The way in which an upstream picks.
        #[derive(Debug)]
        enum Method {
            $($balancer($balancer),)*
        }

        impl Method {
            fn new(plan: &plan::Upstream) -> Self {
                match plan.balance {
                    $(plan::Balance::$word { .. } => Self::$balancer(Balance::new(plan)),)*
                }
            }

            fn selection_key(method: &plan::Balance) -> SelectionKey {
                match method {
                    $(plan::Balance::$word { .. } => $balancer::selection_key(method),)*
                }
            }

            fn members_changed(&mut self, members: &[&Backend]) {
                match self {
                    $(Self::$balancer(balancer) => balancer.members_changed(members),)*
                }
            }

            fn pick(
                &mut self,
                peers: &mut PeerStates,
                tried: &mut TriedPeers,
                now: Millis,
            ) -> Option<usize> {
                match self {
                    $(Self::$balancer(balancer) => peers.pick(balancer, tried, now),)*
                }
            }
        }
    };
}

balancers! {
    ConsistentHash => HashRing,
    Hash => Hash,
    IpHash => IpHash,
    LeastConn => LeastConn,
    Random => Random,
    RoundRobin => RoundRobin,
}

/// The balancer of one upstream.
#[derive(Debug)]
pub(super) enum Balancer {
    /// Several servers.
    Group(Box<PeerGroup>),
    /// One server: there is nothing to choose, and as no other could take its requests it is never left alone.
    Single(Arc<Backend>),
}

/// Servers that stand for each other.
#[derive(Debug)]
pub(super) struct PeerGroup {
    key: SelectionKey,
    members: Mutex<Peers>,
    notices: Arc<ChangeList>,
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
                key: Method::selection_key(&plan.balance),
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
    pub(super) fn round(&self, record: &RequestRecord) -> TriedPeers {
        let mut round = TriedPeers::default();
        if let Self::Group(group) = self {
            round.search = group.key.search(record);
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
            Self::Group(group) => group.members.lock().states.is_crowded(round),
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
                group.members.lock().states.succeeded(pick.lease.index);
            }
            Self::Group(_) | Self::Single(_) => {}
        }
    }
}

impl SelectionKey {
    /// The search for a server that begins with this request. None where nothing is to be searched by: an empty key
    /// leads to no server.
    fn search(&self, record: &RequestRecord) -> Option<Box<HashSearch>> {
        let mut search = Box::<HashSearch>::default();
        match self {
            Self::Nothing => return None,
            Self::Chance => {}
            Self::Key(key) => {
                variables::render(key, record, &mut search.key);
                if search.key.is_empty() {
                    return None;
                }
            }
            Self::Address => match record.client().ip() {
                // A network of 256 addresses is taken for one client.
                Some(IpAddr::V4(address)) => search.key.extend(&address.octets()[..3]),
                Some(IpAddr::V6(address)) => search.key.extend(address.octets()),
                None => search.key.extend([0; 3]),
            },
        }
        Some(search)
    }
}

#[derive(Debug)]
struct Peers {
    backends: Vec<Arc<Backend>>,
    states: PeerStates,
    method: Method,
    /// There is one, and no other that could take its requests.
    lone: bool,
}

impl Peers {
    fn new(plan: &plan::Upstream, backends: Vec<Arc<Backend>>) -> Self {
        let slow = plan
            .servers
            .iter()
            .any(|server| !server.slow_start.is_zero());
        let present = backends.iter().map(|backend| backend.member(false));
        let mut members = Self {
            states: PeerStates::new(slow, present),
            method: Method::new(plan),
            lone: false,
            backends,
        };
        members.rebuild();
        members
    }

    /// The addresses of the server in this place of the plan are these from now on. Also the places of those who came.
    fn resettle(
        &mut self,
        common: &GroupSettings,
        listed: usize,
        addresses: &[SocketAddr],
        now: Millis,
    ) -> (MembershipChange, Vec<usize>) {
        let mut change = MembershipChange::default();
        let own = |backend: &&Arc<Backend>| backend.listed == listed && !backend.is_gone();
        for backend in self.backends.iter().filter(own) {
            let wanted =
                matches!(backend.address, BackendAddress::Tcp(at) if addresses.contains(&at));
            if wanted == backend.is_leaving() {
                let side = match wanted {
                    true => &mut change.joined,
                    false => &mut change.left,
                };
                side.push(Arc::clone(&backend.name));
                backend.set_leaving(!wanted);
            }
        }
        let mut places = Vec::new();
        for &address in addresses {
            let at = BackendAddress::Tcp(address);
            let known = |backend: &Arc<Backend>| backend.address == at;
            if self.backends.iter().filter(own).any(known) {
                continue;
            }
            let free = self.backends.iter().position(|backend| backend.is_gone());
            let place = free.unwrap_or(self.backends.len());
            let backend = Arc::new(Backend::new(place, at, listed, common, None));
            change.joined.push(Arc::clone(&backend.name));
            match free {
                Some(place) => self.backends[place] = backend,
                None => self.backends.push(backend),
            }
            places.push(place);
        }
        if change != MembershipChange::default() {
            let servers = self.backends.iter().enumerate();
            let members = servers.map(|(place, backend)| backend.member(places.contains(&place)));
            self.states.renew(members, now);
            self.rebuild();
        }
        (change, places)
    }

    /// Tells the balancer which servers there are.
    fn rebuild(&mut self) {
        let staying = self.backends.iter().filter(|backend| !backend.is_leaving());
        let mut staying: Vec<&Backend> = staying.map(AsRef::as_ref).collect();
        let first = staying.first();
        self.lone = staying.len() == 1 && first.is_some_and(|only| !only.server.backup);
        // In the plan's order, and not in that of their arrival: several gateways should find the same one.
        staying.sort_by_key(|backend| {
            let looked_up = backend.server.resolve.is_some();
            let address = match backend.address {
                BackendAddress::Tcp(address) if looked_up => Some(address),
                _ => None,
            };
            (backend.listed, address)
        });
        self.method.members_changed(&staying);
    }

    /// A backend failed.
    fn failed(&mut self, index: usize, now: Millis) -> FailResult {
        match self.lone {
            true => FailResult::Keep,
            false => self.states.failed(index, now),
        }
    }

    /// Something has changed about a backend.
    fn consider(&mut self, index: usize, now: Millis) {
        if let Some(backend) = self.backends.get(index) {
            self.states.consider(index, backend.presence(), now);
        }
    }

    /// The backend to ask next, if there is one.
    fn pick(&mut self, round: &mut TriedPeers, now: Millis) -> Option<Pick> {
        let index = self.method.pick(&mut self.states, round, now)?;
        // The lease is taken under the lock too: between the two another loop could fill the backend.
        let lease = self.backends[index].lease();
        if lease.is_full() {
            self.consider(index, now);
        }
        Some(Pick {
            lease,
            blemished: self.states.is_blemished(index),
        })
    }
}

impl Backend {
    /// What its balancer keeps of it.
    fn member(&self, new: bool) -> Member<'_> {
        Member {
            server: &self.server,
            snapshot: self.presence(),
            active: &self.active,
            new,
        }
    }
}
