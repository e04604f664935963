//! Certificates that clients show, beside the real nginx.

use crate::support::{Certs, Nginx, Origin, Weir, wanted};

/// What both say of a client, in nginx's variables.
const SAYS: &str = "$ssl_client_verify|$ssl_client_s_dn|$ssl_client_i_dn|$ssl_client_serial|$ssl_client_fingerprint|\
                    $ssl_protocol|$ssl_cipher|$ssl_server_name|$scheme|$https|$ssl_client_escaped_cert";

fn weir(certs: &Certs, verify: &str) -> Weir {
    Weir::start(&certs.filled(&format!(
        "servers:
  - listen: {{ address: LISTEN, tls: true }}
    server_name: a.example
    tls: {{ certificate: CERTS/a.pem, key: CERTS/a.key, client_ca: CERTS/ca.pem, verify_client: {verify} }}
    return: {{ status: 200, body: \"{SAYS}\" }}
"
    )))
}

fn nginx(certs: &Certs, verify: &str) -> Nginx {
    let http = certs.filled(&format!(
        "server {{
            listen LISTEN ssl; server_name a.example;
            ssl_certificate CERTS/a.pem; ssl_certificate_key CERTS/a.key; ssl_protocols TLSv1.2 TLSv1.3;
            ssl_client_certificate CERTS/ca.pem; ssl_verify_client {verify};
            location / {{ return 200 \"{SAYS}\"; }}
        }}"
    ));
    Nginx::before(&Origin::start(), &http)
}

fn issued() -> Certs {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["a.example"]));
    certs.issue("good", &wanted(&["somebody"]).serial(0xFE_DC_BA));
    certs.issue("revoked", &wanted(&["somebody"]).serial(77));
    certs.issue("late", &wanted(&["somebody"]).years(2019, 2020));
    certs.sign_itself("own", &wanted(&["somebody"]));
    certs.revoke("crl.pem", &[77]);
    certs
}

/// Status and body for a client that shows this certificate.
fn ask(certs: &Certs, port: u16, client: Option<&str>) -> (String, String) {
    let url = format!("https://a.example:{port}/");
    let (cert, key) = match client {
        Some(name) => (format!("CERTS/{name}.pem"), format!("CERTS/{name}.key")),
        None => (String::new(), String::new()),
    };
    let mut arguments = vec!["--write-out", "\n%{http_code}", &url];
    if client.is_some() {
        arguments.extend(["--cert", &cert, "--key", &key]);
    }
    let said = certs.fetch(&arguments);
    let (body, status) = said.rsplit_once('\n').expect("two lines");
    (status.to_owned(), body.to_owned())
}

#[test]
fn clients_are_told_apart_as_nginx_does() {
    let certs = issued();
    for (verify, ours, theirs) in [
        ("on", "on, crl: CERTS/crl.pem", "on; ssl_crl CERTS/crl.pem"),
        (
            "optional",
            "optional, crl: CERTS/crl.pem",
            "optional; ssl_crl CERTS/crl.pem",
        ),
        // With a list nginx wants one of whoever has issued the certificate, whom nobody knows here.
        ("optional_no_ca", "optional_no_ca", "optional_no_ca"),
    ] {
        let weir = weir(&certs, ours);
        let nginx = nginx(&certs, theirs);
        for client in [
            None,
            Some("good"),
            Some("own"),
            Some("late"),
            Some("revoked"),
        ] {
            let ours = ask(&certs, weir.port(), client);
            let theirs = ask(&certs, nginx.address().port(), client);
            assert_eq!(
                ours.0, theirs.0,
                "{client:?} with {verify}: {ours:?} {theirs:?}"
            );
            if ours.0 == "200" {
                // Of what the client offers, the cheaper one; nginx goes by the client's order.
                let said = theirs
                    .1
                    .replace("TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256");
                assert_eq!(ours.1, said, "{client:?} with {verify}");
            }
        }
    }
}

#[test]
fn who_has_no_good_certificate_is_told_why() {
    let certs = issued();
    let weir = weir(&certs, "on, crl: CERTS/crl.pem");
    let (status, body) = ask(&certs, weir.port(), None);
    assert_eq!(status, "400");
    assert!(
        body.contains("No required SSL certificate was sent"),
        "{body}"
    );
    let (_, body) = ask(&certs, weir.port(), Some("revoked"));
    assert!(body.contains("The SSL certificate error"), "{body}");
    let line = weir.error_line("verify error");
    assert!(line.contains("certificate revoked"), "{line}");
}

/// A list says nothing before its time, after it, and of certificates that somebody else has issued.
#[test]
fn a_list_that_does_not_hold_lets_nobody_in() {
    let certs = issued();
    certs.revoke_in("expired.pem", &[77], (2019, 2020));
    certs.revoke_in("early.pem", &[77], (2080, 2090));
    let other = Certs::named("Another authority");
    other.revoke("crl.pem", &[77]);
    let list = std::fs::read(other.path("crl.pem")).expect("it was written");
    certs.write("other.pem", list);
    let both = ["crl.pem", "other.pem"].map(|name| std::fs::read(certs.path(name)).unwrap());
    certs.write("both.pem", both.concat());
    for (list, good, why) in [
        ("expired.pem", "400", "CRL has expired"),
        ("early.pem", "400", "CRL is not yet valid"),
        ("other.pem", "400", "unable to get certificate CRL"),
        ("both.pem", "200", "certificate revoked"),
    ] {
        let weir = weir(&certs, &format!("on, crl: CERTS/{list}"));
        let nginx = nginx(&certs, &format!("on; ssl_crl CERTS/{list}"));
        for (client, expected) in [("good", good), ("revoked", "400")] {
            let ours = ask(&certs, weir.port(), Some(client));
            let theirs = ask(&certs, nginx.address().port(), Some(client));
            assert_eq!(theirs.0, expected, "nginx of {client} with {list}");
            assert_eq!(ours.0, expected, "{client} with {list}");
        }
        let line = weir.error_line("verify error");
        assert!(line.contains(why), "{list}: {line}");
    }
}

#[test]
fn a_server_that_asks_cannot_be_reached_through_one_that_does_not() {
    let certs = issued();
    certs.issue("b", &wanted(&["b.example"]));
    let weir = Weir::start(&certs.filled(
        "servers:
  - listen: { address: LISTEN, tls: true }
    server_name: b.example
    tls: { certificate: CERTS/b.pem, key: CERTS/b.key }
    return: { status: 200, body: open }
  - listen: { address: LISTEN, tls: true }
    server_name: a.example
    tls: { certificate: CERTS/a.pem, key: CERTS/a.key, client_ca: CERTS/ca.pem, verify_client: optional }
    return: { status: 200, body: closed }
",
    ));
    let port = weir.port();
    let url = format!("https://b.example:{port}/");
    assert_eq!(certs.fetch(&[&url]), "open");
    let status = ["--write-out", "%{http_code}", "--output", "/dev/null"];
    let through = [&status[..], &["--header", "Host: a.example", &url]].concat();
    assert_eq!(certs.fetch(&through), "421");
}

#[test]
fn a_certificate_can_be_the_key_of_a_limit() {
    let certs = issued();
    certs.issue("other", &wanted(&["other"]).serial(5));
    let weir = Weir::start(&certs.filled(
        "limit_req_zones: { percert: { key: $ssl_client_fingerprint, rate: 1r/m } }
servers:
  - listen: { address: LISTEN, tls: true }
    tls: { certificate: CERTS/a.pem, key: CERTS/a.key, client_ca: CERTS/ca.pem, verify_client: on }
    limit_req: { zone: percert }
    return: 204
",
    ));
    let status = |client: &str| ask(&certs, weir.port(), Some(client)).0;
    assert_eq!(status("good"), "204");
    assert_eq!(status("good"), "429");
    assert_eq!(status("other"), "204");
}
