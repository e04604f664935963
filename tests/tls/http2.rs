//! HTTP/2 inside TLS, negotiated by ALPN: curl and h2load in front of weir, and the real nginx behind it.

use std::process::Command;

use crate::support::{Certs, Nginx, Origin, Weir, get, wanted};

fn certs() -> Certs {
    let certs = Certs::new();
    certs.issue("a", &wanted(&["a.example", "b.example", "127.0.0.1"]));
    certs.issue("one", &wanted(&["one"]).serial(1));
    certs.issue("two", &wanted(&["two"]).serial(2));
    certs
}

/// What is known of a request's connection.
const SAYS: &str =
    "$http2|$server_protocol|$ssl_alpn_protocol|$ssl_protocol|$scheme|$https|$connection_requests";

fn weir(certs: &Certs, origin: &Origin, more: &str) -> Weir {
    let yaml = format!(
        "servers:
  - listen: {{ address: LISTEN, tls: true }}
    server_name: a.example
    client_max_body_size: 0
    tls: {{ certificate: CERTS/a.pem, key: CERTS/a.key }}
    locations:
      - {{ path: /says, return: {{ status: 200, body: \"{SAYS}\" }} }}
      - {{ path: /, proxy_pass: \"http://ORIGIN\", proxy_set_header: {{ X-Proto: \"$scheme $http2\" }} }}
{more}"
    );
    Weir::before(origin, &certs.filled(&yaml))
}

#[test]
fn clients_negotiate_the_protocols_they_support() {
    let certs = certs();
    let weir = weir(&certs, &Origin::start(), "");
    let url = format!("https://a.example:{}/says", weir.port());
    let both = "h2|HTTP/2.0|h2|TLSv1.3|https|on|";
    let said = certs.fetch(&["--http2", &url, &url]);
    assert_eq!(said, format!("{both}1{both}2"));
    let said = certs.fetch(&["--http2", "--tls-max", "1.2", &url]);
    assert_eq!(said, "h2|HTTP/2.0|h2|TLSv1.2|https|on|1");
    let said = certs.fetch(&["--http1.1", &url]);
    assert_eq!(said, "|HTTP/1.1|http/1.1|TLSv1.3|https|on|1");
    let said = certs.fetch(&["--no-alpn", &url]);
    assert_eq!(said, "|HTTP/1.1||TLSv1.3|https|on|1");
}

#[test]
fn bodies_pass_both_ways_over_http2() {
    let certs = certs();
    let origin = Origin::start();
    let weir = weir(&certs, &origin, "");
    let url = |path: &str| format!("https://a.example:{}{path}", weir.port());
    let whole = certs.curl(&["--http2", &url("/bytes?n=5000000")]);
    assert_eq!(whole.stdout.len(), 5_000_000);
    certs.write("sent", vec![b'x'; 3_000_000]);
    certs.fetch(&["--http2", "--data-binary", "@CERTS/sent", &url("/up")]);
    let seen = origin.seen().pop().expect("it came");
    assert!(seen.complete && seen.length == 3_000_000);
    assert_eq!(seen.head.get("x-proto"), Some("https h2"));
    assert_eq!(seen.head.get("x-forwarded-proto"), Some("https"));
}

#[test]
fn many_streams_at_once() {
    let certs = certs();
    let weir = weir(&certs, &Origin::start(), "");
    let url = format!("https://127.0.0.1:{}/bytes?n=20000", weir.port());
    let output = Command::new("h2load")
        .args(["-n", "200", "-c", "4", "-m", "10", &url])
        .output()
        .expect("h2load is installed");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("Application protocol: h2\n"), "{said}");
    assert!(said.contains("200 succeeded, 0 failed"), "{said}");
    assert!(said.contains("status codes: 200 2xx"), "{said}");
}

#[test]
fn where_it_is_off_it_is_not_offered() {
    let certs = certs();
    let origin = Origin::start();
    let other = "  - listen: { address: LISTEN, tls: true }
    server_name: b.example
    http2: off
    tls: { certificate: CERTS/a.pem, key: CERTS/a.key }
    return: { status: 200, body: $ssl_alpn_protocol }
";
    let some = weir(&certs, &origin, other);
    let version = ["--http2", "--write-out", " %{http_version}"];
    let fetch = |weir: &Weir, host: &str| {
        let url = format!("https://{host}:{}/ok", weir.port());
        certs.fetch(&[&version[..], &[&url]].concat())
    };
    assert_eq!(fetch(&some, "a.example"), "ok 2");
    assert_eq!(fetch(&some, "b.example"), "http/1.1 1.1");
    // The default server's word holds for the others of its address.
    let none = weir(&certs, &origin, &other.replace("off", "on"));
    assert_eq!(fetch(&none, "b.example"), "h2 2");
    let yaml = "    http2: off\n".to_owned() + &other.replace("off", "on");
    let none = weir(&certs, &origin, &yaml);
    assert_eq!(fetch(&none, "a.example"), "ok 1.1");
    assert_eq!(fetch(&none, "b.example"), "http/1.1 1.1");
}

/// As nginx's old `listen … http2`: one address speaks it, another of the same server does not.
#[test]
fn an_address_may_have_its_own_word() {
    let certs = certs();
    let weir = Weir::start(&certs.filled(
        "http2: off
servers:
  - listen: [ LISTEN ssl http2, { address: LISTEN2, tls: true } ]
    server_name: a.example
    tls: { certificate: CERTS/a.pem, key: CERTS/a.key }
    return: { status: 200, body: $ssl_alpn_protocol }
",
    ));
    for (address, expected) in [
        (weir.address(), "h2 2"),
        (weir.second_address(), "http/1.1 1.1"),
    ] {
        let url = format!("https://a.example:{}/", address.port());
        let fetched = certs.fetch(&["--http2", "--write-out", " %{http_version}", &url]);
        assert_eq!(fetched, expected, "{address}");
    }
}

#[test]
fn a_certificate_is_the_key_of_a_limit_on_every_stream() {
    let certs = certs();
    let weir = Weir::start(&certs.filled(
        "limit_req_zones: { percert: { key: $ssl_client_fingerprint, rate: 1r/m } }
servers:
  - listen: { address: LISTEN, tls: true }
    tls: { certificate: CERTS/a.pem, key: CERTS/a.key, client_ca: CERTS/ca.pem, verify_client: on }
    limit_req: { zone: percert }
    return: 204
",
    ));
    let url = format!("https://a.example:{}/", weir.port());
    let status = "%{http_version} %{http_code},";
    let ask = |more: &[&str]| {
        certs.fetch(&[&["--http2", "--write-out", status, "-o", "/dev/null"], more].concat())
    };
    let again = [url.as_str(), "-o", "/dev/null", &url];
    let shown = |name: &str| {
        let files = [format!("CERTS/{name}.pem"), format!("CERTS/{name}.key")];
        ask(&[&["--cert", &files[0], "--key", &files[1]], &again[..]].concat())
    };
    assert_eq!(shown("one"), "2 204,2 429,");
    assert_eq!(shown("two"), "2 204,2 429,");
    assert!(ask(&[&url]).ends_with(" 400,"));
}

/// A backend that says how it was met.
fn backend(certs: &Certs, speaks: &str) -> Nginx {
    let http = certs.filled(&format!(
        "server {{
            listen LISTEN ssl {speaks}; ssl_certificate CERTS/a.pem; ssl_certificate_key CERTS/a.key;
            location / {{ return 200 \"$http2|$ssl_server_name|$scheme|$host|$connection\"; }}
            location /big {{ proxy_pass http://ORIGIN/bytes?n=3000000; }}
        }}"
    ));
    Nginx::before(&Origin::start(), &http)
}

fn before(certs: &Certs, nginx: &Nginx) -> Weir {
    let yaml = "proxy_ssl_trusted_certificate: CERTS/ca.pem
workers: 1
servers:
  - listen: LISTEN
    proxy_http_version: 2
    locations:
      - { path: /, proxy_pass: \"https://127.0.0.1:BACK\", proxy_ssl_name: a.example }
      - { path: /other, proxy_pass: \"https://127.0.0.1:BACK\", proxy_ssl_name: b.example }
      - { path: /untrusted, proxy_pass: \"https://127.0.0.1:BACK\", proxy_ssl_name: c.example }
      - { path: /old, proxy_pass: \"https://127.0.0.1:BACK\", proxy_http_version: 1.1 }
      - { path: /grpc, grpc_pass: \"grpcs://127.0.0.1:BACK\" }
";
    let port = nginx.address().port().to_string();
    Weir::start(&certs.filled(&yaml.replace("BACK", &port)))
}

#[test]
fn a_backend_is_spoken_to_in_http2_inside_tls() {
    let certs = certs();
    let nginx = backend(&certs, "http2");
    let weir = before(&certs, &nginx);
    let ask = |path: &str| get(weir.address(), path).text();
    let first = ask("/");
    assert!(
        first.starts_with("h2|a.example|https|localhost|"),
        "{first}"
    );
    assert_eq!(ask("/"), first, "over the same connection");
    // Not over a connection on which another name was verified.
    let other = ask("/other");
    assert!(other.starts_with("h2|b.example|https|"), "{other}");
    assert_ne!(other.rsplit('|').next(), first.rsplit('|').next());
    assert!(ask("/old").starts_with("||https|"));
    assert!(ask("/grpc").starts_with("h2||https|"));
    assert_eq!(get(weir.address(), "/big").body.len(), 3_000_000);
    assert_eq!(get(weir.address(), "/untrusted").status, 502);
    weir.error_line("upstream SSL certificate does not match \"c.example\"");
}

#[test]
fn a_backend_that_does_not_speak_http2_is_refused() {
    let certs = certs();
    let nginx = backend(&certs, "");
    let weir = before(&certs, &nginx);
    assert_eq!(get(weir.address(), "/").status, 502);
    let line = weir.error_line("upstream does not speak HTTP/2");
    assert!(line.contains("while SSL handshaking to upstream"), "{line}");
    assert_eq!(get(weir.address(), "/old").status, 200);
}
