//! The servers of an upstream as its balancer sees them, and the servers one request has been sent to.
//!
//! What all balancers have in common, in nginx's arithmetic. A server that fails loses effective weight and earns it
//! back one by one; one that failed `max_fails` times receives no requests for `fail_timeout`, then a single one to see.
//! Only time is finer than nginx's, milliseconds for seconds.
//!
//! A balancer looks at every server for every request, as nginx does. So that this stays cheap, everything that can keep
//! a server from being picked is one byte of flags, which is zero for a healthy primary.

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicU32};
use std::time::Duration;

use crate::clock::Millis;
use crate::config::plan::{self, Template, UpstreamServer};
use crate::upstream::backend::Backend;

/// A way to pick the next server. What all of them have in common stands in [`PeerState`].
pub(super) trait Balance {
    /// The balancer of this upstream, without members.
    fn new(plan: &plan::Upstream) -> Self;

    /// What of a request decides, for upstreams that pick by it.
    fn selection_key(_method: &plan::Balance) -> SelectionKey {
        SelectionKey::Nothing
    }

    /// These are the servers from now on, in the order of the file.
    fn members_changed(&mut self, _members: &[&Backend]) {}

    /// The index of the server to ask next, on the side that `tried` is on.
    fn pick(
        &mut self,
        peers: &mut [PeerState],
        tried: &mut TriedPeers,
        now: Millis,
    ) -> Option<usize>;
}

/// What of a request decides which server is asked.
#[derive(Debug)]
pub(super) enum SelectionKey {
    /// The client's address.
    Address,
    /// Nothing of the request, but each one searches for itself.
    Chance,
    /// What is hashed.
    Key(Template),
    /// Nothing.
    Nothing,
}

/// What a backend says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::upstream) struct BackendSnapshot {
    /// There is a reason not to ask it.
    pub(in crate::upstream) barred: bool,
    /// It has as many requests as `max_conns` allows.
    pub(in crate::upstream) full: bool,
}

/// One server as its balancer sees it.
#[derive(Debug)]
pub(super) struct PeerState {
    flags: Flags,
    /// Its place among the servers of its upstream.
    pub(super) index: usize,
    pub(super) effective: i64,
    pub(super) current: i64,
    pub(super) weight: i64,
    /// As it is written in the file: at most 32 bits.
    listed_weight: u64,
    /// Requests in progress, counted by the backend.
    active: Arc<AtomicU32>,
    /// What it earns back in a round.
    unit: i64,
    max_fails: u32,
    fails: u32,
    fail_timeout: Duration,
    slow_start: Duration,
    /// Its weight grows since then.
    risen: Option<Millis>,
    accessed: Millis,
    checked: Millis,
}

/// Why a server may not be picked, or not without a closer look.
type Flags = u8;

/// It has as many requests as `max_conns` allows.
const FULL: Flags = 1;
/// There is a reason not to ask it.
const BARRED: Flags = 2;
/// This request has been sent to it before.
const TRIED: Flags = 4;
/// It has failed `max_fails` times: whether it may be asked depends on the time.
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
    requests: u64,
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
            risen: None,
            accessed: Millis::default(),
            checked: Millis::default(),
        };
        peer.set(BARRED, snapshot.barred);
        peer.set(FULL, snapshot.full);
        peer
    }

    /// Whether it is well and has its whole weight: nearly all are, and nothing else has to be asked of them.
    #[inline]
    pub(super) fn is_ready(&self, side: Side) -> bool {
        self.flags == side.0
    }

    /// Whether it may be picked now on this side.
    #[cold]
    #[inline(never)]
    pub(super) fn is_usable(&mut self, side: Side, now: Millis) -> bool {
        let usable = self.flags & BACKUP == side.0 && self.is_free(now);
        if usable {
            self.grow(now);
        }
        usable
    }

    /// Whether it may be picked now, be it a primary or a backup.
    pub(super) fn is_free(&self, now: Millis) -> bool {
        self.flags & (FULL | BARRED | TRIED) == 0 && !self.is_left_alone(now)
    }

    /// What it gains in a round; where that is less than its weight, it earns some of that back.
    pub(super) fn gain(&mut self) -> i64 {
        let gain = self.effective;
        if self.risen.is_none() {
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

    /// What it has to do for its weight.
    ///
    /// A server whose weight still grows (`slow_start`) counts as if it had a part of a request more, the larger the
    /// less it has of its weight: having nothing to do, it would otherwise be sent everything.
    #[inline]
    pub(super) fn load(&self) -> PeerLoad {
        let requests = u64::from(self.active.load(atomic::Ordering::Relaxed));
        let weight = self.listed_weight;
        if self.flags & REDUCED == 0 || self.risen.is_none() {
            return PeerLoad { requests, weight };
        }
        // Both with the same factor: its weight is a part of what it will be.
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

    /// Whether it is full, and could be asked otherwise.
    fn is_full(&self) -> bool {
        self.flags & (FULL | BARRED) == FULL
    }

    /// Whether it has failed too often, too short a time ago.
    fn is_left_alone(&self, now: Millis) -> bool {
        self.flags & FAILED != 0 && now.since(self.checked) <= self.fail_timeout
    }

    /// Takes the weight that time has given it, where its weight grows with time.
    fn grow(&mut self, now: Millis) {
        let Some(risen) = self.risen else {
            return;
        };
        let (elapsed, whole) = (now.since(risen).as_millis(), self.slow_start.as_millis());
        if elapsed >= whole {
            self.risen = None;
            self.effective = self.weight;
            self.set(REDUCED, false);
            return;
        }
        let share = u128::from(self.weight.unsigned_abs()) * elapsed / whole;
        // At least something, or the only one left would never be asked.
        self.effective = i64::try_from(share).unwrap_or(self.weight).max(1);
    }

    /// It can be asked again after a time in which it could not.
    fn rise(&mut self, now: Millis) {
        if !self.slow_start.is_zero() {
            self.risen = Some(now);
            self.effective = 1;
            self.set(REDUCED, true);
        }
    }

    /// The backend says something else of itself than before.
    fn update(&mut self, snapshot: BackendSnapshot, now: Millis) {
        if self.flags & BARRED != 0 && !snapshot.barred {
            self.rise(now);
        }
        self.set(BARRED, snapshot.barred);
        self.set(FULL, snapshot.full);
    }

    /// It is asked.
    fn choose(&mut self, now: Millis) {
        // One that is asked to see whether it is well again is left alone until it has answered.
        if now.since(self.checked) > self.fail_timeout {
            self.checked = now;
        }
    }

    fn failed(&mut self, now: Millis) -> FailResult {
        self.fails = self.fails.saturating_add(1);
        self.accessed = now;
        self.checked = now;
        if self.max_fails == 0 {
            return FailResult::Keep;
        }
        let loss = self.weight / i64::from(self.max_fails);
        self.effective = (self.effective - loss).max(0);
        // Time alone does not give it weight any more.
        self.risen = None;
        self.set(REDUCED, self.effective < self.weight);
        if self.fails < self.max_fails {
            return FailResult::Keep;
        }
        self.set(FAILED, true);
        FailResult::Disable
    }

    fn succeeded(&mut self) {
        // Only the response to a probe clears what is remembered: any other may be to a request that was sent before
        // the failures.
        if self.accessed < self.checked {
            self.fails = 0;
            self.set(FAILED, false);
            self.rise(self.checked);
        }
    }
}

impl PeerLoad {
    /// More than any server has.
    pub(super) const ENDLESS: Self = Self {
        requests: 1,
        weight: 0,
    };

    /// Whether it is that of a server without requests and with its whole weight.
    pub(super) fn is_zero(&self) -> bool {
        self.requests == 0
    }

    /// The same comparison between servers that have their whole weight: 32 bits each, and nothing overflows.
    #[inline]
    pub(super) fn compare_whole(&self, other: &Self) -> Ordering {
        (self.requests * other.weight).cmp(&(other.requests * self.weight))
    }
}

impl PartialEq for PeerLoad {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PeerLoad {}

impl PartialOrd for PeerLoad {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PeerLoad {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        let cross = |one: &Self, other: &Self| u128::from(one.requests) * u128::from(other.weight);
        cross(self, other).cmp(&cross(other, self))
    }
}

const WHOLE: u64 = 1024;

/// Every server of an upstream, in the order of its backends.
#[derive(Debug)]
pub(super) struct PeerStates {
    all: Vec<PeerState>,
    unit: i64,
}

/// A server that comes among those of an upstream.
#[derive(Debug)]
pub(super) struct Member<'s> {
    pub(super) server: &'s UpstreamServer,
    pub(super) snapshot: BackendSnapshot,
    pub(super) active: &'s Arc<AtomicU32>,
    /// Whether it is new in its place, or the same as before.
    pub(super) new: bool,
}

/// What came of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::upstream) enum FailResult {
    /// It receives no requests for `fail_timeout` from now.
    Disable,
    /// It goes on.
    Keep,
}

impl PeerStates {
    /// Those of these servers; `slow` if the weight of one may grow with time.
    pub(super) fn new<'s>(slow: bool, members: impl Iterator<Item = Member<'s>>) -> Self {
        let unit = if slow { FINE } else { 1 };
        let members = members.enumerate();
        let all = members.map(|(index, member)| PeerState::new(index, &member, unit));
        Self {
            all: all.collect(),
            unit,
        }
    }

    /// The servers are these from now on.
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
                    peer.rise(now);
                    peer
                }
            };
            self.all.push(peer);
        }
    }

    /// The server to ask next, if there is one that may be asked.
    pub(super) fn pick(
        &mut self,
        balancer: &mut impl Balance,
        tried: &mut TriedPeers,
        now: Millis,
    ) -> Option<usize> {
        self.mark(tried, true);
        let mut picked = balancer.pick(&mut self.all, tried, now);
        if picked.is_none() && !tried.backups {
            // For the rest of this request only backups are asked, as in nginx: a primary that comes back meanwhile
            // serves the next one.
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

    /// Whether a server that has not been asked is full, and could be asked otherwise.
    pub(super) fn is_crowded(&self, tried: &TriedPeers) -> bool {
        let full = |(index, peer): (usize, &PeerState)| {
            peer.is_full() && !tried.tried().any(|tried| tried == index)
        };
        self.all.iter().enumerate().any(full)
    }

    /// What a server says of itself has changed.
    pub(super) fn consider(&mut self, index: usize, snapshot: BackendSnapshot, now: Millis) {
        if let Some(peer) = self.all.get_mut(index) {
            peer.update(snapshot, now);
        }
    }

    /// The server did not respond, or not as it should.
    pub(super) fn failed(&mut self, index: usize, now: Millis) -> FailResult {
        self.all[index].failed(now)
    }

    /// The server responded.
    pub(super) fn succeeded(&mut self, index: usize) {
        self.all[index].succeeded();
    }

    /// Whether a success would change anything.
    pub(super) fn is_blemished(&self, index: usize) -> bool {
        self.all[index].fails > 0
    }

    #[cfg(test)]
    pub(super) fn effective(&self, index: usize) -> i64 {
        self.all[index].effective
    }
}

/// A weight of 1 in the finest steps that a weight grows in.
const FINE: i64 = 256;

/// The servers a request has been sent to; none is asked twice.
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
    /// How often it found a server that could not be asked.
    pub(super) misses: u32,
}

impl TriedPeers {
    /// Where the next server is sought.
    pub(super) fn side(&self) -> Side {
        Side(if self.backups { BACKUP } else { 0 })
    }

    /// Those asked so far, in their order.
    pub(super) fn tried(&self) -> impl Iterator<Item = usize> + Clone {
        self.first.iter().chain(&self.others).copied()
    }

    /// Whether none was.
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// No server could be asked, which may have changed: the search begins again, but for servers that were asked.
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

    /// Whether it has missed so often that round robin picks instead; nginx's number.
    pub(super) fn is_over(&self) -> bool {
        self.misses > 20
    }
}
