//! All algorithms and all options of a rule in a shared zone.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::{hammer_at, missed};
use crate::support::redis::Redis;
use crate::support::{Client, Origin, Weir, eventually, get, millis_since};

/// A way to count: its zone, its rule, and how many may pass in so many milliseconds whatever happens.
struct Way {
    name: &'static str,
    zone: &'static str,
    rule: &'static str,
    most: fn(u64) -> u64,
}

const WAYS: [Way; 13] = [
    Way {
        name: "leaky",
        zone: "rate: 40r/s",
        rule: "burst: 10, nodelay: true",
        most: |millis| at_rate(millis) + 11,
    },
    Way {
        name: "delaying",
        zone: "rate: 40r/s",
        rule: "burst: 4",
        most: |millis| at_rate(millis) + 5,
    },
    Way {
        name: "waiting",
        zone: "rate: 40r/s",
        rule: "burst: 4, nodelay: true, on_excess: delay, max_wait: 100ms",
        most: |millis| at_rate(millis + 100) + 5,
    },
    Way {
        name: "tokens",
        zone: "algorithm: token_bucket, rate: 40r/s",
        rule: "burst: 10",
        most: |millis| at_rate(millis) + 10,
    },
    Way {
        name: "gcra",
        zone: "algorithm: gcra, rate: 40r/s",
        rule: "burst: 10",
        most: |millis| at_rate(millis) + 11,
    },
    Way {
        name: "paced",
        zone: "algorithm: paced, rate: 40r/s, max_wait: 100ms",
        rule: "",
        most: |millis| at_rate(millis + 100) + 1,
    },
    Way {
        name: "bursty",
        zone: "algorithm: bursty, rate: 40r/s, max_wait: 100ms",
        rule: "burst: 10",
        most: |millis| at_rate(millis + 100) + 11,
    },
    Way {
        name: "warm",
        zone: "algorithm: warm_up, rate: 40r/s, warm_up: 1s, max_wait: 100ms",
        rule: "",
        most: |millis| at_rate(millis + 100) + 1,
    },
    Way {
        name: "fixed",
        zone: "algorithm: fixed_window, limit: 10, window: 250ms",
        rule: "",
        most: in_windows,
    },
    Way {
        name: "sliding",
        zone: "algorithm: sliding_window, limit: 10, window: 250ms",
        rule: "",
        most: in_windows,
    },
    Way {
        name: "blocks",
        zone: "algorithm: sliding_window, limit: 10, window: 250ms, precision: 50ms",
        rule: "",
        most: in_windows,
    },
    Way {
        name: "log",
        zone: "algorithm: sliding_log, limit: 10, window: 250ms",
        rule: "",
        most: in_windows,
    },
    Way {
        name: "heavy",
        zone: "rate: 40r/s",
        rule: "burst: 10, nodelay: true, cost: 2",
        most: |millis| at_rate(millis) / 2 + 6,
    },
];

/// At 40r/s, begun milliseconds for whole ones.
fn at_rate(millis: u64) -> u64 {
    (40 * (millis + 1)).div_ceil(1000)
}

/// Ten in each of the windows that so many milliseconds can touch.
fn in_windows(millis: u64) -> u64 {
    (millis.div_ceil(250) + 1) * 10
}

fn gateway(redis: &Redis, backend: SocketAddr) -> Weir {
    let zone = |way: &Way| {
        let Way { name, zone, .. } = way;
        format!("  {name}: {{ key: $host, size: 1m, store: shared, {zone} }}\n")
    };
    let location = |way: &Way| {
        let Way { name, rule, .. } = way;
        format!("  - {{ path: /{name}, limit_req: {{ zone: {name}, {rule} }} }}\n")
    };
    Weir::start(&format!(
        "workers: 2
admin: {{ listen: ADMIN }}
log: {{ access: off }}
stores: {{ shared: {{ redis: '{}', timeout: 1s }} }}
limit_req_zones:
{}servers:
- listen: LISTEN
  proxy_pass: 'http://{backend}/ok'
  limit_req_log_level: info
  locations:
{}",
        redis.url(),
        WAYS.iter().map(zone).collect::<String>(),
        WAYS.iter().map(location).collect::<String>(),
    ))
}

/// Three gateways before one backend, as fast as they can.
#[test]
fn fleets_with_and_without_leases_pass_what_the_limit_allows() {
    let (redis, origin) = (Redis::start(), Origin::start());
    let fleet = [(); 3].map(|()| gateway(&redis, origin.address()));
    let mut before = 0;
    for way in &WAYS {
        let started = Instant::now();
        let until = started + Duration::from_millis(700);
        let threads: Vec<_> = (0..6)
            .map(|number| fleet[number % 3].address())
            .map(|address| {
                thread::spawn(move || {
                    hammer_at(address, &format!("/{}", way.name), |_| {
                        Instant::now() < until
                    })
                    .0
                })
            })
            .collect();
        let passed: u64 = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum();
        let most = (way.most)(millis_since(started)) + missed(&fleet);
        assert!(
            (1..=most).contains(&passed),
            "{}: {passed} of {most}",
            way.name
        );
        let seen = origin.count() as u64;
        assert_eq!(seen - before, passed, "{}", way.name);
        before = seen;
    }
}

/// Those over the burst stand in one line, wherever they came in.
#[test]
fn delayed_requests_wait_behind_those_of_other_gateways() {
    let redis = Redis::start();
    let start = || {
        Weir::start(&format!(
            "log: {{ access: off }}
stores: {{ shared: {{ redis: '{}', timeout: 1s }} }}
limit_req_zones:
  line: {{ key: $host, rate: 10r/s, store: shared }}
  stuck: {{ key: $host, rate: 1r/m, store: shared }}
servers:
- listen: LISTEN
  return: {{ status: 200 }}
  locations:
  - {{ path: /line, limit_req: {{ zone: line, on_excess: delay, max_wait: 20s }} }}
  - {{ path: /stuck, limit_req: {{ zone: stuck, on_excess: delay, max_wait: 2s }} }}
",
            redis.url()
        ))
    };
    let fleet = [start(), start()];
    let begun = Instant::now();
    let mut clients: Vec<_> = (0..8)
        .map(|number| Client::connect(fleet[number % 2].address()))
        .collect();
    clients.iter().for_each(|client| client.get("/line"));
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
    }
    // The first goes at once, the eighth after seven tenths of a second; the store's clock and ours are cut to milliseconds.
    assert!(begun.elapsed() >= Duration::from_millis(690));
    assert_eq!(get(fleet[0].address(), "/stuck").status, 200);
    let refused = get(fleet[1].address(), "/stuck");
    assert_eq!(refused.status, 429);
    let after: u64 = refused.get("retry-after").unwrap().parse().unwrap();
    assert!(after <= 58, "{after}: it may wait for the last two");
}

#[test]
fn the_cost_of_a_response_is_charged_at_all_gateways() {
    let (redis, origin) = (Redis::start(), Origin::start());
    let start = || {
        Weir::before(
            &origin,
            &format!(
                "log: {{ access: off }}
stores: {{ shared: {{ redis: '{}', timeout: 1s }} }}
limit_req_zones: {{ slow: {{ key: $host, rate: 1r/m, store: shared }} }}
servers:
- listen: LISTEN
  proxy_pass: http://ORIGIN
  limit_req: {{ zone: slow, burst: 9, nodelay: true, cost: $upstream_http_x_cost }}
",
                redis.url()
            ),
        )
    };
    let (one, two) = (start(), start());
    assert_eq!(get(one.address(), "/bytes?n=3&field=X-Cost:70").status, 200);
    eventually("it is charged", || {
        get(two.address(), "/bytes?n=1&field=X-Cost:0").status == 429
    });
    let refused = get(two.address(), "/ok");
    // Sixty over the ten it may have: an hour.
    let wait: u64 = refused.get("retry-after").unwrap().parse().unwrap();
    assert!((3_500..=3_600).contains(&wait), "{wait}");
}
