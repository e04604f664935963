//! Requests bent at random where smuggling bends them. Whatever weir makes of them: a backend that takes nothing but the
//! plainest HTTP finds exactly the requests that were logged, and each of them was counted by the limit.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::recorder::Recorder;
use crate::support::{Client, Weir, eventually, metric};

/// How many connections are tried.
const ROUNDS: u64 = 1500;

/// Requests by their target, and how often each came to its end.
type Tally = BTreeMap<String, usize>;

#[test]
fn the_backend_finds_the_requests_that_were_logged_and_counted() {
    let recorder = Recorder::start();
    let mut weir = Weir::start(&format!(
        "log: {{ level: error, access: {{ path: '-', format: '$request_uri $status $upstream_status $limit_req_status' }} }}
admin: {{ listen: ADMIN }}
client_header_timeout: 5s
limit_req_zones: {{ all: {{ key: $server_name, size: 1m, rate: 1000000r/s }} }}
servers:
- listen: LISTEN
  server_name: a
  limit_req: {{ zone: all, burst: 1000000, nodelay: true }}
  locations: [ {{ path: /, proxy_pass: 'http://{}' }} ]
",
        recorder.address()
    ));
    send_all(&weir);
    let lines = || {
        let log = weir.stdout();
        log.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    eventually("every counted request in the log", || {
        let counted = metric(
            &weir,
            "weir_limit_verdicts_total{zone=\"all\",verdict=\"pass\"}",
        );
        let logged = lines().iter().filter(|l| l.ends_with(" PASSED")).count();
        counted > 0 && counted == logged as u64
    });
    let (answered, counted) = logged(&lines());
    let (mut complete, mut seen) = (Tally::new(), Tally::new());
    for connection in recorder.connections() {
        tally(&connection, &mut complete, &mut seen);
    }
    // A client that left before the response has none in the log, though the backend may have sent it.
    for (target, times) in &answered {
        assert!(
            complete.get(target) >= Some(times),
            "{target} got no response"
        );
    }
    for (target, times) in &seen {
        assert!(
            counted.get(target) >= Some(times),
            "{target} was never counted"
        );
    }
    assert!(complete.values().sum::<usize>() > 100, "{complete:?}");
    weir.signal("TERM");
    weir.wait();
}

/// Sends every round's requests over a connection of their own, and hears all that is answered.
fn send_all(weir: &Weir) {
    for seed in 0..ROUNDS {
        let mut random = Rng::with_seed(seed);
        let mut client = Client::connect(weir.address());
        let bytes = bent(&mut random, seed);
        let every = random.usize(1..=bytes.len());
        for piece in bytes.chunks(every) {
            if client.try_send(piece).is_err() {
                break;
            }
        }
        client.try_finish_sending();
        while client.try_response().is_ok() {}
    }
}

/// The requests that the log says were answered by the backend, and those that were counted.
fn logged(lines: &[String]) -> (Tally, Tally) {
    let (mut answered, mut counted) = (Tally::new(), Tally::new());
    for line in lines {
        let words: Vec<_> = line.rsplitn(4, ' ').collect();
        let [limit, upstream, _, target] = words[..] else {
            panic!("{line}");
        };
        if limit == "PASSED" {
            *counted.entry(target.to_owned()).or_default() += 1;
        } else {
            assert_eq!(upstream, "-", "{line}");
        }
        if upstream == "200" {
            *answered.entry(target.to_owned()).or_default() += 1;
        }
    }
    (answered, counted)
}

/// Some requests, with some of their bytes changed.
fn bent(random: &mut Rng, seed: u64) -> Vec<u8> {
    let requests = random.u64(1..4);
    let mut text = String::new();
    for number in 0..requests {
        text.push_str(&request(random, &format!("/{seed}-{number}")));
    }
    let mut bytes = text.into_bytes();
    for _ in 0..random.usize(0..3) {
        let at = random.usize(0..bytes.len());
        match random.u8(0..4) {
            0 => {
                bytes.remove(at);
            }
            1 => bytes[at] = *one(random, b"\0\t\n\r ,:;+-05fx"),
            2 => bytes.insert(at, *one(random, b"\0\t\n\r ,:;+-05fx")),
            _ => bytes.truncate(at.max(1)),
        }
    }
    bytes
}

fn request(random: &mut Rng, target: &str) -> String {
    let inner = format!("GET {target}-inner HTTP/1.1\r\nHost: a\r\n\r\n");
    let length = inner.len();
    let framed = |field: String, body: String| (field, body);
    let (field, body) = match random.u8(0..4) {
        0 => framed(String::new(), String::new()),
        1 => framed(format!("Content-Length: {length}\r\n"), inner),
        2 => framed(
            "Transfer-Encoding: chunked\r\n".to_owned(),
            format!("{length:x}\r\n{inner}\r\n0\r\n\r\n"),
        ),
        _ => framed(
            "Transfer-Encoding: chunked\r\n".to_owned(),
            format!("3;a=b\r\nabc\r\n{length:X}\r\n{inner}\r\n0\r\nX-Sum: 1\r\n\r\n"),
        ),
    };
    let mut fields = vec!["Host: a\r\n".to_owned(), field];
    if random.bool() {
        let odd = [
            "Content-Length: 0\r\n".to_owned(),
            format!("Content-Length: {length}\r\n"),
            format!("content-length : {length}\r\n"),
            format!("Content-Length: +{length}\r\n"),
            format!("Content-Length: {length}, {length}\r\n"),
            format!("X: y\r\n Content-Length: {length}\r\n"),
            format!("X: y\nContent-Length: {length}\r\n"),
            format!("X: y\rContent-Length: {length}\r\n"),
            "Transfer-Encoding: chunked\r\n".to_owned(),
            "Transfer-Encoding: identity\r\n".to_owned(),
            "Transfer-Encoding: gzip, chunked\r\n".to_owned(),
            "Transfer-Encoding:\u{b}chunked\r\n".to_owned(),
            "Transfer_Encoding: chunked\r\n".to_owned(),
            "Connection: content-length, transfer-encoding\r\n".to_owned(),
            "Connection: close\r\n".to_owned(),
            "Host: b\r\n".to_owned(),
            "Expect: 100-continue\r\n".to_owned(),
            "Connection: upgrade\r\nUpgrade: websocket\r\n".to_owned(),
        ];
        fields.push(one(random, &odd).clone());
    }
    random.shuffle(&mut fields);
    let line = match random.u8(0..12) {
        0 => format!("GET http://b{target} HTTP/1.1\r\n"),
        1 => format!("POST {target} HTTP/1.0\r\nConnection: keep-alive\r\n"),
        2 => format!("GET {target} HTTP/1.1\n"),
        3 => format!("HEAD {target} HTTP/1.1\r\n"),
        _ => format!("POST {target} HTTP/1.1\r\n"),
    };
    format!("{line}{}\r\n{body}", fields.concat())
}

fn one<'o, T>(random: &mut Rng, of: &'o [T]) -> &'o T {
    &of[random.usize(0..of.len())]
}

/// Counts the requests on one connection, which must be as plain as they can be.
fn tally(mut bytes: &[u8], complete: &mut Tally, seen: &mut Tally) {
    while let Some(end) = find(bytes, b"\r\n\r\n") {
        let head = std::str::from_utf8(&bytes[..end]).expect("plain text");
        bytes = &bytes[end + 4..];
        let mut lines = head.split("\r\n");
        let line: Vec<_> = lines.next().expect("a first line").split(' ').collect();
        let [_, target, "HTTP/1.1"] = line[..] else {
            panic!("{head}");
        };
        *seen.entry(target.to_owned()).or_default() += 1;
        let (mut hosts, mut length, mut chunked) = (0, None, false);
        for line in lines {
            assert!(!line.contains(['\r', '\n', '\0']), "{head:?}");
            let (name, value) = line.split_once(": ").expect("a field");
            assert!(
                name.bytes()
                    .all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase()),
                "{head:?}"
            );
            match name {
                "host" => hosts += 1,
                "content-length" => {
                    assert!(
                        length.is_none() && value.bytes().all(|b| b.is_ascii_digit()),
                        "{head:?}"
                    );
                    length = Some(value.parse::<usize>().expect("a number"));
                }
                "transfer-encoding" => {
                    assert!(!chunked && value == "chunked", "{head:?}");
                    chunked = true;
                }
                _ => {}
            }
        }
        assert!(hosts == 1 && !(chunked && length.is_some()), "{head:?}");
        let body = if chunked {
            chunks(bytes)
        } else {
            Some(length.unwrap_or(0)).filter(|length| *length <= bytes.len())
        };
        // One that breaks off is the last of its connection.
        let Some(length) = body else { return };
        bytes = &bytes[length..];
        *complete.entry(target.to_owned()).or_default() += 1;
    }
    // And so is the beginning of a head, which would be ours.
    assert!(bytes.is_empty(), "{:?}", String::from_utf8_lossy(bytes));
}

/// How long a body in chunks is, if all of it is there.
fn chunks(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let line = find(&bytes[at..], b"\r\n")?;
        let size = std::str::from_utf8(&bytes[at..at + line]).expect("plain text");
        let length = usize::from_str_radix(size, 16).expect("a size and nothing else");
        assert_eq!(size, format!("{length:x}"));
        at += line + 2;
        if length == 0 {
            if bytes[at..].starts_with(b"\r\n") {
                return Some(at + 2);
            }
            return find(&bytes[at..], b"\r\n\r\n").map(|end| at + end + 4);
        }
        at += length;
        let end = bytes.get(at..at + 2)?;
        assert_eq!(end, b"\r\n");
        at += 2;
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
