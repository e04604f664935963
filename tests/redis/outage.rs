//! A store that is away, slow, full, read-only or not a Redis at all: nobody notices but the operator.

use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::{degraded, gateway, hammer, metric, passed};
use crate::support::redis::Redis;
use crate::support::{Origin, Weir, eventually, get};

/// A gateway with a deadline that a busy machine keeps, and an outage does not.
fn patient(redis: &Redis, more: &str) -> Weir {
    let store = format!("redis: '{}', timeout: 100ms{more}", redis.url());
    gateway(&store, "rate: 1r/m", "burst: 8, nodelay: true")
}

fn count(text: &str, what: &str) -> usize {
    text.lines().filter(|line| line.contains(what)).count()
}

/// Waits until a gateway says that its store is back.
fn returns(weir: &Weir) {
    eventually("the store is back", || !degraded(weir));
    weir.error_line("store \"shared\" is back after");
}

/// What both gateways let pass before is known to both.
#[test]
fn nobody_gets_a_fresh_burst_when_redis_dies() {
    let mut redis = Redis::start();
    let (one, two) = (patient(&redis, ""), patient(&redis, ""));
    assert_eq!(passed(&[&one, &two], 20), 9);
    redis.kill();
    assert_eq!(passed(&[&one, &two], 20), 0);
    for weir in [&one, &two] {
        weir.error_line("is away");
        assert!(degraded(weir));
        assert_eq!(count(&weir.stderr(), "is away"), 1, "{}", weir.stderr());
    }
    // Back, and with nothing in it: all have their burst again, together.
    redis.restart();
    returns(&one);
    returns(&two);
    eventually("all threads are connected again", || {
        one.stderr().len() + two.stderr().len() > 0 && redis.info("connected_clients") >= 6
    });
    assert_eq!(passed(&[&one, &two], 20), 9);
    assert_eq!(count(&one.stderr(), "is back"), 1, "{}", one.stderr());
}

/// What a key has left, each gateway lets pass its part of.
#[test]
fn all_gateways_together_let_pass_what_was_left() {
    let mut redis = Redis::start();
    let store = format!("redis: '{}', timeout: 1s", redis.url());
    for (zone, rule) in [
        ("rate: 1r/m", "burst: 59, nodelay: true"),
        ("algorithm: token_bucket, rate: 1r/m", "burst: 60"),
        ("algorithm: gcra, rate: 1r/m", "burst: 59"),
    ] {
        redis.cli(&["FLUSHALL"]);
        let fleet = [(); 3].map(|()| gateway(&store, zone, rule));
        for weir in &fleet {
            eventually("the fleet is seen", || {
                metric(weir, "weir_store_gateways{store=\"shared\"}") == 3
            });
        }
        let all = fleet.each_ref();
        assert_eq!(passed(&all, 6), 6);
        redis.kill();
        for weir in &fleet {
            eventually("the outage is seen", || degraded(weir));
        }
        for weir in &fleet {
            assert_eq!(passed(&[weir], 30), 18, "{zone}");
        }
        redis.restart();
    }
}

#[test]
fn a_frozen_redis_delays_nobody_for_long() {
    let redis = Redis::start();
    let weir = patient(&redis, "");
    assert_eq!(passed(&[&weir], 4), 4);
    redis.signal("STOP");
    let started = Instant::now();
    // Five misses of 100ms each, and from then on none waits.
    assert_eq!(passed(&[&weir], 100), 5);
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    assert!(degraded(&weir));
    weir.error_line("store \"shared\" is away, no answer within 100ms");
    redis.signal("CONT");
    returns(&weir);
    assert_eq!(passed(&[&weir], 10), 0);
}

#[test]
fn under_load_a_killed_redis_is_neither_an_error_nor_a_wait() {
    let mut redis = Redis::start();
    let store = format!("redis: '{}', timeout: 50ms", redis.url());
    let weir = gateway(&store, "rate: 100r/s", "burst: 20, nodelay: true");
    let until = Instant::now() + Duration::from_secs(2);
    let threads: Vec<_> = (0..3)
        .map(|_| weir.address())
        .map(|address| thread::spawn(move || hammer(address, until)))
        .collect();
    thread::sleep(Duration::from_millis(700));
    redis.kill();
    // Other statuses than 200 and 429 end a thread.
    let heard: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    let passed: u64 = heard.iter().map(|(passed, _)| passed).sum();
    let slowest = heard.iter().map(|(_, slowest)| *slowest).max();
    assert!((150..=230).contains(&passed), "{passed}");
    assert!(slowest < Some(1_000), "{slowest:?}");
    assert!(degraded(&weir));
}

#[test]
fn what_is_done_without_a_store_can_be_chosen() {
    let mut redis = Redis::start();
    let allows = patient(&redis, ", on_outage: allow");
    let refuses = patient(&redis, ", on_outage: refuse");
    assert_eq!(passed(&[&allows, &refuses], 4), 4);
    redis.kill();
    assert_eq!(passed(&[&allows], 30), 30);
    assert_eq!(passed(&[&refuses], 30), 0);
    assert_eq!(get(refuses.address(), "/").get("retry-after"), Some("1"));
}

/// Starts where Redis is not what it should be, and says what it found.
fn starts_without(url: &str, why: &str) {
    let store = format!("redis: '{url}', timeout: 100ms");
    let weir = gateway(&store, "rate: 1r/m", "burst: 8, nodelay: true");
    assert_eq!(passed(&[&weir], 20), 9);
    assert!(degraded(&weir));
    let line = weir.error_line("store \"shared\" is away");
    assert!(line.contains(why), "{line}");
    assert!(!weir.stderr().contains("secret"), "{}", weir.stderr());
}

#[test]
fn a_wrong_password_is_said_and_not_shown() {
    let redis = Redis::with(&["--requirepass", "right"]);
    starts_without(
        &format!("redis://:secret@{}", redis.address()),
        "uthenticat",
    );
    starts_without(&redis.url(), "uthenticat");
}

#[test]
fn a_server_that_is_no_redis_is_not_believed() {
    let origin = Origin::start();
    starts_without(&format!("redis://{}", origin.address()), "");
}

#[test]
fn nothing_there_is_no_reason_not_to_start() {
    let mut redis = Redis::start();
    let url = redis.url();
    redis.kill();
    starts_without(&url, "refused");
}

#[test]
fn a_full_redis_is_an_outage_until_there_is_room() {
    let redis = Redis::with(&["--maxmemory-policy", "noeviction"]);
    let weir = patient(&redis, "");
    assert_eq!(passed(&[&weir], 4), 4);
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(passed(&[&weir], 20), 5);
    eventually("the outage is noticed", || degraded(&weir));
    assert!(
        weir.error_line("is away").contains("OOM"),
        "{}",
        weir.stderr()
    );
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    returns(&weir);
}

#[test]
fn a_master_that_became_a_replica_is_an_outage_until_it_is_one_again() {
    let (redis, other) = (Redis::start(), Redis::start());
    let weir = patient(&redis, "");
    assert_eq!(passed(&[&weir], 4), 4);
    redis.cli(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    passed(&[&weir], 20);
    eventually("the outage is noticed", || degraded(&weir));
    redis.cli(&["REPLICAOF", "NO", "ONE"]);
    returns(&weir);
    assert!(passed(&[&weir], 20) <= 9);
}
