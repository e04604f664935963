//! The OpenAPI document against the server: every call in it is made, and every response matches it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::api::TOKEN;
use crate::support::{Api, Client, Origin, Weir, eventually, get};

fn weir(origin: &Origin) -> Weir {
    Weir::before(
        origin,
        &format!(
            "admin: {{ listen: ADMIN, token: {TOKEN} }}
degrade_groups: {{ extras: auto }}
limit_req_zones:
  perip: {{ key: $binary_remote_addr, size: 1m, rate: 1r/m, overrides: {{ 127.0.0.9: {{ rate: 2r/m }} }} }}
  windows: {{ key: $http_x_key, size: 1m, algorithm: fixed_window, limit: 5, window: 1m }}
limit_conn_zones: {{ places: {{ key: $binary_remote_addr, size: 1m }} }}
upstreams: {{ app: {{ breaker: {{}}, servers: [ 'ORIGIN' ] }} }}
servers:
- listen: LISTEN
  server_name: front
  limit_conn: {{ zone: places, limit: 5 }}
  locations:
  - {{ path: /, proxy_pass: app, breaker: {{}}, limit_req: [ {{ zone: perip, burst: 1, nodelay: true }}, {{ zone: windows }} ] }}
  - {{ path: /extras, proxy_pass: app, degrade_group: extras, shadow: [ {{ zone: perip }} ] }}
"
        ),
    )
}

fn description() -> Value {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/openapi.json");
    let text = std::fs::read_to_string(file).expect("the file can be read");
    serde_json::from_str(&text).expect("JSON")
}

const METHODS: [&str; 6] = ["get", "put", "post", "delete", "patch", "head"];

/// Bodies that work, by method and path.
fn body(method: &str, path: &str) -> Option<Value> {
    Some(match (method, path) {
        ("patch", "/api/zones/{zone}") => json!({ "rate": "2r/m", "burst": 3 }),
        ("put", path) if path.ends_with("/grant") => json!({ "requests": 5, "for": "1m" }),
        ("put", _) => json!({ "for": 60, "reason": "a test" }),
        ("post", "/api/explain") => {
            json!({ "host": "front", "path": "/x", "headers": { "x-key": "k" } })
        }
        ("patch", "/api/upstreams/{upstream}/servers/{server}") => {
            json!({ "state": "up", "breaker": "auto" })
        }
        ("patch", "/api/breakers") => {
            json!({ "server": "front", "location": "/", "breaker": "auto" })
        }
        ("patch", "/api/groups/{group}") => json!({ "mode": "auto" }),
        _ => return None,
    })
}

fn filled(path: &str, origin: &Origin) -> String {
    path.replace("{zone}", "perip")
        .replace("{key}", "127.0.0.1")
        .replace("{upstream}", "app")
        .replace("{server}", &origin.address().to_string())
        .replace("{group}", "extras")
}

#[test]
fn every_response_of_the_api_matches_its_description() {
    let origin = Origin::start();
    let weir = weir(&origin);
    let api = Api(weir.admin_address());
    eventually("ready", || get(api.0, "/readyz").status == 200);
    for _ in 0..4 {
        get(weir.address(), "/ok");
        get(weir.address(), "/extras");
    }
    let description = description();
    let paths = description["paths"].as_object().expect("paths");
    for (path, item) in paths {
        for method in METHODS {
            let Some(call) = item.get(method) else {
                continue;
            };
            if path == "/api/refusals/stream" {
                stream(api, &call["responses"]["200"]);
                continue;
            }
            let what = format!("{method} {path}");
            let body = body(method, path);
            assert_eq!(body.is_some(), call.get("requestBody").is_some(), "{what}");
            if let Some(body) = &body {
                let content = &call["requestBody"]["content"]["application/json"];
                valid(&description, &content["schema"], body, &what);
            }
            let text = body.as_ref().map(Value::to_string).unwrap_or_default();
            let fields =
                format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n");
            let answer = api.send(
                &method.to_uppercase(),
                &filled(path, &origin),
                &fields,
                &text,
            );
            assert_eq!(answer.status, 200, "{what}: {}", answer.text());
            let content = &call["responses"]["200"]["content"];
            let kind = answer.get("content-type").unwrap_or_default();
            let kind = kind.split(';').next().unwrap_or_default();
            let schema = &content[kind]["schema"];
            assert!(schema.is_object(), "{what} answers with {kind}");
            if kind == "application/json" {
                let value = serde_json::from_str(&answer.text()).expect("JSON");
                valid(&description, schema, &value, &what);
            }
        }
    }
    nothing_else(api, paths, &origin);
}

/// Where a path is described, no other method works, and a refusal looks as described.
fn nothing_else(api: Api, paths: &serde_json::Map<String, Value>, origin: &Origin) {
    let description = description();
    let error = json!({ "$ref": "#/components/schemas/Error" });
    for (path, item) in paths {
        let mut described: BTreeSet<_> = METHODS
            .iter()
            .filter(|it| item.get(**it).is_some())
            .collect();
        if described.contains(&"get") {
            described.insert(&"head");
        }
        let (status, value) = api.call("PURGE", &filled(path, origin), None);
        assert_eq!(status, 405, "{path}");
        valid(&description, &error, &value, path);
        let token = format!("Authorization: Bearer {TOKEN}\r\n");
        let refused = api.send("PURGE", &filled(path, origin), &token, "");
        let allowed = refused.get("allow").unwrap_or_default().to_lowercase();
        let allowed: BTreeSet<_> = allowed.split(", ").collect();
        let described: BTreeSet<_> = described.into_iter().copied().collect();
        assert_eq!(allowed, described, "{path}");
    }
}

fn stream(api: Api, described: &Value) {
    let mut client = Client::connect(api.0);
    client.get("/api/refusals/stream");
    let head = client.head();
    assert_eq!(head.word(1), "200");
    let kind = head.get("content-type").expect("a type");
    assert!(described["content"].get(kind).is_some(), "{kind}");
}

/// As much of JSON Schema as the description uses.
fn valid(root: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let pointer = name.trim_start_matches('#');
        let schema = root.pointer(pointer).unwrap_or_else(|| panic!("{name}"));
        return valid(root, schema, value, at);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let null = value.is_null();
        let fits = |choice: &&Value| (choice["type"] == "null") == null;
        let choice = choices
            .iter()
            .find(fits)
            .unwrap_or_else(|| panic!("{at}: {value}"));
        return valid(root, choice, value, at);
    }
    if let Some(words) = schema["enum"].as_array() {
        assert!(words.contains(value), "{at}: {value} is none of {words:?}");
    }
    let kinds = match &schema["type"] {
        Value::String(kind) => vec![kind.as_str()],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => panic!("{at}: a schema without a type: {schema}"),
    };
    let fits = kinds.iter().any(|kind| match *kind {
        "array" => value.is_array(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "object" => value.is_object(),
        "string" => value.is_string(),
        other => panic!("{at}: {other} is no type"),
    });
    assert!(fits, "{at}: {value} is not {kinds:?}");
    if let (Some(least), Some(number)) = (schema["minimum"].as_f64(), value.as_f64()) {
        assert!(number >= least, "{at}: {number} is below {least}");
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        valid(root, &schema["items"], item, &format!("{at}[{index}]"));
    }
    let Some(fields) = value.as_object() else {
        return;
    };
    for needed in schema["required"].as_array().into_iter().flatten() {
        let needed = needed.as_str().unwrap_or_default();
        assert!(fields.contains_key(needed), "{at}: no {needed} in {value}");
    }
    for (name, field) in fields {
        let at = format!("{at}.{name}");
        match (&schema["properties"][name], &schema["additionalProperties"]) {
            (Value::Null, Value::Bool(false)) => panic!("{at} is not described"),
            (Value::Null, Value::Null) => {}
            (Value::Null, others) => valid(root, others, field, &at),
            (property, _) => valid(root, property, field, &at),
        }
    }
}
