//! `limit_conn`: a slot is held until the last byte has left, and released however the request ends.

mod aborts;
mod queue;

use crate::support::{Client, Origin, Weir, eventually, get, metric};

/// A weir where one request at a time may be in `/`, with more settings for that location.
fn one_at_a_time(origin: &Origin, settings: &str) -> Weir {
    Weir::before(
        origin,
        &format!(
            "limit_conn_zones: {{ places: {{ key: $binary_remote_addr, size: 1m }} }}
servers:
- listen: LISTEN
  locations:
  - {{ path: /, limit_conn: {{ zone: places, limit: 1 }}, {settings} proxy_pass: 'http://ORIGIN' }}
"
        ),
    )
}

/// Sends a request and waits until it is at the backend, where it stays until the gate opens.
fn hold(weir: &Weir, origin: &Origin, gate: &str) -> Client {
    origin.hold(gate, || {
        let client = Client::connect(weir.address());
        client.get(&format!("/hold?gate={gate}"));
        client
    })
}

fn comes_free(weir: &Weir) {
    eventually("a free place", || get(weir.address(), "/ok").status == 200);
}

#[test]
fn a_place_is_held_until_the_last_byte_has_left() {
    const LENGTH: usize = 64 << 20;
    let origin = Origin::start();
    let weir = one_at_a_time(&origin, "");
    let mut slow = Client::connect(weir.address());
    slow.get(&format!("/bytes?n={LENGTH}"));
    let mut left = slow.head().content_length().unwrap();
    while left > LENGTH / 2 {
        left -= slow.some(left).len();
    }
    assert_eq!(get(weir.address(), "/ok").status, 503);
    while left > 0 {
        left -= slow.some(left).len();
    }
    comes_free(&weir);
}

#[test]
fn a_slot_is_released_when_the_client_leaves_before_the_response() {
    let origin = Origin::start();
    let weir = one_at_a_time(&origin, "");
    let client = hold(&weir, &origin, "never");
    assert_eq!(get(weir.address(), "/ok").status, 503);
    drop(client);
    comes_free(&weir);
    let client = hold(&weir, &origin, "never");
    client.reset();
    comes_free(&weir);
}

#[test]
fn a_slot_is_released_when_the_client_leaves_during_the_response() {
    let origin = Origin::start();
    let weir = one_at_a_time(&origin, "");
    let mut client = Client::connect(weir.address());
    client.get("/chunked?gate=never");
    assert!(client.head().is_chunked());
    assert_eq!(get(weir.address(), "/ok").status, 503);
    drop(client);
    comes_free(&weir);
}

#[test]
fn a_place_comes_free_when_the_backend_dies() {
    let origin = Origin::start();
    let weir = one_at_a_time(&origin, "");
    for path in ["/reset", "/close-early", "/garbage"] {
        let mut client = Client::connect(weir.address());
        client.get(path);
        client.response();
        comes_free(&weir);
    }
}

#[test]
fn a_place_comes_free_when_a_timeout_ends_the_request() {
    let origin = Origin::start();
    let weir = one_at_a_time(
        &origin,
        "proxy_read_timeout: 300ms, client_body_timeout: 300ms, send_timeout: 300ms,",
    );
    assert_eq!(get(weir.address(), "/hang").status, 504);
    comes_free(&weir);
    // The client stays and does not send what it has promised.
    let client = Client::connect(weir.address());
    client.send("POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nsome");
    comes_free(&weir);
    // The client stays and does not read.
    let deaf = Client::connect(weir.address()).with_small_receive_buffer();
    deaf.get("/bytes?n=67108864");
    origin.await_count(3);
    comes_free(&weir);
}

#[test]
fn local_replies_release_their_slots() {
    let origin = Origin::start();
    let weir = one_at_a_time(&origin, "client_max_body_size: 10, deny: 127.0.0.9,");
    for _ in 0..3 {
        let mut client = Client::connect(weir.address());
        client.send("POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n");
        assert_eq!(client.response().status, 413);
        let mut client =
            Client::connect_from(std::net::Ipv4Addr::new(127, 0, 0, 9), weir.address());
        client.get("/ok");
        assert_eq!(client.response().status, 403);
    }
    comes_free(&weir);
}

#[test]
fn the_limit_holds_over_all_event_loops_together() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "admin: { listen: ADMIN }
limit_conn_zones: { places: { key: $server_name, size: 1m } }
servers:
- listen: LISTEN
  server_name: localhost
  locations: [ { path: /, limit_conn: { zone: places, limit: 10 }, proxy_pass: 'http://ORIGIN' } ]
",
    );
    let mut clients: Vec<_> = (0..40).map(|_| Client::connect(weir.address())).collect();
    for client in &mut clients {
        client.get("/hold?gate=g");
    }
    origin.gates().await_waiting("g", 10);
    let refused = "weir_limit_verdicts_total{zone=\"places\",verdict=\"refuse\"}";
    eventually("the others are refused", || metric(&weir, refused) == 30);
    assert_eq!(origin.count(), 10);
    origin.gates().open("g");
    let answers = clients.iter_mut().map(|client| client.response().status);
    assert_eq!(answers.filter(|status| *status == 200).count(), 10);
}

#[test]
fn a_refusal_has_its_reason() {
    let origin = Origin::start();
    let weir = one_at_a_time(&origin, "");
    let _held = hold(&weir, &origin, "g");
    let response = get(weir.address(), "/ok");
    assert_eq!(response.status, 503);
    let policy = response.get("ratelimit-policy").unwrap_or_default();
    assert_eq!(policy, "\"places\";q=1;qu=\"concurrent-requests\"");
    assert_eq!(response.get("ratelimit"), Some("\"places\";r=0"));
    let line = weir.error_line("limiting connections by zone \"places\"");
    assert!(line.contains("client: 127.0.0.1"), "{line}");
    origin.gates().open("g");
}

#[test]
fn the_status_of_a_place_is_known_to_the_log() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "log: { access: { path: '-', format: '$status $limit_conn_status $request_uri' } }
limit_conn_zones: { places: { key: $binary_remote_addr, size: 1m } }
servers:
- listen: LISTEN
  limit_conn: { zone: places, limit: 1 }
  locations:
  - { path: /, proxy_pass: 'http://ORIGIN' }
  - { path: /dry/, limit_conn_dry_run: true, proxy_pass: 'http://ORIGIN' }
",
    );
    let mut held = hold(&weir, &origin, "g");
    get(weir.address(), "/ok?second");
    get(weir.address(), "/dry/ok");
    origin.gates().open("g");
    assert_eq!(held.response().status, 200);
    assert_eq!(weir.access_line("/hold"), "200 PASSED /hold?gate=g");
    assert_eq!(weir.access_line("second"), "503 REJECTED /ok?second");
    assert_eq!(weir.access_line("/dry/"), "200 REJECTED_DRY_RUN /dry/ok");
}
