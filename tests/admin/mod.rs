//! The admin listener: health, metrics and zones.

mod access;
mod amend;
mod explain;
mod keys;
mod openapi;
mod refusals;
mod secrets;
mod servers;
mod shared_keys;
mod slow_clients;

use crate::support::{Client, Origin, Weir, eventually, get};

fn with_admin(origin: &Origin) -> Weir {
    Weir::before(
        origin,
        "admin: { listen: ADMIN }
limit_req_zones: { one: { key: $binary_remote_addr, size: 1m, rate: 1r/m } }
limit_conn_zones: { places: { key: $binary_remote_addr, size: 1m } }
upstreams: { app: { servers: [ 'ORIGIN' ] } }
servers:
- listen: LISTEN
  limit_req: { zone: one, burst: 2, nodelay: true }
  limit_conn: { zone: places, limit: 5 }
  locations: [ { path: /, proxy_pass: app } ]
",
    )
}

#[test]
fn health_and_readiness_have_endpoints() {
    let origin = Origin::start();
    let mut weir = with_admin(&origin);
    let status = |path| get(weir.admin_address(), path).status;
    eventually("the admin listener", || {
        Client::try_connect(weir.admin_address()).is_ok()
    });
    assert_eq!(status("/healthz"), 200);
    eventually("ready", || status("/readyz") == 200);
    assert_eq!(status("/nothing-here"), 404);
    weir.signal("QUIT");
    assert_eq!(weir.wait().code(), Some(0));
}

#[test]
fn verdicts_are_counted_by_zone() {
    let origin = Origin::start();
    let weir = with_admin(&origin);
    let statuses = [0; 5].map(|_| get(weir.address(), "/ok").status);
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    let metrics = || get(weir.admin_address(), "/metrics").text();
    // Labels in any order: look for the series by what it must contain.
    let value = |name: &str, labels: &[&str]| -> Option<String> {
        let text = metrics();
        let line = text.lines().find(|line| {
            line.starts_with(&format!("{name}{{"))
                && labels.iter().all(|label| line.contains(label))
        })?;
        line.rsplit(' ').next().map(str::to_owned)
    };
    let verdicts = "weir_limit_verdicts_total";
    let found = |verdict| value(verdicts, &["zone=\"one\"", verdict]);
    assert_eq!(
        found("verdict=\"pass\"").as_deref(),
        Some("3"),
        "{}",
        metrics()
    );
    assert_eq!(found("verdict=\"refuse\"").as_deref(), Some("2"));
    assert_eq!(
        value("weir_zone_keys", &["zone=\"one\""]).as_deref(),
        Some("1")
    );
    let answered = ["upstream=\"app\"", "status=\"200\""];
    assert_eq!(
        value("weir_upstream_requests_total", &answered).as_deref(),
        Some("3")
    );
}

#[test]
fn zones_are_listed() {
    let origin = Origin::start();
    let weir = with_admin(&origin);
    get(weir.address(), "/ok");
    let answer = get(weir.admin_address(), "/api/zones");
    let zones: serde_json::Value = serde_json::from_str(&answer.text()).unwrap();
    let zone = zones
        .as_array()
        .and_then(|zones| zones.iter().find(|zone| zone["name"] == "one"))
        .unwrap();
    assert_eq!(zone["kind"], "limit_req");
    assert_eq!(zone["algorithm"], "leaky_bucket");
    assert_eq!(zone["rate"], "1r/m");
    for (field, expected) in [("keys", 1), ("pass", 1), ("delay", 0), ("refuse", 0)] {
        assert_eq!(zone[field], expected, "{field} of {zone}");
    }
    assert!(
        zone["capacity"]
            .as_u64()
            .is_some_and(|capacity| capacity > 1000)
    );
}

#[test]
fn a_zone_tells_where_it_is_used() {
    let weir = Weir::start(
        "admin: { listen: ADMIN }
limit_req_zones: { one: { key: $host, rate: 1r/m }, two: { key: $host, rate: 1r/m } }
limit_conn_zones: { places: { key: $host } }
servers:
- listen: LISTEN
  server_name: a.test
  locations:
  - { path: /both, limit_req: [ { zone: one, burst: 4 }, { zone: two } ], return: 204 }
  - { path: /dry, limit_req: { zone: one }, limit_req_dry_run: true, return: 204 }
  - { path: /places, limit_conn: { zone: places, limit: 7 }, return: 204 }
  - { path: /free, return: 204 }
",
    );
    let used = |zone: &str| {
        let zone = get(weir.admin_address(), &format!("/api/zones/{zone}"));
        let zone: serde_json::Value = serde_json::from_str(&zone.text()).unwrap();
        zone["rules"].clone()
    };
    let rule = |location: &str, burst: Option<f64>, limit: Option<u32>, dry_run: bool| {
        serde_json::json!({
            "server": "a.test", "location": location, "burst": burst, "limit": limit, "dry_run": dry_run
        })
    };
    let (both, dry) = (
        rule("/both", Some(4.0), None, false),
        rule("/dry", Some(0.0), None, true),
    );
    assert_eq!(used("one"), serde_json::json!([both, dry]));
    let both = rule("/both", Some(0.0), None, false);
    assert_eq!(used("two"), serde_json::json!([both]));
    let places = rule("/places", None, Some(7), false);
    assert_eq!(used("places"), serde_json::json!([places]));
}
