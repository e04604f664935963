//! Servers whose certificate weir does not accept. weir itself, as a server, packs its handshake into one record, as
//! BoringSSL does and OpenSSL does not: rustls then holds more of the handshake when it refuses the certificate.

use crate::support::{Certs, Weir, eventually, get, metric, wanted};

/// A weir to stand behind weir, with a certificate of this authority.
fn behind(authority: &Certs) -> Weir {
    authority.issue("back", &wanted(&["127.0.0.1"]));
    Weir::start(&authority.filled(
        "servers:
- listen: { address: LISTEN, tls: true }
  tls: { certificate: CERTS/back.pem, key: CERTS/back.key }
  return: { status: 200, body: ok }
",
    ))
}

/// One that trusts this authority, before the servers at `BAD` and `GOOD`.
fn before(trusted: &Certs, bad: &Weir, good: &Weir, upstream: &str) -> Weir {
    let yaml = format!(
        "log: {{ access: {{ path: '-', format: '$status|$upstream_status' }} }}
admin: {{ listen: ADMIN }}
proxy_ssl_trusted_certificate: CERTS/ca.pem
proxy_ssl_name: 127.0.0.1
upstreams: {{ app: {upstream} }}
servers: [{{ listen: LISTEN, proxy_pass: 'https://app' }}]
"
    );
    let yaml = yaml
        .replace("BAD", &bad.address().to_string())
        .replace("GOOD", &good.address().to_string());
    Weir::start(&trusted.filled(&yaml))
}

fn has_panicked(weir: &Weir) -> bool {
    weir.stderr().contains("panicked")
}

/// The file of those who first met this.
#[test]
fn a_certificate_that_is_not_accepted_is_a_bad_gateway() {
    let certs = Certs::new();
    certs.issue("leaf", &wanted(&["localhost"]));
    let weir = Weir::start(&certs.filled(
        "log: { access: { path: '-', format: '$status|$upstream_status' } }
tls: { certificate: CERTS/leaf.pem, key: CERTS/leaf.key }
servers:
- { listen: LISTEN, proxy_pass: \"https://LISTEN2\", proxy_ssl_name: localhost }
- { listen: { address: LISTEN2, tls: true }, return: \"200 ok\" }
",
    ));
    for request in 1..=3 {
        assert_eq!(get(weir.address(), "/").status, 502, "request {request}");
    }
    weir.access_line("502|502");
    let line = weir.error_line("upstream SSL certificate verify error");
    assert!(line.contains("while SSL handshaking to upstream"), "{line}");
    // The other side is told why.
    weir.error_line("SSL_do_handshake() failed (SSL: received fatal alert: UnknownCA)");
    assert!(!has_panicked(&weir), "{}", weir.stderr());
}

#[test]
fn the_next_server_is_asked_and_the_refused_one_is_left_alone() {
    let (ours, other) = (Certs::new(), Certs::named("Another authority"));
    let (good, bad) = (behind(&ours), behind(&other));
    let weir = before(
        &ours,
        &bad,
        &good,
        "{ servers: [{ address: 'BAD', max_fails: 2, fail_timeout: 1h }, { address: 'GOOD' }] }",
    );
    for request in 1..=8 {
        assert_eq!(get(weir.address(), "/").status, 200, "request {request}");
    }
    weir.access_line("200|502, 200");
    weir.error_line("upstream server temporarily disabled");
    let refused = weir.stderr().matches("verify error").count();
    assert_eq!(refused, 2, "{}", weir.stderr());
    assert!(!has_panicked(&weir), "{}", weir.stderr());
}

#[test]
fn a_health_check_that_meets_such_a_server_goes_on_checking() {
    let (ours, other) = (Certs::new(), Certs::named("Another authority"));
    let (good, bad) = (behind(&ours), behind(&other));
    let weir = before(
        &ours,
        &bad,
        &good,
        "{ servers: ['BAD', 'GOOD'], health_check: { interval: 20ms, timeout: 5s, rise: 1, fall: 1 } }",
    );
    let line = weir.error_line("is unhealthy");
    assert!(line.contains("certificate verify error"), "{line}");
    // The server gets a certificate that is accepted: only a check that still asks finds out.
    ours.issue("later", &wanted(&["127.0.0.1"]));
    for kind in ["pem", "key"] {
        let text = std::fs::read(ours.path(&format!("later.{kind}"))).expect("it was issued");
        other.write(&format!("back.{kind}"), text);
    }
    weir.error_line("is healthy");
    let series = format!(
        "weir_upstream_healthy{{upstream=\"app\",server=\"{}\"}}",
        bad.address()
    );
    eventually("it is healthy", || metric(&weir, &series) == 1);
    assert!(!has_panicked(&weir), "{}", weir.stderr());
}
