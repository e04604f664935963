//! `return`: text from clients is escaped in responses of weir itself.

use crate::support::client::Response;
use crate::support::{Client, Nginx, Origin, Weir};

fn ask(weir: &Weir, target: &str, fields: &str) -> Response {
    let mut client = Client::connect(weir.address());
    client.send(format!(
        "GET {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"
    ));
    client.response()
}

#[test]
fn variables_are_escaped_for_the_content_type() {
    let origin = Origin::start().always("/reset");
    let weir = Weir::before(
        &origin,
        r#"servers:
- listen: LISTEN
  locations:
  - { path: /html, return: { body: '<p title="$http_x_name">', content_type: text/html } }
  - { path: /svg, return: { body: '<text>$http_x_name</text>', content_type: image/svg+xml } }
  - { path: /json, return: { body: '{"for":"$http_x_name"}', content_type: application/problem+json } }
  - { path: /script, return: { body: "f('$http_x_name')", content_type: text/javascript } }
  - { path: /plain, return: '200 for $http_x_name' }
  - path: /fallback
    proxy_pass: http://ORIGIN
    fallback: { return: { body: '<p>$http_x_name</p>', content_type: text/html; charset=utf-8 } }
"#,
    );
    let said = |path: &str| ask(&weir, path, "X-Name: \"><script>'\\&\r\n").text();
    let escaped = "&quot;&gt;&lt;script&gt;&#39;&#92;&amp;";
    assert_eq!(said("/html"), format!("<p title=\"{escaped}\">"));
    assert_eq!(said("/svg"), format!("<text>{escaped}</text>"));
    assert_eq!(said("/fallback"), format!("<p>{escaped}</p>"));
    assert_eq!(said("/json"), r#"{"for":"\"><script>'\\&"}"#);
    assert_eq!(
        said("/script"),
        r"f('\u0022\u003e\u003cscript\u003e\u0027\u005c\u0026')"
    );
    assert_eq!(said("/plain"), "for \"><script>'\\&");
}

/// nginx writes what `$uri` holds into the field as it is.
#[test]
fn no_value_gets_out_of_a_redirect() {
    let origin = Origin::start();
    let weir = Weir::start(
        "servers:
- listen: LISTEN
  locations:
  - { path: /path/, return: 301 $uri }
  - { path: /host/, return: 'https://a.example$uri' }
  - { path: /field/, return: { status: 302, url: 'https://a.example/?q=$http_x_name' } }
",
    );
    let location = |target: &str, fields: &str| {
        let answer = ask(&weir, target, fields);
        assert!(!answer.has("x-injected"), "{target}");
        answer.get("location").unwrap_or_default().to_owned()
    };
    let injected = "/%0d%0aX-Injected:%201";
    assert_eq!(
        location(&format!("/host{injected}"), ""),
        "https://a.example/host/%0D%0AX-Injected:%201"
    );
    assert_eq!(location("/path/..%5C..%5Ca", ""), "/path/..%5C..%5Ca");
    assert_eq!(location("/path/%22%3E%3Cb%3E", ""), "/path/%22%3E%3Cb%3E");
    assert_eq!(
        location("/field/", "X-Name: a \"b\" \u{e9}\r\n"),
        "https://a.example/?q=a%20%22b%22%20%C3%A9"
    );
    let nginx = Nginx::before(
        &origin,
        "server { listen LISTEN; location / { return 301 https://a.example$uri; } }",
    );
    let mut client = Client::connect(nginx.address());
    client.get(injected);
    assert!(client.response().has("x-injected"), "as it is in nginx");
}
