//! Requests that are too large for a backend: they do not count as its failures, and no other request fails.

use crate::support::{Client, Nginx, Origin, Weir, eventually, get};

/// A client's request with a field of this size.
fn ask_with(weir: &Weir, size: usize) -> u16 {
    let mut client = Client::connect(weir.address());
    let long = "v".repeat(size);
    client.send(format!(
        "GET /ok HTTP/1.1\r\nHost: a\r\nX-Long: {long}\r\n\r\n"
    ));
    client.response().status
}

/// The backend announces its limit, so it is never sent more.
#[test]
fn requests_larger_than_a_backend_accepts_are_not_sent() {
    let origin = Origin::start();
    let back = Weir::before(
        &origin,
        "large_client_header_buffers: 2 5k
log: { access: { path: '-', format: '$connection' } }
servers: [ { listen: LISTEN, proxy_pass: 'http://ORIGIN' } ]",
    );
    let front = Weir::start(&format!(
        "workers: 1
proxy_http_version: 2
servers: [ {{ listen: LISTEN, proxy_pass: 'http://{}' }} ]",
        back.address()
    ));
    for (size, status) in [(9_000, 200), (11_000, 431), (100, 200), (20_000, 431)] {
        assert_eq!(ask_with(&front, size), status, "{size}");
    }
    assert_eq!(origin.count(), 2);
    front.error_line("client sent larger request headers than upstream accepts");
    eventually("both are logged", || back.stdout().lines().count() == 2);
    let connections: Vec<_> = back.stdout().lines().map(str::to_owned).collect();
    assert_eq!(connections[0], connections[1], "all over one connection");
}

/// nginx does not say, and ends the connection with all that others have on it.
#[test]
fn a_backend_that_ends_its_connection_over_one_client_is_not_blamed() {
    let origin = Origin::start();
    let http = "server { listen LISTEN http2; location / { proxy_pass http://ORIGIN; } }";
    let backends = [Nginx::before(&origin, http), Nginx::before(&origin, http)];
    let front = Weir::start(&format!(
        "workers: 1
large_client_header_buffers: 4 16k
proxy_http_version: 2
upstreams:
  app: {{ servers: [ {{ address: '{}', max_fails: 1, fail_timeout: 60s }}, {{ address: '{}', max_fails: 1, fail_timeout: 60s }} ] }}
servers: [ {{ listen: LISTEN, proxy_pass: app }} ]",
        backends[0].address(),
        backends[1].address()
    ));
    let mut waiting: Vec<_> = (0..2).map(|_| Client::connect(front.address())).collect();
    for client in &waiting {
        client.get("/hold?gate=g");
    }
    origin.gates().await_waiting("g", 2);
    for _ in 0..4 {
        assert_eq!(ask_with(&front, 20_000), 431);
    }
    for _ in 0..4 {
        assert_eq!(get(front.address(), "/ok").status, 200);
    }
    origin.gates().open("g");
    for client in &mut waiting {
        assert_eq!(client.response().status, 200, "it is asked again");
    }
    let log = front.stderr();
    assert!(!log.contains("temporarily disabled"), "{log}");
}
