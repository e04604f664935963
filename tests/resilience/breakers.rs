//! Circuit breakers of servers and of locations.

use std::cell::Cell;
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::{before, location_breaker, metric, server_breaker};
use crate::support::{Client, Origin, Weir, eventually, get};

/// Opens after four failures, for a moment.
const QUICK: &str = "breaker: { min_calls: 4, open_for: 50ms, max_open_for: 100ms, half_open: 2 }";
/// Opens after four failures, for longer than a test takes.
const LASTING: &str = "breaker: { min_calls: 4, open_for: 100s, max_open_for: 100s }";

/// One that stays open for as long as the test lasts, before a location.
fn at_location(origin: &Origin, breaker: &str) -> Weir {
    before(
        &[origin],
        "keepalive: 0",
        &format!(
            "locations: [ {{ path: /, proxy_pass: app, proxy_read_timeout: 300ms, {breaker} }} ]"
        ),
    )
}

#[test]
fn a_server_that_fails_is_left_alone_and_asked_again_when_it_is_well() {
    let (well, ill) = (Origin::named("well"), Origin::named("ill"));
    ill.behave("/reset");
    let weir = before(&[&well, &ill], QUICK, "proxy_pass: app");
    eventually("its breaker has opened", || {
        // The other one answers for it.
        assert_eq!(get(weir.address(), "/ok").status, 200);
        metric(
            &weir,
            "weir_upstream_breaker_opened_total",
            &[&ill.address().to_string()],
        ) > Some(0)
    });
    ill.recover();
    eventually("its breaker has closed", || {
        assert_eq!(get(weir.address(), "/ok").status, 200);
        server_breaker(&weir, &ill, "closed")
    });
    eventually("it is asked", || {
        get(weir.address(), "/ok").get("x-origin") == Some("ill")
    });
    assert!(server_breaker(&weir, &well, "closed"));
    weir.error_line("circuit breaker open");
    weir.error_line("circuit breaker closed");
}

#[test]
fn while_it_is_open_others_are_asked() {
    let (well, ill) = (Origin::named("well"), Origin::named("ill"));
    ill.behave("/status?code=500");
    let weir = before(&[&well, &ill], LASTING, "proxy_pass: app");
    eventually("its breaker has opened", || {
        get(weir.address(), "/ok");
        server_breaker(&weir, &ill, "open")
    });
    let before = ill.count();
    for _ in 0..10 {
        assert_eq!(get(weir.address(), "/ok").get("x-origin"), Some("well"));
    }
    assert_eq!(ill.count(), before);
}

#[test]
fn without_another_server_the_response_is_503_at_once() {
    let origin = Origin::start();
    let weir = before(&[&origin], LASTING, "proxy_pass: app");
    for _ in 0..4 {
        assert_eq!(get(weir.address(), "/reset").status, 502);
    }
    assert!(server_breaker(&weir, &origin, "open"));
    let before = (origin.count(), origin.connections());
    let answer = get(weir.address(), "/ok");
    assert_eq!(answer.status, 503);
    let wait: u64 = answer
        .get("retry-after")
        .expect("it says when")
        .parse()
        .expect("seconds");
    assert!((80..=100).contains(&wait), "{wait}");
    assert_eq!(
        (origin.count(), origin.connections()),
        before,
        "it is not touched"
    );
}

#[test]
fn every_way_to_fail_counts() {
    for (path, status) in [
        ("/reset", 502),
        ("/garbage", 502),
        ("/hang", 504),
        ("/status?code=500", 500),
        ("/status?code=503", 503),
    ] {
        let origin = Origin::start();
        let weir = at_location(&origin, LASTING);
        for _ in 0..4 {
            assert!(location_breaker(&weir, "/", "closed"), "{path}");
            assert_eq!(get(weir.address(), path).status, status, "{path}");
        }
        assert!(location_breaker(&weir, "/", "open"), "{path}");
        let before = origin.count();
        let answer = get(weir.address(), "/ok");
        assert_eq!(
            (answer.status, answer.has("retry-after")),
            (503, true),
            "{path}"
        );
        assert_eq!(origin.count(), before);
    }
}

#[test]
fn a_truncated_response_counts_as_a_failure_of_its_server() {
    let origin = Origin::start();
    let weir = before(&[&origin], LASTING, "proxy_pass: app");
    for _ in 0..4 {
        let answer = get(weir.address(), "/close-early");
        assert_eq!((answer.status, answer.complete), (200, false));
    }
    eventually("its breaker has opened", || {
        server_breaker(&weir, &origin, "open")
    });
    let weir = at_location(&origin, LASTING);
    for _ in 0..4 {
        assert!(!get(weir.address(), "/close-early").complete);
    }
    eventually("its location's, too", || {
        location_breaker(&weir, "/", "open")
    });
}

/// The server responds half of the time: enough to be tried, too little to be relied on. No client notices.
#[test]
fn a_flapping_server_is_avoided_without_failed_requests() {
    let (flapping, well) = (Origin::named("flapping"), Origin::named("well"));
    flapping.behave("/flap");
    let weir = before(
        &[&flapping, &well],
        "keepalive: 0, breaker: { failure_ratio: 40%, min_calls: 4, open_for: 1h }",
        "proxy_pass: app",
    );
    let mut asked = 0;
    while !server_breaker(&weir, &flapping, "open") {
        assert_eq!(get(weir.address(), "/ok").status, 200);
        asked += 1;
        assert!(asked < 100, "it is never left alone");
    }
    let before = flapping.count();
    for _ in 0..10 {
        assert_eq!(get(weir.address(), "/ok").get("x-origin"), Some("well"));
    }
    assert_eq!(flapping.count(), before);
    assert!(server_breaker(&weir, &well, "closed"));
}

#[test]
fn errors_of_clients_do_not_count_against_a_server() {
    let origin = Origin::start();
    let weir = at_location(&origin, LASTING);
    for _ in 0..8 {
        assert_eq!(get(weir.address(), "/status?code=404").status, 404);
    }
    for number in 0..8 {
        let gate = format!("gone-{number}");
        let client = origin.hold(&gate, || {
            let client = Client::connect(weir.address());
            client.get(&format!("/hold?gate={gate}"));
            client
        });
        client.reset();
        origin.gates().open(&gate);
    }
    assert_eq!(get(weir.address(), "/ok").status, 200);
    assert!(location_breaker(&weir, "/", "closed"));
}

#[test]
fn slow_responses_open_the_breaker() {
    let origin = Origin::start();
    let slow = "breaker: { slow_call: 20ms, slow_ratio: 50%, min_calls: 4, open_for: 100s, max_open_for: 100s }";
    let weir = at_location(&origin, slow);
    for _ in 0..4 {
        assert_eq!(get(weir.address(), "/slow?ms=30").status, 200);
    }
    assert!(location_breaker(&weir, "/", "open"));
    assert_eq!(get(weir.address(), "/ok").status, 503);
}

#[test]
fn a_location_comes_back_by_probes_and_its_neighbour_never_notices() {
    let origin = Origin::start();
    let weir = before(
        &[&origin],
        "keepalive: 0",
        &format!(
            "locations: [ {{ path: /a/, proxy_pass: app, {QUICK} }}, {{ path: /b/, proxy_pass: app, {QUICK} }} ]"
        ),
    );
    for _ in 0..4 {
        assert_eq!(get(weir.address(), "/a/reset").status, 502);
    }
    weir.error_line("circuit breaker open");
    assert_eq!(get(weir.address(), "/b/ok").status, 200);
    assert!(location_breaker(&weir, "/b/", "closed"));
    eventually("it lets a request through", || {
        get(weir.address(), "/a/ok").status == 200
    });
    eventually("it has closed", || {
        get(weir.address(), "/a/ok");
        location_breaker(&weir, "/a/", "closed")
    });
    assert_eq!(get(weir.address(), "/a/ok").status, 200);
}

#[test]
fn the_place_of_a_probe_whose_client_left_is_given_back() {
    // A probe loses its place after `open_for` in any case: what is tested has to be over by then.
    const OPEN_FOR: Duration = Duration::from_secs(2);
    let origin = Origin::start();
    let weir = before(
        &[&origin],
        "keepalive: 0",
        "locations: [ { path: /, proxy_pass: app, breaker: { min_calls: 4, open_for: 2s, max_open_for: 2s, half_open: 1 } } ]",
    );
    for _ in 0..4 {
        assert_eq!(get(weir.address(), "/reset").status, 502);
    }
    assert_eq!(get(weir.address(), "/ok").status, 503);
    let asked = Cell::new(Instant::now());
    // Refused, and sent again, until the breaker lets one through to see.
    let client = origin.hold("probe", || {
        // Nor as fast as it can: there are two seconds of that.
        thread::sleep(Duration::from_millis(5));
        asked.set(Instant::now());
        let client = Client::connect(weir.address());
        client.get("/stall?gate=probe");
        client
    });
    assert!(location_breaker(&weir, "/", "half_open"));
    assert_eq!(get(weir.address(), "/ok").status, 503, "one is enough");
    client.reset();
    eventually("another may try", || {
        get(weir.address(), "/ok").status == 200
    });
    assert!(asked.get().elapsed() < OPEN_FOR, "its place was given back");
    assert!(location_breaker(&weir, "/", "closed"));
    origin.gates().open("probe");
}

#[test]
fn a_slow_start_ends_with_all_requests_passing() {
    let origin = Origin::start();
    let weir = at_location(
        &origin,
        "breaker: { min_calls: 4, open_for: 50ms, recovery: ramp, ramp_for: 300ms, half_open: 4 }",
    );
    for _ in 0..4 {
        assert_eq!(get(weir.address(), "/reset").status, 502);
    }
    eventually("the first is let through", || {
        get(weir.address(), "/ok").status == 200
    });
    eventually("it has closed", || {
        get(weir.address(), "/ok");
        location_breaker(&weir, "/", "closed")
    });
    for _ in 0..10 {
        assert_eq!(get(weir.address(), "/ok").status, 200);
    }
}
