//! Listeners that are added and removed by a reload.

use super::answering;
use crate::support::{Client, Origin, Weir, eventually, get};

fn also(text: &str, more: &str) -> String {
    format!("{}{more}", answering(text))
}

#[test]
fn addresses_are_listened_on_from_the_moment_they_are_in_force() {
    let second = "- listen: LISTEN2
  locations: [ { path: /, return: '200 second' } ]
";
    let weir = Weir::start(&answering("first"));
    assert!(Client::try_connect(weir.second_address()).is_err());
    weir.reload(&also("first", second));
    assert_eq!(get(weir.second_address(), "/").text(), "second");
    // In another order: the connections of each still lead to their own.
    let mut kept = Client::connect(weir.second_address());
    let mut other = Client::connect(weir.address());
    let swapped = format!(
        "log: {{ level: info }}\nservers:\n{second}{}",
        answering("first").split_once("servers:\n").unwrap().1
    );
    weir.reload(&swapped);
    kept.get("/");
    other.get("/");
    assert_eq!(
        (kept.response().text(), other.response().text()),
        ("second".into(), "first".into())
    );

    weir.reload(&answering("first"));
    assert!(kept.is_closed(), "who is idle is let go");
    eventually("no socket listens there", || {
        Client::try_connect(weir.second_address()).is_err()
    });
    other.get("/");
    assert_eq!(other.response().text(), "first");
    weir.reload(&swapped);
    assert_eq!(get(weir.second_address(), "/").text(), "second");
}

#[test]
fn requests_of_a_removed_listener_are_finished() {
    let origin = Origin::start();
    let second = "- listen: LISTEN2
  locations: [ { path: /, proxy_pass: 'http://ORIGIN' } ]
"
    .replace("ORIGIN", &origin.address().to_string());
    let weir = Weir::start(&also("first", &second));
    let mut waiting = Client::connect(weir.second_address());
    waiting.get("/hold?gate=g");
    origin.gates().await_waiting("g", 1);
    weir.reload(&answering("first"));
    eventually("no socket listens there", || {
        Client::try_connect(weir.second_address()).is_err()
    });
    weir.reload(&answering("again"));
    origin.gates().open("g");
    let response = waiting.response();
    assert_eq!((response.status, response.text().as_str()), (200, "ok"));
    assert!(waiting.is_closed());
}

#[test]
fn a_wildcard_takes_the_place_of_one_address_and_the_other_way_round() {
    let weir = Weir::start(&answering("one"));
    let everywhere = answering("all").replace("LISTEN", "'0.0.0.0:PORT'");
    weir.reload(&everywhere);
    eventually("the wildcard serves", || {
        get(weir.address(), "/").text() == "all"
    });
    weir.reload(&answering("one"));
    eventually("the address serves", || {
        get(weir.address(), "/").text() == "one"
    });
}

#[test]
fn a_unix_socket_comes_and_goes_with_its_file() {
    let unix = "- listen: 'unix:DIR/weir.sock'
  locations: [ { path: /, return: '200 unix' } ]
";
    let weir = Weir::start(&answering("one"));
    weir.reload(&also("one", unix));
    let path = weir.path("weir.sock");
    assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
    weir.reload(&also("two", unix));
    assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
    weir.reload(&answering("two"));
    eventually("the file is gone", || !path.exists());
}

#[test]
fn the_admin_listener_moves() {
    let weir = Weir::start(&answering("one"));
    let with_admin =
        |address: &str| format!("admin: {{ listen: {address} }}\n{}", answering("one"));
    weir.reload(&with_admin("ADMIN"));
    assert_eq!(get(weir.admin_address(), "/healthz").status, 200);
    weir.reload(&with_admin("ADMIN"));
    assert_eq!(get(weir.admin_address(), "/healthz").status, 200);
    weir.reload(&with_admin("LISTEN2"));
    assert_eq!(get(weir.second_address(), "/healthz").status, 200);
    eventually("the old one is closed", || {
        Client::try_connect(weir.admin_address()).is_err()
    });
    weir.reload(&answering("one"));
    eventually("it is closed", || {
        Client::try_connect(weir.second_address()).is_err()
    });
}

#[test]
fn settings_that_need_a_restart_are_logged_and_stay() {
    let weir = Weir::start(&answering("one"));
    weir.reload(&format!("workers: 7\n{}", answering("two")));
    weir.error_line("workers: 7 is for the next start");
    assert_eq!(get(weir.address(), "/").text(), "two");
}
