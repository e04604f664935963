//! What HTTP/2 can say and HTTP/1 cannot: none of it may reach a backend as something else.

use crate::support::frames::*;
use crate::support::{Origin, Weir, eventually, metric};

fn weir(origin: &Origin) -> Weir {
    Weir::before(
        origin,
        "admin: { listen: ADMIN }
servers: [ { listen: LISTEN, proxy_request_buffering: off, proxy_pass: 'http://ORIGIN' } ]",
    )
}

/// Whether a request with these headers is refused as malformed: its stream is reset, or the connection is closed where
/// the state of header compression is lost.
fn is_malformed(weir: &Weir, fields: &[(&str, &str)]) -> bool {
    let client = Framed::connect(weir.address());
    client.send(request(1, END_STREAM, fields));
    let frames = client.until(|frame| matches!(frame.kind, GOAWAY | HEADERS | RESET));
    let last = frames.last().expect("something is said");
    last.kind != HEADERS && last.code() == PROTOCOL_ERROR
}

#[test]
fn headers_that_could_split_a_request_are_refused() {
    let origin = Origin::start();
    let weir = weir(&origin);
    for fields in [
        &[("transfer-encoding", "chunked")][..],
        &[("connection", "close")],
        &[("connection", "transfer-encoding")],
        &[("keep-alive", "timeout=5")],
        &[("proxy-connection", "keep-alive")],
        &[("upgrade", "websocket")],
        &[("te", "gzip")],
        &[("x-a", "b\r\nx-injected: 1")],
        &[("x-a", "b\nx-injected: 1")],
        &[("x-a", "b\0c")],
        &[("x-a: b\r\nx-injected", "1")],
        &[("x-a", " b")],
        &[("x-a", "b\t")],
        &[("cookie", "sid=b ")],
        &[("x a", "b")],
        &[("X-Upper", "b")],
        &[("", "b")],
        &[(":path", "/other")],
        &[(":authority", "other")],
        &[(":method", "POST")],
        &[(":unknown", "x")],
        &[("x-a", "b"), (":scheme", "http")],
        &[("host", "elsewhere")],
        &[("host", "localhost"), ("host", "elsewhere")],
        &[("content-length", "5")],
        &[("content-length", "0"), ("content-length", "5")],
        &[("content-length", "0"), ("content-length", "0")],
        &[("content-length", "+0")],
        &[("content-length", "0, 0")],
    ] {
        let all = asking("GET", "/ok", fields);
        assert!(is_malformed(&weir, &all), "{fields:?}");
    }
    assert_eq!(origin.count(), 0, "{:?}", origin.seen());
    assert!(!is_malformed(&weir, &asking("GET", "/ok", &[("x-a", "b")])));
}

#[test]
fn requests_that_are_none_are_refused() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let (get, http) = ((":method", "GET"), (":scheme", "http"));
    let (path, authority) = ((":path", "/"), (":authority", "a"));
    for fields in [
        asking("GET", "", &[]),
        asking("GET", "no-slash", &[]),
        asking("GET", "*", &[]),
        asking("GET", "/a b", &[]),
        asking("GET", "/a#b", &[]),
        asking("GET", "/a?b#c", &[]),
        asking("GET", "/a HTTP/1.1\r\nx-injected: 1\r\n\r\nGET /b", &[]),
        asking("GE T", "/ok", &[]),
        asking("GET /other HTTP/1.1\r\nhost: x\r\n\r\nGET", "/ok", &[]),
        vec![get, (":scheme", "ftp"), path, authority],
        vec![get, http, authority],
        vec![get, path, authority],
        vec![http, path, authority],
        vec![get, http, path, (":authority", "a b")],
        vec![get, http, path, (":authority", "a\r\nx: y")],
        vec![(":status", "200"), get, http, path, authority],
        vec![get, (":scheme", "ht tp"), path, authority],
    ] {
        assert!(is_malformed(&weir, &fields), "{fields:?}");
    }
    assert_eq!(origin.count(), 0, "{:?}", origin.seen());
    eventually("each is counted", || {
        metric(&weir, "weir_heads_refused_total{status=\"400\"}") == 17
    });
}

/// Once in the table it is one byte for ever after, and still no path.
#[test]
fn a_hash_in_the_table_is_refused_every_time() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let client = Framed::connect(weir.address());
    let rest = block(&[(":method", "GET"), (":scheme", "http"), (":authority", "a")]);
    for (stream, path) in [(1, &b"\x44\x04/a#b"[..]), (3, b"\xbe"), (5, b"\xbe")] {
        let head = [path, &rest].concat();
        client.send(frame(HEADERS, END_STREAM | END_HEADERS, stream, head));
        assert_eq!(client.reset(stream), Some(PROTOCOL_ERROR), "{stream}");
    }
    client.send(get(7, "/ok"));
    assert_eq!(client.reset(7), None);
    assert_eq!(origin.count(), 1);
}

/// They would say again what was asked for, when it has been passed on already.
#[test]
fn pseudo_fields_in_trailers_are_refused() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let client = Framed::connect(weir.address());
    let mut stream = 1;
    for pseudo in [(":path", "/other"), (":status", "200"), (":authority", "b")] {
        client.send(request(stream, 0, &asking("POST", "/ok", &[])));
        client.send(frame(DATA, 0, stream, "hello"));
        let trailers = block(&[pseudo, ("x-sum", "5")]);
        client.send(frame(HEADERS, END_STREAM | END_HEADERS, stream, trailers));
        assert_eq!(client.reset(stream), Some(PROTOCOL_ERROR), "{pseudo:?}");
        stream += 2;
    }
    client.send(get(stream, "/ok"));
    assert_eq!(client.reset(stream), None);
    let whole = origin.seen().into_iter().filter(|seen| seen.complete);
    assert_eq!(whole.count(), 1);
}

/// These are understood, and answered as over HTTP/1.
#[test]
fn targets_that_make_no_sense_get_400() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let client = Framed::connect(weir.address());
    let authority = |authority| {
        vec![
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/ok"),
            (":authority", authority),
        ]
    };
    let mut stream = 1;
    for fields in [
        authority("user@localhost"),
        authority("user:password@localhost"),
        authority("localhost:port"),
        vec![(":method", "GET"), (":scheme", "http"), (":path", "/ok")],
        asking("GET", "/a/../../b", &[]),
        asking("GET", "/%00", &[]),
    ] {
        client.send(request(stream, END_STREAM, &fields));
        let answer = client.until(|frame| frame.stream == stream);
        let answer = answer.last().expect("an answer");
        // 400 is the twelfth of HPACK's own entries.
        let refused = answer.kind == RESET || answer.payload.first() == Some(&0x8c);
        assert!(refused, "{fields:?}: {answer:?}");
        if answer.kind == HEADERS && !answer.ends_stream() {
            client.reset(stream);
        }
        stream += 2;
    }
    assert_eq!(origin.count(), 0, "{:?}", origin.seen());
}

/// A length that is not kept to: the backend never sees a whole request.
#[test]
fn a_lying_length_never_becomes_a_request() {
    let origin = Origin::start();
    let weir = weir(&origin);
    for (length, body) in [("5", "hi"), ("5", "hello and more")] {
        let client = Framed::connect(weir.address());
        let fields = asking("POST", "/ok", &[("content-length", length)]);
        client.send(request(1, 0, &fields));
        client.send(frame(DATA, END_STREAM, 1, body));
        client.reset(1);
        // It is still there for others.
        client.send(get(3, "/ok"));
        assert_eq!(client.reset(3), None);
    }
    let whole = origin.seen().into_iter().filter(|seen| seen.complete);
    let whole: Vec<_> = whole.map(|seen| seen.head.line).collect();
    assert!(
        whole.iter().all(|line| line.starts_with("GET")),
        "{whole:?}"
    );
}

#[test]
fn requests_are_forwarded_in_one_normal_form() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let client = Framed::connect(weir.address());
    let fields = vec![
        (":method", "POST"),
        (":scheme", "https"),
        (":path", "/a%20b//c?d=e&f"),
        (":authority", "Example.com:8443"),
        ("cookie", "a=1"),
        ("te", "trailers"),
        ("cookie", "b=2"),
        ("x-twice", "1"),
        ("cookie", "c=3"),
        ("x-twice", "2"),
        ("expect", "100-continue"),
    ];
    client.send(request(1, 0, &fields));
    // It is told to go on, as it asked.
    let told = client.until(|frame| frame.kind == HEADERS);
    assert!(!told.last().expect("an answer").ends_stream());
    client.send(frame(DATA, 0, 1, "hel"));
    client.send(frame(DATA, 0, 1, "lo"));
    let trailers = block(&[
        ("x-sum", "5"),
        ("content-length", "9"),
        ("x-forwarded-for", "6.6.6.6"),
    ]);
    client.send(frame(HEADERS, END_STREAM | END_HEADERS, 1, trailers));
    assert_eq!(client.reset(1), None);
    let seen = origin.only();
    assert_eq!(seen.head.line, "POST /a%20b//c?d=e&f HTTP/1.1");
    assert_eq!(seen.head.get("x-forwarded-host"), Some("Example.com:8443"));
    assert_eq!(
        seen.head.all("cookie").collect::<Vec<_>>(),
        ["a=1; b=2; c=3"]
    );
    assert_eq!(seen.head.all("x-twice").collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(seen.head.get("transfer-encoding"), Some("chunked"));
    assert_eq!(seen.head.get("via"), Some("2.0 weir"));
    assert!(!seen.head.has("expect") && !seen.head.has("content-length"));
    assert_eq!(seen.body, b"hello");
    assert_eq!(seen.trailers, [("x-sum".to_owned(), "5".to_owned())]);
}
