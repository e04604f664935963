//! Servers picked by the hash of a key: `ip_hash`, `hash KEY`, and `hash KEY consistent` on a ring.
//!
//! All hashes are nginx's: the same servers in the same order with the same weights send a client to the same server.
//! For `hash` and `ip_hash` each number below the sum of all weights belongs to one server; a server that is down keeps
//! its share, so that the others keep theirs.
//!
//! On a ring, adding or removing a server moves only its own share of the keys. Every server has 160 points there for
//! each unit of its weight, at the positions that ketama and Cache::Memcached::Fast give its name as written in the file;
//! a key belongs to the next point. A name with several addresses is one server there, and its addresses take turns.
//!
//! After 20 servers that cannot be picked, and for an empty key, round robin picks.

use std::collections::BTreeMap;

use super::peers::{Balance, HashSearch, MOST_MISSES, PeerState, SelectionKey};
use crate::clock::Millis;
use crate::config::plan;
use crate::upstream::backend::Backend;

/// `balance: { hash: KEY }`.
#[derive(Debug, Default)]
pub(super) struct Hash(WeightTable);

impl Balance for Hash {
    fn selection_key(method: &plan::Balance) -> SelectionKey {
        key_of(method)
    }

    fn members_changed(&mut self, members: &[&Backend]) {
        self.0 = WeightTable::of_members(members);
    }

    /// If the server cannot be picked, the hash of the key with a number before it is added, and so on. As in nginx, and
    /// before it in Cache::Memcached.
    fn search(
        &mut self,
        peers: &[PeerState],
        search: &mut HashSearch,
        now: Millis,
    ) -> Option<usize> {
        search.find(peers, now, |search| {
            let number = match search.hashed {
                0 => 0,
                hashed => crc(0, hashed.to_string().as_bytes()),
            };
            search.hash += u64::from(crc(number, &search.key) >> 16 & 0x7fff);
            search.hashed += 1;
            self.0.index_of(search.hash)
        })
    }
}

/// `balance: ip_hash`.
#[derive(Debug, Default)]
pub(super) struct IpHash(WeightTable);

impl Balance for IpHash {
    fn selection_key(_method: &plan::Balance) -> SelectionKey {
        SelectionKey::Address
    }

    fn members_changed(&mut self, members: &[&Backend]) {
        self.0 = WeightTable::of_members(members);
    }

    fn search(
        &mut self,
        peers: &[PeerState],
        search: &mut HashSearch,
        now: Millis,
    ) -> Option<usize> {
        search.find(peers, now, |search| {
            let start = match search.hashed {
                0 => 89,
                _ => search.hash,
            };
            let step = |hash, byte: &u8| (hash * 113 + u64::from(*byte)) % 6271;
            search.hash = search.key.iter().fold(start, step);
            search.hashed = 1;
            self.0.index_of(search.hash)
        })
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

/// For each server, the sum of the weights up to its own, and its index.
#[derive(Debug, Default)]
pub(super) struct WeightTable(Box<[(u64, usize)]>);

impl WeightTable {
    pub(super) fn of_members(members: &[&Backend]) -> Self {
        let members = members.iter();
        Self::new(members.map(|backend| (backend.index, backend.server.weight)))
    }

    pub(super) fn new(servers: impl Iterator<Item = (usize, u32)>) -> Self {
        let mut sum = 0;
        let sums = servers.map(|(index, weight)| {
            sum += u64::from(weight);
            (sum, index)
        });
        Self(sums.collect())
    }

    /// The server whose share a number, taken modulo all weights, falls into; none where there are no servers.
    pub(super) fn index_of(&self, number: u64) -> Option<usize> {
        let number = number.checked_rem(self.0.last()?.0)?;
        let at = self.0.partition_point(|(sum, _)| *sum <= number);
        self.0.get(at).map(|(_, index)| *index)
    }
}

/// The checksum of IEEE 802.3, as in zlib: `sum` is that of the bytes before, or 0.
fn crc(sum: u32, bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| TABLE[((sum ^ u32::from(*byte)) & 0xff) as usize] ^ (sum >> 8);
    !bytes.iter().fold(!sum, step)
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
#[derive(Debug, Default)]
pub(super) struct HashRing {
    /// The positions on the ring, and the number of the name at each.
    points: Box<[(u32, u32)]>,
    names: Vec<RingServer>,
    /// The number of each server's name.
    listed: Box<[u32]>,
}

/// The servers of one name.
#[derive(Debug, Default)]
struct RingServer {
    /// The index, weight and current weight of each, in a round robin of their own.
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
        for name in &mut self.names {
            name.members.clear();
        }
        for backend in members {
            let name = &mut self.names[self.listed[backend.listed] as usize];
            let member = (backend.index, backend.server.weight.into(), 0);
            name.members.push(member);
        }
    }

    /// If the server cannot be picked, the next on the ring.
    fn search(
        &mut self,
        peers: &[PeerState],
        search: &mut HashSearch,
        now: Millis,
    ) -> Option<usize> {
        if search.hashed == 0 {
            let position = crc(0, &search.key);
            search.hash = self.points.partition_point(|point| point.0 < position) as u64;
            search.hashed = 1;
        }
        while search.misses <= MOST_MISSES && !self.points.is_empty() {
            let at = search.hash % self.points.len() as u64;
            let (_, number) = self.points[usize::try_from(at).unwrap_or_default()];
            let usable = |index: usize| peers[index].is_free(now);
            if let Some(index) = self.names[number as usize].pick(usable) {
                return Some(index);
            }
            search.hash += 1;
            search.misses += 1;
        }
        None
    }
}

impl HashRing {
    /// A ring of these names and weights, without members.
    fn of<'s>(servers: impl Iterator<Item = (&'s str, u32)>) -> Self {
        let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
        let mut names: Vec<(&str, u32)> = Vec::new();
        let listed = servers.map(|(name, weight)| {
            let number = *numbers.entry(name).or_insert_with(|| {
                names.push((name, 0));
                names.len() - 1
            });
            // A smaller weight means the first points of the same sequence.
            names[number].1 = names[number].1.max(weight);
            u32::try_from(number).unwrap_or(u32::MAX)
        });
        let listed = listed.collect();
        let points = (0..).zip(&names).flat_map(|(number, (name, weight))| {
            positions(name, *weight).map(move |at| (at, number))
        });
        let mut points: Vec<_> = points.collect();
        // Of two points at one position, the first in the file stays.
        points.sort_by_key(|(position, _)| *position);
        points.dedup_by_key(|(position, _)| *position);
        Self {
            points: points.into(),
            names: names.iter().map(|_| RingServer::default()).collect(),
            listed,
        }
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

/// The positions of a name on the ring.
fn positions(name: &str, weight: u32) -> impl Iterator<Item = u32> {
    let (host, port) = host_and_port(name);
    let base = crc(crc(crc(0, host.as_bytes()), b"\0"), port.as_bytes());
    let mut before = 0;
    std::iter::repeat_with(move || {
        before = crc(base, &u32::to_le_bytes(before));
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
    fn the_checksum_is_that_of_ieee_802_3() {
        assert_eq!(crc(0, b"123456789"), 0xcbf4_3926);
        assert_eq!(crc(0, b""), 0);
    }

    #[test]
    fn a_number_falls_into_the_share_of_one_server() {
        let weights = WeightTable::new([(0, 2), (2, 1), (1, 3)].into_iter());
        let found: Vec<_> = (0..8)
            .filter_map(|number| weights.index_of(number))
            .collect();
        assert_eq!(found, [0, 0, 2, 1, 1, 1, 0, 0]);
        assert_eq!(WeightTable::default().index_of(5), None);
    }
}

#[cfg(test)]
mod ring_tests {
    use super::*;

    #[test]
    fn a_name_is_split_as_nginx_splits_it() {
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
            let position = crc(0, &key.to_be_bytes());
            let at = ring.points.partition_point(|point| point.0 < position);
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
        let mut name = RingServer {
            members: vec![(3, 1, 0), (5, 1, 0)],
        };
        let turns: Vec<_> = (0..4).filter_map(|_| name.pick(|_| true)).collect();
        assert_eq!(turns, [3, 5, 3, 5]);
        assert_eq!(name.pick(|index| index == 5), Some(5));
        assert_eq!(name.pick(|_| false), None);
    }
}
