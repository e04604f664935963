//! Who stands highest, when everybody gains in every round.
//!
//! A tree of duels: every node knows the best of those under it. A score grows by its owner's weight each round, so
//! who is ahead of whom changes with time, but at a time that can be computed: every node also knows the round in
//! which a duel under it may turn, and nothing is looked at before. One round costs one walk from a leaf to the root,
//! and what turned. Contestants stand in the order of their weights: most duels are between equals and never turn.

/// Contestants with scores that grow by their weights.
#[derive(Debug)]
pub(super) struct Tournament {
    /// Weight and rank of every contestant.
    contestants: Box<[(i64, u32)]>,
    /// Under `n`, the two nodes that duel for node `n`; `2n` and `2n + 1` are their own numbers. The root is 1, beside
    /// which nobody stands, and the last half of all nodes are the contestants themselves.
    duels: Box<[Duel]>,
    /// Rounds played.
    round: u64,
    /// The weights of all who take part.
    total: i64,
}

// One cache line: a walk to the root touches one for every doubling of the contestants.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Duel([Node; 2]);

/// The best of those under a node.
#[derive(Debug, Clone, Copy)]
struct Node {
    /// What the score was, or would have been, before the first round. It wraps around, which the differences of
    /// scores do not notice.
    start: i64,
    weight: i64,
    /// The first round in which somebody else may be the best of a node under this one, or of this one.
    turns: u64,
    /// Of two equal scores, that of the lower rank is the better. [`Node::NOBODY`] has the highest.
    rank: u32,
}

impl Tournament {
    /// A tournament for contestants of these weights and ranks, none of whom takes part yet.
    pub(super) fn new(contestants: impl IntoIterator<Item = (i64, u32)>) -> Self {
        let mut contestants: Box<[_]> = contestants.into_iter().collect();
        contestants.sort_unstable();
        Self {
            duels: vec![Duel([Node::NOBODY; 2]); contestants.len().max(1)].into(),
            contestants,
            round: 0,
            total: 0,
        }
    }

    /// The ranks of all contestants in the order of their places.
    pub(super) fn ranks(&self) -> impl Iterator<Item = u32> {
        self.contestants.iter().map(|(_, rank)| *rank)
    }

    /// The weights of all who take part.
    pub(super) fn total(&self) -> i64 {
        self.total
    }

    /// Takes part from now on, with this score.
    pub(super) fn enter(&mut self, place: usize, score: i64) {
        let (weight, rank) = self.contestants[place];
        self.total += weight;
        *self.leaf(place) = Node {
            start: score.wrapping_sub(weight.wrapping_mul(self.round.cast_signed())),
            weight,
            turns: u64::MAX,
            rank,
        };
        self.settle(place);
    }

    /// No longer takes part; the score is given back.
    pub(super) fn leave(&mut self, place: usize) -> i64 {
        self.total -= self.contestants[place].0;
        let left = std::mem::replace(self.leaf(place), Node::NOBODY);
        self.settle(place);
        left.score(self.round)
    }

    /// A round begins: everybody gains.
    pub(super) fn advance(&mut self) {
        self.round += 1;
        if self.node(1).turns <= self.round {
            self.refresh(1);
        }
    }

    /// Who stands highest of those who are not to be `skipped`: rank and score.
    pub(super) fn best(&self, skipped: impl Fn(u32) -> bool) -> Option<(usize, i64)> {
        let best = self.best_under(1, &skipped);
        best.takes_part()
            .then(|| (best.rank as usize, best.score(self.round)))
    }

    /// Takes something off a score. The tree has to [`settle`](Self::settle) before the next round.
    pub(super) fn charge(&mut self, place: usize, amount: i64) {
        let start = &mut self.leaf(place).start;
        *start = start.wrapping_sub(amount);
    }

    /// Plays again what depends on one score.
    pub(super) fn settle(&mut self, place: usize) {
        let mut number = (self.contestants.len() + place) / 2;
        while number > 0 {
            self.play(number);
            number /= 2;
        }
    }

    /// Plays everything again.
    pub(super) fn settle_all(&mut self) {
        for number in (1..self.contestants.len()).rev() {
            self.play(number);
        }
    }

    fn node(&self, number: usize) -> &Node {
        &self.duels[number / 2].0[number % 2]
    }

    fn leaf(&mut self, place: usize) -> &mut Node {
        let number = self.contestants.len() + place;
        &mut self.duels[number / 2].0[number % 2]
    }

    fn play(&mut self, number: usize) {
        let Duel([left, right]) = &self.duels[number];
        let best = left.against(right, self.round);
        self.duels[number / 2].0[number % 2] = best;
    }

    fn refresh(&mut self, number: usize) {
        if self.node(number).turns > self.round {
            return;
        }
        self.refresh(2 * number);
        self.refresh(2 * number + 1);
        self.play(number);
    }

    fn best_under(&self, number: usize, skipped: &impl Fn(u32) -> bool) -> Node {
        let best = *self.node(number);
        if !best.takes_part() || !skipped(best.rank) {
            return best;
        }
        if number >= self.contestants.len() {
            return Node::NOBODY;
        }
        let left = self.best_under(2 * number, skipped);
        left.against(&self.best_under(2 * number + 1, skipped), self.round)
    }
}

impl Node {
    const NOBODY: Self = Self {
        start: 0,
        weight: 0,
        turns: u64::MAX,
        rank: u32::MAX,
    };

    fn takes_part(&self) -> bool {
        self.rank != Self::NOBODY.rank
    }

    fn score(&self, round: u64) -> i64 {
        let gained = self.weight.wrapping_mul(round.cast_signed());
        self.start.wrapping_add(gained)
    }

    /// The better of two, and when that may change.
    fn against(&self, other: &Self, round: u64) -> Self {
        if !self.takes_part() {
            return *other;
        }
        if !other.takes_part() {
            return *self;
        }
        let turns = self.turns.min(other.turns);
        let (gain, start) = (
            self.weight - other.weight,
            self.start.wrapping_sub(other.start),
        );
        // Equals never overtake each other.
        if gain == 0 {
            let ahead = start > 0 || start == 0 && self.rank < other.rank;
            let best = if ahead { self } else { other };
            return Self { turns, ..*best };
        }
        let lead = start.wrapping_add(gain.wrapping_mul(round.cast_signed()));
        let ahead = lead > 0 || lead == 0 && self.rank < other.rank;
        let (best, loser, lead, gain) = if ahead {
            (self, other, lead, -gain)
        } else {
            (other, self, -lead, gain)
        };
        if gain < 0 {
            return Self { turns, ..*best };
        }
        // Drawing level is enough for the lower rank.
        let short = if loser.rank < best.rank {
            lead - 1
        } else {
            lead
        };
        let rounds = (short / gain + 1).unsigned_abs();
        Self {
            turns: turns.min(round.saturating_add(rounds)),
            ..*best
        }
    }
}
