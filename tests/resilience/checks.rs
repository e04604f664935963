//! Active health checks.

use std::process::Command;

use super::{before, is_healthy, metric, until_healthy};
use crate::support::ports::Port;
use crate::support::process::Process;
use crate::support::{Certs, Nginx, Origin, Weir, eventually, get, wanted};

const QUICK: &str = "interval: 20ms, timeout: 5s, rise: 2, fall: 2";

/// How many requests other than checks have come.
fn asked(origin: &Origin) -> usize {
    let seen = origin.seen();
    seen.iter()
        .filter(|seen| seen.head.word(1) != "/healthz")
        .count()
}

#[test]
fn an_unhealthy_server_gets_no_requests_until_it_recovers() {
    let (well, ill) = (Origin::named("well"), Origin::named("ill"));
    ill.script("/healthz", "/status?code=503");
    let weir = before(
        &[&well, &ill],
        &format!("health_check: {{ path: /healthz, {QUICK} }}"),
        "proxy_pass: app",
    );
    until_healthy(&weir, &ill, false);
    let before = asked(&ill);
    for _ in 0..6 {
        assert_eq!(get(weir.address(), "/ok").get("x-origin"), Some("well"));
    }
    assert_eq!(asked(&ill), before);
    let api = get(weir.admin_address(), "/api/upstreams").text();
    let listed: serde_json::Value = serde_json::from_str(&api).expect("JSON");
    assert_eq!(listed[0]["name"], "app");
    assert_eq!(listed[0]["servers"][0]["healthy"], true);
    assert_eq!(listed[0]["servers"][1]["healthy"], false);
    assert_eq!(listed[0]["servers"][1]["up"], false);

    ill.recover();
    until_healthy(&weir, &ill, true);
    eventually("it is asked again", || {
        get(weir.address(), "/ok").get("x-origin") == Some("ill")
    });
    assert!(
        weir.error_line("is unhealthy")
            .contains("unexpected status 503")
    );
    weir.error_line("is healthy");
    let said = weir.stderr();
    assert_eq!(said.matches("is unhealthy").count(), 1, "once: {said}");
    assert_eq!(said.matches("is healthy").count(), 1, "once: {said}");
}

#[test]
fn without_a_healthy_server_the_response_is_503_at_once() {
    let origin = Origin::start();
    origin.script("/healthz", "/status?code=500");
    let weir = before(
        &[&origin],
        "health_check: { path: /healthz, interval: 20ms, timeout: 20s, fall: 1, rise: 1 }",
        "proxy_pass: app",
    );
    until_healthy(&weir, &origin, false);
    let before = asked(&origin);
    let answer = get(weir.address(), "/ok");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.get("retry-after"), Some("1"));
    assert_eq!(asked(&origin), before, "it is not even asked");
    origin.recover();
    until_healthy(&weir, &origin, true);
    assert_eq!(get(weir.address(), "/ok").status, 200);
}

#[test]
fn the_body_and_the_status_have_to_be_as_expected() {
    let origins = [(); 4].map(|()| Origin::start());
    let [text, expression, missing, status] = &origins;
    let check =
        |expect: &str| format!("health_check: {{ path: /healthz, expect: {expect}, {QUICK} }}");
    let group = |origin: &Origin, expect: &str| {
        format!("{{ servers: ['{}'], {} }}", origin.address(), check(expect))
    };
    let weir = Weir::start(&format!(
        "admin: {{ listen: ADMIN }}
upstreams:
  text: {}
  expression: {}
  missing: {}
  status: {}
servers:
- listen: LISTEN
  locations:
  - {{ path: /a, proxy_pass: text }}
  - {{ path: /b, proxy_pass: expression }}
  - {{ path: /c, proxy_pass: missing }}
  - {{ path: /d, proxy_pass: status }}
",
        group(text, "{ body: ok }"),
        group(expression, "{ status: 200, body: '~ ^o.$' }"),
        group(missing, "{ body: fine }"),
        group(status, "{ status: [204, 300-399] }"),
    ));
    until_healthy(&weir, missing, false);
    until_healthy(&weir, status, false);
    for origin in [text, expression] {
        let server = format!("server=\"{}\"", origin.address());
        let passed =
            || metric(&weir, "weir_upstream_checks_total", &[&server, "pass"]).unwrap_or(0);
        eventually("some checks", || passed() > 2);
        assert!(is_healthy(&weir, origin));
    }
    status.script("/healthz", "/status?code=204");
    until_healthy(&weir, status, true);
    assert!(
        weir.error_line(&missing.address().to_string())
            .contains("body does not match")
    );
}

#[test]
fn a_server_that_starts_down_gets_no_request_before_its_first_check() {
    let origin = Origin::start();
    origin.script("/healthz", "/hold?gate=check");
    let weir = before(
        &[&origin],
        "health_check: { path: /healthz, interval: 20ms, timeout: 60s, initial: down }",
        "proxy_pass: app",
    );
    origin.gates().await_waiting("check", 1);
    assert_eq!(get(weir.address(), "/ok").status, 503);
    origin.gates().open("check");
    until_healthy(&weir, &origin, true);
    assert_eq!(get(weir.address(), "/ok").status, 200);
}

#[test]
fn a_health_check_sends_the_configured_request() {
    let origin = Origin::start();
    let weir = before(
        &[&origin],
        "health_check: { path: '/healthz?deep=1', method: HEAD, host: inside.example, interval: 20ms }",
        "proxy_pass: app",
    );
    origin.await_count(1);
    let seen = &origin.seen()[0];
    assert_eq!(seen.head.line, "HEAD /healthz?deep=1 HTTP/1.1");
    assert_eq!(seen.head.get("host"), Some("inside.example"));
    assert_eq!(seen.head.get("user-agent"), Some("weir-health-check"));
    assert_eq!(seen.head.get("connection"), Some("close"));
    assert!(is_healthy(&weir, &origin));
}

#[test]
fn a_connection_is_enough_for_tcp_and_another_port_may_be_asked() {
    let (origin, side) = (Origin::start(), Port::claim());
    let weir = before(
        &[&origin],
        &format!(
            "health_check: {{ type: tcp, port: {}, interval: 20ms, fall: 1, rise: 1 }}",
            side.number()
        ),
        "proxy_pass: app",
    );
    until_healthy(&weir, &origin, false);
    assert!(
        weir.error_line("is unhealthy")
            .contains("Connection refused")
    );
    let _listener = std::net::TcpListener::bind(side.address()).expect("it is ours");
    until_healthy(&weir, &origin, true);
    assert_eq!(origin.connections(), 0);
}

/// A gRPC server that says of itself what the file `health` says.
fn grpc_server(directory: &std::path::Path) -> (Process, Port) {
    let port = Port::claim();
    let mut command = Command::new("/usr/bin/python3");
    command
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/support/health_server.py"
        ))
        .arg(port.address().to_string())
        .arg(directory.join("health"));
    let home = tempfile::tempdir().expect("the temporary directory can be written");
    let mut server = Process::spawn("grpc server", command, home);
    assert!(server.accepts(port.address()), "{}", server.file("stderr"));
    (server, port)
}

#[test]
fn a_grpc_server_is_asked_in_grpcs_own_way() {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let say = |status: &str| {
        let next = directory.path().join("next");
        std::fs::write(&next, status).expect("the directory can be written");
        std::fs::rename(next, directory.path().join("health")).expect("it is there");
    };
    say("1");
    let (_server, port) = grpc_server(directory.path());
    let weir = Weir::start(&format!(
        "admin: {{ listen: ADMIN }}
upstreams:
  whole: {{ servers: ['{0}'], health_check: {{ type: grpc, {QUICK} }} }}
  part: {{ servers: ['{0}'], health_check: {{ type: grpc, service: shop.Cart, {QUICK} }} }}
  unknown: {{ servers: ['{0}'], health_check: {{ type: grpc, service: no.Such, {QUICK} }} }}
servers:
- listen: LISTEN
  locations:
  - {{ path: /a, grpc_pass: whole }}
  - {{ path: /b, grpc_pass: part }}
  - {{ path: /c, grpc_pass: unknown }}
",
        port.address()
    ));
    let healthy = |upstream: &str| {
        let label = format!("upstream=\"{upstream}\"");
        metric(&weir, "weir_upstream_healthy", &[&label])
    };
    let passed = |upstream: &str| {
        let label = format!("upstream=\"{upstream}\"");
        metric(&weir, "weir_upstream_checks_total", &[&label, "pass"]).unwrap_or(0)
    };
    eventually("an unknown service is not served", || {
        healthy("unknown") == Some(0)
    });
    eventually("checks that went well", || {
        passed("whole") > 2 && passed("part") > 2
    });
    assert_eq!((healthy("whole"), healthy("part")), (Some(1), Some(1)));
    say("2");
    eventually("it says it is not serving", || {
        healthy("whole") == Some(0) && healthy("part") == Some(0)
    });
    say("1");
    eventually("and serves again", || {
        healthy("whole") == Some(1) && healthy("part") == Some(1)
    });
    assert!(weir.error_line("grpc-status 5").contains("unhealthy"));
    assert!(weir.error_line("not serving").contains("unhealthy"));
}

#[test]
fn servers_are_checked_as_they_are_met() {
    let certs = Certs::new();
    certs.issue("back", &wanted(&["back.example"]));
    let http = certs.filled(
        "server { listen LISTEN ssl http2; ssl_certificate CERTS/back.pem; ssl_certificate_key CERTS/back.key;
            location / { return 200 \"$server_protocol $ssl_server_name\"; } }",
    );
    let backend = Nginx::before(&Origin::start(), &http);
    let weir = Weir::start(&certs.filled(&format!(
        "admin: {{ listen: ADMIN }}
upstreams:
  one: {{ servers: ['{0}'], health_check: {{ expect: {{ body: HTTP/1.1 back.example }}, {QUICK} }} }}
  two: {{ servers: ['{0}'], health_check: {{ expect: {{ body: HTTP/2.0 back.example }}, {QUICK} }} }}
  wrong: {{ servers: ['{0}'], health_check: {{ tls: off, {QUICK} }} }}
servers:
- listen: LISTEN
  proxy_ssl_trusted_certificate: CERTS/ca.pem
  proxy_ssl_name: back.example
  locations:
  - {{ path: /one, proxy_pass: 'https://one' }}
  - {{ path: /two, proxy_pass: 'https://two', proxy_http_version: 2 }}
  - {{ path: /wrong, proxy_pass: 'https://wrong' }}
",
        backend.address()
    )));
    let of = |upstream: &str, name: &str, more: &str| {
        metric(&weir, name, &[&format!("upstream=\"{upstream}\""), more])
    };
    eventually("plain HTTP to TLS is refused", || {
        of("wrong", "weir_upstream_healthy", "") == Some(0)
    });
    for upstream in ["one", "two"] {
        eventually("checks that went well", || {
            of(upstream, "weir_upstream_checks_total", "pass") > Some(2)
        });
        assert_eq!(
            of(upstream, "weir_upstream_healthy", ""),
            Some(1),
            "{}",
            weir.stderr()
        );
    }
}

/// One bad check after each good one is neither a rise nor a fall.
#[test]
fn a_server_that_flaps_between_checks_keeps_its_state() {
    let flapping = Origin::start();
    flapping.script("/healthz", "/flap");
    let weir = before(
        &[&flapping],
        &format!("health_check: {{ path: /healthz, {QUICK} }}"),
        "proxy_pass: app",
    );
    flapping.await_count(20);
    assert!(is_healthy(&weir, &flapping));
    let server = format!("server=\"{}\"", flapping.address());
    for result in ["result=\"pass\"", "result=\"fail\""] {
        let checks = metric(&weir, "weir_upstream_checks_total", &[&server, result]);
        assert!(
            checks.is_some_and(|checks| checks >= 5),
            "{result} {checks:?}"
        );
    }
    assert!(!weir.stderr().contains("is unhealthy"));
}
