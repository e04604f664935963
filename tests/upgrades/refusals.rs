//! No tunnel: a malformed upgrade request is forwarded without it, and a wrong response to one is an error of the backend.

use super::{Far, ask, before};
use crate::support::{Client, eventually};

#[test]
fn ambiguous_upgrade_requests_are_not_forwarded() {
    let far = Far::start();
    let weir = before(far.address(), "", "");
    for request in [
        // Not in HTTP/1.0.
        "GET /ok HTTP/1.0\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo/1\r\n\r\n",
        // Not without saying so in Connection.
        "GET /ok HTTP/1.1\r\nHost: a\r\nUpgrade: echo/1\r\n\r\n",
        "GET /ok HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\n\r\n",
        // Not with a body that would come between.
        "POST /ok HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo/1\r\nContent-Length: 2\r\n\r\nhi",
        // Never HTTP/2, whose requests would be seen by no limit.
        "GET /ok HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
    ] {
        let mut client = Client::connect(weir.address());
        client.send(request);
        assert_eq!(client.response().text(), "ok", "{request}");
        let head = far.heads().pop().expect("it was forwarded");
        for name in ["connection", "upgrade", "http2-settings"] {
            assert!(!head.has(name), "{request} became {}", head.text);
        }
    }
    // Of several, the others.
    let mut client = Client::connect(weir.address());
    client.send("GET /ok HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: h2c, echo/1\r\nUpgrade: x\r\n\r\n");
    assert_eq!(client.response().text(), "ok");
    let head = far.heads().pop().expect("it was forwarded");
    assert_eq!(head.get("upgrade"), Some("echo/1, x"));
}

/// The client asked for no upgrade, or for another protocol: the bytes that follow have no defined meaning.
#[test]
fn a_101_that_does_not_fit_is_a_bad_gateway() {
    let far = Far::start();
    let weir = before(far.address(), "", "");
    for path in ["/other", "/silent"] {
        let mut client = ask(&weir, path, "");
        assert_eq!(client.response().status, 502, "{path}");
    }
    for request in [
        "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /echo HTTP/1.0\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo/1\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo/1\r\nContent-Length: 2\r\n\r\nhi",
        "GET /echo HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    ] {
        let mut client = Client::connect(weir.address());
        client.send(request);
        assert_eq!(client.response().status, 502, "{request}");
    }
    eventually("nothing left open", || far.open() == 0);
    weir.error_line("unrequested 101");
}

/// A bug that Pingora had: bytes behind the request do not belong to the tunnel before the backend has agreed.
#[test]
fn bytes_after_a_refused_upgrade_are_a_request() {
    let far = Far::start();
    let weir = before(far.address(), "", "");
    let mut client = ask(&weir, "/no", "GET /ok HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response().status, 426);
    assert_eq!(client.response().text(), "ok");
    weir.access_line("/ok 200 ");
    assert_eq!(far.heads().len(), 2);
    assert_eq!(far.heard(), "");
    // And one that is none, is none.
    let mut client = ask(
        &weir,
        "/no",
        "GET /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
    );
    assert_eq!(client.response().status, 426);
    assert_eq!(client.response().status, 400);
    assert!(client.is_closed());
}

#[test]
fn a_location_can_do_without() {
    let far = Far::start();
    let weir = before(far.address(), "", "proxy_upgrade: off,");
    let mut client = ask(&weir, "/ok", "");
    assert_eq!(client.response().text(), "ok");
    let head = far.heads().pop().expect("it was forwarded");
    assert!(
        !head.has("upgrade") && !head.has("connection"),
        "{}",
        head.text
    );
    let mut client = ask(&weir, "/echo", "");
    assert_eq!(client.response().status, 502);
}

/// hyper leaves the end of such a connection to us.
#[test]
fn a_refused_question_closes_as_others_do() {
    let far = Far::start();
    let weir = before(far.address(), "", "keepalive_timeout: 0,");
    let mut client = ask(&weir, "/no", &"x".repeat(100_000));
    let response = client.response();
    assert_eq!((response.status, response.text().as_str()), (426, "no"));
    assert!(client.is_closed());

    let weir = before(far.address(), "", "");
    let mut client = ask(&weir, "/no", "");
    assert_eq!(client.response().status, 426);
    client
        .try_send(format!("{{}}\r\n{}", "x".repeat(100_000)))
        .ok();
    assert_eq!(client.response().status, 400);
    assert!(client.is_closed());
}

#[test]
fn connect_is_refused() {
    let far = Far::start();
    let weir = before(far.address(), "", "");
    for request in [
        "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n",
        "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\nConnection: upgrade\r\nUpgrade: echo/1\r\n\r\n",
    ] {
        let mut client = Client::connect(weir.address());
        client.send(format!("{request}GET /ok HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(client.response().status, 405, "{request}");
        assert!(client.is_closed());
    }
    assert!(far.heads().is_empty());
}
