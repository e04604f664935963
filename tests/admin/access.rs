//! Access to the admin listener, and its errors.

use serde_json::{Value, json};

use crate::support::api::TOKEN;
use crate::support::{Api, Client, Weir, eventually};

fn guarded() -> Weir {
    let weir = Weir::start(&format!(
        "admin: {{ listen: ADMIN, token: {TOKEN} }}
degrade_groups: {{ extras: auto }}
servers: [ {{ listen: LISTEN, return: 204, degrade_group: extras }} ]
"
    ));
    let admin = weir.admin_address();
    eventually("the admin listener", || Client::try_connect(admin).is_ok());
    weir
}

const GROUP: &str = "/api/groups/extras";
const JSON: &str = "Content-Type: application/json\r\n";

fn error(text: &str) -> String {
    let value: Value = serde_json::from_str(text).expect("JSON");
    value["error"].as_str().expect("a reason").to_owned()
}

#[test]
fn changing_takes_the_token_and_looking_does_not() {
    let weir = guarded();
    let api = Api(weir.admin_address());
    assert_eq!(api.send("GET", "/api/groups", "", "").status, 200);
    let body = r#"{"mode":"on"}"#;
    let without = api.send("PATCH", GROUP, JSON, body);
    assert_eq!(without.status, 401);
    assert!(without.get("www-authenticate").is_some());
    assert!(error(&without.text()).contains("token is needed"));
    let changed = api.change("PATCH", GROUP, &json!({ "mode": "on" }));
    assert_eq!(changed, json!({ "name": "extras", "mode": "on" }));
    assert_eq!(api.get("/api/groups"), json!([changed]));
}

#[test]
fn wrong_tokens_are_logged_once_a_minute() {
    let weir = guarded();
    let api = Api(weir.admin_address());
    for path in ["/api/zones", "/healthz", GROUP] {
        for wrong in ["Bearer no", "Basic no", "Bearer a-token-for-test"] {
            let fields = format!("Authorization: {wrong}\r\n");
            assert_eq!(api.send("GET", path, &fields, "").status, 401, "{path}");
        }
    }
    weir.error_line("wrong token");
    assert_eq!(weir.stderr().matches("wrong token").count(), 1);
    assert!(!weir.stderr().contains(TOKEN));
}

#[test]
fn without_a_token_in_the_file_nothing_can_be_changed() {
    let weir =
        Weir::start("admin: { listen: ADMIN }\nservers: [ { listen: LISTEN, return: 204 } ]\n");
    let api = Api(weir.admin_address());
    let (status, value) = api.call("PATCH", GROUP, Some(&json!({ "mode": "on" })));
    assert_eq!(status, 403);
    assert!(value["error"].as_str().unwrap().contains("admin.token"));
}

#[test]
fn pages_of_other_origins_get_nothing_done() {
    let weir = guarded();
    let api = Api(weir.admin_address());
    let token = format!("Authorization: Bearer {TOKEN}\r\n{JSON}");
    let own = format!(
        "{token}Origin: http://{}\r\nSec-Fetch-Site: same-origin\r\n",
        api.0
    );
    let body = r#"{"mode":"off"}"#;
    assert_eq!(api.send("PATCH", GROUP, &own, body).status, 200);
    for fields in [
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
    ] {
        let fields = format!("{token}{fields}");
        assert_eq!(
            api.send("PATCH", GROUP, &fields, body).status,
            403,
            "{fields}"
        );
    }
    let asked = api.send("OPTIONS", GROUP, "Origin: http://evil.example\r\n", "");
    assert!(asked.get("access-control-allow-origin").is_none());
    // Led here under a name of its own, a page is not on this machine.
    let mut client = Client::connect(api.0);
    client.send("GET /api/zones HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert_eq!(client.response().status, 401);
}

#[test]
fn malformed_or_too_much_json_is_refused_with_a_reason() {
    let weir = guarded();
    let api = Api(weir.admin_address());
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    let large = format!(r#"{{"mode":"{}"}}"#, "x".repeat(70_000));
    for (fields, body, why) in [
        (JSON, "mode: on", "not JSON"),
        (JSON, r#"{"mode":"on""#, "not JSON"),
        (
            JSON,
            r#"{"mode":"sometimes"}"#,
            "unknown variant `sometimes`",
        ),
        (JSON, r#"{"mode":"on","more":1}"#, "unknown field `more`"),
        (JSON, "", "missing field `mode`"),
        (JSON, &large, "too large"),
        (
            "Content-Type: text/plain\r\n",
            r#"{"mode":"on"}"#,
            "Content-Type",
        ),
        ("", r#"{"mode":"on"}"#, "Content-Type"),
    ] {
        let answer = api.send("PATCH", GROUP, &format!("{token}{fields}"), body);
        assert_eq!(answer.status, 400, "{why}");
        let said = error(&answer.text());
        assert!(said.contains(why), "{said:?} about {why:?}");
    }
    assert_eq!(api.get("/api/groups")[0]["mode"], "auto");
}

#[test]
fn unknown_methods_and_paths_have_different_errors() {
    let weir = guarded();
    let api = Api(weir.admin_address());
    let token = format!("Authorization: Bearer {TOKEN}\r\n{JSON}");
    let wrong = api.send("POST", "/api/zones", &token, "{}");
    assert_eq!(wrong.status, 405);
    assert_eq!(wrong.get("allow"), Some("GET, HEAD"));
    let wrong = api.send("GET", GROUP, &token, "");
    assert_eq!((wrong.status, wrong.get("allow")), (405, Some("PATCH")));
    let absent = api.send("PATCH", "/api/groups/others", &token, r#"{"mode":"on"}"#);
    assert_eq!(absent.status, 404);
    assert!(error(&absent.text()).contains("others"));
    assert_eq!(api.send("GET", "/api/nothing", "", "").status, 404);
    // No method of this path changes anything, so none needs the token.
    let wrong = api.send("PUT", "/api/explain", "", "");
    assert_eq!((wrong.status, wrong.get("allow")), (405, Some("POST")));
}
