//! Bodies that were not read, and the limits on headers. Request smuggling has its own tests, in `smuggling`.

use super::forwarding;
use crate::support::{Client, Origin, Weir, get};

#[test]
fn a_refused_requests_body_never_becomes_a_request() {
    const INNER: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "limit_req_zones: { one: { key: $binary_remote_addr, size: 1m, rate: 1r/m } }
servers:
- listen: LISTEN
  locations:
  - { path: /, proxy_pass: 'http://ORIGIN' }
  - { path: /limited/, limit_req: { zone: one }, proxy_pass: 'http://ORIGIN' }
  - { path: /denied/, deny: all, proxy_pass: 'http://ORIGIN' }
  - { path: /returned/, return: { status: 200, body: done } }
",
    );
    get(weir.address(), "/limited/ok");
    let length = INNER.len();
    for (path, status) in [
        ("/limited/", 429),
        ("/denied/", 403),
        ("/returned/", 200),
        ("/limited/", 429),
    ] {
        let mut client = Client::connect(weir.address());
        client.send(format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
        ));
        assert_eq!(
            client.response().status,
            status,
            "answered without waiting for the body"
        );
        if client.try_send(INNER).is_err() {
            continue;
        }
        // Either it read the body to its end, and the next request is one, or it closed.
        client
            .try_send("GET /ok?next HTTP/1.1\r\nHost: a\r\n\r\n")
            .ok();
        if let Ok(response) = client.try_response() {
            assert_eq!(response.text(), "ok");
        }
    }
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
fn trace_is_not_reflected() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    let mut client = Client::connect(weir.address());
    client.send("TRACE /ok HTTP/1.1\r\nHost: a\r\nX-Secret: 1\r\n\r\n");
    let response = client.response();
    assert_eq!(response.status, 405);
    assert!(!response.text().contains("X-Secret"));
    assert_eq!(origin.count(), 0);
}

#[test]
fn a_long_request_line_is_taken() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    let mut client = Client::connect(weir.address());
    client.get(&format!("/ok?{}", "x".repeat(7_900)));
    assert_eq!(
        client.response().status,
        200,
        "RFC 9112 asks for at least 8000"
    );
}

/// The response came before the length of the body was known, and without `close`.
#[test]
fn an_unread_chunked_body_leaves_the_connection_usable() {
    let weir = Weir::start("servers: [{ listen: LISTEN, return: 200 }]\n");
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let answer = client.response();
    assert_eq!((answer.status, answer.head.get("connection")), (200, None));
    let chunk = format!("2710\r\n{}\r\n", "x".repeat(10_000));
    for _ in 0..40 {
        client.send(&chunk);
    }
    client.send("0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response().status, 200);
}
