//! Signals: requests in flight finish, idle connections close, no new ones are accepted, and logs can be rotated.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::support::{Client, Origin, Weir, eventually, get};

fn forwarding(origin: &Origin, top: &str) -> Weir {
    Weir::before(
        origin,
        &format!(
            "{top}
servers:
- listen: LISTEN
  locations: [ {{ path: /, proxy_pass: 'http://ORIGIN' }} ]
"
        ),
    )
}

/// What is in flight is finished, the rest is over at once.
fn finishes_on(signal: &str) {
    let origin = Origin::start();
    let mut weir = forwarding(&origin, "shutdown_timeout: 20s");
    let mut idle = Client::connect(weir.address());
    idle.get("/ok");
    assert_eq!(idle.response().status, 200);
    let mut waiting = Client::connect(weir.address());
    waiting.get("/hold?gate=g");
    origin.gates().await_waiting("g", 1);
    let mut streaming = Client::connect(weir.address());
    streaming.get("/chunked?gate=g&n=5");
    assert!(streaming.head().is_chunked());

    weir.signal(signal);
    assert!(idle.is_closed(), "idle connections are closed");
    eventually("new connections refused", || {
        Client::try_connect(weir.address()).is_err()
    });
    assert!(!weir.has_ended(), "requests are still in flight");

    origin.gates().open("g");
    let response = waiting.response();
    assert_eq!((response.status, response.text().as_str()), (200, "ok"));
    assert!(waiting.is_closed(), "and then its connection is closed");
    let mut rest = Vec::new();
    while !rest.ends_with(b"0\r\n\r\n") {
        let piece = streaming.some(1000);
        assert!(
            !piece.is_empty(),
            "cut off after {:?}",
            String::from_utf8_lossy(&rest)
        );
        rest.extend(piece);
    }
    assert_eq!(weir.wait().code(), Some(0));
    assert!(
        weir.stdout().contains("/hold?gate=g"),
        "its line was still written"
    );
}

#[test]
fn quit_lets_what_is_in_flight_finish() {
    finishes_on("QUIT");
}

#[test]
fn term_lets_what_is_in_flight_finish() {
    finishes_on("TERM");
}

#[test]
fn int_lets_what_is_in_flight_finish() {
    finishes_on("INT");
}

#[test]
fn without_work_it_ends_at_once() {
    let origin = Origin::start();
    let mut weir = forwarding(&origin, "shutdown_timeout: 20s");
    let mut idle = Client::connect(weir.address());
    idle.get("/ok");
    assert_eq!(idle.response().status, 200);
    let _silent = Client::connect(weir.address());
    let started = Instant::now();
    weir.signal("TERM");
    assert_eq!(weir.wait().code(), Some(0));
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
}

/// The state that an event loop keeps between requests can be dropped in any order.
#[test]
fn weir_stops_cleanly_after_refusals_and_proxied_responses() {
    let origin = Origin::start();
    let mut weir = Weir::before(
        &origin,
        "limit_req_zones: { one: { key: $binary_remote_addr, rate: 1r/m } }
servers:
- listen: LISTEN
  locations:
  - { path: /, proxy_pass: 'http://ORIGIN' }
  - { path: /limited, limit_req: { zone: one }, proxy_pass: 'http://ORIGIN/ok' }
",
    );
    for (path, status) in [("/ok", 200), ("/limited", 200), ("/limited", 429)] {
        assert_eq!(get(weir.address(), path).status, status);
    }
    weir.signal("TERM");
    assert_eq!(weir.wait().code(), Some(0), "{}", weir.stderr());
    assert!(!weir.stderr().contains("panicked"), "{}", weir.stderr());
}

#[test]
fn shutdown_timeout_ends_what_does_not_end() {
    let origin = Origin::start();
    let mut weir = forwarding(&origin, "shutdown_timeout: 1s");
    let mut stuck = Client::connect(weir.address());
    stuck.get("/hold?gate=never");
    origin.gates().await_waiting("never", 1);
    let started = Instant::now();
    weir.signal("QUIT");
    weir.wait();
    let waited = started.elapsed().as_millis();
    assert!((950..20_000).contains(&waited), "{waited} ms");
    assert!(stuck.try_response().is_err(), "it was cut");
    let log = weir.stderr();
    assert!(log.contains("shutdown_timeout is over"), "{log}");
    assert!(log.trim_end().ends_with("weir has stopped"), "{log}");
}

#[test]
fn a_parked_request_is_not_forgotten_when_stopping() {
    let origin = Origin::start();
    let mut weir = Weir::before(
        &origin,
        "limit_req_zones: { one: { key: $binary_remote_addr, size: 1m, rate: 30r/m } }
servers:
- listen: LISTEN
  locations: [ { path: /, limit_req: { zone: one, burst: 5 }, proxy_pass: 'http://ORIGIN' } ]
",
    );
    let mut parked = Client::connect(weir.address());
    parked.send("GET /ok HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2));
    assert_eq!(parked.response().status, 200);
    weir.error_line("delaying request");
    weir.signal("QUIT");
    assert_eq!(parked.response().status, 200);
    assert_eq!(weir.wait().code(), Some(0));
}

#[test]
fn usr1_opens_the_log_again_and_loses_nothing() {
    let origin = Origin::start();
    let weir = forwarding(
        &origin,
        "log: { access: { path: DIR/access.log, format: '$request_uri' } }",
    );
    let rotated = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut sent = 0;
            while !rotated.load(Ordering::Relaxed) {
                let mut client = Client::connect(weir.address());
                for _ in 0..100 {
                    client.get(&format!("/ok?{sent}"));
                    assert_eq!(client.response().status, 200);
                    sent += 1;
                }
            }
            sent
        });
        for rotation in 0..3 {
            eventually("lines in the current file", || {
                weir.file("access.log").lines().count() >= 20
            });
            let old = weir.path(&format!("access.log.{rotation}"));
            std::fs::rename(weir.path("access.log"), old).unwrap();
            weir.signal("USR1");
            eventually("a new file", || weir.path("access.log").exists());
        }
        rotated.store(true, Ordering::Relaxed);
        sending.join().unwrap()
    });
    let everything = || -> Vec<String> {
        ["access.log.0", "access.log.1", "access.log.2", "access.log"]
            .map(|file| weir.file(file))
            .concat()
            .lines()
            .map(str::to_owned)
            .collect()
    };
    eventually("the last line", || everything().len() >= sent);
    let mut expected: Vec<_> = (0..sent).map(|number| format!("/ok?{number}")).collect();
    let mut found = everything();
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, expected, "each once");
}
