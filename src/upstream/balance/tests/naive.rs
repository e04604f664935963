//! The same algorithm as nginx writes it, a pass over all servers for every pick: what the tests measure by.

use crate::clock::Millis;
use crate::config::plan::UpstreamServer;
use crate::upstream::balance::peers::TriedPeers;

pub(super) struct RoundRobin(Vec<Peer>);

struct Peer {
    server: UpstreamServer,
    effective: i64,
    current: i64,
    fails: u32,
    accessed: Millis,
    checked: Millis,
}

impl RoundRobin {
    pub(super) fn new(servers: &[UpstreamServer]) -> Self {
        let peer = |server: &UpstreamServer| Peer {
            server: server.clone(),
            effective: server.weight.into(),
            current: 0,
            fails: 0,
            accessed: Millis::default(),
            checked: Millis::default(),
        };
        Self(servers.iter().map(peer).collect())
    }

    pub(super) fn pick(
        &mut self,
        round: &mut TriedPeers,
        now: Millis,
        full: &[bool],
    ) -> Option<usize> {
        if !round.backups {
            if let Some(primary) = self.pick_among(round, now, full) {
                return Some(primary);
            }
            round.backups = true;
        }
        self.pick_among(round, now, full)
    }

    pub(super) fn failed(&mut self, index: usize, now: Millis) {
        let peer = &mut self.0[index];
        peer.fails += 1;
        peer.accessed = now;
        peer.checked = now;
        let (weight, max_fails) = (peer.server.weight, peer.server.max_fails);
        if let Some(loss) = weight.checked_div(max_fails) {
            peer.effective = (peer.effective - i64::from(loss)).max(0);
        }
    }

    pub(super) fn succeeded(&mut self, index: usize) {
        let peer = &mut self.0[index];
        if peer.accessed < peer.checked {
            peer.fails = 0;
        }
    }

    fn pick_among(&mut self, round: &mut TriedPeers, now: Millis, full: &[bool]) -> Option<usize> {
        let mut total = 0;
        let mut best: Option<(usize, i64)> = None;
        for (index, peer) in self.0.iter_mut().enumerate() {
            let server = &peer.server;
            let left_alone = server.max_fails > 0
                && peer.fails >= server.max_fails
                && now.since(peer.checked) <= server.fail_timeout;
            let tried = round.tried().any(|tried| tried == index);
            if server.backup != round.backups || server.down || left_alone || tried || full[index] {
                continue;
            }
            peer.current += peer.effective;
            total += peer.effective;
            if peer.effective < i64::from(server.weight) {
                peer.effective += 1;
            }
            if best.is_none_or(|(_, highest)| peer.current > highest) {
                best = Some((index, peer.current));
            }
        }
        let (index, _) = best?;
        let peer = &mut self.0[index];
        peer.current -= total;
        if now.since(peer.checked) > peer.server.fail_timeout {
            peer.checked = now;
        }
        round.mark(index);
        Some(index)
    }
}
