//! `/api/explain`: the verdicts on a request, without charging it.

use serde_json::{Value, json};

use crate::support::api::TOKEN;
use crate::support::{Api, Origin, Weir, get, get_from};

fn weir(origin: &Origin) -> Weir {
    Weir::before(
        origin,
        &format!(
            "admin: {{ listen: ADMIN, token: {TOKEN} }}
real_ip: {{ from: [ 127.0.0.8 ], header: X-Forwarded-For }}
limit_req_zones:
  perip: {{ key: $binary_remote_addr, size: 1m, rate: 1r/m, overrides: {{ 127.0.0.9: {{ rate: unlimited }} }} }}
  slow: {{ key: $binary_remote_addr, size: 1m, rate: 1r/m }}
limit_conn_zones: {{ places: {{ key: $http_x_key, size: 1m }} }}
upstreams: {{ app: {{ servers: [ 'ORIGIN' ] }} }}
servers:
- listen: LISTEN
  server_name: front
  locations:
  - {{ path: /, proxy_pass: app, limit_req: {{ zone: perip, burst: 1, nodelay: true }}, limit_conn: {{ zone: places, limit: 3 }} }}
  - {{ path: /slow/, proxy_pass: app, limit_req: {{ zone: slow, burst: 5 }} }}
  - {{ path: /free, return: 204 }}
- listen: LISTEN2
  server_name: other
  return: 404
"
        ),
    )
}

#[test]
fn each_rule_is_explained_and_nothing_is_charged() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let api = Api(weir.admin_address());
    let ask = |body: Value| api.change("POST", "/api/explain", &body);
    let question =
        json!({ "method": "GET", "host": "front", "path": "/ok", "remote_addr": "127.0.0.1" });
    for _ in 0..20 {
        assert_eq!(ask(question.clone())["verdict"], "pass");
    }
    assert_eq!(
        [0; 3].map(|_| get(weir.address(), "/ok").status),
        [200, 200, 429]
    );
    let before = api.get("/api/zones");
    let refused = ask(question);
    assert_eq!(api.get("/api/zones"), before, "nothing is counted");
    assert_eq!(
        (&refused["server"], &refused["location"]),
        (&json!("front"), &json!("/"))
    );
    assert_eq!(
        (&refused["verdict"], &refused["status"]),
        (&json!("refuse"), &json!(429))
    );
    assert_eq!(refused["action"], "forward to app");
    assert!(
        refused["retry_after"]
            .as_f64()
            .is_some_and(|after| after > 50.0),
        "{refused}"
    );
    let rule = &refused["rules"][0];
    for (field, expected) in [
        ("kind", json!("limit_req")),
        ("zone", json!("perip")),
        ("key", json!("127.0.0.1")),
        ("rate", json!("1r/m")),
        ("burst", json!(1.0)),
        ("verdict", json!("refuse")),
    ] {
        assert_eq!(rule[field], expected, "{field} of {rule}");
    }
    assert_eq!(
        (&rule["state"]["limit"], &rule["state"]["remaining"]),
        (&json!(2), &json!(0))
    );
    let places = &refused["rules"][1];
    assert_eq!(
        (&places["zone"], &places["key"]),
        (&json!("places"), &Value::Null)
    );
    assert_eq!(places["verdict"], "pass");
}

#[test]
fn everything_about_a_request_counts() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let api = Api(weir.admin_address());
    let ask = |body: Value| api.change("POST", "/api/explain", &body);
    let verdict = |answer: &Value| answer["verdict"].clone();
    let from = |address| json!({ "host": "front", "path": "/slow/x", "remote_addr": address });
    get_from([127, 0, 0, 3], weir.address(), "/slow/ok");
    let delayed = ask(from("127.0.0.3"));
    assert_eq!(verdict(&delayed), "delay");
    assert!(
        delayed["wait"]
            .as_f64()
            .is_some_and(|wait| wait > 0.0 && wait <= 60.0)
    );
    assert_eq!(verdict(&ask(from("127.0.0.4"))), "pass");
    let headers = json!({ "x-forwarded-for": "127.0.0.3", "x-key": "k" });
    let proxied = ask(
        json!({ "host": "front", "path": "/slow/x", "remote_addr": "127.0.0.8", "headers": headers }),
    );
    assert_eq!(
        (&proxied["client"], verdict(&proxied)),
        (&json!("127.0.0.3"), json!("delay"))
    );
    let own = ask(json!({ "host": "front", "path": "/", "remote_addr": "127.0.0.9" }));
    assert_eq!(own["rules"][0]["reason"], "unlimited by `overrides`");
    let free = ask(json!({ "path": "/free/x" }));
    assert_eq!(
        (&free["action"], &free["rules"]),
        (&json!("return 204"), &json!([]))
    );
    let other = ask(json!({ "host": "other", "path": "/" }));
    assert_eq!(
        other["listen"],
        weir.second_address().to_string(),
        "where that host is known"
    );
    let port = weir.second_address().port().to_string();
    assert_eq!(
        ask(json!({ "host": "front", "listen": port }))["server"],
        "other"
    );
    let whole = ask(json!({ "path": "http://front/slow/x", "remote_addr": "2001:db8::1" }));
    assert_eq!(
        (&whole["server"], &whole["client"]),
        (&json!("front"), &json!("2001:db8::1"))
    );
}

#[test]
fn explain_considers_the_actions_of_operators() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let api = Api(weir.admin_address());
    let ask = |address| {
        let body = json!({ "host": "front", "path": "/slow/x", "remote_addr": address });
        api.change("POST", "/api/explain", &body)
    };
    api.change(
        "PUT",
        "/api/zones/slow/keys/127.0.0.4/block",
        &json!({ "reason": "enough" }),
    );
    let blocked = ask("127.0.0.4");
    assert_eq!(
        blocked["reason"],
        "zone `slow`: blocked by operator: enough"
    );
    let server = format!("/api/upstreams/app/servers/{}", origin.address());
    api.change("PATCH", &server, &json!({ "state": "down" }));
    assert_eq!(
        ask("127.0.0.5")["obstacles"],
        json!(["no server of its upstream is available"])
    );
}

#[test]
fn malformed_explain_requests_are_refused_and_no_token_is_needed() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let api = Api(weir.admin_address());
    for (body, why) in [
        ("no json", "not JSON"),
        (r#"{"path":"no path"}"#, "`no path`"),
        (r#"{"path":"/../x"}"#, "climbs above the root"),
        (r#"{"method":"G T"}"#, "`G T` is no method"),
        (r#"{"remote_addr":"here"}"#, "IP address"),
        (r#"{"headers":{"a b":"c"}}"#, "`a b` is no header field"),
        (r#"{"listen":"81"}"#, "no listener at `81`"),
        (r#"{"verb":"GET"}"#, "unknown field `verb`"),
    ] {
        let answer = api.send("POST", "/api/explain", "", body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        assert!(
            answer.text().contains(why),
            "{} about {body}",
            answer.text()
        );
    }
    // As curl sends it.
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    assert_eq!(api.send("POST", "/api/explain", form, "{}").status, 200);
}

#[test]
fn the_running_configuration_is_shown_without_its_secrets() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let api = Api(weir.admin_address());
    let config = api.get("/api/config");
    assert_eq!(config["admin"]["token"], "***");
    assert_eq!(config["limit_req_zones"]["perip"]["rate"], "1r/m");
    assert!(!config.to_string().contains(TOKEN));
}
