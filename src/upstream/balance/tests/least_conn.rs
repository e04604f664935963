//! What is picked, and that it is what nginx would pick.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::config::plan::{UpstreamAddress, UpstreamServer};
use crate::upstream::backend::BackendSnapshot;
use crate::upstream::balance::tests::Servers;

/// The same algorithm as nginx writes it: what the tests measure by.
struct Naive(Vec<Peer>);

struct Peer {
    server: UpstreamServer,
    effective: i64,
    current: i64,
    fails: u32,
    accessed: Millis,
    checked: Millis,
    active: u32,
}

impl Naive {
    fn new(servers: &[UpstreamServer]) -> Self {
        let peer = |server: &UpstreamServer| Peer {
            server: server.clone(),
            effective: server.weight.into(),
            current: 0,
            fails: 0,
            accessed: Millis::default(),
            checked: Millis::default(),
            active: 0,
        };
        Self(servers.iter().map(peer).collect())
    }

    fn pick(&mut self, round: &mut TriedPeers, now: Millis) -> Option<usize> {
        if !round.backups {
            if let Some(primary) = self.pick_among(round, now) {
                return Some(primary);
            }
            round.backups = true;
        }
        self.pick_among(round, now)
    }

    fn pick_among(&mut self, round: &mut TriedPeers, now: Millis) -> Option<usize> {
        let usable: Vec<usize> = (0..self.0.len())
            .filter(|index| {
                let (peer, server) = (&self.0[*index], &self.0[*index].server);
                let left_alone = server.max_fails > 0
                    && peer.fails >= server.max_fails
                    && now.since(peer.checked) <= server.fail_timeout;
                let full = server.max_conns > 0 && peer.active >= server.max_conns;
                let tried = round.tried().any(|tried| tried == *index);
                let away = server.down || left_alone || full || tried;
                server.backup == round.backups && !away
            })
            .collect();
        // As fractions: requests by weight.
        let compare = |one: usize, other: usize| {
            let (one, other) = (&self.0[one], &self.0[other]);
            let cross =
                |one: &Peer, other: &Peer| u64::from(one.active) * u64::from(other.server.weight);
            cross(one, other).cmp(&cross(other, one))
        };
        let least = usable
            .iter()
            .copied()
            .min_by(|one, other| compare(*one, *other))?;
        let tied: Vec<usize> = usable
            .into_iter()
            .filter(|index| compare(*index, least).is_eq())
            .collect();
        let mut best = tied[0];
        if tied.len() > 1 {
            let mut total = 0;
            for &index in &tied {
                let peer = &mut self.0[index];
                peer.current += peer.effective;
                total += peer.effective;
                peer.effective = (peer.effective + 1).min(peer.server.weight.into());
                if self.0[index].current > self.0[best].current {
                    best = index;
                }
            }
            self.0[best].current -= total;
        }
        let peer = &mut self.0[best];
        if now.since(peer.checked) > peer.server.fail_timeout {
            peer.checked = now;
        }
        peer.active += 1;
        round.mark(best);
        Some(best)
    }

    fn failed(&mut self, index: usize, now: Millis) {
        let peer = &mut self.0[index];
        peer.fails += 1;
        (peer.accessed, peer.checked) = (now, now);
        let (weight, max_fails) = (peer.server.weight, peer.server.max_fails);
        if let Some(loss) = weight.checked_div(max_fails) {
            peer.effective = (peer.effective - i64::from(loss)).max(0);
        }
    }

    fn succeeded(&mut self, index: usize) {
        let peer = &mut self.0[index];
        if peer.accessed < peer.checked {
            peer.fails = 0;
        }
    }

    fn presence(&self, index: usize) -> BackendSnapshot {
        let Peer { server, active, .. } = &self.0[index];
        BackendSnapshot {
            unavailable: server.down,
            full: server.max_conns > 0 && *active >= server.max_conns,
        }
    }
}

fn server(weight: u32) -> UpstreamServer {
    UpstreamServer {
        weight,
        ..UpstreamServer::at(UpstreamAddress::Unix("/s".into()))
    }
}

fn of(servers: &[UpstreamServer]) -> Servers<LeastConn> {
    Servers::new(LeastConn, servers, |server| BackendSnapshot {
        unavailable: server.down,
        full: false,
    })
}

#[test]
fn who_has_the_least_to_do_for_its_weight_is_asked() {
    let mut servers = of(&[server(1), server(3), server(1)]);
    for (index, active) in [(0, 1), (1, 2), (2, 1)] {
        servers.set_active(index, active);
    }
    let picked = servers.pick(&mut TriedPeers::default(), Millis(0));
    assert_eq!(picked, Some(1));
}

#[test]
fn idle_servers_take_turns_by_weight() {
    let mut servers = of(&[server(5), server(1), server(1)]);
    let sequence: Vec<_> = (0..7)
        .filter_map(|_| servers.pick(&mut TriedPeers::default(), Millis(0)))
        .collect();
    assert_eq!(sequence, [0, 0, 1, 0, 2, 0, 0]);
}

#[test]
fn a_server_that_comes_back_is_not_sent_everything_at_once() {
    let slow = UpstreamServer {
        slow_start: Duration::from_secs(10),
        ..server(1)
    };
    let mut servers = of(&[slow, server(1)]);
    let asked = |unavailable| BackendSnapshot {
        unavailable,
        full: false,
    };
    servers.refresh(0, asked(true), Millis(0));
    servers.set_active(1, 1);
    servers.refresh(0, asked(false), Millis(1_000));
    let mut pick = |now| servers.pick(&mut TriedPeers::default(), Millis(now));
    // A tenth of its weight: nothing to do there is as much as nine requests at the other.
    assert_eq!(pick(2_000), Some(1));
    // Half of it: as much as one.
    assert_eq!(pick(6_500), Some(0));
    assert_eq!(pick(11_000), Some(0));
}

#[derive(Debug, Clone)]
enum Event {
    Request { tries: usize },
    End { which: usize },
    Success { server: usize },
    Failure { server: usize },
    Pause { millis: u64 },
}

fn event(servers: usize) -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => prop_oneof![8 => Just(1), 2 => 2..=servers + 1]
            .prop_map(|tries| Event::Request { tries }),
        10 => any::<usize>().prop_map(|which| Event::End { which }),
        2 => (0..servers).prop_map(|server| Event::Success { server }),
        1 => (0..servers).prop_map(|server| Event::Failure { server }),
        2 => (0..700u64).prop_map(|millis| Event::Pause { millis }),
    ]
}

fn any_server() -> impl Strategy<Value = UpstreamServer> {
    let weight = prop_oneof![4 => Just(1), 4 => 1..6u32, 1 => 1..1000u32];
    let backup = prop_oneof![4 => Just(false), 1 => Just(true)];
    let down = prop_oneof![8 => Just(false), 1 => Just(true)];
    let max_conns = prop_oneof![4 => Just(0), 1 => 1..4u32];
    (weight, 0..4u32, 0..2000u64, backup, down, max_conns).prop_map(
        |(weight, max_fails, timeout, backup, down, max_conns)| UpstreamServer {
            max_fails,
            fail_timeout: Duration::from_millis(timeout),
            backup,
            down,
            max_conns,
            ..server(weight)
        },
    )
}

proptest! {
    /// Whatever happens, every pick is the one that nginx's passes over all servers give.
    #[test]
    fn every_pick_is_nginxs(
        (all, events) in prop::collection::vec(any_server(), 1..12).prop_flat_map(|servers| {
            let events = prop::collection::vec(event(servers.len()), 1..300);
            (Just(servers), events)
        })
    ) {
        let (mut servers, mut naive) = (of(&all), Naive::new(&all));
        let mut leases: Vec<usize> = Vec::new();
        let mut now = Millis(5_000);
        for event in events {
            match event {
                Event::Request { tries } => {
                    let (mut round, mut naive_round) = (TriedPeers::default(), TriedPeers::default());
                    for attempt in 0..tries {
                        let picked = servers.pick(&mut round, now);
                        prop_assert_eq!(picked, naive.pick(&mut naive_round, now));
                        let Some(index) = picked else { break };
                        if attempt + 1 < tries {
                            servers.failed(index, now);
                            naive.failed(index, now);
                            naive.0[index].active -= 1;
                        } else {
                            leases.push(index);
                        }
                        servers.set_active(index, naive.0[index].active);
                        servers.refresh(index, naive.presence(index), now);
                    }
                }
                Event::End { which } => if !leases.is_empty() {
                    let index = leases.swap_remove(which % leases.len());
                    naive.0[index].active -= 1;
                    servers.set_active(index, naive.0[index].active);
                        servers.refresh(index, naive.presence(index), now);
                },
                Event::Success { server } => {
                    servers.succeeded(server);
                    naive.succeeded(server);
                }
                Event::Failure { server } => {
                    servers.failed(server, now);
                    naive.failed(server, now);
                }
                Event::Pause { millis } => now = Millis(now.0 + millis),
            }
        }
    }
}
