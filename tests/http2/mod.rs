//! HTTP/2 from clients: curl, nghttp, h2load, and frames written by hand where those behave too well.

mod downgrade;
mod floods;
mod preface;
mod shutdown;
mod too_large;
mod upstream;

use std::process::Command;
use std::time::Duration;

use crate::support::frames::*;
use crate::support::{Origin, Weir, eventually, get as ask};

/// curl over HTTP/2 without TLS; gives what it prints.
pub(crate) fn curl(arguments: &[&str]) -> String {
    let output = Command::new("curl")
        .args(["-sS", "--max-time", "20", "--http2-prior-knowledge"])
        .args(arguments)
        .output()
        .expect("curl is installed");
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

fn weir(origin: &Origin, more: &str) -> Weir {
    Weir::before(
        origin,
        &format!(
            "workers: 1
{more}
log: {{ access: {{ path: '-', format: '$request|$status|$body_bytes_sent|$connection_requests|$http2|$http_host|$limit_conn_status' }} }}
limit_req_zones: {{ rate: {{ key: $binary_remote_addr, size: 1m, rate: 1r/m }} }}
limit_conn_zones: {{ places: {{ key: $binary_remote_addr, size: 1m }} }}
servers:
- listen: LISTEN
  client_max_body_size: 100m
  locations:
  - {{ path: /, proxy_pass: 'http://ORIGIN' }}
  - {{ path: /two/, limit_conn: {{ zone: places, limit: 2 }}, proxy_pass: 'http://ORIGIN' }}
  - {{ path: /rate/, limit_req: {{ zone: rate, burst: 1, nodelay: true }}, proxy_pass: 'http://ORIGIN' }}
  - {{ path: /late/, limit_req: {{ zone: rate, burst: 5 }}, proxy_pass: 'http://ORIGIN' }}
  - {{ path: /here, return: '200 here' }}
  - {{ path: /gone, return: 444 }}
"
        ),
    )
}

#[test]
fn curl_gets_posts_and_heads() {
    let origin = Origin::start();
    let weir = weir(&origin, "");
    let url = |path: &str| format!("http://{}{path}", weir.address());
    let format = "%{http_version} %{http_code} %{size_download}";
    for (arguments, expected) in [
        (vec!["-w", format, &url("/here")], "here2 200 4"),
        (vec!["-w", format, &url("/ok")], "ok2 200 2"),
        (vec!["-w", format, "-d", "hello", &url("/ok")], "ok2 200 2"),
        (
            vec!["-w", format, "-o", "/dev/null", "-I", &url("/ok")],
            "2 200 0",
        ),
        (
            vec!["-w", format, "-o", "/dev/null", &url("/bytes?n=10000000")],
            "2 200 10000000",
        ),
        (
            vec!["-w", format, "-o", "/dev/null", &url("/chunked?n=100")],
            "2 200 700",
        ),
        (
            vec!["-w", format, "-o", "/dev/null", &url("/status?code=204")],
            "2 204 0",
        ),
        (
            vec![
                "-w",
                format,
                "-o",
                "/dev/null",
                &url("/missing/status?code=404"),
            ],
            "2 404 8",
        ),
    ] {
        assert_eq!(curl(&arguments), expected, "{arguments:?}");
    }
    let head = curl(&["-I", &url("/ok")]);
    assert!(head.contains("content-length: 2"), "{head}");
    let trailers = curl(&["-v", "-H", "te: trailers", &url("/trailers")]);
    assert!(trailers.contains("x-checksum: 42"), "{trailers}");
    let hints = curl(&["-i", &url("/103")]);
    assert!(
        hints.starts_with("HTTP/2 103") && hints.contains("HTTP/2 200"),
        "{hints}"
    );
    assert_eq!(
        weir.access_line("/bytes"),
        "GET /bytes?n=10000000 HTTP/2.0|200|10000000|1|h2c|".to_owned()
            + &format!("{}|-", weir.address())
    );
}

#[test]
fn a_large_upload_arrives_whole() {
    let origin = Origin::start();
    let weir = weir(&origin, "");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![b'x'; 20_000_000]).unwrap();
    let body = format!("@{}", file.path().display());
    let url = format!("http://{}/ok", weir.address());
    assert_eq!(curl(&["--data-binary", &body, &url]), "ok");
    assert_eq!(origin.only().length, 20_000_000);
}

/// An upload that the backend does not read stops at some point, and costs no memory.
#[test]
fn an_unread_upload_is_held_back() {
    let origin = Origin::start();
    let weir = weir(
        &origin,
        "client_body_timeout: 30s\nproxy_request_buffering: off",
    );
    let before = weir.resident();
    let client = Framed::connect(weir.address());
    client.send(request(1, 0, &asking("POST", "/stall?gate=g", &[])));
    origin.gates().await_waiting("g", 1);
    let windows = std::thread::scope(|scope| {
        // It may send what it was given room for, and no more is given.
        scope.spawn(|| {
            for _ in 0..4000 {
                if client.try_send(frame(DATA, 0, 1, [b'x'; 16_000])).is_err() {
                    break;
                }
            }
        });
        client.until(|frame| frame.kind == GOAWAY || frame.kind == RESET)
    });
    // It sent more than it was allowed.
    assert!(
        matches!(windows.last(), Some(last) if last.code() == 3),
        "{:?}",
        windows.last()
    );
    assert!(weir.resident() < before + (16 << 20));
    origin.gates().open("g");
}

#[test]
fn every_stream_is_limited_as_a_request_of_its_own() {
    let origin = Origin::start();
    let weir = weir(&origin, "");
    let client = Framed::connect(weir.address());
    for stream in [1, 3, 5] {
        client.send(get(stream, "/two/hold?gate=g"));
    }
    origin.gates().await_waiting("g", 2);
    assert_eq!(client.reset(5), None);
    weir.access_line("|503|");
    // One is given up: its place is free at once, and it is logged as nginx does.
    client.send(frame(RESET, 0, 1, 8_u32.to_be_bytes()));
    assert!(weir.access_line("|499|").contains("/two/hold"));
    eventually("its place is free", || {
        ask(weir.address(), "/two/ok").status == 200
    });
    origin.gates().open("g");
    assert_eq!(client.reset(3), None);

    for stream in [7, 9, 11] {
        client.send(get(stream, "/rate/ok"));
    }
    weir.access_line("GET /rate/ok HTTP/2.0|429|");
    eventually("two have passed", || {
        weir.stdout().matches("/rate/ok HTTP/2.0|200|").count() == 2
    });
}

/// One that waits for its turn is given up as well, and its token is spent.
#[test]
fn a_delayed_stream_that_is_reset_goes_nowhere() {
    let origin = Origin::start();
    let weir = weir(&origin, "");
    let client = Framed::connect(weir.address());
    client.send(get(1, "/late/ok"));
    assert_eq!(client.reset(1), None);
    client.send(get(3, "/late/ok?waits"));
    weir.error_line("delaying request");
    client.send(frame(RESET, 0, 3, 8_u32.to_be_bytes()));
    weir.access_line("/late/ok?waits HTTP/2.0|499|");
    assert_eq!(origin.count(), 1);
}

#[test]
fn http2_can_be_turned_off() {
    let origin = Origin::start();
    let weir = weir(&origin, "http2: off");
    let client = Framed::connect(weir.address());
    assert_eq!(client.frame().map(|frame| frame.kind), None);
    assert_eq!(ask(weir.address(), "/here").status, 200);
}

#[test]
fn a_connection_carries_so_many_requests_and_is_left_in_peace() {
    let origin = Origin::start();
    let weir = weir(&origin, "keepalive_requests: 3");
    let client = Framed::connect(weir.address());
    for stream in [1, 3, 5] {
        client.send(get(stream, "/here"));
        assert_eq!(client.reset(stream), None);
    }
    assert_eq!(client.goes_away(), Some(0));
}

#[test]
fn an_idle_connection_is_ended_in_time_and_pings_do_not_keep_it() {
    let origin = Origin::start();
    let weir = weir(&origin, "keepalive_timeout: 1s");
    let client = Framed::connect(weir.address());
    client.send(get(1, "/here"));
    assert_eq!(client.reset(1), None);
    let mut codes = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while client.try_send(frame(PING, 0, 0, "12345678")).is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        codes = client.until(|_| false);
    });
    let codes: Vec<_> = codes.iter().filter(|frame| frame.kind == GOAWAY).collect();
    assert!(codes.iter().all(|frame| frame.code() == 0) && !codes.is_empty());
}

/// A head that drips, and a client that never asks anything.
#[test]
fn slow_request_headers_are_cut_off() {
    let origin = Origin::start();
    let weir = weir(&origin, "client_header_timeout: 1s");
    let silent = Framed::connect(weir.address());
    let client = Framed::connect(weir.address());
    client.send(get(1, "/here"));
    assert_eq!(client.reset(1), None);
    let head = get(3, "/here");
    let sending = std::thread::scope(|scope| {
        scope.spawn(|| {
            for byte in &head[..head.len() - 1] {
                if client.try_send([*byte]).is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        client.goes_away()
    });
    assert_eq!(sending, Some(0));
    assert!(silent.goes_away().is_some());
}

#[test]
fn a_stop_lets_streams_finish_and_takes_no_more() {
    let origin = Origin::start();
    let mut weir = weir(&origin, "shutdown_timeout: 20s");
    let client = Framed::connect(weir.address());
    client.send(get(1, "/hold?gate=g"));
    client.send(get(3, "/chunked?gate=g&n=5"));
    origin.gates().await_waiting("g", 2);
    weir.signal("QUIT");
    client.until(|frame| frame.kind == GOAWAY);
    assert!(!weir.has_ended());
    origin.gates().open("g");
    let ended = client.until(|_| false);
    let ended = ended.iter().filter(|frame| frame.ends_stream()).count();
    assert_eq!(ended, 2);
    assert_eq!(weir.wait().code(), Some(0));
}

#[test]
fn a_truncated_response_is_reset() {
    let origin = Origin::start();
    let weir = weir(&origin, "");
    let client = Framed::connect(weir.address());
    for (stream, path) in [(1, "/close-early"), (3, "/cut-chunked")] {
        client.send(get(stream, path));
        assert_eq!(client.reset(stream), Some(2), "{path}");
    }
    client.send(get(5, "/gone"));
    assert_eq!(client.reset(5), Some(8));
    client.send(get(7, "/here"));
    assert_eq!(client.reset(7), None);
}

/// The preface in pieces, and what only begins like it.
#[test]
fn the_first_bytes_decide() {
    let origin = Origin::start();
    let weir = weir(&origin, "");
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for cut in [1, 3, 20, 23] {
        let client = crate::support::Client::connect(weir.address());
        client.send(&preface[..cut]);
        std::thread::sleep(Duration::from_millis(20));
        client.send([&preface[cut..], &frame(SETTINGS, 0, 0, "")].concat());
        let mut client = client;
        // SETTINGS: its length is its third byte and its kind the fourth.
        assert_eq!(client.some(9)[3], SETTINGS, "{cut}");
    }
    let mut client = crate::support::Client::connect(weir.address());
    client.send("PROPFIND /ok HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response().status, 200);
    let mut client = crate::support::Client::connect(weir.address());
    client.send("PRI");
    std::thread::sleep(Duration::from_millis(20));
    client.send("NT /ok HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response().status, 200);
}
