//! TLS towards upstreams, with a real nginx behind weir.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::support::{Certs, Client, Nginx, Origin, Weir, get, wanted};

/// A backend that says how it was met.
fn backend(certs: &Certs, more: &str) -> Nginx {
    let http = certs.filled(&format!(
        "server {{
            listen LISTEN ssl; ssl_certificate CERTS/back.pem; ssl_certificate_key CERTS/back.key;
            ssl_protocols TLSv1.2 TLSv1.3; ssl_session_cache shared:s:1m; ssl_client_certificate CERTS/ca.pem; {more}
            location / {{
                return 200 \"$ssl_server_name|$host|$ssl_session_reused|$connection|$ssl_client_s_dn|$ssl_protocol\";
            }}
        }}"
    ));
    Nginx::before(&Origin::start(), &http)
}

fn certs() -> Certs {
    let certs = Certs::new();
    certs.issue("back", &wanted(&["back.example", "127.0.0.1"]));
    certs.issue("own", &wanted(&["weir.example"]));
    certs
}

fn weir(certs: &Certs, backend: &Nginx, lines: &str) -> Weir {
    let port = backend.address().port().to_string();
    Weir::start(
        &certs.filled(&format!("servers:\n  - listen: LISTEN\n{lines}").replace("BACK", &port)),
    )
}

fn parts(weir: &Weir, path: &str) -> Vec<String> {
    let answer = get(weir.address(), path);
    assert_eq!(answer.status, 200, "{}", weir.stderr());
    answer.text().split('|').map(str::to_owned).collect()
}

#[test]
fn a_backend_is_verified_by_configured_roots_and_gets_its_server_name() {
    let certs = certs();
    let backend = backend(&certs, "");
    let weir = weir(
        &certs,
        &backend,
        "    proxy_ssl_trusted_certificate: CERTS/ca.pem
    locations:
      - { path: /address, proxy_pass: \"https://127.0.0.1:BACK\" }
      - { path: /named, proxy_pass: \"https://127.0.0.1:BACK\", proxy_ssl_name: back.example }
      - { path: /quiet, proxy_pass: \"https://127.0.0.1:BACK\", proxy_ssl_name: back.example, proxy_ssl_server_name: off }
      - { path: /old, proxy_pass: \"https://127.0.0.1:BACK\", proxy_ssl_protocols: TLSv1.2 }
",
    );
    assert_eq!(parts(&weir, "/address")[0], "");
    assert_eq!(parts(&weir, "/named")[0], "back.example");
    assert_eq!(parts(&weir, "/quiet")[0], "");
    assert_eq!(parts(&weir, "/old")[5], "TLSv1.2");
    assert_eq!(parts(&weir, "/named")[5], "TLSv1.3");
}

#[test]
fn a_backend_that_was_revoked_gets_nothing() {
    let certs = certs();
    certs.issue("back", &wanted(&["127.0.0.1"]).serial(77));
    certs.revoke("good.pem", &[5]);
    certs.revoke("revoked.pem", &[77]);
    certs.revoke_in("expired.pem", &[5], (2019, 2020));
    let other = Certs::named("Another authority");
    other.revoke("crl.pem", &[5]);
    let list = std::fs::read(other.path("crl.pem")).expect("it was written");
    certs.write("other.pem", list);
    let backend = backend(&certs, "");
    let paths = ["good", "revoked", "expired", "other"];
    let locations = paths.map(|name| {
        format!("      - {{ path: /{name}, proxy_pass: 'https://127.0.0.1:BACK', proxy_ssl_crl: CERTS/{name}.pem }}\n")
    });
    let weir = weir(
        &certs,
        &backend,
        &format!(
            "    proxy_ssl_trusted_certificate: CERTS/ca.pem\n    locations:\n{}",
            locations.concat()
        ),
    );
    let statuses = paths.map(|name| get(weir.address(), &format!("/{name}")).status);
    assert_eq!(statuses, [200, 502, 502, 502], "{}", weir.stderr());
    // A kept connection of a location that accepts the server is nothing to one that does not.
    assert_eq!(get(weir.address(), "/good").status, 200);
    assert_eq!(get(weir.address(), "/revoked").status, 502);
}

#[test]
fn no_request_is_sent_to_a_backend_with_a_wrong_certificate() {
    let certs = certs();
    let backend = backend(&certs, "");
    let weir = weir(
        &certs,
        &backend,
        "    locations:
      - { path: /system, proxy_pass: \"https://127.0.0.1:BACK\" }
      - { path: /name, proxy_pass: \"https://127.0.0.1:BACK\", proxy_ssl_name: other.example, proxy_ssl_trusted_certificate: CERTS/ca.pem }
      - { path: /off, proxy_pass: \"https://127.0.0.1:BACK\", proxy_ssl_name: other.example, proxy_ssl_verify: off }
",
    );
    assert_eq!(get(weir.address(), "/system").status, 502);
    let line = weir.error_line("upstream SSL certificate verify error");
    assert!(line.contains("while SSL handshaking to upstream"), "{line}");
    assert_eq!(weir.stderr().matches("verify error").count(), 1, "once");
    assert_eq!(get(weir.address(), "/name").status, 502);
    weir.error_line("upstream SSL certificate does not match \"other.example\"");
    assert_eq!(parts(&weir, "/off")[0], "other.example");
}

/// As in nginx, but for a certificate that stands in the file without its issuer.
#[test]
fn a_trusted_certificate_need_not_be_an_authority() {
    let certs = Certs::new();
    let named = || wanted(&["back.example"]);
    certs.sign_itself("leaf", &named());
    certs.sign_itself("both", &named().authority());
    certs.sign_itself("expired", &named().authority().years(2020, 2021));
    certs.sign_itself("early", &named().authority().years(2080, 2090));
    certs.issue("issued", &named());
    let origin = Origin::start();
    for (name, nginxs, weirs) in [
        ("leaf", 200, 200),
        ("both", 200, 200),
        ("expired", 502, 502),
        ("early", 502, 502),
        ("issued", 502, 200),
    ] {
        let server = format!(
            "server {{ listen LISTEN ssl; ssl_certificate CERTS/{name}.pem; ssl_certificate_key CERTS/{name}.key; return 200 ok; }}"
        );
        let backend = Nginx::before(&origin, &certs.filled(&server));
        let back = backend.address();
        let location = |path: &str, host: &str| {
            format!(
                "location {path} {{ proxy_pass https://{back}; proxy_ssl_verify on; proxy_ssl_name {host};
                proxy_ssl_trusted_certificate CERTS/{name}.pem; }}"
            )
        };
        let locations = location("/", "back.example") + &location("/other", "other.example");
        let http = format!("server {{ listen LISTEN; {locations} }}");
        let nginx = Nginx::before(&origin, &certs.filled(&http));
        let weir = weir(
            &certs,
            &backend,
            &format!(
                "    proxy_ssl_trusted_certificate: CERTS/{name}.pem
    locations:
      - {{ path: /, proxy_pass: 'https://127.0.0.1:BACK', proxy_ssl_name: back.example }}
      - {{ path: /deep, proxy_pass: 'https://127.0.0.1:BACK', proxy_ssl_name: back.example, proxy_ssl_verify_depth: 0 }}
      - {{ path: /other, proxy_pass: 'https://127.0.0.1:BACK', proxy_ssl_name: other.example }}
"
            ),
        );
        let status = |address, path: &str| get(address, path).status;
        assert_eq!(status(nginx.address(), "/"), nginxs, "{name}, nginx");
        for path in ["/", "/deep"] {
            assert_eq!(
                status(weir.address(), path),
                weirs,
                "{name} {path}: {}",
                weir.stderr()
            );
        }
        for address in [nginx.address(), weir.address()] {
            assert_eq!(status(address, "/other"), 502, "{name}: {}", weir.stderr());
        }
        if weirs == 200 {
            weir.error_line("upstream SSL certificate does not match \"other.example\"");
        }
    }
}

/// Another certificate of the same name is not the one in the file.
#[test]
fn another_certificate_of_the_same_name_is_not_accepted() {
    let certs = Certs::new();
    certs.sign_itself("back", &wanted(&["127.0.0.1"]).authority());
    let backend = backend(&certs, "");
    certs.sign_itself("pinned", &wanted(&["127.0.0.1"]).authority());
    let weir = weir(
        &certs,
        &backend,
        "    proxy_ssl_trusted_certificate: CERTS/pinned.pem\n    proxy_pass: 'https://127.0.0.1:BACK'\n",
    );
    assert_eq!(get(weir.address(), "/").status, 502);
}

#[test]
fn a_chain_may_be_so_long_and_no_longer() {
    let certs = certs();
    certs.issue_through("back", &wanted(&["127.0.0.1"]));
    let backend = backend(&certs, "");
    let weir = weir(
        &certs,
        &backend,
        "    proxy_ssl_trusted_certificate: CERTS/ca.pem
    locations:
      - { path: /any, proxy_pass: \"https://127.0.0.1:BACK\" }
      - { path: /one, proxy_pass: \"https://127.0.0.1:BACK\", proxy_ssl_verify_depth: 1 }
      - { path: /none, proxy_pass: \"https://127.0.0.1:BACK\", proxy_ssl_verify_depth: 0 }
",
    );
    assert_eq!(get(weir.address(), "/any").status, 200);
    assert_eq!(get(weir.address(), "/one").status, 200);
    assert_eq!(get(weir.address(), "/none").status, 502);
    weir.error_line("certificate chain too long");
}

#[test]
fn connections_are_kept_and_never_shared_between_settings() {
    let certs = certs();
    let backend = backend(&certs, "");
    let weir = weir(
        &certs,
        &backend,
        "    proxy_ssl_trusted_certificate: CERTS/ca.pem
    locations:
      - { path: /one, proxy_pass: \"https://127.0.0.1:BACK\" }
      - { path: /two, proxy_pass: \"https://127.0.0.1:BACK\", proxy_ssl_name: back.example }
",
    );
    // One client, and so one event loop.
    let mut client = Client::connect(weir.address());
    let mut connection = |path: &str| {
        client.get(path);
        let text = client.response().text();
        text.split('|').nth(3).map(str::to_owned)
    };
    let first = connection("/one");
    assert_eq!(connection("/one"), first);
    let second = connection("/two");
    assert_ne!(second, first);
    assert_eq!(connection("/two"), second);
    assert_eq!(connection("/one"), first);
}

#[test]
fn sessions_are_resumed_unless_switched_off() {
    let certs = certs();
    let backend = backend(&certs, "keepalive_requests 1;");
    for (more, reused) in [("", "r"), ("    proxy_ssl_session_reuse: off\n", ".")] {
        let weir = weir(
            &certs,
            &backend,
            &format!(
                "{more}    proxy_ssl_trusted_certificate: CERTS/ca.pem\n    proxy_pass: https://127.0.0.1:BACK\n"
            ),
        );
        let mut client = Client::connect(weir.address());
        let mut again = || {
            client.get("/");
            client
                .response()
                .text()
                .split('|')
                .nth(2)
                .map(str::to_owned)
        };
        assert_eq!(again().as_deref(), Some("."));
        assert_eq!(again().as_deref(), Some(reused));
    }
}

#[test]
fn a_backend_may_request_a_client_certificate() {
    let certs = certs();
    let backend = backend(&certs, "ssl_verify_client on;");
    let weir = weir(
        &certs,
        &backend,
        "    proxy_ssl_trusted_certificate: CERTS/ca.pem
    locations:
      - { path: /nameless, proxy_pass: \"https://127.0.0.1:BACK\" }
      - { path: /known, proxy_pass: \"https://127.0.0.1:BACK\", proxy_ssl_certificate: CERTS/own.pem, proxy_ssl_certificate_key: CERTS/own.key }
",
    );
    assert_eq!(get(weir.address(), "/nameless").status, 400);
    assert!(parts(&weir, "/known")[4].contains("CN=weir.example"));
}

#[test]
fn a_group_is_met_inside_tls_too() {
    let certs = certs();
    let backend = backend(&certs, "");
    let port = backend.address().port();
    let weir = Weir::start(&certs.filled(&format!(
        "upstreams: {{ back.example: {{ servers: \"127.0.0.1:{port}\" }} }}
servers:
  - listen: LISTEN
    proxy_ssl_trusted_certificate: CERTS/ca.pem
    proxy_pass: https://back.example/
"
    )));
    assert_eq!(parts(&weir, "/")[..2], ["back.example", "localhost"]);
}

#[test]
fn a_backend_silent_in_the_handshake_is_a_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = listener.local_addr().expect("it is bound");
    let weir = Weir::start(&format!(
        "servers: [{{ listen: LISTEN, proxy_connect_timeout: 1s, proxy_pass: \"https://{address}\" }}]"
    ));
    assert_eq!(get(weir.address(), "/").status, 504);
    weir.error_line("timed out (110: Connection timed out) while SSL handshaking to upstream");
}

#[test]
fn a_backend_without_tls_is_a_bad_gateway() {
    let plain = Nginx::before(&Origin::start(), "server { listen LISTEN; return 204; }");
    let weir = Weir::start(&format!(
        "servers: [{{ listen: LISTEN, proxy_pass: \"https://{}\" }}]",
        plain.address()
    ));
    assert_eq!(get(weir.address(), "/").status, 502);
    weir.error_line("SSL_do_handshake() failed");
}

/// An answer without a length ends with its connection: only TLS can tell whether that is all of it.
#[test]
fn a_truncated_response_is_not_forwarded_as_complete() {
    let certs = certs();
    let read = |name: &str| std::fs::read(certs.path(name)).expect("it is there");
    let chain = vec![CertificateDer::from_pem_slice(&read("back.pem")).expect("it is one")];
    let key = PrivateKeyDer::from_pem_slice(&read("back.key")).expect("it is one");
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .expect("they are there")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("they match");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for (number, socket) in listener.incoming().map_while(Result::ok).enumerate() {
            let tls = rustls::ServerConnection::new(Arc::clone(&config)).expect("it can be made");
            let mut stream = rustls::StreamOwned::new(tls, socket);
            let mut bytes = [0; 1024];
            if stream.read(&mut bytes).is_err() {
                continue;
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nbegun").ok();
            if number == 0 {
                stream.conn.send_close_notify();
            }
            stream.flush().ok();
        }
    });
    let weir = Weir::start(&certs.filled(&format!(
        "servers: [{{ listen: LISTEN, proxy_ssl_trusted_certificate: CERTS/ca.pem, proxy_pass: \"https://{address}\" }}]"
    )));
    let told = get(weir.address(), "/");
    assert!(told.complete && told.text() == "begun", "{told:?}");
    let cut = get(weir.address(), "/");
    assert!(!cut.complete, "{cut:?}");
}
