//! Hosts that are missing, repeated, invalid or different from the target.

use super::Pair;

#[test]
fn a_host_that_is_missing() {
    Pair::start().refuse(
        400,
        &[
            ("GET / HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nX: y\r\n\r\n", 400),
            ("GET http://a/ HTTP/1.1\r\n\r\n", 400),
        ],
    );
}

#[test]
fn a_host_that_is_doubled() {
    Pair::start().refuse(
        400,
        &[
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", 400),
            ("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ],
    );
}

#[test]
fn a_host_at_odds_with_the_target() {
    Pair::start().refuse(
        400,
        &[
            ("GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n", 200),
            ("GET http://a:81/ HTTP/1.1\r\nHost: a\r\n\r\n", 200),
            ("GET http://a/ HTTP/1.0\r\nHost: b\r\n\r\n", 200),
            ("GET http://user@a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ],
    );
}

#[test]
fn a_host_that_is_none() {
    Pair::start().refuse(
        400,
        &[
            ("GET / HTTP/1.1\r\nHost:\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", 200),
            ("GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", 200),
            ("GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", 200),
            ("GET / HTTP/1.1\r\nHost: a..b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400),
        ],
    );
}

#[test]
fn a_target_in_a_form_that_is_not_its_methods() {
    let pair = Pair::start();
    pair.refuse(
        400,
        &[
            ("GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 200),
            ("CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        ],
    );
    pair.refuse(
        405,
        &[
            ("CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", 400),
            ("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        ],
    );
}
