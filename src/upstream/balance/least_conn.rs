//! nginx's `least_conn`: the server with the fewest active requests for its weight; of several, smooth weighted round
//! robin decides.
//!
//! As in nginx, one pass over all servers for the least load, and a second one where several have it.

#[cfg(test)]
#[path = "tests/least_conn.rs"]
mod tests;

use std::cmp::Ordering;

use super::peers::{Balance, PeerLoad, PeerState, TriedPeers, round_robin};
use crate::clock::Millis;

/// `balance: least_conn`.
#[derive(Debug, Default)]
pub(super) struct LeastConn;

impl Balance for LeastConn {
    fn pick(
        &mut self,
        peers: &mut [PeerState],
        tried: &mut TriedPeers,
        now: Millis,
    ) -> Option<usize> {
        let side = tried.side();
        let (mut least, mut first, mut several) = (PeerLoad::ENDLESS, usize::MAX, false);
        let mut others = false;
        for peer in &*peers {
            if !peer.is_ready(side) {
                others = true;
                continue;
            }
            let load = peer.load();
            match load.compare_whole(&least) {
                Ordering::Less => (least, first, several) = (load, peer.index, false),
                Ordering::Equal => several = true,
                Ordering::Greater => {}
            }
        }
        if others {
            for peer in &mut *peers {
                if peer.is_ready(side) || !peer.is_usable(side, now) {
                    continue;
                }
                let load = peer.load();
                match load.compare(&least) {
                    Ordering::Less => (least, first, several) = (load, peer.index, false),
                    Ordering::Equal => (first, several) = (first.min(peer.index), true),
                    Ordering::Greater => {}
                }
            }
        }
        if !several {
            return peers.get(first).map(|peer| peer.index);
        }
        let turn = match least.requests {
            // Most servers of a large group: cheaper to compute than a load.
            0 if !others => round_robin(peers, side, now, PeerState::is_idle),
            _ => round_robin(peers, side, now, |peer| peer.load().compare(&least).is_eq()),
        };
        // Other loops begin and end requests meanwhile: perhaps no server has that load any more.
        turn.or(Some(first))
    }
}
