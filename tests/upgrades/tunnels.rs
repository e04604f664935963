//! The bytes in a tunnel, and how it ends.

use std::time::Duration;

use tokio::time::Instant;

use super::backend::FLOOD;
use super::{Far, ask, before, read, request};
use crate::support::{Client, eventually};

#[test]
fn bytes_pass_both_ways_and_both_ends_see_the_end() {
    let far = Far::start();
    let weir = before(far.address(), "", "");
    let mut client = ask(&weir, "/echo", "");
    let head = client.head();
    assert_eq!(head.line, "HTTP/1.1 101 Switching Protocols");
    assert_eq!(head.get("connection"), Some("upgrade"));
    assert_eq!(head.get("upgrade"), Some("ECHO/1"));
    assert_eq!(head.get("x-end"), Some("2"));
    assert!(!head.has("x-hop") && !head.has("content-length") && !head.has("transfer-encoding"));
    for word in ["GET / HTTP/1.1\r\n\r\n", "\0\r\n", "0\r\n\r\n"] {
        client.send(word);
        assert_eq!(read(&mut client, word.len()), word);
    }
    // Its last word comes after we have said ours.
    client.finish_sending();
    assert_eq!(read(&mut client, 1), "!");
    assert!(client.is_closed());
    eventually("the end at the backend", || far.open() == 0);
    let sent = far.heads();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].get("connection"), Some("upgrade"));
    assert_eq!(sent[0].get("upgrade"), Some("echo/1"));
    assert_eq!(sent[0].get("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(sent[0].all("connection").count(), 1);
    // 26 bytes came back, one more was said; the head was of 69 bytes, and as many followed.
    let line = weir.access_line("/echo");
    assert!(line.starts_with("/echo 101 27 95 101 "), "{line}");
}

#[test]
fn bytes_that_arrive_with_the_headers_are_not_lost() {
    let far = Far::start();
    let weir = before(far.address(), "", "");
    let mut client = ask(&weir, "/hello", "early");
    client.head();
    assert_eq!(read(&mut client, 10), "helloearly");
    let more = "x".repeat(30_000);
    let mut client = ask(&weir, "/hello", &more);
    client.head();
    assert_eq!(read(&mut client, 30_005), format!("hello{more}"));
    // And where a head comes byte by byte, with the first byte of the tunnel close behind.
    let mut client = Client::connect(weir.address());
    for byte in request("/hello", "z").bytes() {
        client.send([byte]);
    }
    client.head();
    assert_eq!(read(&mut client, 6), "helloz");
}

#[test]
fn a_backend_may_end_first_and_go_on_listening() {
    let far = Far::start();
    let weir = before(far.address(), "", "");
    let mut client = ask(&weir, "/bye", "");
    client.head();
    assert_eq!(read(&mut client, 3), "bye");
    assert!(client.is_closed(), "its end is passed on");
    client.send("still here");
    eventually("what was said after it", || far.heard() == "still here");
    client.finish_sending();
    eventually("the end", || far.open() == 0);
    assert!(weir.access_line("/bye").starts_with("/bye 101 3 "));
}

#[test]
fn a_client_that_vanishes_releases_the_backend() {
    let far = Far::start();
    let weir = before(far.address(), "", "");
    let mut client = ask(&weir, "/echo", "");
    client.head();
    client.send("x");
    read(&mut client, 1);
    client.reset();
    eventually("the end at the backend", || far.open() == 0);
    weir.access_line("/echo 101 1 ");
}

#[test]
fn a_tunnel_over_a_connection_that_was_used_before() {
    let far = Far::start();
    let weir = before(far.address(), "", "");
    let mut client = Client::connect(weir.address());
    for _ in 0..3 {
        client.get("/ok");
        assert_eq!(client.response().text(), "ok");
    }
    // Refused, the connection goes on.
    client.send(request("/no", ""));
    let refused = client.response();
    assert_eq!((refused.status, refused.text().as_str()), (426, "no"));
    assert!(!refused.has("upgrade"));
    client.get("/ok");
    assert_eq!(client.response().text(), "ok");
    client.send(request("/echo", "on"));
    assert_eq!(client.head().word(1), "101");
    assert_eq!(read(&mut client, 2), "on");
}

#[test]
fn silence_ends_a_tunnel_and_a_word_from_either_side_does_not() {
    let far = Far::start();
    let weir = before(far.address(), "", "proxy_read_timeout: 3s,");
    let start = Instant::now();
    let mut client = ask(&weir, "/echo", "");
    client.head();
    for _ in 0..5 {
        assert!(client.is_quiet(Duration::from_millis(700)), "not yet");
        client.send("x");
        assert_eq!(read(&mut client, 1), "x");
    }
    assert!(start.elapsed() > Duration::from_secs(3));
    assert!(client.is_closed());
    eventually("the end at the backend", || far.open() == 0);
    weir.access_line("/echo 101 5 ");
}

#[test]
fn a_client_that_does_not_read_holds_the_backend_back() {
    let far = Far::start();
    let weir = before(far.address(), "", "");
    let mut client = ask(&weir, "/flood", "");
    client.head();
    // It stops when every buffer between the two is full.
    let mut last = 0;
    eventually("the flood held back", || {
        std::thread::sleep(Duration::from_millis(200));
        let written = far.written();
        std::mem::replace(&mut last, written) == written && written > 0
    });
    assert!(far.written() < FLOOD / 2, "{} taken in", far.written());
    assert!(weir.resident() < 64 << 20, "{}", weir.resident());
    let mut taken = 0;
    while taken < FLOOD {
        taken += client.some(1 << 20).len();
    }
    client.send("x");
    assert_eq!(read(&mut client, 1), "x");
}

#[test]
fn a_backend_that_does_not_read_is_given_up() {
    let far = Far::start();
    let weir = before(far.address(), "", "proxy_send_timeout: 1s,");
    let mut client = ask(&weir, "/deaf", "");
    client.head();
    client.set_write_timeout(Duration::from_secs(10));
    let piece = vec![b'x'; 1 << 20];
    while client.try_send(&piece).is_ok() {}
    assert!(weir.access_line("/deaf").starts_with("/deaf 101 0 "));
}

/// A tunnel is a request in flight: it may go on for `shutdown_timeout`, and is then ended, not cut.
#[test]
fn a_stop_ends_tunnels_when_their_time_is_up() {
    let far = Far::start();
    let mut weir = before(far.address(), "shutdown_timeout: 2s", "");
    let mut client = ask(&weir, "/echo", "");
    client.head();
    weir.signal("TERM");
    eventually("new connections refused", || {
        Client::try_connect(weir.address()).is_err()
    });
    client.send("still here");
    assert_eq!(read(&mut client, 10), "still here");
    assert!(client.is_closed());
    assert_eq!(weir.wait().code(), Some(0));
    assert!(weir.stdout().contains("/echo 101 10 "), "{}", weir.stdout());
    assert!(
        !weir.stderr().contains("shutdown_timeout is over"),
        "{}",
        weir.stderr()
    );
    eventually("the end at the backend", || far.open() == 0);
}

#[test]
fn a_stop_does_not_wait_for_tunnels_that_end_by_themselves() {
    let far = Far::start();
    let mut weir = before(far.address(), "shutdown_timeout: 60s", "");
    let mut client = ask(&weir, "/echo", "");
    client.head();
    weir.signal("QUIT");
    client.send("last");
    assert_eq!(read(&mut client, 4), "last");
    client.finish_sending();
    assert_eq!(read(&mut client, 1), "!");
    assert_eq!(weir.wait().code(), Some(0));
}
