//! Limits smaller than the fleet: while their store is away, each gateway still passes some requests, and keys that were
//! used up stay used up.

use super::{degraded, metric};
use crate::support::redis::Redis;
use crate::support::{Client, Origin, Weir, eventually};

/// Zones by the name of their location, each with room for two at once, and what a rule of theirs needs.
const ZONES: [(&str, &str, &str); 8] = [
    ("leaky", "rate: 2r/h", ", burst: 1, nodelay: true"),
    ("token", "algorithm: token_bucket, rate: 2r/h", ", burst: 2"),
    ("gcra", "algorithm: gcra, rate: 2r/h", ", burst: 1"),
    ("fixed", "algorithm: fixed_window, limit: 2, window: 1d", ""),
    (
        "sliding",
        "algorithm: sliding_window, limit: 2, window: 1d",
        "",
    ),
    ("log", "algorithm: sliding_log, limit: 2, window: 1d", ""),
    ("slowest", "rate: 1r/d", ", burst: 1, nodelay: true"),
    ("cheap", "algorithm: token_bucket, rate: 1r/d", ", burst: 2"),
];

fn gateway(redis: &Redis, origin: &Origin, mode: &str) -> Weir {
    let zones: String = ZONES
        .iter()
        .map(|(name, zone, _)| {
            format!("  {name}: {{ key: $arg_key, size: 1m, store: shared, {zone} }}\n")
        })
        .collect();
    let locations: String = ZONES
        .iter()
        .map(|(name, _, rule)| {
            format!("  - {{ path: /{name}, limit_req: {{ zone: {name}{rule} }}, return: {{ status: 200 }} }}\n")
        })
        .collect();
    Weir::before(
        origin,
        &format!(
            "admin: {{ listen: ADMIN }}
stores: {{ shared: {{ redis: '{}', timeout: 1s, mode: {mode} }} }}
limit_req_zones:
{zones}limit_conn_zones: {{ places: {{ key: $host, size: 1m, store: shared }} }}
servers:
- listen: LISTEN
  locations:
{locations}  - {{ path: /, limit_conn: {{ zone: places, limit: 2 }}, proxy_pass: 'http://ORIGIN' }}
",
            redis.url()
        ),
    )
}

/// Three gateways that know each other.
fn fleet(redis: &Redis, origin: &Origin, mode: &str) -> [Weir; 3] {
    let fleet = [(); 3].map(|()| gateway(redis, origin, mode));
    for weir in &fleet {
        eventually("all are seen", || {
            metric(weir, "weir_store_gateways{store=\"shared\"}") == 3
        });
    }
    fleet
}

fn passes(client: &mut Client, zone: &str, key: &str) -> bool {
    client.get(&format!("/{zone}?key={key}"));
    match client.response().status {
        200 => true,
        429 => false,
        other => panic!("{other}"),
    }
}

#[test]
fn an_outage_leaves_every_gateway_something_of_a_limit_of_two() {
    let (mut redis, origin) = (Redis::start(), Origin::start());
    let fleet = fleet(&redis, &origin, "exact");
    let mut clients = fleet.each_ref().map(|weir| Client::connect(weir.address()));
    for (zone, ..) in ZONES {
        // A key that all have seen at its limit, and one that has one request left.
        for client in &mut clients {
            passes(client, zone, "spent");
        }
        assert!(passes(&mut clients[0], zone, "half"), "{zone}");
    }
    redis.kill();
    eventually("the outage is noticed", || fleet.iter().all(degraded));
    for (zone, ..) in ZONES {
        let mut passed = |key: &str| {
            let passed = |client: &mut Client| (0..5).filter(|_| passes(client, zone, key)).count();
            clients.each_mut().map(passed)
        };
        assert_eq!(passed("fresh"), [1; 3], "{zone}");
        // Who has seen one pass knows that one is left; the others have not heard of the key.
        let half = passed("half");
        assert!(half.iter().all(|passed| *passed <= 1), "{half:?} {zone}");
        assert_eq!(half[1..], [1; 2], "{zone}");
        let spent = passed("spent");
        assert_eq!(spent[2], 0, "{zone}: it was told that nothing is left");
    }
}

#[test]
fn an_outage_leaves_every_gateway_one_of_two_places() {
    let (mut redis, origin) = (Redis::start(), Origin::start());
    let fleet = fleet(&redis, &origin, "exact");
    redis.kill();
    eventually("the outage is noticed", || fleet.iter().all(degraded));
    let mut held: Vec<_> = fleet
        .iter()
        .map(|weir| super::slots::hold(weir, &origin, "g"))
        .collect();
    for weir in &fleet {
        assert_eq!(crate::support::get(weir.address(), "/no").status, 503);
    }
    origin.gates().open("g");
    for client in &mut held {
        assert_eq!(client.response().status, 200);
    }
}

/// What cannot be divided is asked for, and all gateways together let two pass, no more and no less.
#[test]
fn a_limit_of_two_is_shared_by_three_gateways() {
    let (redis, origin) = (Redis::start(), Origin::start());
    for mode in ["exact", "leased"] {
        redis.cli(&["FLUSHALL"]);
        let fleet = fleet(&redis, &origin, mode);
        let mut clients = fleet.each_ref().map(|weir| Client::connect(weir.address()));
        for (zone, ..) in ZONES {
            let mut passed = 0;
            for _ in 0..4 {
                for client in &mut clients {
                    passed += usize::from(passes(client, zone, mode));
                }
            }
            assert_eq!(passed, 2, "{zone} {mode}");
        }
    }
}
