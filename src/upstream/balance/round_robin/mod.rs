//! nginx's smooth weighted round robin, in its own arithmetic.
//!
//! Every server that may be asked gains its effective weight in each round, the one that stands highest is picked and
//! pays what all gained. The same weights give nginx's sequence.
//!
//! nginx looks at every server for every request. Here those that are well play a [`Tournament`], and only who has
//! just come back with less than its weight is looked at one by one.

#[cfg(test)]
#[path = "tests/naive.rs"]
mod naive;
#[cfg(test)]
mod tests;
mod tournament;

use self::tournament::Tournament;
use super::peers::{PeerState, Seat, TriedPeers};
use crate::clock::Millis;

/// Those who may be asked, on one side of an upstream.
#[derive(Debug)]
pub(super) struct RoundRobin {
    playing: Tournament,
    recovering: Vec<usize>,
}

impl RoundRobin {
    /// A side of which nobody is seated yet.
    pub(super) fn new(standings: &mut [PeerState], backups: bool) -> Self {
        let own = (0u32..).zip(&*standings);
        let playing = Tournament::new(
            own.filter(|(_, standing)| standing.backup == backups)
                .map(|(index, standing)| (standing.weight, index)),
        );
        for (place, index) in playing.ranks().enumerate() {
            standings[index as usize].place = place;
        }
        Self {
            playing,
            recovering: Vec::new(),
        }
    }

    /// A server takes the seat it has been given.
    pub(super) fn enter(&mut self, index: usize, standing: &PeerState) {
        match standing.seat {
            Seat::Recovering => self.recovering.push(index),
            _ => self.playing.enter(standing.place, standing.current),
        }
    }

    /// A server leaves the seat it has.
    pub(super) fn leave(&mut self, index: usize, standing: &mut PeerState) {
        match standing.seat {
            Seat::Recovering => self.recovering.retain(|other| *other != index),
            _ => standing.current = self.playing.leave(standing.place),
        }
    }

    /// One round: everybody but the skipped gains, and who then stands highest pays.
    pub(super) fn pick(
        &mut self,
        standings: &mut [PeerState],
        round: &TriedPeers,
        now: Millis,
    ) -> Option<usize> {
        let mut total = self.playing.total();
        self.playing.advance();
        let skipped = |index: u32| standings[index as usize].skipped;
        let mut best = self.playing.best(skipped);
        total -= self.hold_back(standings, round);
        for &index in &self.recovering {
            let standing = &mut standings[index];
            if standing.skipped {
                continue;
            }
            standing.grow(now);
            standing.current += standing.effective;
            total += standing.effective;
            standing.earn();
            let this = (index, standing.current);
            if best.is_none_or(|best| is_above(this, best)) {
                best = Some(this);
            }
        }
        let (index, _) = best?;
        let winner = &mut standings[index];
        if winner.seat == Seat::Playing {
            self.playing.charge(winner.place, total);
            self.playing.settle(winner.place);
        } else {
            winner.current -= total;
        }
        if !self.recovering.is_empty() {
            self.graduate(standings);
        }
        Some(index)
    }

    /// Takes back what the skipped gained in this round; their weights in all.
    fn hold_back(&mut self, standings: &[PeerState], round: &TriedPeers) -> i64 {
        let mut total = 0;
        let playing = round
            .tried()
            .map(|index| &standings[index])
            .filter(|standing| standing.seat == Seat::Playing && standing.backup == round.backups);
        for standing in playing.clone() {
            self.playing.charge(standing.place, standing.weight);
            total += standing.weight;
        }
        // A request that has been everywhere: one pass over all is cheaper than a walk for each.
        if round.len() > standings.len() / 16 {
            self.playing.settle_all();
        } else {
            playing.for_each(|standing| self.playing.settle(standing.place));
        }
        total
    }

    /// Lets those play who have their whole weight again.
    fn graduate(&mut self, standings: &mut [PeerState]) {
        self.recovering.retain(|&index| {
            let standing = &mut standings[index];
            let whole = standing.is_whole();
            if whole {
                self.playing.enter(standing.place, standing.current);
                standing.seat = Seat::Playing;
            }
            !whole
        });
    }
}

/// Whether one server is picked before another: it stands higher, or as high and before it in the file.
fn is_above((index, score): (usize, i64), (other, other_score): (usize, i64)) -> bool {
    score > other_score || score == other_score && index < other
}
