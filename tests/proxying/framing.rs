//! Where one request ends and the next begins: what is not certain is refused, and nothing of it reaches the backend.

use super::forwarding;
use crate::support::{Client, Origin, Weir, get};

/// Requests whose end two parsers could see in two places.
const DOUBTFUL: [(&str, &str); 20] = [
    (
        "two lengths",
        "POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    ),
    (
        "a list of lengths",
        "POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 6\r\n\r\nhello",
    ),
    (
        "a signed length",
        "POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello",
    ),
    (
        "a length in hex",
        "POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\nhello",
    ),
    (
        "a huge length",
        "POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\nhello",
    ),
    (
        "an unknown coding",
        "POST /ok HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "a coding we would have to undo",
        "POST /ok HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked not last",
        "POST /ok HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked twice",
        "POST /ok HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunked in HTTP/1.0",
        "POST /ok HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "a space before the colon",
        "POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n\r\nhello",
    ),
    (
        "a folded field",
        "GET /ok HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
    ),
    (
        "a field without a name",
        "GET /ok HTTP/1.1\r\nHost: a\r\n: a\r\n\r\n",
    ),
    (
        "a bare CR",
        "GET /ok HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
    ),
    ("a NUL", "GET /ok HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n"),
    ("no host", "GET /ok HTTP/1.1\r\n\r\n"),
    (
        "two hosts",
        "GET /ok HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    ),
    (
        "a host with a path",
        "GET /ok HTTP/1.1\r\nHost: a/b\r\n\r\n",
    ),
    (
        "a target with a space",
        "GET /o k HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    ("another protocol", "GET /ok HTTP/3.7\r\nHost: a\r\n\r\n"),
];

#[test]
fn a_doubtful_request_is_refused_and_the_connection_closed() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    let mut wrong = Vec::new();
    for (what, request) in DOUBTFUL {
        let before = origin.count();
        let mut client = Client::connect(weir.address());
        client.send(format!(
            "{request}GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
        ));
        let status = client.response().status;
        if !matches!(status, 400 | 413 | 501 | 505) {
            wrong.push(format!("{what}: answered with {status}"));
        } else if !client.is_closed() {
            wrong.push(format!("{what}: the connection goes on"));
        }
        if origin.count() != before {
            wrong.push(format!("{what}: reached the backend"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// RFC 9112 §6.3 leaves two ways: to refuse, or to go by the chunks, forget the length and close.
#[test]
fn with_both_lengths_nothing_can_follow() {
    for fields in [
        "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n",
    ] {
        let origin = Origin::start();
        let weir = forwarding(&origin, "");
        let mut client = Client::connect(weir.address());
        client.send(format!(
            "POST /ok HTTP/1.1\r\nHost: a\r\n{fields}\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
        ));
        let status = client.response().status;
        assert!(client.is_closed(), "nothing may follow");
        if status == 400 {
            assert_eq!(origin.count(), 0);
            continue;
        }
        assert_eq!(status, 200);
        let seen = origin.only();
        assert!(!seen.head.has("content-length") || seen.head.content_length() == Some(0));
        assert_eq!(seen.length, 0);
    }
}

#[test]
fn a_broken_chunk_is_never_delivered_as_a_whole_body() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    for (what, body) in [
        ("no number", "zz\r\nhello\r\n0\r\n\r\n"),
        ("negative", "-5\r\nhello\r\n0\r\n\r\n"),
        ("overflow", "fffffffffffffffff\r\nhello\r\n0\r\n\r\n"),
        ("too short", "3\r\nhello\r\n0\r\n\r\n"),
        ("bare line feeds", "5\nhello\n0\n\n"),
    ] {
        let mut client = Client::connect(weir.address());
        client.send(format!(
            "POST /ok HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}\
            GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
        ));
        if let Ok(response) = client.try_response() {
            assert_eq!(response.status, 400, "{what}");
        }
        assert!(client.is_closed(), "{what}");
    }
    let seen = origin.seen();
    assert!(!seen.iter().any(|seen| seen.complete), "{seen:?}");
    assert!(!seen.iter().any(|seen| seen.head.line.contains("smuggled")));
}

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
fn methods_that_are_not_for_a_gateway_are_refused() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    for request in [
        "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n",
        "TRACE /ok HTTP/1.1\r\nHost: a\r\nX-Secret: 1\r\n\r\n",
        "GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        let mut client = Client::connect(weir.address());
        client.send(request);
        let response = client.response();
        assert!(
            (400..=501).contains(&response.status),
            "{request}: {}",
            response.status
        );
        assert!(!response.text().contains("X-Secret"));
    }
    assert_eq!(origin.count(), 0);
}

#[test]
fn a_head_too_large_is_refused() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    for request in [
        format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(70_000)),
        format!(
            "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
            "x".repeat(70_000)
        ),
    ] {
        let mut client = Client::connect(weir.address());
        client.try_send(request).ok();
        let status = client.response().status;
        assert!(matches!(status, 400 | 414 | 431), "{status}");
    }
    assert_eq!(origin.count(), 0);
    let mut client = Client::connect(weir.address());
    client.get(&format!("/ok?{}", "x".repeat(7_900)));
    assert_eq!(
        client.response().status,
        200,
        "RFC 9112 asks for at least 8000"
    );
}
