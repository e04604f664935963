//! Verbs that change something, and what clients notice of it.

use super::{json, limited, row, told, verb};
use crate::support::{Origin, get, get_from};

const OTHER: [u8; 4] = [127, 0, 0, 2];

#[test]
fn a_key_is_blocked_and_unblocked() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let status = || get_from(OTHER, weir.address(), "/ok").status;
    assert_eq!(status(), 200);
    let arguments = [
        "block",
        "one",
        "127.0.0.2",
        "--for",
        "10m",
        "--reason",
        "a scraper",
    ];
    let said = told(&weir, &arguments);
    assert!(said.starts_with("Blocked 127.0.0.2 in one.\n"), "{said}");
    assert_eq!(row(&said, "127.0.0.2")[1], "block", "{said}");
    assert!(said.contains("a scraper"), "{said}");
    assert_eq!(status(), 429);
    assert_eq!(
        get(weir.address(), "/ok").status,
        200,
        "no other client is blocked"
    );
    assert!(told(&weir, &["zones", "one"]).contains("a scraper"));
    assert_eq!(
        row(&told(&weir, &["keys", "one"]), "127.0.0.2").last(),
        Some(&"block")
    );
    assert_eq!(
        told(&weir, &["unblock", "one", "127.0.0.2"]),
        "Unblocked 127.0.0.2 in one.\n"
    );
    assert_eq!(status(), 200);
}

#[test]
fn a_key_is_exempt_granted_more_or_forgotten() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let statuses = || [0; 4].map(|_| get_from(OTHER, weir.address(), "/ok").status);
    assert_eq!(statuses(), [200, 200, 200, 429]);
    told(&weir, &["exempt", "one", "127.0.0.2"]);
    assert_eq!(statuses(), [200; 4]);
    told(&weir, &["exempt", "one", "127.0.0.2", "--off"]);
    assert_eq!(statuses(), [429; 4]);
    told(&weir, &["grant", "one", "127.0.0.2", "2"]);
    assert_eq!(statuses(), [200, 200, 429, 429]);
    told(&weir, &["forget", "one", "127.0.0.2"]);
    assert_eq!(statuses(), [200, 200, 200, 429]);
    let again = json(&weir, &["forget", "one", "127.0.0.9"]);
    assert_eq!(again["forgotten"], false);
    assert_eq!(
        verb(&weir, &["grant", "one", "127.0.0.2"]).status.code(),
        Some(2),
        "how many?"
    );
    let wrong = verb(&weir, &["block", "one", "127.0.0.2", "--for", "never"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}

#[test]
fn a_zone_has_other_numbers_until_they_are_reset() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let said = told(&weir, &["set", "one", "--rate", "2r/m", "--burst", "5"]);
    assert!(
        said.contains("changed  rate 2r/m, burst 5 until the next reload (in the file: 1r/m)"),
        "{said}"
    );
    let statuses = [0; 7].map(|_| get(weir.address(), "/ok").status);
    assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 429]);
    assert_eq!(row(&told(&weir, &["zones"]), "one")[2], "2r/m");
    told(&weir, &["set", "one", "--reset"]);
    assert_eq!(row(&told(&weir, &["zones"]), "one")[2], "1r/m");
    told(&weir, &["set", "places", "--limit", "1"]);
    for wrong in [
        &["set", "one"][..],
        &["set", "one", "--reset", "--rate", "1r/s"],
        &["set", "one", "--rate", "fast"],
    ] {
        let output = verb(&weir, wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {output:?}");
    }
}

#[test]
fn a_server_is_drained_disabled_and_enabled() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let address = origin.address().to_string();
    for (verb, state, status) in [
        ("drain", "drained", 502),
        ("enable", "up", 200),
        ("disable", "down", 502),
        ("enable", "up", 200),
    ] {
        let said = told(&weir, &[verb, "app", &address]);
        assert_eq!(row(&said, "app")[2], state, "{said}");
        assert_eq!(
            get_from(OTHER, weir.address(), "/ok").status,
            status,
            "{verb}"
        );
        told(&weir, &["forget", "one", "127.0.0.2"]);
    }
    let unknown = verb(&weir, &["drain", "app", "192.0.2.1:1"]);
    assert_eq!(unknown.status.code(), Some(1));
    let why = super::text(&unknown.stderr);
    assert!(why.contains("no server `192.0.2.1:1`"), "{why}");
}

#[test]
fn breakers_are_forced_and_groups_switched() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let address = origin.address().to_string();
    let said = told(&weir, &["breaker", "open", "app", &address]);
    assert!(said.contains("open, forced"), "{said}");
    assert_eq!(get(weir.address(), "/ok").status, 503);
    let said = told(&weir, &["breaker", "auto", "app", &address]);
    assert!(!said.contains("forced"), "{said}");
    let said = told(
        &weir,
        &["breaker", "open", "--location", "front", "/extras/"],
    );
    assert!(said.contains("open, forced"), "{said}");
    assert_eq!(
        row(&told(&weir, &["degrade", "extras", "on"]), "extras"),
        ["extras", "on"]
    );
    assert_eq!(json(&weir, &["degrade"])[0]["mode"], "on");
    for wrong in [
        &["breaker", "open"][..],
        &["breaker", "open", "app"],
        &["breaker", "ajar", "app", &address],
        &["degrade", "extras"],
    ] {
        assert_eq!(verb(&weir, wrong).status.code(), Some(2), "{wrong:?}");
    }
}
