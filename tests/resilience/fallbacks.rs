//! Fallback responses: of another upstream, or fixed ones.

use super::{ask, before, metric};
use crate::support::{Origin, Weir, get, get_from};

#[test]
fn a_fixed_response_with_variables() {
    let origin = Origin::start();
    let weir = before(
        &[&origin],
        "keepalive: 0",
        "fallback: { return: { status: 200, body: '{\"for\":\"$uri\",\"as\":$status}', content_type: application/json } }
  proxy_read_timeout: 300ms
  proxy_pass: app",
    );
    assert_eq!(get(weir.address(), "/ok").text(), "ok");
    for path in [
        "/reset",
        "/hang",
        "/garbage",
        "/status?code=500",
        "/status?code=503",
    ] {
        let answer = get(weir.address(), path);
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.get("content-type"), Some("application/json"));
        let name = path.split('?').next().unwrap_or_default();
        assert_eq!(answer.text(), format!("{{\"for\":\"{name}\",\"as\":200}}"));
    }
    assert_eq!(get(weir.address(), "/status?code=404").status, 404);
    assert_eq!(ask(&weir, "HEAD", "/reset", "").status, 200);
    assert_eq!(metric(&weir, "weir_fallbacks_total", &["return"]), Some(6));
}

#[test]
fn only_what_is_listed_is_replaced() {
    let origin = Origin::start();
    let weir = before(
        &[&origin],
        "keepalive: 0",
        "fallback: { on: [timeout, 404], return: 200 instead }
  proxy_read_timeout: 300ms
  proxy_pass: app",
    );
    assert_eq!(get(weir.address(), "/hang").text(), "instead");
    assert_eq!(get(weir.address(), "/status?code=404").text(), "instead");
    assert_eq!(get(weir.address(), "/reset").status, 502);
    assert_eq!(get(weir.address(), "/status?code=500").status, 500);
}

#[test]
fn an_open_breaker_and_a_limit_lead_there_too() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "limit_req_zones: { one: { key: $uri, rate: 1r/m } }
servers:
- listen: LISTEN
  proxy_pass: http://ORIGIN
  locations:
  - path: /broken/
    breaker: { failures: 2, open_for: 100s, max_open_for: 100s }
    fallback: { on: open, return: 200 instead }
  - path: /limited/
    limit_req: { zone: one, nodelay: true }
    deny: 127.0.0.9
    fallback: { on: limited, return: 200 instead }
",
    );
    for _ in 0..2 {
        assert_eq!(get(weir.address(), "/broken/reset").status, 502);
    }
    let seen = origin.count();
    assert_eq!(get(weir.address(), "/broken/ok").text(), "instead");
    assert_eq!(origin.count(), seen);
    assert_eq!(get(weir.address(), "/limited/ok").text(), "ok");
    assert_eq!(get(weir.address(), "/limited/ok").text(), "instead");
    let kept_out = get_from([127, 0, 0, 9], weir.address(), "/limited/ok");
    assert_eq!(kept_out.status, 403, "not by the back door either");
}

/// A weir whose second upstream answers for the first.
fn with_spare(first: &Origin, second: &Origin, more: &str) -> Weir {
    Weir::start(&format!(
        "upstreams:
  app: {{ servers: ['{}'], keepalive: 0, breaker: {{ failures: 3, open_for: 100s, max_open_for: 100s }} }}
  spare: {{ servers: ['{}'] }}
servers:
- listen: LISTEN
  proxy_pass: app
  fallback: {{ proxy_pass: spare{more} }}
",
        first.address(),
        second.address()
    ))
}

#[test]
fn an_idempotent_request_is_retried_at_another_upstream() {
    let (first, second) = (Origin::named("first"), Origin::named("second"));
    let weir = with_spare(&first, &second, "");
    assert_eq!(get(weir.address(), "/ok").get("x-origin"), Some("first"));
    first.behave("/reset");
    assert_eq!(get(weir.address(), "/ok").get("x-origin"), Some("second"));
    // It may have had an effect where it broke off.
    let posted = ask(&weir, "POST", "/ok", "Content-Length: 2\r\n\r\nhi");
    assert_eq!(posted.status, 502);
    assert_eq!(second.count(), 1);
    // Nothing of it was sent: the breaker is open.
    assert_eq!(get(weir.address(), "/ok").get("x-origin"), Some("second"));
    let before = first.count();
    let posted = ask(&weir, "POST", "/ok", "Content-Length: 2\r\n\r\nhi");
    assert_eq!(posted.get("x-origin"), Some("second"));
    assert_eq!(first.count(), before);
    assert_eq!(second.seen().last().expect("it came").body, b"hi");
}

#[test]
fn where_both_fail_the_next_way_is_gone() {
    let (first, second) = (
        Origin::named("first").always("/reset"),
        Origin::named("second"),
    );
    second.behave("/status?code=503");
    let weir = with_spare(&first, &second, ", return: 200 instead");
    assert_eq!(get(weir.address(), "/ok").text(), "instead");
    let weir = with_spare(&first, &second, "");
    assert_eq!(
        get(weir.address(), "/ok").status,
        502,
        "as without a fallback"
    );
}

#[test]
fn one_switch_turns_off_all_that_is_not_essential() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "admin: { listen: ADMIN }
degrade_groups: { extras: on, core: off }
servers:
- listen: LISTEN
  proxy_pass: http://ORIGIN
  locations:
  - { path: /reviews/, degrade_group: extras, fallback: { return: 200 none } }
  - { path: /advice/, degrade_group: extras }
  - { path: /basket/, degrade_group: core, fallback: { return: 200 none } }
",
    );
    assert_eq!(get(weir.address(), "/reviews/ok").text(), "none");
    let refused = get(weir.address(), "/advice/ok");
    assert_eq!(
        (refused.status, refused.get("retry-after")),
        (503, Some("30"))
    );
    assert_eq!(origin.count(), 0, "no server gets the request");
    assert_eq!(get(weir.address(), "/basket/ok").text(), "ok");
    assert_eq!(
        get(weir.address(), "/basket/status?code=500").status,
        500,
        "as it is"
    );
    let mode = |group, mode| metric(&weir, "weir_degrade_mode", &[group, mode]);
    assert_eq!(mode("extras", "mode=\"on\""), Some(1));
    assert_eq!(mode("core", "mode=\"off\""), Some(1));
}
