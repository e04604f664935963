//! The errors of `weir check` and `weir run` about certificates that cannot be used.

use crate::support::weir::output;
use crate::support::{Certs, wanted};

/// What `command` says of a file, and how it ends.
fn said(certs: &Certs, command: &str, yaml: &str) -> (Option<i32>, String) {
    certs.write("weir.yaml", certs.filled(yaml));
    let file = certs.path("weir.yaml").display().to_string();
    let output = output(&[command, "--config", &file]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), told)
}

/// A server whose `tls` is this, in line 3.
fn server(tls: &str) -> String {
    format!("servers:\n  - listen: 127.0.0.1:1 ssl\n    tls: {{ {tls} }}\n    return: 204\n")
}

#[test]
fn every_flaw_of_a_file_has_its_place_and_its_sentence() {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["a.example"]));
    certs.issue("b", &wanted(&["b.example"]));
    certs.issue("late", &wanted(&["a.example"]).years(2019, 2021));
    certs.issue("early", &wanted(&["a.example"]).years(2080, 2090));
    certs.write("empty.pem", "");
    certs.write(
        "torn.pem",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    );
    certs.openssl(
        &[
            "pkey",
            "-in",
            "a.key",
            "-aes256",
            "-passout",
            "pass:x",
            "-out",
            "locked.key",
        ],
        "",
    );
    let traditional = "ec -in a.key -aes256 -passout pass:x -out old.key";
    certs.openssl(&traditional.split(' ').collect::<Vec<_>>(), "");
    certs.openssl(
        &["x509", "-in", "a.pem", "-outform", "der", "-out", "a.der"],
        "",
    );
    for flaw in FLAWS.lines() {
        let (tls, sentence) = flaw.split_once(" => ").expect("two halves");
        let place = tls.find('<').expect("a mark") + "    tls: { ".len() + 1;
        let tls = tls.replace('<', "");
        let (code, told) = said(&certs, "check", &server(&tls));
        assert_eq!(code, Some(1), "{tls}: {told}");
        assert!(told.contains(sentence), "{tls}: {told}");
        let place = format!("weir.yaml:3:{place}\n");
        assert!(told.contains(&place), "{place} {tls}: {told}");
    }
}

/// What is written, with a mark before the name of the file at fault, and what is said. Names are relative to the
/// file that has them.
const FLAWS: &str = "\
certificate: a.pem, key: <b.key => holds a key that does not match the certificate in
certificate: <late.pem, key: late.key => expired on 2021-01-01 00:00:00 UTC
certificate: <early.pem, key: early.key => is not valid before 2080-01-01
certificate: <none.pem, key: a.key => cannot be read: there is no such file
certificate: <., key: a.key => cannot be read: it is a directory
certificate: <empty.pem, key: a.key => holds no certificate
certificate: <a.key, key: a.key => holds no certificate
certificate: <a.der, key: a.key => is not PEM
certificate: <torn.pem, key: a.key => holds a certificate that is damaged
certificate: a.pem, key: <a.pem => holds no private key
certificate: a.pem, key: <locked.key => holds an encrypted key
certificate: a.pem, key: <old.key => holds an encrypted key
certificate: a.pem, key: a.key, stapling_file: <a.pem => is not an OCSP answer
certificate: a.pem, key: a.key, verify_client: on, client_ca: <a.key => holds no certificate
certificate: a.pem, key: a.key, verify_client: on, client_ca: ca.pem, crl: <ca.pem => holds no list";

#[test]
fn a_file_that_is_not_pem_comes_with_the_command_that_converts_it() {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["a.example"]));
    let to_der = "x509 -in a.pem -outform der -out a.der";
    certs.openssl(&to_der.split(' ').collect::<Vec<_>>(), "");
    let (code, told) = said(&certs, "check", &server("certificate: a.der, key: a.key"));
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("openssl x509 -inform der"), "{told}");
}

#[test]
fn upstream_errors_are_logged_too() {
    let certs = Certs::new();
    let yaml = "servers:
  - listen: 127.0.0.1:1
    proxy_ssl_trusted_certificate: none.pem
    proxy_pass: https://127.0.0.1:2
";
    let (code, told) = said(&certs, "check", yaml);
    assert_eq!(code, Some(1));
    assert!(told.contains("weir.yaml:3:36"), "{told}");
    assert!(told.contains("there is no such file"), "{told}");
}

#[test]
fn a_name_the_certificate_is_not_for_is_a_warning() {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["a.example", "*.b.example"]));
    let yaml = |names: &str| {
        server("certificate: a.pem, key: a.key").replace(
            "    return",
            &format!("    server_name: {names}\n    return"),
        )
    };
    let (code, told) = said(
        &certs,
        "check",
        &yaml("[a.example, '*.b.example', x.b.example]"),
    );
    assert_eq!((code, told.contains("warning")), (Some(0), false), "{told}");
    let (code, told) = said(&certs, "check", &yaml("[a.example, c.example]"));
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("is not for `c.example`"), "{told}");
}

#[test]
fn run_starts_with_an_expired_certificate_and_not_with_a_broken_one() {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["a.example"]));
    certs.issue("late", &wanted(&["a.example"]).years(2019, 2021));
    let (code, told) = said(&certs, "run", &server("certificate: a.pem, key: late.key"));
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("weir.yaml:3:37"), "{told}");

    let weir = crate::support::Weir::start(&certs.filled(
        "servers:
  - listen: { address: LISTEN, tls: true }
    tls: { certificate: CERTS/late.pem, key: CERTS/late.key }
    return: 204
",
    ));
    let told = weir.stderr();
    assert!(told.contains("expired on 2021-01-01"), "{told}");
}
