//! Servers that come and go among others that stay.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use proptest::prelude::*;

use super::least_conn::LeastConn;
use super::peers::PeerStates;
use super::round_robin::RoundRobin;
use super::*;
use crate::config::plan::{UpstreamAddress, UpstreamServer};
use crate::upstream::backend::BackendSnapshot;

fn server(weight: u32) -> UpstreamServer {
    UpstreamServer {
        weight,
        max_fails: 2,
        slow_start: Duration::from_secs(10),
        ..UpstreamServer::at(UpstreamAddress::Unix("/s".into()))
    }
}

fn present() -> BackendSnapshot {
    BackendSnapshot {
        unavailable: false,
        full: false,
    }
}

/// Servers without backends, and their balancer.
pub(super) struct Servers<B> {
    balancer: B,
    states: PeerStates,
    active: Vec<Arc<AtomicU32>>,
}

impl<B: Balance> Servers<B> {
    pub(super) fn new(
        balancer: B,
        servers: &[UpstreamServer],
        snapshot: impl Fn(&UpstreamServer) -> BackendSnapshot,
    ) -> Self {
        let slow = servers.iter().any(|server| !server.slow_start.is_zero());
        let active: Vec<_> = servers.iter().map(|_| Arc::default()).collect();
        let members = servers.iter().zip(&active).map(|(server, active)| Member {
            server,
            snapshot: snapshot(server),
            active,
            new: false,
        });
        Self {
            balancer,
            states: PeerStates::new(slow, members),
            active,
        }
    }

    pub(super) fn pick(&mut self, tried: &mut TriedPeers, now: Millis) -> Option<usize> {
        self.states.pick(&mut self.balancer, tried, now)
    }

    /// So many requests are in progress at this server.
    pub(super) fn set_active(&self, index: usize, active: u32) {
        self.active[index].store(active, Ordering::Relaxed);
    }

    /// The servers are these from now on; of each whether it is new in its place.
    fn renew<'s>(
        &mut self,
        servers: impl Iterator<Item = (&'s UpstreamServer, BackendSnapshot, bool)>,
        now: Millis,
    ) {
        let servers: Vec<_> = servers.collect();
        self.active.resize_with(servers.len(), Arc::default);
        let members = servers.iter().zip(&self.active);
        let members = members.map(|(&(server, snapshot, new), active)| Member {
            server,
            snapshot,
            active,
            new,
        });
        self.states.renew(members, now);
    }
}

impl<B> Deref for Servers<B> {
    type Target = PeerStates;

    fn deref(&self) -> &PeerStates {
        &self.states
    }
}

impl<B> DerefMut for Servers<B> {
    fn deref_mut(&mut self) -> &mut PeerStates {
        &mut self.states
    }
}

fn by_turns(servers: &[UpstreamServer]) -> Servers<RoundRobin> {
    Servers::new(RoundRobin, servers, |_| present())
}

/// How often each is picked by so many requests, none of which lasts.
fn picked(standings: &mut Servers<RoundRobin>, requests: usize, now: Millis) -> Vec<usize> {
    let mut picked = vec![0; 4];
    for _ in 0..requests {
        picked[standings.pick(&mut TriedPeers::default(), now).unwrap()] += 1;
    }
    picked
}

/// The third of three, which came at one second, gets more and more within ten.
fn assert_third_rises(standings: &mut Servers<RoundRobin>) {
    let first = picked(standings, 60, Millis(1_500));
    assert!((1..=3).contains(&first[2]), "{first:?}");
    assert!(first[0].abs_diff(first[1]) <= 1, "{first:?}");
    let half = picked(standings, 60, Millis(6_000));
    assert!((10..=14).contains(&half[2]), "{half:?}");
    let last = picked(standings, 60, Millis(12_000));
    assert!((19..=21).contains(&last[2]), "{last:?}");
}

#[test]
fn who_comes_starts_slowly_and_the_others_are_not_disturbed() {
    let servers = [server(1), server(1), server(1)];
    let mut standings = by_turns(&servers[..2]);
    assert_eq!(picked(&mut standings, 20, Millis(0)), [10, 10, 0, 0]);
    let with_third = (0..3).map(|index| (&servers[index], present(), index == 2));
    standings.renew(with_third, Millis(1_000));
    assert_third_rises(&mut standings);
}

#[test]
fn who_comes_back_starts_slowly_by_turns() {
    let servers = [server(1), server(1), server(1)];
    let mut standings = by_turns(&servers);
    // A group that has just started does not start slowly.
    assert_eq!(picked(&mut standings, 30, Millis(0)), [10, 10, 10, 0]);
    let unavailable = BackendSnapshot {
        unavailable: true,
        ..present()
    };
    standings.refresh(2, unavailable, Millis(0));
    assert_eq!(picked(&mut standings, 20, Millis(0)), [10, 10, 0, 0]);
    standings.refresh(2, present(), Millis(1_000));
    assert_third_rises(&mut standings);
}

#[test]
fn who_takes_the_place_of_another_has_none_of_its_failures() {
    let servers = [server(1), server(1)];
    let mut standings = by_turns(&servers);
    standings.failed(1, Millis(0));
    standings.failed(1, Millis(0));
    assert_eq!(picked(&mut standings, 4, Millis(1))[1], 0);
    let replaced = (0..2).map(|index| (&servers[index], present(), index == 1));
    standings.renew(replaced, Millis(1));
    assert!(!standings.has_failures(1));
    assert!(picked(&mut standings, 40, Millis(9_000))[1] > 0);
}

#[derive(Debug, Clone)]
enum Step {
    Bar(usize, bool),
    Fail(usize),
    Load(usize, u32),
    Pick,
    Renew,
    Succeed(usize),
    Time(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let index = 0..5_usize;
    prop_oneof![
        8 => Just(Step::Pick),
        2 => Just(Step::Renew),
        1 => index.clone().prop_map(Step::Fail),
        1 => index.clone().prop_map(Step::Succeed),
        1 => (index.clone(), any::<bool>()).prop_map(|(index, up)| Step::Bar(index, up)),
        2 => (index, 0..4_u32).prop_map(|(index, active)| Step::Load(index, active)),
        1 => (0..8_000_u64).prop_map(Step::Time),
    ]
}

/// Does all of this to two groups, and `Renew` to the first alone: they pick the same.
fn assert_renewals_change_nothing<B: Balance>(
    balancer: impl Fn() -> B,
    servers: &[UpstreamServer],
    steps: &[Step],
) {
    let of = || Servers::new(balancer(), servers, |_| present());
    let (mut one, mut other) = (of(), of());
    let mut presence = [present(); 5];
    let mut now = Millis(0);
    for step in steps {
        match *step {
            Step::Pick => {
                let picks = [&mut one, &mut other].map(|group| {
                    let mut round = TriedPeers::default();
                    [(); 2].map(|()| group.pick(&mut round, now))
                });
                assert_eq!(picks[0], picks[1]);
            }
            Step::Renew => {
                let same = servers.iter().zip(presence);
                one.renew(
                    same.map(|(server, presence)| (server, presence, false)),
                    now,
                );
            }
            Step::Fail(index) => {
                assert_eq!(one.failed(index, now), other.failed(index, now));
            }
            Step::Succeed(index) => {
                one.succeeded(index);
                other.succeeded(index);
            }
            Step::Bar(index, unavailable) => {
                presence[index].unavailable = unavailable;
                one.refresh(index, presence[index], now);
                other.refresh(index, presence[index], now);
            }
            Step::Load(index, active) => {
                one.set_active(index, active);
                other.set_active(index, active);
            }
            Step::Time(millis) => now.0 += millis,
        }
    }
}

proptest! {
    /// A look-up after which all servers are the same as before has no effect.
    #[test]
    fn a_look_up_that_changes_nothing_changes_nothing(
        weights in prop::collection::vec(1..6_u32, 5),
        least_conn: bool,
        slow: bool,
        steps in prop::collection::vec(step(), 0..150),
    ) {
        let mut servers: Vec<_> = weights.into_iter().map(server).collect();
        servers[4].backup = true;
        if !slow {
            servers.iter_mut().for_each(|server| server.slow_start = Duration::ZERO);
        }
        match least_conn {
            true => assert_renewals_change_nothing(|| LeastConn, &servers, &steps),
            false => assert_renewals_change_nothing(|| RoundRobin, &servers, &steps),
        }
    }
}
