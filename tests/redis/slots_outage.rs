//! Shared slots while their store is away, and in a cluster.

use super::deployments::{cluster, urls};
use super::slots::{SET, gateway, hold, taken};
use super::{degraded, metric};
use crate::support::redis::Redis;
use crate::support::{Origin, Weir, eventually, get};

fn patient(redis: &Redis, origin: &Origin, more: &str) -> Weir {
    let store = format!("redis: '{}', timeout: 1s{more}", redis.url());
    gateway(&store, origin.address(), "limit: 4")
}

/// Each gateway goes on with its part, those that were taken before among them; a store that comes back with nothing
/// in it hears of all.
#[test]
fn without_a_store_each_gateway_has_its_part_of_the_places() {
    let (mut redis, origin) = (Redis::start(), Origin::start());
    let (one, two) = (patient(&redis, &origin, ""), patient(&redis, &origin, ""));
    for weir in [&one, &two] {
        eventually("both are seen", || {
            metric(weir, "weir_store_gateways{store=\"shared\"}") == 2
        });
    }
    let mut held = vec![hold(&one, &origin, "g")];
    redis.kill();
    eventually("the outage is noticed", || degraded(&one) && degraded(&two));
    held.push(hold(&one, &origin, "g"));
    assert_eq!(get(one.address(), "/no").status, 503, "two of four");
    held.extend([hold(&two, &origin, "g"), hold(&two, &origin, "g")]);
    assert_eq!(get(two.address(), "/no").status, 503);
    redis.restart();
    eventually("the store is back", || !degraded(&one) && !degraded(&two));
    eventually("it knows of all", || taken(&redis) == 4);
    assert_eq!(get(one.address(), "/no").status, 503);
    origin.gates().open("g");
    for client in &mut held {
        assert_eq!(client.response().status, 200);
    }
    eventually("all are given back", || taken(&redis) == 0);
}

#[test]
fn the_outage_policy_of_shared_slots_is_a_setting() {
    let (mut redis, origin) = (Redis::start(), Origin::start());
    let allows = patient(&redis, &origin, ", on_outage: allow");
    let refuses = patient(&redis, &origin, ", on_outage: refuse");
    redis.kill();
    eventually("the outage is noticed", || {
        degraded(&allows) && degraded(&refuses)
    });
    let mut held: Vec<_> = (0..6).map(|_| hold(&allows, &origin, "g")).collect();
    assert_eq!(get(refuses.address(), "/no").status, 503);
    origin.gates().open("g");
    for client in &mut held {
        assert_eq!(client.response().status, 200);
    }
}

/// Slots released during an outage are free when they expire, or earlier.
#[test]
fn a_place_given_back_to_a_frozen_store_is_not_lost() {
    let (redis, origin) = (Redis::start(), Origin::start());
    let store = format!("redis: '{}', timeout: 100ms", redis.url());
    let weir = gateway(&store, origin.address(), "limit: 4");
    let mut held = hold(&weir, &origin, "g");
    eventually("it is told, also if late", || taken(&redis) == 1);
    redis.signal("STOP");
    origin.gates().open("g");
    assert_eq!(held.response().status, 200);
    for _ in 0..10 {
        assert_eq!(get(weir.address(), "/ok").status, 200);
    }
    eventually("the outage is noticed", || degraded(&weir));
    redis.signal("CONT");
    eventually("the store is back", || !degraded(&weir));
    eventually("nothing is left", || {
        redis.cli(&["EXISTS", SET]).trim() == "0"
    });
}

/// Sets of several zones lie on several nodes; who finds one of them full holds no place in the others.
#[test]
fn places_on_several_nodes_are_taken_together_or_not_at_all() {
    let nodes = cluster();
    let origin = Origin::start();
    let zones = ["a", "b", "c", "d"];
    let weir = Weir::before(
        &origin,
        &format!(
            "stores: {{ shared: {{ redis: {}, timeout: 1s }} }}
limit_conn_zones:
{}servers:
- listen: LISTEN
  locations:
  - path: /
    limit_conn: [{{ zone: a, limit: 9 }}, {{ zone: b, limit: 9 }}, {{ zone: c, limit: 1 }}, {{ zone: d, limit: 9 }}]
    proxy_pass: 'http://ORIGIN'
",
            urls(&nodes),
            zones.map(|zone| format!("  {zone}: {{ key: $host, store: shared }}\n")).concat(),
        ),
    );
    let taken = |zone: &str| {
        let set = format!("weir:{{{zone}:localhost}}:places");
        nodes[0].cli(&["-c", "ZCARD", &set]).trim().to_owned()
    };
    let mut held = hold(&weir, &origin, "g");
    for _ in 0..20 {
        assert_eq!(get(weir.address(), "/no").status, 503);
    }
    for zone in zones {
        eventually("one place is taken", || taken(zone) == "1");
    }
    origin.gates().open("g");
    assert_eq!(held.response().status, 200);
    for zone in zones {
        eventually("all are given back", || taken(zone) == "0");
    }
}
