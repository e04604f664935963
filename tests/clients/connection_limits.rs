//! Limits on connections, in all and from one address.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::time::Instant;

use crate::support::{Client, Metrics, Origin, Weir, eventually, metric, millis_since};

const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn opened(client: &mut Client) -> bool {
    client
        .try_send("GET /ok HTTP/1.1\r\nHost: a\r\n\r\n")
        .is_ok()
        && client.try_response().is_ok()
}

/// How many connections there have been; before the first, nothing is said of them.
fn accepted(weir: &Weir) -> f64 {
    let accepted = Metrics::of(weir).value("weir_connections_accepted_total");
    accepted.unwrap_or_default()
}

/// The one that looked whether weir was up has to have come and gone first.
fn until_no_client_is_connected(weir: &Weir) {
    eventually("no client is connected", || {
        accepted(weir) > 0.0 && metric(weir, "weir_connections_active") == 0
    });
}

#[test]
fn an_address_has_a_share() {
    let weir = Weir::start(
        "admin: { listen: ADMIN }
max_connections_per_address: 3
servers: [{ listen: LISTEN, return: 204 }]
",
    );
    until_no_client_is_connected(&weir);
    let began = Instant::now();
    let mut kept: Vec<_> = (0..3).map(|_| Client::connect(weir.address())).collect();
    assert!(kept.iter_mut().all(opened));
    for _ in 0..20 {
        assert!(Client::connect(weir.address()).is_closed());
    }
    let mut other = Client::connect_from(OTHER, weir.address());
    assert!(opened(&mut other), "others have their own");
    assert!(kept.iter_mut().all(opened), "those who are there stay");
    let name = "weir_connections_refused_total{cap=\"max_connections_per_address\"}";
    assert_eq!(metric(&weir, name), 20);
    let line = weir.error_line("max_connections_per_address");
    assert!(line.contains("127.0.0.1"), "{line}");
    let lines = weir.stderr().matches("max_connections_per_address").count();
    // One a second.
    let most = 2 + millis_since(began) / 1000;
    assert!(lines as u64 <= most, "{lines} lines for 20 connections");
    kept.pop();
    eventually("a place is free again", || {
        opened(&mut Client::connect(weir.address()))
    });
}

#[test]
fn the_connection_idle_for_longest_makes_room() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "admin: { listen: ADMIN }
max_connections: 4
workers: 2
servers: [{ listen: LISTEN, proxy_pass: 'http://ORIGIN' }]
",
    );
    until_no_client_is_connected(&weir);
    let busy = origin.hold("g", || {
        let client = Client::connect(weir.address());
        client.get("/hold?gate=g");
        client
    });
    let mut idle: Vec<_> = (0..3)
        .map(|_| {
            let mut client = Client::connect(weir.address());
            assert!(opened(&mut client));
            // Told apart by their last request, in milliseconds.
            std::thread::sleep(Duration::from_millis(20));
            client
        })
        .collect();
    assert!(opened(&mut idle[0]), "now the second is the longest idle");
    let mut fifth = Client::connect(weir.address());
    assert!(opened(&mut fifth));
    assert!(idle[1].is_closed());
    assert!(opened(&mut idle[0]) && opened(&mut idle[2]));
    assert_eq!(metric(&weir, "weir_connections_evicted_total"), 1);
    drop((busy, idle, fifth));
}

#[test]
fn with_all_at_work_one_more_is_closed() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "admin: { listen: ADMIN }
max_connections: 3
servers: [{ listen: LISTEN, proxy_pass: 'http://ORIGIN' }]
",
    );
    until_no_client_is_connected(&weir);
    let mut busy: Vec<_> = (0..3)
        .map(|_| {
            origin.hold("g", || {
                let client = Client::connect(weir.address());
                client.get("/hold?gate=g");
                client
            })
        })
        .collect();
    for _ in 0..5 {
        assert!(Client::connect(weir.address()).is_closed());
    }
    let name = "weir_connections_refused_total{cap=\"max_connections\"}";
    assert!(metric(&weir, name) >= 5);
    weir.error_line("max_connections are open and busy");
    origin.gates().open("g");
    assert!(
        busy.iter_mut()
            .all(|client| client.response().status == 200)
    );
    eventually("idle now, they make room", || {
        opened(&mut Client::connect(weir.address()))
    });
}

/// Silence is no way to keep a place.
#[test]
fn connections_without_a_request_are_closed_first() {
    let weir = Weir::start(
        "admin: { listen: ADMIN }
max_connections: 50
servers: [{ listen: LISTEN, return: 204 }]
",
    );
    let silent: Vec<_> = (0..50).map(|_| Client::connect(weir.address())).collect();
    eventually("they have all been let in", || accepted(&weir) > 50.0);
    let mut polite: Vec<_> = (0..20)
        .map(|_| {
            let mut client = Client::connect(weir.address());
            assert!(opened(&mut client));
            client
        })
        .collect();
    assert!(polite.iter_mut().all(opened), "those who ask stay");
    assert!(metric(&weir, "weir_connections_evicted_total") >= 20);
    assert!(metric(&weir, "weir_connections_active") <= 50);
    drop(silent);
}

/// Nor is half a word.
#[test]
fn connections_with_incomplete_headers_make_room() {
    for word in [
        "GET ",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0",
    ] {
        let weir = Weir::start(
            "admin: { listen: ADMIN }
max_connections: 20
servers: [{ listen: LISTEN, return: 204 }]
",
        );
        let half: Vec<_> = (0..20)
            .map(|_| {
                let client = Client::connect(weir.address());
                client.send(word);
                client
            })
            .collect();
        eventually("they have all been let in", || accepted(&weir) > 20.0);
        eventually("a newcomer is served", || {
            opened(&mut Client::connect(weir.address()))
        });
        drop(half);
    }
}
