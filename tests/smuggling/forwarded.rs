//! Requests reach a backend in one form, whatever the client sent: compared byte by byte.

use super::SMUGGLED;
use super::recorder::Recorder;
use crate::support::{Client, Origin, Weir, eventually, get};

/// A weir that adds nothing of its own and keeps chunks as chunks, so that every byte is the client's.
fn bare(recorder: &Recorder) -> Weir {
    Weir::start(&format!(
        "servers:
- listen: LISTEN
  via: off
  proxy_request_buffering: off
  proxy_set_header: {{ Host: $host, X-Forwarded-For: '', X-Forwarded-Proto: '', X-Forwarded-Host: '' }}
  locations: [ {{ path: /, proxy_pass: 'http://{}' }} ]
",
        recorder.address()
    ))
}

/// Each request on the left reaches the backend as it stands on the right.
fn become_of(requests: &[(&str, &str)]) {
    let recorder = Recorder::start();
    let weir = bare(&recorder);
    let mut wrong = Vec::new();
    for (sent, expected) in requests {
        let mut client = Client::connect(weir.address());
        client.send(sent);
        let status = client.response().status;
        let reached = recorder.take();
        if status != 200 || reached != *expected {
            wrong.push(format!("{sent:?} became {reached:?}, answered {status}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn one_framing() {
    become_of(&[
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 005\r\n\r\nhello",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello",
        ),
        (
            "POST / HTTP/1.0\r\nHost: a\r\ncontent-LENGTH:5\r\n\r\nhello",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: cHuNkEd\r\n\r\n005;x=\"y\"\r\nhello\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n",
        ),
    ]);
}

/// A line feed alone ends a header line, as in nginx and as RFC 9112 allows; forwarded lines end with CR LF.
#[test]
fn requests_are_forwarded_in_one_spelling() {
    become_of(&[
        (
            "\r\n\nGET / HTTP/1.1\nHost: a\nX:   y \t\n\n",
            "GET / HTTP/1.1\r\nx: y\r\nhost: a\r\n\r\n",
        ),
        (
            "get / HTTP/1.1\r\nHOST: A.:80\r\nX-EMPTY:\r\n\r\n",
            "get / HTTP/1.1\r\nx-empty: \r\nhost: a\r\n\r\n",
        ),
    ]);
}

#[test]
fn no_fields_of_one_connection_only() {
    become_of(&[
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-One\r\nX-One: 1\r\nX-Two: 2\r\n\
             Connection: x-two , close\r\nX-Three: 3\r\nKeep-Alive: 5\r\nProxy-Connection: x\r\nTE: gzip\r\n\
             Proxy-Authorization: x\r\nHTTP2-Settings: x\r\nUpgrade: h2c\r\nExpect: 100-continue\r\n\r\n",
            "GET / HTTP/1.1\r\nx-three: 3\r\nhost: a\r\n\r\n",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: content-length, host, transfer-encoding\r\n\
             Content-Length: 5\r\n\r\nhello",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello",
        ),
    ]);
}

/// Many backends cannot tell `X_Forwarded_For` from the field that only we may set.
#[test]
fn no_fields_with_an_underscore() {
    const SENT: &str =
        "GET / HTTP/1.1\r\nHost: a\r\nX_Forwarded_For: 6.6.6.6\r\nX-Other: 1\r\n_: 2\r\n\r\n";
    become_of(&[(SENT, "GET / HTTP/1.1\r\nx-other: 1\r\nhost: a\r\n\r\n")]);
    let recorder = Recorder::start();
    let weir = Weir::start(&format!(
        "underscores_in_headers: on
servers: [ {{ listen: LISTEN, proxy_pass: 'http://{}' }} ]
",
        recorder.address()
    ));
    let mut client = Client::connect(weir.address());
    client.send(SENT);
    assert_eq!(client.response().status, 200);
    assert!(recorder.take().contains("\r\nx_forwarded_for: 6.6.6.6\r\n"));
}

#[test]
fn the_target_in_origin_form_as_it_was_written() {
    become_of(&[
        (
            "GET /a/%2e%2E/b//c;d/./?e=%zz&f=/../ HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /a/%2e%2E/b//c;d/./?e=%zz&f=/../ HTTP/1.1\r\nhost: a\r\n\r\n",
        ),
        (
            "GET http://a/b?c HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /b?c HTTP/1.1\r\nhost: a\r\n\r\n",
        ),
        (
            "GET HTTP://A?c HTTP/1.1\r\nHost: a:80\r\n\r\n",
            "GET /?c HTTP/1.1\r\nhost: a\r\n\r\n",
        ),
        (
            "GET /\"^[{|}]\\\u{e4}?^`[{|}]\\\u{e4} HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /\"^[{|}]\\\u{e4}?^`[{|}]\\\u{e4} HTTP/1.1\r\nhost: a\r\n\r\n",
        ),
        (
            "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n",
        ),
    ]);
}

#[test]
fn trailers_that_belong_into_headers() {
    become_of(&[(
        "POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n\
         1\r\nx\r\n0\r\nX-Sum: 1\r\nContent-Length: 5\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\
         X-Forwarded-For: 1\r\nAuthorization: x\r\nUpgrade: x\r\n\r\n",
        "POST / HTTP/1.1\r\nte: trailers\r\nconnection: te\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n\
         1\r\nx\r\n0\r\nx-sum: 1\r\n\r\n",
    )]);
}

/// Routing and limits go by the decoded, normal path: no spelling of it is another.
#[test]
fn no_spelling_slips_past_a_limit() {
    let recorder = Recorder::start();
    let weir = Weir::start(&format!(
        "limit_req_zones: {{ one: {{ key: $server_name$uri, size: 1m, rate: 1r/m }} }}
servers:
- listen: LISTEN
  server_name: a
  locations:
  - {{ path: /, return: {{ status: 404 }} }}
  - {{ path: /admin/, limit_req: {{ zone: one }}, proxy_pass: 'http://{}' }}
",
        recorder.address()
    ));
    let mut first = Client::connect(weir.address());
    first.send("GET /admin/x HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(first.response().status, 200);
    recorder.take();
    for (target, host) in [
        ("/admin/x", "a"),
        ("/admin/%78", "a"),
        ("/%61dmin/x?y", "A"),
        ("//admin//x", "a"),
        ("/admin/./x", "a."),
        ("/b/../admin/x", "a:80"),
        ("/admin/%2e/x", "a"),
        ("/b/%2e%2e/admin/x", "a"),
        ("/b%2f..%2fadmin%2fx", "a"),
        ("http://a/admin/x", "a"),
        ("HTTP://A:80/admin/x", "a"),
    ] {
        let mut client = Client::connect(weir.address());
        client.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(client.response().status, 429, "{target} at {host}");
    }
    assert_eq!(recorder.take(), "");
}

/// The rest of a body that was not read is never taken for the next request.
#[test]
fn a_body_that_was_not_read_is_never_a_request() {
    let recorder = Recorder::start();
    let weir = Weir::start(&format!(
        "servers:
- listen: LISTEN
  locations:
  - {{ path: /, proxy_pass: 'http://{}' }}
  - {{ path: /no/, return: {{ status: 200, body: no }} }}
",
        recorder.address()
    ));
    for body in [SMUGGLED.to_owned(), SMUGGLED.repeat(4000)] {
        for framing in ["length", "chunks"] {
            let mut client = Client::connect(weir.address());
            let (fields, body) = match framing {
                "length" => (format!("Content-Length: {}", body.len()), body.clone()),
                _ => (
                    "Transfer-Encoding: chunked".to_owned(),
                    format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()),
                ),
            };
            client
                .try_send(format!(
                    "POST /no/ HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n{body}"
                ))
                .ok();
            assert_eq!(client.response().status, 200);
            // Either the connection goes on behind the body, or not at all.
            client
                .try_send("GET /next HTTP/1.1\r\nHost: a\r\n\r\n")
                .ok();
            if let Ok(response) = client.try_response() {
                assert_eq!(response.text(), "ok");
            }
        }
    }
    assert!(!recorder.take().contains("smuggled"));
}

/// The client leaves before the response: its connection to the backend carries no other request.
#[test]
fn a_truncated_response_never_reaches_another_request() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "workers: 1
servers:
- listen: LISTEN
  locations: [ { path: /, proxy_pass: 'http://ORIGIN' } ]
",
    );
    let mut hasty = Client::connect(weir.address());
    hasty.get("/chunked?gate=g&n=5");
    assert!(hasty.head().is_chunked());
    hasty.reset();
    eventually("the end of the hasty one", || {
        weir.stdout().contains("/chunked")
    });
    origin.gates().open("g");
    for _ in 0..3 {
        assert_eq!(get(weir.address(), "/ok").text(), "ok");
    }
    assert_eq!(origin.connections(), 2, "one was not used again");
}

#[test]
fn pipelined_requests_reach_the_backend_each_on_its_own() {
    let recorder = Recorder::start();
    let weir = bare(&recorder);
    let mut client = Client::connect(weir.address());
    client.send(
        "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc\
         POST /2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n\
         GET /3 HTTP/1.1\r\nHost: a\r\n\r\n\
         POST /4 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc\
         GET /5 HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    let statuses: Vec<_> = (0..4).map(|_| client.response().status).collect();
    assert_eq!(statuses, [200, 200, 200, 400]);
    assert!(client.is_closed());
    assert_eq!(
        recorder.take(),
        "POST /1 HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc\
         POST /2 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n\
         GET /3 HTTP/1.1\r\nhost: a\r\n\r\n"
    );
    assert!(
        weir.access_line("/4").contains(" 400 "),
        "{}",
        weir.stdout()
    );
    let refusal = weir.error_line("duplicate \"Content-Length\"");
    assert!(refusal.contains("127.0.0.1"), "{refusal}");
}
