//! Reloads of the configuration: what changes, what is kept, and what an error does.

mod api;
mod listeners;
mod load;
mod operators;
mod state;
mod systemd;
mod upgrade;
mod upstreams;
mod zones;

use crate::support::{Client, Origin, Weir, get};

/// A configuration that answers `/` with a text.
fn answering(text: &str) -> String {
    format!(
        "log: {{ level: info }}
servers:
- listen: LISTEN
  locations:
  - {{ path: /, return: '200 {text}' }}
"
    )
}

#[test]
fn the_next_request_is_served_by_the_new_configuration() {
    let weir = Weir::start(&answering("one"));
    let mut kept = Client::connect(weir.address());
    kept.get("/");
    assert_eq!(kept.response().text(), "one");
    weir.reload(&answering("two"));
    kept.get("/");
    assert_eq!(
        kept.response().text(),
        "two",
        "also on a connection of before"
    );
    assert_eq!(get(weir.address(), "/").text(), "two");
}

#[test]
fn a_configuration_error_changes_nothing_and_is_logged() {
    let weir = Weir::start(&answering("one"));
    let said = weir.reload_refused(&answering("two").replace("path: /", "path: /, pathh: /x"));
    assert!(
        said.contains("weir.yaml:5:16: unknown key `pathh`"),
        "{said}"
    );
    assert_eq!(get(weir.address(), "/").text(), "one");
    weir.reload(&answering("three"));
    assert_eq!(get(weir.address(), "/").text(), "three");
}

/// Errors that only show when listeners are opened are found before anything changes, too.
#[test]
fn a_listener_that_cannot_be_opened_changes_nothing() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    let weir = Weir::start(&answering("one"));
    for (wrong, told) in [
        (
            format!("{}- {{ listen: '{taken}' }}\n", answering("two")),
            "address in use",
        ),
        (
            answering("two")
                .replace("log:", "admin: { listen: ADMIN }\nlog:")
                .replace(
                    "level: info",
                    "level: info, access: { path: DIR/missing/access.log }",
                ),
            "access log",
        ),
        (
            answering("two").replace(
                "- { path: /,",
                "- { path: /far, proxy_pass: 'http://missing.invalid' }\n  - { path: /,",
            ),
            "missing.invalid",
        ),
    ] {
        let said = weir.reload_refused(&wrong);
        assert!(said.contains(told), "{told}: {said}");
        assert_eq!(get(weir.address(), "/").text(), "one");
        assert!(Client::try_connect(weir.admin_address()).is_err());
    }
}

#[test]
fn requests_in_flight_finish_by_their_old_limits() {
    let origin = Origin::start();
    let before = "log: { level: info, access: { path: DIR/one.log } }
servers:
- listen: LISTEN
  locations: [ { path: /, proxy_pass: 'http://ORIGIN' } ]
"
    .replace("ORIGIN", &origin.address().to_string());
    let weir = Weir::start(&before);
    let mut waiting = Client::connect(weir.address());
    waiting.get("/hold?gate=g");
    origin.gates().await_waiting("g", 1);
    weir.reload(
        &answering("gone").replace("level: info", "level: info, access: { path: DIR/two.log }"),
    );
    assert_eq!(get(weir.address(), "/now").text(), "gone");
    origin.gates().open("g");
    let response = waiting.response();
    assert_eq!((response.status, response.text().as_str()), (200, "ok"));
    crate::support::eventually("its line is where it belongs", || {
        weir.file("one.log").contains("/hold?gate=g") && weir.file("two.log").contains("/now")
    });
    // And then it goes on by the new ones.
    waiting.get("/");
    assert_eq!(waiting.response().text(), "gone");
}

#[test]
fn the_level_of_the_error_log_changes() {
    let weir = Weir::start(&answering("one"));
    weir.reload(&answering("two"));
    weir.rewrite(&answering("three").replace("info", "error"));
    weir.signal("HUP");
    crate::support::eventually("the new one", || get(weir.address(), "/").text() == "three");
    weir.reload_refused("servers: 5\n");
    weir.rewrite(&answering("four"));
    weir.signal("HUP");
    weir.error_line("generation=4");
    let said = weir.stderr();
    assert!(!said.contains("generation=3"), "{said}");
}
