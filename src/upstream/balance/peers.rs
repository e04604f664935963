//! How one server stands: its weight, what it did, and where it is to be found for it.
//!
//! How every server of an upstream stands: who may be asked, who is left alone, who has to earn its weight back.
//!
//! What all methods of balancing have in common, in nginx's arithmetic. A server that fails loses effective weight
//! and earns it back one by one; one that failed `max_fails` times is left alone for `fail_timeout`, then asked once
//! to see. Only time is finer than nginx's, milliseconds for seconds.
//!
//! nginx looks at every server for every request. Here those who may be asked stand where their method finds them,
//! and who cannot be asked stands aside until something happens to it. So it does not matter how many there are.
//!
//! Who has been asked for one request, and where the search for the next one stands.

use std::collections::BTreeSet;
use std::time::Duration;

use super::least_conn::LeastConn;
use super::round_robin::RoundRobin;
use crate::clock::Millis;
use crate::config::plan::UpstreamServer;

/// What a backend says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::upstream) struct BackendSnapshot {
    /// Somebody does not want it to be asked.
    pub(in crate::upstream) barred: bool,
    /// It has as much to do as it may have.
    pub(in crate::upstream) full: bool,
    /// Requests in progress.
    pub(in crate::upstream) active: u32,
}

#[derive(Debug)]
pub(super) struct PeerState {
    pub(super) weight: i64,
    /// What it earns back in a round.
    pub(super) unit: i64,
    pub(super) max_fails: u32,
    pub(super) fail_timeout: Duration,
    slow_start: Duration,
    pub(super) backup: bool,
    pub(super) presence: BackendSnapshot,
    /// Not for this pick: it has been asked already.
    pub(super) skipped: bool,
    pub(super) effective: i64,
    /// While it is not seated: there its side keeps the score.
    pub(super) current: i64,
    /// Its weight grows since then.
    risen: Option<Millis>,
    pub(super) fails: u32,
    pub(super) accessed: Millis,
    pub(super) checked: Millis,
    pub(super) seat: Seat,
    /// Where it sits when it does.
    pub(super) place: usize,
}

/// Where a server is to be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seat {
    /// Among those who are left alone until this has passed.
    Asleep(Millis),
    /// Nowhere: it is barred or full.
    Away,
    /// Among those who may be asked.
    Playing,
    /// There too, with less than its weight.
    Recovering,
}

impl PeerState {
    pub(super) fn new(server: &UpstreamServer, presence: BackendSnapshot, unit: i64) -> Self {
        let weight = i64::from(server.weight) * unit;
        Self {
            weight,
            unit,
            max_fails: server.max_fails,
            fail_timeout: server.fail_timeout,
            slow_start: server.slow_start,
            backup: server.backup,
            presence,
            skipped: false,
            effective: weight,
            current: 0,
            risen: None,
            fails: 0,
            accessed: Millis::default(),
            checked: Millis::default(),
            seat: Seat::Away,
            place: 0,
        }
    }

    /// Requests in progress.
    pub(super) fn active(&self) -> u32 {
        self.presence.active
    }

    /// Whether it has enough to do, and could be asked otherwise.
    pub(super) fn is_full(&self) -> bool {
        self.presence.full && !self.presence.barred
    }

    /// Whether its weight grows with time.
    pub(super) fn is_rising(&self) -> bool {
        self.risen.is_some()
    }

    /// The weight that time has given it, where its weight grows with time.
    pub(super) fn grow(&mut self, now: Millis) {
        let Some(risen) = self.risen else {
            return;
        };
        let (elapsed, whole) = (now.since(risen).as_millis(), self.slow_start.as_millis());
        if elapsed >= whole {
            self.risen = None;
            self.effective = self.weight;
            return;
        }
        let share = u128::from(self.weight.unsigned_abs()) * elapsed / whole;
        // At least something, or the only one left would never be asked.
        self.effective = i64::try_from(share).unwrap_or(self.weight).max(1);
    }

    /// A round in which it had less than its weight is over.
    pub(super) fn earn(&mut self) {
        if self.risen.is_none() {
            self.effective = (self.effective + self.unit).min(self.weight);
        }
    }

    /// Whether it has its whole weight.
    pub(super) fn is_whole(&self) -> bool {
        self.risen.is_none() && self.effective >= self.weight
    }

    /// It can be asked again after a time in which it could not.
    pub(super) fn rise(&mut self, now: Millis) {
        if !self.slow_start.is_zero() {
            self.risen = Some(now);
            self.effective = 1;
        }
    }

    /// It failed: time alone does not give it weight any more.
    pub(super) fn fall(&mut self) {
        self.risen = None;
    }

    /// Where it belongs now.
    pub(super) fn proper_seat(&self, now: Millis) -> Seat {
        if self.presence.barred || self.presence.full {
            Seat::Away
        } else if self.is_left_alone(now) {
            Seat::Asleep(self.checked.after(self.fail_timeout))
        } else if self.is_whole() {
            Seat::Playing
        } else {
            Seat::Recovering
        }
    }

    /// Whether it has failed too often, too short a time ago.
    pub(super) fn is_left_alone(&self, now: Millis) -> bool {
        self.max_fails > 0
            && self.fails >= self.max_fails
            && now.since(self.checked) <= self.fail_timeout
    }
}

/// The standing of every server of an upstream, in the order of its backends.
#[derive(Debug)]
pub(in crate::upstream) struct PeerStates {
    all: Vec<PeerState>,
    order: Order,
    unit: i64,
    /// How many have enough to do, and could be asked otherwise.
    full: usize,
    primaries: Bench,
    backups: Bench,
}

/// What came of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::upstream) enum FailResult {
    /// It is left alone for `fail_timeout` from now.
    Disable,
    /// It goes on.
    Keep,
}

/// How those who may be asked are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    LeastConn,
    RoundRobin,
}

/// The primaries of an upstream, or its backups.
#[derive(Debug)]
struct Bench {
    side: Side,
    asleep: BTreeSet<(Millis, usize)>,
}

#[derive(Debug)]
enum Side {
    LeastConn(LeastConn),
    RoundRobin(RoundRobin),
}

impl PeerStates {
    /// Those of these servers; `slow` if the weight of one may grow with time.
    pub(super) fn new<'s>(
        order: Order,
        slow: bool,
        servers: impl Iterator<Item = (&'s UpstreamServer, BackendSnapshot)>,
    ) -> Self {
        let unit = if slow { FINE } else { 1 };
        let all = servers.map(|(server, presence)| PeerState::new(server, presence, unit));
        let mut standings = Self {
            all: all.collect(),
            order,
            unit,
            full: 0,
            primaries: Bench::new(order, &mut [], false),
            backups: Bench::new(order, &mut [], true),
        };
        standings.seat_all(Millis::default());
        standings
    }

    /// The servers are these from now on; of each whether it is new in its place, or the same as before.
    pub(super) fn renew<'s>(
        &mut self,
        servers: impl Iterator<Item = (&'s UpstreamServer, BackendSnapshot, bool)>,
        now: Millis,
    ) {
        for index in 0..self.all.len() {
            self.put(index, Seat::Away);
        }
        let mut known = std::mem::take(&mut self.all).into_iter();
        for (server, presence, new) in servers {
            let standing = match known.next() {
                Some(mut standing) if !new => {
                    if standing.presence.barred && !presence.barred {
                        standing.rise(now);
                    }
                    standing.presence = presence;
                    standing
                }
                _ => {
                    let mut standing = PeerState::new(server, presence, self.unit);
                    standing.rise(now);
                    standing
                }
            };
            self.all.push(standing);
        }
        self.seat_all(now);
    }

    /// Seats everybody anew; nobody may be seated.
    fn seat_all(&mut self, now: Millis) {
        self.primaries = Bench::new(self.order, &mut self.all, false);
        self.backups = Bench::new(self.order, &mut self.all, true);
        self.full = self
            .all
            .iter()
            .filter(|standing| standing.is_full())
            .count();
        for index in 0..self.all.len() {
            self.seat(index, now);
        }
    }

    /// The server to ask next, if there is one that may be asked.
    pub(super) fn pick(&mut self, round: &mut TriedPeers, now: Millis) -> Option<usize> {
        if !round.backups {
            if let Some(primary) = self.pick_among(round, now) {
                return Some(primary);
            }
            // For the rest of this request only backups are asked, as in nginx: a primary that comes back
            // meanwhile serves the next one.
            round.backups = true;
        }
        self.pick_among(round, now)
    }

    /// Whether the server can be asked now in this round.
    pub(super) fn is_usable(&self, index: usize, round: &TriedPeers, now: Millis) -> bool {
        let standing = &self.all[index];
        let present = !standing.presence.barred && !standing.presence.full;
        present && !standing.is_left_alone(now) && !round.tried().any(|tried| tried == index)
    }

    /// Whether somebody who has not been asked has enough to do, and could be asked otherwise.
    pub(super) fn is_crowded(&self, round: &TriedPeers) -> bool {
        let tried = round.tried().filter(|index| self.all[*index].is_full());
        self.full > tried.count()
    }

    /// The server is asked, whoever chose it.
    pub(super) fn choose(&mut self, index: usize, round: &mut TriedPeers, now: Millis) {
        let standing = &mut self.all[index];
        if now.since(standing.checked) > standing.fail_timeout {
            standing.checked = now;
        }
        // It was asked to see whether it is well again; the answer decides.
        if standing.is_left_alone(now) {
            self.seat(index, now);
        }
        round.mark(index);
    }

    /// What a server says of itself has changed.
    pub(super) fn consider(&mut self, index: usize, presence: BackendSnapshot, now: Millis) {
        let Some(standing) = self.all.get_mut(index) else {
            return;
        };
        let was_full = standing.is_full();
        let before = std::mem::replace(&mut standing.presence, presence);
        self.full = self.full + usize::from(standing.is_full()) - usize::from(was_full);
        if before.barred && !presence.barred {
            standing.rise(now);
        }
        self.seat(index, now);
        let standing = &self.all[index];
        let bench = match standing.backup {
            false => &mut self.primaries,
            true => &mut self.backups,
        };
        if let Side::LeastConn(side) = &mut bench.side {
            side.weigh(standing);
        }
    }

    /// The server did not answer, or not as it should.
    pub(super) fn failed(&mut self, index: usize, now: Millis) -> FailResult {
        let standing = &mut self.all[index];
        standing.fails = standing.fails.saturating_add(1);
        standing.accessed = now;
        standing.checked = now;
        if standing.max_fails == 0 {
            return FailResult::Keep;
        }
        let loss = standing.weight / i64::from(standing.max_fails);
        standing.effective = (standing.effective - loss).max(0);
        standing.fall();
        let verdict = if standing.fails >= standing.max_fails {
            FailResult::Disable
        } else {
            FailResult::Keep
        };
        self.seat(index, now);
        verdict
    }

    /// The server answered.
    pub(super) fn succeeded(&mut self, index: usize) {
        let standing = &mut self.all[index];
        // Only the answer to a probe clears what is remembered: any other may be to a request that was sent
        // before the failures.
        if standing.accessed < standing.checked {
            standing.fails = 0;
            let now = standing.checked;
            standing.rise(now);
            self.seat(index, now);
        }
    }

    /// Whether a success would change anything.
    pub(super) fn is_blemished(&self, index: usize) -> bool {
        self.all[index].fails > 0
    }

    #[cfg(test)]
    pub(super) fn effective(&self, index: usize) -> i64 {
        self.all[index].effective
    }

    fn pick_among(&mut self, round: &mut TriedPeers, now: Millis) -> Option<usize> {
        self.wake(round.backups, now);
        let bench = match round.backups {
            false => &mut self.primaries,
            true => &mut self.backups,
        };
        for index in round.tried() {
            self.all[index].skipped = true;
        }
        let picked = match &mut bench.side {
            Side::LeastConn(side) => side.pick(&mut self.all, round, now),
            Side::RoundRobin(side) => side.pick(&mut self.all, round, now),
        };
        for index in round.tried() {
            self.all[index].skipped = false;
        }
        let index = picked?;
        self.choose(index, round, now);
        Some(index)
    }

    /// Takes back those who have been left alone for long enough.
    fn wake(&mut self, backups: bool, now: Millis) {
        loop {
            let bench = match backups {
                false => &self.primaries,
                true => &self.backups,
            };
            match bench.asleep.first() {
                Some(&(until, index)) if until < now => self.seat(index, now),
                _ => return,
            }
        }
    }

    /// Puts a server where it belongs now.
    fn seat(&mut self, index: usize, now: Millis) {
        self.put(index, self.all[index].proper_seat(now));
    }

    fn put(&mut self, index: usize, seat: Seat) {
        let standing = &mut self.all[index];
        let bench = match standing.backup {
            false => &mut self.primaries,
            true => &mut self.backups,
        };
        bench.seat(index, standing, seat);
    }
}

impl Bench {
    /// A bench on which nobody is seated yet.
    fn new(order: Order, standings: &mut [PeerState], backups: bool) -> Self {
        Self {
            side: match order {
                Order::LeastConn => Side::LeastConn(LeastConn::new(standings, backups)),
                Order::RoundRobin => Side::RoundRobin(RoundRobin::new(standings, backups)),
            },
            asleep: BTreeSet::new(),
        }
    }

    fn seat(&mut self, index: usize, standing: &mut PeerState, seat: Seat) {
        if standing.seat == seat {
            return;
        }
        match (standing.seat, &mut self.side) {
            (Seat::Asleep(until), _) => {
                self.asleep.remove(&(until, index));
            }
            (Seat::Away, _) => {}
            (_, Side::LeastConn(side)) => side.leave(index, standing),
            (_, Side::RoundRobin(side)) => side.leave(index, standing),
        }
        standing.seat = seat;
        match (seat, &mut self.side) {
            (Seat::Asleep(until), _) => {
                self.asleep.insert((until, index));
            }
            (Seat::Away, _) => {}
            (_, Side::LeastConn(side)) => side.enter(index, standing),
            (_, Side::RoundRobin(side)) => side.enter(index, standing),
        }
    }
}

/// A weight of 1 in the finest steps that a weight grows in.
const FINE: i64 = 256;

/// The servers a request has been to; nobody is asked twice.
#[derive(Debug, Default)]
pub(in crate::upstream) struct TriedPeers {
    // Nearly every request is answered by the first: no allocation for it.
    first: Option<usize>,
    others: Vec<usize>,
    /// No primary could be asked, and none is asked any more.
    pub(super) backups: bool,
    /// Where servers are sought by what the request is. Boxed: most are not.
    pub(super) search: Option<Box<HashSearch>>,
}

/// A search for a server that goes on where it has stopped, from one try to the next.
#[derive(Debug, Default)]
pub(super) struct HashSearch {
    /// What is hashed.
    pub(super) key: Vec<u8>,
    /// Where the search has got to.
    pub(super) hash: u64,
    /// How often it has been hashed.
    pub(super) hashed: u32,
    /// How often it found somebody who could not be asked.
    pub(super) misses: u32,
}

impl TriedPeers {
    /// Those asked so far, in their order.
    pub(super) fn tried(&self) -> impl Iterator<Item = usize> + Clone {
        self.first.iter().chain(&self.others).copied()
    }

    /// How many those are.
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    /// Whether nobody was.
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Nobody could be asked, which may have changed: the search begins again. Who was asked stays asked.
    pub(in crate::upstream) fn begin_again(&mut self) {
        self.backups = false;
        if let Some(search) = &mut self.search {
            (search.hash, search.hashed, search.misses) = (0, 0, 0);
        }
    }

    pub(super) fn mark(&mut self, index: usize) {
        match self.first {
            None => self.first = Some(index),
            Some(_) => self.others.push(index),
        }
    }
}

impl HashSearch {
    /// One more could not be asked.
    pub(super) fn miss(&mut self) {
        self.misses += 1;
    }

    /// Whether it has missed so often that who has a turn is asked; nginx's number.
    pub(super) fn is_over(&self) -> bool {
        self.misses > 20
    }
}
