//! Session resumption and OCSP stapling.

use crate::support::{Certs, Weir, eventually, metric, wanted};

fn started(more: &str) -> (Certs, Weir) {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["a.example"]));
    let weir = Weir::start(&certs.filled(&format!(
        "admin: {{ listen: ADMIN }}
servers:
  - listen: {{ address: LISTEN, tls: true }}
    tls: {{ certificate: CERTS/a.pem, key: CERTS/a.key, {more} }}
    return: {{ status: 200, body: \"reused=$ssl_session_reused\" }}
"
    )));
    (certs, weir)
}

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";

/// What openssl is answered with; the session goes to a file, or comes from there.
fn ask(certs: &Certs, weir: &Weir, version: &str, file: &str) -> String {
    let address = weir.address().to_string();
    let arguments = [
        "s_client",
        "-connect",
        &address,
        "-servername",
        "a.example",
        "-ign_eof",
        version,
        file,
        "session",
    ];
    certs.openssl(&arguments, REQUEST)
}

fn first(certs: &Certs, weir: &Weir, version: &str) {
    let said = ask(certs, weir, version, "-sess_out");
    assert!(said.contains("reused=."), "{said}");
}

#[test]
fn a_session_is_taken_up_again_from_a_ticket_or_from_memory() {
    for tickets in ["on", "off"] {
        let (certs, weir) = started(&format!("session_tickets: {tickets}"));
        for version in ["-tls1_2", "-tls1_3"] {
            first(&certs, &weir, version);
            let said = ask(&certs, &weir, version, "-sess_in");
            assert!(said.contains("reused=r"), "{tickets} {version}: {said}");
        }
        eventually("they are counted", || {
            metric(&weir, "weir_tls_handshakes_total{result=\"resumed\"}") == 2
                && metric(&weir, "weir_tls_handshakes_total{result=\"full\"}") == 2
        });
    }
}

#[test]
fn a_session_of_no_length_is_not_offered() {
    let (certs, weir) = started("session_timeout: 0");
    for version in ["-tls1_2", "-tls1_3"] {
        first(&certs, &weir, version);
        assert!(!certs.path("session").exists(), "{version}");
    }
}

#[test]
fn ocsp_responses_are_stapled() {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["a.example"]));
    certs.write("index.txt", "");
    let asked = "ocsp -issuer ca.pem -cert a.pem -no_nonce -reqout asked";
    certs.openssl(&asked.split(' ').collect::<Vec<_>>(), "");
    let told = "ocsp -index index.txt -CA ca.pem -rsigner ca.pem -rkey ca.key -reqin asked -respout staple -ndays 1";
    certs.openssl(&told.split(' ').collect::<Vec<_>>(), "");
    let weir = Weir::start(&certs.filled(
        "servers:
  - listen: { address: LISTEN, tls: true }
    tls: { certificate: CERTS/a.pem, key: CERTS/a.key, stapling_file: CERTS/staple }
    return: 204
",
    ));
    let address = weir.address().to_string();
    for version in ["-tls1_2", "-tls1_3"] {
        let said = certs.openssl(&["s_client", "-connect", &address, "-status", version], "");
        assert!(said.contains("OCSP Response Status: successful"), "{said}");
    }
}

#[test]
fn alpn_negotiates_the_protocol() {
    let (certs, weir) = started("");
    let address = weir.address().to_string();
    let alpn =
        |offers: &str| certs.openssl(&["s_client", "-connect", &address, "-alpn", offers], "");
    let said = alpn("http/1.1,something");
    assert!(said.contains("ALPN protocol: http/1.1"), "{said}");
    let said = alpn("something");
    assert!(said.contains("no application protocol"), "{said}");
}
