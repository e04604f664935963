//! Client certificates, compared with the real nginx.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

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

pub(super) fn issued() -> Certs {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["a.example"]));
    certs.issue("good", &wanted(&["client"]).serial(0xFE_DC_BA));
    certs.issue("revoked", &wanted(&["client"]).serial(77));
    certs.issue("late", &wanted(&["client"]).years(2019, 2020));
    certs.sign_itself("own", &wanted(&["client"]));
    certs.revoke("crl.pem", &[77]);
    certs
}

/// Status and body for a client that shows this certificate.
pub(super) fn ask(certs: &Certs, port: u16, client: Option<&str>) -> (String, String) {
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
fn clients_are_identified_as_by_nginx() {
    let certs = issued();
    for (verify, ours, theirs) in [
        ("on", "on, crl: CERTS/crl.pem", "on; ssl_crl CERTS/crl.pem"),
        (
            "optional",
            "optional, crl: CERTS/crl.pem",
            "optional; ssl_crl CERTS/crl.pem",
        ),
        // With a revocation list, nginx needs one of the issuer, which is unknown here.
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
fn a_client_without_a_valid_certificate_gets_a_reason() {
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

/// A list does not count before its time, after it, and for certificates of other issuers.
#[test]
fn an_invalid_revocation_list_refuses_all_clients() {
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

/// Makes a key and a request for a certificate, both called `name`.
fn request(certs: &Certs, name: &str, kind: &str) {
    let subject = format!("/CN={name}");
    let (key, request) = (format!("{name}.key"), format!("{name}.csr"));
    let mut arguments = vec!["req", "-nodes", "-subj", &subject];
    arguments.extend(["-keyout", &key, "-out", &request, "-newkey", kind]);
    if kind == "ec" {
        arguments.extend(["-pkeyopt", "ec_paramgen_curve:P-256"]);
    }
    certs.openssl(&arguments, "");
}

/// Has a certificate signed by `issuer`, or by its own key; of version 1 where there are no extensions.
fn sign(certs: &Certs, name: &str, issuer: Option<&str>, extensions: &str) {
    let file = |end: &str| format!("{name}.{end}");
    let [key, request, made, list] = ["key", "csr", "pem", "ext"].map(file);
    let (ca, ca_key) = match issuer {
        Some(issuer) => (format!("{issuer}.pem"), format!("{issuer}.key")),
        None => (String::new(), String::new()),
    };
    let mut arguments = vec![
        "x509", "-req", "-days", "20", "-in", &request, "-out", &made,
    ];
    match issuer {
        Some(_) => arguments.extend(["-CA", &ca, "-CAkey", &ca_key, "-CAcreateserial"]),
        None => arguments.extend(["-signkey", &key]),
    }
    if !extensions.is_empty() {
        certs.write(&list, extensions);
        arguments.extend(["-extfile", &list]);
    }
    let said = certs.openssl(&arguments, "");
    assert!(certs.path(&made).exists(), "{name}: {said}");
}

/// Adds the certificates of others to the file of this one.
fn append(certs: &Certs, name: &str, others: &[&str]) {
    let read = |name: &&str| std::fs::read_to_string(certs.path(&format!("{name}.pem")));
    let all = [&[name][..], others].concat();
    let all: Result<Vec<_>, _> = all.iter().map(read).collect();
    certs.write(
        &format!("{name}.pem"),
        all.expect("they are there").concat(),
    );
}

const CLIENT: &str = "basicConstraints=CA:FALSE\n";
const CA: &str = "basicConstraints=critical,CA:TRUE\n";
const FOR_SERVERS: &str = "basicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n";
const CRITICAL: &str = "basicConstraints=CA:FALSE\n1.2.3.4=critical,ASN1:NULL\n";

/// Certificates of all kinds that are not valid.
fn strange() -> (Certs, Vec<&'static str>) {
    let certs = issued();
    let mut names = vec!["good", "own", "late"];
    let mut add = |name: &'static str, kind: &str, issuer: Option<&str>, extensions: &str| {
        request(&certs, name, kind);
        sign(&certs, name, issuer, extensions);
        names.push(name);
    };
    // Version 1, of every kind of key, and issued by whom we believe.
    add("own-v1", "ec", None, "");
    add("own-rsa-v1", "rsa:2048", None, "");
    add("own-ed-v1", "ed25519", None, "");
    add("good-v1", "ec", Some("ca"), "");
    // What `openssl req -x509` makes.
    add("own-ca", "ec", None, CA);
    add("own-for-servers", "ec", None, FOR_SERVERS);
    add("own-critical", "ec", None, CRITICAL);
    // Of an unknown authority, and of one below it.
    add("other", "ec", None, CA);
    add("between", "ec", Some("other"), CA);
    add("strange", "ec", Some("other"), CLIENT);
    add("strange-v1", "ec", Some("other"), "");
    add("strange-ca", "ec", Some("other"), CA);
    add("strange-for-servers", "ec", Some("other"), FOR_SERVERS);
    add("strange-with-root", "ec", Some("other"), CLIENT);
    append(&certs, "strange-with-root", &["other"]);
    add("strange-below", "ec", Some("between"), CLIENT);
    append(&certs, "strange-below", &["between"]);
    // Deeper than `verify_depth` below whom we believe.
    add("first", "ec", Some("ca"), CA);
    add("second", "ec", Some("first"), CA);
    add("third", "ec", Some("second"), CA);
    add("deep", "ec", Some("third"), CLIENT);
    append(&certs, "deep", &["third", "second", "first"]);
    let expired = wanted(&["client"]).years(2019, 2020);
    certs.sign_itself("own-late", &expired);
    certs.sign_itself("own-early", &wanted(&["client"]).years(2090, 2091));
    names.extend(["own-late", "own-early"]);
    // Issued by a CA that may not be a client's.
    names.retain(|name| !["first", "second", "third"].contains(name));
    (certs, names)
}

#[test]
fn optional_no_ca_accepts_the_certificates_that_nginx_does() {
    let (certs, names) = strange();
    let weir = weir(&certs, "optional_no_ca");
    let nginx = nginx(&certs, "optional_no_ca");
    for name in names {
        for version in ["1.2", "1.3"] {
            let says = |port: u16| {
                let url = format!("https://a.example:{port}/");
                let (cert, key) = (format!("CERTS/{name}.pem"), format!("CERTS/{name}.key"));
                let said =
                    certs.curl(&["--tls-max", version, "--cert", &cert, "--key", &key, &url]);
                let said = String::from_utf8_lossy(&said.stdout).into_owned();
                let verdict = said.split('|').next().unwrap_or_default();
                match verdict.contains("The SSL certificate error") {
                    true => "refused".to_owned(),
                    false => verdict.to_owned(),
                }
            };
            let (ours, theirs) = (says(weir.port()), says(nginx.address().port()));
            assert!(!theirs.is_empty(), "{name} with TLS {version}");
            assert_eq!(ours, theirs, "{name} with TLS {version}");
        }
    }
}

/// Shows a certificate with a key that is not its own.
#[derive(Debug)]
struct Impostor(Arc<CertifiedKey>);

impl ResolvesClientCert for Impostor {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// A certificate version that rustls does not read does not prove the identity of another client.
#[test]
fn a_certificate_is_only_believed_with_its_key() {
    let certs = issued();
    for name in ["own-v1", "another"] {
        request(&certs, name, "ec");
        sign(&certs, name, None, "");
    }
    let weir = weir(&certs, "optional_no_ca");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let chain = CertificateDer::from_pem_file(certs.path("own-v1.pem")).unwrap();
    let handshake = |key: &str, version| {
        let key = PrivateKeyDer::from_pem_file(certs.path(key)).unwrap();
        let key = provider.key_provider.load_private_key(key).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        let root = CertificateDer::from_pem_file(certs.path("ca.pem")).unwrap();
        roots.add(root).unwrap();
        let shown = CertifiedKey::new(vec![chain.clone()], key);
        let config = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::new(Impostor(Arc::new(shown))));
        let name = "a.example".try_into().unwrap();
        let mut tls = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut socket = TcpStream::connect(weir.address()).unwrap();
        let mut stream = rustls::Stream::new(&mut tls, &mut socket);
        let request = b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
        let mut answer = Vec::new();
        // What became of it is seen in the answer: with TLS 1.3 the client is done first.
        let _outcome = stream
            .write_all(request)
            .and_then(|()| stream.read_to_end(&mut answer));
        String::from_utf8_lossy(&answer).into_owned()
    };
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let own = handshake("own-v1.key", version);
        assert!(own.contains("FAILED:self-signed certificate"), "{own}");
        assert_eq!(handshake("another.key", version), "", "{version:?}");
    }
}
