//! Slow clients of the admin listener: connections that are silent, send slowly, read slowly or stay idle.

use std::process::Command;
use std::time::Duration;

use tokio::time::Instant;

use crate::support::{Client, Weir, eventually, weir};

const PROBE: &str = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn started() -> Weir {
    let weir = Weir::start(
        "admin: { listen: ADMIN }
servers: [ { listen: LISTEN, return: 204 } ]
",
    );
    let admin = weir.admin_address();
    eventually("the admin listener", || Client::try_connect(admin).is_ok());
    weir
}

/// As many connections as are wanted, after something was sent on each.
fn connected(weir: &Weir, count: usize, sent: &str) -> Vec<Client> {
    let connected = (0..count).map(|_| {
        let client = Client::connect(weir.admin_address());
        // The oldest may have been closed meanwhile.
        let _sent = client.try_send(sent);
        client
    });
    connected.collect()
}

/// Asks as a client would, and how long the answer took.
fn probe(weir: &Weir) -> Duration {
    let began = Instant::now();
    let mut client = Client::connect(weir.admin_address());
    client.send(PROBE);
    assert_eq!(client.response().status, 200);
    began.elapsed()
}

#[test]
fn the_probe_is_served_among_a_thousand_silent_connections() {
    let weir = started();
    let address = weir.admin_address().to_string();
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.extend(connected(&weir, 100, ""));
        let took = probe(&weir);
        assert!(took < Duration::from_secs(1), "{took:?}");
        let output = weir::output(&["health", "--admin", &address]);
        assert!(output.status.success(), "{output:?}");
        let curl = Command::new("curl")
            .args(["-sS", "--max-time", "1", "-o", "/dev/null"])
            .args(["-w", "%{http_code}", &format!("http://{address}/healthz")])
            .output()
            .expect("curl is installed");
        assert_eq!(String::from_utf8_lossy(&curl.stdout), "200", "{curl:?}");
    }
    weir.error_line("connections without a request made room");
    // Only the newest are still there.
    assert!(weir.descriptors() < 300, "{}", weir.descriptors());
}

#[test]
fn incomplete_headers_and_idle_connections_make_room() {
    let weir = started();
    for sent in ["G", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n", PROBE] {
        let _held = connected(&weir, 200, sent);
        let took = probe(&weir);
        assert!(took < Duration::from_secs(1), "{sent:?} {took:?}");
    }
}

#[test]
fn slow_request_headers_time_out() {
    let weir = started();
    let began = Instant::now();
    let client = Client::connect(weir.admin_address());
    client.send("GET /healthz HTTP/1.1\r\nX-Drip: ");
    let gone = || client.try_send("a").is_err();
    while !gone() {
        let took = began.elapsed();
        assert!(took < Duration::from_secs(20), "{took:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A connection may be used again after a while, and its next request has its own time.
#[test]
fn an_idle_connection_may_ask_again() {
    let weir = started();
    let mut client = Client::connect(weir.admin_address());
    for pause in [0, 6_000, 0] {
        std::thread::sleep(Duration::from_millis(pause));
        client.send(PROBE);
        assert_eq!(client.response().status, 200);
    }
}
