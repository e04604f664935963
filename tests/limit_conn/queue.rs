//! The queue of a `limit_conn`: first in, first out, bounded in length and time.

use tokio::time::Instant;

use super::hold;
use crate::support::{Client, Origin, Weir, eventually, get, metric};

fn with_queue(origin: &Origin, queue: &str) -> Weir {
    Weir::before(
        origin,
        &format!(
            "admin: {{ listen: ADMIN }}
limit_conn_zones: {{ places: {{ key: $binary_remote_addr, size: 1m }} }}
servers:
- listen: LISTEN
  locations:
  - {{ path: /, limit_conn: {{ zone: places, limit: 1, queue: {queue} }}, proxy_pass: 'http://ORIGIN' }}
"
        ),
    )
}

/// Sends a request that has to wait in line, and stands in it when this is over.
fn line_up(weir: &Weir, name: &str) -> Client {
    let before = in_line(weir);
    let client = Client::connect(weir.address());
    client.get(&format!("/ok?{name}"));
    eventually("it stands in line", || in_line(weir) == before + 1);
    client
}

/// How many stand in line.
pub(crate) fn in_line(weir: &Weir) -> u64 {
    metric(weir, "weir_limit_queue_length{zone=\"places\"}")
}

#[test]
fn requests_wait_in_order() {
    let origin = Origin::start();
    let weir = with_queue(&origin, "{ size: 5, timeout: 20s }");
    let mut held = hold(&weir, &origin, "g");
    let names = ["first", "second", "third", "fourth"];
    let mut waiting = names.map(|name| line_up(&weir, name));
    assert_eq!(origin.count(), 1);
    origin.gates().open("g");
    assert_eq!(held.response().status, 200);
    for client in &mut waiting {
        assert_eq!(client.response().status, 200);
    }
    let order: Vec<_> = origin
        .seen()
        .iter()
        .map(|seen| seen.head.word(1).to_owned())
        .collect();
    assert_eq!(
        order,
        [
            "/hold?gate=g",
            "/ok?first",
            "/ok?second",
            "/ok?third",
            "/ok?fourth"
        ]
    );
}

#[test]
fn a_full_line_turns_away_at_once() {
    let origin = Origin::start();
    let weir = with_queue(&origin, "{ size: 1, timeout: 20s }");
    let mut held = hold(&weir, &origin, "g");
    let mut waiting = line_up(&weir, "waiting");
    assert_eq!(get(weir.address(), "/ok").status, 503);
    origin.gates().open("g");
    assert_eq!(
        [held.response().status, waiting.response().status],
        [200, 200]
    );
}

#[test]
fn a_request_that_waited_too_long_is_refused() {
    let origin = Origin::start();
    let weir = with_queue(&origin, "{ size: 5, timeout: 500ms }");
    let _held = hold(&weir, &origin, "g");
    let started = Instant::now();
    assert_eq!(get(weir.address(), "/ok").status, 503);
    let waited = started.elapsed().as_millis();
    assert!((499..20_000).contains(&waited), "{waited} ms");
    origin.gates().open("g");
}

#[test]
fn a_client_that_leaves_the_queue_makes_room() {
    let origin = Origin::start();
    let weir = with_queue(&origin, "{ size: 2, timeout: 20s }");
    let mut held = hold(&weir, &origin, "g");
    let leaving = line_up(&weir, "leaving");
    let mut staying = line_up(&weir, "staying");
    drop(leaving);
    eventually("the 499 of who left", || {
        weir.stdout().contains("/ok?leaving HTTP/1.1\" 499 ")
    });
    eventually("one is left", || in_line(&weir) == 1);
    let mut coming = line_up(&weir, "coming");
    origin.gates().open("g");
    let statuses = [&mut held, &mut staying, &mut coming].map(|client| client.response().status);
    assert_eq!(statuses, [200; 3]);
    assert!(
        !origin
            .seen()
            .iter()
            .any(|seen| seen.head.line.contains("leaving"))
    );
}
