//! TLS, with curl and openssl as clients and the real nginx as backend and reference.

mod alpn;
mod client_logs;
mod clients;
mod files;
mod http2;
mod refused_certificates;
mod renewal;
mod sessions;
mod upstreams;

use std::net::TcpStream;
use std::time::Duration;

use crate::support::{Certs, Client, PATIENCE, Weir, eventually, get, metric, wanted};

/// What openssl says about the certificate it is shown.
fn subject(certs: &Certs, weir: &Weir, more: &[&str]) -> String {
    let address = weir.address().to_string();
    let mut arguments = vec!["s_client", "-connect", &address];
    arguments.extend(more);
    let said = certs.openssl(&arguments, "");
    let line = said.lines().find(|line| line.starts_with("subject="));
    line.unwrap_or(&said).to_owned()
}

#[test]
fn the_certificate_is_chosen_by_the_name_asked_for() {
    let certs = Certs::new();
    certs.issue("first", &wanted(&["first.example"]));
    certs.issue("a", &wanted(&["a.example"]));
    certs.issue("b", &wanted(&["*.b.example"]));
    let weir = Weir::start(&certs.filled(
        "servers:
  - listen: { address: LISTEN, tls: true }
    server_name: first.example
    tls: { certificate: CERTS/first.pem, key: CERTS/first.key }
    return: { status: 200, body: \"first $ssl_server_name\" }
  - listen: LISTEN ssl
    server_name: a.example
    tls: { certificate: CERTS/a.pem, key: CERTS/a.key }
    return: { status: 200, body: \"a $ssl_server_name $scheme $https\" }
  - listen: { address: LISTEN, tls: on }
    server_name: \"*.b.example\"
    tls: { certificate: CERTS/b.pem, key: CERTS/b.key }
    return: { status: 200, body: \"b $ssl_server_name\" }
",
    ));
    let port = weir.port();
    let fetch = |host: &str| certs.fetch(&[&format!("https://{host}:{port}/")]);
    assert_eq!(fetch("a.example"), "a a.example https on");
    assert_eq!(fetch("A.Example"), "a a.example https on");
    assert_eq!(fetch("x.b.example"), "b x.b.example");
    assert_eq!(fetch("first.example"), "first first.example");
    for unknown in [&["-servername", "other.example"][..], &["-noservername"]] {
        let shown = subject(&certs, &weir, unknown);
        assert!(shown.contains("CN = first.example"), "{shown}");
    }
}

#[test]
fn a_client_gets_the_kind_of_certificate_it_can_verify() {
    let certs = Certs::new();
    certs.issue("ec", &wanted(&["a.example"]));
    certs.issue("rsa", &wanted(&["rsa.a.example"]).rsa());
    let weir = Weir::start(&certs.filled(
        "servers:
  - listen: { address: LISTEN, tls: true }
    tls: { certificate: [CERTS/rsa.pem, CERTS/ec.pem], key: [CERTS/rsa.key, CERTS/ec.key] }
    return: 204
",
    ));
    let shown = subject(&certs, &weir, &[]);
    assert!(shown.contains("CN = a.example"), "{shown}");
    let shown = subject(&certs, &weir, &["-sigalgs", "rsa_pss_rsae_sha256"]);
    assert!(shown.contains("CN = rsa.a.example"), "{shown}");
    let old = ["-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256"];
    let shown = subject(&certs, &weir, &old);
    assert!(shown.contains("CN = rsa.a.example"), "{shown}");
}

#[test]
fn versions_and_ciphers_are_as_configured() {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["a.example"]));
    let yaml = |more: &str| {
        certs.filled(&format!(
            "servers:
  - listen: {{ address: LISTEN, tls: true }}
    tls: {{ certificate: CERTS/a.pem, key: CERTS/a.key, {more} }}
    return: {{ status: 200, body: \"$ssl_protocol $ssl_cipher\" }}
"
        ))
    };
    let new = Weir::start(&yaml("protocols: TLSv1.3"));
    let url = format!("https://a.example:{}/", new.port());
    assert!(certs.fetch(&[&url]).starts_with("TLSv1.3 TLS_AES_"));
    let old = certs.curl(&["--tls-max", "1.2", &url]);
    assert!(!old.status.success(), "TLS 1.2 must be refused");
    new.error_line("while SSL handshaking");

    let one = "protocols: [TLSv1.2, TLSv1.3], ciphers: ECDHE-ECDSA-AES128-GCM-SHA256";
    let picky = Weir::start(&yaml(one));
    let url = format!("https://a.example:{}/", picky.port());
    assert_eq!(
        certs.fetch(&["--tls-max", "1.2", &url]),
        "TLSv1.2 ECDHE-ECDSA-AES128-GCM-SHA256"
    );
    assert!(certs.fetch(&[&url]).starts_with("TLSv1.3 "));
}

#[test]
fn plain_http_on_a_tls_port_gets_an_error_page() {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["a.example"]));
    let weir = Weir::start(&certs.filled(SIMPLE));
    let answer = get(weir.address(), "/");
    assert_eq!(answer.status, 400);
    let text = answer.text();
    assert!(
        text.contains("The plain HTTP request was sent to HTTPS port"),
        "{text}"
    );
    assert_eq!(answer.get("connection"), Some("close"));
}

#[test]
fn plain_http_is_sent_to_https() {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["a.example"]));
    let weir = Weir::start(&certs.filled(
        "servers:
  - { listen: LISTEN2, return: { status: 301, url: \"https://$host:PORT$request_uri\" } }
  - listen: { address: LISTEN, tls: true }
    tls: { certificate: CERTS/a.pem, key: CERTS/a.key }
    return: { status: 200, body: \"$scheme $request_uri\" }
",
    ));
    let url = format!("http://a.example:{}/x?y=1", weir.second_address().port());
    assert_eq!(certs.fetch(&["--location", &url]), "https /x?y=1");
}

#[test]
fn a_stalled_handshake_ends_in_time_and_is_counted() {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["a.example"]));
    let weir = Weir::start(&certs.filled(&format!(
        "admin: {{ listen: ADMIN }}\nclient_header_timeout: 1s\n{SIMPLE}"
    )));
    // Silent, then stuck in the middle of a record.
    let silent = TcpStream::connect(weir.address()).expect("it listens");
    let stuck = Client::connect(weir.address());
    stuck.send(b"\x16\x03\x01\x02\x00\x01\x00");
    silent.set_read_timeout(Some(PATIENCE)).expect("it is open");
    let mut byte = [0];
    let read = std::io::Read::read(&mut &silent, &mut byte);
    assert_eq!(read.expect("an end, not a reset"), 0);
    weir.error_line("client timed out (110: Connection timed out) while SSL handshaking");
    // And the one by which it was seen that weir listens.
    eventually("all are counted", || {
        metric(&weir, "weir_tls_handshakes_total{result=\"failed\"}") == 3
    });
}

#[test]
fn bodies_of_any_size_pass_both_ways() {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["a.example"]));
    let origin = crate::support::Origin::start();
    let weir = Weir::before(
        &origin,
        &certs.filled(
            "servers:
  - listen: { address: LISTEN, tls: true }
    tls: { certificate: CERTS/a.pem, key: CERTS/a.key }
    client_max_body_size: 0
    proxy_pass: http://ORIGIN
",
        ),
    );
    let port = weir.port();
    let output = certs.curl(&[&format!("https://a.example:{port}/bytes?n=5000000")]);
    assert_eq!(output.stdout.len(), 5_000_000);
    assert!(output.stdout.iter().all(|byte| *byte == b'x'));

    let sent: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    certs.write("sent", &sent);
    let url = format!("https://a.example:{port}/up");
    certs.fetch(&["--data-binary", "@CERTS/sent", &url]);
    let seen = origin.seen().pop().expect("it came");
    assert!(seen.complete && seen.length == sent.len());
    assert!(sent.starts_with(&seen.body));
}

#[test]
fn the_end_of_a_connection_is_sent() {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["a.example"]));
    let weir = Weir::start(&certs.filled(SIMPLE));
    let address = weir.address().to_string();
    // openssl says `closed` for a close_notify, and an error for an end that came without.
    let said = certs.openssl(
        &["s_client", "-connect", &address, "-ign_eof", "-msg"],
        "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n",
    );
    assert!(said.contains("200 OK"), "{said}");
    assert!(
        said.contains("<<< TLS 1.3, Alert [length 0002], warning close_notify"),
        "{said}"
    );
    assert!(!said.contains("unexpected eof"), "{said}");
}

#[test]
fn an_unfinished_handshake_does_not_delay_a_stop() {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["a.example"]));
    let mut weir = Weir::start(&certs.filled(SIMPLE));
    let silent = TcpStream::connect(weir.address()).expect("it listens");
    std::thread::sleep(Duration::from_millis(50));
    weir.signal("TERM");
    assert!(weir.wait().success());
    drop(silent);
}

/// A server that says yes.
const SIMPLE: &str = "servers:
  - listen: { address: LISTEN, tls: true }
    tls: { certificate: CERTS/a.pem, key: CERTS/a.key }
    return: { status: 200, body: ok }
";
