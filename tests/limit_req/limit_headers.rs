//! `limit_headers` with `on: all`: a client sees its remaining requests before it is refused.

use std::process::Command;

use tokio::time::Instant;

use super::seconds_left;
use crate::support::client::Response;
use crate::support::{Origin, Weir, get};

fn told(origin: &Origin, headers: &str) -> Weir {
    Weir::before(
        origin,
        &format!(
            "limit_req_zones:
  one: {{ key: $binary_remote_addr, size: 1m, rate: 1r/h }}
  up: {{ key: $uri, size: 1m, rate: 1000r/s }}
limit_conn_zones: {{ busy: {{ key: $binary_remote_addr, size: 1m }} }}
limit_headers: {headers}
limit_req: {{ zone: one, burst: 9, nodelay: true }}
servers:
- listen: LISTEN
  locations:
  - {{ path: /, limit_conn: {{ zone: busy, limit: 4 }}, proxy_pass: 'http://ORIGIN' }}
  - {{ path: /heavy, limit_req: {{ zone: one, burst: 9, nodelay: true, cost: 7 }}, proxy_pass: 'http://ORIGIN' }}
  - {{ path: /up, limit_req: {{ zone: up, burst: 999, cost: request_bytes }}, proxy_pass: 'http://ORIGIN' }}
  - {{ path: /said, return: 200 said }}
  - {{ path: /refused, limit_headers: ietf, return: 200 said }}
  - {{ path: /dry, limit_req_dry_run: true, return: 200 said }}
  - {{ path: /gone, proxy_pass: 'http://127.0.0.1:1' }}
"
        ),
    )
}

/// What is left of the zone `one`, and the seconds beside it.
fn left(response: &Response) -> (u64, u64) {
    let state = response.get("ratelimit").expect("a RateLimit");
    let own = state.split(", ").next().expect("a policy");
    let rest = own.strip_prefix("\"one\";r=").expect(state);
    let (left, seconds) = rest.split_once(";t=").expect(state);
    (left.parse().expect(state), seconds.parse().expect(state))
}

#[test]
fn every_response_has_the_remaining_requests() {
    let origin = Origin::start();
    let weir = told(&origin, "{ form: ietf, on: all }");
    let begun = Instant::now();
    let response = get(weir.address(), "/ok");
    assert_eq!(response.status, 200);
    let places = "\"busy\";q=4;qu=\"concurrent-requests\"";
    let policy = format!("\"one\";q=10;w=36000, {places}");
    assert_eq!(response.get("ratelimit-policy"), Some(&*policy));
    assert!(
        response
            .get("ratelimit")
            .unwrap()
            .ends_with(", \"busy\";r=3")
    );
    let (remaining, seconds) = left(&response);
    assert_eq!(remaining, 9);
    assert!(
        seconds_left(3_600_000, begun).contains(&seconds),
        "{seconds}"
    );
    // Whichever part of weir or backend responds.
    for (path, status, expected) in [("/said", 200, 8), ("/gone", 502, 7)] {
        let response = get(weir.address(), path);
        assert_eq!(
            (response.status, left(&response).0),
            (status, expected),
            "{path}"
        );
        assert_eq!(
            response.get("ratelimit-policy"),
            Some("\"one\";q=10;w=36000")
        );
    }
    for path in ["/refused", "/dry"] {
        let response = get(weir.address(), path);
        assert_eq!(response.status, 200);
        assert!(
            !response.has("ratelimit") && !response.has("ratelimit-policy"),
            "{path}"
        );
    }
    // Five passed, and this one weighs seven.
    let refused = get(weir.address(), "/heavy");
    assert_eq!(refused.status, 429);
    let (remaining, seconds) = left(&refused);
    assert_eq!(remaining, 5);
    assert!(
        seconds_left(2 * 3_600_000, begun).contains(&seconds),
        "{seconds}"
    );
    assert_eq!(refused.get("retry-after"), Some(&*seconds.to_string()));
}

#[test]
fn http2_clients_get_limit_headers_as_well() {
    let origin = Origin::start();
    let weir = told(&origin, "{ on: all }");
    let url = format!("http://{}/ok", weir.address());
    let run = Command::new("curl")
        .args([
            "--silent",
            "--max-time",
            "20",
            "--http2-prior-knowledge",
            "--dump-header",
            "-",
        ])
        .args(["--output", "/dev/null", &url])
        .output()
        .expect("curl is installed");
    let head = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(head.contains("\nratelimit: \"one\";r=9;t="), "{head}");
    assert!(
        head.contains("\nratelimit-policy: \"one\";q=10;w=36000"),
        "{head}"
    );
}

#[test]
fn a_backend_that_limits_is_not_overwritten() {
    let origin = Origin::start();
    let weir = told(&origin, "{ form: ietf, on: all }");
    let response = get(weir.address(), "/bytes?n=3&field=RateLimit:theirs");
    let all: Vec<_> = response.all("ratelimit").collect();
    assert_eq!(all.len(), 2, "{all:?}");
    assert_eq!(all[0], "theirs");
}

#[test]
fn bytes_are_called_bytes() {
    let origin = Origin::start();
    let weir = told(&origin, "{ form: ietf, on: all }");
    let response = get(weir.address(), "/up");
    let policy = "\"up\";q=1000;qu=\"content-bytes\";w=1";
    assert_eq!(response.get("ratelimit-policy"), Some(policy));
    assert_eq!(response.get("ratelimit"), Some("\"up\";r=1000"));
}

#[test]
fn legacy_fields_say_the_same() {
    let origin = Origin::start();
    let weir = told(&origin, "{ form: legacy, on: all }");
    for remaining in ["9", "8"] {
        let response = get(weir.address(), "/said");
        assert_eq!(response.get("x-ratelimit-limit"), Some("10"));
        assert_eq!(response.get("x-ratelimit-remaining"), Some(remaining));
        assert!(response.has("x-ratelimit-reset") && !response.has("ratelimit"));
    }
}

#[test]
fn limit_headers_may_be_on_refusals_only() {
    let origin = Origin::start();
    for word in [
        "ietf",
        "legacy",
        "off",
        "{ form: ietf, on: refused }",
        "{ form: legacy }",
    ] {
        let weir = told(&origin, word);
        let response = get(weir.address(), "/ok");
        assert_eq!(response.status, 200);
        for name in [
            "ratelimit",
            "ratelimit-policy",
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
        ] {
            assert!(!response.has(name), "{word}: {name}");
        }
    }
}
