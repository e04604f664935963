//! How every server of an upstream stands: who may be asked, who is left alone, who has to earn its weight back.
//!
//! What all methods of balancing have in common, in nginx's arithmetic. A server that fails loses effective weight
//! and earns it back one by one; one that failed `max_fails` times is left alone for `fail_timeout`, then asked once
//! to see. Only time is finer than nginx's, milliseconds for seconds.
//!
//! nginx looks at every server for every request. Here those who may be asked stand where their method finds them,
//! and who cannot be asked stands aside until something happens to it. So it does not matter how many there are.

use std::collections::BTreeSet;

use super::least_conn::LeastConn;
use super::round::TriedPeers;
use super::round_robin::RoundRobin;
use super::standing::{BackendSnapshot, PeerState, Seat};
use crate::clock::Millis;
use crate::config::plan::UpstreamServer;

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
