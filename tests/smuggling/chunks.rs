//! Malformed chunks: the body never ends at the backend, whatever came before them.

use super::recorder::Recorder;
use super::{SMUGGLED, before};
use crate::support::{Client, Nginx, Origin, eventually};

const HEAD: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Sends bodies that are refused, and by nginx with the status beside them.
fn refuse(bodies: &[(&str, u16)]) {
    let recorder = Recorder::start();
    let weir = before(&recorder, "");
    let origin = Origin::start();
    let nginx = Nginx::before(
        &origin,
        "server { listen LISTEN; location / { proxy_pass http://ORIGIN; } }",
    );
    let mut wrong = Vec::new();
    for (body, by_nginx) in bodies {
        let request = format!("{HEAD}{body}{SMUGGLED}");
        // In one piece, and in as many as there are bytes.
        for every in [request.len(), 1] {
            let mut client = Client::connect(weir.address());
            for piece in request.as_bytes().chunks(every) {
                if client.try_send(piece).is_err() {
                    break;
                }
            }
            let status = client.try_response().ok().map(|response| response.status);
            if status != Some(400) {
                wrong.push(format!("{body:?}: weir says {status:?}"));
            }
            if !client.is_closed() {
                wrong.push(format!("{body:?}: weir goes on"));
            }
            let reached = recorder.take();
            if reached.contains("0\r\n\r\n") || reached.contains("smuggled") {
                wrong.push(format!("{body:?}: {reached:?} reached the backend"));
            }
        }
        let mut client = Client::connect(nginx.address());
        client.try_send(&request).ok();
        let status = client.try_response().ok().map(|response| response.status);
        if status != Some(*by_nginx) {
            wrong.push(format!("{body:?}: nginx says {status:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn sizes_that_are_none() {
    refuse(&[
        ("zz\r\nhello\r\n0\r\n\r\n", 400),
        ("-5\r\nhello\r\n0\r\n\r\n", 400),
        ("+5\r\nhello\r\n0\r\n\r\n", 400),
        ("0x5\r\nhello\r\n0\r\n\r\n", 400),
        (" 5\r\nhello\r\n0\r\n\r\n", 400),
        ("\r\nhello\r\n0\r\n\r\n", 400),
        (";x\r\nhello\r\n0\r\n\r\n", 400),
        ("5 5\r\nhello\r\n0\r\n\r\n", 200),
        ("5\0\r\nhello\r\n0\r\n\r\n", 400),
    ]);
}

#[test]
fn sizes_that_are_too_long() {
    refuse(&[
        ("fffffffffffffffff\r\nhello\r\n0\r\n\r\n", 400),
        ("ffffffffffffffff\r\nhello\r\n0\r\n\r\n", 400),
        ("1000000000000000\r\nhello\r\n0\r\n\r\n", 400),
        ("0000000000000005\r\nhello\r\n0\r\n\r\n", 200),
    ]);
}

#[test]
fn data_that_does_not_end_with_its_chunk() {
    refuse(&[
        ("3\r\nhello\r\n0\r\n\r\n", 400),
        ("5\r\nhello0\r\n\r\n", 400),
        ("5\r\nhello\r0\r\n\r\n", 400),
    ]);
}

#[test]
fn line_feeds_without_their_carriage_return() {
    refuse(&[
        ("5\nhello\n0\n\n", 200),
        ("5\r\nhello\n0\r\n\r\n", 200),
        ("5;x\nhello\r\n0\r\n\r\n", 200),
        ("0\r\nX: y\n\r\n", 200),
        ("0\r\n\n", 200),
        ("0\n\r\n", 200),
    ]);
}

#[test]
fn extensions_without_end_and_of_control_characters() {
    let long = format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(17 * 1024));
    let spaces = format!("5{}\r\nhello\r\n0\r\n\r\n", " ".repeat(17 * 1024));
    let carriage = "5;a\rb\r\nhello\r\n0\r\n\r\n";
    let nul = "5;a\0b\r\nhello\r\n0\r\n\r\n";
    refuse(&[(&long, 200), (&spaces, 200), (carriage, 400), (nul, 200)]);
}

#[test]
fn trailers_that_are_no_fields() {
    refuse(&[
        ("0\r\nbad name: 1\r\n\r\n", 200),
        ("0\r\nX: a\rb\r\n\r\n", 400),
        ("0\r\n X: y\r\n\r\n", 200),
        ("0\r\nX : y\r\n\r\n", 200),
    ]);
}

/// Chunks before the malformed one may have left already: the backend sees a truncated body, and no other request is
/// sent over that connection.
#[test]
fn a_body_that_breaks_off_takes_its_connection_with_it() {
    let recorder = Recorder::start();
    let weir = before(&recorder, "proxy_request_buffering: off");
    let mut client = Client::connect(weir.address());
    client.send(format!("{HEAD}5\r\nhello\r\n"));
    eventually("the first chunk at the backend", || {
        recorder
            .connections()
            .iter()
            .any(|bytes| bytes.ends_with(b"5\r\nhello\r\n"))
    });
    client.send(format!("zz\r\n{SMUGGLED}"));
    assert_eq!(client.response().status, 400);
    assert!(client.is_closed());
    let mut other = Client::connect(weir.address());
    other.get("/other");
    assert_eq!(other.response().status, 200);
    let connections = recorder.connections();
    assert_eq!(connections.len(), 2, "{connections:?}");
    assert!(
        connections[0].ends_with(b"5\r\nhello\r\n"),
        "{connections:?}"
    );
}
