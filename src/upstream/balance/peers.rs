//! What all balancers have in common: the trait, the state of the servers, and the servers a request was sent to.
//!
//! The arithmetic is nginx's. A server that fails loses effective weight and recovers it step by step; one that failed
//! `max_fails` times receives no requests for `fail_timeout`, then a single one as a probe. Only time is finer than
//! nginx's: milliseconds instead of seconds.
//!
//! A balancer looks at every server for every request, as nginx does. So that this stays cheap, everything that can keep
//! a server from being picked is one byte of flags, which is zero for a healthy primary.

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicU32};
use std::time::Duration;

use crate::clock::Millis;
use crate::config::plan::{self, Template, UpstreamServer};
use crate::upstream::backend::{Backend, BackendSnapshot};

/// A way to pick the next server.
pub(super) trait Balance: Default {
    /// The balancer of this upstream, without members.
    fn new(_plan: &plan::Upstream) -> Self {
        Self::default()
    }

    /// What of a request is hashed, for balancers that [search](Balance::search).
    fn selection_key(_method: &plan::Balance) -> SelectionKey {
        SelectionKey::Nothing
    }

    /// Sets the servers, in the order of the file.
    fn members_changed(&mut self, _members: &[&Backend]) {}

    /// The index of the server that the request's key leads to, if it can be picked.
    fn search(
        &mut self,
        _peers: &[PeerState],
        _search: &mut HashSearch,
        _now: Millis,
    ) -> Option<usize> {
        None
    }

    /// The index of the next server, on the side that `tried` is on: where the search finds none, round robin picks.
    ///
    /// It is [ready](PeerState::is_ready) or [usable](PeerState::is_usable), which a server that this request was sent to
    /// is not. Where no primary is, this is called again for the backups.
    fn pick(
        &mut self,
        peers: &mut [PeerState],
        tried: &mut TriedPeers,
        now: Millis,
    ) -> Option<usize> {
        let search = tried.search.as_deref_mut();
        let found = search.and_then(|search| self.search(peers, search, now));
        found.or_else(|| round_robin(peers, tried.side(), now, |_| true))
    }
}

/// What of a request decides which server is picked.
#[derive(Debug)]
pub(super) enum SelectionKey {
    /// The client's address.
    Address,
    /// A template.
    Key(Template),
    /// Nothing.
    Nothing,
    /// Nothing of the request, but each request has a search of its own.
    Random,
}

/// The state of one server.
#[derive(Debug)]
pub(super) struct PeerState {
    flags: Flags,
    /// Its place among the servers of the upstream.
    pub(super) index: usize,
    pub(super) effective: i64,
    pub(super) current: i64,
    pub(super) weight: i64,
    /// As written in the file: at most 32 bits.
    listed_weight: u64,
    /// Requests in progress, counted by the backend.
    active: Arc<AtomicU32>,
    /// The effective weight it recovers in a round.
    unit: i64,
    max_fails: u32,
    fails: u32,
    fail_timeout: Duration,
    slow_start: Duration,
    /// When its slow start began.
    slow_since: Option<Millis>,
    accessed: Millis,
    checked: Millis,
}

/// Why a server may not be picked, or not without a closer look.
type Flags = u8;

/// It has as many requests as `max_conns` allows.
const FULL: Flags = 1;
/// A reason keeps requests from it.
const UNAVAILABLE: Flags = 2;
/// This request has been sent to it before.
const TRIED: Flags = 4;
/// It has failed `max_fails` times: whether it may be picked depends on the time.
const FAILED: Flags = 8;
/// It has less than its weight.
const REDUCED: Flags = 16;
/// It is a backup.
const BACKUP: Flags = 32;

/// The primaries or the backups of an upstream: the flags of a healthy server there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Side(Flags);

/// The load of a server, as a fraction: requests by weight.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerLoad {
    pub(super) requests: u64,
    weight: u64,
}

impl PeerState {
    fn new(index: usize, member: &Member<'_>, unit: i64) -> Self {
        let Member {
            server,
            snapshot,
            active,
            ..
        } = *member;
        let weight = i64::from(server.weight) * unit;
        let mut peer = Self {
            flags: if server.backup { BACKUP } else { 0 },
            index,
            effective: weight,
            current: 0,
            weight,
            listed_weight: server.weight.into(),
            active: Arc::clone(active),
            unit,
            max_fails: server.max_fails,
            fails: 0,
            fail_timeout: server.fail_timeout,
            slow_start: server.slow_start,
            slow_since: None,
            accessed: Millis::default(),
            checked: Millis::default(),
        };
        peer.set(UNAVAILABLE, snapshot.unavailable);
        peer.set(FULL, snapshot.full);
        peer
    }

    /// Whether it may be picked on this side and has its full weight: nearly all are ready, and nothing else has to be
    /// checked.
    #[inline]
    pub(super) fn is_ready(&self, side: Side) -> bool {
        self.flags == side.0
    }

    /// Whether it may be picked now on this side, for one that is not ready; raises its weight in a slow start.
    #[cold]
    #[inline(never)]
    pub(super) fn is_usable(&mut self, side: Side, now: Millis) -> bool {
        let usable = self.flags & BACKUP == side.0 && self.is_free(now);
        if usable {
            self.grow(now);
        }
        usable
    }

    /// Whether it may be picked now, be it a primary or a backup: for balancers without backups.
    pub(super) fn is_free(&self, now: Millis) -> bool {
        self.flags & (FULL | UNAVAILABLE | TRIED) == 0 && !self.is_failed_out(now)
    }

    /// What it gains in a round. A reduced weight recovers a step.
    pub(super) fn gain(&mut self) -> i64 {
        let gain = self.effective;
        if self.slow_since.is_none() {
            self.effective = (self.effective + self.unit).min(self.weight);
            self.set(REDUCED, self.effective < self.weight);
        }
        gain
    }

    /// Whether it has no requests in progress.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.active.load(atomic::Ordering::Relaxed) == 0
    }

    /// Its active requests for its weight.
    ///
    /// A server in its slow start counts as if it had a part of a request more, the larger the smaller its weight still
    /// is: otherwise it would be sent everything while it is idle.
    #[inline]
    pub(super) fn load(&self) -> PeerLoad {
        let requests = u64::from(self.active.load(atomic::Ordering::Relaxed));
        let weight = self.listed_weight;
        if self.flags & REDUCED == 0 || self.slow_since.is_none() {
            return PeerLoad { requests, weight };
        }
        // Both with the same factor: its weight is a share of what it will be.
        let share = self.effective.unsigned_abs() * WHOLE / self.weight.unsigned_abs();
        let share = share.clamp(1, WHOLE);
        PeerLoad {
            requests: requests * WHOLE + WHOLE - share,
            weight: weight * share,
        }
    }

    fn set(&mut self, flag: Flags, on: bool) {
        match on {
            true => self.flags |= flag,
            false => self.flags &= !flag,
        }
    }

    /// Whether it is full, and available otherwise.
    fn is_full(&self) -> bool {
        self.flags & (FULL | UNAVAILABLE) == FULL
    }

    /// Whether it has failed too often, too short a time ago.
    fn is_failed_out(&self, now: Millis) -> bool {
        self.flags & FAILED != 0 && now.since(self.checked) <= self.fail_timeout
    }

    /// Raises the weight of a server in its slow start.
    fn grow(&mut self, now: Millis) {
        let Some(slow_since) = self.slow_since else {
            return;
        };
        let (elapsed, whole) = (
            now.since(slow_since).as_millis(),
            self.slow_start.as_millis(),
        );
        if elapsed >= whole {
            self.slow_since = None;
            self.effective = self.weight;
            self.set(REDUCED, false);
            return;
        }
        let share = u128::from(self.weight.unsigned_abs()) * elapsed / whole;
        // At least 1, or the only one left would never be picked.
        self.effective = i64::try_from(share).unwrap_or(self.weight).max(1);
    }

    /// Begins a slow start: it can be picked again.
    fn start_slowly(&mut self, now: Millis) {
        if !self.slow_start.is_zero() {
            self.slow_since = Some(now);
            self.effective = 1;
            self.set(REDUCED, true);
        }
    }

    /// Takes in a change of the backend.
    fn update(&mut self, snapshot: BackendSnapshot, now: Millis) {
        if self.flags & UNAVAILABLE != 0 && !snapshot.unavailable {
            self.start_slowly(now);
        }
        self.set(UNAVAILABLE, snapshot.unavailable);
        self.set(FULL, snapshot.full);
    }

    /// It is picked.
    fn choose(&mut self, now: Millis) {
        // After a probe, a failed server receives nothing until it has responded.
        if now.since(self.checked) > self.fail_timeout {
            self.checked = now;
        }
    }

    fn failed(&mut self, now: Millis) -> bool {
        self.fails = self.fails.saturating_add(1);
        self.accessed = now;
        self.checked = now;
        if self.max_fails == 0 {
            return false;
        }
        let loss = self.weight / i64::from(self.max_fails);
        self.effective = (self.effective - loss).max(0);
        // Its slow start is over.
        self.slow_since = None;
        self.set(REDUCED, self.effective < self.weight);
        let disabled = self.fails >= self.max_fails;
        if disabled {
            self.set(FAILED, true);
        }
        disabled
    }

    fn succeeded(&mut self) {
        // Only the response to a probe clears the failures: any other may be to a request that was sent before them.
        if self.accessed < self.checked {
            self.fails = 0;
            self.set(FAILED, false);
            self.start_slowly(self.checked);
        }
    }
}

impl PeerLoad {
    /// More than any server has.
    pub(super) const ENDLESS: Self = Self {
        requests: 1,
        weight: 0,
    };

    /// Compares two fractions of 64 bits.
    #[inline]
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let cross = |one: &Self, other: &Self| u128::from(one.requests) * u128::from(other.weight);
        cross(self, other).cmp(&cross(other, self))
    }

    /// The same where both have their full weight: 32 bits each, so nothing overflows.
    #[inline]
    pub(super) fn compare_whole(&self, other: &Self) -> Ordering {
        (self.requests * other.weight).cmp(&(other.requests * self.weight))
    }
}

const WHOLE: u64 = 1024;

/// The state of all servers of an upstream, in the order of its backends.
#[derive(Debug)]
pub(super) struct PeerStates {
    all: Vec<PeerState>,
    unit: i64,
}

/// A server that is added, or that may have changed.
#[derive(Debug)]
pub(super) struct Member<'s> {
    pub(super) server: &'s UpstreamServer,
    pub(super) snapshot: BackendSnapshot,
    pub(super) active: &'s Arc<AtomicU32>,
    /// Whether it is another server than before at its place.
    pub(super) new: bool,
}

impl PeerStates {
    /// `slow_start`: whether one of them has a slow start.
    pub(super) fn new<'s>(slow_start: bool, members: impl Iterator<Item = Member<'s>>) -> Self {
        let unit = if slow_start { FINE } else { 1 };
        let members = members.enumerate();
        let all = members.map(|(index, member)| PeerState::new(index, &member, unit));
        Self {
            all: all.collect(),
            unit,
        }
    }

    /// Sets the servers.
    pub(super) fn renew<'s>(&mut self, members: impl Iterator<Item = Member<'s>>, now: Millis) {
        let mut known = std::mem::take(&mut self.all).into_iter();
        for member in members {
            let peer = match known.next() {
                Some(mut peer) if !member.new => {
                    peer.update(member.snapshot, now);
                    peer
                }
                _ => {
                    let mut peer = PeerState::new(self.all.len(), &member, self.unit);
                    peer.start_slowly(now);
                    peer
                }
            };
            self.all.push(peer);
        }
    }

    /// The next server, if one can be picked.
    pub(super) fn pick(
        &mut self,
        balancer: &mut impl Balance,
        tried: &mut TriedPeers,
        now: Millis,
    ) -> Option<usize> {
        self.mark(tried, true);
        let mut picked = balancer.pick(&mut self.all, tried, now);
        if picked.is_none() && !tried.backups {
            // For the rest of this request only backups are picked, as in nginx: a primary that recovers meanwhile serves
            // the next request.
            tried.backups = true;
            picked = balancer.pick(&mut self.all, tried, now);
        }
        self.mark(tried, false);
        let index = picked?;
        self.all[index].choose(now);
        tried.mark(index);
        Some(index)
    }

    fn mark(&mut self, tried: &TriedPeers, on: bool) {
        for index in tried.tried() {
            self.all[index].set(TRIED, on);
        }
    }

    /// Whether a server that was not tried is full, and available otherwise.
    pub(super) fn has_full_peer(&self, tried: &TriedPeers) -> bool {
        let full = |(index, peer): (usize, &PeerState)| {
            peer.is_full() && !tried.tried().any(|tried| tried == index)
        };
        self.all.iter().enumerate().any(full)
    }

    /// Takes in a change of a backend.
    pub(super) fn refresh(&mut self, index: usize, snapshot: BackendSnapshot, now: Millis) {
        if let Some(peer) = self.all.get_mut(index) {
            peer.update(snapshot, now);
        }
    }

    /// Counts a failure; returns whether it disables the server for `fail_timeout`.
    pub(super) fn failed(&mut self, index: usize, now: Millis) -> bool {
        self.all[index].failed(now)
    }

    /// Takes in a good response.
    pub(super) fn succeeded(&mut self, index: usize) {
        self.all[index].succeeded();
    }

    /// Whether a good response would change anything.
    pub(super) fn has_failures(&self, index: usize) -> bool {
        self.all[index].fails > 0
    }

    #[cfg(test)]
    pub(super) fn effective(&self, index: usize) -> i64 {
        self.all[index].effective
    }
}

/// The steps of a weight of 1 in a slow start.
const FINE: i64 = 256;

/// The servers a request was sent to; none is picked twice.
#[derive(Debug, Default)]
pub(in crate::upstream) struct TriedPeers {
    // Nearly every request is served by the first: no allocation for it.
    first: Option<usize>,
    others: Vec<usize>,
    /// No primary could be picked, and none is any more.
    pub(super) backups: bool,
    /// For balancers that search. Boxed: most do not.
    pub(super) search: Option<Box<HashSearch>>,
}

/// A search for a server; the next attempt goes on where it stopped.
#[derive(Debug, Default)]
pub(super) struct HashSearch {
    /// What is hashed.
    pub(super) key: Vec<u8>,
    /// The position of the search.
    pub(super) hash: u64,
    /// How often the key has been hashed.
    pub(super) hashed: u32,
    /// How often it found a server that could not be picked.
    pub(super) misses: u32,
}

impl TriedPeers {
    /// The side of the next server.
    pub(super) fn side(&self) -> Side {
        Side(if self.backups { BACKUP } else { 0 })
    }

    /// The servers so far, in their order.
    pub(super) fn tried(&self) -> impl Iterator<Item = usize> + Clone {
        self.first.iter().chain(&self.others).copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Begins again, without the servers it was sent to: their state may have changed.
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
    /// Goes through the indices that `next` leads to, up to one that can be picked. After 20 misses, as in nginx, round
    /// robin picks.
    pub(super) fn find(
        &mut self,
        peers: &[PeerState],
        now: Millis,
        mut next: impl FnMut(&mut Self) -> Option<usize>,
    ) -> Option<usize> {
        while self.misses <= MOST_MISSES {
            let index = next(self)?;
            if peers[index].is_free(now) {
                return Some(index);
            }
            self.misses += 1;
        }
        None
    }
}

/// How many servers a search finds that cannot be picked before it ends.
pub(super) const MOST_MISSES: u32 = 20;

/// nginx's smooth weighted round robin among the peers on this side that are `wanted`: each gains its effective weight,
/// and the one with the highest current weight is picked and pays what all gained.
// The ready peers come first and the others after them: a loop without calls costs half as much, and four at a time cost
// less than one by one.
#[inline]
pub(super) fn round_robin(
    peers: &mut [PeerState],
    side: Side,
    now: Millis,
    wanted: impl Fn(&PeerState) -> bool,
) -> Option<usize> {
    let (mut total, mut highest, mut best) = (0, i64::MIN, usize::MAX);
    let mut others = false;
    let mut gain = |peer: &mut PeerState| {
        if !peer.is_ready(side) {
            others = true;
        } else if wanted(peer) {
            peer.current += peer.effective;
            total += peer.effective;
            // Of several that are equal the first in the file.
            if peer.current > highest {
                (highest, best) = (peer.current, peer.index);
            }
        }
    };
    let (fours, rest) = peers.as_chunks_mut::<4>();
    for four in fours {
        four.iter_mut().for_each(&mut gain);
    }
    rest.iter_mut().for_each(gain);
    if others {
        for peer in &mut *peers {
            if peer.is_ready(side) || !peer.is_usable(side, now) || !wanted(peer) {
                continue;
            }
            let gain = peer.gain();
            peer.current += gain;
            total += gain;
            if peer.current > highest || peer.current == highest && peer.index < best {
                (highest, best) = (peer.current, peer.index);
            }
        }
    }
    peers.get_mut(best)?.current -= total;
    Some(best)
}
