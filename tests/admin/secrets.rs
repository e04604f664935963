//! No output of weir contains a secret of its configuration.

use crate::support::redis::Redis;
use crate::support::weir::output;
use crate::support::{Client, Origin, Weir, eventually, get};

/// What every secret is made of.
const MARK: &str = "Zq7Zq7Zq7";

fn config(redis: &Redis, token: &str, more: &str) -> String {
    format!(
        "log: {{ level: debug }}
admin: {{ listen: ADMIN, token: {token} }}
tracing: {{ otlp: 'http://127.0.0.1:9', sample: 100%, interval: 10ms, headers: {{ x-team: {MARK} }} }}
stores:
  one: {{ redis: 'redis://{MARK}:{MARK}@127.0.0.1:{port}/0' }}
  two: {{ redis: 'redis://:{MARK}@127.0.0.1:9', sentinel_master: main, sentinel_password: ${MARK} }}
limit_req_zones:
  one: {{ key: $binary_remote_addr, size: 1m, rate: 100r/s, store: one }}
  two: {{ key: $binary_remote_addr, size: 1m, rate: 100r/s, store: two }}
  three: {{ key: $http_x_api_key, size: 1m, rate: 100r/s, overrides: {{ {MARK}: {{ rate: 5r/s }} }} }}
servers:
- listen: LISTEN
  limit_req: [ {{ zone: one, burst: 9 }}, {{ zone: two, burst: 9 }}, {{ zone: three, burst: 9 }} ]
  locations:
  - path: /
    proxy_pass: http://ORIGIN
    proxy_set_header: {{ Authorization: Basic {MARK}, X-Api-Key: $http_x_api_key }}
{more}",
        port = redis.port()
    )
}

fn assert_silent(who: &str, said: &str) {
    let leak = said.lines().find(|line| line.contains(MARK));
    assert_eq!(leak, None, "{who}");
}

/// What the admin listener answers.
fn ask(weir: &Weir, path: &str, token: &str) -> String {
    let mut client = Client::connect(weir.admin_address());
    client.send(format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    ));
    let response = client.response();
    assert_eq!(response.status, 200, "{path}");
    response.text()
}

#[test]
fn a_running_weir_stays_silent() {
    let origin = Origin::start();
    // Its password is another, so that the store has an error to tell.
    let redis = Redis::with(&["--requirepass", "another"]);
    let token = format!("${MARK}");
    let with = |token: &str, more: &str| {
        config(&redis, token, more).replace("ORIGIN", &origin.address().to_string())
    };
    let weir = Weir::start(&with(&token, ""));
    assert_eq!(get(weir.address(), "/ok").status, 200);
    weir.error_line("store");
    let paths = [
        "/",
        "/metrics",
        "/api/config",
        "/api/status",
        "/api/zones",
        "/api/upstreams",
    ];
    for path in paths {
        assert_silent(path, &ask(&weir, path, &token));
    }
    let config = ask(&weir, "/api/config", &token);
    assert!(config.contains("redis://***@127.0.0.1"), "{config}");
    assert!(config.contains("$http_x_api_key"), "{config}");
    let other = format!("other-{MARK}");
    weir.reload(&with(&other, ""));
    eventually("the new token", || {
        ask(&weir, "/api/config", &other).contains("limit_req_zones")
    });
    let wrong = with(&other, "    nonsense: here\n");
    for wrong in [
        wrong.replace("sentinel_password", "sentinel_pasword"),
        wrong.replace("token: ", "tokn: "),
        wrong.replace("token: ", "token: { "),
        wrong.replace("@127.0.0.1", "/127.0.0.1"),
    ] {
        assert_silent("reload", &weir.reload_refused(&wrong));
        let file = weir.path("weir.yaml").display().to_string();
        let check = output(&["check", "--config", &file]);
        assert!(!check.status.success());
        let said = [check.stdout, check.stderr].concat();
        assert_silent("check", &String::from_utf8_lossy(&said));
    }
    assert_silent("the error log", &weir.stderr());
    assert_silent("the access log", &weir.stdout());
}
