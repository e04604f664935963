//! Features of zones beyond nginx's: overrides for keys, prefixes, long and missing keys.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::support::{Client, Origin, Weir, eventually, get_from};

fn ask(weir: &Weir, fields: &str) -> u16 {
    let mut client = Client::connect(weir.address());
    client.send(format!("GET /ok HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
    client.response().status
}

fn with_zone(origin: &Origin, zone: &str) -> Weir {
    Weir::before(
        origin,
        &format!(
            "limit_req_zones:
  one: {{ size: 1m, rate: 1r/m, {zone} }}
servers:
- listen: LISTEN
  locations:
  - {{ path: /, limit_req: {{ zone: one, burst: 1, nodelay: true }}, proxy_pass: 'http://ORIGIN' }}
"
        ),
    )
}

#[test]
fn some_addresses_have_numbers_of_their_own() {
    let origin = Origin::start();
    let weir = with_zone(
        &origin,
        "key: $binary_remote_addr, overrides: {
          127.0.0.16/28: { rate: 1r/m, burst: 3 },
          127.0.0.20: { rate: 1r/m, burst: 5 } }",
    );
    for (number, expected) in [(2, 2), (17, 4), (18, 4), (20, 6)] {
        let passed = (0..8)
            .map(|_| get_from(Ipv4Addr::new(127, 0, 0, number), weir.address(), "/ok").status)
            .filter(|status| *status == 200)
            .count();
        assert_eq!(passed, expected, "127.0.0.{number}");
    }
}

#[test]
fn a_named_key_has_numbers_of_its_own() {
    let origin = Origin::start();
    let weir = with_zone(
        &origin,
        "key: $http_x_api_key, overrides: { partner: { rate: 100r/s, burst: 9 } }",
    );
    let passed = |key: &str| {
        (0..5)
            .map(|_| ask(&weir, &format!("X-Api-Key: {key}\r\n")))
            .filter(|status| *status == 200)
            .count()
    };
    assert_eq!(passed("stranger"), 2);
    assert_eq!(passed("partner"), 5);
    assert_eq!(passed("partner2"), 2);
}

#[test]
fn a_long_key_is_limited_by_all_of_it() {
    let origin = Origin::start();
    let weir = with_zone(&origin, "key: $http_x_api_key");
    let long = "k".repeat(5000);
    let first = format!("X-Api-Key: {long}1\r\n");
    let second = format!("X-Api-Key: {long}2\r\n");
    assert_eq!([0; 3].map(|_| ask(&weir, &first)), [200, 200, 429]);
    assert_eq!([0; 3].map(|_| ask(&weir, &second)), [200, 200, 429]);
}

#[test]
fn a_missing_key_is_skipped_or_counted_or_refused() {
    let origin = Origin::start();
    for (choice, expected) in [
        ("", [200; 4]),
        (", on_empty_key: skip", [200; 4]),
        (", on_empty_key: address", [200, 200, 429, 429]),
        (", on_empty_key: refuse", [429; 4]),
    ] {
        let weir = with_zone(&origin, &format!("key: $http_x_api_key{choice}"));
        assert_eq!([0; 4].map(|_| ask(&weir, "")), expected, "{choice:?}");
        assert_eq!(ask(&weir, "X-Api-Key: a\r\n"), 200, "{choice:?}");
        assert_eq!(ask(&weir, "X-Api-Key:\r\n"), expected[3], "{choice:?}");
    }
}

#[test]
fn flooding_a_zone_resets_no_bucket() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "log: { level: error, access: off }
limit_req_zones: { small: { key: $http_x_api_key, size: 32k, rate: 1r/m } }
servers:
- listen: LISTEN
  keepalive_requests: 100000
  locations:
  - { path: /, limit_req: { zone: small, burst: 1, nodelay: true }, proxy_pass: 'http://ORIGIN' }
",
    );
    let mut client = Client::connect(weir.address());
    let mut ask = |key: &str| {
        client.send(format!(
            "GET /ok HTTP/1.1\r\nHost: a\r\nX-Api-Key: {key}\r\n\r\n"
        ));
        client.response().status
    };
    assert_eq!([0; 3].map(|_| ask("attacker")), [200, 200, 429]);
    // Several times what 32k can hold; each of them owes nothing, so they make room for each other.
    for number in 0..5000 {
        assert_eq!(ask(&format!("key {number}")), 200);
    }
    assert_eq!(ask("attacker"), 429);
}

#[test]
fn clients_over_ipv6_are_limited_by_their_prefix() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "limit_req_zones:
  one: { key: $binary_remote_addr, size: 1m, rate: 1r/m, ipv6_prefix: 64 }
servers:
- listen: \"[::1]:PORT\"
  locations:
  - { path: /, limit_req: { zone: one }, proxy_pass: 'http://ORIGIN' }
",
    );
    let address = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), weir.port());
    let statuses = [0; 2].map(|_| get_from(Ipv6Addr::LOCALHOST, address, "/ok").status);
    assert_eq!(statuses, [200, 429]);
    let seen = origin.only();
    assert_eq!(seen.head.get("x-forwarded-for"), Some("::1"));
}

#[test]
fn clients_of_a_unix_socket_share_a_key() {
    use std::io::{Read, Write};
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "limit_req_zones: { one: { key: $binary_remote_addr, size: 1m, rate: 1r/m } }
servers:
- listen: [ LISTEN, 'unix:DIR/weir.sock' ]
  locations: [ { path: /, limit_req: { zone: one }, proxy_pass: 'http://ORIGIN' } ]
",
    );
    let connect = || std::os::unix::net::UnixStream::connect(weir.path("weir.sock"));
    // Listeners open one after the other, and the other one is waited for.
    eventually("the socket is listened on", || connect().is_ok());
    let ask = || {
        let mut stream = connect().unwrap();
        stream
            .write_all(b"GET /ok HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!([ask(), ask()], ["200", "429"]);
    assert_eq!(
        get_from(Ipv4Addr::LOCALHOST, weir.address(), "/ok").status,
        200
    );
}
