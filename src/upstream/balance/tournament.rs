//! Who stands highest, when everybody gains in every round.
//!
//! A tree of duels: every node knows the best of those under it. A score grows by its owner's weight each round, so
//! who is ahead of whom changes with time, but at a time that can be computed: every node also knows the round in
//! which a duel under it may turn, and nothing is looked at before. One round costs one walk from a leaf to the root,
//! and what turned. Contestants stand in the order of their weights: most duels are between equals and never turn.

/// Contestants with scores that grow by their weights.
#[derive(Debug)]
pub(super) struct Tournament {
    contestants: Box<[Contestant]>,
    /// The root is 1, the children of `n` are `2n` and `2n + 1`, and the last half are the contestants themselves.
    nodes: Box<[Node]>,
    /// Rounds played.
    round: u64,
    /// The weights of all who take part.
    total: i64,
}

#[derive(Debug, Clone, Copy)]
struct Contestant {
    /// Of two equal scores, that of the lower rank is the better.
    rank: u32,
    weight: i64,
    /// What the score was, or would have been, before the first round. It wraps around, which the differences of
    /// scores do not notice.
    start: i64,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    best: u32,
    /// The first round in which somebody else may be the best of a node under this one, or of this one.
    turns: u64,
}

impl Tournament {
    /// A tournament for contestants of these weights and ranks, none of whom takes part yet.
    pub(super) fn new(contestants: impl IntoIterator<Item = (i64, u32)>) -> Self {
        let mut contestants: Box<[_]> = contestants
            .into_iter()
            .map(|(weight, rank)| Contestant {
                rank,
                weight,
                start: 0,
            })
            .collect();
        contestants.sort_unstable_by_key(|contestant| (contestant.weight, contestant.rank));
        Self {
            nodes: vec![Node::EMPTY; contestants.len() * 2].into(),
            contestants,
            round: 0,
            total: 0,
        }
    }

    /// The ranks of all contestants in the order of their places.
    pub(super) fn ranks(&self) -> impl Iterator<Item = u32> {
        self.contestants.iter().map(|contestant| contestant.rank)
    }

    /// The weights of all who take part.
    pub(super) fn total(&self) -> i64 {
        self.total
    }

    /// Takes part from now on, with this score.
    pub(super) fn enter(&mut self, place: usize, score: i64) {
        let contestant = &mut self.contestants[place];
        contestant.start =
            score.wrapping_sub(contestant.weight.wrapping_mul(self.round.cast_signed()));
        self.total += contestant.weight;
        let leaf = self.leaf(place);
        self.nodes[leaf].best = narrow(place);
        self.settle(place);
    }

    /// No longer takes part; the score is given back.
    pub(super) fn leave(&mut self, place: usize) -> i64 {
        self.total -= self.contestants[place].weight;
        let leaf = self.leaf(place);
        self.nodes[leaf] = Node::EMPTY;
        self.settle(place);
        self.score(place)
    }

    /// A round begins: everybody gains.
    pub(super) fn advance(&mut self) {
        self.round += 1;
        if let Some(root) = self.nodes.get(1)
            && root.turns <= self.round
        {
            self.refresh(1);
        }
    }

    /// Who stands highest of those who are not to be `skipped`: rank and score.
    pub(super) fn best(&self, skipped: impl Fn(u32) -> bool) -> Option<(usize, i64)> {
        let place = self.best_under(1, &skipped)?;
        Some((self.contestants[place].rank as usize, self.score(place)))
    }

    /// Takes something off a score. The tree has to [`settle`](Self::settle) before the next round.
    pub(super) fn charge(&mut self, place: usize, amount: i64) {
        let start = &mut self.contestants[place].start;
        *start = start.wrapping_sub(amount);
    }

    /// Plays again what depends on one score.
    pub(super) fn settle(&mut self, place: usize) {
        let mut node = self.leaf(place) / 2;
        while node > 0 {
            self.nodes[node] = self.duel(node);
            node /= 2;
        }
    }

    /// Plays everything again.
    pub(super) fn settle_all(&mut self) {
        for node in (1..self.contestants.len()).rev() {
            self.nodes[node] = self.duel(node);
        }
    }

    fn leaf(&self, place: usize) -> usize {
        self.contestants.len() + place
    }

    fn score(&self, place: usize) -> i64 {
        let contestant = &self.contestants[place];
        let gained = contestant.weight.wrapping_mul(self.round.cast_signed());
        contestant.start.wrapping_add(gained)
    }

    fn refresh(&mut self, node: usize) {
        if self.nodes[node].turns > self.round {
            return;
        }
        self.refresh(2 * node);
        self.refresh(2 * node + 1);
        self.nodes[node] = self.duel(node);
    }

    /// The node as it has to be, if those under it are right.
    fn duel(&self, node: usize) -> Node {
        let (left, right) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
        if left.best == NOBODY {
            return right;
        }
        if right.best == NOBODY {
            return left;
        }
        let (first, second) = (left.best as usize, right.best as usize);
        let lead = self.score(first).wrapping_sub(self.score(second));
        let (one, other) = (&self.contestants[first], &self.contestants[second]);
        let (best, winner, loser, lead) = if lead > 0 || lead == 0 && one.rank < other.rank {
            (left.best, one, other, lead)
        } else {
            (right.best, other, one, -lead)
        };
        let mut turns = left.turns.min(right.turns);
        let gain = loser.weight - winner.weight;
        if gain > 0 {
            // Drawing level is enough for the lower rank.
            let short = if loser.rank < winner.rank {
                lead - 1
            } else {
                lead
            };
            let rounds = short / gain + 1;
            turns = turns.min(self.round.saturating_add(rounds.unsigned_abs()));
        }
        Node { best, turns }
    }

    fn best_under(&self, node: usize, skipped: &impl Fn(u32) -> bool) -> Option<usize> {
        let best = self.nodes.get(node)?.best;
        if best == NOBODY {
            return None;
        }
        let best = best as usize;
        if !skipped(self.contestants[best].rank) {
            return Some(best);
        }
        let left = self.best_under(2 * node, skipped);
        let right = self.best_under(2 * node + 1, skipped);
        let (Some(one), Some(other)) = (left, right) else {
            return left.or(right);
        };
        let lead = self.score(one).wrapping_sub(self.score(other));
        let level = self.contestants[one].rank < self.contestants[other].rank;
        Some(if lead > 0 || lead == 0 && level {
            one
        } else {
            other
        })
    }
}

impl Node {
    const EMPTY: Self = Self {
        best: NOBODY,
        turns: u64::MAX,
    };
}

fn narrow(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(NOBODY)
}

const NOBODY: u32 = u32::MAX;
