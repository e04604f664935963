//! A store that is away, slow, full, read-only or not a Redis at all: operators notice, and clients do not.

use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::{at_100_a_second, degraded, gateway, hammer, metric, missed, passed};
use crate::support::redis::Redis;
use crate::support::{Client, Origin, Weir, eventually, get, millis_since};

/// A gateway with a deadline that a busy machine keeps: a server that is gone says so at once.
fn patient(redis: &Redis, more: &str) -> Weir {
    let store = format!("redis: '{}', timeout: 1s{more}", redis.url());
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

/// Whether all loops of a gateway use their store. A connection goes to a random loop; of twenty connections all loops have
/// some, and each is about a new key.
pub(super) fn asks(weir: &Weir) -> bool {
    let asked = || metric(weir, "weir_store_asked_total{store=\"shared\"}");
    let before = asked();
    for _ in 0..20 {
        let mut client = Client::connect(weir.address());
        let host = fastrand::u64(..);
        client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(client.response().status, 200);
    }
    asked() == before + 20
}

/// What both gateways let pass before is known to both.
#[test]
fn no_client_gets_a_fresh_burst_when_redis_dies() {
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
    // Back, and with nothing in it: the gateways remember what the key has had.
    redis.restart();
    returns(&one);
    returns(&two);
    eventually("all loops are connected again", || asks(&one) && asks(&two));
    assert_eq!(passed(&[&one, &two], 20), 0);
    assert_eq!(count(&one.stderr(), "is back"), 1, "{}", one.stderr());
}

/// What a key has left, each gateway lets pass its part of.
#[test]
fn all_gateways_together_pass_the_requests_that_were_left() {
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
fn a_frozen_redis_delays_requests_by_its_timeout_at_most() {
    let redis = Redis::start();
    let store = format!("redis: '{}', timeout: 100ms", redis.url());
    let weir = gateway(&store, "rate: 1r/m", "burst: 8, nodelay: true");
    assert_eq!(passed(&[&weir], 4), 4);
    let before = missed([&weir]);
    redis.signal("STOP");
    let started = Instant::now();
    // Five misses of 100ms each, and from then on none waits; all of them would be ten seconds.
    assert_eq!(passed(&[&weir], 100), 5);
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
    assert!(degraded(&weir));
    // Or a probe has found out before them; the others have then not been asked about.
    weir.error_line("store \"shared\" is away, no answer within 1");
    let heard = missed([&weir]) - before;
    redis.signal("CONT");
    returns(&weir);
    assert!(passed(&[&weir], 10) as u64 <= 5 - heard, "{heard}");
}

#[test]
fn under_load_a_killed_redis_is_neither_an_error_nor_a_wait() {
    killed_under_load("exact", 0);
}

/// Kills a Redis while three ask as fast as they can, of which so many may pass on credit.
pub(super) fn killed_under_load(mode: &str, credit: u64) -> (Redis, Weir) {
    let mut redis = Redis::start();
    let store = format!("redis: '{}', timeout: 1s, mode: {mode}", redis.url());
    let weir = gateway(&store, "rate: 100r/s", "burst: 20, nodelay: true");
    let begun = Instant::now();
    let until = begun + Duration::from_secs(2);
    let threads: Vec<_> = (0..3)
        .map(|_| weir.address())
        .map(|address| thread::spawn(move || hammer(address, until)))
        .collect();
    thread::sleep(Duration::from_millis(700));
    redis.kill();
    let heard: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().expect("it heard no other status"))
        .collect();
    let passed: u64 = heard.iter().map(|(passed, _)| passed).sum();
    let slowest = heard.iter().map(|(_, slowest)| *slowest).max();
    // What one finds that is told of the end may lack what the two others were let in with just before.
    let most = 21 + at_100_a_second(millis_since(begun)) + missed([&weir]) + credit + 2;
    // A store that is too slow for a second counts as away, too, and has not counted the requests that passed meanwhile.
    let most = most + 21 * count(&weir.stderr(), "is back") as u64;
    assert!((22..=most).contains(&passed), "{passed} of {most}");
    assert!(slowest < Some(10_000), "{slowest:?}");
    eventually("the outage is noticed", || degraded(&weir));
    let begun = Instant::now();
    super::passed(&[&weir], 20);
    let lasted = begun.elapsed();
    assert!(
        lasted < Duration::from_secs(20),
        "a second each: {lasted:?}"
    );
    (redis, weir)
}

#[test]
fn the_outage_policy_of_a_store_is_a_setting() {
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
    let store = format!("redis: '{url}', timeout: 1s");
    let weir = gateway(&store, "rate: 1r/m", "burst: 8, nodelay: true");
    assert_eq!(passed(&[&weir], 20), 9);
    assert!(degraded(&weir));
    let line = weir.error_line("store \"shared\" is away");
    assert!(line.contains(why), "{line}");
    assert!(!weir.stderr().contains("secret"), "{}", weir.stderr());
}

#[test]
fn a_wrong_password_is_logged_without_the_password() {
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
