//! A request body is buffered before the request is forwarded.

use std::process::Command;

use super::{forwarding, full, in_use, post};
use crate::support::{Client, Origin, eventually, get, metric};

/// More than is kept in memory.
const LONG: usize = 1 << 20;

fn long() -> Vec<u8> {
    (0..LONG).map(|at| (at % 251) as u8).collect()
}

#[test]
fn a_backend_hears_of_a_request_when_all_of_it_is_there() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "", "");
    let mut client = Client::connect(weir.address());
    post(&client, 11);
    client.send("hello");
    // Another client is served meanwhile, and no other request has reached the backend.
    assert_eq!(get(weir.address(), "/ok").status, 200);
    assert_eq!(origin.count(), 1);
    client.send(" world");
    assert_eq!(client.response().status, 200);
    let seen = &origin.seen()[1];
    assert_eq!(seen.body, b"hello world");
    assert_eq!(seen.head.get("content-length"), Some("11"));
}

#[test]
fn a_chunked_body_is_sent_with_its_length() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "", "");
    let mut client = Client::connect(weir.address());
    for (body, length) in [
        ("5\r\nfirst\r\n6\r\nsecond\r\n0\r\nX-Sum: 1\r\n\r\n", 11),
        ("2\r\nab\r\n0\r\n\r\n", 2),
        ("0\r\n\r\n", 0),
    ] {
        let before = origin.count();
        client.send("POST /ok HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send(body);
        assert_eq!(client.response().status, 200);
        let seen = &origin.seen()[before];
        assert_eq!(seen.head.content_length(), Some(length), "{body}");
        assert!(!seen.head.has("transfer-encoding"));
        assert_eq!(seen.length, length);
        // As with nginx: what has a length has no trailers.
        assert!(seen.trailers.is_empty());
    }
}

#[test]
fn a_long_body_is_buffered_in_an_unlinked_file() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "buffers: { path: DIR }", "");
    let files = || std::fs::read_dir(weir.path("")).unwrap().count();
    let before = files();
    let mut client = Client::connect(weir.address());
    post(&client, LONG);
    let body = long();
    client.send(&body[..LONG / 2]);
    eventually("half of it is taken in", || {
        in_use(&weir, "disk") + in_use(&weir, "memory") >= (LONG / 2) as u64
    });
    assert!(in_use(&weir, "memory") <= 128 << 10);
    assert_eq!((files(), origin.count()), (before, 0));
    client.send(&body[LONG / 2..]);
    assert_eq!(client.response().status, 200);
    let seen = origin.only();
    assert_eq!((seen.length, seen.complete), (LONG, true));
    assert!(body.starts_with(&seen.body));
    eventually("all is given back", || {
        in_use(&weir, "disk") + in_use(&weir, "memory") == 0
    });
}

#[test]
fn off_streams_the_body_as_it_comes() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "", "proxy_request_buffering: off,");
    let mut client = Client::connect(weir.address());
    client.send("POST /ok HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
    eventually("the first chunk at the backend", || {
        origin.seen().iter().any(|seen| seen.body == b"first")
    });
    client.send("0\r\n\r\n");
    assert_eq!(client.response().status, 200);
    assert!(origin.only().head.is_chunked());
}

#[test]
fn a_client_with_expect_gets_100_continue() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "", "");
    let mut client = Client::connect(weir.address());
    client
        .send("POST /ok HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    assert_eq!(client.head().word(1), "100");
    assert_eq!(origin.count(), 0);
    client.send("ok");
    assert_eq!(client.response().status, 200);
    assert!(!origin.only().head.has("expect"));
}

#[test]
fn an_incomplete_request_is_not_forwarded() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "", "");
    for reset in [false, true] {
        let client = Client::connect(weir.address());
        post(&client, LONG);
        client.send(&long()[..LONG / 2]);
        eventually("some of it is taken in", || in_use(&weir, "disk") > 0);
        match reset {
            true => client.reset(),
            false => drop(client),
        }
        eventually("it is let go", || in_use(&weir, "disk") == 0);
    }
    eventually("both are in the log", || {
        weir.stdout().matches("\"POST /ok HTTP/1.1\" 4").count() == 2
    });
    assert_eq!(origin.count(), 0);
}

#[test]
fn bounds_in_size_and_time_hold_while_it_is_taken_in() {
    let origin = Origin::start();
    let settings = "client_max_body_size: 100k, client_body_timeout: 100ms,";
    let weir = forwarding(&origin, "", settings);
    let mut large = Client::connect(weir.address());
    large.send("POST /ok HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunk = "x".repeat(10_000);
    for _ in 0..11 {
        // It may have answered by then.
        large.try_send(format!("2710\r\n{chunk}\r\n")).ok();
    }
    assert_eq!(large.response().status, 413);
    let mut pausing = Client::connect(weir.address());
    post(&pausing, 10);
    pausing.send("hello");
    assert_eq!(pausing.response().status, 408);
    assert_eq!(origin.count(), 0);
}

#[test]
fn a_client_of_http2_sends_as_fast_as_it_can() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "", "client_max_body_size: 8m,");
    let body = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(body.path(), long().repeat(4)).unwrap();
    let url = format!("http://{}/ok", weir.address());
    let said = Command::new("curl")
        .args(["-sS", "--http2-prior-knowledge", "--data-binary"])
        .arg(format!("@{}", body.path().display()))
        .args(["-w", " %{http_code} %{http_version}", &url])
        .output()
        .expect("curl is installed");
    assert_eq!(String::from_utf8_lossy(&said.stdout), "ok 200 2");
    let seen = origin.only();
    assert_eq!(seen.head.content_length(), Some(4 * LONG));
    assert_eq!((seen.length, seen.complete), (4 * LONG, true));
}

#[test]
fn a_body_that_is_there_with_its_head_takes_nothing() {
    let origin = Origin::start();
    let weir = forwarding(&origin, "", "");
    let mut client = Client::connect(weir.address());
    client.send(format!(
        "POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 2000\r\n\r\n{}",
        "x".repeat(2000)
    ));
    origin.gates().await_waiting("gate", 1);
    assert_eq!(in_use(&weir, "memory") + in_use(&weir, "disk"), 0);
    origin.gates().open("gate");
    assert_eq!(client.response().status, 200);
    assert_eq!(full(&weir, "memory"), 0);
}

#[test]
fn only_complete_requests_wait_in_the_queue_of_an_upstream() {
    let origin = Origin::start();
    let yaml = "admin: { listen: ADMIN }
upstreams: { app: { queue: { size: 1, timeout: 10s }, servers: [{ address: ORIGIN, max_conns: 1 }] } }
servers: [{ listen: LISTEN, proxy_pass: app }]
";
    let weir = crate::support::Weir::before(&origin, yaml);
    let slow: Vec<_> = (0..5).map(|_| Client::connect(weir.address())).collect();
    for client in &slow {
        post(client, 10);
        client.send("hello");
    }
    // None of them takes the only place, or stands in line for it.
    assert_eq!(get(weir.address(), "/ok").status, 200);
    assert_eq!(metric(&weir, "weir_upstream_queue_length"), 0);
    assert_eq!(origin.count(), 1);
}
