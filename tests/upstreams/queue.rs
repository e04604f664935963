//! `max_conns` and `queue`: which requests wait, in which order, and for how long.

use std::time::Duration;

use tokio::time::Instant;

use super::{await_waiting, before, queued};
use crate::support::{Client, Origin, Weir, get};

fn with_queue(origin: &Origin, queue: &str) -> Weir {
    let queue = format!("queue: {{ {queue} }},");
    before(origin, &queue, ", max_conns: 1", "")
}

/// A request that is at the server until its gate opens.
fn hold(weir: &Weir, origin: &Origin) -> Client {
    origin.hold("g", || {
        let client = Client::connect(weir.address());
        client.get("/hold?gate=g");
        client
    })
}

/// A request that waits, the `number`th of those who do.
fn line_up(weir: &Weir, path: &str, number: u64) -> Client {
    let client = Client::connect(weir.address());
    client.get(path);
    await_waiting(weir, number);
    client
}

/// What the server was asked, in order, after the first.
fn asked(origin: &Origin) -> Vec<String> {
    let seen = origin.seen();
    let targets = seen.iter().map(|seen| seen.head.word(1).to_owned());
    targets.skip(1).collect()
}

#[test]
fn requests_wait_in_order() {
    let origin = Origin::start();
    let weir = with_queue(&origin, "size: 10, timeout: 20s");
    let mut held = hold(&weir, &origin);
    let paths = ["/ok?1", "/ok?2", "/ok?3", "/ok?4"];
    let mut waiting = Vec::new();
    for (number, path) in (1..).zip(paths) {
        waiting.push(line_up(&weir, path, number));
    }
    assert_eq!(origin.count(), 1);
    origin.gates().open("g");
    assert_eq!(held.response().status, 200);
    for client in &mut waiting {
        assert_eq!(client.response().status, 200);
    }
    assert_eq!(asked(&origin), paths);
    assert_eq!(queued(&weir, "served"), 4);
    await_waiting(&weir, 0);
}

#[test]
fn newest_first_turns_the_line_around() {
    let origin = Origin::start();
    let weir = with_queue(&origin, "size: 3, timeout: 20s, order: newest_first");
    let mut held = hold(&weir, &origin);
    let mut waiting: Vec<Client> = (1..=3)
        .map(|number| line_up(&weir, &format!("/ok?{number}"), number))
        .collect();
    let last = Client::connect(weir.address());
    last.get("/ok?4");
    // Who has waited longest, and will hardly be served in time, makes room.
    let refused = waiting.remove(0).response();
    assert_eq!(
        (refused.status, refused.get("retry-after")),
        (503, Some("20"))
    );
    waiting.push(last);
    origin.gates().open("g");
    assert_eq!(held.response().status, 200);
    for client in &mut waiting {
        assert_eq!(client.response().status, 200);
    }
    assert_eq!(asked(&origin), ["/ok?4", "/ok?3", "/ok?2"]);
}

#[test]
fn a_full_queue_refuses_at_once_with_retry_after() {
    let origin = Origin::start();
    let weir = with_queue(&origin, "size: 1, timeout: 20s");
    let mut held = hold(&weir, &origin);
    let waiting = line_up(&weir, "/ok", 1);
    let started = Instant::now();
    let refused = get(weir.address(), "/ok");
    assert!(started.elapsed() < Duration::from_secs(15), "at once");
    assert_eq!(
        (refused.status, refused.get("retry-after")),
        (503, Some("20"))
    );
    weir.error_line("queue is full while waiting for upstream");
    assert_eq!(queued(&weir, "full"), 1);
    drop(waiting);
    origin.gates().open("g");
    assert_eq!(held.response().status, 200);
}

#[test]
fn a_queued_request_is_refused_after_the_timeout() {
    let origin = Origin::start();
    let weir = with_queue(&origin, "size: 5, timeout: 300ms");
    let mut held = hold(&weir, &origin);
    let started = Instant::now();
    let refused = get(weir.address(), "/ok");
    assert!(started.elapsed() >= Duration::from_millis(295));
    assert_eq!(
        (refused.status, refused.get("retry-after")),
        (503, Some("1"))
    );
    weir.error_line("queue timed out while waiting for upstream");
    assert_eq!(queued(&weir, "timeout"), 1);
    await_waiting(&weir, 0);
    origin.gates().open("g");
    assert_eq!(held.response().status, 200);
    assert_eq!(get(weir.address(), "/ok").status, 200);
}

#[test]
fn a_client_that_leaves_gives_up_its_place_at_once() {
    let origin = Origin::start();
    let weir = with_queue(&origin, "size: 2, timeout: 60s");
    let mut held = hold(&weir, &origin);
    let leaves = line_up(&weir, "/ok?leaves", 1);
    let mut stays = line_up(&weir, "/ok?stays", 2);
    drop(leaves);
    await_waiting(&weir, 1);
    assert_eq!(queued(&weir, "left"), 1);
    origin.gates().open("g");
    assert_eq!(held.response().status, 200);
    assert_eq!(stays.response().status, 200);
    assert_eq!(asked(&origin), ["/ok?stays"]);
}

#[test]
fn one_clients_flood_does_not_keep_another_out() {
    flood(|number| format!("/ok?who=flood&n={number}"));
}

/// The same where the client gives itself a new name each time, before the one that its backend reads.
#[test]
fn a_flood_under_two_names_stands_in_one_line() {
    flood(|number| format!("/ok?who={number}&who=flood"));
}

fn flood(target: impl Fn(u64) -> String) {
    let origin = Origin::start();
    let weir = with_queue(&origin, "size: 4, timeout: 60s, fair: $arg_who");
    let mut held = hold(&weir, &origin);
    let mut flood: Vec<Client> = (1..=4)
        .map(|number| line_up(&weir, &target(number), number))
        .collect();
    let mut other = Client::connect(weir.address());
    other.get("/ok?who=other");
    // The longest line loses its last.
    assert_eq!(
        flood.pop().map(|mut client| client.response().status),
        Some(503)
    );
    assert_eq!(get(weir.address(), &target(5)).status, 503);
    origin.gates().open("g");
    assert_eq!(held.response().status, 200);
    assert_eq!(other.response().status, 200);
    for client in &mut flood {
        assert_eq!(client.response().status, 200);
    }
    assert_eq!(
        asked(&origin),
        [target(1), "/ok?who=other".to_owned(), target(2), target(3)]
    );
}

/// Whichever loop a request comes to: the number is the server's.
#[test]
fn max_conns_counts_for_the_whole_process() {
    let origin = Origin::start();
    let weir = before(
        &origin,
        "queue: { size: 100, timeout: 60s },",
        ", max_conns: 3",
        "",
    );
    let mut clients: Vec<Client> = (0..30)
        .map(|_| {
            let client = Client::connect(weir.address());
            client.get("/hold?gate=g");
            client
        })
        .collect();
    await_waiting(&weir, 27);
    origin.gates().await_waiting("g", 3);
    origin.gates().open("g");
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
    }
    assert_eq!(queued(&weir, "served"), 27);
}

#[test]
fn without_a_queue_a_full_server_is_no_live_server() {
    let origin = Origin::start();
    let weir = before(&origin, "", ", max_conns: 1", "");
    let mut held = hold(&weir, &origin);
    assert_eq!(get(weir.address(), "/ok").status, 502);
    origin.gates().open("g");
    assert_eq!(held.response().status, 200);
}
