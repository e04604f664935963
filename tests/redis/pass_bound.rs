//! With a slow store, and with one that goes away and comes back: all gateways together pass what the limit allows and at
//! most one burst more, the bound that `docs/redis.md` states.

use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::outage::asks;
use super::{degraded, gateway, hammer, metric, passed};
use crate::support::api::TOKEN;
use crate::support::redis::Redis;
use crate::support::{Api, Client, Weir, eventually, get, millis_since};

const RATE: u64 = 100;

const BURST: u64 = 40;

/// So many gateways with a deadline that a busy machine misses now and then, which know of each other.
fn fleet<const N: usize>(redis: &Redis, mode: &str, zone: &str, rule: &str) -> [Weir; N] {
    let store = format!("redis: '{}', mode: {mode}", redis.url());
    let fleet = std::array::from_fn(|_| gateway(&store, zone, rule));
    for weir in &fleet {
        eventually("the fleet is seen", || {
            metric(weir, "weir_store_gateways{store=\"shared\"}") == N as u64
        });
    }
    fleet
}

/// What three gateways let pass while something happens to their Redis, against the bound.
fn holds(mode: &str, mut trouble: impl FnMut(&mut Redis)) {
    for (zone, rule) in [
        ("rate: 100r/s", "burst: 39, nodelay: true"),
        ("algorithm: token_bucket, rate: 100r/s", "burst: 40"),
        ("algorithm: gcra, rate: 100r/s", "burst: 39"),
    ] {
        let mut redis = Redis::start();
        let fleet: [Weir; 3] = fleet(&redis, mode, zone, rule);
        let begun = Instant::now();
        let until = begun + Duration::from_secs(4);
        let clients: Vec<_> = fleet
            .iter()
            .flat_map(|weir| [weir.address(), weir.address()])
            .map(|address| thread::spawn(move || hammer(address, until).0))
            .collect();
        while Instant::now() < until {
            trouble(&mut redis);
        }
        let passed: u64 = clients
            .into_iter()
            .map(|one| one.join().expect("it heard no other status"))
            .sum();
        let credit = if mode == "leased" { 3 } else { 0 };
        // Of a clock that is cut to milliseconds the first and the last may be begun ones.
        let limit = RATE * (millis_since(begun) + 2) / 1_000 + BURST + 1 + credit;
        assert!(
            passed <= limit + BURST,
            "{mode}, {zone}: {passed} where {limit} may and a burst of {BURST} more"
        );
    }
}

/// Responses come now within the deadline and now after it.
fn slow(redis: &mut Redis) {
    redis.signal("STOP");
    thread::sleep(Duration::from_millis(9));
    redis.signal("CONT");
    thread::sleep(Duration::from_millis(6));
}

fn killed(redis: &mut Redis) {
    thread::sleep(Duration::from_millis(600));
    redis.kill();
    thread::sleep(Duration::from_millis(400));
    redis.restart();
}

fn emptied(redis: &mut Redis) {
    thread::sleep(Duration::from_millis(700));
    redis.cli(&["FLUSHALL"]);
}

fn full(redis: &mut Redis) {
    thread::sleep(Duration::from_millis(500));
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    thread::sleep(Duration::from_millis(500));
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
}

#[test]
fn a_slow_store_never_charges_a_request_twice() {
    holds("exact", slow);
    holds("leased", slow);
}

#[test]
fn a_store_that_dies_again_and_again_grants_no_burst_each_time() {
    holds("exact", killed);
    holds("leased", killed);
}

#[test]
fn a_store_that_is_emptied_again_and_again_grants_no_burst_each_time() {
    holds("exact", emptied);
    holds("leased", emptied);
}

#[test]
fn a_store_that_is_full_again_and_again_grants_no_burst_each_time() {
    holds("exact", full);
    holds("leased", full);
}

/// What passed while the store was away is charged to it when it is back.
#[test]
fn requests_that_pass_during_an_outage_are_charged_afterwards() {
    let redis = Redis::start();
    let store = format!("redis: '{}', timeout: 1s", redis.url());
    let start = || gateway(&store, "rate: 1r/m", "burst: 19, nodelay: true");
    let fleet = [start(), start()];
    for weir in &fleet {
        eventually("the fleet is seen", || {
            metric(weir, "weir_store_gateways{store=\"shared\"}") == 2
        });
    }
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    for weir in &fleet {
        eventually("the outage is noticed", || {
            let other = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", fastrand::u64(..));
            let mut client = Client::connect(weir.address());
            client.send(other);
            client.response();
            degraded(weir)
        });
    }
    assert_eq!(passed(&[&fleet[0]], 30), 10, "its part of twenty");
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    for weir in &fleet {
        eventually("the store is back", || !degraded(weir));
    }
    eventually("what passed is charged", || {
        redis.cli(&["KEYS", "weir:{one:localhost}"]).contains("one")
    });
    // A loop that is not connected yet counts alone, too.
    eventually("all loops ask again", || asks(&fleet[1]));
    let rest = passed(&[&fleet[1]], 30);
    assert!((9..=10).contains(&rest), "{rest} of the other ten");
}

/// The store says no, and says it too late: what passed by then takes all that is left.
#[test]
fn requests_that_a_late_refusal_did_not_stop_are_charged() {
    let redis = Redis::start();
    let start = || {
        Weir::start(&format!(
            "admin: {{ listen: ADMIN }}
log: {{ access: off }}
stores: {{ shared: {{ redis: '{}', timeout: 100ms }} }}
limit_req_zones: {{ one: {{ key: $host, size: 1m, store: shared, rate: 1r/m }} }}
servers:
- listen: LISTEN
  limit_req: {{ zone: one, burst: 8, nodelay: true }}
  return: {{ status: 200 }}
  locations: [ {{ path: /five, limit_req: {{ zone: one, burst: 8, nodelay: true, cost: 5 }}, return: {{ status: 200 }} }} ]
",
            redis.url()
        ))
    };
    let (other, weir) = (start(), start());
    let gateways = || metric(&weir, "weir_store_gateways{store=\"shared\"}");
    eventually("the fleet is seen", || gateways() == 2);
    assert_eq!(get(other.address(), "/five").status, 200);
    other.signal("TERM");
    eventually("one is gone", || gateways() == 1);
    redis.cli(&["CLIENT", "PAUSE", "20000", "WRITE"]);
    assert_eq!(get(weir.address(), "/five").status, 200, "it cannot know");
    redis.cli(&["CLIENT", "UNPAUSE"]);
    eventually("five and the four that were left are charged", || {
        let left = redis.cli(&["PTTL", "weir:{one:localhost}"]);
        left.trim().parse::<i64>().unwrap() > 480_000
    });
    assert_eq!(passed(&[&start()], 4), 0);
}

/// A gateway that keeps those out who go over.
fn punishing(redis: &Redis, mode: &str) -> Weir {
    Weir::start(&format!(
        "workers: 1
admin: {{ listen: ADMIN, token: {TOKEN} }}
log: {{ access: off }}
stores: {{ shared: {{ redis: '{}', timeout: 1s, mode: {mode} }} }}
limit_req_zones: {{ one: {{ key: $host, size: 1m, store: shared, rate: 600r/m }} }}
servers:
- listen: LISTEN
  limit_req: {{ zone: one, burst: 30, nodelay: true, penalty: 10m }}
  return: {{ status: 200 }}
",
        redis.url()
    ))
}

#[test]
fn a_penalty_reaches_the_other_gateways_and_so_does_its_end() {
    for mode in ["exact", "leased"] {
        let redis = Redis::start();
        let (one, two) = (punishing(&redis, mode), punishing(&redis, mode));
        assert_eq!(passed(&[&two], 1), 1);
        eventually("it is punished", || passed(&[&one], 60) == 0);
        eventually("the other has heard of it", || passed(&[&two], 1) == 0);
        // A bucket would have drained within seconds: what keeps it out is the penalty.
        let after = get(two.address(), "/");
        let retry: u64 = after.get("retry-after").unwrap().parse().unwrap();
        assert!(retry > 500, "{mode}: {retry}");
        let api = Api(two.admin_address());
        assert_eq!(
            api.delete("/api/zones/one/keys/localhost")["forgotten"],
            true
        );
        eventually("it is let in again everywhere", || {
            passed(&[&one], 1) == 1 && passed(&[&two], 1) == 1
        });
    }
}

#[test]
fn two_products_share_a_server_by_their_prefixes() {
    let redis = Redis::start();
    let start = |prefix: &str| {
        let store = format!("redis: '{}', timeout: 1s{prefix}", redis.url());
        gateway(&store, "rate: 1r/m", "burst: 8, nodelay: true")
    };
    let (one, two, same) = (start(""), start(", prefix: shop"), start(", prefix: shop"));
    assert_eq!(passed(&[&one], 20), 9);
    assert_eq!(passed(&[&two, &same], 20), 9);
    let keys = redis.cli(&["KEYS", "*"]);
    let foreign = |key: &&str| !key.starts_with("weir:") && !key.starts_with("shop:");
    assert_eq!(keys.split_whitespace().find(foreign), None, "{keys}");
    assert!(keys.contains("shop:{one:localhost}"), "{keys}");
    eventually("each knows its own fleet", || {
        let gateways = |weir| metric(weir, "weir_store_gateways{store=\"shared\"}");
        gateways(&one) == 1 && gateways(&two) == 2
    });
}
