//! Verbs that show the state: the same as the API, as text.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use super::{json, limited, row, told, verb};
use crate::support::api::TOKEN;
use crate::support::weir::BINARY;
use crate::support::{Api, Origin, eventually, get, get_from};

#[test]
fn zones_show_the_verdicts_of_their_limits() {
    let origin = Origin::start();
    let weir = limited(&origin);
    for _ in 0..5 {
        get(weir.address(), "/ok");
    }
    let table = told(&weir, &["zones"]);
    assert_eq!(
        row(&table, "one"),
        ["one", "limit_req", "1r/m", "1", "3", "0", "2"],
        "{table}"
    );
    assert_eq!(row(&table, "places")[1], "limit_conn");
    assert!(
        table.lines().all(|line| line.chars().count() <= 80),
        "{table}"
    );
    let one = told(&weir, &["zones", "one"]);
    for part in [
        "$binary_remote_addr",
        "1r/m",
        "3 pass, 0 delay, 2 refuse (40.0 %)",
        "front",
    ] {
        assert!(one.contains(part), "{part} in\n{one}");
    }
    assert_eq!(
        json(&weir, &["zones"]),
        Api(weir.admin_address()).get("/api/zones")
    );
    let missing = verb(&weir, &["zones", "nowhere"]);
    assert_eq!(missing.status.code(), Some(1));
    let why = super::text(&missing.stderr);
    assert!(
        why.starts_with("weir: ") && why.contains("nowhere"),
        "{why}"
    );
}

#[test]
fn keys_are_listed_and_looked_up() {
    let origin = Origin::start();
    let weir = limited(&origin);
    for _ in 0..5 {
        get(weir.address(), "/ok");
    }
    get_from([127, 0, 0, 2], weir.address(), "/ok");
    let table = told(&weir, &["keys", "one"]);
    assert_eq!(
        row(&table, "127.0.0.1")[..4],
        ["127.0.0.1", "3", "0", "2"],
        "{table}"
    );
    assert_eq!(
        row(&table, "127.0.0.2")[..4],
        ["127.0.0.2", "1", "0", "0"],
        "{table}"
    );
    let first = told(&weir, &["keys", "one", "--sort", "pass", "--limit", "1"]);
    assert_eq!(first.lines().count(), 2, "{first}");
    let key = told(&weir, &["keys", "one", "127.0.0.1"]);
    assert!(key.contains("0 of 3 left"), "{key}");
    assert!(key.contains("next request passes in "), "{key}");
    let known = json(&weir, &["keys", "one", "127.0.0.1"]);
    assert_eq!(
        (&known["refuse"], &known["known"]),
        (&2.into(), &true.into())
    );
    assert_eq!(
        verb(&weir, &["keys", "one", "--sort", "fame"])
            .status
            .code(),
        Some(2)
    );
    assert_eq!(verb(&weir, &["keys"]).status.code(), Some(2));
}

#[test]
fn text_of_clients_cannot_control_the_terminal() {
    let origin = Origin::start();
    let weir = limited(&origin);
    // Decoded, these are an escape sequence, its one-byte form, and a text that turns around.
    for _ in 0..2 {
        get(weir.address(), "/paths/%1b%5b2J%c2%9b31m%e2%80%aex%0d%0a");
    }
    for arguments in [
        &["keys", "paths"][..],
        &["keys", "paths", "--json"],
        &["refusals"],
        &["refusals", "--json"],
    ] {
        let said = told(&weir, arguments);
        assert!(said.contains("paths/"), "{arguments:?}: {said:?}");
        let bad = said
            .chars()
            .find(|letter| letter.is_control() && *letter != '\n');
        assert_eq!(bad, None, "{arguments:?}: {said:?}");
    }
}

#[test]
fn refusals_come_with_their_reasons() {
    let origin = Origin::start();
    let weir = limited(&origin);
    assert_eq!(told(&weir, &["refusals"]), "no refusals\n");
    for _ in 0..4 {
        get(weir.address(), "/some/path");
    }
    let said = told(&weir, &["refusals"]);
    for part in ["one 127.0.0.1: ", "excess", "429", "/some/path"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn refusals_are_followed() {
    let origin = Origin::start();
    let weir = limited(&origin);
    for _ in 0..4 {
        get(weir.address(), "/before");
    }
    let mut following = Command::new(BINARY)
        .args(["refusals", "--follow"])
        .env("WEIR_ADMIN", weir.admin_address().to_string())
        .env("WEIR_TOKEN", TOKEN)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary can be run");
    let mut lines = BufReader::new(following.stdout.take().expect("it is piped")).lines();
    let mut next = || lines.next().expect("a line").expect("text");
    assert!(next().contains("/before"));
    get(weir.address(), "/after");
    assert!(next().contains("/after"));
    following.kill().expect("it is ours");
    following.wait().expect("it is ours");
}

#[test]
fn a_request_is_explained_and_nothing_is_charged() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let url = "http://front/ok";
    let before = told(&weir, &["explain", "GET", url, "--from", "127.0.0.1"]);
    for part in [
        "would pass",
        "limit_req one",
        "limit_conn places",
        "3 of 3",
        "5 of 5",
    ] {
        assert!(before.contains(part), "{part} in\n{before}");
    }
    assert_eq!(
        told(&weir, &["explain", url]),
        before,
        "GET from here is what is meant"
    );
    for _ in 0..3 {
        get(weir.address(), "/ok");
    }
    let after = told(&weir, &["explain", "GET", url]);
    assert!(after.contains("would be refused with 429"), "{after}");
    assert!(after.contains("0 of 3"), "{after}");
    let other = json(
        &weir,
        &[
            "explain",
            "GET",
            url,
            "--from",
            "192.0.2.1",
            "-H",
            "X-Any: thing",
        ],
    );
    assert_eq!(other["verdict"], "pass");
    for wrong in [
        &["explain"][..],
        &["explain", "a b"],
        &["explain", "GET", url, "-H", "nothing"],
    ] {
        assert_eq!(verb(&weir, wrong).status.code(), Some(2), "{wrong:?}");
    }
    // What limits have nothing against may still not be answered.
    told(&weir, &["disable", "app", &origin.address().to_string()]);
    let stopped = told(&weir, &["explain", url, "--from", "192.0.2.1"]);
    let says = "limits let it pass, but: no server of its upstream is available";
    assert!(stopped.contains(says), "{stopped}");
}

#[test]
fn upstreams_breakers_and_groups_are_listed() {
    let origin = Origin::start();
    let weir = limited(&origin);
    get(weir.address(), "/ok");
    let address = origin.address().to_string();
    let expected = ["app", &address, "up", "closed", "0", "1", "0"];
    // It is over for the server a moment after the client has its answer.
    eventually("a server that is up, without connections", || {
        row(&told(&weir, &["upstreams"]), "app") == expected
    });
    let breakers = told(&weir, &["breaker"]);
    assert_eq!(
        row(&breakers, "front"),
        ["front", "/extras/", "closed", "0"],
        "{breakers}"
    );
    assert_eq!(row(&breakers, "app")[3], "closed", "{breakers}");
    assert_eq!(
        row(&told(&weir, &["degrade"]), "extras"),
        ["extras", "auto"]
    );
}

#[test]
fn status_prints_a_summary() {
    let origin = Origin::start();
    let weir = limited(&origin);
    for _ in 0..4 {
        get(weir.address(), "/ok");
    }
    eventually("four requests are over", || {
        told(&weir, &["status"]).contains("requests     4")
    });
    let status = told(&weir, &["status"]);
    for part in [
        env!("CARGO_PKG_VERSION"),
        ": ready\n",
        "never reloaded",
        "event loops",
    ] {
        assert!(status.contains(part), "{part} in\n{status}");
    }
    assert_eq!(json(&weir, &["status"])["limits"]["refuse"], 1);
}
