//! Which backend is asked next.
//!
//! One standing for all event loops, unlike nginx without a `zone`: what one loop learned of a dead backend
//! spares the others the same failure. The lock is held for a few numbers, however many servers there are.

mod least_conn;
mod ring;
mod round;
mod round_robin;
mod shares;
mod standing;
mod standings;

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use self::ring::Ring;
pub(super) use self::round::Round;
use self::round::Search;
use self::shares::{Lot, Shares};
pub(super) use self::standing::Presence;
pub(super) use self::standings::Verdict;
use self::standings::{Order, Standings};
use super::backend::{Backend, Lease};
use super::condition::Notices;
use crate::clock::Millis;
use crate::config::plan::{self, Template};
use crate::message::{Exchange, vars};

/// The balancer of one upstream.
#[derive(Debug)]
pub(super) enum Balance {
    /// Several servers.
    Group(Box<Group>),
    /// One server: there is nothing to choose and nobody to spare it for, so it is never left alone.
    Single(Arc<Backend>),
}

/// Servers that stand for each other.
#[derive(Debug)]
pub(super) struct Group {
    seek: Seek,
    members: Mutex<Members>,
    notices: Arc<Notices>,
}

/// What of a request decides who is asked.
#[derive(Debug)]
enum Seek {
    /// The client's address.
    Address,
    /// What is hashed.
    Key(Template),
    /// Nothing: lots are drawn.
    Lot,
    /// Nothing: whose turn it is.
    Turn,
}

#[derive(Debug)]
struct Members {
    backends: Vec<Arc<Backend>>,
    standings: Standings,
    choice: Choice,
}

/// How a server is found before it is whose turn it is.
#[derive(Debug)]
enum Choice {
    Address(Shares),
    Hash(Shares),
    Lot(Shares, Lot),
    Ring(Ring),
    Turn,
}

/// A backend to ask.
#[derive(Debug)]
pub(super) struct Pick {
    pub(super) lease: Lease,
    blemished: bool,
}

impl Balance {
    /// Without `notices` there is one server, of which nobody wants to hear.
    pub(super) fn new(
        method: &plan::Balance,
        backends: Vec<Arc<Backend>>,
        notices: Option<Arc<Notices>>,
    ) -> Self {
        match (&backends[..], notices) {
            ([only], None) => Self::Single(Arc::clone(only)),
            (_, notices) => Self::Group(Box::new(Group {
                seek: Seek::new(method),
                members: Mutex::new(Members::new(method, backends)),
                notices: notices.unwrap_or_default(),
            })),
        }
    }

    /// Every backend, in the plan's order.
    pub(super) fn backends(&self) -> Vec<Arc<Backend>> {
        match self {
            Self::Group(group) => group.members.lock().backends.clone(),
            Self::Single(only) => vec![Arc::clone(only)],
        }
    }

    /// A round for this request, in which nobody has been asked.
    pub(super) fn round(&self, exchange: &Exchange) -> Round {
        let mut round = Round::default();
        if let Self::Group(group) = self {
            round.search = group.seek.search(exchange);
        }
        round
    }

    /// The backend to ask next in this round, if there is one.
    pub(super) fn pick(&self, round: &mut Round, now: Millis) -> Option<Pick> {
        match self {
            Self::Group(group) => {
                let mut members = group.members.lock();
                group.notices.take(|index| members.consider(index, now));
                members.pick(round, now)
            }
            Self::Single(backend) => {
                if !backend.may_be_asked() {
                    return None;
                }
                Some(Pick {
                    lease: backend.lease_within_limit()?,
                    blemished: false,
                })
            }
        }
    }

    /// Whether somebody could be asked in this round but for having enough to do.
    pub(super) fn is_crowded(&self, round: &Round) -> bool {
        match self {
            Self::Group(group) => group.members.lock().standings.is_crowded(round),
            Self::Single(backend) => backend.may_be_asked() && backend.is_full(),
        }
    }

    pub(super) fn failed(&self, pick: &Pick, now: Millis) -> Verdict {
        match self {
            Self::Group(group) => group.members.lock().failed(pick.lease.index, now),
            Self::Single(_) => Verdict::Keep,
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

impl Seek {
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
    fn search(&self, exchange: &Exchange) -> Option<Box<Search>> {
        let mut search = Box::<Search>::default();
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

impl Members {
    fn new(method: &plan::Balance, backends: Vec<Arc<Backend>>) -> Self {
        let shares = || Shares::new(backends.iter().map(|backend| backend.server.weight));
        let choice = match method {
            plan::Balance::ConsistentHash(_) => {
                let servers = backends.iter().map(|backend| &backend.server);
                Choice::Ring(Ring::new(
                    servers.map(|server| (&*server.name, server.weight)),
                ))
            }
            plan::Balance::Hash(_) => Choice::Hash(shares()),
            plan::Balance::IpHash => Choice::Address(shares()),
            plan::Balance::LeastConn | plan::Balance::RoundRobin => Choice::Turn,
            plan::Balance::Random => Choice::Lot(
                shares(),
                Lot::new(RandomState::new().hash_one(shares().of(0))),
            ),
        };
        let order = match method {
            plan::Balance::LeastConn => Order::LeastConn,
            _ => Order::RoundRobin,
        };
        let present = backends
            .iter()
            .map(|backend| (&backend.server, backend.presence()));
        Self {
            standings: Standings::new(order, present),
            backends,
            choice,
        }
    }

    fn failed(&mut self, index: usize, now: Millis) -> Verdict {
        match &self.backends[..] {
            [only] if !only.server.backup => Verdict::Keep,
            _ => self.standings.failed(index, now),
        }
    }

    /// Something has changed about a backend.
    fn consider(&mut self, index: usize, now: Millis) {
        if let Some(backend) = self.backends.get(index) {
            self.standings.consider(index, backend.presence(), now);
        }
    }

    fn pick(&mut self, round: &mut Round, now: Millis) -> Option<Pick> {
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
    fn search(&mut self, round: &mut Round, now: Millis) -> Option<usize> {
        let mut search = round.search.take()?;
        let Self {
            backends,
            standings,
            choice,
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
