//! The protocol that ALPN negotiates is the one inside TLS.

use std::time::Duration;

use tokio::time::Instant;

use crate::support::{Certs, Weir, wanted};

const PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const REQUEST: &str = "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";

/// An empty SETTINGS frame, and a GOAWAY frame that says PROTOCOL_ERROR.
const GOAWAY: &str = "\0\0\0\x04\0\0\0\0\0\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x01";

/// HTTP/2 at one name and not at the other, both on one address.
fn weir(certs: &Certs) -> Weir {
    certs.issue("a", &wanted(&["a.example", "b.example"]));
    Weir::start(&certs.filled(
        "servers:
  - listen: { address: LISTEN, tls: true }
    server_name: a.example
    tls: { certificate: CERTS/a.pem, key: CERTS/a.key }
    return: { status: 200, body: \"a $server_protocol\" }
  - listen: { address: LISTEN, tls: true }
    server_name: b.example
    http2: off
    tls: { certificate: CERTS/a.pem, key: CERTS/a.key }
    return: { status: 200, body: \"b $server_protocol\" }
",
    ))
}

/// What weir says to this until it closes the connection.
fn said(certs: &Certs, weir: &Weir, name: &str, alpn: Option<&str>, input: &str) -> String {
    let address = weir.address().to_string();
    let mut arguments = vec![
        "s_client",
        "-quiet",
        "-connect",
        &address,
        "-servername",
        name,
    ];
    arguments.extend(alpn.into_iter().flat_map(|alpn| ["-alpn", alpn]));
    let began = Instant::now();
    let said = certs.openssl(&arguments, input);
    assert!(began.elapsed() < Duration::from_secs(14), "{name} {alpn:?}");
    said
}

#[test]
fn http1_after_http2_was_agreed_on_is_refused() {
    let certs = Certs::new();
    let weir = weir(&certs);
    // The second is what h2spec sends (3.5/2): the connection has to be closed.
    for input in [REQUEST, "INVALID CONNECTION PREFACE\r\n\r\n"] {
        for alpn in ["h2", "h2,http/1.1"] {
            let said = said(&certs, &weir, "a.example", Some(alpn), input);
            assert!(said.contains(GOAWAY), "{input}: {said}");
            assert!(!said.contains("HTTP/1.1"), "{input}: {said}");
        }
    }
    weir.error_line("client sent invalid request");
    let said = said(&certs, &weir, "a.example", Some("http/1.1"), REQUEST);
    assert!(said.contains("a HTTP/1.1"), "{said}");
}

#[test]
fn http2_is_refused_where_it_was_not_agreed_on() {
    let certs = Certs::new();
    let weir = weir(&certs);
    for name in ["a.example", "b.example"] {
        for alpn in [Some("http/1.1"), None] {
            let said = said(&certs, &weir, name, alpn, PREFACE);
            assert!(said.contains("HTTP/1.1 505 "), "{name} {alpn:?}: {said}");
        }
    }
    weir.error_line("client sent invalid version");
}

/// Over a connection that was made for one name, a client may ask for another.
#[test]
fn a_server_without_http2_is_not_reached_over_it() {
    let certs = Certs::new();
    let weir = weir(&certs);
    let url = format!("https://a.example:{}/", weir.port());
    let other = [
        "--header",
        "Host: b.example",
        "--write-out",
        " %{http_code}",
        &url,
    ];
    let fetch = |version| certs.fetch(&[&[version], &other[..]].concat());
    assert_eq!(fetch("--http1.1"), "b HTTP/1.1 200");
    let refused = fetch("--http2");
    assert!(refused.ends_with(" 421"), "{refused}");
    assert!(!refused.contains("b HTTP"), "{refused}");
    weir.error_line("http2: off");
    assert_eq!(certs.fetch(&["--http2", &url]), "a HTTP/2.0");
}
