//! HTTP/2 towards backends: here weir itself stands behind weir, before a backend of HTTP/1.

use super::curl;
use crate::support::{Client, Origin, Weir, eventually, get};

/// A weir that speaks HTTP/2 to another; gives both.
fn chain(origin: &Origin) -> (Weir, Weir) {
    let back = Weir::before(
        origin,
        "log: { access: { path: '-', format: '$server_protocol $request_method $uri $connection $host' } }
servers: [ { listen: LISTEN, client_max_body_size: 0, proxy_request_buffering: off, proxy_pass: 'http://ORIGIN' } ]
",
    );
    let yaml = "workers: 1
admin: { listen: ADMIN }
servers:
- listen: LISTEN
  client_max_body_size: 0
  proxy_http_version: 2
  proxy_read_timeout: 5s
  proxy_pass: 'http://BACK'
";
    let front = Weir::start(&yaml.replace("BACK", &back.address().to_string()));
    (front, back)
}

#[test]
fn http1_clients_reach_an_http2_backend() {
    let origin = Origin::start();
    let (front, back) = chain(&origin);
    let mut client = Client::connect(front.address());
    for _ in 0..3 {
        client.get("/ok");
        assert_eq!(client.response().text(), "ok");
    }
    client.send("POST /ok HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 5\r\n\r\n");
    assert_eq!(client.response().status, 200);
    client.send("HEAD /ok HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = client.response_to_head();
    assert_eq!(head.get("content-length"), Some("2"));
    client.send("GET /trailers HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: te, x-private\r\nX-Private: 1\r\n\r\n");
    let response = client.response();
    assert_eq!(
        response.trailers,
        [("x-checksum".to_owned(), "42".to_owned())]
    );
    client.get("/hop-by-hop");
    let response = client.response();
    assert!(response.has("x-public") && !response.has("x-private"));
    client.get("/103");
    assert_eq!(client.response().status, 103);
    assert_eq!(client.response().status, 200);
    client.get("/bytes?n=5000000");
    assert_eq!(client.response().body.len(), 5_000_000);

    let post = &origin.seen()[3];
    assert_eq!(post.body, b"hello");
    assert_eq!(post.trailers, [("x-sum".to_owned(), "5".to_owned())]);
    assert!(origin.seen().iter().all(|seen| !seen.head.has("x-private")));
    let line = back.access_line("/trailers");
    assert!(line.starts_with("HTTP/2.0 GET /trailers"), "{line}");
    assert!(line.ends_with(" a"), "{line}");
    // All of it over one connection.
    let connections: std::collections::BTreeSet<_> = back
        .stdout()
        .lines()
        .filter_map(|line| line.split(' ').nth(3).map(str::to_owned))
        .collect();
    assert_eq!(connections.len(), 1, "{connections:?}");
}

#[test]
fn http2_all_the_way() {
    let origin = Origin::start();
    let (front, _back) = chain(&origin);
    let url = |path: &str| format!("http://{}{path}", front.address());
    assert_eq!(curl(&["-d", "hello", &url("/ok")]), "ok");
    let trailers = curl(&["-v", "-H", "te: trailers", &url("/trailers")]);
    assert!(trailers.contains("x-checksum: 42"), "{trailers}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![b'x'; 10_000_000]).unwrap();
    let body = format!("@{}", file.path().display());
    assert_eq!(curl(&["--data-binary", &body, &url("/ok")]), "ok");
    assert_eq!(origin.seen().last().expect("it came").length, 10_000_000);
    let output = std::process::Command::new("h2load")
        .args(["-n", "2000", "-c", "4", "-m", "20", &url("/ok")])
        .output()
        .expect("h2load is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains("2000 succeeded, 0 failed, 0 errored"),
        "{text}"
    );
}

/// What nginx needs to be told of connections is accepted, and HTTP/2 has no place for it: a backend refuses a request
/// that has such a field (RFC 9113, 8.2.2).
#[test]
fn fields_of_a_connection_are_never_sent_over_http2() {
    let origin = Origin::start();
    let back = Weir::before(
        &origin,
        "servers: [ { listen: LISTEN, proxy_pass: 'http://ORIGIN', proxy_set_header: { Host: $host } } ]\n",
    );
    let front = Weir::start(&format!(
        "maps: {{ $connection_upgrade: {{ map: $http_upgrade, default: upgrade, values: {{ '': close }} }} }}
servers:
- listen: LISTEN
  proxy_http_version: 2
  proxy_pass: 'http://{back}'
  locations:
  - {{ path: /nothing, proxy_set_header: {{ Connection: '', X-Mine: '1' }} }}
  - {{ path: /upgrade, proxy_set_header: {{ Connection: upgrade, Upgrade: $http_upgrade, X-Mine: '1' }} }}
  - {{ path: /client, proxy_set_header: {{ Connection: $http_connection, X-Mine: '1' }} }}
  - {{ path: /map, proxy_set_header: {{ Connection: $connection_upgrade, X-Mine: '1' }} }}
  - {{ path: /host, proxy_set_header: {{ Host: other.example, X-Mine: '1' }} }}
",
        back = back.address()
    ));
    for path in ["/nothing", "/upgrade", "/client", "/map", "/host"] {
        let mut client = Client::connect(front.address());
        client.send(format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: x-hop, upgrade\r\nUpgrade: echo/1\r\nX-Hop: 1\r\n\
             Keep-Alive: 5\r\nTE: gzip\r\nContent-Length: 2\r\n\r\nhi"
        ));
        assert_ne!(client.response().status, 502, "{path}");
        let seen = origin.seen();
        let seen = seen.last().expect("it was asked");
        assert!(seen.head.line.contains(path), "{path}");
        assert_eq!(seen.head.get("x-mine"), Some("1"), "{path}");
        assert_eq!(seen.body, b"hi", "{path}");
        let host = match path {
            "/host" => "other.example",
            _ => "a",
        };
        assert_eq!(seen.head.get("host"), Some(host), "{path}");
        for gone in ["x-hop", "te", "upgrade", "keep-alive"] {
            assert!(!seen.head.has(gone), "{gone} at {path}");
        }
    }
}

/// What the backend's end says about it is what it says over HTTP/1.
#[test]
fn failures_have_the_status_they_have_over_http1() {
    let origin = Origin::start();
    let (front, mut back) = chain(&origin);
    let cut = get(front.address(), "/close-early");
    assert_eq!((cut.status, cut.complete), (200, false));
    assert_eq!(get(front.address(), "/reset").status, 502);
    back.signal("TERM");
    back.wait();
    assert_eq!(get(front.address(), "/ok").status, 502);
    front.error_line("connect() failed (111: Connection refused)");
}

/// The client that leaves is told to the backend of the backend.
#[test]
fn a_client_that_leaves_releases_the_backend() {
    let origin = Origin::start();
    let (front, back) = chain(&origin);
    let client = Client::connect(front.address());
    client.get("/hold?gate=g");
    origin.gates().await_waiting("g", 1);
    client.reset();
    eventually("the backend's log", || back.stdout().contains("/hold"));
    origin.gates().open("g");
}

/// A backend that stops: its requests finish, later ones go to other servers, and no client sees a failure.
#[test]
fn no_request_fails_when_a_backend_sends_goaway() {
    let origin = Origin::start();
    let (front, mut back) = chain(&origin);
    let mut client = Client::connect(front.address());
    client.get("/hold?gate=g");
    origin.gates().await_waiting("g", 1);
    back.signal("QUIT");
    eventually("it accepts no connection", || {
        Client::try_connect(back.address()).is_err()
    });
    origin.gates().open("g");
    assert_eq!(client.response().text(), "ok");
    back.wait();
}
