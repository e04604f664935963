//! Hash slots of a cluster that move under load.

use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::deployments::{cluster, urls};
use super::{at_100_a_second, gateway, hammer, missed};
use crate::support::redis::Redis;
use crate::support::{Weir, millis_since};

/// Moves a slot with what is in it, slowly enough for requests to meet every step of it.
fn move_slot(nodes: &[Redis], slot: &str, from: &Redis, to: &Redis) {
    let id = |node: &Redis| node.cli(&["CLUSTER", "MYID"]).trim().to_owned();
    let step = || thread::sleep(Duration::from_millis(60));
    let set = |node: &Redis, words: &[&str]| {
        let said = node.cli(&[&["CLUSTER", "SETSLOT", slot], words].concat());
        assert_eq!(said.trim(), "OK", "{words:?}");
    };
    set(to, &["IMPORTING", &id(from)]);
    set(from, &["MIGRATING", &id(to)]);
    step();
    let port = to.port().to_string();
    let keys = from.cli(&["CLUSTER", "GETKEYSINSLOT", slot, "100"]);
    for key in keys.split_whitespace() {
        from.cli(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    }
    step();
    set(to, &["NODE", &id(to)]);
    step();
    for node in nodes {
        if node.port() != to.port() {
            set(node, &["NODE", &id(to)]);
        }
    }
    step();
}

/// A slot that moves round and round is followed: the store is never called away, and what passes is within the limit.
#[test]
fn a_slot_that_moves_under_load_is_followed() {
    for mode in ["exact", "leased"] {
        let nodes = cluster();
        let store = format!("redis: {}, timeout: 1s, mode: {mode}", urls(&nodes));
        let fleet = [(); 2].map(|()| gateway(&store, "rate: 100r/s", "burst: 40, nodelay: true"));
        let slot = nodes[0].cli(&["CLUSTER", "KEYSLOT", "weir:{one:localhost}"]);
        let slot = slot.trim();
        let owner = nodes.iter().position(|node| {
            let said = node.cli(&["GET", "weir:{one:localhost}"]);
            !said.contains("MOVED")
        });
        let mut at = owner.expect("some node has the slot");
        let begun = Instant::now();
        let until = begun + Duration::from_secs(4);
        let clients: Vec<_> = fleet
            .iter()
            .flat_map(|weir| [weir.address(), weir.address()])
            .map(|address| thread::spawn(move || hammer(address, until).0))
            .collect();
        let mut moves = 0;
        while Instant::now() < until {
            let next = (at + 1) % nodes.len();
            move_slot(&nodes, slot, &nodes[at], &nodes[next]);
            at = next;
            moves += 1;
        }
        let passed: u64 = clients.into_iter().map(|one| one.join().unwrap()).sum();
        let credit = if mode == "leased" { 2 } else { 0 };
        let most = 41 + at_100_a_second(millis_since(begun)) + credit;
        assert!(
            passed <= most + 41,
            "{mode}: {passed} of {most} in {moves} moves"
        );
        assert!(passed > 41, "{mode}: {passed} in {moves} moves");
        let said: String = fleet.iter().map(Weir::stderr).collect();
        assert!(!said.contains("is away"), "{mode}: {said}");
        assert!(moves > 1 && missed(&fleet) < passed, "{moves} moves");
    }
}
