//! Limits that several gateways share, in a real Redis.
//!
//! Where the deadline of a decision is not what is tested it is a second: a busy machine is no outage.

mod algorithms;
mod deployments;
mod failover;
mod faulty_store;
mod floods;
mod lease_connection;
mod leases;
mod limit_headers;
mod outage;
mod partition;
mod pass_bound;
mod resharding;
mod slots;
mod slots_outage;
mod small_limits;

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use crate::support::redis::Redis;
use crate::support::{Client, Weir, eventually, get, metric, millis_since};

/// A gateway that shares the zone `one` and answers everything itself.
fn gateway(store: &str, zone: &str, rule: &str) -> Weir {
    Weir::start(&format!(
        "workers: 2
admin: {{ listen: ADMIN }}
log: {{ access: off }}
stores: {{ shared: {{ {store} }} }}
limit_req_zones: {{ one: {{ key: $host, size: 1m, store: shared, {zone} }} }}
servers:
- listen: LISTEN
  locations:
  - {{ path: /, limit_req: {{ zone: one, {rule} }}, return: {{ status: 200, body: ok }} }}
"
    ))
}

/// The usual one: 1r/m and a burst of eight.
fn usual(redis: &Redis) -> Weir {
    let store = format!("redis: '{}', timeout: 1s", redis.url());
    gateway(&store, "rate: 1r/m", "burst: 8, nodelay: true")
}

/// How many of so many requests pass, spread over the gateways.
fn passed(gateways: &[&Weir], requests: usize) -> usize {
    let addresses = gateways.iter().map(|weir| weir.address()).cycle();
    addresses
        .take(requests)
        .filter(|address| match get(*address, "/").status {
            200 => true,
            429 => false,
            other => panic!("{other}"),
        })
        .count()
}

fn degraded(weir: &Weir) -> bool {
    metric(weir, "weir_store_degraded{store=\"shared\"}") == 1
}

/// Decisions that no answer came for in time. Each may have let one pass that the others do not know of.
fn missed<'w>(gateways: impl IntoIterator<Item = &'w Weir>) -> u64 {
    let missed = |weir| metric(weir, "weir_store_missed_total{store=\"shared\"}");
    gateways.into_iter().map(missed).sum()
}

#[test]
fn gateways_count_together() {
    let redis = Redis::start();
    let (one, two, three) = (usual(&redis), usual(&redis), usual(&redis));
    assert_eq!(passed(&[&one, &two, &three], 30), 9);
    let asked = |weir| metric(weir, "weir_store_asked_total{store=\"shared\"}");
    assert_eq!(
        asked(&one) + asked(&two) + asked(&three),
        12,
        "one question for each that passes, and for the first at each gateway that does not"
    );
    let refused = |weir| {
        metric(
            weir,
            "weir_limit_verdicts_total{zone=\"one\",verdict=\"refuse\"}",
        )
    };
    assert_eq!(refused(&one) + refused(&two) + refused(&three), 21);
}

#[test]
fn gateways_count_together_whichever_way_they_count() {
    let redis = Redis::start();
    for (zone, rule, most) in [
        ("algorithm: token_bucket, rate: 1r/m", ", burst: 5", 5),
        ("algorithm: gcra, rate: 1r/m", ", burst: 5", 6),
        ("algorithm: fixed_window, limit: 7, window: 1d", "", 7),
        ("algorithm: sliding_window, limit: 8, window: 1d", "", 8),
        ("algorithm: sliding_log, limit: 4, window: 1d", "", 4),
    ] {
        redis.cli(&["FLUSHALL"]);
        let start = || {
            Weir::start(&format!(
                "log: {{ access: off }}
stores: {{ shared: {{ redis: '{}', timeout: 1s }} }}
limit_req_zones: {{ one: {{ key: $host, store: shared, {zone} }} }}
servers: [{{ listen: LISTEN, limit_req: {{ zone: one{rule} }}, return: {{ status: 200 }} }}]",
                redis.url()
            ))
        };
        let (one, two) = (start(), start());
        assert_eq!(passed(&[&one, &two], 20), most, "{zone}");
        assert!(
            redis.cli(&["KEYS", "*"]).contains("weir:{one:localhost}"),
            "{zone}"
        );
    }
}

#[test]
fn a_key_can_be_found_and_goes_when_it_has_drained() {
    let redis = Redis::start();
    let weir = usual(&redis);
    assert_eq!(passed(&[&weir], 2), 2);
    assert_eq!(
        redis.cli(&["KEYS", "weir:{one*"]).trim(),
        "weir:{one:localhost}"
    );
    let left: i64 = redis
        .cli(&["PTTL", "weir:{one:localhost}"])
        .trim()
        .parse()
        .unwrap();
    assert!((60_000..=120_001).contains(&left), "{left}");
}

#[test]
fn a_script_that_was_forgotten_is_taught_again() {
    let redis = Redis::start();
    let weir = usual(&redis);
    assert_eq!(passed(&[&weir], 2), 2);
    redis.cli(&["SCRIPT", "FLUSH"]);
    assert_eq!(passed(&[&weir], 10), 7);
    assert!(!degraded(&weir));
    assert_eq!(missed([&weir]), 0);
}

/// Who is refused by one rule has not spent the others' burst, wherever they count.
#[test]
fn shared_and_local_zones_are_charged_together_or_not_at_all() {
    let redis = Redis::start();
    let yaml = format!(
        "stores: {{ shared: {{ redis: '{}', timeout: 1s }} }}
limit_req_zones:
  here: {{ key: $server_port, rate: 1r/m }}
  there: {{ key: $server_port, rate: 1r/m, store: shared }}
  too: {{ key: $server_port, rate: 1r/m, store: shared }}
servers:
- listen: LISTEN
  locations:
  - path: /all
    limit_req:
    - {{ zone: here, burst: 9, nodelay: true }}
    - {{ zone: there, burst: 5, nodelay: true }}
    - {{ zone: too, burst: 9, nodelay: true }}
    return: {{ status: 200 }}
  - {{ path: /here, limit_req: {{ zone: here, burst: 9, nodelay: true }}, return: {{ status: 200 }} }}
  - {{ path: /too, limit_req: {{ zone: too, burst: 9, nodelay: true }}, return: {{ status: 200 }} }}
",
        redis.url()
    );
    let weir = Weir::start(&yaml);
    let passed = |path| {
        (0..20)
            .filter(|_| get(weir.address(), path).status == 200)
            .count()
    };
    assert_eq!(passed("/all"), 6);
    assert_eq!(passed("/here"), 4);
    assert_eq!(passed("/too"), 4);
}

#[test]
fn every_gateway_knows_the_fleet() {
    let redis = Redis::start();
    let (one, two) = (usual(&redis), usual(&redis));
    let fleet = |weir: &Weir| -> serde_json::Value {
        let response = get(weir.admin_address(), "/api/store");
        serde_json::from_slice(&response.body).unwrap()
    };
    for weir in [&one, &two] {
        eventually("both are seen", || {
            fleet(weir)[0]["gateways"]
                .as_array()
                .is_some_and(|all| all.len() == 2)
        });
        let seen = fleet(weir);
        assert_eq!(seen[0]["name"], "shared");
        assert_eq!(seen[0]["zones"][0], "one");
        assert_eq!(seen[0]["degraded"], false);
        let own = seen[0]["gateway"].as_str().unwrap();
        let all = seen[0]["gateways"].as_array().unwrap();
        assert!(all.iter().any(|gateway| gateway["name"] == own), "{seen}");
    }
    two.signal("TERM");
    eventually("one has left", || {
        metric(&one, "weir_store_gateways{store=\"shared\"}") == 1
    });
}

/// Asks one gateway as fast as it can; how many passed, and how long the slowest answer took.
fn hammer(address: SocketAddr, until: Instant) -> (u64, u64) {
    hammer_at(address, "/", |_| Instant::now() < until)
}

/// The same for another path, and for as long as something holds of how many have passed.
fn hammer_at(address: SocketAddr, path: &str, goes_on: impl Fn(u64) -> bool) -> (u64, u64) {
    let mut client = Client::connect(address);
    let (mut passed, mut slowest) = (0, 0);
    while goes_on(passed) {
        let asked = Instant::now();
        client.get(path);
        let response = client.response();
        slowest = slowest.max(millis_since(asked));
        match response.status {
            200 => passed += 1,
            429 => {}
            other => panic!("{other}"),
        }
        if response.get("connection") == Some("close") {
            client = Client::connect(address);
        }
    }
    (passed, slowest)
}

#[test]
fn three_gateways_under_load_pass_what_the_limit_allows() {
    let redis = Redis::start();
    let store = format!("redis: '{}', timeout: 1s", redis.url());
    let fleet: Vec<_> = (0..3)
        .map(|_| gateway(&store, "rate: 100r/s", "burst: 20, nodelay: true"))
        .collect();
    let started = Instant::now();
    let until = started + Duration::from_secs(2);
    let threads: Vec<_> = fleet
        .iter()
        .map(|weir| weir.address())
        .map(|address| thread::spawn(move || hammer(address, until).0))
        .collect();
    let passed: u64 = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .sum();
    let most = 21 + at_100_a_second(millis_since(started)) + missed(&fleet);
    assert!((22..=most).contains(&passed), "{passed} of {most}");
    assert!(fleet.iter().all(|weir| !degraded(weir)));
}

/// What a rate of 100r/s brings in so many milliseconds. Of a clock that is cut to milliseconds the first and the last
/// may be begun ones.
fn at_100_a_second(millis: u64) -> u64 {
    (millis + 2).div_ceil(10)
}
