//! Actions of operators on servers, breakers and groups, and what clients notice of them.

use serde_json::{Value, json};

use crate::support::api::TOKEN;
use crate::support::{Api, Origin, Weir, eventually, get};

fn two_servers(one: &Origin, other: &Origin) -> Weir {
    Weir::start(&format!(
        "admin: {{ listen: ADMIN, token: {TOKEN} }}
degrade_groups: {{ extras: auto }}
upstreams:
  app:
    breaker: {{}}
    servers: [ '{}', {{ address: '{}', down: true }} ]
servers:
- listen: LISTEN
  server_name: front
  locations:
  - {{ path: /, proxy_pass: app, breaker: {{}} }}
  - {{ path: /extras, proxy_pass: app, degrade_group: extras }}
",
        one.address(),
        other.address()
    ))
}

fn server<'v>(upstreams: &'v Value, origin: &Origin) -> &'v Value {
    let servers = upstreams[0]["servers"].as_array().expect("servers");
    let address = origin.address().to_string();
    let found = servers.iter().find(|server| server["address"] == address);
    found.expect("the server is listed")
}

#[test]
fn servers_are_drained_disabled_and_enabled() {
    let (one, other) = (Origin::start(), Origin::start());
    let weir = two_servers(&one, &other);
    let api = Api(weir.admin_address());
    let path = |origin: &Origin| format!("/api/upstreams/app/servers/{}", origin.address());
    let asked = || {
        let before = (one.count(), other.count());
        for _ in 0..4 {
            get(weir.address(), "/ok");
        }
        (one.count() - before.0, other.count() - before.1)
    };
    let state = |state| json!({ "state": state });
    assert_eq!(asked(), (4, 0), "as the file says");
    let up = api.change("PATCH", &path(&other), &state("up"));
    assert_eq!((&up["up"], &up["down"]), (&json!(true), &json!(false)));
    assert_eq!(asked(), (2, 2));
    let drained = api.change("PATCH", &path(&one), &state("drain"));
    assert_eq!(
        (&drained["up"], &drained["draining"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(asked(), (0, 4));
    api.change("PATCH", &path(&one), &state("down"));
    let upstreams = api.get("/api/upstreams");
    let down = server(&upstreams, &one);
    assert_eq!(
        (&down["down"], &down["draining"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(asked(), (0, 4));
    api.change("PATCH", &path(&other), &state("down"));
    assert_eq!(get(weir.address(), "/ok").status, 502, "no server is left");
    api.change("PATCH", &path(&one), &state("up"));
    assert_eq!(asked(), (4, 0));
    let body = json!({ "state": "up" });
    for (path, why) in [
        ("/api/upstreams/other/servers/x", "no upstream `other`"),
        (
            "/api/upstreams/app/servers/192.0.2.1:1",
            "no server `192.0.2.1:1`",
        ),
    ] {
        let (status, value) = api.call("PATCH", path, Some(&body));
        assert_eq!(status, 404);
        assert!(
            value["error"].as_str().is_some_and(|it| it.contains(why)),
            "{value}"
        );
    }
    assert_eq!(api.call("PATCH", &path(&one), Some(&json!({}))).0, 400);
}

#[test]
fn breakers_are_forced_and_let_go() {
    let (one, other) = (Origin::start(), Origin::start());
    let weir = two_servers(&one, &other);
    let api = Api(weir.admin_address());
    let force = |breaker: &str| {
        let body = json!({ "server": "front", "location": "/", "breaker": breaker });
        let shown = api.change("PATCH", "/api/breakers", &body);
        (shown["state"].clone(), shown["forced"].clone())
    };
    assert_eq!(force("open"), (json!("open"), json!("open")));
    assert_eq!(get(weir.address(), "/ok").status, 503);
    assert_eq!(
        get(weir.address(), "/extras").status,
        200,
        "it is another location"
    );
    assert_eq!(force("auto").1, Value::Null);
    assert_eq!(get(weir.address(), "/ok").status, 200);
    assert_eq!(api.get("/api/breakers")[0]["opened"], 1);

    let path = format!("/api/upstreams/app/servers/{}", one.address());
    let shown = api.change("PATCH", &path, &json!({ "breaker": "open" }));
    assert_eq!(
        (&shown["breaker"], &shown["forced"], &shown["up"]),
        (&json!("open"), &json!("open"), &json!(false))
    );
    assert_eq!(get(weir.address(), "/ok").status, 503);
    let shown = api.change("PATCH", &path, &json!({ "breaker": "closed" }));
    assert_eq!(
        (&shown["breaker"], &shown["up"]),
        (&json!("closed"), &json!(true))
    );
    assert_eq!(get(weir.address(), "/ok").status, 200);
    let nowhere = json!({ "server": "front", "location": "/extras", "breaker": "open" });
    assert_eq!(api.call("PATCH", "/api/breakers", Some(&nowhere)).0, 404);
}

#[test]
fn a_group_is_switched_for_all_its_locations() {
    let (one, other) = (Origin::start(), Origin::start());
    let weir = two_servers(&one, &other);
    let api = Api(weir.admin_address());
    let switch = |mode| api.change("PATCH", "/api/groups/extras", &json!({ "mode": mode }));
    switch("on");
    assert_eq!(get(weir.address(), "/extras").status, 503);
    assert_eq!(get(weir.address(), "/ok").status, 200);
    switch("auto");
    assert_eq!(get(weir.address(), "/extras").status, 200);
}

#[test]
fn a_look_at_everything_counts_what_happened() {
    let (one, other) = (Origin::start(), Origin::start());
    let weir = two_servers(&one, &other);
    let api = Api(weir.admin_address());
    get(weir.address(), "/ok");
    eventually("the request is over", || {
        api.get("/api/status")["requests"]["total"].as_u64() >= Some(1)
    });
    let status = api.get("/api/status");
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert!(status["requests"]["by_status"]["2xx"].as_u64() >= Some(1));
    assert!(status["connections"]["accepted"].as_u64() >= Some(1));
    assert!(
        status["loops"]
            .as_array()
            .is_some_and(|loops| !loops.is_empty())
    );
    assert_eq!(status["ready"], true);
}
