//! Malformed request lines and headers that some parsers accept.

use super::Pair;
use crate::support::{Client, Weir};

#[test]
fn obsolete_folding() {
    Pair::start().refuse(
        400,
        &[
            ("GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n\tb\r\n\r\n", 400),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n Content-Length: 5\r\n\r\n",
                400,
            ),
        ],
    );
}

#[test]
fn whitespace_before_the_first_field() {
    Pair::start().refuse(
        400,
        &[
            ("GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\n\tX: y\r\nHost: a\r\n\r\n", 400),
        ],
    );
}

#[test]
fn a_bare_carriage_return() {
    Pair::start().refuse(
        400,
        &[
            ("GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nX: a\r\r\n\r\n", 200),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nX: a\rContent-Length: 5\r\n\r\n",
                400,
            ),
            ("GET / HTTP/1.1\rHost: a\r\n\r\n", 400),
        ],
    );
}

#[test]
fn a_nul_or_another_control_character() {
    Pair::start().refuse(
        400,
        &[
            ("GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nX\0: y\r\n\r\n", 400),
            ("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nX: a\u{1}b\r\n\r\n", 200),
            ("GET / HTTP/1.1\r\nHost: a\r\nX: a\u{b}b\r\n\r\n", 200),
            ("GET / HTTP/1.1\r\nHost: a\r\nX: a\u{7f}b\r\n\r\n", 200),
            ("GET /\u{1} HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ],
    );
}

#[test]
fn a_space_before_the_colon() {
    Pair::start().refuse(
        400,
        &[
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n\r\nhello",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
                400,
            ),
            ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        ],
    );
}

#[test]
fn malformed_header_lines() {
    Pair::start().refuse(
        400,
        &[
            ("GET / HTTP/1.1\r\nHost: a\r\n: a\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nnothing\r\n\r\n", 200),
            ("GET / HTTP/1.1\r\nHost: a\r\nX(y): a\r\n\r\n", 200),
            ("GET / HTTP/1.1\r\nHost: a\r\nX y: a\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\n\u{e4}: a\r\n\r\n", 200),
        ],
    );
}

#[test]
fn malformed_request_lines() {
    Pair::start().refuse(
        400,
        &[
            ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 200),
            ("GET /  HTTP/1.1\r\nHost: a\r\n\r\n", 200),
            (" GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET /o k HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 200),
            ("G(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET ok HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET / http/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET / HTTP/1.\r\nHost: a\r\n\r\n", 400),
            ("GET / HTTP/11\r\nHost: a\r\n\r\n", 505),
            ("GET / HTTP/0.9\r\nHost: a\r\n\r\n", 400),
            ("GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", 200),
            ("GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET /a%00b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET /../a HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET /a/%2e%2E/../b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ],
    );
}

#[test]
fn a_version_that_is_not_spoken_here() {
    Pair::start().refuse(
        505,
        &[
            ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
            ("GET / HTTP/3.7\r\nHost: a\r\n\r\n", 505),
            ("GET / HTTP/2.0\nHost: a\n\n", 505),
            ("\r\nGET / HTTP/2.0\r\n\r\n", 505),
        ],
    );
}

#[test]
fn a_request_line_too_long_and_headers_too_large() {
    let pair = Pair::start();
    let long = "x".repeat(70_000);
    pair.refuse(
        414,
        &[(&format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"), 414)],
    );
    pair.refuse(
        431,
        &[
            (
                &format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"),
                400,
            ),
            (
                &format!(
                    "GET / HTTP/1.1\r\nHost: a\r\n{}\r\n",
                    "X: y\r\n".repeat(101)
                ),
                200,
            ),
        ],
    );
}

/// Valid requests before it on the same connection do not matter, whether its headers are complete or not.
#[test]
fn a_later_request_is_refused_for_its_own_error() {
    let weir = Weir::start("servers: [ { listen: LISTEN, return: 204 } ]\n");
    let long = "x".repeat(70_000);
    for (head, status) in [
        (format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"), 414),
        (format!("GET /{long}"), 414),
        (format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}"), 431),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n".to_owned(), 505),
        ("GET / HTTP/2.0\r\nHost: a\r\n".to_owned(), 505),
        ("GET / HTTP/1.1\r\nno colon\r\n".to_owned(), 400),
    ] {
        let mut client = Client::connect(weir.address());
        for _ in 0..2 {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(client.response().status, 204);
        }
        client.send(&head);
        let refused = client.response().status;
        assert_eq!(refused, status, "{:?}", head.get(..30));
    }
}
