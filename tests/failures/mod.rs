//! Failing backends: the client gets nginx's status and sees truncated responses as truncated, and no request that may
//! have had an effect is sent twice.

use std::time::Duration;

use tokio::time::Instant;

use crate::support::ports::Port;
use crate::support::{Client, Nginx, Origin, Weir, get};

mod next_upstream;

/// A weir with one event loop before a group of servers, with more settings for its location.
fn group(servers: &[String], settings: &str) -> Weir {
    let servers = servers.join(", ");
    Weir::start(&format!(
        "workers: 1
log: {{ access: {{ path: '-', format: '$status [$upstream_addr] [$upstream_status] $request' }} }}
upstreams: {{ app: {{ keepalive: 8, servers: [ {servers} ] }} }}
servers:
- listen: LISTEN
  locations: [ {{ path: /, {settings} proxy_pass: app }} ]
"
    ))
}

fn server(origin: &Origin, settings: &str) -> String {
    format!("{{ address: '{}' {settings} }}", origin.address())
}

fn post(weir: &Weir, path: &str) -> u16 {
    let mut client = Client::connect(weir.address());
    client.send(format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
    ));
    client.response().status
}

#[test]
fn a_refused_connection_is_a_502() {
    let unused = Port::claim();
    let weir = group(&[format!("'{}'", unused.address())], "");
    let started = Instant::now();
    assert_eq!(get(weir.address(), "/ok").status, 502);
    assert!(started.elapsed() < Duration::from_secs(20), "at once");
    weir.access_line(&format!("502 [{}] [502] GET /ok", unused.address()));
    // The only server is never left alone: it is asked again, and answers once it is there.
    assert_eq!(get(weir.address(), "/ok").status, 502);
}

#[test]
fn a_silent_backend_is_a_504() {
    let origin = Origin::start();
    let weir = group(&[server(&origin, "")], "proxy_read_timeout: 500ms,");
    let started = Instant::now();
    assert_eq!(get(weir.address(), "/hang").status, 504);
    let waited = started.elapsed().as_millis();
    assert!((499..20_000).contains(&waited), "{waited} ms");
}

#[test]
fn a_backend_that_does_not_accept_is_a_504() {
    let listener =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    listener.bind(&any.into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    // One connection waits to be accepted; the kernel then lets the next ones knock in vain.
    let _waiting = std::net::TcpStream::connect(address).unwrap();
    let weir = group(&[format!("'{address}'")], "proxy_connect_timeout: 500ms,");
    let started = Instant::now();
    assert_eq!(get(weir.address(), "/ok").status, 504);
    let waited = started.elapsed().as_millis();
    assert!((499..20_000).contains(&waited), "{waited} ms");
}

#[test]
fn a_malformed_response_is_a_502() {
    let origin = Origin::start();
    let weir = group(&[server(&origin, "")], "");
    for path in ["/garbage", "/reset", "/both-lengths", "/two-lengths"] {
        let mut client = Client::connect(weir.address());
        client.get(path);
        assert_eq!(client.response().status, 502, "{path}");
        client.get("/ok");
        assert_eq!(client.response().text(), "ok", "after {path}");
    }
}

#[test]
fn a_truncated_response_is_seen_as_truncated() {
    let origin = Origin::start();
    let weir = group(&[server(&origin, "")], "proxy_read_timeout: 500ms,");
    for (path, begun) in [
        ("/close-early", "only this"),
        ("/cut-chunked", "hello"),
        ("/hang-body", "some"),
    ] {
        let mut client = Client::connect(weir.address());
        client.get(path);
        let response = client.response();
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, begun),
            "{path}"
        );
        assert!(!response.complete, "{path} must not look whole");
        assert!(client.is_closed());
    }
}

#[test]
fn bytes_after_a_response_are_not_the_next_one() {
    let origin = Origin::start();
    let weir = group(&[server(&origin, "")], "");
    let mut client = Client::connect(weir.address());
    for _ in 0..3 {
        client.get("/lie-length");
        assert_eq!(client.response().text(), "hello");
        client.get("/ok");
        assert_eq!(client.response().text(), "ok");
    }
}

#[test]
fn a_kept_connection_that_died_costs_a_get_nothing() {
    let origin = Origin::start();
    let weir = group(&[server(&origin, "")], "");
    for _ in 0..10 {
        assert_eq!(get(weir.address(), "/once").status, 200);
    }
    assert!(origin.count() > 10, "kept connections were tried");
}

#[test]
fn a_kept_connection_that_died_with_a_post_is_not_tried_again() {
    let origin = Origin::start();
    let weir = group(&[server(&origin, "")], "");
    assert_eq!(get(weir.address(), "/once").status, 200);
    assert_eq!(post(&weir, "/once"), 502);
    assert_eq!(origin.count(), 2, "sent once: it may have had an effect");
}

#[test]
fn weights_are_kept_as_smoothly_as_nginx_keeps_them() {
    let names = ["a", "b", "c"];
    let origins = names.map(Origin::named);
    let addresses = [0, 1, 2].map(|n| origins[n].address());
    let nginx = Nginx::before(
        &origins[0],
        &format!(
            "upstream app {{ server {} weight=5; server {}; server {}; }}
            server {{ listen LISTEN; location / {{ proxy_pass http://app; }} }}",
            addresses[0], addresses[1], addresses[2]
        ),
    );
    let weir = group(
        &[
            server(&origins[0], ", weight: 5"),
            server(&origins[1], ""),
            server(&origins[2], ""),
        ],
        "",
    );
    let order = |address| -> String {
        (0..14)
            .map(|_| {
                get(address, "/ok")
                    .get("x-origin")
                    .unwrap_or("?")
                    .to_owned()
            })
            .collect()
    };
    assert_eq!(order(weir.address()), order(nginx.address()));
    assert_eq!(order(weir.address()), "aabacaaaabacaa");
}

#[test]
fn backups_get_requests_only_without_other_servers() {
    let (first, second, third) = (Origin::named("a"), Origin::named("b"), Origin::named("c"));
    let weir = group(
        &[
            server(&first, ", max_fails: 1, fail_timeout: 60s"),
            server(&second, ", backup: true"),
            server(&third, ", down: true"),
        ],
        "",
    );
    for _ in 0..5 {
        assert_eq!(get(weir.address(), "/ok").get("x-origin"), Some("a"));
    }
    let first = first.always("/reset");
    for _ in 0..5 {
        assert_eq!(get(weir.address(), "/ok").get("x-origin"), Some("b"));
    }
    // Once more where it was a kept connection that failed, on a new one.
    assert!(matches!(first.count(), 6 | 7), "{}", first.count());
    assert_eq!(third.count(), 0);
}
