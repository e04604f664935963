//! Which slot has the lowest number, when the numbers of single slots change.
//!
//! A tree of duels: every node knows the winner of the two below it. So changing one number costs a walk from its leaf to
//! the root. Slots are the leaves and are not stored: node `n + slot` is the leaf of a slot, where there are `n` of them.

use super::table::SlotIndex;

/// The winners among so many slots. Their numbers are kept elsewhere and given with each call.
#[derive(Debug)]
pub(super) struct MinTree {
    /// The slot that wins at each inner node; the root is 1, and nothing stands under 0.
    winners: Box<[u16]>,
}

impl MinTree {
    pub(super) fn new(slots: usize, number: impl Fn(usize) -> u32) -> Self {
        let mut new = Self {
            winners: vec![0; slots].into(),
        };
        for node in (1..slots).rev() {
            let [left, right] = [2 * node, 2 * node + 1].map(|below| new.winner(below));
            let lower = match number(right) < number(left) {
                true => right,
                false => left,
            };
            new.winners[node] = SlotIndex::narrow(lower);
        }
        new
    }

    /// The slot with the lowest number.
    pub(super) fn first(&self) -> usize {
        self.winner(1)
    }

    /// The number of one slot has changed.
    pub(super) fn update(&mut self, slot: usize, number: impl Fn(usize) -> u32) {
        let (mut node, mut winner, mut lowest) = (self.winners.len() + slot, slot, number(slot));
        while node > 1 {
            let rival = self.winner(node ^ 1);
            let other = number(rival);
            if other < lowest {
                (winner, lowest) = (rival, other);
            }
            node /= 2;
            let before = std::mem::replace(&mut self.winners[node], SlotIndex::narrow(winner));
            // Another slot has won before and wins again: nothing changes further up.
            if before.wide() == winner && winner != slot {
                return;
            }
        }
    }

    /// What it takes from the machine, in bytes.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.winners)
    }

    fn winner(&self, node: usize) -> usize {
        match node.checked_sub(self.winners.len()) {
            Some(slot) => slot,
            None => self.winners[node].wide(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_finds_the_lowest_of_any_numbers(
            numbers in prop::collection::vec(0..50u32, 1..40),
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0..50u32), 0..60),
        ) {
            let mut model = numbers;
            let mut lowest = MinTree::new(model.len(), |slot| model[slot]);
            for (slot, number) in changes {
                let slot = slot.index(model.len());
                model[slot] = number;
                lowest.update(slot, |slot| model[slot]);
                prop_assert_eq!(model.iter().min(), Some(&model[lowest.first()]));
            }
        }
    }
}
