//! Requests that cost more or less than one, known when they come or only when they end.

use crate::support::{Client, Origin, Weir, eventually, get};

fn weir(origin: &Origin) -> Weir {
    Weir::before(
        origin,
        "workers: 1
admin: { listen: ADMIN }
log: { access: { path: '-', format: '$uri|$status|$limit_req_status|$upstream_http_x_cost' } }
limit_req_zones:
  slow: { key: $uri, size: 1m, rate: 1r/m }
  bytes: { key: $uri, size: 1m, rate: 1000r/s }
servers:
- listen: LISTEN
  proxy_pass: http://ORIGIN
  limit_req_log_level: info
  locations:
  - { path: /five/, limit_req: { zone: slow, burst: 9, nodelay: true, cost: 5 } }
  - { path: /half/, limit_req: { zone: slow, burst: 1, nodelay: true, cost: 0.5 } }
  - { path: /told/, limit_req: { zone: slow, burst: 9, nodelay: true, cost: $http_x_weight } }
  - { path: /answered/, limit_req: { zone: slow, burst: 9, nodelay: true, cost: $upstream_http_x_cost } }
  - { path: /down/, limit_req: { zone: bytes, cost: response_bytes } }
  - { path: /up/, client_max_body_size: 10m, limit_req: { zone: bytes, cost: request_bytes } }
",
    )
}

fn weighing(weir: &Weir, path: &str, weight: &str) -> u16 {
    let mut client = Client::connect(weir.address());
    client.send(format!(
        "GET {path} HTTP/1.1\r\nHost: a\r\nX-Weight: {weight}\r\n\r\n"
    ));
    client.response().status
}

fn is_refused(weir: &Weir, path: &str) {
    eventually("it is charged", || get(weir.address(), path).status == 429);
}

#[test]
fn the_cost_comes_from_the_rule_or_the_request() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let ask = |path: &str, times: usize| -> Vec<u16> {
        let asked = (0..times).map(|_| get(weir.address(), path).status);
        asked.collect()
    };
    // Nine ahead and one that is free: two of five.
    assert_eq!(ask("/five/ok", 3), [200, 200, 429]);
    assert_eq!(ask("/half/ok", 5), [200, 200, 200, 200, 429]);
    assert_eq!(weighing(&weir, "/told/a", "9.5"), 200);
    assert_eq!(weighing(&weir, "/told/a", "1"), 429);
    assert_eq!(weighing(&weir, "/told/a", "0.5"), 200);
    // More than there ever is.
    assert_eq!(weighing(&weir, "/told/b", "11"), 429);
    // What is not a number is one, and is told of.
    for wrong in ["-3", "many", "9999999999"] {
        assert_eq!(weighing(&weir, "/told/c", wrong), 200);
    }
    assert_eq!(weighing(&weir, "/told/c", "7"), 200);
    assert_eq!(weighing(&weir, "/told/c", "1"), 429);
    weir.error_line("\"-3\" is not a cost, counted as 1");
    let metrics = get(weir.admin_address(), "/metrics").text();
    assert!(metrics.contains("\nweir_bad_costs_total 3\n"), "{metrics}");
}

#[test]
fn a_cost_set_by_the_backend_is_charged_afterwards() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let path = "/answered/bytes?n=3&field=X-Cost:70";
    assert_eq!(get(weir.address(), path).status, 200);
    is_refused(&weir, path);
    let refused = get(weir.address(), path);
    // Sixty over the ten it may have: an hour.
    let wait: u64 = refused.get("retry-after").unwrap().parse().unwrap();
    assert!((3_500..=3_600).contains(&wait), "{wait}");
    assert_eq!(weir.access_line("|200|"), "/answered/bytes|200|PASSED|70");
}

#[test]
fn bytes_are_paid_when_they_have_gone_through() {
    let origin = Origin::start();
    let weir = weir(&origin);
    assert_eq!(get(weir.address(), "/down/bytes?n=100000").status, 200);
    is_refused(&weir, "/down/bytes?n=1");

    let mut client = Client::connect(weir.address());
    let body = "x".repeat(100_000);
    client.send(format!(
        "POST /up/ok HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n{body}"
    ));
    assert_eq!(client.response().status, 200);
    is_refused(&weir, "/up/ok");
}

/// Who leaves in the middle pays for what came through.
#[test]
fn an_aborted_request_is_paid_for_as_far_as_it_came() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let mut client = Client::connect(weir.address());
    client.get("/down/bytes?n=50000000");
    client.head();
    let mut taken = 0;
    while taken < 100_000 {
        taken += client.some(usize::MAX).len();
    }
    assert_eq!(
        get(weir.address(), "/down/bytes?n=1").status,
        200,
        "not yet"
    );
    client.reset();
    is_refused(&weir, "/down/bytes?n=1");
}
