//! The actions of a rule on requests over the limit: another status, another body, or no response at all.

use std::time::Duration;

use tokio::time::Instant;

use super::{retry_after, seconds_left};
use crate::support::frames::{self, Framed};
use crate::support::{Client, Origin, Weir, get, millis_since, pipelined};

fn weir(origin: &Origin) -> Weir {
    Weir::before(
        origin,
        "workers: 1
log: { access: { path: '-', format: '$uri|$status|$limit_req_status|$limit_conn_status' } }
limit_req_zones:
  one: { key: $uri, size: 1m, rate: 1r/m }
  two: { key: $uri, size: 1m, rate: 1r/h }
  five: { key: $uri, size: 1m, rate: 5r/s }
limit_conn_zones: { places: { key: $uri, size: 1m } }
servers:
- listen: LISTEN
  proxy_pass: http://ORIGIN
  limit_req_status: 420
  locations:
  - { path: /plain, limit_req: { zone: one } }
  - { path: /status, limit_req: { zone: one, status: 503 } }
  - { path: /text, limit_req: { zone: one, body: 'not so fast, $remote_addr' } }
  - { path: /json, limit_req: { zone: one, status: 400, body: '{\"agent\":\"$http_user_agent\"}' } }
  - { path: /fixed, limit_req: { zone: one, body: '<h1>Later</h1>' } }
  - { path: /drop, limit_req: { zone: one, on_excess: drop } }
  - { path: /both, limit_req: [{ zone: one, status: 499 }, { zone: two, status: 498 }] }
  - { path: /wait, limit_req: { zone: five, on_excess: delay, max_wait: 900ms } }
  - { path: /out, limit_req: { zone: five, penalty: 2s } }
  - { path: /dry, limit_req: { zone: five, penalty: 1h }, limit_req_dry_run: on }
  - { path: /crowd, limit_conn: { zone: places, limit: 1, status: 429, body: 'one at a time' } }
  - { path: /alone, limit_conn: { zone: places, limit: 1, on_excess: drop } }
",
    )
}

/// One request, then the second's answer.
fn second(weir: &Weir, path: &str, fields: &str) -> crate::support::client::Response {
    assert_eq!(get(weir.address(), path).status, 200);
    let mut client = Client::connect(weir.address());
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
    client.response()
}

#[test]
fn a_rule_has_a_status_and_words_of_its_own() {
    let origin = Origin::start();
    let weir = weir(&origin);
    assert_eq!(second(&weir, "/plain", "").status, 420);
    assert_eq!(second(&weir, "/status", "").status, 503);
    assert_eq!(second(&weir, "/both", "").status, 499);

    let begun = Instant::now();
    let text = second(&weir, "/text", "Accept: application/problem+json\r\n");
    assert_eq!(text.text(), "not so fast, 127.0.0.1");
    assert_eq!(text.get("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(text.status, 420);
    let after = retry_after(&text);
    assert!(seconds_left(60_000, begun).contains(&after), "{after} s");
    let state = format!("\"one\";r=0;t={after}");
    assert_eq!(text.get("ratelimit"), Some(&*state));
    assert!(!text.has("vary"), "there is one form of it only");

    let json = second(&weir, "/json", "User-Agent: a\"b\\c\r\n");
    assert_eq!(json.status, 400);
    assert_eq!(json.get("content-type"), Some("application/json"));
    let value: serde_json::Value = serde_json::from_str(&json.text()).expect("it is JSON");
    assert_eq!(value["agent"], "a\"b\\c");

    for _ in 0..2 {
        let fixed = second(&weir, &format!("/fixed{}", fastrand::u32(..)), "");
        assert_eq!(fixed.text(), "<h1>Later</h1>");
        assert_eq!(fixed.get("content-type"), Some("text/html; charset=utf-8"));
    }
    let mut client = Client::connect(weir.address());
    client.send("HEAD /text HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2));
    assert_eq!(client.response_to_head().get("content-length"), Some("22"));
    assert_eq!(client.response_to_head().status, 420);
}

#[test]
fn a_dropped_request_gets_no_response() {
    let origin = Origin::start();
    let weir = weir(&origin);
    assert_eq!(get(weir.address(), "/drop").status, 200);
    let mut client = Client::connect(weir.address());
    client.get("/drop");
    assert!(client.is_closed());
    assert_eq!(weir.access_line("|444|"), "/drop|444|REJECTED|-");

    let client = Framed::connect(weir.address());
    client.send(frames::get(1, "/drop"));
    assert_eq!(client.reset(1), Some(8), "CANCEL");
    client.send(frames::get(3, "/ok"));
    assert_eq!(client.reset(3), None, "others go on");
}

#[test]
fn a_crowd_is_turned_away_in_its_own_way() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let held = origin.hold("gate", || {
        let client = Client::connect(weir.address());
        client.get("/crowd/hold?gate=gate");
        client
    });
    let refused = get(weir.address(), "/crowd/hold");
    assert_eq!(refused.status, 429);
    assert_eq!(refused.text(), "one at a time");
    assert_eq!(refused.get("retry-after"), Some("1"));
    let alone = origin.hold("gate", || {
        let client = Client::connect(weir.address());
        client.get("/alone/hold?gate=gate");
        client
    });
    let mut client = Client::connect(weir.address());
    client.get("/alone/hold");
    assert!(client.is_closed());
    assert_eq!(weir.access_line("|444|"), "/alone/hold|444|-|REJECTED");
    drop((held, alone));
}

/// Those over the rate wait for their turn, one every 200 ms; of ten at once, those that would wait for too long do not.
#[test]
fn excess_waits_as_long_as_it_may() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let began = Instant::now();
    let clients: Vec<_> = (0..10)
        .map(|_| {
            let client = Client::connect(weir.address());
            client.get("/wait");
            client
        })
        .collect();
    let answers = clients.into_iter().map(|mut client| {
        let response = client.response();
        (response.status, millis_since(began))
    });
    let answers: Vec<_> = answers.collect();
    let passed = answers.iter().filter(|(status, _)| *status == 200).count();
    let refused = answers.iter().filter(|(status, _)| *status == 420).count();
    // One at once and four in 900 ms; a machine that is slow to send them may let a few more in.
    assert!((5..10).contains(&passed), "{answers:?}");
    assert_eq!(passed + refused, 10, "{answers:?}");
    let last = answers
        .iter()
        .filter(|(status, _)| *status == 200)
        .map(|it| it.1)
        .max();
    assert!(last.is_some_and(|last| last >= 797), "{answers:?}");
    weir.access_line("/wait|200|DELAYED|-");
}

#[test]
fn a_penalty_lasts_for_its_time() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let [_, refused] = pipelined(weir.address(), ["/out"; 2]);
    let began = Instant::now();
    assert_eq!(
        (refused.status, refused.get("retry-after")),
        (420, Some("2"))
    );
    // Long enough for the rate, and too short for the penalty.
    std::thread::sleep(Duration::from_millis(800));
    let refused = get(weir.address(), "/out");
    if millis_since(began) < 1_900 {
        assert_eq!(refused.status, 420);
        assert_eq!(
            refused.get("ratelimit"),
            refused
                .get("retry-after")
                .map(|t| format!("\"five\";r=0;t={t}"))
                .as_deref()
        );
        weir.access_line("/out|420|PENALIZED|-");
        weir.error_line("limiting requests, penalty: ");
    }
    std::thread::sleep(Duration::from_millis(1_300));
    assert_eq!(get(weir.address(), "/out").status, 200);

    let both = pipelined(weir.address(), ["/dry"; 2]);
    assert_eq!(both.map(|response| response.status), [200; 2]);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(get(weir.address(), "/dry").status, 200);
    weir.access_line("/dry|200|PENALIZED_DRY_RUN|-");
}
