//! Persistent connections: idle ones, and how they are spread over the event loops.

use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use crate::support::{Client, Origin, Weir, eventually};

/// Longer than an idle connection keeps its buffers.
const REST: Duration = Duration::from_millis(1200);

#[test]
fn counts_of_a_connection_continue_after_idling() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "log: { access: { path: DIR/access.log, format: '$connection $connection_requests' } }
servers:
- listen: LISTEN
  keepalive_requests: 3
  locations: [ { path: /, proxy_pass: 'http://ORIGIN' } ]
",
    );
    let mut client = Client::connect(weir.address());
    for number in 1..=3 {
        if number > 1 {
            thread::sleep(REST);
        }
        client.get("/ok");
        let response = client.response();
        assert_eq!(response.status, 200);
        let closes = response.head.get("connection") == Some("close");
        assert_eq!(closes, number == 3, "request {number}");
    }
    assert!(client.is_closed());
    eventually("three lines", || {
        weir.file("access.log").lines().count() == 3
    });
    let lines = weir.file("access.log");
    let mut lines = lines.lines().map(|line| line.split_once(' ').unwrap());
    let (connection, _) = lines.clone().next().unwrap();
    for number in ["1", "2", "3"] {
        assert_eq!(lines.next(), Some((connection, number)));
    }
}

#[test]
fn a_rest_does_not_lengthen_keepalive_timeout() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "servers:
- listen: LISTEN
  keepalive_timeout: 2s
  locations: [ { path: /, proxy_pass: 'http://ORIGIN' } ]
",
    );
    let mut client = Client::connect(weir.address());
    let asked = Instant::now();
    client.get("/ok");
    assert_eq!(client.response().status, 200);
    assert!(client.is_closed());
    assert!(asked.elapsed() >= Duration::from_millis(1900), "too early");
}

#[test]
fn a_stop_finishes_the_requests_of_all_event_loops() {
    let origin = Origin::start();
    let mut weir = Weir::before(
        &origin,
        "workers: 2
shutdown_timeout: 20s
servers:
- listen: LISTEN
  locations: [ { path: /, proxy_pass: 'http://ORIGIN' } ]
",
    );
    // More at once than two loops hand each other without a pause.
    let mut clients: Vec<Client> = (0..200).map(|_| Client::connect(weir.address())).collect();
    for client in &clients {
        client.get("/hold?gate=g");
    }
    origin.gates().await_waiting("g", clients.len());
    weir.signal("TERM");
    origin.gates().open("g");
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
        assert!(client.is_closed());
    }
    assert_eq!(weir.wait().code(), Some(0));
}
