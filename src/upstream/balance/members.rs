//! The backends of a group, how each stands, and how one is found among them.
//!
//! Each has a place here, and keeps it: requests that are under way know their backend by it. Who has left stays in its
//! place until it has nothing to do any more and another needs one.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;

use super::Pick;
use super::ring::HashRing;
use super::round::TriedPeers;
use super::shares::{Lot, WeightTable};
use super::standings::{FailResult, Order, PeerStates};
use crate::clock::Millis;
use crate::config::plan;
use crate::upstream::backend::{Backend, BackendAddress, GroupSettings};
use crate::upstream::resolve::MembershipChange;

#[derive(Debug)]
pub(super) struct Peers {
    pub(super) backends: Vec<Arc<Backend>>,
    pub(super) standings: PeerStates,
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
    pub(super) fn new(plan: &plan::Upstream, backends: Vec<Arc<Backend>>) -> Self {
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
    pub(super) fn resettle(
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
    pub(super) fn failed(&mut self, index: usize, now: Millis) -> FailResult {
        match self.lone {
            true => FailResult::Keep,
            false => self.standings.failed(index, now),
        }
    }

    /// Something has changed about a backend.
    pub(super) fn consider(&mut self, index: usize, now: Millis) {
        if let Some(backend) = self.backends.get(index) {
            self.standings.consider(index, backend.presence(), now);
        }
    }

    /// The backend to ask next, if there is one.
    pub(super) fn pick(&mut self, round: &mut TriedPeers, now: Millis) -> Option<Pick> {
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
