//! nginx's `random two least_conn`: two servers are drawn at random, by weight; the less loaded one is picked.

use super::hash::WeightTable;
use super::peers::{Balance, HashSearch, MOST_MISSES, PeerState, SelectionKey};
use crate::clock::Millis;
use crate::config::plan;
use crate::upstream::backend::Backend;

/// `balance: random`.
#[derive(Debug, Default)]
pub(super) struct Random {
    weights: WeightTable,
    random: fastrand::Rng,
}

impl Balance for Random {
    fn selection_key(_method: &plan::Balance) -> SelectionKey {
        SelectionKey::Random
    }

    fn members_changed(&mut self, members: &[&Backend]) {
        self.weights = WeightTable::of_members(members);
    }

    fn search(
        &mut self,
        peers: &[PeerState],
        search: &mut HashSearch,
        now: Millis,
    ) -> Option<usize> {
        let mut first = None;
        while search.misses <= MOST_MISSES {
            let index = self.weights.index_of(self.random.u64(..))?;
            if first != Some(index) && peers[index].is_free(now) {
                match first {
                    // The second, if they are equal.
                    Some(first) if peers[index].load().compare(&peers[first].load()).is_gt() => {
                        return Some(first);
                    }
                    Some(_) => return Some(index),
                    None => first = Some(index),
                }
            }
            search.misses += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_reach_every_server_by_weight() {
        let weights = WeightTable::new([(0, 1), (1, 8), (2, 1)].into_iter());
        let mut random = fastrand::Rng::with_seed(7);
        let mut found = [0; 3];
        for _ in 0..10_000 {
            found[weights.index_of(random.u64(..)).unwrap()] += 1;
        }
        assert!(
            found[0] > 800 && found[2] > 800 && found[1] > 7_500,
            "{found:?}"
        );
    }
}
