//! `limit_rate`: responses are sent no faster than allowed, over every protocol.

use std::time::Duration;

use tokio::time::Instant;

use crate::support::frames::{self, DATA, Framed, WINDOW_UPDATE, frame};
use crate::support::{Client, Origin, Weir, eventually, get, millis_since};

fn weir(origin: &Origin, more: &str) -> Weir {
    Weir::before(
        origin,
        &format!(
            "limit_conn_zones: {{ places: {{ key: $binary_remote_addr, size: 1m }} }}
maps:
  $speed: {{ map: $http_x_tier, default: '', values: {{ slow: 50k, odd: quick }} }}
  $by_answer: {{ map: $sent_http_x_kind, default: '', values: {{ film: 50k }} }}
{more}
servers:
- listen: LISTEN
  proxy_pass: http://ORIGIN
  locations:
  - {{ path: /slow/, limit_rate: 100k }}
  - {{ path: /later/, limit_rate: 100k, limit_rate_after: 1m }}
  - {{ path: /told/, limit_rate: $speed }}
  - {{ path: /answered/, limit_rate: $by_answer }}
  - {{ path: /asked/, limit_rate: $upstream_http_x_speed }}
  - {{ path: /one/, limit_rate: 10k, limit_conn: {{ zone: places, limit: 1 }} }}
  - {{ path: /here, limit_rate: 2k, return: {{ status: 200, body: \"{}\" }} }}
",
            "x".repeat(5000)
        ),
    )
}

/// How long all of an answer takes, in milliseconds.
fn takes(weir: &Weir, path: &str, fields: &str, length: usize) -> u64 {
    let began = Instant::now();
    let mut client = Client::connect(weir.address());
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
    let response = client.response();
    assert_eq!((response.status, response.body.len()), (200, length));
    assert!(!response.has("x-accel-limit-rate"));
    millis_since(began)
}

/// Never in less than the time that the rate asks for, less its first piece, and once in three times not in much more:
/// at the others a busy machine may have kept it.
fn assert_about(seconds: f64, mut takes: impl FnMut() -> u64) {
    let soon = (0..3).any(|_| {
        let took = Duration::from_millis(takes()).as_secs_f64();
        assert!(took > seconds * 0.8, "{took} s instead of {seconds}");
        took < seconds + 3.0
    });
    assert!(soon, "three times much longer than {seconds} s");
}

/// Once in three times sooner than any rate here would let it.
fn assert_at_once(mut takes: impl FnMut() -> u64) {
    let took = [0; 3].map(|_| takes());
    assert!(took.iter().any(|took| *took < 900), "{took:?} ms");
}

#[test]
fn a_response_is_sent_at_its_rate_from_any_source() {
    let origin = Origin::start();
    let weir = weir(&origin, "");
    let slow = || takes(&weir, "/slow/bytes?n=204800", "", 204_800);
    assert_about(2.0, slow);
    assert_about(2.4, || takes(&weir, "/here", "", 5000));
    assert_at_once(|| takes(&weir, "/bytes?n=1000000", "", 1_000_000));
    // A connection that is used again begins anew.
    let mut client = Client::connect(weir.address());
    for _ in 0..3 {
        assert_at_once(|| {
            let began = Instant::now();
            client.get("/slow/bytes?n=5000");
            assert_eq!(client.response().body.len(), 5000);
            millis_since(began)
        });
    }
}

#[test]
fn chunks_leave_at_their_rate_and_so_do_trailers_after_them() {
    let origin = Origin::start();
    let weir = weir(&origin, "limit_rate: 1k");
    assert_about(2.0, || takes(&weir, "/chunked?n=300", "", 2100));
    let mut client = Client::connect(weir.address());
    client.send("GET /trailers HTTP/1.1\r\nHost: a\r\nTE: trailers\r\n\r\n");
    let response = client.response();
    assert_eq!(response.text(), "hello");
    assert_eq!(response.trailers.len(), 1);
}

#[test]
fn the_first_bytes_are_free() {
    let origin = Origin::start();
    let weir = weir(&origin, "");
    let asking = |length: usize| {
        let path = format!("/later/bytes?n={length}");
        takes(&weir, &path, "", length)
    };
    assert_at_once(|| asking(1_000_000));
    assert_about(2.0, || asking(1_253_376));
}

#[test]
fn variables_say_how_fast() {
    let origin = Origin::start();
    let weir = weir(&origin, "");
    let slow = |tier: &str| {
        let fields = format!("X-Tier: {tier}\r\n");
        takes(&weir, "/told/bytes?n=102400", &fields, 102_400)
    };
    assert_about(2.0, || slow("slow"));
    assert_at_once(|| slow("none"));
    assert_at_once(|| slow("odd"));
    weir.error_line("invalid size \"quick\"");
    let asking = |path: &str| takes(&weir, path, "", 102_400);
    assert_about(2.0, || asking("/answered/bytes?n=102400&field=X-Kind:film"));
    assert_at_once(|| asking("/answered/bytes?n=102400"));
    assert_about(2.0, || asking("/asked/bytes?n=102400&field=X-Speed:50k"));
    assert_at_once(|| asking("/asked/bytes?n=102400"));
}

#[test]
fn a_backend_may_ask_for_another_rate() {
    let origin = Origin::start();
    let weir = weir(&origin, "");
    let asking = |place: &str, rate: &str| {
        let path = format!("{place}/bytes?n=204800&field=X-Accel-Limit-Rate:{rate}");
        takes(&weir, &path, "", 204_800)
    };
    assert_about(2.0, || asking("", "102400"));
    assert_at_once(|| asking("/slow", "0"));
    assert_at_once(|| asking("", "100k"));
}

#[test]
fn streams_leave_each_at_its_own_rate() {
    let origin = Origin::start();
    let weir = weir(&origin, "");
    // Room for both, so that neither waits for the client.
    let window = [(4, 1 << 24)];
    let client = Framed::with_settings(weir.address(), &window);
    client.send(frame(
        WINDOW_UPDATE,
        0,
        0,
        (1_u32 << 24).to_be_bytes().to_vec(),
    ));
    let began = Instant::now();
    client.send(frames::get(1, "/slow/bytes?n=204800"));
    client.send(frames::get(3, "/bytes?n=1000000"));
    let (mut slow, mut fast) = (0, 0);
    let mut ended = Vec::new();
    while ended.len() < 2 {
        let frame = client.frame().expect("both are answered");
        match (frame.kind, frame.stream) {
            (DATA, 1) => slow += frame.payload.len(),
            (DATA, 3) => fast += frame.payload.len(),
            _ => {}
        }
        if frame.ends_stream() {
            ended.push(frame.stream);
        }
    }
    assert_eq!((slow, fast), (204_800, 1_000_000));
    assert_eq!(ended, [3, 1], "the larger one is not held back");
    assert!(began.elapsed() > Duration::from_millis(1600), "too early");
}

/// What may not leave yet is not fetched either.
#[test]
fn a_large_response_is_streamed() {
    let origin = Origin::start();
    let weir = weir(&origin, "limit_rate: 200k");
    let before = weir.resident();
    let mut client = Client::connect(weir.address());
    client.get("/bytes?n=100000000");
    client.head();
    let mut taken = 0;
    while taken < 300_000 {
        taken += client.some(usize::MAX).len();
    }
    let grown = weir.resident().saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes more");
}

/// Who gets little from us cannot take much.
#[test]
fn a_client_that_is_held_back_is_not_slow() {
    let origin = Origin::start();
    let weir = weir(
        &origin,
        "send_timeout: 1s
send_min_rate: 100k
limit_rate: 2k",
    );
    assert_about(2.2, || takes(&weir, "/bytes?n=5000", "", 5000));
}

#[test]
fn a_client_that_leaves_frees_its_place_at_once() {
    let origin = Origin::start();
    let weir = weir(&origin, "");
    let mut client = Client::connect(weir.address());
    client.get("/one/bytes?n=10000000");
    client.head();
    assert_eq!(get(weir.address(), "/one/bytes?n=10").status, 503);
    client.reset();
    eventually("the place is free", || {
        get(weir.address(), "/one/bytes?n=10").status == 200
    });
}
