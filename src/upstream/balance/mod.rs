//! Balancers: which backend a request is sent to.
//!
//! One balancer serves all event loops, unlike nginx without a `zone`: if one loop finds a backend dead, the others are
//! spared the same failure. The lock is held for one pass over the servers.
//!
//! A balancer is an implementation of [`Balance`](peers::Balance) in a file of its own; what all of them have in common
//! stands in `peers.rs`. `CONTRIBUTING.md` says how to add one.
//!
//! Each backend has an index in its group and keeps it: requests in progress refer to it. A retired backend keeps its
//! index until its last request is over and another backend needs the index.

mod hash;
mod least_conn;
mod peers;
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
use crate::clock::Millis;
use crate::config::plan;
use crate::message::{RequestRecord, variables};

pub(super) use self::peers::TriedPeers;

/// Makes the enum of all balancers: `VARIANT => TYPE`, the variant as in [`plan::Balance`].
macro_rules! balancers {
    ($($word:ident => $balancer:ident),* $(,)?) => {
        /// The balancer of an upstream.
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

/// The backends of one upstream, and how one is picked.
#[derive(Debug)]
pub(super) enum Balancer {
    /// Several servers.
    Group(Box<PeerGroup>),
    /// One server. As no other could take its requests, it is never disabled after failures.
    Single(Arc<Backend>),
}

/// A group of servers.
#[derive(Debug)]
pub(super) struct PeerGroup {
    key: SelectionKey,
    peers: Mutex<Peers>,
    changes: Arc<ChangeList>,
}

/// A backend to try.
#[derive(Debug)]
pub(super) struct Pick {
    pub(super) active: ActiveRequest,
    has_failures: bool,
}

/// The servers that a look-up has added and removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MembershipChange {
    pub(super) added: Vec<Arc<str>>,
    pub(super) removed: Vec<Arc<str>>,
}

impl Balancer {
    /// Without `changes` there is one server, whose changes no one has to learn.
    pub(super) fn new(
        plan: &plan::Upstream,
        backends: Vec<Arc<Backend>>,
        changes: Option<Arc<ChangeList>>,
    ) -> Self {
        match (&backends[..], changes) {
            ([only], None) => Self::Single(Arc::clone(only)),
            (_, changes) => Self::Group(Box::new(PeerGroup {
                key: Method::selection_key(&plan.balance),
                peers: Mutex::new(Peers::new(plan, backends)),
                changes: changes.unwrap_or_default(),
            })),
        }
    }

    /// All backends, retired ones too, in the plan's order; those added later come last.
    pub(super) fn backends(&self) -> Vec<Arc<Backend>> {
        match self {
            Self::Group(group) => {
                let peers = group.peers.lock();
                let present = peers.backends.iter().filter(|it| !it.is_replaceable());
                present.map(Arc::clone).collect()
            }
            Self::Single(only) => vec![Arc::clone(only)],
        }
    }

    /// Sets the addresses of the server at this place of the plan.
    pub(super) fn update_addresses(
        &self,
        settings: &GroupSettings,
        listed: usize,
        addresses: &[SocketAddr],
        now: Millis,
    ) -> MembershipChange {
        let Self::Group(group) = self else {
            return MembershipChange::default();
        };
        let (change, added) = {
            let mut peers = group.peers.lock();
            peers.update_addresses(settings, listed, addresses, now)
        };
        // Requests may be waiting for them.
        added.into_iter().for_each(|index| group.changes.add(index));
        change
    }

    /// The state of a request that was sent to no server yet.
    pub(super) fn begin(&self, record: &RequestRecord) -> TriedPeers {
        let mut tried = TriedPeers::default();
        if let Self::Group(group) = self {
            tried.search = group.key.search(record);
        }
        tried
    }

    /// The next backend to try, if there is one.
    pub(super) fn pick(&self, tried: &mut TriedPeers, now: Millis) -> Option<Pick> {
        match self {
            Self::Group(group) => {
                let mut peers = group.peers.lock();
                group.changes.take(|index| peers.refresh(index, now));
                peers.pick(tried, now)
            }
            Self::Single(backend) => {
                if !tried.is_empty() || !backend.is_available() {
                    return None;
                }
                let active = backend.try_start_request()?;
                tried.mark(backend.index);
                Some(Pick {
                    active,
                    has_failures: false,
                })
            }
        }
    }

    /// Whether a backend could be tried if it were not full.
    pub(super) fn has_full_peer(&self, tried: &TriedPeers) -> bool {
        match self {
            Self::Group(group) => group.peers.lock().states.has_full_peer(tried),
            Self::Single(backend) => backend.is_available() && backend.is_full(),
        }
    }

    /// Counts a failure; returns whether it disables the server for `fail_timeout`.
    pub(super) fn failed(&self, pick: &Pick, now: Millis) -> bool {
        match self {
            Self::Group(group) => group.peers.lock().failed(pick.active.index, now),
            Self::Single(_) => false,
        }
    }

    /// Takes in a good response.
    pub(super) fn succeeded(&self, pick: &Pick) {
        // Nearly all have no failures when picked: no second lock for them.
        if let Self::Group(group) = self
            && pick.has_failures
        {
            group.peers.lock().states.succeeded(pick.active.index);
        }
    }
}

impl SelectionKey {
    /// The search of this request. None for an empty key, which leads to no server.
    fn search(&self, record: &RequestRecord) -> Option<Box<HashSearch>> {
        let mut search = Box::<HashSearch>::default();
        match self {
            Self::Nothing => return None,
            Self::Random => {}
            Self::Key(key) => {
                variables::render(key, record, &mut search.key);
                if search.key.is_empty() {
                    return None;
                }
            }
            Self::Address => match record.client().ip() {
                // A network of 256 addresses counts as one client.
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
    /// There is one primary, and no other server could take its requests.
    lone: bool,
}

impl Peers {
    fn new(plan: &plan::Upstream, backends: Vec<Arc<Backend>>) -> Self {
        let mut servers = plan.servers.iter();
        let slow_start = servers.any(|server| !server.slow_start.is_zero());
        let members = backends.iter().map(|backend| backend.member(false));
        let mut peers = Self {
            states: PeerStates::new(slow_start, members),
            method: Method::new(plan),
            lone: false,
            backends,
        };
        peers.rebuild();
        peers
    }

    /// Sets the addresses of the server at this place of the plan. Also returns the indices of those added.
    fn update_addresses(
        &mut self,
        settings: &GroupSettings,
        listed: usize,
        addresses: &[SocketAddr],
        now: Millis,
    ) -> (MembershipChange, Vec<usize>) {
        let mut change = MembershipChange::default();
        let own = |backend: &&Arc<Backend>| backend.listed == listed && !backend.is_replaceable();
        for backend in self.backends.iter().filter(own) {
            let wanted =
                matches!(backend.address, BackendAddress::Tcp(at) if addresses.contains(&at));
            if wanted == backend.is_retired() {
                let names = match wanted {
                    true => &mut change.added,
                    false => &mut change.removed,
                };
                names.push(Arc::clone(&backend.name));
                backend.set_retired(!wanted);
            }
        }
        let mut added = Vec::new();
        for &address in addresses {
            let address = BackendAddress::Tcp(address);
            let known = |backend: &Arc<Backend>| backend.address == address;
            if self.backends.iter().filter(own).any(known) {
                continue;
            }
            let free = self.backends.iter().position(|it| it.is_replaceable());
            let index = free.unwrap_or(self.backends.len());
            let backend = Arc::new(Backend::new(index, address, listed, settings, None));
            change.added.push(Arc::clone(&backend.name));
            match free {
                Some(index) => self.backends[index] = backend,
                None => self.backends.push(backend),
            }
            added.push(index);
        }
        if change != MembershipChange::default() {
            let backends = self.backends.iter().enumerate();
            let members = backends.map(|(index, backend)| backend.member(added.contains(&index)));
            self.states.renew(members, now);
            self.rebuild();
        }
        (change, added)
    }

    /// Tells the balancer which servers there are.
    fn rebuild(&mut self) {
        let present = self.backends.iter().filter(|backend| !backend.is_retired());
        let mut present: Vec<&Backend> = present.map(AsRef::as_ref).collect();
        self.lone = matches!(present[..], [only] if !only.server.backup);
        // In the plan's order, not in that of arrival, so that several gateways have the same.
        present.sort_by_key(|backend| {
            let looked_up = backend.server.resolve.is_some();
            let address = match backend.address {
                BackendAddress::Tcp(address) if looked_up => Some(address),
                _ => None,
            };
            (backend.listed, address)
        });
        self.method.members_changed(&present);
    }

    fn failed(&mut self, index: usize, now: Millis) -> bool {
        !self.lone && self.states.failed(index, now)
    }

    fn refresh(&mut self, index: usize, now: Millis) {
        if let Some(backend) = self.backends.get(index) {
            self.states.refresh(index, backend.snapshot(), now);
        }
    }

    fn pick(&mut self, tried: &mut TriedPeers, now: Millis) -> Option<Pick> {
        let index = self.method.pick(&mut self.states, tried, now)?;
        // The request begins under the lock too: between the two another loop could fill the backend.
        let active = self.backends[index].start_request();
        if active.is_full() {
            self.refresh(index, now);
        }
        Some(Pick {
            active,
            has_failures: self.states.has_failures(index),
        })
    }
}

impl Backend {
    fn member(&self, new: bool) -> Member<'_> {
        Member {
            server: &self.server,
            snapshot: self.snapshot(),
            active: &self.active,
            new,
        }
    }
}
