//! The connection for leases, and how many keys have one.

use super::leases::leased;
use super::{degraded, gateway, metric, passed};
use crate::support::redis::Redis;
use crate::support::{Client, Weir, eventually};

/// The numbers of the connections that a server has, but for the one that asks.
fn connections(redis: &Redis) -> Vec<String> {
    let list = redis.cli(&["CLIENT", "LIST"]);
    let others = list
        .lines()
        .filter(|line| !line.contains("cmd=client|list"));
    let number = |line: &str| {
        line.strip_prefix("id=")?
            .split(' ')
            .next()
            .map(str::to_owned)
    };
    others.filter_map(number).collect()
}

/// Waits for a connection that was not there before.
fn one_more(redis: &Redis, before: &[String]) -> String {
    let mut found = None;
    eventually("there is one more connection", || {
        found = connections(redis)
            .into_iter()
            .find(|one| !before.contains(one));
        found.is_some()
    });
    found.expect("it is there")
}

#[test]
fn a_connection_for_leases_that_breaks_is_made_again_and_is_no_outage() {
    let redis = Redis::start();
    let weir = gateway(&leased(&redis), "rate: 1r/m", "burst: 199, nodelay: true");
    // One of each event loop and that of the heartbeat; a later one is the connection for leases.
    eventually("everything else is connected", || {
        connections(&redis).len() == 3
    });
    let before = connections(&redis);
    assert_eq!(passed(&[&weir], 1), 1);
    let broken = one_more(&redis, &before);
    eventually("the first request was charged", || {
        redis.cli(&["EXISTS", "weir:{one:localhost}"]).trim() == "1"
    });
    redis.cli(&["CLIENT", "KILL", "ID", &broken]);
    let before = connections(&redis);
    let mut all = 1;
    let total = || metric(&weir, "weir_store_leased_requests_total{store=\"shared\"}");
    eventually("there are leases again", || {
        all += passed(&[&weir], 1);
        total() > 0
    });
    one_more(&redis, &before);
    assert!(all <= 200, "{all}");
    assert!(!degraded(&weir));
    assert!(!weir.stderr().contains("is away"), "{}", weir.stderr());
}

/// A zone of a megabyte has room for the leases of more than a thousand keys, and none of them has to be asked about at first.
#[test]
fn a_thousand_keys_pass_without_a_question() {
    let redis = Redis::start();
    let weir = Weir::start(&format!(
        "admin: {{ listen: ADMIN }}
log: {{ access: off }}
stores: {{ shared: {{ {} }} }}
limit_req_zones: {{ one: {{ key: $arg_key, size: 1m, store: shared, rate: 1r/m }} }}
servers: [ {{ listen: LISTEN, limit_req: {{ zone: one, burst: 9, nodelay: true }}, return: 204 }} ]
",
        leased(&redis)
    ));
    let mut client = Client::connect(weir.address());
    for key in 0..1_000 {
        client.send(format!("GET /?key={key} HTTP/1.1\r\nHost: a.test\r\n\r\n").as_bytes());
        assert_eq!(client.response().status, 204);
    }
    let count = |name: &str| metric(&weir, &format!("{name}{{store=\"shared\"}}"));
    assert_eq!(count("weir_store_asked_total"), 0);
    assert_eq!(count("weir_store_local_decisions_total"), 1_000);
}
