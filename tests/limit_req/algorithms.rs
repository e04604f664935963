//! Each algorithm as clients see it: how many requests pass, and what refusals say.
//!
//! Rates are so slow that no answer depends on how fast the machine is.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::time::Instant;

use super::limited;
use crate::support::client::Response;
use crate::support::{Client, Origin, Weir, get, get_from};

/// Sends requests until one is refused; returns how many passed, and the refusal.
fn passed(weir: &Weir) -> (usize, Response) {
    for passed in 0..50 {
        let answer = get(weir.address(), "/ok");
        if answer.status != 200 {
            assert_eq!(answer.status, 429, "{answer:?}");
            return (passed, answer);
        }
    }
    panic!("no request is refused");
}

fn seconds(answer: &Response) -> u64 {
    answer
        .get("retry-after")
        .expect("it says when")
        .parse()
        .expect("a number")
}

/// Zone, rule, how many pass, the policy that is told, and within which seconds the next one would pass. Of the two
/// counters, a fifth of the next window has to pass until five count for four; a cold key costs up to three times as much.
const CASES: &str = "\
leaky_bucket, rate: 1r/h | burst: 4, nodelay: true | 5 | q=5;w=18000 | 3500 3600
token_bucket, rate: 1r/h | burst: 5 | 5 | q=5;w=18000 | 3500 3600
token_bucket, rate: 1r/h | | 1 | q=1;w=3600 | 3500 3600
gcra, rate: 1r/h | burst: 4 | 5 | q=5;w=18000 | 3500 3600
fixed_window, limit: 5, window: 1h | | 5 | q=5;w=3600 | 3500 3600
sliding_window, limit: 5, window: 1h | | 5 | q=5;w=3600 | 4200 4320
sliding_window, limit: 5, window: 1h, precision: 1m | | 5 | q=5;w=3600 | 3580 3660
sliding_log, limit: 5, window: 1h | | 5 | q=5;w=3600 | 3500 3600
paced, rate: 1r/h, max_wait: 0s | | 1 | q=1;w=3600 | 3500 3600
warm_up, rate: 1r/h, warm_up: 1d, max_wait: 0s | | 1 | q=1;w=3600 | 10000 10800
bursty, rate: 1r/h, max_wait: 0s | burst: 3 | 1 | q=4;w=14400 | 3500 3600
";

#[test]
fn each_algorithm_passes_its_quota_and_sets_retry_after() {
    let origin = Origin::start();
    for case in CASES.lines() {
        let columns: Vec<_> = case.split('|').map(str::trim).collect();
        let [zone, rule, expected, policy, retry] = columns[..] else {
            panic!("{case}");
        };
        let weir = limited(&origin, &format!("algorithm: {zone}"), rule);
        let (passed, refusal) = passed(&weir);
        assert_eq!(passed.to_string(), expected, "{case}");
        let policy = format!("\"one\";{policy}");
        assert_eq!(refusal.get("ratelimit-policy"), Some(&*policy), "{case}");
        let told = seconds(&refusal);
        let bounds: Vec<u64> = retry.split(' ').map(|text| text.parse().unwrap()).collect();
        assert!((bounds[0]..=bounds[1]).contains(&told), "{case}: {told}");
        let state = format!("\"one\";r=0;t={told}");
        assert_eq!(refusal.get("ratelimit"), Some(&*state), "{case}");
    }
}

#[test]
fn a_paced_zone_lets_requests_out_one_by_one() {
    let origin = Origin::start();
    let weir = limited(&origin, "algorithm: paced, rate: 4r/s, max_wait: 60s", "");
    let start = Instant::now();
    let asking: Vec<_> = (0..5)
        .map(|_| {
            let address = weir.address();
            std::thread::spawn(move || get(address, "/ok").status)
        })
        .collect();
    for one in asking {
        assert_eq!(one.join().expect("it was answered"), 200);
    }
    // Whichever came first, the last one left a second after it.
    assert!(start.elapsed() >= Duration::from_millis(990));
}

#[test]
fn a_cold_zone_warms_up() {
    let origin = Origin::start();
    let zone = "algorithm: warm_up, rate: 2r/s, warm_up: 4s, max_wait: 60s";
    let weir = limited(&origin, zone, "");
    let mut client = Client::connect(weir.address());
    let start = Instant::now();
    for _ in 0..3 {
        client.get("/ok");
        assert_eq!(client.response().status, 200);
    }
    // As in Guava's own test: 0, 1.375 and 1.125 seconds.
    assert!(start.elapsed() >= Duration::from_millis(2_490));
}

#[test]
fn in_a_bursty_zone_the_next_one_pays() {
    let origin = Origin::start();
    let weir = limited(
        &origin,
        "algorithm: bursty, rate: 1r/s, max_wait: 10s",
        "cost: 3600",
    );
    let (passed, refusal) = passed(&weir);
    assert_eq!(passed, 1, "however much it asks for");
    assert!((3_500..=3_590).contains(&seconds(&refusal)));
}

#[test]
fn a_rule_sets_the_cost_of_a_request() {
    let origin = Origin::start();
    for (rule, expected) in [("cost: 5", 4), ("cost: 2.5", 8), ("cost: 20", 1)] {
        let weir = limited(
            &origin,
            "algorithm: token_bucket, rate: 1r/h",
            &format!("burst: 20, {rule}"),
        );
        assert_eq!(passed(&weir).0, expected, "{rule}");
    }
}

#[test]
fn a_request_header_sets_the_cost() {
    let origin = Origin::start();
    let weir = limited(
        &origin,
        "algorithm: sliding_window, limit: 20, window: 1h",
        "cost: $http_x_cost",
    );
    let ask = |cost: &str| {
        let mut client = Client::connect(weir.address());
        client.send(format!(
            "GET /ok HTTP/1.1\r\nHost: a\r\nX-Cost: {cost}\r\n\r\n"
        ));
        client.response()
    };
    assert_eq!(ask("12").status, 200);
    assert_eq!(ask("9").status, 429);
    assert_eq!(ask("7").status, 200);
    assert_eq!(ask("nonsense").status, 200, "as much as any request");
    assert!(ask("1").has("retry-after"));
    let beyond = ask("20.001");
    assert_eq!(beyond.status, 429);
    assert!(!beyond.has("retry-after"), "no waiting helps");
}

#[test]
fn some_addresses_have_a_limit_of_their_own() {
    let origin = Origin::start();
    let weir = limited(
        &origin,
        "algorithm: sliding_log, limit: 2, window: 1h, overrides: {
          127.0.0.3: { limit: 4 }, 127.0.0.4: { limit: unlimited } }",
        "",
    );
    let passed = |last| {
        let address = Ipv4Addr::new(127, 0, 0, last);
        (0..9)
            .filter(|_| get_from(address, weir.address(), "/ok").status == 200)
            .count()
    };
    assert_eq!((passed(2), passed(3), passed(4)), (2, 4, 9));
}

#[test]
fn zones_of_different_kinds_charge_all_or_none() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "admin: { listen: ADMIN }
limit_req_zones:
  a: { key: $host, algorithm: sliding_log, limit: 9, window: 1h }
  b: { key: $host, algorithm: gcra, rate: 1r/h }
  c: { key: $host, algorithm: bursty, rate: 1r/h }
  d: { key: $host, algorithm: fixed_window, limit: 2, window: 30m }
servers:
- listen: LISTEN
  locations:
  - { path: /all, limit_req: [{ zone: a }, { zone: c, burst: 2 }, { zone: d }, { zone: b, burst: 1 }], proxy_pass: 'http://ORIGIN' }
  - { path: /a, limit_req: { zone: a }, proxy_pass: 'http://ORIGIN' }
",
    );
    // Nothing is saved in c: the second has to wait for longer than it may, and costs a, b and d nothing.
    let statuses: Vec<_> = (0..4).map(|_| get(weir.address(), "/all").status).collect();
    assert_eq!(statuses, [200, 429, 429, 429]);
    let passed = (0..20).filter(|_| get(weir.address(), "/a").status == 200);
    assert_eq!(passed.count(), 8);
    let zones = get(weir.admin_address(), "/api/zones").text();
    let zones: serde_json::Value = serde_json::from_str(&zones).expect("JSON");
    let told: Vec<_> = zones
        .as_array()
        .expect("a list")
        .iter()
        .map(|zone| format!("{} {} {}", zone["algorithm"], zone["rate"], zone["pass"]))
        .collect();
    assert_eq!(
        told,
        [
            "\"sliding_log\" \"9r/1h\" 9",
            "\"gcra\" \"1r/h\" 1",
            "\"bursty\" \"1r/h\" 1",
            "\"fixed_window\" \"2r/30m\" 1",
        ]
    );
}
