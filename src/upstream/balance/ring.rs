//! nginx's `hash … consistent`: servers on a ring, so that one more or one less moves only its own share of the keys.
//!
//! Every server stands on the ring 160 times for each unit of its weight, at the places that ketama and
//! Cache::Memcached::Fast give its name as written in the file; a key belongs to the next one on the ring. A name with
//! several addresses is one server here, and its addresses take turns.

use std::collections::BTreeMap;

use super::round::{HashSearch, TriedPeers};
use super::shares::Crc;
use super::standings::PeerStates;
use crate::clock::Millis;

/// The ring of an upstream.
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

impl HashRing {
    /// A ring of the servers of a plan: their names as written, and weights. Nobody stands for them yet.
    pub(super) fn new<'s>(servers: impl Iterator<Item = (&'s str, u32)>) -> Self {
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

    /// Has these stand on it: whose address in the plan each is, its index and its weight.
    pub(super) fn settle(&mut self, present: impl Iterator<Item = (usize, usize, u32)>) {
        for named in &mut self.named {
            named.members.clear();
        }
        for (listed, index, weight) in present {
            let named = &mut self.named[self.listed[listed] as usize];
            named.members.push((index, weight.into(), 0));
        }
    }

    /// The server a key belongs to; if that cannot be asked, the next on the ring.
    pub(super) fn find(
        &mut self,
        standings: &PeerStates,
        search: &mut HashSearch,
        round: &TriedPeers,
        now: Millis,
    ) -> Option<usize> {
        if search.hashed == 0 {
            let place = Crc::of(&search.key);
            search.hash = self.points.partition_point(|point| point.0 < place) as u64;
            search.hashed = 1;
        }
        while !search.is_over() && !self.points.is_empty() {
            let at = search.hash % self.points.len() as u64;
            let (_, number) = self.points[usize::try_from(at).unwrap_or_default()];
            let usable = |index| standings.is_usable(index, round, now);
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
        let ring = |names: &[String]| HashRing::new(names.iter().map(|name| (name.as_str(), 1)));
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
