//! What is picked, and that it is what nginx would pick.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::clock::Millis;
use crate::config::plan::{UpstreamAddress, UpstreamServer};
use crate::upstream::backend::BackendSnapshot;
use crate::upstream::balance::TriedPeers;
use crate::upstream::balance::tests::Servers;

fn server(weight: u32) -> UpstreamServer {
    UpstreamServer {
        weight,
        ..UpstreamServer::at(UpstreamAddress::Unix("/s".into()))
    }
}

fn of(servers: &[UpstreamServer]) -> Servers<RoundRobin> {
    Servers::new(RoundRobin, servers, |server| free(!server.down))
}

fn free(free: bool) -> BackendSnapshot {
    BackendSnapshot {
        unavailable: false,
        full: !free,
    }
}

/// What the next `n` requests get.
fn sequence(servers: &mut Servers<RoundRobin>, n: usize, now: Millis) -> Vec<usize> {
    (0..n)
        .filter_map(|_| servers.pick(&mut TriedPeers::default(), now))
        .collect()
}

#[test]
fn weights_five_one_one_are_spread_smoothly() {
    let mut servers = of(&[server(5), server(1), server(1)]);
    let expected = [0, 0, 1, 0, 2, 0, 0];
    assert_eq!(sequence(&mut servers, 7, Millis(0)), expected);
    assert_eq!(sequence(&mut servers, 7, Millis(0)), expected);
}

#[test]
fn a_request_picks_no_server_twice() {
    let mut servers = of(&[server(5), server(1)]);
    let mut round = TriedPeers::default();
    assert_eq!(servers.pick(&mut round, Millis(0)), Some(0));
    assert_eq!(servers.pick(&mut round, Millis(0)), Some(1));
    assert_eq!(servers.pick(&mut round, Millis(0)), None);
}

#[test]
fn more_servers_than_a_word_has_bits_are_all_asked_once() {
    let mut servers = of(&vec![server(1); 150]);
    let mut round = TriedPeers::default();
    let mut asked: Vec<_> = std::iter::from_fn(|| servers.pick(&mut round, Millis(0))).collect();
    asked.sort_unstable();
    assert_eq!(asked, (0..150).collect::<Vec<_>>());
}

#[test]
fn a_server_that_failed_is_left_alone_for_its_fail_timeout() {
    let mut servers = of(&[server(1), server(1)]);
    assert!(servers.failed(0, Millis(1_000)));
    assert_eq!(sequence(&mut servers, 3, Millis(11_000)), [1, 1, 1]);
    assert!(sequence(&mut servers, 2, Millis(11_001)).contains(&0));
}

#[test]
fn fewer_failures_than_max_fails_disable_no_server() {
    let mut patient = server(1);
    patient.max_fails = 3;
    let mut servers = of(&[patient, server(1)]);
    assert!(!servers.failed(0, Millis(1)));
    assert!(!servers.failed(0, Millis(2)));
    assert!(servers.failed(0, Millis(3)));
}

#[test]
fn max_fails_zero_never_disables() {
    let mut stoic = server(1);
    stoic.max_fails = 0;
    let mut servers = of(&[stoic, server(1)]);
    for now in 0..10 {
        assert!(!servers.failed(0, Millis(now)));
    }
    assert!(sequence(&mut servers, 2, Millis(10)).contains(&0));
}

#[test]
fn only_one_probe_goes_out_per_fail_timeout() {
    let mut servers = of(&[server(1), server(1)]);
    servers.failed(0, Millis(0));
    let asked = sequence(&mut servers, 10, Millis(10_001));
    assert_eq!(asked.iter().filter(|index| **index == 0).count(), 1);
    let asked = sequence(&mut servers, 10, Millis(20_002));
    assert_eq!(asked.iter().filter(|index| **index == 0).count(), 1);
}

#[test]
fn an_answered_probe_brings_the_server_back() {
    let mut servers = of(&[server(1), server(1)]);
    servers.failed(0, Millis(0));
    // The answer to a request sent before the failure proves nothing.
    servers.succeeded(0);
    assert!(servers.has_failures(0));
    while !sequence(&mut servers, 1, Millis(10_001)).contains(&0) {}
    servers.succeeded(0);
    assert!(!servers.has_failures(0));
    let asked = sequence(&mut servers, 10, Millis(10_002));
    assert_eq!(asked.iter().filter(|index| **index == 0).count(), 5);
}

#[test]
fn lost_weight_is_earned_back_one_a_round() {
    let mut heavy = server(4);
    heavy.max_fails = 2;
    let mut servers = of(&[heavy, server(4)]);
    servers.failed(0, Millis(0));
    assert_eq!(servers.effective(0), 2);
    sequence(&mut servers, 1, Millis(1));
    assert_eq!(servers.effective(0), 3);
    sequence(&mut servers, 5, Millis(1));
    assert_eq!(servers.effective(0), 4);
}

#[test]
fn backups_are_asked_only_when_no_primary_can_be() {
    let mut spare = server(1);
    spare.backup = true;
    let mut servers = of(&[server(1), server(1), spare]);
    assert!(!sequence(&mut servers, 10, Millis(0)).contains(&2));
    servers.failed(0, Millis(0));
    servers.failed(1, Millis(0));
    assert_eq!(sequence(&mut servers, 2, Millis(1)), [2, 2]);
}

#[test]
fn a_request_that_failed_on_every_primary_goes_to_the_backup() {
    let mut spare = server(1);
    spare.backup = true;
    let mut servers = of(&[server(1), spare]);
    let mut round = TriedPeers::default();
    assert_eq!(servers.pick(&mut round, Millis(0)), Some(0));
    assert_eq!(servers.pick(&mut round, Millis(0)), Some(1));
}

#[test]
fn a_server_that_is_down_or_full_is_never_asked() {
    let mut down = server(1);
    down.down = true;
    let mut servers = of(&[down, server(1), server(1)]);
    servers.refresh(1, free(false), Millis(0));
    assert_eq!(sequence(&mut servers, 4, Millis(0)), [2; 4]);
    servers.refresh(1, free(true), Millis(0));
    assert!(sequence(&mut servers, 2, Millis(0)).contains(&1));
}

#[test]
fn a_full_server_that_fails_is_left_alone_when_it_has_room_again() {
    let mut servers = of(&[server(1), server(1)]);
    servers.refresh(0, free(false), Millis(0));
    servers.failed(0, Millis(1));
    servers.refresh(0, free(true), Millis(2));
    assert_eq!(sequence(&mut servers, 3, Millis(10_001)), [1; 3]);
    assert!(sequence(&mut servers, 2, Millis(10_002)).contains(&0));
}

/// What happens to an upstream.
#[derive(Debug, Clone)]
enum Event {
    /// A request that is answered by the last of so many servers; the others failed.
    Request { tries: usize },
    /// One of the requests so far was answered after all.
    Success { server: usize },
    /// A request of long ago failed.
    Failure { server: usize },
    /// It got its `max_conns`, or has room again.
    Fullness { server: usize },
    /// Time passes.
    Pause { millis: u64 },
}

fn event(servers: usize) -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => prop_oneof![8 => Just(1), 2 => 2..=servers + 1]
            .prop_map(|tries| Event::Request { tries }),
        2 => (0..servers).prop_map(|server| Event::Success { server }),
        1 => (0..servers).prop_map(|server| Event::Failure { server }),
        1 => (0..servers).prop_map(|server| Event::Fullness { server }),
        3 => (0..700u64).prop_map(|millis| Event::Pause { millis }),
    ]
}

fn any_server() -> impl Strategy<Value = UpstreamServer> {
    let weight = prop_oneof![4 => Just(1), 4 => 1..6u32, 1 => 1..1000u32, 1 => any::<u32>()];
    let backup = prop_oneof![4 => Just(false), 1 => Just(true)];
    let down = prop_oneof![8 => Just(false), 1 => Just(true)];
    (weight, 0..4u32, 0..2000u64, backup, down).prop_map(
        |(weight, max_fails, timeout, backup, down)| UpstreamServer {
            max_fails,
            fail_timeout: Duration::from_millis(timeout),
            backup,
            down,
            ..server(weight.max(1))
        },
    )
}

fn upstream() -> impl Strategy<Value = (Vec<UpstreamServer>, Vec<Event>)> {
    prop::collection::vec(any_server(), 1..12).prop_flat_map(|servers| {
        let events = prop::collection::vec(event(servers.len()), 1..200);
        (Just(servers), events)
    })
}

proptest! {
    /// Whatever happens, every pick is the one that nginx's pass over all servers gives.
    #[test]
    fn every_pick_is_nginxs((all, events) in upstream()) {
        let mut servers = of(&all);
        let mut naive = naive::RoundRobin::new(&all);
        let mut full = vec![false; all.len()];
        let mut now = Millis(5_000);
        for event in events {
            match event {
                Event::Request { tries } => {
                    let (mut round, mut naive_round) = (TriedPeers::default(), TriedPeers::default());
                    for attempt in 0..tries {
                        let picked = servers.pick(&mut round, now);
                        prop_assert_eq!(picked, naive.pick(&mut naive_round, now, &full));
                        let Some(index) = picked else { break };
                        if attempt + 1 < tries {
                            servers.failed(index, now);
                            naive.failed(index, now);
                        }
                    }
                }
                Event::Success { server } => {
                    servers.succeeded(server);
                    naive.succeeded(server);
                }
                Event::Failure { server } => {
                    servers.failed(server, now);
                    naive.failed(server, now);
                }
                Event::Fullness { server } => {
                    full[server] = !full[server];
                    servers.refresh(server, free(!full[server] && !all[server].down), now);
                }
                Event::Pause { millis } => now = Millis(now.0 + millis),
            }
        }
    }

    /// While all are well, for so long that every duel turns many times.
    #[test]
    fn the_sequence_of_any_weights_is_nginxs(weights in prop::collection::vec(1..50u32, 1..40)) {
        let all: Vec<_> = weights.iter().map(|weight| server(*weight)).collect();
        let (mut servers, mut naive) = (of(&all), naive::RoundRobin::new(&all));
        let full = vec![false; all.len()];
        for _ in 0..1_000 {
            prop_assert_eq!(
                servers.pick(&mut TriedPeers::default(), Millis(0)),
                naive.pick(&mut TriedPeers::default(), Millis(0), &full)
            );
        }
    }
}
