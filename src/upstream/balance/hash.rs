//! Servers picked by the hash of a key: `ip_hash`, `hash KEY`, and `hash KEY consistent` on a ring.
//!
//! All are computed as nginx computes them, so that the same servers in the same order with the same weights send a
//! client to the same server. For nginx's `hash` and `ip_hash` a number below the sum of all weights belongs to one
//! server; a server that is down keeps its share, so that the others keep theirs.
//!
//! On a ring, one server more or less moves only its own share of the keys. Every server stands there 160 times for
//! each unit of its weight, at the places that ketama and Cache::Memcached::Fast give its name as written in the file;
//! a key belongs to the next one on the ring. A name with several addresses is one server there, and its addresses take
//! turns.
//!
//! Where 20 tries find no server that can be asked, and where the key is empty, round robin picks.

use std::collections::BTreeMap;

use super::peers::{Balance, HashSearch, PeerState, SelectionKey, TriedPeers};
use super::round_robin;
use crate::clock::Millis;
use crate::config::plan;
use crate::upstream::backend::Backend;

/// `balance: { hash: KEY }`.
#[derive(Debug)]
pub(super) struct Hash(WeightTable);

impl Balance for Hash {
    fn new(_plan: &plan::Upstream) -> Self {
        Self(WeightTable::default())
    }

    fn selection_key(method: &plan::Balance) -> SelectionKey {
        key_of(method)
    }

    fn members_changed(&mut self, members: &[&Backend]) {
        self.0 = WeightTable::new(members);
    }

    fn pick(
        &mut self,
        peers: &mut [PeerState],
        tried: &mut TriedPeers,
        now: Millis,
    ) -> Option<usize> {
        let search = tried.search.as_deref_mut();
        let found = search.and_then(|search| self.0.by_hash(peers, search, now));
        found.or_else(|| round_robin::pick(peers, tried.side(), now, |_| true))
    }
}

/// `balance: ip_hash`.
#[derive(Debug)]
pub(super) struct IpHash(WeightTable);

impl Balance for IpHash {
    fn new(_plan: &plan::Upstream) -> Self {
        Self(WeightTable::default())
    }

    fn selection_key(_method: &plan::Balance) -> SelectionKey {
        SelectionKey::Address
    }

    fn members_changed(&mut self, members: &[&Backend]) {
        self.0 = WeightTable::new(members);
    }

    fn pick(
        &mut self,
        peers: &mut [PeerState],
        tried: &mut TriedPeers,
        now: Millis,
    ) -> Option<usize> {
        let search = tried.search.as_deref_mut();
        let found = search.and_then(|search| self.0.by_address(peers, search, now));
        found.or_else(|| round_robin::pick(peers, tried.side(), now, |_| true))
    }
}

/// What `hash` hashes.
fn key_of(method: &plan::Balance) -> SelectionKey {
    match method {
        plan::Balance::ConsistentHash(key) | plan::Balance::Hash(key) => {
            SelectionKey::Key(key.clone())
        }
        _ => SelectionKey::Nothing,
    }
}

/// The weights of all servers before each server's own and with it.
#[derive(Debug, Default)]
pub(super) struct WeightTable {
    sums: Box<[u64]>,
    indices: Box<[usize]>,
}

impl WeightTable {
    /// Those of these servers.
    pub(super) fn new(members: &[&Backend]) -> Self {
        Self::of_weights(
            members
                .iter()
                .map(|backend| (backend.index, backend.server.weight)),
        )
    }

    pub(super) fn of_weights(servers: impl Iterator<Item = (usize, u32)>) -> Self {
        let mut all = 0;
        let sums = servers.map(|(index, weight)| {
            all += u64::from(weight);
            (all, index)
        });
        let (sums, indices): (Vec<_>, Vec<_>) = sums.unzip();
        Self {
            sums: sums.into(),
            indices: indices.into(),
        }
    }

    /// Whose share a number falls into, whatever it is; none where there are no servers.
    pub(super) fn of(&self, number: u64) -> Option<usize> {
        let number = number.checked_rem(*self.sums.last()?)?;
        let at = self.sums.partition_point(|sum| *sum <= number);
        self.indices.get(at).copied()
    }

    /// The server that a key's hash leads to; if that cannot be asked, the hash of the key with a number before it is
    /// added, and so on. As in nginx, and before it in Cache::Memcached.
    fn by_hash(&self, peers: &[PeerState], search: &mut HashSearch, now: Millis) -> Option<usize> {
        while !search.is_over() {
            let mut sum = Crc::default();
            if search.hashed > 0 {
                sum.add(search.hashed.to_string().as_bytes());
            }
            sum.add(&search.key);
            search.hash += u64::from(sum.value() >> 16 & 0x7fff);
            search.hashed += 1;
            let index = self.of(search.hash)?;
            if peers[index].is_free(now) {
                return Some(index);
            }
            search.miss();
        }
        None
    }

    /// The server that a client's address leads to.
    fn by_address(
        &self,
        peers: &[PeerState],
        search: &mut HashSearch,
        now: Millis,
    ) -> Option<usize> {
        while !search.is_over() {
            let start = match search.hashed {
                0 => 89,
                _ => search.hash,
            };
            let step = |hash, byte: &u8| (hash * 113 + u64::from(*byte)) % 6271;
            search.hash = search.key.iter().fold(start, step);
            search.hashed = 1;
            let index = self.of(search.hash)?;
            if peers[index].is_free(now) {
                return Some(index);
            }
            search.miss();
        }
        None
    }
}

/// The checksum of IEEE 802.3, as in zlib.
#[derive(Debug, Clone, Copy)]
struct Crc(u32);

impl Default for Crc {
    fn default() -> Self {
        Self(!0)
    }
}

impl Crc {
    fn of(bytes: &[u8]) -> u32 {
        let mut sum = Self::default();
        sum.add(bytes);
        sum.value()
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let at = (self.0 ^ u32::from(*byte)) & 0xff;
            self.0 = TABLE[at as usize] ^ (self.0 >> 8);
        }
    }

    fn value(self) -> u32 {
        !self.0
    }
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let mut sum = at as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 {
                sum >> 1 ^ 0xedb8_8320
            } else {
                sum >> 1
            };
            bit += 1;
        }
        table[at] = sum;
        at += 1;
    }
    table
};

/// `balance: { hash: KEY, consistent: true }`.
#[derive(Debug)]
pub(super) struct HashRing {
    /// By place on the ring, and whose each is.
    points: Box<[(u32, u32)]>,
    named: Vec<RingServer>,
    /// The name of each server of the plan.
    listed: Box<[u32]>,
}

/// A server by its name.
#[derive(Debug, Default)]
struct RingServer {
    /// Its addresses: indices, weights, and scores in their own round robin.
    members: Vec<(usize, i64, i64)>,
}

impl Balance for HashRing {
    fn new(plan: &plan::Upstream) -> Self {
        let servers = plan.servers.iter();
        Self::of(servers.map(|server| (&*server.name, server.weight)))
    }

    fn selection_key(method: &plan::Balance) -> SelectionKey {
        key_of(method)
    }

    fn members_changed(&mut self, members: &[&Backend]) {
        for named in &mut self.named {
            named.members.clear();
        }
        for backend in members {
            let named = &mut self.named[self.listed[backend.listed] as usize];
            let member = (backend.index, backend.server.weight.into(), 0);
            named.members.push(member);
        }
    }

    fn pick(
        &mut self,
        peers: &mut [PeerState],
        tried: &mut TriedPeers,
        now: Millis,
    ) -> Option<usize> {
        let search = tried.search.as_deref_mut();
        let found = search.and_then(|search| self.find(peers, search, now));
        found.or_else(|| round_robin::pick(peers, tried.side(), now, |_| true))
    }
}

impl HashRing {
    /// A ring of these servers: their names as written, and weights. No address stands for them yet.
    fn of<'s>(servers: impl Iterator<Item = (&'s str, u32)>) -> Self {
        let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
        let mut names: Vec<(&str, u32)> = Vec::new();
        let listed = servers.map(|(name, weight)| {
            let number = *numbers.entry(name).or_insert_with(|| {
                names.push((name, 0));
                names.len() - 1
            });
            // Those of less weight stand in the first places of the same line.
            names[number].1 = names[number].1.max(weight);
            u32::try_from(number).unwrap_or(u32::MAX)
        });
        let listed = listed.collect();
        let places = (0..)
            .zip(&names)
            .flat_map(|(number, (name, weight))| places(name, *weight).map(move |at| (at, number)));
        let mut points: Vec<_> = places.collect();
        // Of two at one place the one that stands first in the file has it.
        points.sort_by_key(|(place, _)| *place);
        points.dedup_by_key(|(place, _)| *place);
        Self {
            points: points.into(),
            named: names.iter().map(|_| RingServer::default()).collect(),
            listed,
        }
    }

    /// The server a key belongs to; if that cannot be asked, the next on the ring.
    fn find(&mut self, peers: &[PeerState], search: &mut HashSearch, now: Millis) -> Option<usize> {
        if search.hashed == 0 {
            let place = Crc::of(&search.key);
            search.hash = self.points.partition_point(|point| point.0 < place) as u64;
            search.hashed = 1;
        }
        while !search.is_over() && !self.points.is_empty() {
            let at = search.hash % self.points.len() as u64;
            let (_, number) = self.points[usize::try_from(at).unwrap_or_default()];
            let usable = |index: usize| peers[index].is_free(now);
            if let Some(index) = self.named[number as usize].pick(usable) {
                return Some(index);
            }
            search.hash += 1;
            search.miss();
        }
        None
    }
}

impl RingServer {
    fn pick(&mut self, usable: impl Fn(usize) -> bool) -> Option<usize> {
        let mut total = 0;
        let mut best: Option<&mut (usize, i64, i64)> = None;
        for member in &mut self.members {
            if !usable(member.0) {
                continue;
            }
            member.2 += member.1;
            total += member.1;
            if best.as_ref().is_none_or(|best| member.2 > best.2) {
                best = Some(member);
            }
        }
        let best = best?;
        best.2 -= total;
        Some(best.0)
    }
}

/// Where a server stands on the ring.
fn places(name: &str, weight: u32) -> impl Iterator<Item = u32> {
    let mut base = Crc::default();
    let (host, port) = host_and_port(name);
    base.add(host.as_bytes());
    base.add(b"\0");
    base.add(port.as_bytes());
    let mut before = 0;
    std::iter::repeat_with(move || {
        let mut sum = base;
        sum.add(&u32::to_le_bytes(before));
        before = sum.value();
        before
    })
    .take(POINTS * weight as usize)
}

fn host_and_port(name: &str) -> (&str, &str) {
    if let Some((scheme, path)) = name.split_at_checked(5)
        && scheme.eq_ignore_ascii_case("unix:")
    {
        return (path, "");
    }
    match name.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (host, port),
        _ => (name, ""),
    }
}

/// For each unit of weight.
const POINTS: usize = 160;

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn the_checksum_is_everybodys() {
        assert_eq!(Crc::of(b"123456789"), 0xcbf4_3926);
        assert_eq!(Crc::of(b""), 0);
    }

    #[test]
    fn a_number_falls_into_the_share_of_one() {
        let shares = WeightTable::of_weights([(0, 2), (2, 1), (1, 3)].into_iter());
        let found: Vec<_> = (0..8).filter_map(|number| shares.of(number)).collect();
        assert_eq!(found, [0, 0, 2, 1, 1, 1, 0, 0]);
        assert_eq!(WeightTable::default().of(5), None);
    }
}

#[cfg(test)]
mod ring_tests {

    use super::*;

    #[test]
    fn a_name_is_cut_as_nginx_cuts_it() {
        for (name, host, port) in [
            ("127.0.0.1:8080", "127.0.0.1", "8080"),
            ("app", "app", ""),
            ("[::1]", "[::1]", ""),
            ("[::1]:80", "[::1]", "80"),
            ("UNIX:/run/app.sock", "/run/app.sock", ""),
            ("app:", "app", ""),
        ] {
            assert_eq!(host_and_port(name), (host, port), "{name}");
        }
    }

    #[test]
    fn one_server_less_moves_only_its_own_keys() {
        let names: Vec<String> = (0..10)
            .map(|number| format!("10.0.0.{number}:80"))
            .collect();
        let ring = |names: &[String]| HashRing::of(names.iter().map(|name| (name.as_str(), 1)));
        let whose = |ring: &HashRing, key: u32| {
            let place = Crc::of(&key.to_be_bytes());
            let at = ring.points.partition_point(|point| point.0 < place);
            ring.points[at % ring.points.len()].1
        };
        let (all, fewer) = (ring(&names), ring(&names[..9]));
        for key in 0..1_000 {
            let before = whose(&all, key);
            assert!(before == 9 || whose(&fewer, key) == before);
        }
    }

    #[test]
    fn addresses_of_one_name_take_turns() {
        let mut named = RingServer {
            members: vec![(3, 1, 0), (5, 1, 0)],
        };
        let turns: Vec<_> = (0..4).filter_map(|_| named.pick(|_| true)).collect();
        assert_eq!(turns, [3, 5, 3, 5]);
        assert_eq!(named.pick(|index| index == 5), Some(5));
        assert_eq!(named.pick(|_| false), None);
    }
}
