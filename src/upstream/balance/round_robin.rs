//! nginx's smooth weighted round robin: every usable server gains its effective weight, the one with the highest
//! current weight is picked and pays what all gained. The same weights give nginx's sequence.
//!
//! As in nginx, one pass over all servers for every pick: some ten instructions for each server that is well.

#[cfg(test)]
#[path = "tests/naive.rs"]
mod naive;
#[cfg(test)]
#[path = "tests/round_robin.rs"]
mod tests;

use super::peers::{Balance, PeerState, Side, TriedPeers};
use crate::clock::Millis;
use crate::config::plan;

/// `balance: round_robin`. The weights it counts with are the peers' own: the other balancers fall back on them.
#[derive(Debug)]
pub(super) struct RoundRobin;

impl Balance for RoundRobin {
    fn new(_plan: &plan::Upstream) -> Self {
        Self
    }

    fn pick(
        &mut self,
        peers: &mut [PeerState],
        tried: &mut TriedPeers,
        now: Millis,
    ) -> Option<usize> {
        pick(peers, tried.side(), now, |_| true)
    }
}

/// One round among the peers on this side that are `wanted`.
// The peers that are well come first and the others after them: a loop that calls nothing costs half as much, and four
// at a time cost less than one by one.
#[inline]
pub(super) fn pick(
    peers: &mut [PeerState],
    side: Side,
    now: Millis,
    wanted: impl Fn(&PeerState) -> bool,
) -> Option<usize> {
    let (mut total, mut highest, mut best) = (0, i64::MIN, usize::MAX);
    let mut others = false;
    let mut gain = |peer: &mut PeerState| {
        if !peer.is_ready(side) {
            others = true;
        } else if wanted(peer) {
            peer.current += peer.effective;
            total += peer.effective;
            // Of several that are equal the first in the file.
            if peer.current > highest {
                (highest, best) = (peer.current, peer.index);
            }
        }
    };
    let (fours, rest) = peers.as_chunks_mut::<4>();
    for four in fours {
        four.iter_mut().for_each(&mut gain);
    }
    rest.iter_mut().for_each(gain);
    if others {
        for peer in &mut *peers {
            if peer.is_ready(side) || !peer.is_usable(side, now) || !wanted(peer) {
                continue;
            }
            let gain = peer.gain();
            peer.current += gain;
            total += gain;
            if peer.current > highest || peer.current == highest && peer.index < best {
                (highest, best) = (peer.current, peer.index);
            }
        }
    }
    peers.get_mut(best)?.current -= total;
    Some(best)
}
