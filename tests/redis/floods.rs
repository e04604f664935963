//! Leases and hot keys under as much load as possible.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::leases::{leased, store};
use super::outage::killed_under_load;
use super::{at_100_a_second, degraded, gateway, hammer, hammer_at, metric, missed, passed};
use crate::support::redis::Redis;
use crate::support::{Weir, eventually, millis_since, pipelined};

/// A pause of one of those who take part costs some questions; not one round in which most are asked about.
#[test]
fn leases_ask_less_and_wait_for_nothing() {
    let redis = Redis::start();
    let weir = gateway(
        &leased(&redis),
        "rate: 1000r/s",
        "burst: 1000, nodelay: true",
    );
    let all = || metric(&weir, "weir_store_round_trips_total{store=\"shared\"}");
    let waited = || metric(&weir, "weir_store_asked_total{store=\"shared\"}");
    let mut passed = 0;
    eventually("few questions, and fewer that are waited for", || {
        let before = (all(), waited());
        let now = hammer_at(weir.address(), "/", |passed| passed < 2_000).0;
        passed += now;
        (all() - before.0) * 5 < now && (waited() - before.1) * 20 < now
    });
    let here = metric(&weir, "weir_store_local_decisions_total{store=\"shared\"}");
    assert!(here + waited() >= passed);
}

#[test]
fn under_load_a_killed_redis_is_neither_an_error_nor_a_wait_with_leases() {
    let (mut redis, weir) = killed_under_load("leased", 1);
    redis.restart();
    eventually("it is back", || !degraded(&weir));
    eventually("leases are taken again", || {
        hammer(weir.address(), Instant::now() + Duration::from_millis(50));
        redis.cli(&["KEYS", "weir:{one*"]).contains("weir:{one")
    });
}

/// Sends requests until it is stopped, many in each write; returns how many passed.
fn flood(address: SocketAddr, wanted: &Weak<()>) -> u64 {
    let mut passed = 0;
    while wanted.strong_count() > 0 {
        for response in pipelined(address, ["/"; 50]) {
            match response.status {
                200 => passed += 1,
                429 => {}
                other => panic!("{other}"),
            }
        }
    }
    passed
}

#[test]
fn a_key_beyond_local_above_is_not_asked_about_until_less_is_wanted() {
    let redis = Redis::start();
    let store = format!("redis: '{}', timeout: 1s, local_above: 2", redis.url());
    let weir = gateway(&store, "rate: 100r/s", "burst: 20, nodelay: true");
    let local = || metric(&weir, "weir_store_local_keys{store=\"shared\"}");
    let asked = || metric(&weir, "weir_store_asked_total{store=\"shared\"}");
    let start = Instant::now();
    assert_eq!(passed(&[&weir], 20), 20);
    assert_eq!((local(), asked()), (0, 20));
    let (address, wanted) = (weir.address(), Arc::new(()));
    let threads = [(); 3].map(|()| {
        let wanted = Arc::downgrade(&wanted);
        thread::spawn(move || flood(address, &wanted))
    });
    eventually("it is seen", || local() == 1);
    eventually("and told", || {
        store_gateway(&weir)["leases"][0]["local_keys"] == 1
    });
    // Until it is seen to be a flood there is a question for each that passes, and again after a pause in it.
    eventually("it is not asked about", || {
        let before = asked();
        fifty_pass(&weir);
        local() == 1 && asked() - before < 10
    });
    drop(wanted);
    let flooded: u64 = threads
        .map(|thread| thread.join().expect("all were answered"))
        .iter()
        .sum();
    let most = 21 + at_100_a_second(millis_since(start)) + missed([&weir]);
    assert!(20 + flooded <= most, "20 and {flooded} of {most}");
    // Less is wanted: two of them are enough to notice.
    eventually("it is asked again", || {
        thread::sleep(Duration::from_millis(200));
        let before = asked();
        passed(&[&weir], 1);
        asked() == before + 1
    });
    eventually("and that is seen", || local() == 0);
}

/// Waits until fifty more have passed.
fn fifty_pass(weir: &Weir) {
    let passed = || {
        metric(
            weir,
            "weir_limit_verdicts_total{zone=\"one\",verdict=\"pass\"}",
        )
    };
    let before = passed();
    eventually("some pass", || passed() >= before + 50);
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
