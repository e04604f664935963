//! Lengths and transfer codings that two parsers could read differently.

use super::Pair;

#[test]
fn both_lengths() {
    Pair::start().refuse(
        400,
        &[
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nHost: a\r\ncontent-length: 0\r\nX: y\r\nTRANSFER-ENCODING: Chunked\r\n\r\n0\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: x\r\n\r\n0\r\n\r\n", 400),
            ("GET / HTTP/1.1\nHost: a\nContent-Length:5\nTransfer-Encoding:\tchunked\n\n0\r\n\r\n", 501),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: xchunked\r\n\r\nhello", 501),
        ],
    );
}

#[test]
fn two_lengths() {
    Pair::start().refuse(
        400,
        &[
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\ncontent-length: 0\r\nContent-Length: 00\r\n\r\n", 400),
            ("GET / HTTP/1.0\r\nHost: a\r\nContent-Length: 0\r\nX: y\r\nContent-Length: 0\r\n\r\n", 400),
        ],
    );
}

/// nginx's numbers end at 63 bits.
#[test]
fn content_lengths_too_large_to_count() {
    let pair = Pair::start();
    let length =
        |length: &str| format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\nx");
    pair.refuse(
        413,
        &[
            (&length("18446744073709551615"), 400),
            (&length("18446744073709551614"), 400),
        ],
    );
    pair.refuse(413, &[(&length("18446744073709551613"), 400)]);
    pair.refuse(400, &[(&length("18446744073709551616"), 400)]);
}

#[test]
fn signs_spaces_and_commas_in_lengths() {
    Pair::start().refuse(
        400,
        &[
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\nhello",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5 5\r\n\r\nhello",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5,5\r\n\r\nhello",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\nhello",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5,\r\n\r\nhello",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\nhello",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5.0\r\n\r\nhello",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5e0\r\n\r\nhello",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \"5\"\r\n\r\nhello",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\nhello",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\nhello",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n\r\nhello",
                400,
            ),
        ],
    );
}

#[test]
fn a_coding_that_does_not_end_in_chunked() {
    Pair::start().refuse(
        400,
        &[
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 501),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", 501),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n", 501),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", 501),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n\r\n0\r\n\r\n", 501),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked,\r\n\r\n0\r\n\r\n", 501),
        ],
    );
}

#[test]
fn chunked_twice() {
    Pair::start().refuse(
        400,
        &[
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 501),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ],
    );
}

#[test]
fn a_coding_that_would_have_to_be_undone() {
    Pair::start().refuse(
        501,
        &[
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: , chunked\r\n\r\n0\r\n\r\n", 501),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity,chunked\r\n\r\n0\r\n\r\n", 501),
        ],
    );
}

#[test]
fn a_coding_in_http_1_0() {
    Pair::start().refuse(
        400,
        &[(
            "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        )],
    );
}
