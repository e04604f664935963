//! Sequences of messages: interim and early responses, responses without a body, and persistent connections.

use std::time::Duration;

use tokio::time::Instant;

use super::forwarding;
use crate::support::{Client, Origin, PATIENCE, Weir, get};

#[test]
fn early_hints_pass() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    let mut client = Client::connect(weir.address());
    client.get("/103");
    let hints = client.response();
    assert_eq!(hints.status, 103);
    assert_eq!(hints.get("link"), Some("</style.css>; rel=preload"));
    assert_eq!(client.response().status, 200);
    // A client of HTTP/1.0 has never heard of them.
    let mut client = Client::connect(weir.address());
    client.send("GET /103 HTTP/1.0\r\n\r\n");
    assert_eq!(client.response().status, 200);
}

#[test]
fn a_client_that_asks_may_send_its_body() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    let mut client = Client::connect(weir.address());
    client
        .send("POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.response().status, 100);
    client.send("hello");
    assert_eq!(client.response().status, 200);
    assert_eq!(origin.only().body, b"hello");
}

#[test]
fn a_client_that_is_refused_is_not_asked_for_its_body() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "limit_req_zones: { one: { key: $binary_remote_addr, size: 1m, rate: 1r/m } }
servers:
- listen: LISTEN
  locations: [ { path: /, limit_req: { zone: one }, proxy_pass: 'http://ORIGIN' } ]
",
    );
    assert_eq!(get(weir.address(), "/ok").status, 200);
    let mut client = Client::connect(weir.address());
    client
        .send("POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.response().status, 429, "no 100 before it");
}

#[test]
fn a_response_before_the_end_of_the_request_reaches_the_client() {
    let origin = Origin::start();
    let weir = forwarding(
        &origin,
        "client_max_body_size: 0, proxy_request_buffering: off,",
    );
    let mut client = Client::connect(weir.address());
    client.send("POST /early?gate=g HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nsome");
    let response = client.response();
    assert_eq!(response.status, 403);
    assert_eq!(response.text(), "no need to go on");
    origin.gates().open("g");
    // What the client still sends must not become a request of its own.
    client
        .try_send("GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
        .ok();
    get(weir.address(), "/ok");
    let lines: Vec<_> = origin
        .seen()
        .into_iter()
        .map(|seen| seen.head.line)
        .collect();
    assert!(
        !lines.iter().any(|line| line.contains("smuggled")),
        "{lines:?}"
    );
}

#[test]
fn responses_without_a_body_leave_the_connection_in_sync() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    let mut client = Client::connect(weir.address());
    client.send("HEAD /ok HTTP/1.1\r\nHost: a\r\n\r\n");
    let response = client.response_to_head();
    assert_eq!(
        (response.status, response.get("content-length")),
        (200, Some("2"))
    );
    for code in [204, 304, 404, 200] {
        client.get(&format!("/status?code={code}"));
        let response = client.response();
        assert_eq!(response.status, code);
        let expected = if code == 204 || code == 304 {
            ""
        } else {
            "scripted"
        };
        assert_eq!(response.text(), expected);
    }
    client.get("/status?code=204");
    assert!(!client.response().has("transfer-encoding"));
}

#[test]
fn connections_to_the_backend_are_kept() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "workers: 1
upstreams: { app: { keepalive: 8, servers: [ { address: 'ORIGIN' } ] } }
servers:
- listen: LISTEN
  locations: [ { path: /, proxy_pass: app } ]
",
    );
    for _ in 0..50 {
        assert_eq!(get(weir.address(), "/ok").status, 200);
    }
    assert!(
        origin.connections() <= 2,
        "{} for 50 requests",
        origin.connections()
    );
}

#[test]
fn pipelined_requests_get_their_responses_in_order() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    let mut client = Client::connect(weir.address());
    client.send(
        "GET /slow?ms=100 HTTP/1.1\r\nHost: a\r\n\r\n\
        POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello\
        GET /status?code=404 HTTP/1.1\r\nHost: a\r\n\r\n\
        GET /ok HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n\
        GET /never HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    let statuses = [0; 4].map(|_| client.response().status);
    assert_eq!(statuses, [200, 200, 404, 200]);
    assert!(client.is_closed());
    assert_eq!(origin.count(), 4, "nothing after the close is a request");
}

#[test]
fn a_client_of_http_1_0_gets_a_response_without_chunks() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    let mut client = Client::connect(weir.address());
    client.send("GET /chunked?n=3 HTTP/1.0\r\n\r\n");
    let response = client.response();
    assert!(!response.has("transfer-encoding"));
    assert_eq!(response.text(), "chunk 0chunk 1chunk 2");
    assert!(client.is_closed());
    assert!(origin.only().head.line.ends_with("HTTP/1.1"));
    let mut client = Client::connect(weir.address());
    for _ in 0..2 {
        client.send("GET /ok HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        let response = client.response();
        assert_eq!(response.text(), "ok");
        assert!(
            response
                .get("connection")
                .is_some_and(|c| c.eq_ignore_ascii_case("keep-alive"))
        );
    }
}

#[test]
fn a_client_can_ask_for_the_connection_to_be_closed() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    let mut client = Client::connect(weir.address());
    client.send("GET /ok HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_eq!(client.response().get("connection"), Some("close"));
    assert!(client.is_closed());
}

#[test]
fn timeouts_towards_the_client_hold() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "client_header_timeout: 2s
client_body_timeout: 2s
keepalive_timeout: 2s
servers:
- listen: LISTEN
  locations: [ { path: /, proxy_pass: 'http://ORIGIN' } ]
",
    );
    let mut silent = Client::connect(weir.address());
    let mut dripping = Client::connect(weir.address());
    let mut idle = Client::connect(weir.address());
    idle.get("/ok");
    assert_eq!(idle.response().status, 200);
    let mut stuck = Client::connect(weir.address());
    stuck.send("POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe");
    // One byte now and then does not buy more time for a head.
    let began = Instant::now();
    dripping
        .try_send("GET /ok HTTP/1.1\r\nHost: a\r\nX-Slow: ")
        .ok();
    while dripping.is_quiet(Duration::from_millis(200)) {
        dripping.try_send("x").ok();
        assert!(began.elapsed() < PATIENCE, "it goes on for ever");
    }
    for client in [&mut silent, &mut stuck] {
        // nginx closes without a word or says 408; either way it is over.
        if let Ok(response) = client.try_response() {
            assert_eq!(response.status, 408);
        }
        assert!(client.is_closed());
    }
    assert!(idle.is_closed());
}
