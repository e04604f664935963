//! Which backend is asked next.
//!
//! One standing for all event loops, unlike nginx without a `zone`: what one loop learned of a dead backend
//! spares the others the same failure. The lock is held for a few numbers, however many servers there are.
//!
//! The backends of a group, how each stands, and how one is found among them.
//!
//! Each has a place here, and keeps it: requests that are under way know their backend by it. Who has left stays in its
//! place until it has nothing to do any more and another needs one.

mod hash;
mod least_conn;
pub(super) mod peers;
mod round_robin;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;

use self::hash::{HashRing, Lot, WeightTable};
use self::peers::{HashSearch, Order, PeerStates};
use super::backend::{ActiveRequest, Backend, BackendAddress, ChangeList, GroupSettings};
use super::resolve::MembershipChange;
use crate::clock::Millis;
use crate::config::plan;
use crate::config::plan::Template;
use crate::message::{RequestRecord, variables};

pub(super) use self::peers::{FailResult, TriedPeers};

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
                variables::render(key, exchange, &mut search.key);
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

#[derive(Debug)]
struct Peers {
    backends: Vec<Arc<Backend>>,
    standings: PeerStates,
    choice: Choice,
    /// There is one, and nobody to spare it for.
    lone: bool,
}

/// How a server is found before it is whose turn it is.
#[derive(Debug)]
enum Choice {
    Address(WeightTable),
    Hash(WeightTable),
    Lot(WeightTable, Lot),
    Ring(HashRing),
    Turn,
}

impl Peers {
    fn new(plan: &plan::Upstream, backends: Vec<Arc<Backend>>) -> Self {
        let order = match plan.balance {
            plan::Balance::LeastConn => Order::LeastConn,
            _ => Order::RoundRobin,
        };
        let slow = plan
            .servers
            .iter()
            .any(|server| !server.slow_start.is_zero());
        let present = backends
            .iter()
            .map(|backend| (&backend.server, backend.presence()));
        let mut members = Self {
            standings: PeerStates::new(order, slow, present),
            choice: Choice::new(plan),
            lone: false,
            backends,
        };
        members.settle();
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
            let servers = self.backends.iter().enumerate().map(|(place, backend)| {
                let new = places.contains(&place);
                (&backend.server, backend.presence(), new)
            });
            self.standings.renew(servers, now);
            self.settle();
        }
        (change, places)
    }

    /// Has those found who are here.
    fn settle(&mut self) {
        let staying = self.backends.iter().filter(|backend| !backend.is_leaving());
        let mut staying: Vec<&Backend> = staying.map(AsRef::as_ref).collect();
        let first = staying.first();
        self.lone = staying.len() == 1 && first.is_some_and(|only| !only.server.backup);
        // In the plan's order, and not by who came first: several gateways should find the same one.
        staying.sort_by_key(|backend| {
            let looked_up = backend.server.resolve.is_some();
            let address = match backend.address {
                BackendAddress::Tcp(address) if looked_up => Some(address),
                _ => None,
            };
            (backend.listed, address)
        });
        self.choice.settle(&staying);
    }

    /// A backend failed.
    fn failed(&mut self, index: usize, now: Millis) -> FailResult {
        match self.lone {
            true => FailResult::Keep,
            false => self.standings.failed(index, now),
        }
    }

    /// Something has changed about a backend.
    fn consider(&mut self, index: usize, now: Millis) {
        if let Some(backend) = self.backends.get(index) {
            self.standings.consider(index, backend.presence(), now);
        }
    }

    /// The backend to ask next, if there is one.
    fn pick(&mut self, round: &mut TriedPeers, now: Millis) -> Option<Pick> {
        let index = match self.search(round, now) {
            Some(index) => {
                self.standings.choose(index, round, now);
                index
            }
            None => self.standings.pick(round, now)?,
        };
        // The lease is taken under the lock too: between the two another loop could fill the backend.
        let lease = self.backends[index].lease();
        if lease.is_told || lease.is_full() {
            self.consider(index, now);
        }
        Some(Pick {
            lease,
            blemished: self.standings.is_blemished(index),
        })
    }

    /// Whom the request leads to, if to anybody who can be asked.
    fn search(&mut self, round: &mut TriedPeers, now: Millis) -> Option<usize> {
        let mut search = round.search.take()?;
        let Self {
            backends,
            standings,
            choice,
            ..
        } = self;
        let found = match choice {
            Choice::Address(shares) => shares.by_address(standings, &mut search, round, now),
            Choice::Hash(shares) => shares.by_hash(standings, &mut search, round, now),
            Choice::Lot(shares, lot) => {
                let less = |first, second| less_loaded(backends, first, second);
                shares.by_lot(standings, &mut search, round, now, lot, less)
            }
            Choice::Ring(ring) => ring.find(standings, &mut search, round, now),
            Choice::Turn => None,
        };
        round.search = Some(search);
        found
    }
}

impl Choice {
    /// One that finds nobody yet.
    fn new(plan: &plan::Upstream) -> Self {
        match plan.balance {
            plan::Balance::ConsistentHash(_) => {
                let servers = plan.servers.iter();
                Self::Ring(HashRing::new(
                    servers.map(|server| (&*server.name, server.weight)),
                ))
            }
            plan::Balance::Hash(_) => Self::Hash(WeightTable::default()),
            plan::Balance::IpHash => Self::Address(WeightTable::default()),
            plan::Balance::LeastConn | plan::Balance::RoundRobin => Self::Turn,
            plan::Balance::Random => {
                let seed = RandomState::new().hash_one(plan.servers.len());
                Self::Lot(WeightTable::default(), Lot::new(seed))
            }
        }
    }

    /// These are found from now on.
    fn settle(&mut self, staying: &[&Backend]) {
        match self {
            Self::Address(shares) | Self::Hash(shares) | Self::Lot(shares, _) => {
                let servers = staying.iter();
                *shares =
                    WeightTable::new(servers.map(|backend| (backend.index, backend.server.weight)));
            }
            Self::Ring(ring) => ring.settle(
                staying
                    .iter()
                    .map(|backend| (backend.listed, backend.index, backend.server.weight)),
            ),
            Self::Turn => {}
        }
    }
}

/// Who of two has less to do for its weight; the second, if they are equal.
fn less_loaded(backends: &[Arc<Backend>], first: usize, second: usize) -> usize {
    let load = |index: usize, other: usize| {
        u64::from(backends[index].active()) * u64::from(backends[other].server.weight)
    };
    match load(second, first) > load(first, second) {
        true => first,
        false => second,
    }
}
