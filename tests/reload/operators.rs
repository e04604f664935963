//! Actions of operators on keys, servers, breakers and groups that a reload keeps.

use serde_json::{Value, json};

use crate::support::api::TOKEN;
use crate::support::{Api, Origin, Weir, eventually, get, get_from};

fn yaml(origin: &Origin) -> String {
    format!(
        "admin: {{ listen: ADMIN, token: {TOKEN} }}
limit_req_zones:
  perip: {{ key: $binary_remote_addr, size: 1m, rate: 1r/m }}
limit_conn_zones:
  places: {{ key: $binary_remote_addr, size: 1m }}
degrade_groups: {{ extras: auto }}
upstreams: {{ app: {{ servers: [ '{}' ] }} }}
servers:
- listen: LISTEN
  server_name: front
  locations:
  - {{ path: /, proxy_pass: app, limit_conn: {{ zone: places, limit: 5 }} }}
  - {{ path: /req, proxy_pass: app, limit_req: {{ zone: perip, burst: 1, nodelay: true }} }}
  - {{ path: /guarded, proxy_pass: app, breaker: {{}} }}
  - {{ path: /extras, proxy_pass: app, degrade_group: extras }}
",
        origin.address()
    )
}

/// Ways to write the file again in which both zones go on.
fn rewritten(yaml: &str) -> [String; 4] {
    [
        yaml.to_owned(),
        yaml.replace("size: 1m", "size: 4m"),
        yaml.replace("1r/m", "2r/m").replace("limit: 5", "limit: 6"),
        yaml.replace("size: 1m", "size: 32k"),
    ]
}

fn mark(zone: &str, key: &str, mark: &str) -> String {
    format!("/api/zones/{zone}/keys/{key}/{mark}")
}

fn status(weir: &Weir, last: u8, path: &str) -> u16 {
    get_from([127, 0, 0, last], weir.address(), path).status
}

#[test]
fn blocks_and_exemptions_outlast_reloads_in_zones_of_both_kinds() {
    let origin = Origin::start();
    let yaml = yaml(&origin);
    let weir = Weir::start(&yaml);
    let api = Api(weir.admin_address());
    for (zone, reason) in [("perip", "a scraper"), ("places", "a hoarder")] {
        let body = json!({ "for": "10m", "reason": reason });
        api.change("PUT", &mark(zone, "127.0.0.2", "block"), &body);
        api.change("PUT", &mark(zone, "127.0.0.3", "exempt"), &json!({}));
    }
    let grant = json!({ "requests": 50 });
    api.change("PUT", &mark("perip", "127.0.0.4", "grant"), &grant);
    for (round, yaml) in rewritten(&yaml).iter().enumerate() {
        weir.reload(yaml);
        assert_eq!(status(&weir, 2, "/ok"), 503, "round {round}");
        assert_eq!(status(&weir, 2, "/req"), 429, "round {round}");
        for _ in 0..5 {
            assert_ne!(status(&weir, 3, "/req"), 429, "round {round}");
            assert_ne!(status(&weir, 4, "/req"), 429, "round {round}");
        }
        assert_eq!(status(&weir, 1, "/ok"), 200, "round {round}");
        for (zone, reason) in [("perip", "a scraper"), ("places", "a hoarder")] {
            let shown = api.get(&format!("/api/zones/{zone}/keys/127.0.0.2"));
            assert_eq!(shown["marks"][0]["mark"], "block", "{zone}: {shown}");
            assert_eq!(shown["marks"][0]["reason"], reason, "{zone}: {shown}");
        }
    }
    let granted = api.get("/api/zones/perip/keys/127.0.0.4");
    assert_eq!(granted["marks"][0]["requests"], 30, "{granted}");
    // And they can be taken back by name.
    api.delete(&mark("places", "127.0.0.2", "block"));
    assert_eq!(status(&weir, 2, "/ok"), 200);
}

/// The time of a mark goes on: a reload neither ends it nor begins it anew.
#[test]
fn a_block_ends_when_its_time_is_over_whatever_was_reloaded() {
    let origin = Origin::start();
    let yaml = yaml(&origin);
    let weir = Weir::start(&yaml);
    let api = Api(weir.admin_address());
    for zone in ["perip", "places"] {
        let path = mark(zone, "127.0.0.2", "block");
        api.change("PUT", &path, &json!({ "for": "4s" }));
    }
    assert_eq!(
        (status(&weir, 2, "/ok"), status(&weir, 2, "/req")),
        (503, 429)
    );
    eventually("its time is over", || {
        weir.reload(&yaml);
        let (places, requests) = (status(&weir, 2, "/ok"), status(&weir, 2, "/req"));
        places != 503 && requests != 429
    });
}

/// A zone that means something else by now is another zone; what was said of its keys was said of others.
#[test]
fn marks_go_with_the_zone_they_were_made_in() {
    let origin = Origin::start();
    let yaml = yaml(&origin);
    let weir = Weir::start(&yaml);
    let api = Api(weir.admin_address());
    for zone in ["perip", "places"] {
        api.change("PUT", &mark(zone, "127.0.0.2", "block"), &json!({}));
    }
    weir.reload(&yaml.replace("$binary_remote_addr", "$http_x_key"));
    assert_eq!(status(&weir, 2, "/ok"), 200);
    for zone in ["perip", "places"] {
        assert_eq!(api.get(&format!("/api/zones/{zone}"))["marks"], 0, "{zone}");
    }
}

#[test]
fn switches_outlast_a_reload_and_other_numbers_do_not() {
    let origin = Origin::start();
    let yaml = yaml(&origin);
    let weir = Weir::start(&yaml);
    let api = Api(weir.admin_address());
    let breaker = |state: &str| {
        let body = json!({ "server": "front", "location": "/guarded", "breaker": state });
        api.change("PATCH", "/api/breakers", &body)
    };
    breaker("open");
    api.change("PATCH", "/api/groups/extras", &json!({ "mode": "on" }));
    let numbers = json!({ "rate": "600r/m", "burst": 50 });
    api.change("PATCH", "/api/zones/perip", &numbers);
    for _ in 0..5 {
        assert_eq!(status(&weir, 1, "/req/ok"), status(&weir, 5, "/req/ok"));
    }
    weir.reload(&yaml.replace("size: 1m", "size: 2m"));
    assert_eq!(get(weir.address(), "/guarded").status, 503, "forced open");
    assert_eq!(get(weir.address(), "/extras").status, 503, "switched on");
    let zone = api.get("/api/zones/perip");
    assert_eq!(
        (&zone["rate"], &zone["override"]),
        (&json!("1r/m"), &Value::Null)
    );
    assert_eq!(status(&weir, 1, "/req/ok"), 429, "what was counted stays");
    // What the file says by now is what holds.
    weir.reload(&yaml.replace("extras: auto", "extras: off"));
    assert_ne!(get(weir.address(), "/extras").status, 503);
    breaker("auto");
    assert_ne!(get(weir.address(), "/guarded").status, 503);
}
