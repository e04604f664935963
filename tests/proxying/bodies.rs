//! Without buffering, bodies are streamed both ways, at the pace of the slower side and in constant memory.

use std::time::Duration;

use super::forwarding as buffering;
use crate::support::{Client, Origin, Weir, eventually};

/// Far more than any socket buffers, far less than would pass unnoticed.
const LARGE: usize = 64 << 20;
/// What a proxy may grow by while it carries one large body.
const ALLOWED: u64 = 8 << 20;

/// A weir that forwards everything and buffers nothing.
fn forwarding(origin: &Origin, settings: &str) -> Weir {
    let off = "proxy_request_buffering: off, proxy_buffering: off,";
    buffering(origin, &format!("{off} {settings}"))
}

/// A weir after its first request, so that growth from here on is the body's.
fn warm(origin: &Origin) -> Weir {
    let weir = forwarding(origin, "client_max_body_size: 0,");
    let mut client = Client::connect(weir.address());
    client.get("/bytes?n=1000000");
    assert_eq!(client.response().body.len(), 1_000_000);
    weir
}

#[test]
fn a_request_body_is_passed_on_as_it_comes() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    let mut client = Client::connect(weir.address());
    client.send("POST /ok HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
    eventually("the first chunk at the backend", || {
        origin
            .seen()
            .first()
            .is_some_and(|seen| seen.body == b"first")
    });
    client.send("6\r\nsecond\r\n");
    eventually("the second chunk at the backend", || {
        origin.only().body == b"firstsecond"
    });
    client.send("0\r\n\r\n");
    assert_eq!(client.response().status, 200);
    assert!(origin.only().complete);
}

#[test]
fn a_request_body_of_known_length_keeps_its_length() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    let mut client = Client::connect(weir.address());
    client.send("PUT /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nhello");
    origin.await_count(1);
    client.send(" world");
    assert_eq!(client.response().status, 200);
    let seen = origin.only();
    assert_eq!(seen.body, b"hello world");
    assert_eq!(seen.head.get("content-length"), Some("11"));
    assert!(!seen.head.has("transfer-encoding"));
}

#[test]
fn a_response_is_forwarded_as_it_comes() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    let mut client = Client::connect(weir.address());
    client.get("/chunked?gate=g&n=3");
    assert!(client.head().is_chunked());
    let mut came = Vec::new();
    while !String::from_utf8_lossy(&came).contains("chunk 0") {
        came.extend(client.some(1000));
    }
    // The backend has not sent the rest yet.
    origin.gates().await_waiting("g", 1);
    origin.gates().open("g");
    while !came.ends_with(b"0\r\n\r\n") {
        came.extend(client.some(1000));
    }
    assert!(String::from_utf8_lossy(&came).contains("chunk 2"));
}

#[test]
fn a_client_that_stops_reading_stops_the_backend() {
    let origin = Origin::start();
    let weir = warm(&origin);
    let before = weir.resident();
    let mut client = Client::connect(weir.address());
    client.get(&format!("/bytes?n={LARGE}"));
    assert_eq!(client.head().content_length(), Some(LARGE));
    // Long enough to take in all of it, were it taken in.
    std::thread::sleep(Duration::from_millis(1500));
    let grown = weir.resident().saturating_sub(before);
    assert!(grown < ALLOWED, "grown by {grown} bytes");
    let mut length = 0;
    while length < LARGE {
        length += client.some(1 << 20).len();
    }
    let grown = weir.resident().saturating_sub(before);
    assert!(grown < ALLOWED, "grown by {grown} bytes");
}

#[test]
fn a_backend_that_stops_reading_stops_the_client() {
    let origin = Origin::start();
    let weir = warm(&origin);
    let before = weir.resident();
    let client = Client::connect(weir.address());
    client.send(format!(
        "POST /stall HTTP/1.1\r\nHost: a\r\nContent-Length: {LARGE}\r\n\r\n"
    ));
    client.set_write_timeout(Duration::from_millis(1500));
    let piece = vec![b'x'; 64 << 10];
    let mut taken = 0;
    while taken < LARGE && client.try_send(&piece).is_ok() {
        taken += piece.len();
    }
    assert!(
        taken < LARGE / 2,
        "{taken} bytes were read without a reader"
    );
    let grown = weir.resident().saturating_sub(before);
    assert!(grown < ALLOWED, "grown by {grown} bytes");
    origin.gates().open("gate");
}

#[test]
fn a_large_upload_arrives_whole() {
    let origin = Origin::start();
    let weir = warm(&origin);
    let before = weir.resident();
    let mut client = Client::connect(weir.address());
    client.send(format!(
        "POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: {LARGE}\r\n\r\n"
    ));
    let piece = vec![b'x'; 64 << 10];
    for _ in 0..LARGE / piece.len() {
        client.send(&piece);
    }
    assert_eq!(client.response().status, 200);
    assert_eq!(origin.seen()[1].length, LARGE);
    let grown = weir.resident().saturating_sub(before);
    assert!(grown < ALLOWED, "grown by {grown} bytes");
}

#[test]
fn trailers_pass_both_ways() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    let mut client = Client::connect(weir.address());
    client.send(
        "POST /trailers HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\nConnection: TE\r\n\
        Trailer: X-Sum\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 7\r\n\r\n",
    );
    let response = client.response();
    assert_eq!(response.text(), "hello");
    let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let lower = |fields: &[(String, String)]| -> Vec<_> {
        fields
            .iter()
            .map(|(name, value)| field(&name.to_lowercase(), value))
            .collect()
    };
    assert_eq!(lower(&response.trailers), [field("x-checksum", "42")]);
    assert_eq!(lower(&origin.only().trailers), [field("x-sum", "7")]);
}

#[test]
fn a_body_larger_than_allowed_is_refused() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "client_max_body_size: 1k,");
    let mut client = Client::connect(weir.address());
    client.send("POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 1025\r\n\r\n");
    assert_eq!(client.response().status, 413);
    assert_eq!(origin.count(), 0);
    let mut client = Client::connect(weir.address());
    client.send("POST /ok HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for _ in 0..3 {
        client
            .try_send(format!("200\r\n{}\r\n", "x".repeat(512)))
            .ok();
    }
    client.try_send("0\r\n\r\n").ok();
    assert_eq!(client.response().status, 413);
    assert!(
        !origin.seen().iter().any(|seen| seen.complete),
        "never as if it were whole"
    );
    let mut client = Client::connect(weir.address());
    let body = "x".repeat(1024);
    client.send(format!(
        "POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 1024\r\n\r\n{body}"
    ));
    assert_eq!(client.response().status, 200);
}
