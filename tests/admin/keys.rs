//! Keys: the busiest ones, the state of one, and actions of operators on it.

use serde_json::{Value, json};

use crate::support::api::TOKEN;
use crate::support::{Api, Client, Origin, Weir, eventually, get, get_from};

fn limited(origin: &Origin) -> Weir {
    Weir::before(
        origin,
        &format!(
            "admin: {{ listen: ADMIN, token: {TOKEN} }}
limit_req_zones:
  perip: {{ key: $binary_remote_addr, size: 1m, rate: 1r/m }}
  perkey: {{ key: $http_x_key, size: 1m, rate: 1r/m, on_empty_key: address }}
limit_conn_zones: {{ places: {{ key: $binary_remote_addr, size: 1m }} }}
upstreams: {{ app: {{ servers: [ 'ORIGIN' ] }} }}
servers:
- listen: LISTEN
  locations:
  - {{ path: /, proxy_pass: app, limit_req: {{ zone: perip, burst: 2, nodelay: true }} }}
  - {{ path: /punish, proxy_pass: app, limit_req: {{ zone: perip, burst: 2, nodelay: true, penalty: 1h }} }}
  - {{ path: /keyed, proxy_pass: app, limit_req: {{ zone: perkey }} }}
  - {{ path: /hold, proxy_pass: app, limit_conn: {{ zone: places, limit: 2 }} }}
"
        ),
    )
}

fn statuses(weir: &Weir, source: [u8; 4], path: &str, times: usize) -> Vec<u16> {
    (0..times)
        .map(|_| get_from(source, weir.address(), path).status)
        .collect()
}

fn keyed(weir: &Weir, key: &str) -> u16 {
    let mut client = Client::connect(weir.address());
    client.send(format!(
        "GET /keyed HTTP/1.1\r\nHost: x\r\nX-Key: {key}\r\n\r\n"
    ));
    client.response().status
}

#[test]
fn the_most_refused_come_first() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let api = Api(weir.admin_address());
    for (last, times) in [(1, 4), (2, 9), (3, 2)] {
        statuses(&weir, [127, 0, 0, last], "/ok", times);
    }
    let keys = api.get("/api/zones/perip/keys?sort=refuse&limit=2");
    let short: Vec<_> = keys
        .as_array()
        .expect("a list")
        .iter()
        .map(|it| (it["key"].clone(), it["pass"].clone(), it["refuse"].clone()))
        .collect();
    assert_eq!(
        short,
        [
            (json!("127.0.0.2"), json!(3), json!(6)),
            (json!("127.0.0.1"), json!(3), json!(1))
        ]
    );
    let excess = keys[0]["excess"].as_f64().expect("a number");
    assert!((1.0..=2.0).contains(&excess), "{excess}");
    assert_eq!(
        (&keys[0]["delay"], &keys[0]["missed"]),
        (&json!(0), &json!(0))
    );
    let all = api.get("/api/zones/perip/keys?sort=demand");
    assert_eq!(all.as_array().map(Vec::len), Some(3));
    for wrong in ["sort=most", "limit=0", "limit=x"] {
        let (status, _) = api.call("GET", &format!("/api/zones/perip/keys?{wrong}"), None);
        assert_eq!(status, 400, "{wrong}");
    }
    assert_eq!(api.call("GET", "/api/zones/unknown/keys", None).0, 404);
}

#[test]
fn current_refusals_are_sorted_before_past_ones() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let api = Api(weir.admin_address());
    statuses(&weir, [127, 0, 0, 1], "/ok", 20);
    let refused = |keys: &Value| keys[0]["per_second"]["refuse"].as_f64().unwrap_or_default();
    let now = || api.get("/api/zones/perip/keys?sort=now&limit=1");
    assert!(refused(&now()) > 0.0);
    eventually("no request is refused", || refused(&now()) == 0.0);
    statuses(&weir, [127, 0, 0, 2], "/ok", 5);
    assert_eq!(now()[0]["key"], "127.0.0.2");
    let ever = api.get("/api/zones/perip/keys?sort=refuse&limit=1");
    assert_eq!(ever[0]["key"], "127.0.0.1");
    assert_eq!(ever[0]["refuse"], 17);
}

#[test]
fn one_key_is_looked_up_and_forgotten() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let api = Api(weir.admin_address());
    let path = "/api/zones/perip/keys/127.0.0.1";
    let fresh = api.get(path);
    assert_eq!(
        (&fresh["known"], &fresh["standing"]["remaining"]),
        (&json!(false), &json!(3))
    );
    assert_eq!(
        statuses(&weir, [127, 0, 0, 1], "/ok", 4),
        [200, 200, 200, 429]
    );
    let spent = api.get(path);
    assert_eq!(
        (&spent["known"], &spent["standing"]["remaining"]),
        (&json!(true), &json!(0))
    );
    assert_eq!((&spent["pass"], &spent["refuse"]), (&json!(3), &json!(1)));
    assert!(
        spent["standing"]["retry_after"]
            .as_f64()
            .is_some_and(|it| it > 50.0)
    );
    assert_eq!(api.delete(path)["forgotten"], true);
    assert_eq!(api.delete(path)["forgotten"], false);
    assert_eq!(get(weir.address(), "/ok").status, 200);
    assert_eq!(api.call("GET", "/api/zones/perip/keys/%5Cq", None).0, 400);
}

#[test]
fn forgetting_ends_a_penalty() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let api = Api(weir.admin_address());
    let path = "/api/zones/perip/keys/127.0.0.1";
    assert_eq!(
        statuses(&weir, [127, 0, 0, 1], "/punish", 5),
        [200, 200, 200, 429, 429]
    );
    let punished = api.get(path);
    assert!(
        punished["penalty"]
            .as_f64()
            .is_some_and(|left| left > 3000.0),
        "{punished}"
    );
    api.delete(path);
    assert_eq!(api.get(path)["penalty"], Value::Null);
    assert_eq!(get(weir.address(), "/punish").status, 200);
}

#[test]
fn keys_of_any_bytes_are_shown_and_found_again() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let api = Api(weir.admin_address());
    let long = "l".repeat(300);
    for key in ["a/b c%?", "back\\slash", "t\tab", "ünïcode", &long, ""] {
        keyed(&weir, key);
        keyed(&weir, key);
    }
    let keys = api.get("/api/zones/perkey/keys?limit=100");
    let keys = keys.as_array().expect("a list");
    let shown: Vec<_> = keys.iter().filter_map(|key| key["key"].as_str()).collect();
    assert_eq!(shown.len(), 6, "{shown:?}");
    for expected in [
        "a/b c%?",
        "back\\\\slash",
        "t\\x09ab",
        "ünïcode",
        "(no key) 127.0.0.1",
    ] {
        assert!(shown.contains(&expected), "{expected} in {shown:?}");
    }
    for key in shown {
        let path = format!("/api/zones/perkey/keys/{}", encode(key));
        let found = api.get(&path);
        assert_eq!(
            (&found["key"], &found["known"]),
            (&json!(key), &json!(true))
        );
        assert_eq!(
            (&found["pass"], &found["refuse"]),
            (&json!(1), &json!(1)),
            "{key}"
        );
        assert_eq!(api.delete(&path)["forgotten"], true, "{key}");
    }
    assert_eq!(keyed(&weir, &long), 200);
}

/// Every byte that is not a plain letter as its number.
fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric();
    let encoded = text.bytes().map(|byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    encoded.collect()
}

#[test]
fn a_blocked_key_is_refused_until_it_is_let_go() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let api = Api(weir.admin_address());
    let path = "/api/zones/perip/keys/127.0.0.1/block";
    let marked = api.change("PUT", path, &json!({ "for": "10m", "reason": "a scraper" }));
    assert_eq!(marked["marks"][0]["mark"], "block");
    let refused = get(weir.address(), "/ok");
    assert_eq!(refused.status, 429);
    let after: u64 = refused
        .get("retry-after")
        .and_then(|it| it.parse().ok())
        .expect("seconds");
    assert!((590..=600).contains(&after), "{after}");
    assert_eq!(get_from([127, 0, 0, 2], weir.address(), "/ok").status, 200);
    let zone = api.get("/api/zones/perip");
    assert_eq!((&zone["marks"], &zone["refuse"]), (&json!(1), &json!(1)));
    assert_eq!(zone["marked"][0]["reason"], "a scraper");
    let refusals = api.get("/api/refusals");
    let last = refusals["refusals"]
        .as_array()
        .and_then(|all| all.last())
        .expect("one");
    assert_eq!(
        (&last["reason"], &last["key"]),
        (&json!("block"), &json!("127.0.0.1"))
    );
    assert_eq!(last["detail"], "blocked by operator: a scraper");
    weir.error_line("limiting requests, blocked by operator");
    api.delete(path);
    assert_eq!(get(weir.address(), "/ok").status, 200);
    api.change("PUT", path, &json!({ "for": "3s" }));
    assert_eq!(get(weir.address(), "/ok").status, 429);
    eventually("its time is over", || {
        get(weir.address(), "/ok").status == 200
    });
    for (body, why) in [
        (json!({ "for": "soon" }), "soon"),
        (json!({ "for": 0 }), "nothing"),
        (json!({ "for": "2y" }), "365d"),
        (json!({ "requests": 5 }), "grant"),
    ] {
        let (status, value) = api.call("PUT", path, Some(&body));
        assert_eq!(status, 400, "{body}");
        assert!(
            value["error"].as_str().is_some_and(|it| it.contains(why)),
            "{value}"
        );
    }
}

#[test]
fn exempt_keys_are_not_limited_and_granted_ones_for_so_many_requests() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let api = Api(weir.admin_address());
    let one = [127, 0, 0, 1];
    assert_eq!(statuses(&weir, one, "/ok", 4), [200, 200, 200, 429]);
    let path = "/api/zones/perip/keys/127.0.0.1";
    // Without a body it is for an hour.
    assert_eq!(api.call("PUT", &format!("{path}/exempt"), None).0, 200);
    assert_eq!(statuses(&weir, one, "/ok", 3), [200, 200, 200]);
    api.delete(&format!("{path}/exempt"));
    assert_eq!(statuses(&weir, one, "/ok", 1), [429]);
    let granted = api.change("PUT", &format!("{path}/grant"), &json!({ "requests": 2 }));
    assert_eq!(granted["marks"][0]["requests"], 2);
    assert_eq!(statuses(&weir, one, "/ok", 3), [200, 200, 429]);
    assert_eq!(api.get(path)["marks"], json!([]));
    let nothing = json!({});
    assert_eq!(
        api.call("PUT", &format!("{path}/grant"), Some(&nothing)).0,
        400
    );
    let places = "/api/zones/places/keys/127.0.0.1/grant";
    assert_eq!(
        api.call("PUT", places, Some(&json!({ "requests": 1 }))).0,
        409
    );
}

#[test]
fn places_are_counted_by_key_and_can_be_blocked_and_exempt() {
    let origin = Origin::start();
    let weir = limited(&origin);
    let api = Api(weir.admin_address());
    let hold = || {
        origin.hold("g", || {
            let client = Client::connect(weir.address());
            client.get("/hold?gate=g");
            client
        })
    };
    let _first = hold();
    let _second = hold();
    assert_eq!(get(weir.address(), "/hold?gate=h").status, 503);
    let keys = api.get("/api/zones/places/keys");
    assert_eq!(keys[0]["key"], "127.0.0.1");
    assert_eq!(
        (&keys[0]["excess"], &keys[0]["refuse"]),
        (&json!(2.0), &json!(1))
    );
    let path = "/api/zones/places/keys/127.0.0.1";
    assert_eq!(api.get(path)["standing"]["remaining"], 0);
    assert_eq!(api.call("DELETE", path, None).0, 409);
    api.change("PUT", &format!("{path}/exempt"), &json!({}));
    assert_eq!(get(weir.address(), "/hold/ok").status, 200);
    api.change("PUT", &format!("{path}/block"), &json!({}));
    assert_eq!(get(weir.address(), "/hold/ok").status, 503);
    let refusals = api.get("/api/refusals?limit=2");
    let reasons = refusals["refusals"].as_array().expect("a list");
    let reasons: Vec<_> = reasons.iter().map(|it| &it["reason"]).collect();
    assert_eq!(reasons, ["connections", "block"]);
}
