//! gRPC through weir, with gRPC's own client and server.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::ports::Port;
use crate::support::process::Process;
use crate::support::{Certs, Client, Origin, PATIENCE, Weir, eventually, get, wanted};

const PYTHON: &str = "/usr/bin/python3";

/// Calls go on as they are, in vain on the second address.
const PLAIN: &str = "log: { access: { path: '-', format: '$request|$status|$sent_http_grpc_status' } }
limit_req_zones: { rate: { key: $binary_remote_addr, size: 1m, rate: 1r/m } }
limit_conn_zones: { places: { key: $binary_remote_addr, size: 1m } }
servers:
- listen: LISTEN
  client_max_body_size: 20m
  locations:
  - { path: /test.Test/, grpc_pass: 'grpc://BACKEND' }
  - { path: = /test.Test/Count, limit_req: { zone: rate, nodelay: true }, grpc_pass: 'grpc://BACKEND' }
  - { path: = /test.Test/Total, client_max_body_size: 1m, grpc_pass: 'grpc://BACKEND' }
- listen: LISTEN2
  locations:
  - { path: = /test.Test/Echo, grpc_pass: 'grpc://127.0.0.1:1' }
  - { path: = /test.Test/Sleep, proxy_read_timeout: 1s, grpc_pass: 'grpc://BACKEND' }
  - { path: = /test.Test/Fail, deny: all, grpc_pass: 'grpc://BACKEND' }
";

/// A backend, and weir before it.
struct Scene {
    _server: Process,
    _port: Port,
    weir: Weir,
}

impl Scene {
    fn start() -> Self {
        Self::before(&[], PLAIN)
    }

    /// Before a backend with these arguments.
    fn before(arguments: &[PathBuf], yaml: &str) -> Self {
        let port = Port::claim();
        Self {
            _server: serve(&port, arguments),
            weir: Weir::start(&yaml.replace("BACKEND", &port.address().to_string())),
            _port: port,
        }
    }

    /// What the client prints after this.
    fn call(&self, what: &[&str]) -> String {
        call(&self.weir.address().to_string(), None, what)
    }

    /// The same where everything is in the way.
    fn call_in_vain(&self, what: &[&str]) -> String {
        call(&self.weir.second_address().to_string(), None, what)
    }
}

/// A backend at this port with these arguments.
fn serve(port: &Port, arguments: &[PathBuf]) -> Process {
    let mut command = Command::new(PYTHON);
    command
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/support/grpc_server.py"
        ))
        .arg(port.address().to_string())
        .args(arguments);
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let mut server = Process::spawn("grpc server", command, directory);
    assert!(server.accepts(port.address()), "{}", server.file("stderr"));
    server
}

fn call(address: &str, roots: Option<&Path>, what: &[&str]) -> String {
    let output = Command::new(PYTHON)
        .envs(roots.map(|roots| ("ROOTS", roots)))
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/support/grpc_client.py"
        ))
        .arg(address)
        .args(what)
        .output()
        .expect("python is installed");
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn calls_of_all_four_kinds_pass() {
    let scene = Scene::start();
    assert!(scene.call(&["echo", "hi"]).starts_with("OK hi"));
    let trailers = scene.call(&["trailers", "behind"]);
    assert!(trailers.contains("'x-trailed': 'behind'"), "{trailers}");
    assert_eq!(scene.call(&["two_ways"]), "OK ONE TWO THREE\n");
    assert_eq!(scene.call(&["count", "1000"]), "OK 1000\n");
    assert_eq!(scene.call(&["total", "9"]), "OK 900000\n");
    assert_eq!(scene.call(&["many", "300"]), "OK 300\n");
    let failed = scene.call(&["fail"]);
    let expected = "FAILED_PRECONDITION | not like this: 100% \u{fc} |";
    assert!(failed.starts_with(expected), "{failed}");
    assert!(scene.call(&["unknown"]).starts_with("UNIMPLEMENTED"));
}

#[test]
fn a_refusal_has_grpcs_status() {
    let scene = Scene::start();
    assert_eq!(scene.call(&["count", "3"]), "OK 3\n");
    let refused = scene.call(&["count", "3"]);
    assert!(refused.starts_with("RESOURCE_EXHAUSTED"), "{refused}");
    let wait = refused
        .split("'retry-after': '")
        .nth(1)
        .and_then(|rest| rest.split('\'').next())
        .and_then(|seconds| seconds.parse::<u32>().ok());
    assert!(
        wait.is_some_and(|wait| (1..=60).contains(&wait)),
        "{refused}"
    );
    assert!(refused.contains("'grpc-retry-pushback-ms'"), "{refused}");
    assert!(
        scene
            .call(&["total", "20"])
            .starts_with("RESOURCE_EXHAUSTED")
    );
    for (what, code) in [
        (["echo", "x"], "UNAVAILABLE"),
        (["no_deadline", "30"], "DEADLINE_EXCEEDED"),
        (["count", "1"], "UNIMPLEMENTED"),
        (["fail", ""], "PERMISSION_DENIED"),
    ] {
        let told = scene.call_in_vain(&what);
        assert!(told.starts_with(code), "{what:?}: {told}");
    }
    eventually("it is logged", || scene.weir.stdout().contains("|200|14"));
}

#[test]
fn deadlines_and_cancels_reach_the_backend() {
    let scene = Scene::start();
    assert!(
        scene
            .call(&["deadline", "0.5"])
            .starts_with("DEADLINE_EXCEEDED")
    );
    let dripped = scene.call(&["drip", "5"]);
    assert!(
        dripped.contains("got 5") && dripped.contains("DEADLINE_EXCEEDED"),
        "{dripped}"
    );
    assert!(scene.call(&["cancel"]).starts_with("OK yes"));
}

#[test]
fn calls_pass_inside_tls() {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["a.example", "127.0.0.1"]));
    let yaml = "proxy_ssl_trusted_certificate: CERTS/ca.pem
servers:
- listen: { address: LISTEN, tls: true }
  tls: { certificate: CERTS/a.pem, key: CERTS/a.key }
  grpc_pass: 'grpcs://BACKEND'
";
    let own = [certs.path("a.pem"), certs.path("a.key")];
    let scene = Scene::before(&own, &certs.filled(yaml));
    let address = scene.weir.address().to_string();
    let call = |what: &[&str]| call(&address, Some(&certs.path("ca.pem")), what);
    assert!(call(&["echo", "hi"]).starts_with("OK hi"));
    assert_eq!(call(&["two_ways"]), "OK ONE TWO THREE\n");
    assert_eq!(call(&["many", "300"]), "OK 300\n");
    assert!(call(&["fail"]).starts_with("FAILED_PRECONDITION"));
}

#[test]
fn a_backend_with_a_certificate_that_is_not_accepted_is_unavailable() {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["127.0.0.1"]));
    let own = [certs.path("a.pem"), certs.path("a.key")];
    let scene = Scene::before(
        &own,
        "log: { access: { path: '-', format: '$status|$upstream_status' } }
servers: [{ listen: LISTEN, grpc_pass: 'grpcs://BACKEND' }]
",
    );
    for _ in 0..3 {
        let told = scene.call(&["echo", "hi"]);
        assert!(told.starts_with("UNAVAILABLE"), "{told}");
    }
    scene.weir.access_line("200|502");
    scene
        .weir
        .error_line("upstream SSL certificate verify error");
    assert!(!scene.weir.stderr().contains("panicked"));
}

/// Two backends, of which only the second has a certificate that weir accepts.
struct Pair {
    ours: Certs,
    ports: [Port; 2],
    bad: Process,
    _good: Process,
    weir: Weir,
}

impl Pair {
    fn before(upstream: &str) -> Self {
        let (ours, other) = (Certs::new(), Certs::named("Another authority"));
        let ports = [Port::claim(), Port::claim()];
        let [bad, good] = [(&other, &ports[0]), (&ours, &ports[1])].map(|(authority, port)| {
            authority.issue("back", &wanted(&["127.0.0.1"]));
            serve(
                port,
                &[authority.path("back.pem"), authority.path("back.key")],
            )
        });
        let yaml = format!(
            "log: {{ access: {{ path: '-', format: '$status|$upstream_status' }} }}
admin: {{ listen: ADMIN }}
proxy_ssl_trusted_certificate: CERTS/ca.pem
proxy_ssl_name: 127.0.0.1
upstreams: {{ app: {upstream} }}
servers: [{{ listen: LISTEN, grpc_pass: 'grpcs://app' }}]
"
        );
        let yaml = yaml
            .replace("BAD", &ports[0].address().to_string())
            .replace("GOOD", &ports[1].address().to_string());
        let weir = Weir::start(&ours.filled(&yaml));
        Self {
            ours,
            ports,
            bad,
            _good: good,
            weir,
        }
    }

    /// Makes calls, all of which go well.
    fn call(&self, times: usize) {
        for _ in 0..times {
            let told = call(&self.weir.address().to_string(), None, &["echo", "hi"]);
            assert!(told.starts_with("OK hi"), "{told}");
        }
    }
}

#[test]
fn a_call_goes_to_the_next_server_where_a_certificate_is_not_accepted() {
    let pair = Pair::before(
        "{ servers: [{ address: 'BAD', max_fails: 2, fail_timeout: 1h }, { address: 'GOOD' }] }",
    );
    pair.call(6);
    pair.weir.access_line("200|502, 200");
    pair.weir.error_line("upstream server temporarily disabled");
    let said = pair.weir.stderr();
    assert_eq!(
        said.matches("certificate verify error").count(),
        2,
        "{said}"
    );
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_health_check_notices_when_a_certificate_is_accepted_at_last() {
    let mut pair = Pair::before(
        "{ servers: ['BAD', 'GOOD'], health_check: { type: grpc, interval: 20ms, timeout: 5s, rise: 1, fall: 1 } }",
    );
    let line = pair.weir.error_line("is unhealthy");
    let bad = pair.ports[0].address().to_string();
    assert!(line.contains(&bad), "{line}");
    assert!(line.contains("certificate verify error"), "{line}");
    pair.call(2);
    pair.bad.signal("KILL");
    pair.bad.wait(PATIENCE);
    let own = [pair.ours.path("back.pem"), pair.ours.path("back.key")];
    pair.bad = serve(&pair.ports[0], &own);
    let line = pair.weir.error_line("is healthy");
    assert!(line.contains(&bad), "{line}");
    pair.call(2);
    assert!(!pair.weir.stderr().contains("panicked"));
}

/// How long a client waits is its own business: it must not be able to take a backend away from others with it.
#[test]
fn a_deadline_holds_before_any_backend_and_speaks_against_none() {
    let (one, two) = (Origin::start(), Origin::start());
    let weir = Weir::start(&format!(
        "upstreams: {{ app: {{ servers: [{{ address: '{}' }}, {{ address: '{}' }}] }} }}
servers: [{{ listen: LISTEN, proxy_pass: app }}]
",
        one.address(),
        two.address()
    ));
    for _ in 0..4 {
        let mut client = Client::connect(weir.address());
        client.send(
            "POST /hold?gate=g HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc\r\n\
             grpc-timeout: 100m\r\nContent-Length: 0\r\n\r\n",
        );
        let told = client.response();
        assert_eq!(told.status, 200);
        assert_eq!(told.head.get("grpc-status"), Some("4"));
    }
    for _ in 0..4 {
        assert_eq!(get(weir.address(), "/ok").status, 200);
    }
    assert!(!weir.stderr().contains("temporarily disabled"));
}

/// That a call has failed is often known only at its end, behind a body.
#[test]
fn a_call_that_fails_at_its_end_counts_for_breakers() {
    let scene = Scene::before(
        &[],
        "admin: { listen: ADMIN }
upstreams: { app: { breaker: { failures: 2, open_for: 1h }, servers: 'BACKEND' } }
servers:
- { listen: LISTEN, grpc_pass: app }
- { listen: LISTEN2, breaker: { failures: 2, open_for: 1h }, grpc_pass: 'grpc://BACKEND' }
",
    );
    let (first, second) = (scene.weir.address(), scene.weir.second_address());
    for (address, breaker) in [(first, "upstream"), (second, "location")] {
        let call = |what: &[&str]| call(&address.to_string(), None, what);
        for _ in 0..2 {
            let broken = call(&["break_off"]);
            let expected = "got something\nUNAVAILABLE | no more |";
            assert!(broken.starts_with(expected), "{broken}");
        }
        let page = get(scene.weir.admin_address(), "/metrics").text();
        let opened = page.lines().find(|line| {
            line.starts_with(&format!("weir_{breaker}_breaker_opened_total"))
                && line.ends_with(" 1")
        });
        assert!(opened.is_some(), "{page}");
        let refused = call(&["echo", "hi"]);
        assert!(refused.starts_with("UNAVAILABLE"), "{refused}");
        assert!(refused.contains("grpc-retry-pushback-ms"), "{refused}");
    }
}
