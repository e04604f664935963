//! `Max-Forwards`: in a chain of gateways each decrements it, and the one that gets 0 responds.

use super::forwarding;
use crate::http2::curl;
use crate::support::client::Response;
use crate::support::{Client, Origin, Weir};

/// A weir that forwards to another in this version of HTTP, which forwards in HTTP/1.1.
fn chain(origin: &Origin, version: &str) -> (Weir, Weir) {
    let back = Weir::before(
        origin,
        "servers: [ { listen: LISTEN, proxy_pass: 'http://ORIGIN' } ]\n",
    );
    let yaml =
        "servers: [ { listen: LISTEN, proxy_http_version: VERSION, proxy_pass: 'http://BACK' } ]\n";
    let yaml = yaml.replace("VERSION", version);
    let front = Weir::start(&yaml.replace("BACK", &back.address().to_string()));
    (front, back)
}

fn ask(weir: &Weir, method: &str, target: &str, fields: &str) -> Response {
    let mut client = Client::connect(weir.address());
    client.send(format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"
    ));
    client.response()
}

#[test]
fn each_gateway_decrements_max_forwards_and_the_last_responds() {
    let origin = Origin::start();
    for version in ["1.1", "2"] {
        let (front, _back) = chain(&origin, version);
        for target in ["/ok", "*"] {
            let before = origin.count();
            for hops in ["0", "1"] {
                let fields = format!("Max-Forwards: {hops}\r\n");
                let answer = ask(&front, "OPTIONS", target, &fields);
                assert_eq!((answer.status, answer.text()), (200, String::new()));
                assert_eq!(answer.get("content-length"), Some("0"));
                let allowed = answer.get("allow").unwrap_or_default();
                assert!(allowed.contains("GET") && !allowed.contains("TRACE"));
            }
            assert_eq!(origin.count(), before, "{version} {target}");
        }
        let seen = |fields: &str| {
            assert_eq!(ask(&front, "OPTIONS", "/ok", fields).status, 200);
            let seen = origin.seen();
            let head = &seen.last().expect("it came through").head;
            let values: Vec<_> = head.all("max-forwards").map(str::to_owned).collect();
            values
        };
        assert_eq!(seen("Max-Forwards: 2\r\n"), ["0"], "{version}");
        assert_eq!(seen("Max-Forwards: 0012\r\n"), ["10"]);
        let nominated = "Connection: max-forwards\r\nMax-Forwards: 5\r\n";
        assert_eq!(
            seen(nominated),
            ["3"],
            "the connection option has no effect"
        );
        assert_eq!(
            seen("Max-Forwards: 99999999999999999999999\r\n"),
            [(u64::MAX - 2).to_string()]
        );
        assert!(seen("").is_empty());
    }
}

#[test]
fn malformed_max_forwards_is_refused() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    for value in ["-1", "1, 2", "many", "", "1\r\nMax-Forwards: 1"] {
        let fields = format!("Max-Forwards: {value}\r\n");
        assert_eq!(ask(&weir, "OPTIONS", "/ok", &fields).status, 400, "{value}");
    }
    assert_eq!(origin.count(), 0);
    // It says nothing about other methods, and goes on as it is.
    for method in ["GET", "POST", "DELETE"] {
        assert_eq!(ask(&weir, method, "/ok", "Max-Forwards: 0\r\n").status, 200);
        let seen = origin.seen();
        let head = &seen.last().expect("it came through").head;
        assert_eq!(head.get("max-forwards"), Some("0"));
    }
}

#[test]
fn trace_is_refused_with_any_max_forwards() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    for fields in ["", "Max-Forwards: 0\r\n", "Max-Forwards: 3\r\n"] {
        let answer = ask(&weir, "TRACE", "/ok", fields);
        assert_eq!(answer.status, 405);
        assert!(answer.get("allow").is_some_and(|it| !it.contains("TRACE")));
    }
    assert_eq!(origin.count(), 0);
}

/// An answer of weir's own is no way around what holds at a location.
#[test]
fn local_replies_are_limited_like_proxied_requests() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "limit_req_zones: { one: { key: $binary_remote_addr, rate: 1r/m } }
degrade_groups: { extras: on }
upstreams: { app: { servers: ['ORIGIN'] } }
servers:
- listen: LISTEN
  proxy_pass: app
  locations:
  - { path: /limited/, limit_req: { zone: one, burst: 1, nodelay: true } }
  - { path: /denied/, deny: all }
  - { path: /spare/, degrade_group: extras, fallback: { proxy_pass: app } }
  - { path: /returned/, return: 204 }
",
    );
    let status = |path: &str| ask(&weir, "OPTIONS", path, "Max-Forwards: 0\r\n").status;
    assert_eq!([(); 3].map(|()| status("/limited/ok")), [200, 200, 429]);
    assert_eq!(status("/denied/ok"), 403);
    assert_eq!(status("/returned/ok"), 204);
    assert_eq!(status("/spare/ok"), 503, "not by the back door either");
    assert_eq!(origin.count(), 0);
}

#[test]
fn http2_clients_get_the_same_responses() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "");
    let url = format!("http://{}/ok", weir.address());
    let ask = |method: &str, hops: &str| {
        let field = format!("Max-Forwards: {hops}");
        curl(&["-i", "-X", method, "-H", &field, &url])
    };
    let answer = ask("OPTIONS", "0");
    assert!(answer.starts_with("HTTP/2 200"), "{answer}");
    assert!(answer.contains("\nallow: GET, "), "{answer}");
    assert!(ask("TRACE", "0").starts_with("HTTP/2 405"));
    assert!(ask("OPTIONS", "x").starts_with("HTTP/2 400"));
    assert_eq!(origin.count(), 0);
    assert!(ask("OPTIONS", "1").starts_with("HTTP/2 200"));
    assert_eq!(origin.only().head.get("max-forwards"), Some("0"));
}
