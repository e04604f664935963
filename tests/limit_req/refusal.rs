//! The headers and bodies of refusals: `Retry-After`, the policy, and their formats.

use std::time::Duration;

use tokio::time::Instant;

use super::{limited, retry_after, seconds_left};
use crate::support::client::Response;
use crate::support::{Client, Origin, Weir, get};

/// Two pass, and this is the third.
fn refused(weir: &Weir, fields: &str) -> Response {
    let mut client = Client::connect(weir.address());
    client.send(format!("GET /ok HTTP/1.1\r\nHost: a\r\n{fields}\r\n").repeat(3));
    let statuses = [client.response().status, client.response().status];
    let response = client.response();
    assert_eq!((statuses, response.status), ([200, 200], 429));
    response
}

fn one_a_minute(origin: &Origin) -> Weir {
    limited(origin, "rate: 1r/m", "burst: 1, nodelay: true")
}

#[test]
fn retry_after_is_exact_and_honoured() {
    let origin = Origin::start();
    let weir = limited(&origin, "rate: 20r/m", "burst: 1, nodelay: true");
    let begun = Instant::now();
    let response = refused(&weir, "");
    assert!(seconds_left(3_000, begun).contains(&retry_after(&response)));
    std::thread::sleep(Duration::from_millis(1100));
    let response = get(weir.address(), "/ok");
    if response.status == 200 {
        assert!(begun.elapsed() >= Duration::from_secs(3), "too early");
        return;
    }
    assert_eq!(response.status, 429);
    let after = retry_after(&response);
    assert!((*seconds_left(3_000, begun).start()..=2).contains(&after));
    std::thread::sleep(Duration::from_secs(after));
    assert_eq!(get(weir.address(), "/ok").status, 200);
}

#[test]
fn rates_beyond_those_of_nginx_are_exact() {
    let origin = Origin::start();
    for (rate, interval) in [
        ("1r/m", 60_000),
        ("7r/m", 8_572),
        ("1r/h", 3_600_000),
        ("1r/d", 86_400_000),
        ("0.2r/s", 5_000),
        ("2.5r/m", 24_000),
    ] {
        let weir = limited(&origin, &format!("rate: {rate}"), "burst: 1, nodelay: true");
        let begun = Instant::now();
        let after = retry_after(&refused(&weir, ""));
        assert!(
            seconds_left(interval, begun).contains(&after),
            "{after} s at {rate}"
        );
    }
}

#[test]
fn the_refusing_zone_that_frees_last_sets_retry_after() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "limit_req_zones:
  fast: { key: $binary_remote_addr, size: 1m, rate: 30r/m }
  slow: { key: $binary_remote_addr, size: 1m, rate: 1r/m }
servers:
- listen: LISTEN
  locations:
  - { path: /, limit_req: [ { zone: fast }, { zone: slow } ], proxy_pass: 'http://ORIGIN' }
",
    );
    let begun = Instant::now();
    assert_eq!(get(weir.address(), "/ok").status, 200);
    let response = get(weir.address(), "/ok");
    assert_eq!(response.status, 429);
    let after = retry_after(&response);
    assert!(
        seconds_left(60_000, begun).contains(&after),
        "a retry would pass after {after} s"
    );
}

#[test]
fn a_refusal_names_its_policy() {
    let origin = Origin::start();
    let weir = one_a_minute(&origin);
    let begun = Instant::now();
    let response = refused(&weir, "");
    // Capacity is burst and the one that is always free; it comes back in two minutes.
    assert_eq!(response.get("ratelimit-policy"), Some("\"one\";q=2;w=120"));
    let after = retry_after(&response);
    assert!(seconds_left(60_000, begun).contains(&after), "{after} s");
    let state = format!("\"one\";r=0;t={after}");
    assert_eq!(response.get("ratelimit"), Some(&*state));
    assert_eq!(
        response.get("connection"),
        None,
        "it may ask again on this connection"
    );
    assert!(response.has("date"));
}

#[test]
fn the_fields_can_be_the_old_ones_or_none() {
    let origin = Origin::start();
    for (choice, limit) in [("legacy", Some("2")), ("off", None)] {
        let weir = Weir::before(
            &origin,
            &format!(
                "limit_req_zones: {{ one: {{ key: $binary_remote_addr, size: 1m, rate: 1r/m }} }}
limit_headers: {choice}
servers:
- listen: LISTEN
  locations:
  - {{ path: /, limit_req: {{ zone: one, burst: 1, nodelay: true }}, proxy_pass: 'http://ORIGIN' }}
"
            ),
        );
        let begun = Instant::now();
        let response = refused(&weir, "");
        assert!(seconds_left(60_000, begun).contains(&retry_after(&response)));
        assert!(!response.has("ratelimit") && !response.has("ratelimit-policy"));
        assert_eq!(response.get("x-ratelimit-limit"), limit);
        assert_eq!(response.get("x-ratelimit-remaining"), limit.map(|_| "0"));
        assert_eq!(response.has("x-ratelimit-reset"), limit.is_some());
    }
}

#[test]
fn the_body_is_what_the_client_accepts() {
    let origin = Origin::start();
    for (accept, expected) in [
        ("", "text/plain"),
        ("Accept: */*\r\n", "text/plain"),
        (
            "Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n",
            "text/html",
        ),
        ("Accept: application/json\r\n", "application/problem+json"),
        (
            "Accept: application/problem+json\r\n",
            "application/problem+json",
        ),
        (
            "Accept: text/html;q=0.1, application/problem+json\r\n",
            "application/problem+json",
        ),
        ("Accept: image/png\r\n", "text/plain"),
    ] {
        let response = refused(&one_a_minute(&origin), accept);
        let kind = response.get("content-type").unwrap_or_default();
        assert!(kind.starts_with(expected), "{accept:?} got {kind}");
        let text = response.text();
        match expected {
            "text/html" => assert!(text.contains("<title>") && text.contains("429"), "{text}"),
            "text/plain" => assert!(text.len() < 200 && !text.contains('<'), "{text}"),
            _ => {
                let problem: serde_json::Value = serde_json::from_str(&text).unwrap();
                assert_eq!(problem["status"], 429);
                assert_eq!(problem["violated-policies"], serde_json::json!(["one"]));
                let kind = problem["type"].as_str().unwrap();
                assert!(kind.ends_with("#quota-exceeded"), "{kind}");
                assert!(problem["title"].is_string());
            }
        }
    }
}

#[test]
fn a_refused_head_request_has_no_body() {
    let origin = Origin::start();
    let weir = one_a_minute(&origin);
    let mut client = Client::connect(weir.address());
    client.send("HEAD /ok HTTP/1.1\r\nHost: a\r\n\r\n".repeat(4));
    let responses: Vec<_> = (0..4).map(|_| client.response_to_head()).collect();
    let statuses: Vec<_> = responses.iter().map(|response| response.status).collect();
    // The fourth would not be understood if the third had carried a body.
    assert_eq!(statuses, [200, 200, 429, 429]);
}

/// Most refusals lie ready to the last byte. Where the log wants to know an answer's fields, they are made one by one.
#[test]
fn a_refusal_that_lies_ready_reads_like_one_that_is_made() {
    let origin = Origin::start();
    let [ready, made] = ["$status", "$status $sent_http_retry_after"].map(|format| {
        Weir::before(
            &origin,
            &format!(
                "log: {{ access: {{ path: '-', format: '{format} $body_bytes_sent' }} }}
limit_req_zones: {{ one: {{ key: $binary_remote_addr, size: 1m, rate: 1r/d }} }}
servers:
- listen: LISTEN
  locations:
  - {{ path: /, limit_req: {{ zone: one }}, proxy_pass: 'http://ORIGIN' }}
"
            ),
        )
    });
    for request in [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nAccept: application/json\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi",
        "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    ] {
        let [ready, made] = [&ready, &made].map(|weir| {
            // The first of all passes, and is no refusal.
            get(weir.address(), "/ok");
            let mut client = Client::connect(weir.address());
            client.send(request);
            let response = client.response();
            let mut fields: Vec<_> = response
                .fields
                .iter()
                .filter(|(name, _)| name != "date" && name != "retry-after" && name != "ratelimit")
                .cloned()
                .collect();
            fields.sort();
            let kept = response.get("connection").is_none_or(|it| it != "close")
                && !request.starts_with("GET / HTTP/1.0\r\n\r");
            if kept {
                client.get("/ok");
                assert_eq!(client.response().status, 429, "{request}");
            } else {
                assert!(client.is_closed(), "{request}");
            }
            assert!(response.has("date") && response.has("retry-after"));
            (response.status, fields, response.text())
        });
        assert_eq!(ready, made, "{request}");
        assert_eq!(ready.0, 429);
    }
}

/// More than a socket takes at once: nothing is lost or comes twice where a refusal leaves in pieces.
#[test]
fn refusals_for_a_slow_reader_arrive_whole() {
    const MANY: usize = 900;
    let origin = Origin::start();
    let weir = limited(&origin, "rate: 1r/d", "burst: 0");
    assert_eq!(get(weir.address(), "/ok").status, 200);
    let mut client = Client::connect(weir.address()).with_small_receive_buffer();
    let requests = "GET /ok HTTP/1.1\r\nHost: a\r\nAccept: text/html\r\n\r\n".repeat(MANY);
    client.send(requests);
    let first = client.response();
    for _ in 1..MANY {
        let response = client.response();
        assert_eq!((response.status, response.text()), (429, first.text()));
    }
}
