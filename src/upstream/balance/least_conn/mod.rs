//! nginx's `least_conn`: who has the least to do for its weight; of several, smooth weighted round robin decides.
//!
//! nginx looks at every server for every request, some twice. Here a [`Crowd`] knows who has the least, and is told
//! when a request begins or ends: it does not matter how many servers there are.
//!
//! A server whose weight still grows (`slow_start`) counts as if it had a part of a request more, the larger the less
//! it has of its weight: having nothing to do, it would otherwise be sent everything.

mod crowd;
#[cfg(test)]
mod tests;

use self::crowd::{Crowd, PeerLoad};
use super::peers::{PeerState, Seat, TriedPeers};
use crate::clock::Millis;

/// Those who may be asked, on one side of an upstream.
#[derive(Debug)]
pub(super) struct LeastConn {
    crowd: Crowd,
    /// By place.
    indices: Box<[usize]>,
    recovering: Vec<usize>,
}

impl LeastConn {
    /// A side of which nobody is seated yet.
    pub(super) fn new(standings: &mut [PeerState], backups: bool) -> Self {
        let own = standings.iter_mut().enumerate();
        let indices: Box<[_]> = own
            .filter(|(_, standing)| standing.backup == backups)
            .enumerate()
            .map(|(place, (index, standing))| {
                standing.place = place;
                index
            })
            .collect();
        Self {
            crowd: Crowd::new(indices.len()),
            indices,
            recovering: Vec::new(),
        }
    }

    /// A server takes the seat it has been given.
    pub(super) fn enter(&mut self, index: usize, standing: &PeerState) {
        if standing.seat == Seat::Recovering {
            self.recovering.push(index);
        }
        self.put(standing);
    }

    /// A server leaves the seat it has.
    pub(super) fn leave(&mut self, index: usize, standing: &mut PeerState) {
        if standing.seat == Seat::Recovering {
            self.recovering.retain(|other| *other != index);
        }
        standing.current = self.crowd.remove(standing.place);
    }

    /// A server has another number of requests than before.
    pub(super) fn weigh(&mut self, standing: &PeerState) {
        if matches!(standing.seat, Seat::Playing | Seat::Recovering) {
            self.crowd
                .change(standing.place, load(standing), standing.effective);
        }
    }

    /// Who has the least to do. Of several all gain, and who then stands highest pays.
    pub(super) fn pick(
        &mut self,
        standings: &mut [PeerState],
        round: &TriedPeers,
        now: Millis,
    ) -> Option<usize> {
        for &index in &self.recovering {
            let standing = &mut standings[index];
            standing.grow(now);
            self.crowd
                .change(standing.place, load(standing), standing.effective);
        }
        let aside = |standing: &PeerState| {
            standing.backup == round.backups
                && matches!(standing.seat, Seat::Playing | Seat::Recovering)
        };
        for index in round.tried() {
            let standing = &mut standings[index];
            if aside(standing) {
                standing.current = self.crowd.remove(standing.place);
            }
        }
        let picked = self.best(standings);
        for index in round.tried() {
            if aside(&standings[index]) {
                self.put(&standings[index]);
            }
        }
        picked
    }

    fn best(&mut self, standings: &mut [PeerState]) -> Option<usize> {
        let least = self.crowd.least()?;
        if least.many == 1 {
            return Some(self.indices[least.best]);
        }
        self.crowd.advance();
        let best = self.crowd.least()?.best;
        self.crowd.charge(best, least.total);
        self.recovering.retain(|&index| {
            let standing = &mut standings[index];
            if !standing.skipped && load(standing) == least.load {
                standing.earn();
                self.crowd
                    .change(standing.place, load(standing), standing.effective);
            }
            if standing.is_whole() {
                standing.seat = Seat::Playing;
            }
            !standing.is_whole()
        });
        Some(self.indices[best])
    }

    fn put(&mut self, standing: &PeerState) {
        self.crowd.put(
            standing.place,
            load(standing),
            standing.current,
            standing.effective,
        );
    }
}

/// What a server has to do for its weight.
fn load(standing: &PeerState) -> PeerLoad {
    let (requests, weight) = (u64::from(standing.active()), standing.weight.unsigned_abs());
    if !standing.is_rising() {
        return PeerLoad { requests, weight };
    }
    // Both with the same factor: its weight is a part of what it will be.
    let share = standing.effective.unsigned_abs() * WHOLE / weight;
    let share = share.clamp(1, WHOLE);
    PeerLoad {
        requests: requests * WHOLE + WHOLE - share,
        weight: weight * share,
    }
}

const WHOLE: u64 = 1024;
