//! The last refusals, by request and as a stream.

use serde_json::{Value, json};

use crate::support::api::TOKEN;
use crate::support::{Api, Client, Origin, Weir, eventually, get};

fn limited() -> Weir {
    Weir::start(&format!(
        "admin: {{ listen: ADMIN, token: {TOKEN} }}
limit_req_zones: {{ one: {{ key: $http_x_key, size: 1m, rate: 1r/m, on_empty_key: refuse }} }}
servers:
- listen: LISTEN
  server_name: front
  locations:
  - {{ path: /, return: 204, limit_req: {{ zone: one, burst: 1, nodelay: true }} }}
  - {{ path: /dry, return: 204, limit_req: {{ zone: one }}, limit_req_dry_run: true }}
"
    ))
}

fn ask(weir: &Weir, path: &str) -> u16 {
    let mut client = Client::connect(weir.address());
    client.send(format!(
        "GET {path} HTTP/1.1\r\nHost: front\r\nX-Key: k\r\n\r\n"
    ));
    client.response().status
}

#[test]
fn each_has_its_reason() {
    let weir = limited();
    let api = Api(weir.admin_address());
    assert_eq!([0; 3].map(|_| ask(&weir, "/x?q")), [204, 204, 429]);
    assert_eq!(ask(&weir, "/dry"), 204);
    assert_eq!(get(weir.address(), "/").status, 429);
    let all = api.get("/api/refusals");
    let refusals = all["refusals"].as_array().expect("a list");
    let [rate, dry, keyless] = &refusals[..] else {
        panic!("{all}");
    };
    for (field, expected) in [
        ("kind", json!("limit_req")),
        ("zone", json!("one")),
        ("key", json!("k")),
        ("reason", json!("rate")),
        ("status", json!(429)),
        ("dry_run", json!(false)),
        ("client", json!("127.0.0.1")),
        ("server", json!("front")),
        ("method", json!("GET")),
        ("host", json!("front")),
        ("path", json!("/x")),
    ] {
        assert_eq!(rate[field], expected, "{field} of {rate}");
    }
    let detail = rate["detail"].as_str().expect("a sentence");
    assert!(detail.contains("over a burst of 1"), "{detail}");
    assert!(
        rate["retry_after"]
            .as_f64()
            .is_some_and(|after| after > 0.0)
    );
    assert_eq!(
        (&dry["reason"], &dry["dry_run"]),
        (&json!("rate"), &json!(true))
    );
    assert_eq!(
        (&keyless["reason"], &keyless["key"]),
        (&json!("no_key"), &Value::Null)
    );
    assert_eq!(all["skipped"], 0);
    let id = dry["id"].as_u64().expect("a number");
    let later = api.get(&format!("/api/refusals?after={id}"));
    assert_eq!(later["refusals"], json!([keyless]));
    assert_eq!(api.call("GET", "/api/refusals?after=x", None).0, 400);
}

#[test]
fn a_flood_is_counted_and_not_written_down() {
    let weir = limited();
    let api = Api(weir.admin_address());
    let mut client = Client::connect(weir.address());
    for _ in 0..600 {
        client.get("/");
        client.response();
    }
    let all = api.get("/api/refusals?limit=1000");
    let written = all["refusals"].as_array().map(Vec::len).expect("a list");
    let skipped = all["skipped"].as_u64().expect("a number");
    assert!(written <= 512 && skipped > 0, "{written} and {skipped}");
    assert_eq!(api.get("/api/status")["refusals_skipped"], skipped);
}

#[test]
fn refusals_are_printed_as_they_come() {
    let weir = limited();
    let mut listener = Client::connect(weir.admin_address());
    listener.get("/api/refusals/stream");
    let head = listener.head();
    assert_eq!(head.word(1), "200");
    assert_eq!(head.get("content-type"), Some("text/event-stream"));
    let mut heard = String::new();
    while !heard.contains("retry:") {
        heard.push_str(&String::from_utf8_lossy(&listener.some(4096)));
    }
    get(weir.address(), "/");
    while !heard.contains("event: refusal") || !heard.contains("\"no_key\"") {
        heard.push_str(&String::from_utf8_lossy(&listener.some(4096)));
    }
    drop(listener);
    // Who listens no more makes room for others.
    let listen = || {
        let mut client = Client::connect(weir.admin_address());
        client.get("/api/refusals/stream");
        (client.head().word(1).to_owned(), client)
    };
    eventually("all places are free", || {
        let listeners: Vec<_> = (0..16).map(|_| listen()).collect();
        let one_more = listen();
        one_more.0 == "503" && listeners.iter().all(|(status, _)| status == "200")
    });
}

#[test]
fn slots_that_a_dry_run_would_have_refused_are_logged() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "admin: { listen: ADMIN }
limit_conn_zones: { places: { key: $server_name, size: 1m } }
servers:
- listen: LISTEN
  server_name: localhost
  limit_conn: { zone: places, limit: 1 }
  limit_conn_dry_run: true
  proxy_pass: 'http://ORIGIN'
",
    );
    let held = Client::connect(weir.address());
    held.get("/hold?gate=g");
    origin.gates().await_waiting("g", 1);
    assert_eq!(get(weir.address(), "/ok").status, 200);
    let all = Api(weir.admin_address()).get("/api/refusals");
    let refusal = &all["refusals"][0];
    for (field, expected) in [
        ("kind", json!("limit_conn")),
        ("zone", json!("places")),
        ("key", json!("localhost")),
        ("reason", json!("connections")),
        ("dry_run", json!(true)),
    ] {
        assert_eq!(refusal[field], expected, "{field} of {all}");
    }
    assert_eq!(all["refusals"][1], Value::Null);
    origin.gates().open("g");
}
