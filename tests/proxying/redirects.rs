//! The `Host` that backends get, and how their redirects are rewritten, compared with nginx.

use crate::support::{Client, Nginx, Origin, Weir};

/// The `Host` that a backend is sent for a request in these words.
fn host_sent(pass: &str, request: &str) -> Option<String> {
    let origin = Origin::start();
    let yaml = format!(
        "upstreams: {{ app: {{ servers: ORIGIN }} }}\nservers: [{{ listen: LISTEN, {pass} }}]"
    );
    let weir = Weir::before(&origin, &yaml);
    let mut client = Client::connect(weir.address());
    client.send(request.replace('\n', "\r\n"));
    assert_eq!(client.response().status, 200);
    let address = origin.address().to_string();
    let head = origin.only().head;
    head.get("host")
        .map(|host| host.replace(&address, "ORIGIN"))
}

#[test]
fn a_backend_is_asked_for_the_host_the_client_asks_for() {
    let asked = "GET /ok HTTP/1.1\nHost: Shop.test:81\n\n";
    for pass in [
        "proxy_pass: app",
        "proxy_pass: 'http://app'",
        "proxy_pass: 'http://ORIGIN/'",
    ] {
        assert_eq!(
            host_sent(pass, asked).as_deref(),
            Some("Shop.test:81"),
            "{pass}"
        );
    }
    let absolute = "GET http://shop.test:81/ok HTTP/1.1\nHost: shop.test:81\n\n";
    let sent = host_sent("proxy_pass: app", absolute);
    assert_eq!(sent.as_deref(), Some("shop.test:81"));
}

/// HTTP/1.1 to the backend needs one, where HTTP/1.0 of the client does not.
#[test]
fn without_a_host_a_backend_is_asked_for_by_its_own_name() {
    let asked = "GET /ok HTTP/1.0\n\n";
    assert_eq!(host_sent("proxy_pass: app", asked).as_deref(), Some("app"));
    let sent = host_sent("proxy_pass: 'http://ORIGIN'", asked);
    assert_eq!(sent.as_deref(), Some("ORIGIN"));
    let absolute = "GET http://shop.test/ok HTTP/1.0\n\n";
    let sent = host_sent("proxy_pass: app", absolute);
    assert_eq!(sent.as_deref(), Some("shop.test"));
}

#[test]
fn a_host_header_that_is_set_stays() {
    let asked = "GET /ok HTTP/1.1\nHost: shop.test:81\n\n";
    for (value, sent) in [
        ("$proxy_host", "ORIGIN"),
        ("$host", "shop.test"),
        ("other.test", "other.test"),
    ] {
        let pass = format!("proxy_pass: 'http://ORIGIN', proxy_set_header: {{ Host: {value} }}");
        assert_eq!(host_sent(&pass, asked).as_deref(), Some(sent));
    }
}

/// The same rules in both, with nginx's redirects relative as weir's are.
const NGINX: &str = "absolute_redirect off;
    upstream app { server ORIGIN; }
    server { listen LISTEN; server_name shop.test;
        location / { proxy_pass http://app; }
        location /two/ { proxy_pass http://app/; }
        location /three/ { proxy_pass http://app/fields; }
        location = /exact { proxy_pass http://app/fields; }
        location ~ ^/regex/(.*) { proxy_pass http://app; proxy_redirect default; }
        location /off/ { proxy_pass http://app/; proxy_redirect off; }
        location /pairs/ { proxy_pass http://app/;
            proxy_redirect http://a/ /b/; proxy_redirect default; proxy_redirect http:// https://; }
        location /expressions/ { proxy_pass http://app/;
            proxy_redirect ~^http://(?<name>[a-z]+)\\.example/(.*)$ https://$name.$host/$2;
            proxy_redirect ~*^HTTP://B/ /folded; }
        location /variables/ { proxy_pass http://app/; proxy_redirect http://$proxy_host/ http://$host/$arg_to/; }
    }";

const WEIR: &str = "upstreams: { app: { servers: ORIGIN } }
proxy_set_header: { Host: $proxy_host }
servers:
- listen: LISTEN
  server_name: shop.test
  locations:
  - { path: /, proxy_pass: 'http://app' }
  - { path: /two/, proxy_pass: 'http://app/' }
  - { path: /three/, proxy_pass: 'http://app/fields' }
  - { path: = /exact, proxy_pass: 'http://app/fields' }
  - { path: '~ ^/regex/(.*)', proxy_pass: 'http://app', proxy_redirect: default }
  - { path: /off/, proxy_pass: 'http://app/', proxy_redirect: off }
  - path: /pairs/
    proxy_pass: http://app/
    proxy_redirect: [['http://a/', /b/], default, 'http:// https://']
  - path: /expressions/
    proxy_pass: http://app/
    proxy_redirect:
    - ['~^http://(?<name>[a-z]+)\\.example/(.*)$', 'https://$name.$host/$2']
    - '~*^HTTP://B/ /folded'
  - { path: /variables/, proxy_pass: 'http://app/', proxy_redirect: ['http://$proxy_host/', 'http://$host/$arg_to/'] }
";

#[test]
fn redirects_lead_where_nginx_leads_them() {
    let origin = Origin::start();
    let (nginx, weir) = (Nginx::before(&origin, NGINX), Weir::before(&origin, WEIR));
    let paths = [
        "/fields",
        "/two/fields",
        "/three/",
        "/exact",
        "/off/fields",
        "/pairs/fields",
        "/expressions/fields",
        "/variables/fields",
    ];
    let values = [
        "http://app/",
        "http://app/x",
        "http://app/fields/x",
        "http://app",
        "http://APP/x",
        "https://app/x",
        "/x",
        "x",
        "//app/x",
        "http://a/x",
        "http://a.example/x/y",
        "http://b/x",
    ];
    let mut changed = 0;
    for path in paths {
        for value in values {
            for field in ["location", "refresh"] {
                let sent = match field {
                    "refresh" => format!("5;Url={value}"),
                    _ => value.to_owned(),
                };
                let target = format!("{path}?{field}={sent}&to=there");
                let led = |address| {
                    let mut client = Client::connect(address);
                    client.send(format!("GET {target} HTTP/1.1\r\nHost: shop.test\r\n\r\n"));
                    let response = client.response();
                    response.get(field).unwrap_or_default().to_owned()
                };
                let (expected, found) = (led(nginx.address()), led(weir.address()));
                assert_eq!(found, expected, "{target}");
                changed += usize::from(found != sent);
            }
        }
    }
    assert!(changed > 20, "only {changed} were changed");
}
