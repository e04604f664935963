//! `limit_req` as clients and operators see it: how many requests pass, refusals, and logs.

mod algorithms;
mod bodies;
mod cost;
mod keys;
mod limit_headers;
mod memory;
mod overrides;
mod refusal;
mod sanctions;
mod shadow;
mod zone_features;

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::time::Instant;

use crate::support::client::Response;
use crate::support::{Client, Origin, Weir, eventually, get, get_from, millis_since};

/// A weir with one zone named `one`, one limited location `/`, and an access log that says what the limit said.
fn limited(origin: &Origin, zone: &str, rule: &str) -> Weir {
    Weir::before(
        origin,
        &format!(
            "log: {{ level: info, access: {{ path: '-', format: '$status $limit_req_status $request_time $request' }} }}
limit_req_zones: {{ one: {{ key: $binary_remote_addr, size: 1m, {zone} }} }}
servers:
- listen: LISTEN
  locations:
  - {{ path: /, limit_req: {{ zone: one, {rule} }}, proxy_pass: 'http://ORIGIN' }}
"
        ),
    )
}

fn retry_after(response: &Response) -> u64 {
    let seconds = response.get("retry-after").and_then(|it| it.parse().ok());
    seconds.expect("seconds")
}

/// What a client may be told to wait for, in seconds: all of these milliseconds, or what is left of them now.
fn seconds_left(milliseconds: u64, since: Instant) -> RangeInclusive<u64> {
    // Both clocks are cut to the millisecond.
    let gone = millis_since(since) + 2;
    milliseconds.saturating_sub(gone).div_ceil(1000)..=milliseconds.div_ceil(1000)
}

/// What one greedy client got: statuses, and the times that bound how long it was heard.
struct Heard {
    passed: u64,
    refused: u64,
    /// From the answer to the first that was refused to the sending of the last that was: at both times the burst was
    /// spent, however much of it a pause in between gave back.
    at_least: u64,
    /// From the first request to the last answer.
    at_most: u64,
}

/// Asks as fast as it can on two connections.
fn hammer(address: SocketAddr, source: Ipv4Addr, during: Duration) -> Heard {
    let started = Instant::now();
    let one = move || {
        let mut client = Client::connect_from(source, address);
        let (mut passed, mut refused, mut first_refused, mut last_refused) = (0, 0, u64::MAX, 0);
        while started.elapsed() < during {
            let asked = millis_since(started);
            client.get("/ok");
            let response = client.response();
            if response.get("connection") == Some("close") {
                // After `keepalive_requests`.
                client = Client::connect_from(source, address);
            }
            match response.status {
                200 => passed += 1,
                429 => {
                    assert!(response.has("retry-after"), "{response:?}");
                    refused += 1;
                    first_refused = first_refused.min(millis_since(started));
                    last_refused = asked;
                }
                other => panic!("{other}"),
            }
        }
        (passed, refused, first_refused, last_refused)
    };
    let threads = [std::thread::spawn(one), std::thread::spawn(one)];
    let heard = threads.map(|thread| thread.join().expect("it was heard"));
    let at_most = millis_since(started);
    let first_refused = heard.iter().map(|h| h.2).min().expect("there are two");
    let last_refused = heard.iter().map(|h| h.3).max().expect("there are two");
    Heard {
        passed: heard.iter().map(|h| h.0).sum(),
        refused: heard.iter().map(|h| h.1).sum(),
        at_least: last_refused.saturating_sub(first_refused),
        at_most,
    }
}

#[test]
fn a_hammering_client_gets_rate_times_seconds_plus_burst_plus_one() {
    const RATE: u64 = 50;
    // Not given back in the time of this test, whatever pause there is in it.
    const BURST: u64 = 100;
    let origin = Origin::start();
    let weir = limited(
        &origin,
        &format!("rate: {RATE}r/s"),
        &format!("burst: {BURST}, nodelay: true"),
    );
    let address = weir.address();
    let polite = std::thread::spawn(move || {
        for _ in 0..20 {
            let status = get_from(Ipv4Addr::new(127, 0, 0, 3), address, "/ok").status;
            assert_eq!(status, 200, "the polite one must not notice");
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let heard = hammer(address, Ipv4Addr::new(127, 0, 0, 2), Duration::from_secs(2));
    polite.join().unwrap();
    let fewest = BURST + RATE * heard.at_least / 1000;
    let most = BURST + 1 + (RATE * (heard.at_most + 1)).div_ceil(1000);
    assert!(
        (fewest..=most).contains(&heard.passed),
        "{} passed, expected {fewest} to {most}",
        heard.passed
    );
    assert!(heard.refused > 0, "it asked for more than it got");
    assert_eq!(origin.count() as u64, heard.passed + 20);
}

#[test]
fn every_request_of_a_connection_counts() {
    let origin = Origin::start();
    let weir = limited(&origin, "rate: 1r/m", "burst: 2, nodelay: true");
    let mut client = Client::connect(weir.address());
    client.send("GET /ok HTTP/1.1\r\nHost: a\r\n\r\n".repeat(5));
    let statuses: Vec<_> = (0..5).map(|_| client.response().status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
}

#[test]
fn excess_requests_leave_one_by_one() {
    let origin = Origin::start();
    let weir = limited(&origin, "rate: 5r/s", "burst: 10");
    let mut clients: Vec<_> = (0..8).map(|_| Client::connect(weir.address())).collect();
    let started = Instant::now();
    for client in &clients {
        client.get("/ok");
    }
    let mut came: Vec<_> = std::thread::scope(|scope| {
        let readers: Vec<_> = clients
            .iter_mut()
            .map(|client| {
                scope.spawn(move || {
                    assert_eq!(client.response().status, 200);
                    millis_since(started)
                })
            })
            .collect();
        readers.into_iter().map(|r| r.join().unwrap()).collect()
    });
    came.sort_unstable();
    for (number, came) in (0..).zip(&came) {
        // The k-th leaves k/5 s after the first was let through, whenever it arrived itself.
        assert!(*came + 3 >= number * 200, "number {number} after {came} ms");
    }
    weir.access_line("200 PASSED ");
    eventually("seven lines of those that waited", || {
        weir.stdout().matches("200 DELAYED ").count() == 7
    });
}

#[test]
fn the_access_log_has_the_limits_verdict() {
    let origin = Origin::start();
    let weir = limited(&origin, "rate: 1r/m", "burst: 1, nodelay: true");
    for path in ["/ok?first", "/ok?second", "/ok?third"] {
        get(weir.address(), path);
    }
    assert!(weir.access_line("first").starts_with("200 PASSED "));
    assert!(weir.access_line("second").starts_with("200 PASSED "));
    assert!(weir.access_line("third").starts_with("429 REJECTED "));
    let line = weir.error_line("limiting requests, excess: ");
    assert!(line.contains("[error] "), "{line}");
    assert!(line.contains(": *"), "{line}");
    assert!(line.contains(" by zone \"one\""), "{line}");
    assert!(line.contains("client: 127.0.0.1"), "{line}");
    assert!(
        line.contains("request: \"GET /ok?third HTTP/1.1\""),
        "{line}"
    );
    assert!(line.contains("host: \"localhost\""), "{line}");
}

#[test]
fn a_client_that_leaves_while_it_waits_is_logged_as_499() {
    let origin = Origin::start();
    let weir = limited(&origin, "rate: 6r/m", "burst: 2");
    assert_eq!(get(weir.address(), "/ok").status, 200);
    let impatient = Client::connect(weir.address());
    impatient.get("/ok?impatient");
    weir.error_line("/ok?impatient");
    drop(impatient);
    let line = weir.access_line("impatient");
    assert!(line.starts_with("499 DELAYED "), "{line}");
    assert_eq!(origin.count(), 1, "it must not reach the backend");
    // Its turn is not given back: one more may wait, then the burst is spent.
    let second = Client::connect(weir.address());
    second.get("/ok?second");
    let line = weir.error_line("/ok?second");
    assert!(line.contains("delaying request, excess: 1."), "{line}");
    assert_eq!(get(weir.address(), "/ok").status, 429);
}

#[test]
fn a_reset_of_a_waiting_client_is_noticed() {
    let origin = Origin::start();
    let weir = limited(&origin, "rate: 6r/m", "burst: 2");
    get(weir.address(), "/ok");
    let impatient = Client::connect(weir.address());
    impatient.get("/ok?impatient");
    weir.error_line("delaying request");
    impatient.reset();
    assert!(weir.access_line("impatient").starts_with("499 "));
}

#[test]
fn a_dry_run_only_reports() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "log: { access: { path: '-', format: '$status $limit_req_status $uri' } }
limit_req_zones: { one: { key: $binary_remote_addr, size: 1m, rate: 1r/m } }
limit_req_dry_run: true
servers:
- listen: LISTEN
  locations:
  - { path: /, limit_req: { zone: one, burst: 1 }, proxy_pass: 'http://ORIGIN' }
  - { path: /free/, proxy_pass: 'http://ORIGIN' }
",
    );
    for path in ["/1", "/2", "/3", "/free/4"] {
        assert_eq!(get(weir.address(), path).status, 200);
    }
    assert_eq!(weir.access_line("/1"), "200 PASSED /1");
    assert_eq!(weir.access_line("/2"), "200 DELAYED_DRY_RUN /2");
    assert_eq!(weir.access_line("/3"), "200 REJECTED_DRY_RUN /3");
    assert_eq!(weir.access_line("/free/4"), "200 - /free/4");
    weir.error_line("delaying request, dry run, excess: ");
    weir.error_line("limiting requests, dry run, excess: ");
}

#[test]
fn limits_hold_over_all_event_loops_together() {
    let origin = Origin::start();
    let weir = limited(&origin, "rate: 1r/m", "burst: 29, nodelay: true");
    // Every connection is a new one, so they are spread over the loops.
    let statuses: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| -> Vec<u16> {
                    (0..25).map(|_| get(weir.address(), "/ok").status).collect()
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|t| t.join().unwrap())
            .collect()
    });
    let passed = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!((passed, origin.count()), (30, 30));
}

#[test]
fn a_refusal_with_status_444_closes_the_connection() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "limit_req_zones: { one: { key: $binary_remote_addr, size: 1m, rate: 1r/m } }
servers:
- listen: LISTEN
  limit_req_status: 444
  locations: [ { path: /, limit_req: { zone: one }, proxy_pass: 'http://ORIGIN' } ]
",
    );
    assert_eq!(get(weir.address(), "/ok").status, 200);
    let mut client = Client::connect(weir.address());
    client.get("/ok");
    assert!(client.is_closed());
    eventually("the log line", || weir.stdout().contains("\" 444 0 "));
}
