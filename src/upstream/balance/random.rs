//! nginx's `random two least_conn`: two servers are drawn by lot, by weight; the less loaded one is picked.

use std::hash::{BuildHasher, RandomState};

use super::hash::WeightTable;
use super::peers::{Balance, HashSearch, PeerState, SelectionKey, TriedPeers};
use super::round_robin;
use crate::clock::Millis;
use crate::config::plan;
use crate::upstream::backend::Backend;

/// `balance: random`.
#[derive(Debug)]
pub(super) struct Random {
    shares: WeightTable,
    lot: Lot,
}

impl Balance for Random {
    fn new(plan: &plan::Upstream) -> Self {
        let seed = RandomState::new().hash_one(plan.servers.len());
        Self {
            shares: WeightTable::default(),
            lot: Lot::new(seed),
        }
    }

    fn selection_key(_method: &plan::Balance) -> SelectionKey {
        SelectionKey::Chance
    }

    fn members_changed(&mut self, members: &[&Backend]) {
        self.shares = WeightTable::new(members);
    }

    fn pick(
        &mut self,
        peers: &mut [PeerState],
        tried: &mut TriedPeers,
        now: Millis,
    ) -> Option<usize> {
        let search = tried.search.as_deref_mut();
        let found = search.and_then(|search| self.draw(peers, search, now));
        found.or_else(|| round_robin::pick(peers, tried.side(), now, |_| true))
    }
}

impl Random {
    fn draw(&mut self, peers: &[PeerState], search: &mut HashSearch, now: Millis) -> Option<usize> {
        let mut first = None;
        while !search.is_over() {
            let index = self.shares.of(self.lot.draw())?;
            if first != Some(index) && peers[index].is_free(now) {
                match first {
                    // The second, if they are equal.
                    Some(first) if peers[index].load() > peers[first].load() => {
                        return Some(first);
                    }
                    Some(_) => return Some(index),
                    None => first = Some(index),
                }
            }
            search.miss();
        }
        None
    }
}

/// Numbers that need not be unguessable: xorshift, with Marsaglia's shifts.
#[derive(Debug)]
struct Lot(u64);

impl Lot {
    fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The lower bits are the weaker ones.
        self.0 >> 11
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn lots_reach_every_server_by_weight() {
        let shares = WeightTable::of_weights([(0, 1), (1, 8), (2, 1)].into_iter());
        let mut lot = Lot::new(0x9e37_79b9_7f4a_7c15);
        let mut found = [0; 3];
        for _ in 0..10_000 {
            found[shares.of(lot.draw()).unwrap()] += 1;
        }
        assert!(
            found[0] > 800 && found[2] > 800 && found[1] > 7_500,
            "{found:?}"
        );
    }
}
