//! Who of those with the least to do stands highest, when only those gain in a round.
//!
//! A tree in which every node knows the least load under it, and of those who have that load the one that stands
//! highest. A round reaches everybody with the least load at once: it is noted at the root and handed down only when
//! somebody has to be looked at. Scores grow by their owners' gains, so who is ahead of whom changes with time, but at
//! a time that can be computed; nothing is looked at before. A change of one load costs one walk to the root.

use std::cmp::Ordering;

/// How much somebody has to do, as a fraction: requests by weight.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerLoad {
    pub(super) requests: u64,
    pub(super) weight: u64,
}

/// Members with loads, and scores that grow by their gains.
#[derive(Debug)]
pub(super) struct Crowd {
    /// The root is 1, under `n` stand `2n` and `2n + 1`; the last half are the members themselves.
    nodes: Box<[Node]>,
}

/// What is known of those under a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    /// The least of all.
    pub(super) load: PeerLoad,
    /// Who has that and stands highest: its place.
    pub(super) best: usize,
    score: i64,
    gain: i64,
    /// What all gain who have that load, and how many they are.
    pub(super) total: i64,
    pub(super) many: usize,
    /// After how many more rounds another may be the best here or under it.
    turns: i64,
    /// Rounds that those with that load have been through, and the nodes under this one have not heard of.
    owed: i64,
}

impl Crowd {
    /// Room for so many, none of whom is in it.
    pub(super) fn new(size: usize) -> Self {
        let leaves = size.next_power_of_two().max(2);
        Self {
            nodes: vec![Node::NOBODY; 2 * leaves].into(),
        }
    }

    /// Those with the least to do, if there is anybody.
    pub(super) fn least(&self) -> Option<Node> {
        Some(self.nodes[1]).filter(|root| root.many > 0)
    }

    /// Comes in, or is in already and changes: with this load, score and gain.
    pub(super) fn put(&mut self, place: usize, load: PeerLoad, score: i64, gain: i64) {
        let leaf = Node {
            load,
            best: place,
            score,
            gain,
            total: gain,
            many: 1,
            turns: NEVER,
            owed: 0,
        };
        self.replace(place, |_| leaf);
    }

    /// Goes; whoever it was, with its score.
    pub(super) fn remove(&mut self, place: usize) -> i64 {
        self.replace(place, |_| Node::NOBODY).score
    }

    /// Has another load or gain from now on.
    pub(super) fn change(&mut self, place: usize, load: PeerLoad, gain: i64) {
        self.replace(place, |leaf| Node {
            load,
            gain,
            total: gain,
            ..leaf
        });
    }

    /// Pays.
    pub(super) fn charge(&mut self, place: usize, amount: i64) {
        self.replace(place, |leaf| Node {
            score: leaf.score - amount,
            ..leaf
        });
    }

    /// A round: all who have the least to do gain.
    pub(super) fn advance(&mut self) {
        self.nodes[1].gain(1);
        self.refresh(1);
    }

    /// Changes a leaf; what it was.
    fn replace(&mut self, place: usize, change: impl FnOnce(Node) -> Node) -> Node {
        let leaf = self.nodes.len() / 2 + place;
        for height in (1..=leaf.ilog2()).rev() {
            self.hand_down(leaf >> height);
        }
        let before = self.nodes[leaf];
        self.nodes[leaf] = change(before);
        let mut number = leaf / 2;
        while number > 0 {
            self.gather(number);
            number /= 2;
        }
        before
    }

    fn refresh(&mut self, number: usize) {
        if self.nodes[number].turns > 0 {
            return;
        }
        self.hand_down(number);
        self.refresh(2 * number);
        self.refresh(2 * number + 1);
        self.gather(number);
    }

    fn hand_down(&mut self, number: usize) {
        let Node { owed, load, .. } = self.nodes[number];
        if owed == 0 {
            return;
        }
        self.nodes[number].owed = 0;
        for child in [2 * number, 2 * number + 1] {
            if self.nodes[child].load == load {
                self.nodes[child].gain(owed);
            }
        }
    }

    /// What is known of two becomes what is known of both. Nothing may be owed here.
    fn gather(&mut self, number: usize) {
        let (left, right) = (self.nodes[2 * number], self.nodes[2 * number + 1]);
        self.nodes[number] = left.with(&right);
    }
}

impl Node {
    const NOBODY: Self = Self {
        load: PeerLoad {
            requests: 1,
            weight: 0,
        },
        best: usize::MAX,
        score: 0,
        gain: 0,
        total: 0,
        many: 0,
        turns: NEVER,
        owed: 0,
    };

    fn gain(&mut self, rounds: i64) {
        if self.many == 0 {
            return;
        }
        self.score += self.gain * rounds;
        self.owed += rounds;
        if self.turns != NEVER {
            self.turns -= rounds;
        }
    }

    /// Both together; of two who stand equally high the left one is the better.
    fn with(&self, right: &Self) -> Self {
        let left = self;
        match left.load.cmp(&right.load) {
            Ordering::Less => return Self { owed: 0, ..*left },
            Ordering::Greater => return Self { owed: 0, ..*right },
            Ordering::Equal => {}
        }
        let ahead = left.score >= right.score;
        let (best, other) = if ahead { (left, right) } else { (right, left) };
        let (lead, catches) = (best.score - other.score, other.gain - best.gain);
        let overtaken = if catches <= 0 {
            NEVER
        } else if ahead {
            lead / catches + 1
        } else {
            // Drawing level is enough for the left one.
            (lead - 1) / catches + 1
        };
        Self {
            total: left.total + right.total,
            many: left.many + right.many,
            turns: left.turns.min(right.turns).min(overtaken),
            owed: 0,
            ..*best
        }
    }
}

impl PartialEq for PeerLoad {
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
    fn cmp(&self, other: &Self) -> Ordering {
        let cross = |one: &Self, other: &Self| u128::from(one.requests) * u128::from(other.weight);
        cross(self, other).cmp(&cross(other, self))
    }
}

const NEVER: i64 = i64::MAX;
