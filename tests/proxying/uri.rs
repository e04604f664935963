//! The target that the backend gets, compared with nginx's for the same request.

use crate::support::{Client, Nginx, Origin, Weir};

const TARGETS: [&str; 14] = [
    "/plain/ok",
    "/plain/a%20b/%2e%2e/c?q=%20&r=/../",
    "/plain//double/./dot/ok?",
    "/prefix/ok?a=1",
    "/prefix/",
    "/prefix/a%20b/ok",
    "/prefix/a%2fb/ok",
    "/prefix//x/../ok?keep=//x/../",
    "/root/ok",
    "/exact",
    "/exact?x=y",
    "/no-slash/ok",
    "/no-slashes",
    "/prefix/%41%3f%23%25/ok",
];

fn targets(origin: &Origin, address: std::net::SocketAddr) -> Vec<String> {
    for target in TARGETS {
        let mut client = Client::connect(address);
        client.get(target);
        assert_eq!(client.response().status, 200, "{target}");
    }
    origin
        .seen()
        .iter()
        .map(|seen| seen.head.word(1).to_owned())
        .collect()
}

#[test]
fn proxy_pass_with_and_without_a_uri_sends_what_nginx_sends() {
    let (before_nginx, before_weir) = (Origin::start(), Origin::start());
    let nginx = Nginx::before(
        &before_nginx,
        "server { listen LISTEN;
            location /plain/ { proxy_pass http://ORIGIN; }
            location /prefix/ { proxy_pass http://ORIGIN/v1/; }
            location /root/ { proxy_pass http://ORIGIN/; }
            location = /exact { proxy_pass http://ORIGIN/other; }
            location /no-slash { proxy_pass http://ORIGIN/v2; } }",
    );
    let weir = Weir::before(
        &before_weir,
        "servers:
- listen: LISTEN
  locations:
  - { path: /plain/, proxy_pass: 'http://ORIGIN' }
  - { path: /prefix/, proxy_pass: 'http://ORIGIN/v1/' }
  - { path: /root/, proxy_pass: 'http://ORIGIN/' }
  - { path: '= /exact', proxy_pass: 'http://ORIGIN/other' }
  - { path: /no-slash, proxy_pass: 'http://ORIGIN/v2' }
",
    );
    let by_nginx = targets(&before_nginx, nginx.address());
    let by_weir = targets(&before_weir, weir.address());
    for (target, (nginx, weir)) in TARGETS.iter().zip(by_nginx.iter().zip(&by_weir)) {
        assert_eq!(
            weir, nginx,
            "{target}: weir on the left, nginx on the right"
        );
    }
    assert_eq!(by_weir[3], "/v1/ok?a=1");
}

#[test]
fn an_absolute_target_goes_on_in_origin_form_unless_the_host_is_at_odds_with_it() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "servers:
- { listen: LISTEN, server_name: other.test, return: { status: 404 } }
- { listen: LISTEN, server_name: named.test, locations: [ { path: /, proxy_pass: 'http://ORIGIN' } ] }
",
    );
    let mut client = Client::connect(weir.address());
    client.send("GET http://named.test/ok?x HTTP/1.1\r\nHost: named.test\r\n\r\n");
    assert_eq!(client.response().status, 200);
    let head = origin.only().head;
    assert_eq!(head.word(1), "/ok?x");
    assert_eq!(head.get("x-forwarded-host"), Some("named.test"));

    client.send("GET http://named.test/ok?x HTTP/1.1\r\nHost: other.test\r\n\r\n");
    assert_eq!(client.response().status, 400);
    assert!(client.is_closed());
    assert_eq!(origin.count(), 1);
}
