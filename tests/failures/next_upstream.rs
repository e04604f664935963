//! `proxy_next_upstream`, `max_fails` and `fail_timeout`: which server gets the retry, and which is avoided.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use super::{group, post, server};
use crate::support::ports::Port;
use crate::support::{Client, Origin, eventually, get};

fn bad_and_good(behaviour: &str) -> (Origin, Origin) {
    (
        Origin::named("bad").always(behaviour),
        Origin::named("good"),
    )
}

#[test]
fn a_get_moves_on_to_the_next_server() {
    let (bad, good) = bad_and_good("/reset");
    let weir = group(&[server(&bad, ", max_fails: 0"), server(&good, "")], "");
    for _ in 0..4 {
        let response = get(weir.address(), "/ok");
        assert_eq!(
            (response.status, response.get("x-origin")),
            (200, Some("good"))
        );
    }
    assert!(bad.count() >= 2, "{}", bad.count());
    weir.access_line(&format!(
        "200 [{}, {}] [502, 200] GET /ok",
        bad.address(),
        good.address()
    ));
}

#[test]
fn a_post_that_was_sent_stays_where_it_was_sent() {
    let (bad, good) = bad_and_good("/reset");
    let weir = group(&[server(&bad, ", max_fails: 0"), server(&good, "")], "");
    let statuses = [0; 4].map(|_| post(&weir, "/ok"));
    assert!(
        statuses.contains(&502) && statuses.contains(&200),
        "{statuses:?}"
    );
    assert_eq!(bad.count() + good.count(), 4, "each was sent exactly once");
}

#[test]
fn a_post_that_was_not_sent_moves_on() {
    let (unused, good) = (Port::claim(), Origin::start());
    let unused = format!("{{ address: '{}', max_fails: 0 }}", unused.address());
    let weir = group(&[unused, server(&good, "")], "");
    assert_eq!([0; 4].map(|_| post(&weir, "/ok")), [200; 4]);
    assert!(good.seen().iter().all(|seen| seen.body == b"hello"));
}

#[test]
fn non_idempotent_lets_a_post_without_a_body_move_on() {
    let (bad, good) = bad_and_good("/reset");
    let weir = group(
        &[server(&bad, ", max_fails: 0"), server(&good, "")],
        "proxy_next_upstream: [error, timeout, non_idempotent],",
    );
    let mut client = Client::connect(weir.address());
    for _ in 0..4 {
        client.send("POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(client.response().status, 200);
    }
}

#[test]
fn next_upstream_off_means_one_attempt() {
    let (bad, good) = bad_and_good("/reset");
    let weir = group(
        &[server(&bad, ", max_fails: 0"), server(&good, "")],
        "proxy_next_upstream: off,",
    );
    let mut statuses = [0; 4].map(|_| get(weir.address(), "/ok").status);
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 502, 502]);
}

#[test]
fn a_timeout_moves_on_too() {
    let (bad, good) = bad_and_good("/hang");
    let weir = group(
        &[server(&bad, ", max_fails: 0"), server(&good, "")],
        "proxy_read_timeout: 2s,",
    );
    assert_eq!([0; 2].map(|_| get(weir.address(), "/ok").status), [200; 2]);
    assert_eq!((bad.count(), good.count()), (1, 2));
}

#[test]
fn a_status_moves_on_only_where_it_is_listed() {
    let (bad, good) = bad_and_good("/status?code=503");
    let servers = [server(&bad, ", max_fails: 0"), server(&good, "")];
    let plain = group(&servers, "");
    let mut statuses = [0; 4].map(|_| get(plain.address(), "/ok").status);
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 503, 503]);
    let listed = group(&servers, "proxy_next_upstream: [error, http_503],");
    assert_eq!(
        [0; 4].map(|_| get(listed.address(), "/ok").status),
        [200; 4]
    );
    // The last one's answer is the answer.
    let alone = group(&servers[..1], "proxy_next_upstream: [error, http_503],");
    let response = get(alone.address(), "/ok");
    assert_eq!(
        (response.status, response.text().as_str()),
        (503, "scripted")
    );
}

#[test]
fn tries_are_bounded() {
    let bad = [0; 3].map(|_| Origin::start().always("/reset"));
    let servers = [0, 1, 2].map(|n| server(&bad[n], ", max_fails: 0"));
    let weir = group(&servers, "proxy_next_upstream_tries: 2,");
    assert_eq!(get(weir.address(), "/ok").status, 502);
    let asked: usize = bad.iter().map(Origin::count).sum();
    assert_eq!(asked, 2);
}

#[test]
fn a_server_that_fails_is_left_alone_for_a_while() {
    let (bad, good) = bad_and_good("/reset");
    let failing = |time: &str| {
        let bad = server(&bad, &format!(", max_fails: 2, fail_timeout: {time}"));
        let weir = group(&[bad, server(&good, "")], "");
        for _ in 0..12 {
            assert_eq!(get(weir.address(), "/ok").status, 200);
        }
        weir
    };
    failing("1h");
    assert_eq!(bad.count(), 2, "left alone after two failures");
    let weir = failing("2s");
    let before = bad.count();
    bad.recover();
    eventually("it is asked again and again", || {
        assert_eq!(get(weir.address(), "/ok").status, 200);
        bad.count() >= before + 2
    });
}

#[test]
fn when_all_have_failed_it_is_a_502() {
    let bad = [
        Origin::start().always("/reset"),
        Origin::start().always("/reset"),
    ];
    let servers = [0, 1].map(|n| server(&bad[n], ", max_fails: 1, fail_timeout: 60s"));
    let weir = group(&servers, "");
    assert_eq!([0; 3].map(|_| get(weir.address(), "/ok").status), [502; 3]);
}

/// An operator who counts `[error]` counts requests that failed.
#[test]
fn a_retry_that_goes_well_is_no_error() {
    let (unused, origin) = (Port::claim(), Origin::start());
    let dead = format!("'{}'", unused.address());
    let weir = group(&[dead.clone(), server(&origin, "")], "");
    for _ in 0..2 {
        assert_eq!(get(weir.address(), "/ok").status, 200);
    }
    let line = weir.error_line("connect() failed (111: Connection refused)");
    assert!(line.contains("[warn]"), "{line}");
    assert!(!weir.stderr().contains("[error]"), "{}", weir.stderr());
    let weir = group(&[dead], "");
    assert_eq!(get(weir.address(), "/ok").status, 502);
    let line = weir.error_line("connect() failed (111: Connection refused)");
    assert!(line.contains("[error]"), "{line}");
}

#[test]
fn a_kept_connection_that_the_backend_closed_is_no_error() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut bytes = [0; 1024];
            let Ok(1..) = stream.read(&mut bytes) else {
                continue;
            };
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                .ok();
            // The next request over it comes in vain.
            drop(stream.read_exact(&mut [0]));
        }
    });
    let weir = group(&[format!("'{address}'")], "");
    let mut client = Client::connect(weir.address());
    for _ in 0..3 {
        client.get("/ok");
        assert_eq!(client.response().status, 200);
    }
    let line = weir.error_line("while reading response header from upstream");
    assert!(line.contains("[info]"), "{line}");
    assert!(!weir.stderr().contains("[error]"), "{}", weir.stderr());
}
