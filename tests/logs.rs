//! The access log: nginx's format, JSON or a custom one, with text from clients escaped.

use crate::support::{Client, Nginx, Origin, Weir};

fn logging(origin: &Origin, access: &str) -> Weir {
    Weir::before(
        origin,
        &format!(
            "log: {{ access: {access} }}
servers:
- listen: LISTEN
  server_name: a.test
  locations: [ {{ path: /, proxy_pass: 'http://ORIGIN' }} ]
"
        ),
    )
}

/// Sends a request with a head that wants to be trouble, and gives the line it left.
fn line(weir: &Weir, request: &[u8]) -> String {
    let mut client = Client::connect(weir.address());
    client.send(request);
    assert_eq!(client.response().status, 200);
    weir.access_line("/ok")
}

/// Quotes, backslashes, tabs and bytes that are no text. Control characters never come this far: they are a 400.
const HOSTILE: &[u8] = b"GET /ok?q='x' HTTP/1.1\r\nHost: a.test\r\nReferer: a\\b\"c\r\nUser-Agent: a\t\xff\xc3\xa9\"} {\"a\r\n\r\n";

#[test]
fn combined_is_nginxs_combined() {
    let origin = Origin::start();
    let weir = logging(&origin, "{ path: '-', format: combined }");
    let line = line(
        &weir,
        b"GET /ok?x=y HTTP/1.1\r\nHost: a.test\r\nReferer: http://b/\r\nUser-Agent: curl/8\r\nAuthorization: Basic dXNlcjpwYXNz\r\n\r\n",
    );
    let shape = regex::Regex::new(concat!(
        r#"^127\.0\.0\.1 - user \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\] "#,
        r#""GET /ok\?x=y HTTP/1\.1" 200 2 "http://b/" "curl/8"$"#
    ))
    .unwrap();
    assert!(shape.is_match(&line), "{line}");
}

#[test]
fn hostile_bytes_are_escaped_as_nginx_escapes_them() {
    let origin = Origin::start();
    let format = "$request|$http_referer|$http_user_agent|$arg_q|$http_none";
    let weir = logging(&origin, &format!("{{ path: '-', format: '{format}' }}"));
    let found = line(&weir, HOSTILE);
    let nginx = Nginx::before(
        &origin,
        &format!(
            "log_format own '{format}';
            server {{ listen LISTEN; access_log /dev/stdout own; location / {{ proxy_pass http://ORIGIN; }} }}"
        ),
    );
    let mut client = Client::connect(nginx.address());
    client.send(HOSTILE);
    assert_eq!(client.response().status, 200);
    let mut expected = String::new();
    crate::support::eventually("nginx's line", || {
        expected = nginx.stdout();
        expected.ends_with('\n')
    });
    assert_eq!(found, expected.trim_end());
    assert!(
        found.bytes().all(|byte| (0x20..0x7f).contains(&byte)),
        "{found:?}"
    );
}

#[test]
fn json_is_json_whatever_the_client_sends() {
    let origin = Origin::start();
    let weir = logging(&origin, "{ path: '-', format: json }");
    let line = line(&weir, HOSTILE);
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(value["status"], 200, "{line}");
    assert_eq!(value["remote_addr"], "127.0.0.1", "{line}");
    assert_eq!(value["method"], "GET", "{line}");
    assert!(value.get("a").is_none(), "{line}");
}

#[test]
fn a_log_format_has_the_limits_variables() {
    let origin = Origin::start();
    let weir = logging(
        &origin,
        "{ path: DIR/access.log, format: '$remote_addr $request_method $scheme $host $server_name $server_port
          $request_uri $uri $args $status $body_bytes_sent $bytes_sent $request_length $request_time
          [$upstream_addr] $upstream_status $upstream_response_time $connection $request_id $msec
          $time_iso8601 [$limit_req_status] [$limit_conn_status] $cookie_user $sent_http_x_origin' }",
    );
    let mut client = Client::connect(weir.address());
    let request = "POST /a/%6fk?x=1 HTTP/1.1\r\nHost: A.test:99\r\nCookie: user=me\r\nContent-Length: 5\r\n\r\nhello";
    client.send(request);
    let response = client.response();
    assert_eq!(response.status, 200);
    let head_length = response.text.len() + 4;
    crate::support::eventually("the line", || weir.file("access.log").ends_with('\n'));
    let line = weir.file("access.log");
    let words: Vec<_> = line.split_whitespace().collect();
    let port = weir.port().to_string();
    assert_eq!(
        words[..6],
        ["127.0.0.1", "POST", "http", "a.test", "a.test", &port],
        "{line}"
    );
    assert_eq!(
        words[6..11],
        ["/a/%6fk?x=1", "/a/ok", "x=1", "200", "2"],
        "{line}"
    );
    assert_eq!(
        words[11],
        (head_length + 2).to_string(),
        "bytes sent: {line}"
    );
    assert_eq!(
        words[12],
        request.len().to_string(),
        "bytes received: {line}"
    );
    assert!(words[13].parse::<f64>().unwrap() < 5.0, "{line}");
    assert_eq!(words[14], format!("[{}]", origin.address()), "{line}");
    assert_eq!(words[15], "200", "{line}");
    assert!(words[16].parse::<f64>().unwrap() < 5.0, "{line}");
    assert!(words[17].parse::<u64>().is_ok(), "{line}");
    assert_eq!(words[18].len(), 32, "{line}");
    assert!(words[19].parse::<f64>().unwrap() > 1.7e9, "{line}");
    assert!(words[20].contains('T'), "{line}");
    assert_eq!(words[21..], ["[-]", "[-]", "me", "origin"], "{line}");
}

#[test]
fn a_client_that_leaves_before_the_response_is_a_499() {
    let origin = Origin::start();
    let weir = logging(&origin, "{ path: '-', format: '$status $request_uri' }");
    let client = Client::connect(weir.address());
    client.get("/hold?gate=never");
    origin.gates().await_waiting("never", 1);
    drop(client);
    assert_eq!(weir.access_line("/hold"), "499 /hold?gate=never");
}

#[test]
fn the_access_log_can_be_turned_off() {
    let origin = Origin::start();
    let weir = logging(&origin, "off");
    let mut client = Client::connect(weir.address());
    client.get("/ok");
    assert_eq!(client.response().status, 200);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(weir.stdout(), "");
}

#[test]
fn trouble_with_a_backend_is_in_the_error_log() {
    let origin = Origin::start();
    let weir = logging(&origin, "off");
    let mut client = Client::connect(weir.address());
    client.get("/reset?why");
    assert_eq!(client.response().status, 502);
    let line = weir.error_line("/reset?why");
    assert!(line.contains("127.0.0.1"), "{line}");
}
