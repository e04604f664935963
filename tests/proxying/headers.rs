//! Headers: hop-by-hop headers are removed, and those that the backend needs are added.

use std::net::Ipv4Addr;

use super::forwarding;
use crate::support::origin::ReceivedRequest;
use crate::support::{Client, Origin, Weir, get};

/// Sends a request with these fields from 127.0.0.2 and gives what the backend saw.
fn sent(settings: &str, fields: &str) -> ReceivedRequest {
    let origin = Origin::start();
    let weir = forwarding(&origin, settings);
    let mut client = Client::connect_from(Ipv4Addr::new(127, 0, 0, 2), weir.address());
    client.send(format!(
        "GET /ok?a=b HTTP/1.1\r\nHost: shop.test:81\r\n{fields}\r\n"
    ));
    assert_eq!(client.response().status, 200);
    origin.only()
}

#[test]
fn hop_by_hop_headers_are_not_forwarded() {
    let head = sent(
        "",
        "Connection: keep-alive, X-Private , x-other\r\nX-Private: 1\r\nX-Other: 1\r\nKeep-Alive: timeout=5\r\n\
        Proxy-Connection: keep-alive\r\nTE: gzip\r\nUpgrade: h2c\r\nX-Public: 1\r\n",
    )
    .head;
    for name in [
        "x-private",
        "x-other",
        "keep-alive",
        "proxy-connection",
        "te",
        "upgrade",
    ] {
        assert!(!head.has(name), "{name} in {}", head.text);
    }
    assert_eq!(head.get("x-public"), Some("1"));
    let connection = head.get("connection").unwrap_or("keep-alive");
    assert!(
        connection.eq_ignore_ascii_case("keep-alive"),
        "{connection}"
    );
}

#[test]
fn connection_headers_of_clients_do_not_remove_headers_of_weir() {
    let head = sent(
        "proxy_set_header: { X-Real-IP: $remote_addr },",
        "Connection: close, Host, X-Forwarded-For, X-Forwarded-Proto, X-Real-IP, Via\r\n",
    )
    .head;
    for name in ["host", "x-real-ip", "via"] {
        assert!(head.has(name), "{name} missing in {}", head.text);
    }
    assert_eq!(head.get("x-real-ip"), Some("127.0.0.2"));
}

#[test]
fn nominating_the_length_does_not_break_the_framing() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    let mut client = Client::connect(weir.address());
    client.send(
        "POST /ok HTTP/1.1\r\nHost: a\r\nConnection: Content-Length\r\nContent-Length: 5\r\n\r\nhello",
    );
    let status = client.response().status;
    let seen = origin.seen();
    let whole = seen.len() == 1 && seen[0].body == b"hello";
    assert!(
        (status == 200 && whole) || (status == 400 && seen.is_empty()),
        "{status} {seen:?}"
    );
}

#[test]
fn the_backend_gets_the_clients_address_scheme_and_host() {
    let head = sent("", "").head;
    assert_eq!(head.get("x-forwarded-for"), Some("127.0.0.2"));
    assert_eq!(head.get("x-forwarded-proto"), Some("http"));
    assert_eq!(head.get("x-forwarded-host"), Some("shop.test:81"));
    let via: Vec<_> = head.all("via").collect();
    assert_eq!(via.len(), 1);
    assert!(via[0].starts_with("1.1 "), "{via:?}");
}

#[test]
fn the_address_we_saw_ourselves_stands_last() {
    let head = sent(
        "",
        "X-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: https\r\n",
    )
    .head;
    let all: Vec<_> = head.all("x-forwarded-for").collect();
    let last = all.last().and_then(|value| value.rsplit(',').next());
    assert_eq!(last.map(str::trim), Some("127.0.0.2"), "{all:?}");
    let protocol: Vec<_> = head.all("x-forwarded-proto").collect();
    assert_eq!(protocol, ["http"], "we saw no https");
}

#[test]
fn via_can_be_taken_away() {
    assert!(!sent("via: off,", "").head.has("via"));
    let head = sent("", "Via: 1.0 fred\r\n").head;
    let via = head.all("via").collect::<Vec<_>>().join(", ");
    assert!(via.starts_with("1.0 fred, 1.1 "), "{via}");
}

#[test]
fn header_fields_can_be_set_and_removed() {
    let head = sent(
        "proxy_set_header: { X-Uri: '$request_method $uri?$args', X-Gone: '', X-Id: $request_id,
        X-Forwarded-For: $proxy_add_x_forwarded_for },",
        "X-Uri: forged\r\nX-Gone: 1\r\nX-Forwarded-For: 10.0.0.1\r\n",
    )
    .head;
    assert_eq!(head.all("x-uri").collect::<Vec<_>>(), ["GET /ok?a=b"]);
    assert!(!head.has("x-gone"));
    assert_eq!(head.get("x-forwarded-for"), Some("10.0.0.1, 127.0.0.2"));
    let id = head.get("x-id").unwrap();
    assert!(
        id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{id}"
    );
}

#[test]
fn other_fields_pass_in_order_and_unchanged() {
    let head = sent(
        "",
        "X-A: 1\r\nX-B: caf\u{e9}\r\nX-A: 2\r\nCookie: a=b; c=\"d\"\r\nX-A: 1\r\n",
    )
    .head;
    assert_eq!(head.all("x-a").collect::<Vec<_>>(), ["1", "2", "1"]);
    assert_eq!(head.get("x-b"), Some("caf\u{e9}"));
    assert_eq!(head.get("cookie"), Some("a=b; c=\"d\""));
}

#[test]
fn headers_for_weir_are_not_forwarded_to_the_client() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    let response = get(weir.address(), "/hop-by-hop");
    for name in ["x-private", "keep-alive", "proxy-connection"] {
        assert!(!response.has(name), "{name} in {}", response.text);
    }
    let connection = response.get("connection").unwrap_or("keep-alive");
    assert!(
        connection.eq_ignore_ascii_case("keep-alive"),
        "{connection}"
    );
    assert_eq!(response.get("x-public"), Some("1"));
    assert_eq!(response.all("date").count(), 1);
}

#[test]
fn proxy_set_header_is_inherited_only_where_the_inner_level_gives_none() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "servers:
- listen: LISTEN
  proxy_set_header: { X-Outer: 'yes' }
  locations:
  - { path: /, proxy_pass: 'http://ORIGIN' }
  - { path: /own/, proxy_set_header: { X-Inner: 'yes' }, proxy_pass: 'http://ORIGIN' }
",
    );
    get(weir.address(), "/ok");
    get(weir.address(), "/own/ok");
    let seen = origin.seen();
    let found: Vec<_> = seen
        .iter()
        .map(|seen| (seen.head.has("x-outer"), seen.head.has("x-inner")))
        .collect();
    assert_eq!(found, [(true, false), (false, true)]);
}
