//! Slow and hostile clients: each kind is disconnected, and no other client notices.

use std::time::Duration;

use tokio::time::Instant;

use crate::support::{Client, Origin, PATIENCE, Weir, eventually, get, metric};

/// Any client can claim to be gRPC; where none is configured it is held to the minimum rate like others.
#[test]
fn a_body_that_drips_comes_to_an_end() {
    std::thread::scope(|scope| {
        for kind in ["text/plain", "application/grpc"] {
            scope.spawn(|| drips_in_vain(kind));
        }
    });
}

fn drips_in_vain(kind: &str) {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "admin: { listen: ADMIN }
client_body_timeout: 3s
client_body_min_rate: 1k
servers: [{ listen: LISTEN, proxy_pass: 'http://ORIGIN' }]
",
    );
    let mut client = Client::connect(weir.address());
    let began = Instant::now();
    client.send(format!(
        "POST /ok HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\nContent-Length: 100000\r\n\r\n"
    ));
    // Never a pause of three seconds, and never three thousand bytes in them.
    let mut answer = None;
    while answer.is_none() {
        client.try_send("x").ok();
        if !client.is_quiet(Duration::from_millis(50)) {
            answer = Some(());
        }
        assert!(began.elapsed() < PATIENCE, "it goes on for ever");
    }
    assert!(began.elapsed() >= Duration::from_secs(3));
    eventually("it is counted", || {
        metric(&weir, "weir_slow_clients_total{with=\"body\"}") == 1
    });
    if kind == "text/plain" {
        weir.access_line(" 408 ");
    }
    weir.error_line("too slowly");
}

#[test]
fn a_slow_body_that_keeps_its_rate_arrives() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "client_body_timeout: 3s
client_body_min_rate: 1k
servers: [{ listen: LISTEN, proxy_pass: 'http://ORIGIN' }]
",
    );
    let mut client = Client::connect(weir.address());
    client.send("POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 40000\r\n\r\n");
    // For longer than the time over which it is measured.
    for _ in 0..40 {
        client.send([b'x'; 1000]);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(client.response().status, 200);
    assert_eq!(origin.only().length, 40_000);
}

#[test]
fn a_response_received_too_slowly_is_cut_off() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "admin: { listen: ADMIN }
send_timeout: 2s
send_min_rate: 1g
servers: [{ listen: LISTEN, proxy_pass: 'http://ORIGIN' }]
",
    );
    let mut client = Client::connect(weir.address());
    client.get("/bytes?n=1000000000");
    client.head();
    // Always reading, a few megabytes a second.
    let began = Instant::now();
    let mut taken = 0;
    loop {
        match client.try_some(1 << 16) {
            Ok(bytes) if !bytes.is_empty() => taken += bytes.len(),
            _ => break,
        }
        std::thread::sleep(Duration::from_millis(10));
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{taken} bytes and no end"
        );
    }
    assert!(taken < 1_000_000_000);
    eventually("it is counted", || {
        metric(&weir, "weir_slow_clients_total{with=\"answer\"}") == 1
    });
    weir.error_line("takes its answer too slowly");
}

/// So many of each kind.
const EACH: usize = 150;

#[test]
fn hundreds_of_slow_clients_delay_no_other_client() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "admin: { listen: ADMIN }
log: { access: off }
buffers: { disk: 64m }
client_header_timeout: 4s
client_body_timeout: 4s
client_body_min_rate: 1k
send_timeout: 4s
keepalive_timeout: 4s
lingering_timeout: 1s
servers: [{ listen: LISTEN, proxy_pass: 'http://ORIGIN' }]
",
    );
    get(weir.address(), "/ok");
    let before = weir.resident();
    let connect = || Client::connect(weir.address());
    let mut dripping = Vec::new();
    let mut still = Vec::new();
    for _ in 0..EACH {
        // Says nothing; says half a head; asks once and stays; never takes its answer.
        still.push(connect());
        let head = connect();
        head.send("GET /ok HTTP/1.1\r\nHost: a\r\nX-Slow: ");
        dripping.push(head);
        let mut idle = connect();
        idle.get("/ok");
        idle.response();
        still.push(idle);
        let reader = connect().with_small_receive_buffer();
        reader.get("/bytes?n=20000000");
        still.push(reader);
        let body = connect();
        body.send("POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nx");
        dripping.push(body);
    }
    let (mut slowest, mut served) = (Duration::ZERO, 0);
    let began = Instant::now();
    // For longer than any of the limits.
    while began.elapsed() < Duration::from_secs(10) {
        for client in dripping.iter().skip(served % 16).step_by(16) {
            client.try_send("x").ok();
        }
        let asked = Instant::now();
        assert_eq!(get(weir.address(), "/ok").status, 200);
        slowest = slowest.max(asked.elapsed());
        served += 1;
    }
    assert!(served > 100, "only {served} were served");
    assert!(
        slowest < Duration::from_secs(2),
        "a client waited {slowest:?}"
    );
    let grown = weir.resident().saturating_sub(before);
    assert!(grown < 100 << 20, "{grown} bytes for {} clients", 5 * EACH);
    eventually("all of them are gone", || {
        metric(&weir, "weir_connections_active") == 0
    });
    drop((dripping, still));
}
