//! Limits of a running zone that are amended and reset.

use serde_json::{Value, json};

use crate::support::api::TOKEN;
use crate::support::{Api, Client, Origin, Weir, get, get_from};

fn weir(origin: &Origin) -> Weir {
    Weir::before(
        origin,
        &format!(
            "admin: {{ listen: ADMIN, token: {TOKEN} }}
limit_req_zones:
  perip: {{ key: $binary_remote_addr, size: 1m, rate: 1r/m }}
  windows: {{ key: $binary_remote_addr, size: 1m, algorithm: fixed_window, limit: 2, window: 1h }}
limit_conn_zones: {{ places: {{ key: $binary_remote_addr, size: 1m }} }}
upstreams: {{ app: {{ servers: [ 'ORIGIN' ] }} }}
servers:
- listen: LISTEN
  server_name: front
  locations:
  - {{ path: /, proxy_pass: app, limit_req: {{ zone: perip, burst: 1, nodelay: true }} }}
  - {{ path: /windows, proxy_pass: app, limit_req: {{ zone: windows }} }}
  - {{ path: /hold, proxy_pass: app, limit_conn: {{ zone: places, limit: 1 }} }}
"
        ),
    )
}

fn statuses<const N: usize>(weir: &Weir, source: [u8; 4], path: &str) -> [u16; N] {
    [0; N].map(|_| get_from(source, weir.address(), path).status)
}

#[test]
fn rate_and_burst_change_at_once_and_counters_stay() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let api = Api(weir.admin_address());
    let one = [127, 0, 0, 1];
    assert_eq!(statuses(&weir, one, "/ok"), [200, 200, 429]);
    let path = "/api/zones/perip";
    let changed = api.change("PATCH", path, &json!({ "rate": "2r/m", "burst": 3 }));
    assert_eq!(
        (&changed["rate"], &changed["configured"]),
        (&json!("2r/m"), &json!("1r/m"))
    );
    assert_eq!(changed["override"], json!({ "rate": "2r/m", "burst": 3 }));
    assert_eq!(changed["rules"][0]["burst"], 3.0);
    let config = api.get("/api/config");
    assert_eq!(config["limit_req_zones"]["perip"]["rate"], "2r/m");
    let locations = &config["servers"][0]["locations"];
    assert_eq!(locations[0]["limit_req"]["burst"], 3);
    assert_eq!(locations[1]["limit_req"]["burst"], Value::Null);
    assert_eq!(
        (&changed["pass"], &changed["refuse"]),
        (&json!(2), &json!(1))
    );
    // Two of the four are spent already.
    assert_eq!(statuses(&weir, one, "/ok"), [200, 200, 429]);
    assert_eq!(
        statuses(&weir, [127, 0, 0, 2], "/ok"),
        [200, 200, 200, 200, 429]
    );
    let refused = get(weir.address(), "/ok");
    assert_eq!(refused.get("ratelimit-policy"), Some("\"perip\";q=4;w=120"));
    let burst_back = api.change("PATCH", path, &json!({ "burst": null }));
    assert_eq!(burst_back["override"], json!({ "rate": "2r/m" }));
    let back = api.delete("/api/zones/perip/override");
    assert_eq!(
        (&back["rate"], &back["override"]),
        (&json!("1r/m"), &Value::Null)
    );
    assert_eq!(statuses(&weir, [127, 0, 0, 3], "/ok"), [200, 200, 429]);
    assert_eq!(api.get(path)["pass"], 10);
    let keys = api.get("/api/zones/perip/keys?sort=pass&limit=1");
    assert_eq!(keys[0]["pass"], 4, "who is busy is known as before");
}

#[test]
fn a_zone_may_be_opened_for_all_and_windows_and_places_have_a_limit() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let api = Api(weir.admin_address());
    let one = [127, 0, 0, 1];
    api.change("PATCH", "/api/zones/perip", &json!({ "rate": "unlimited" }));
    assert_eq!(statuses(&weir, one, "/ok"), [200; 6]);
    api.change("PATCH", "/api/zones/windows", &json!({ "limit": 4 }));
    assert_eq!(api.get("/api/zones/windows")["rate"], "4r/1h");
    assert_eq!(
        statuses(&weir, one, "/windows/ok"),
        [200, 200, 200, 200, 429]
    );
    api.delete("/api/zones/perip/override");
    assert_eq!(statuses(&weir, one, "/ok"), [200, 200, 429]);
    assert_eq!(
        api.get("/api/zones/windows")["rate"],
        "4r/1h",
        "one zone is not the other"
    );
    let hold = || {
        origin.hold("g", || {
            let client = Client::connect(weir.address());
            client.get("/hold?gate=g");
            client
        })
    };
    let _first = hold();
    assert_eq!(get(weir.address(), "/hold?gate=h").status, 503);
    api.change("PATCH", "/api/zones/places", &json!({ "limit": 2 }));
    let _second = hold();
    assert_eq!(get(weir.address(), "/hold?gate=h").status, 503);
}

#[test]
fn amendments_are_validated_like_the_file() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let api = Api(weir.admin_address());
    for (zone, body, why) in [
        ("perip", json!({ "rate": "fast" }), "`fast` is not a rate"),
        (
            "perip",
            json!({ "burst": "many" }),
            "`many` is not a number of requests",
        ),
        (
            "perip",
            json!({ "limit": 5 }),
            "`limit` has no meaning for the algorithm `leaky_bucket`",
        ),
        (
            "windows",
            json!({ "rate": "5r/s" }),
            "`rate` has no meaning for the algorithm `fixed_window`",
        ),
        ("perip", json!({ "speed": 5 }), "unknown key `speed`"),
        ("perip", json!({ "speed": null }), "unknown key `speed`"),
        ("places", json!({ "limit": 0 }), "`0` is too small"),
        (
            "places",
            json!({ "rate": "1r/s" }),
            "`rate` cannot stand here",
        ),
        ("perip", json!({}), "give it"),
        ("perip", json!([]), "expected a map"),
    ] {
        let path = format!("/api/zones/{zone}");
        let (status, value) = api.call("PATCH", &path, Some(&body));
        assert_eq!(status, 400, "{body}");
        let said = value["error"].as_str().expect("a reason");
        assert!(said.contains(why), "{said:?} about {body}");
        assert_eq!(api.get(&path)["override"], Value::Null);
    }
    assert_eq!(
        api.call(
            "PATCH",
            "/api/zones/unknown",
            Some(&json!({ "rate": "1r/s" }))
        )
        .0,
        404
    );
}

#[test]
fn an_override_lasts_until_the_next_reload_and_marks_for_longer() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let api = Api(weir.admin_address());
    api.change(
        "PATCH",
        "/api/zones/perip",
        &json!({ "rate": "2r/m", "burst": 5 }),
    );
    api.change("PUT", "/api/zones/perip/keys/127.0.0.7/block", &json!({}));
    assert_eq!(statuses(&weir, [127, 0, 0, 1], "/ok"), [200, 200, 200]);
    weir.signal("HUP");
    crate::support::eventually("the reload", || {
        api.get("/api/zones/perip")["override"] == Value::Null
    });
    let zone = api.get("/api/zones/perip");
    assert_eq!(
        (&zone["rate"], &zone["pass"], &zone["marks"]),
        (&json!("1r/m"), &json!(3), &json!(1))
    );
    assert_eq!(statuses(&weir, [127, 0, 0, 1], "/ok"), [429]);
    assert_eq!(statuses(&weir, [127, 0, 0, 7], "/ok"), [429]);
    let keys = api.get("/api/zones/perip/keys?sort=pass&limit=1");
    assert_eq!(keys[0]["pass"], 3, "who is busy is known as before");
}
