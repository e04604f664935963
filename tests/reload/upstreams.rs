//! The state of servers when their upstream changes.

use serde_json::{Value, json};

use crate::support::api::TOKEN;
use crate::support::{Api, Origin, Weir, eventually, get};

fn with(servers: &[(&Origin, &str)], also: &str) -> String {
    let servers: String = servers
        .iter()
        .map(|(origin, more)| {
            let address = origin.address();
            format!("    - {{ address: '{address}'{more} }}\n")
        })
        .collect();
    format!(
        "admin: {{ listen: ADMIN, token: {TOKEN} }}
upstreams:
  app:
    breaker: {{}}
{also}    servers:
{servers}servers:
- listen: LISTEN
  locations:
  - {{ path: /, proxy_pass: app }}
"
    )
}

fn server(weir: &Weir, origin: &Origin) -> Value {
    let upstreams = Api(weir.admin_address()).get("/api/upstreams");
    let servers = upstreams[0]["servers"].as_array().expect("a list");
    let address = json!(origin.address().to_string());
    let found = servers.iter().find(|server| server["address"] == address);
    found.expect("the server is listed").clone()
}

fn path(origin: &Origin) -> String {
    format!("/api/upstreams/app/servers/{}", origin.address())
}

#[test]
fn an_operators_word_and_the_counters_outlast_a_server_that_comes() {
    let [one, two, three, four] = [(); 4].map(|()| Origin::start());
    let weir = Weir::start(&with(&[(&one, ""), (&two, ""), (&three, "")], ""));
    let api = Api(weir.admin_address());
    for _ in 0..6 {
        assert_eq!(get(weir.address(), "/ok").status, 200);
    }
    api.change("PATCH", &path(&one), &json!({ "state": "drain" }));
    api.change("PATCH", &path(&two), &json!({ "state": "down" }));
    api.change("PATCH", &path(&three), &json!({ "breaker": "open" }));
    assert_eq!(get(weir.address(), "/ok").status, 503);
    let before = (one.count(), two.count(), three.count());
    let all = [(&one, ", weight: 3"), (&two, ""), (&three, ""), (&four, "")];
    weir.reload(&with(&all, ""));
    for _ in 0..5 {
        assert_eq!(get(weir.address(), "/ok").status, 200);
    }
    assert_eq!(four.count(), 5, "no other server gets requests");
    assert_eq!((one.count(), two.count(), three.count()), before);
    assert_eq!(server(&weir, &one)["draining"], true);
    assert_eq!(server(&weir, &two)["down"], true);
    assert_eq!(server(&weir, &three)["forced"], "open");
    assert_eq!(server(&weir, &one)["requests"], before.0);
    api.change("PATCH", &path(&three), &json!({ "breaker": "auto" }));
    api.change("PATCH", &path(&three), &json!({ "breaker": "closed" }));
    assert!(server(&weir, &three)["up"] == true);
    // The file says something of it that it did not say before, and then not any more.
    let named = [(&one, ""), (&two, ", down: true"), (&four, "")];
    weir.reload(&with(&named, ""));
    weir.reload(&with(&[(&one, ""), (&two, ""), (&four, "")], ""));
    assert_eq!(server(&weir, &two)["down"], false);
    assert_eq!(server(&weir, &one)["draining"], true);
}

#[test]
fn an_unhealthy_server_stays_unhealthy_across_a_reload() {
    let (well, ill) = (Origin::start(), Origin::start());
    let check = |interval: &str| {
        format!("    health_check: {{ path: /ok, interval: {interval}, fall: 1, rise: 1 }}\n")
    };
    let both = [(&well, ""), (&ill, "")];
    let weir = Weir::start(&with(&both, &check("50ms")));
    ill.behave("/status?code=503");
    eventually("it is found ill", || {
        server(&weir, &ill)["healthy"] == false
    });
    // So long that none is over before the test is; the first check of the new ones finds it as ill.
    weir.reload(&with(&both, &check("1h")));
    assert_eq!(server(&weir, &ill)["healthy"], false);
    assert_eq!(server(&weir, &well)["healthy"], true);
    for _ in 0..4 {
        assert_eq!(get(weir.address(), "/ok").status, 200);
    }
}
