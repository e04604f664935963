//! Gateways that cannot reach a store: each keeps to its share of the limit.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::faulty_store::Relay;
use super::{degraded, gateway, hammer, metric};
use crate::support::redis::Redis;
use crate::support::{Weir, eventually, millis_since};

const RATE: u64 = 60;

const BURST: u64 = 10;

const ZONE: &str = "rate: 60r/s";

const RULE: &str = "burst: 10, nodelay: true";

/// Two of three gateways share a store that the third has never reached.
#[test]
fn a_gateway_that_is_declared_has_its_part_and_no_more_for_as_long_as_it_is_cut_off() {
    let redis = Redis::start();
    // It can be connected to, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = silent.local_addr().expect("it is bound");
    let start = |url: &str| {
        let store = format!("redis: '{url}', timeout: 1s, gateways: 3");
        gateway(&store, ZONE, RULE)
    };
    let fleet = [
        start(&redis.url()),
        start(&redis.url()),
        start(&format!("redis://{address}")),
    ];
    for weir in &fleet[..2] {
        eventually("the others are seen", || {
            metric(weir, "weir_store_gateways{store=\"shared\"}") == 2
        });
    }
    eventually("the outage is noticed", || degraded(&fleet[2]));
    let begun = Instant::now();
    let until = begun + Duration::from_secs(4);
    let clients = fleet
        .each_ref()
        .map(Weir::address)
        .map(|address| thread::spawn(move || hammer(address, until).0));
    let each = clients.map(|one| one.join().expect("it heard no other status"));
    // Each part is rounded to a request.
    let most = RATE * (millis_since(begun) + 2) / 1_000 + BURST + 1 + 3;
    let (alone, passed) = (each[2], each.iter().sum::<u64>());
    assert!(passed <= most, "{passed} of {most}: {each:?}");
    assert!((60..=most / 3 + 1).contains(&alone), "{alone}: {each:?}");
}

/// A server that refuses connections is gone for all gateways: each goes on with its part of the rate.
#[test]
fn a_store_that_is_gone_for_all_leaves_each_its_part_of_the_rate() {
    let mut redis = Redis::start();
    let start = || {
        gateway(
            &format!("redis: '{}', timeout: 1s", redis.url()),
            ZONE,
            RULE,
        )
    };
    let fleet = [start(), start(), start()];
    for weir in &fleet {
        eventually("the fleet is seen", || {
            metric(weir, "weir_store_gateways{store=\"shared\"}") == 3
        });
    }
    redis.kill();
    for weir in &fleet {
        eventually("the outage is noticed", || degraded(weir));
    }
    let begun = Instant::now();
    let until = begun + Duration::from_secs(3);
    let clients = fleet
        .each_ref()
        .map(Weir::address)
        .map(|address| thread::spawn(move || hammer(address, until).0));
    let each = clients.map(|one| one.join().expect("it heard no other status"));
    let most = RATE * (millis_since(begun) + 2) / 1_000 + 2 * (BURST + 1);
    let passed: u64 = each.iter().sum();
    assert!(
        (150..=most).contains(&passed),
        "{passed} of {most}: {each:?}"
    );
}

/// One of three gateways is cut off again and again: the others leave it its share soon after, and it is charged what it let pass
/// before.
#[test]
fn a_gateway_that_is_cut_off_now_and_then_adds_less_than_a_burst() {
    for (mode, credit) in [("exact", 0), ("leased", 3)] {
        let redis = Redis::start();
        let relay = Relay::before(redis.address());
        let start = |url: &str| gateway(&format!("redis: '{url}', mode: {mode}"), ZONE, RULE);
        let fleet = [
            start(&relay.url()),
            start(&redis.url()),
            start(&redis.url()),
        ];
        for weir in &fleet {
            eventually("the fleet is seen", || {
                metric(weir, "weir_store_gateways{store=\"shared\"}") == 3
            });
        }
        let begun = Instant::now();
        let until = begun + Duration::from_secs(6);
        let clients = fleet
            .each_ref()
            .map(Weir::address)
            .map(|address| thread::spawn(move || hammer(address, until).0));
        while Instant::now() < until {
            thread::sleep(Duration::from_millis(700));
            relay.cut(true);
            thread::sleep(Duration::from_millis(800));
            relay.cut(false);
        }
        let each = clients.map(|one| one.join().expect("it heard no other status"));
        let limit = RATE * (millis_since(begun) + 2) / 1_000 + BURST + 1 + credit;
        let passed: u64 = each.iter().sum();
        assert!(
            (limit / 2..=limit + BURST + 1).contains(&passed),
            "{mode}: {passed} where {limit} may: {each:?}"
        );
        assert!(degraded(&fleet[0]) || fleet[0].stderr().contains("is away"));
    }
}

/// The others leave a gateway its share within half a second of its last report, and have all of the limit as soon as it is back.
#[test]
fn a_silent_gateway_is_missing_soon_and_present_as_soon_as_it_reports() {
    let redis = Redis::start();
    let relay = Relay::before(redis.address());
    let start = |url: &str| gateway(&format!("redis: '{url}', timeout: 1s"), ZONE, RULE);
    let (other, cut_off) = (start(&redis.url()), start(&relay.url()));
    let present = |count| {
        let metric = || metric(&other, "weir_store_gateways{store=\"shared\"}");
        let begun = Instant::now();
        eventually("the number of gateways is right", || metric() == count);
        millis_since(begun)
    };
    present(2);
    relay.cut(true);
    let noticed = present(1);
    assert!(noticed < 2_000, "{noticed} ms");
    relay.cut(false);
    eventually("the store is back", || !degraded(&cut_off));
    present(2);
}
