//! Local decisions: leases and remembered refusals.

use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::deployments::{cluster, urls};
use super::{degraded, gateway, hammer_at, metric, missed, passed};
use crate::support::redis::Redis;
use crate::support::{PATIENCE, Weir, eventually, get, millis_since};

pub(super) fn leased(redis: &Redis) -> String {
    format!("redis: '{}', timeout: 1s, mode: leased", redis.url())
}

/// So many gateways that know of each other.
fn fleet<const N: usize>(start: impl Fn() -> Weir) -> [Weir; N] {
    let fleet = std::array::from_fn(|_| start());
    for weir in &fleet {
        eventually("the fleet is seen", || {
            metric(weir, "weir_store_gateways{store=\"shared\"}") == N as u64
        });
    }
    fleet
}

pub(super) fn store(weir: &Weir) -> serde_json::Value {
    let response = get(weir.admin_address(), "/api/store");
    let all: serde_json::Value = serde_json::from_slice(&response.body).expect("it is JSON");
    all[0].clone()
}

/// What all gateways have in hand of the zone `one`, as it was seen.
fn in_hand(seen: &serde_json::Value) -> f64 {
    let gateways = seen["gateways"].as_array().expect("a list").iter();
    let leases = gateways.flat_map(|gateway| gateway["leases"].as_array().expect("a list").clone());
    leases.filter_map(|lease| lease["requests"].as_f64()).sum()
}

/// How often a script was run on a server, but for the reports of gateways: each of them writes to one sorted set, and no other
/// script of a `limit_req` does.
fn questions(redis: &Redis) -> u64 {
    let stats = redis.cli(&["INFO", "commandstats"]);
    let calls = |command: &str| -> u64 {
        let name = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&name));
        let calls = line.and_then(|line| line.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number"))
    };
    calls("evalsha").saturating_sub(calls("zadd"))
}

/// How often that was, when nothing was asked for so long and all that was has been heard.
fn questions_at_rest(redis: &Redis, weir: &Weir, quiet: Duration) -> u64 {
    let count = || {
        let leased = metric(weir, "weir_store_leased_requests_total{store=\"shared\"}");
        (leased, questions(redis))
    };
    let mut before = count();
    eventually("the store gets no requests", || {
        thread::sleep(quiet);
        std::mem::replace(&mut before, count()) == before
    });
    before.1
}

/// A way of counting with a limit of 200 a second and 40 at once, or 60 in 300 milliseconds.
struct Way {
    name: &'static str,
    zone: &'static str,
    rule: &'static str,
    /// What passes in so many milliseconds, at most.
    most: fn(u64) -> u64,
}

const WAYS: [Way; 7] = [
    Way {
        name: "leaky",
        zone: "rate: 200r/s",
        rule: ", burst: 39, nodelay: true",
        most: |ms| ms / 5 + 41,
    },
    Way {
        name: "token",
        zone: "algorithm: token_bucket, rate: 200r/s",
        rule: ", burst: 40",
        most: |ms| ms / 5 + 41,
    },
    Way {
        name: "gcra",
        zone: "algorithm: gcra, rate: 200r/s",
        rule: ", burst: 39",
        most: |ms| ms / 5 + 41,
    },
    Way {
        name: "paced",
        zone: "algorithm: paced, rate: 200r/s, max_wait: 200ms",
        rule: "",
        most: |ms| ms / 5 + 42,
    },
    Way {
        name: "fixed",
        zone: "algorithm: fixed_window, limit: 60, window: 300ms",
        rule: "",
        most: |ms| (ms / 300 + 2) * 60,
    },
    Way {
        name: "sliding",
        zone: "algorithm: sliding_window, limit: 60, window: 300ms",
        rule: "",
        most: |ms| (ms / 300 + 2) * 60,
    },
    Way {
        name: "log",
        zone: "algorithm: sliding_log, limit: 60, window: 300ms",
        rule: "",
        most: |ms| (ms / 300 + 1) * 60,
    },
];

fn every_way(store: &str) -> String {
    let zones: String = WAYS
        .iter()
        .map(|Way { name, zone, .. }| {
            format!("  {name}: {{ key: $host, size: 1m, store: shared, {zone} }}\n")
        })
        .collect();
    let locations: String = WAYS
        .iter()
        .map(|Way { name, rule, .. }| {
            format!("  - {{ path: /{name}, limit_req: {{ zone: {name}{rule} }}, return: {{ status: 200 }} }}\n")
        })
        .collect();
    format!(
        "workers: 2\nadmin: {{ listen: ADMIN }}\nlog: {{ access: off }}\nstores: {{ shared: {{ {store} }} }}\n\
         limit_req_zones:\n{zones}servers:\n- listen: LISTEN\n  locations:\n{locations}"
    )
}

/// What three gateways let pass of each way of counting is within `more` of its limit.
fn hold_together(store: &str, more: u64) {
    let fleet: [Weir; 3] = fleet(|| Weir::start(&every_way(store)));
    for Way { name, most, .. } in WAYS {
        let started = Instant::now();
        let until = started + Duration::from_millis(1_500);
        let threads: Vec<_> = fleet
            .iter()
            .map(|weir| weir.address())
            .map(|address| {
                thread::spawn(move || {
                    hammer_at(address, &format!("/{name}"), |_| Instant::now() < until).0
                })
            })
            .collect();
        let passed: u64 = threads
            .into_iter()
            .map(|thread| thread.join().expect("it ends well"))
            .sum();
        let most = most(millis_since(started)) + more + missed(&fleet);
        // A busy machine asks for less than there is.
        assert!((41..=most).contains(&passed), "{name}: {passed} of {most}");
    }
    for weir in &fleet {
        assert!(!degraded(weir), "{}", weir.stderr());
    }
}

/// The bound that `docs/redis.md` states: one request on credit for each gateway, and nothing else from a key's first
/// request on.
#[test]
fn three_gateways_with_leases_keep_within_their_bound() {
    let redis = Redis::start();
    hold_together(&leased(&redis), 3);
}

#[test]
fn leases_from_the_nodes_of_a_cluster_keep_within_it_too() {
    let nodes = cluster();
    let store = format!("redis: {}, timeout: 1s, mode: leased", urls(&nodes));
    hold_together(&store, 3);
}

#[test]
fn three_gateways_keep_to_the_limit_exactly_also_when_they_decide_themselves() {
    let redis = Redis::start();
    hold_together(&format!("redis: '{}', timeout: 1s", redis.url()), 0);
    hold_together(
        &format!("redis: '{}/1', timeout: 1s, local_above: 1", redis.url()),
        0,
    );
}

#[test]
fn a_key_that_is_refused_costs_nothing_until_it_may_come_back() {
    let redis = Redis::start();
    for mode in ["exact", "leased"] {
        redis.cli(&["FLUSHALL"]);
        let store = format!("redis: '{}', timeout: 1s, mode: {mode}", redis.url());
        let weir = gateway(&store, "rate: 1r/m", "burst: 8, nodelay: true");
        let all = passed(&[&weir], 20);
        assert!((9..=10).contains(&all), "{all}");
        let before = questions_at_rest(&redis, &weir, Duration::from_millis(300));
        let refused = get(weir.address(), "/");
        let retry: u64 = refused.get("retry-after").unwrap().parse().unwrap();
        assert!((50..=120).contains(&retry), "{retry}");
        assert_eq!(passed(&[&weir], 200), 0);
        assert_eq!(questions(&redis), before, "{mode}");
        let refusals = "weir_limit_verdicts_total{zone=\"one\",verdict=\"refuse\"}";
        assert_eq!(metric(&weir, refusals), 221 - all as u64);
    }
}

#[test]
fn leases_that_one_gateway_does_not_use_go_to_another() {
    let redis = Redis::start();
    let start = || gateway(&leased(&redis), "rate: 1r/m", "burst: 199, nodelay: true");
    let [one, two]: [Weir; 2] = fleet(start);
    assert_eq!(passed(&[&one], 60), 60);
    let leased = "weir_store_leased_requests_total{store=\"shared\"}";
    assert!(metric(&one, leased) > 0);
    eventually("it has given back what it did not use", || {
        let returned = metric(&one, "weir_store_returned_requests_total{store=\"shared\"}");
        returned > 0 && in_hand(&store(&one)) == 0.0
    });
    let rest = passed(&[&two], 200);
    assert!((140..=142).contains(&rest), "{rest}");
}

#[test]
fn a_gateway_that_stops_returns_its_leases() {
    let redis = Redis::start();
    // Enough for one every tenth of a second until it is seen.
    let start = || gateway(&leased(&redis), "rate: 1r/h", "burst: 999, nodelay: true");
    let [mut one, two]: [Weir; 2] = fleet(start);
    let until = Instant::now() + PATIENCE;
    let seen = loop {
        let seen = store(&two);
        if in_hand(&seen) > 0.0 {
            break seen;
        }
        assert!(Instant::now() < until, "{seen}");
        assert_eq!(passed(&[&one], 1), 1);
        thread::sleep(Duration::from_millis(100));
    };
    let own = seen["gateway"].as_str().unwrap();
    let other = seen["gateways"].as_array().unwrap().iter();
    let other = other
        .clone()
        .find(|gateway| gateway["name"] != own)
        .unwrap();
    assert_eq!(other["leases"][0]["zone"], "one");
    assert_eq!(other["leases"][0]["keys"], 1);
    assert_eq!(passed(&[&one], 4), 4);
    let spent = metric(
        &one,
        "weir_limit_verdicts_total{zone=\"one\",verdict=\"pass\"}",
    );
    // What is on its way to it when it stops would be lost.
    questions_at_rest(&redis, &one, Duration::from_millis(100));
    one.signal("TERM");
    one.wait();
    let rest = passed(&[&two], 1_050) as u64;
    let all = spent + rest;
    assert!((1_000..=1_002).contains(&all), "{spent} and {rest}");
}

#[test]
fn no_client_gets_a_fresh_burst_when_redis_dies_with_leases_out() {
    let mut redis = Redis::start();
    let start = || gateway(&leased(&redis), "rate: 1r/m", "burst: 8, nodelay: true");
    let [one, two]: [Weir; 2] = fleet(start);
    let all = passed(&[&one, &two], 30);
    assert!((9..=11).contains(&all), "{all}");
    redis.kill();
    eventually("the outage is noticed", || degraded(&one) && degraded(&two));
    assert_eq!(passed(&[&one, &two], 20), 0);
}

#[test]
fn a_lease_that_was_forgotten_how_to_give_is_taught_again() {
    let redis = Redis::start();
    let weir = gateway(&leased(&redis), "rate: 1r/m", "burst: 99, nodelay: true");
    assert_eq!(passed(&[&weir], 20), 20);
    redis.cli(&["SCRIPT", "FLUSH"]);
    let rest = passed(&[&weir], 100);
    assert!((80..=81).contains(&rest), "{rest}");
    assert!(!degraded(&weir));
}
