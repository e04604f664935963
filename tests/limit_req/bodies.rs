//! The bodies of refusals: of a configured type, or of the type that the client accepts.

use crate::support::client::Response;
use crate::support::{Client, Weir, weir};

/// What a refused request is answered with that likes these forms.
fn refused(weir: &Weir, path: &str, accept: &str) -> Response {
    let mut client = Client::connect(weir.address());
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: a\r\nUser-Agent: <b>\r\nAccept: {accept}\r\n\r\n");
    client.send(request.repeat(2));
    client.response();
    let response = client.response();
    assert_eq!(response.status, 429, "{path}");
    response
}

#[test]
fn a_rules_body_is_of_its_type_or_as_the_client_likes() {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let page = directory.path().join("page.html");
    std::fs::write(&page, "<h1>$lowly</h1>").expect("the directory can be written");
    let weir = Weir::start(&format!(
        "limit_req_zones: {{ one: {{ key: $uri$http_accept, rate: 1r/m }} }}
servers:
- listen: LISTEN
  return: 200 ok
  locations:
  - {{ path: /plain, limit_req: {{ zone: one, body: 'a <b>' }} }}
  - {{ path: /typed, limit_req: {{ zone: one, body: 'by $http_user_agent', content_type: text/html }} }}
  - {{ path: /file, limit_req: {{ zone: one, body: {{ file: {page} }} }} }}
  - path: /all
    limit_req:
      zone: one
      body: {{ html: {{ file: {page} }}, json: '{{\"by\":\"$http_user_agent\"}}', text: 'by $http_user_agent' }}
",
        page = page.display()
    ));
    let told = |path, accept| {
        let response = refused(&weir, path, accept);
        let field = |name| response.get(name).unwrap_or_default().to_owned();
        (field("content-type"), response.text(), field("vary"))
    };
    let expected = |kind: &str, text: &str, vary: &str| (kind.into(), text.into(), vary.into());
    let (html, json, text) = (
        "text/html; charset=utf-8",
        "application/json",
        "text/plain; charset=utf-8",
    );
    assert_eq!(told("/plain", "text/html"), expected(text, "a <b>", ""));
    assert_eq!(
        told("/typed", "*/*"),
        expected("text/html", "by &lt;b&gt;", "")
    );
    assert_eq!(told("/file", "*/*"), expected(html, "<h1>$lowly</h1>", ""));
    let browser = "text/html,application/xhtml+xml,*/*;q=0.8";
    assert_eq!(
        told("/all", browser),
        expected(html, "<h1>$lowly</h1>", "Accept")
    );
    assert_eq!(
        told("/all", "application/json"),
        expected(json, "{\"by\":\"<b>\"}", "Accept")
    );
    assert_eq!(told("/all", "*/*"), expected(text, "by <b>", "Accept"));
}

#[test]
fn a_body_in_a_file_that_is_not_there_is_a_mistake() {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let file = directory.path().join("weir.yaml");
    let yaml = "limit_req_zones: { one: { key: $uri, rate: 1r/m } }
servers: [{ return: 204, limit_req: { zone: one, body: { html: { file: gone.html } } } }]";
    std::fs::write(&file, yaml).expect("the directory can be written");
    let output = weir::output(&["check", "--config", &file.display().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("gone.html` cannot be read"), "{said}");
}

#[test]
fn a_request_without_a_key_is_explained() {
    let weir = Weir::start(
        "limit_req_zones:
  keyed: { key: $http_x_api_key, rate: 1r/s, on_empty_key: { refuse: 401 } }
  plain: { key: $http_x_api_key, rate: 1r/s, on_empty_key: refuse }
limit_conn_zones: { places: { key: $http_x_api_key, on_empty_key: { refuse: 403 } } }
servers:
- listen: LISTEN
  return: 200 ok
  locations:
  - { path: /keyed, limit_req: { zone: keyed } }
  - { path: /plain, limit_req: { zone: plain } }
  - { path: /places, limit_conn: { zone: places, limit: 1 } }
",
    );
    for (path, status, zone) in [
        ("/keyed", 401, "keyed"),
        ("/plain", 429, "plain"),
        ("/places", 403, "places"),
    ] {
        let why = format!("The request lacks the key that the limit \"{zone}\" counts by.");
        for accept in ["*/*", "application/json", "text/html"] {
            let mut client = Client::connect(weir.address());
            client.send(format!(
                "GET {path} HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\n\r\n"
            ));
            let response = client.response();
            assert_eq!(response.status, status, "{path}");
            let text = response
                .text()
                .replace("\\\"", "\"")
                .replace("&quot;", "\"");
            assert!(text.contains(&why), "{text}");
            for name in ["retry-after", "ratelimit", "ratelimit-policy"] {
                assert!(!response.has(name), "{name} in {}", response.text);
            }
        }
    }
    let line = weir.error_line("empty key by zone \"keyed\"");
    assert!(line.contains("limiting requests"), "{line}");
}
