//! Decisions without a question: leases, refusals that are remembered, and keys of which too much is wanted.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::shapes::{cluster, urls};
use super::{degraded, gateway, hammer, metric, passed};
use crate::support::redis::Redis;
use crate::support::{Client, Weir, eventually, get, millis_since};

fn leased(redis: &Redis) -> String {
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

fn store(weir: &Weir) -> serde_json::Value {
    let response = get(weir.admin_address(), "/api/store");
    let all: serde_json::Value = serde_json::from_slice(&response.body).expect("it is JSON");
    all[0].clone()
}

/// What all gateways have in hand of the zone `one`, as one of them sees it.
fn in_hand(weir: &Weir) -> f64 {
    let seen = store(weir);
    let gateways = seen["gateways"].as_array().expect("a list").iter();
    let leases = gateways.flat_map(|gateway| gateway["leases"].as_array().expect("a list").clone());
    leases.filter_map(|lease| lease["requests"].as_f64()).sum()
}

/// How often a script was run on a server, but for those who only say that they are there.
fn questions(redis: &Redis) -> u64 {
    let stats = redis.cli(&["INFO", "commandstats"]);
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    let calls = line.and_then(|line| line.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// Asks for one path as fast as it can; how many passed.
fn press(address: SocketAddr, path: &str, until: Instant) -> u64 {
    let mut client = Client::connect(address);
    let mut passed = 0;
    while Instant::now() < until {
        client.get(path);
        let response = client.response();
        match response.status {
            200 => passed += 1,
            429 => {}
            other => panic!("{other}"),
        }
        if response.get("connection") == Some("close") {
            client = Client::connect(address);
        }
    }
    passed
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
            .map(|address| thread::spawn(move || press(address, &format!("/{name}"), until)))
            .collect();
        let passed: u64 = threads
            .into_iter()
            .map(|thread| thread.join().expect("it ends well"))
            .sum();
        let most = most(millis_since(started)) + more;
        // A busy machine asks for less than there is.
        assert!((60..=most).contains(&passed), "{name}: {passed} of {most}");
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
        let before = questions(&redis);
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
fn what_one_gateway_does_not_use_another_gets() {
    let redis = Redis::start();
    let start = || gateway(&leased(&redis), "rate: 1r/m", "burst: 199, nodelay: true");
    let [one, two]: [Weir; 2] = fleet(start);
    assert_eq!(passed(&[&one], 60), 60);
    let leased = "weir_store_leased_requests_total{store=\"shared\"}";
    assert!(metric(&one, leased) > 0);
    eventually("it has given back what it did not use", || {
        let returned = metric(&one, "weir_store_returned_requests_total{store=\"shared\"}");
        returned > 0 && in_hand(&one) == 0.0
    });
    let rest = passed(&[&two], 200);
    assert!((140..=142).contains(&rest), "{rest}");
}

#[test]
fn who_stops_gives_back_and_everybody_sees_who_has_what() {
    let redis = Redis::start();
    let start = || gateway(&leased(&redis), "rate: 1r/m", "burst: 199, nodelay: true");
    let [mut one, two]: [Weir; 2] = fleet(start);
    let until = Instant::now() + Duration::from_secs(5);
    while in_hand(&two) == 0.0 {
        assert!(Instant::now() < until, "{}", store(&two));
        assert_eq!(passed(&[&one], 2), 2);
        thread::sleep(Duration::from_millis(50));
    }
    let seen = store(&two);
    let own = seen["gateway"].as_str().unwrap();
    let other = seen["gateways"].as_array().unwrap().iter();
    let other = other
        .clone()
        .find(|gateway| gateway["name"] != own)
        .unwrap();
    assert_eq!(other["leases"][0]["zone"], "one");
    assert_eq!(other["leases"][0]["keys"], 1);
    let spent = passed(&[&one], 4) as u64
        + metric(
            &one,
            "weir_limit_verdicts_total{zone=\"one\",verdict=\"pass\"}",
        )
        - 4;
    one.signal("TERM");
    one.wait();
    let rest = passed(&[&two], 250) as u64;
    assert!((200..=202).contains(&(spent + rest)), "{spent} and {rest}");
}

#[test]
fn leases_ask_less_and_wait_for_nothing() {
    let redis = Redis::start();
    let weir = gateway(
        &leased(&redis),
        "rate: 1000r/s",
        "burst: 1000, nodelay: true",
    );
    let until = Instant::now() + Duration::from_secs(1);
    let passed = press(weir.address(), "/", until);
    let asked = metric(&weir, "weir_store_round_trips_total{store=\"shared\"}");
    let waited = metric(&weir, "weir_store_asked_total{store=\"shared\"}");
    assert!(
        asked * 5 < passed,
        "{asked} questions for {passed} requests"
    );
    assert!(waited * 20 < passed, "{waited} of {passed} waited");
    let here = metric(&weir, "weir_store_local_decisions_total{store=\"shared\"}");
    assert!(here + waited >= passed);
}

#[test]
fn under_load_a_killed_redis_is_neither_an_error_nor_a_wait_with_leases() {
    let mut redis = Redis::start();
    let store = format!("redis: '{}', timeout: 50ms, mode: leased", redis.url());
    let weir = gateway(&store, "rate: 100r/s", "burst: 20, nodelay: true");
    let until = Instant::now() + Duration::from_secs(2);
    let threads: Vec<_> = (0..3)
        .map(|_| weir.address())
        .map(|address| thread::spawn(move || hammer(address, until)))
        .collect();
    thread::sleep(Duration::from_millis(700));
    redis.kill();
    let heard: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    let passed: u64 = heard.iter().map(|(passed, _)| passed).sum();
    let slowest = heard.iter().map(|(_, slowest)| *slowest).max();
    // What was in hand when it died is passed on top.
    assert!((150..=250).contains(&passed), "{passed}");
    assert!(slowest < Some(1_000), "{slowest:?}");
    eventually("the outage is noticed", || degraded(&weir));
    redis.restart();
    eventually("it is back", || !degraded(&weir));
    eventually("leases are taken again", || {
        press(
            weir.address(),
            "/",
            Instant::now() + Duration::from_millis(50),
        );
        redis.cli(&["KEYS", "weir:{one*"]).contains("weir:{one")
    });
}

#[test]
fn nobody_gets_a_fresh_burst_when_redis_dies_with_leases_out() {
    let mut redis = Redis::start();
    let store = format!("redis: '{}', timeout: 100ms, mode: leased", redis.url());
    let start = || gateway(&store, "rate: 1r/m", "burst: 8, nodelay: true");
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

#[test]
fn a_key_beyond_local_above_is_not_asked_about_until_less_is_wanted() {
    let redis = Redis::start();
    let store = format!("redis: '{}', timeout: 1s, local_above: 2", redis.url());
    let weir = gateway(&store, "rate: 100r/s", "burst: 20, nodelay: true");
    let local = || metric(&weir, "weir_store_local_keys{store=\"shared\"}");
    let asked = || metric(&weir, "weir_store_asked_total{store=\"shared\"}");
    assert_eq!(passed(&[&weir], 20), 20);
    assert_eq!((local(), asked()), (0, 20));
    let (address, start) = (weir.address(), Instant::now());
    let flood = thread::spawn(move || press(address, "/", start + Duration::from_secs(2)));
    eventually("it is seen", || local() == 1);
    eventually("and told", || {
        store_gateway(&weir)["leases"][0]["local_keys"] == 1
    });
    let passed_local = flood.join().expect("all were answered");
    let most = millis_since(start) / 10 + 22;
    assert!((80..=most).contains(&passed_local), "{passed_local}");
    // Until it is seen to be a flood there is a question for each that passes.
    let questions = asked() - 20;
    assert!(questions < passed_local / 2, "{questions} questions");
    // Less is wanted: two of them are enough to notice.
    eventually("it is asked again", || {
        thread::sleep(Duration::from_millis(200));
        let before = asked();
        passed(&[&weir], 1);
        asked() == before + 1
    });
    eventually("and that is seen", || local() == 0);
}

fn store_gateway(weir: &Weir) -> serde_json::Value {
    let mut gateway = serde_json::Value::Null;
    eventually("it has told the others", || {
        gateway = store(weir)["gateways"][0].clone();
        gateway["leases"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    });
    gateway
}
