//! Tools for nginx's logs read weir's: lines compared with the real nginx's, fail2ban's own filters, goaccess.

use std::path::Path;
use std::process::Command;

use regex::Regex;

use crate::support::{Client, Nginx, Origin, Weir, eventually, get};

const NGINX: &str = "limit_req_zone $server_name zone=one:1m rate=1r/m; limit_req_zone $server_name zone=slow:1m rate=10r/s;
    upstream closed { server 127.0.0.1:1; server 127.0.0.1:2; }
    server { listen LISTEN; server_name shop.test; client_max_body_size 10;
        location /limited { limit_req zone=one; proxy_pass http://ORIGIN; }
        location /delayed { limit_req zone=slow burst=5; proxy_pass http://ORIGIN/ok; }
        location /refused/ { proxy_pass http://127.0.0.1:1/there/; }
        location /down { proxy_pass http://closed; }
        location /forbidden { deny all; proxy_pass http://ORIGIN; }
        location / { proxy_read_timeout 1s; proxy_pass http://ORIGIN; }
    }";

const WEIR: &str = "limit_req_zones:
  one: { key: $server_name, size: 1m, rate: 1r/m }
  slow: { key: $server_name, size: 1m, rate: 10r/s }
upstreams: { closed: { servers: ['127.0.0.1:1', '127.0.0.1:2'] } }
log: { access: off }
servers:
- listen: LISTEN
  server_name: shop.test
  client_max_body_size: 10
  proxy_read_timeout: 1s
  proxy_pass: http://ORIGIN
  locations:
  - { path: /limited, limit_req: { zone: one } }
  - { path: /delayed, limit_req: { zone: slow, burst: 5 }, proxy_pass: 'http://ORIGIN/ok' }
  - { path: /refused/, proxy_pass: 'http://127.0.0.1:1/there/' }
  - { path: /down, proxy_pass: 'http://closed' }
  - { path: /forbidden, deny: all }
";

/// What is asked, in turn, and what the last line about it holds.
const STORIES: [(&str, &str); 9] = [
    (
        "GET /limited?a=b HTTP/1.1\nHost: shop.test:81\nReferer: http://a/\n\n",
        "limiting requests",
    ),
    (
        "GET /delayed HTTP/1.1\nHost: shop.test\n\n",
        "delaying request",
    ),
    (
        "GET /refused/a?b HTTP/1.1\nHost: shop.test\n\n",
        "connect() failed",
    ),
    (
        "GET /down HTTP/1.1\nHost: shop.test\n\n",
        "no live upstreams",
    ),
    (
        "GET /forbidden HTTP/1.1\nHost: shop.test\n\n",
        "access forbidden",
    ),
    ("GET /hang HTTP/1.1\nHost: shop.test\n\n", "timed out"),
    ("GET /reset HTTP/1.1\nHost: shop.test\n\n", "recv() failed"),
    (
        "GET /close-early HTTP/1.1\nHost: shop.test\n\n",
        "while reading upstream",
    ),
    (
        "POST /ok HTTP/1.1\nHost: shop.test\nContent-Length: 2000\n\n",
        "too large body",
    ),
];

/// A line without what differs each time: when, by which process, on which connection, how much too fast, and where the backend is.
fn told(log: &str, needle: &str, origin: &Origin) -> String {
    let line = log.lines().rfind(|line| line.contains(needle));
    let line = line.unwrap_or_else(|| panic!("no {needle:?} in {log}"));
    let shape = Regex::new(
        r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d (?<level>\[[a-z]+\]) \d+#\d+: \*\d+ (?<rest>.*)$",
    )
    .expect("an expression");
    let parts = shape
        .captures(line)
        .unwrap_or_else(|| panic!("not nginx's shape: {line}"));
    let rest = parts["rest"].replace(&origin.address().to_string(), "ORIGIN");
    let excess = Regex::new(r"excess: \d+\.\d{3}").expect("an expression");
    let rest = excess.replace_all(&rest, "excess: N");
    format!("{} {rest}", &parts["level"])
}

#[test]
fn lines_about_requests_are_nginxs() {
    let origin = Origin::start();
    let (nginx, weir) = (Nginx::before(&origin, NGINX), Weir::before(&origin, WEIR));
    for (request, needle) in STORIES {
        let request = request.replace('\n', "\r\n");
        let tell = |address, log: &dyn Fn() -> String| {
            // Limits need a request before, and at once; for the others once more makes no difference.
            if needle.starts_with("limiting") || needle.starts_with("delaying") {
                let mut client = Client::connect(address);
                client.send(request.repeat(2));
                client.response();
                client.response();
            } else {
                for _ in 0..2 {
                    let mut client = Client::connect(address);
                    client.send(&request);
                    client.try_response().ok();
                }
            }
            eventually(needle, || log().contains(needle));
            told(&log(), needle, &origin)
        };
        let expected = tell(nginx.address(), &|| nginx.log());
        let found = tell(weir.address(), &|| weir.stderr());
        assert_eq!(found, expected, "{request}");
    }
}

/// How many lines of a log a stock filter of fail2ban matches.
fn matched(log: &Path, filter: &str) -> usize {
    let output = Command::new("fail2ban-regex")
        .arg(log)
        .arg(format!("/etc/fail2ban/filter.d/{filter}.conf"))
        .output()
        .expect("fail2ban is installed");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let shape = Regex::new(r"(\d+) matched").expect("an expression");
    let count = shape.captures(&said).map(|found| found[1].parse());
    count
        .and_then(Result::ok)
        .unwrap_or_else(|| panic!("{said}"))
}

const LOGGED: &str = "log: { error: { path: DIR/error.log }, access: { path: DIR/access.log } }
limit_req_zones: { one: { key: $binary_remote_addr, rate: 1r/m } }
servers:
- listen: LISTEN
  server_name: shop.test
  locations:
  - { path: /limited, limit_req: { zone: one }, return: 200 ok }
  - { path: /ok, return: 200 ok }
";

#[test]
fn fail2ban_finds_refused_and_malformed_requests() {
    let weir = Weir::start(LOGGED);
    for _ in 0..6 {
        get(weir.address(), "/limited");
    }
    for _ in 0..2 {
        assert_eq!(get(weir.address(), "/wp-login.php").status, 404);
    }
    for rubbish in [
        "\x16\x03\x01\x02\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
        "RUBBISH\r\n\r\n",
    ] {
        let mut client = Client::connect(weir.address());
        client.send(rubbish);
        assert_eq!(client.response().status, 400);
    }
    eventually("all lines", || {
        let (error, access) = (weir.file("error.log"), weir.file("access.log"));
        error.matches("limiting requests").count() == 5 && access.lines().count() == 11
    });
    assert_eq!(matched(&weir.path("error.log"), "nginx-limit-req"), 5);
    let access = weir.path("access.log");
    assert_eq!(
        matched(&access, "nginx-bad-request"),
        3,
        "{}",
        weir.file("access.log")
    );
    assert_eq!(matched(&access, "nginx-botsearch"), 2);
    assert!(
        weir.file("access.log")
            .contains("] \"-\" 400 0 \"-\" \"-\"")
    );
}

#[test]
fn goaccess_understands_every_line() {
    let weir = Weir::start(LOGGED);
    for path in ["/ok", "/ok?a=b", "/limited", "/limited", "/nothing"] {
        get(weir.address(), path);
    }
    let mut client = Client::connect(weir.address());
    client.send("RUBBISH\r\n\r\n");
    client.response();
    eventually("all lines", || weir.file("access.log").lines().count() == 6);
    let report = weir.path("report.json");
    let output = Command::new("goaccess")
        .arg(weir.path("access.log"))
        .args([
            "--log-format=COMBINED",
            "--no-progress",
            "--no-global-config",
            "-o",
        ])
        .arg(&report)
        .output()
        .expect("goaccess is installed");
    let text = weir.file("report.json");
    let report: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{output:?} {text}"));
    let general = &report["general"];
    assert_eq!(general["total_requests"], 6, "{general}");
    assert_eq!(general["failed_requests"], 0, "{general}");
    assert_eq!(general["valid_requests"], 6, "{general}");
}

#[test]
fn the_error_log_is_a_file_that_usr1_opens_again() {
    let weir = Weir::start(LOGGED);
    get(weir.address(), "/limited");
    get(weir.address(), "/limited?before");
    let has = |file: &str, text: &str| weir.file(file).contains(text);
    eventually("a line in the file", || has("error.log", "/limited?before"));
    std::fs::rename(weir.path("error.log"), weir.path("error.log.1")).expect("it is there");
    weir.signal("USR1");
    eventually("a file of the same name", || {
        weir.path("error.log").exists()
    });
    get(weir.address(), "/limited?after");
    eventually("a line in the new file", || {
        has("error.log", "/limited?after")
    });
    assert!(!has("error.log.1", "/limited?after"));
    assert!(!weir.stderr().contains("limiting"), "{}", weir.stderr());
    weir.reload(&LOGGED.replace("error: { path: DIR/error.log }", "error: { path: '-' }"));
    get(weir.address(), "/limited?last");
    weir.error_line("/limited?last");
    assert!(!has("error.log", "/limited?last"));
}
