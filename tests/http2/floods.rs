//! HTTP/2 floods: the client gets GOAWAY and is disconnected, other clients are served meanwhile, and backends see little.

use std::time::Duration;

use tokio::time::Instant;

use crate::support::frames::*;
use crate::support::{Origin, Weir, eventually, get as ask, metric};

fn weir(origin: &Origin) -> Weir {
    Weir::before(
        origin,
        "workers: 1
admin: { listen: ADMIN }
limit_conn_zones: { places: { key: 'all of them', size: 1m } }
servers:
- listen: LISTEN
  locations:
  - { path: /, limit_conn: { zone: places, limit: 1000 }, proxy_pass: 'http://ORIGIN' }
  - { path: /one/, limit_conn: { zone: places, limit: 1 }, proxy_pass: 'http://ORIGIN' }
  - { path: /here, return: '200 here' }
",
    )
}

/// Sends these over and over until it is cut off, others being served meanwhile, and says what it was told.
fn attack(weir: &Weir, kind: &str, mut frames: impl FnMut(u32) -> Vec<u8>) -> u32 {
    let before = weir.resident();
    let client = Framed::connect(weir.address());
    let mut sent = 0;
    while sent < 100_000 && client.try_send(frames(sent)).is_ok() {
        sent += 1;
        if sent % 5000 == 0 {
            let began = Instant::now();
            assert_eq!(ask(weir.address(), "/here").status, 200);
            assert!(began.elapsed() < Duration::from_secs(5), "others wait");
        }
    }
    assert!(sent < 100_000, "{kind}: the flood is not detected");
    let told = client.goes_away();
    assert!(
        matches!(told, None | Some(ENHANCE_YOUR_CALM)),
        "{kind}: {told:?}"
    );
    let series = format!("weir_http2_floods_total{{kind=\"{kind}\"}}");
    eventually("it is counted", || metric(weir, &series) == 1);
    weir.error_line("http2 flood detected");
    assert!(weir.resident() < before + (16 << 20), "{kind}: memory");
    sent
}

/// CVE-2023-44487, with resets that come when the request has reached the backend.
#[test]
fn rapid_resets_are_cut_off_and_reach_the_backend_in_bounded_number() {
    let origin = Origin::start();
    let weir = weir(&origin);
    attack(&weir, "reset", |number| {
        let stream = 2 * number + 1;
        [
            get(stream, "/slow?ms=1"),
            frame(RESET, 0, stream, 8_u32.to_be_bytes()),
        ]
        .concat()
    });
    assert!(origin.count() < 1000, "{}", origin.count());
    eventually("every place is given back", || {
        ask(weir.address(), "/one/ok").status == 200
    });
}

/// The same, patient: each reset waits until the backend has the request.
#[test]
fn late_resets_are_cut_off_too() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let sent = attack(&weir, "reset", |number| {
        let stream = 2 * number + 1;
        if number == 0 {
            return get(stream, "/hold?gate=never");
        }
        let deadline = Instant::now() + Duration::from_secs(1);
        while origin.count() < number as usize && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(200));
        }
        let reset = frame(RESET, 0, stream - 2, 8_u32.to_be_bytes());
        [reset, get(stream, "/hold?gate=never")].concat()
    });
    assert!(sent < 1000, "{sent}");
    origin.gates().open("never");
}

/// A cheap answer for each reset does not make up for it.
#[test]
fn resets_between_responses_are_cut_off_too() {
    let origin = Origin::start();
    let weir = weir(&origin);
    attack(&weir, "reset", |number| {
        let stream = 4 * number + 1;
        [
            get(stream, "/here"),
            get(stream + 2, "/slow?ms=1"),
            frame(RESET, 0, stream + 2, 8_u32.to_be_bytes()),
        ]
        .concat()
    });
    assert!(origin.count() < 1500, "{}", origin.count());
}

/// `http2_max_resets` is for those who know their clients.
#[test]
fn the_number_of_allowed_resets_is_a_setting() {
    let origin = Origin::start();
    for (most, reset_in_vain) in [(5, 20), (1000, 900)] {
        let weir = Weir::before(
            &origin,
            &format!(
                "http2_max_resets: {most}
servers: [ {{ listen: LISTEN, proxy_pass: 'http://ORIGIN' }} ]"
            ),
        );
        let client = Framed::connect(weir.address());
        for number in 0..reset_in_vain {
            let stream = 2 * number + 1;
            let reset = frame(RESET, 0, stream, 8_u32.to_be_bytes());
            if client
                .try_send([get(stream, "/ok"), reset].concat())
                .is_err()
            {
                break;
            }
        }
        let last = get(2 * reset_in_vain + 1, "/ok");
        let answered = client.try_send(last).is_ok()
            && client
                .until(|frame| frame.ends_stream())
                .last()
                .is_some_and(|frame| frame.stream == 2 * reset_in_vain + 1);
        assert_eq!(answered, most == 1000, "{most}");
    }
}

/// CVE-2025-8671: the client never resets, it makes the server do so.
#[test]
fn resets_that_the_server_is_made_to_send_count_as_well() {
    let origin = Origin::start();
    let overflow = |stream| frame(WINDOW_UPDATE, 0, stream, 0x7fff_ffff_u32.to_be_bytes());
    let depends_on_itself = |stream: u32| {
        frame(
            PRIORITY,
            0,
            stream,
            [&stream.to_be_bytes()[..], &[0]].concat(),
        )
    };
    let nothing = |stream| frame(WINDOW_UPDATE, 0, stream, [0; 4]);
    let late_data = |stream| frame(DATA, 0, stream, "late");
    let kinds: [&dyn Fn(u32) -> Vec<u8>; 4] = [&overflow, &depends_on_itself, &nothing, &late_data];
    for (index, fault) in kinds.iter().enumerate() {
        let weir = weir(&origin);
        let before = origin.count();
        let client = Framed::connect(weir.address());
        let mut stream = 1;
        while stream < 100_000 {
            let both = [get(stream, "/slow?ms=1"), fault(stream)].concat();
            if client.try_send(both).is_err() {
                break;
            }
            stream += 2;
        }
        assert!(stream < 100_000, "fault {index}: the flood is not detected");
        let asked = origin.count() - before;
        assert!(asked < 2000, "fault {index}: {asked} requests");
        assert_eq!(ask(weir.address(), "/here").status, 200);
    }
}

#[test]
fn pings_settings_priorities_and_windows_are_cut_off() {
    let origin = Origin::start();
    let ping = frame(PING, 0, 0, "12345678");
    let unasked = frame(PING, 1, 0, "12345678");
    let settings = frame(SETTINGS, 0, 0, [0, 4, 0, 1, 0, 0]);
    let priority = frame(PRIORITY, 0, 3, [0, 0, 0, 0, 7]);
    let window = frame(WINDOW_UPDATE, 0, 0, 1_u32.to_be_bytes());
    let unknown = frame(42, 0, 0, "what is this");
    for (kind, bytes) in [
        ("ping", ping),
        ("ping", unasked),
        ("settings", settings),
        ("priority", priority),
        ("window_update", window),
        ("priority", unknown),
    ] {
        let weir = weir(&origin);
        attack(&weir, kind, |_| bytes.repeat(10));
    }
}

#[test]
fn data_without_data_is_cut_off() {
    let origin = Origin::start();
    for empty in [
        frame(DATA, 0, 1, ""),
        // Padding and nothing else.
        frame(DATA, 8, 1, [3, 0, 0, 0]),
    ] {
        let weir = weir(&origin);
        attack(&weir, "empty_data", |number| match number {
            0 => request(1, 0, &asking("POST", "/ok", &[])),
            _ => empty.clone(),
        });
    }
}

/// CVE-2024-27316: a head that never ends.
#[test]
fn endless_request_headers_are_cut_off() {
    let origin = Origin::start();
    let weir = weir(&origin);
    attack(&weir, "headers", |number| match number {
        0 => frame(HEADERS, END_STREAM, 1, block(&asking("GET", "/ok", &[]))),
        _ => frame(CONTINUATION, 0, 1, block(&[("x-more", "of it")])),
    });
    assert_eq!(origin.count(), 0);
}

/// A few bytes that stand for many: the table holds a long value, and each byte means it again.
#[test]
fn a_bomb_of_compressed_fields_is_cut_off() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let before = weir.resident();
    let client = Framed::connect(weir.address());
    let mut head = block(&asking("GET", "/ok", &[]));
    // With indexing, as the first entry of the table.
    head.extend([0x40, 1, b'x', 0x7f, 0x81, 0x1e]);
    head.extend([b'v'; 4000]);
    head.extend([0xbe; 10_000]);
    client.send(frame(HEADERS, END_STREAM | END_HEADERS, 1, head));
    assert_eq!(client.goes_away(), Some(ENHANCE_YOUR_CALM));
    assert_eq!(origin.count(), 0);
    assert!(weir.resident() < before + (8 << 20));
    assert_eq!(ask(weir.address(), "/here").status, 200);
}

/// A head that is merely too large is answered as over HTTP/1, and the connection goes on.
#[test]
fn request_headers_that_are_too_large_get_431() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let client = Framed::connect(weir.address());
    let long = "v".repeat(16_000);
    let fields = asking(
        "GET",
        "/ok",
        &[("x-a", &long), ("x-b", &long), ("x-c", &long)],
    );
    let head = block(&fields);
    let (first, rest) = head.split_at(16_000);
    let mut frames = frame(HEADERS, END_STREAM, 1, first);
    for (index, piece) in rest.chunks(16_000).enumerate() {
        let last = (index + 1) * 16_000 >= rest.len();
        frames.extend(frame(
            CONTINUATION,
            if last { END_HEADERS } else { 0 },
            1,
            piece,
        ));
    }
    client.send(frames);
    let answered = client.until(|frame| frame.kind == HEADERS);
    let head = answered.last().expect("an answer");
    assert_eq!((head.kind, head.stream), (HEADERS, 1));
    client.send(get(3, "/here"));
    assert_eq!(client.reset(3), None);
    eventually("it is counted", || {
        metric(&weir, "weir_heads_refused_total{status=\"431\"}") == 1
    });
    assert_eq!(origin.count(), 0);
}

/// More streams than were allowed are refused, and no request of them is made.
#[test]
fn more_streams_than_allowed_are_refused() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let client = Framed::connect(weir.address());
    let streams: Vec<u8> = (0..160)
        .flat_map(|number| get(2 * number + 1, "/hold?gate=g"))
        .collect();
    client.send(streams);
    origin.gates().await_waiting("g", 128);
    let refused = client.until(|frame| frame.kind == RESET && frame.stream == 319);
    let refused: Vec<_> = refused.iter().filter(|frame| frame.kind == RESET).collect();
    assert_eq!(refused.len(), 32);
    assert!(refused.iter().all(|frame| frame.code() == 7));
    assert_eq!(origin.count(), 128);
    origin.gates().open("g");
}

/// Unread responses: each keeps little in memory, and the connection is closed in time.
#[test]
fn a_client_that_reads_nothing_costs_little_and_not_for_long() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "workers: 1
send_timeout: 1s
log: { access: { path: '-', format: '$uri $status $body_bytes_sent' } }
servers: [ { listen: LISTEN, proxy_pass: 'http://ORIGIN' } ]
",
    );
    let before = weir.resident();
    // A window of nothing for every stream.
    let client = Framed::with_settings(weir.address(), &[(4, 0)]);
    for number in 0..100 {
        client.send(get(2 * number + 1, "/bytes?n=50000000"));
    }
    origin.await_count(100);
    std::thread::sleep(Duration::from_millis(300));
    let grown = weir.resident().saturating_sub(before);
    assert!(grown < (40 << 20), "{grown}");
    // All are given up.
    let mut resets = 0;
    while resets < 100 {
        let frame = client.frame().expect("the connection itself goes on");
        resets += usize::from(frame.kind == RESET);
    }
    weir.access_line("/bytes 200");
}
