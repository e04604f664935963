//! One client, one key: values given twice, and values in several spellings.

use serde_json::{Value, json};

use crate::http2::curl;
use crate::support::api::TOKEN;
use crate::support::{Api, Client, Origin, Weir, metric};

/// A zone `one` that lets one request of a key pass in a minute, limited at `/`.
pub(super) fn limited(origin: &Origin, zone: &str) -> Weir {
    Weir::before(
        origin,
        &format!(
            "workers: 1
log: {{ level: info, access: {{ path: '-', format: '$request_uri|$status|$limit_req_status|$limit_conn_status' }} }}
admin: {{ listen: ADMIN, token: {TOKEN} }}
maps:
  $free_key: {{ map: $http_x_api_key, default: $http_x_api_key, values: {{ gold: '' }} }}
  $plan_of_key: {{ map: $arg_k, default: '', values: {{ free: free }} }}
limit_req_zones: {{ one: {{ size: 1m, rate: 1r/m, {zone} }} }}
servers:
- listen: LISTEN
  proxy_pass: http://ORIGIN
  locations:
  - {{ path: /, limit_req: {{ zone: one, status: 429, body: 'slow down' }} }}
  - {{ path: /dry, limit_req: {{ zone: one }}, limit_req_dry_run: true }}
"
        ),
    )
}

/// The status of one request with this target and these header lines.
pub(super) fn ask(weir: &Weir, target: &str, fields: &str) -> u16 {
    let client = Client::connect(weir.address());
    send(client, target, fields)
}

pub(super) fn send(mut client: Client, target: &str, fields: &str) -> u16 {
    client.send(format!(
        "GET {target} HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n"
    ));
    client.response().status
}

#[test]
fn a_key_given_twice_is_not_a_fresh_key() {
    let origin = Origin::start();
    for (key, target, fields) in [
        (
            "$http_x_api_key",
            "/",
            "X-Api-Key: k\r\nX-Api-Key: RANDOM\r\n",
        ),
        (
            "$http_x_api_key",
            "/",
            "X-Api-Key: RANDOM\r\nx-api-key: k\r\n",
        ),
        ("$http_x_api_key", "/", "X-Api-Key: k\r\nX-Api-Key: k\r\n"),
        ("$http_x_api_key", "/", "X-Api-Key: k\r\nX-Api-Key:\r\n"),
        ("$free_key", "/", "X-Api-Key: gold\r\nX-Api-Key: RANDOM\r\n"),
        (
            "'$server_name|$http_x_api_key'",
            "/",
            "X-Api-Key: k\r\nX-Api-Key: RANDOM\r\n",
        ),
        (
            "$content_type",
            "/",
            "Content-Type: a/b\r\nContent-Type: RANDOM/b\r\n",
        ),
        (
            "$http_authorization",
            "/",
            "Authorization: Bearer k\r\nAuthorization: Bearer RANDOM\r\n",
        ),
        // Basic a:b and c:d.
        (
            "$remote_user",
            "/",
            "Authorization: Basic YTpi\r\nAuthorization: Basic Yzpk\r\n",
        ),
        ("$cookie_sid", "/", "Cookie: sid=k; sid=RANDOM\r\n"),
        ("$cookie_sid", "/", "Cookie: sid=RANDOM; SID=k\r\n"),
        (
            "$cookie_sid",
            "/",
            "Cookie: sid=RANDOM\r\nCookie: a=b; sid=k\r\n",
        ),
        ("$cookie_sid", "/", "Cookie: sid=RANDOM,sid=k\r\n"),
        ("$arg_k", "/?k=k&k=RANDOM", ""),
        ("$arg_k", "/?k=RANDOM&a=b&k=k", ""),
        ("$arg_k", "/?K=RANDOM&k=k", ""),
        ("$arg_k", "/?k=RANDOM&%6b=k", ""),
        ("$arg_k", "/?k=RANDOM&k", ""),
        ("$plan_of_key", "/?k=RANDOM&k=free", ""),
    ] {
        let weir = limited(&origin, &format!("key: {key}"));
        for random in 1..=3 {
            let random = format!("r{random}");
            let [target, fields] = [target, fields].map(|text| text.replace("RANDOM", &random));
            let status = ask(&weir, &target, &fields);
            assert_eq!(status, 400, "{key}: {target} {fields:?}");
        }
        assert_eq!(origin.count(), 0, "{key}: nothing reaches the origin");
    }
}

#[test]
fn one_value_has_one_key_however_it_is_spelled() {
    let origin = Origin::start();
    for (key, spellings) in [
        (
            "$http_x_api_key",
            vec![("/", "X-Api-Key: k\r\n"), ("/", "x-api-key:\t k \t\r\n")],
        ),
        (
            "$http_authorization",
            vec![
                ("/", "Authorization: Bearer k\r\n"),
                ("/", "Authorization: bearer k\r\n"),
                ("/", "Authorization: BEARER   k\r\n"),
            ],
        ),
        (
            "$cookie_sid",
            vec![
                ("/", "Cookie: sid=k\r\n"),
                ("/", "Cookie: a=b; sid=k ; c=d\r\n"),
                ("/", "Cookie: sid=\tk\t\r\n"),
                ("/", "Cookie: sid=\"k\"\r\n"),
                ("/", "Cookie: sid=k; sid=k\r\n"),
                ("/", "Cookie: sid=k\r\nCookie: a=b\r\n"),
            ],
        ),
        (
            "$arg_k",
            vec![
                ("/?k=k/k+%20", ""),
                ("/?k=%6b/k+%20", ""),
                ("/?k=k%2fk%20+", ""),
                ("/?k=k%2Fk++", ""),
                ("/?%6b=k%2Fk++", ""),
                ("/?k=k/k++&k=k%2fk++", ""),
            ],
        ),
        (
            "$plan_of_key",
            vec![("/?k=free", ""), ("/?k=fre%65", ""), ("/?%4b=free", "")],
        ),
    ] {
        let weir = limited(&origin, &format!("key: {key}"));
        for (number, (target, fields)) in spellings.into_iter().enumerate() {
            let expected = if number == 0 { 200 } else { 429 };
            let status = ask(&weir, target, fields);
            assert_eq!(status, expected, "{key}: {target} {fields:?}");
        }
    }
}

#[test]
fn fields_that_are_lists_are_joined() {
    let origin = Origin::start();
    for (key, once, lines) in [
        (
            "$http_x_forwarded_for",
            "X-Forwarded-For: 1.1.1.1, 2.2.2.2\r\n",
            "X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 2.2.2.2\r\n",
        ),
        (
            "$http_accept",
            "Accept: a/b, c/d\r\n",
            "Accept: a/b\r\nAccept: c/d\r\n",
        ),
        (
            "$http_forwarded",
            "Forwarded: for=a, for=b\r\n",
            "Forwarded: for=a\r\nForwarded: for=b\r\n",
        ),
        (
            "$http_cookie",
            "Cookie: a=b; c=d\r\n",
            "Cookie: a=b\r\nCookie: c=d\r\n",
        ),
    ] {
        let weir = limited(&origin, &format!("key: {key}"));
        assert_eq!(ask(&weir, "/", once), 200, "{key}");
        assert_eq!(ask(&weir, "/", lines), 429, "{key}: the same key");
    }
}

#[test]
fn nginxs_join_of_header_lines_is_a_setting() {
    let origin = Origin::start();
    let weir = limited(
        &origin,
        "key: $http_x_api_key$cookie_sid$arg_k, on_ambiguous_key: join",
    );
    let twice = "X-Api-Key: a\r\nX-Api-Key: b\r\nCookie: sid=c; sid=d\r\n";
    assert_eq!(ask(&weir, "/?k=e&k=f", twice), 200);
    let once = "X-Api-Key: a, b\r\nCookie: sid=c\r\n";
    assert_eq!(ask(&weir, "/?k=e", once), 429, "the same key");
    assert_eq!(ask(&weir, "/?k=f", once), 200);
}

#[test]
fn http2_is_held_to_the_same() {
    let origin = Origin::start();
    let weir = limited(&origin, "key: $http_x_api_key$cookie_sid");
    let url = format!("http://{}/", weir.address());
    let status = |fields: &[&str]| {
        let mut arguments = vec!["-o", "/dev/null", "-w", "%{http_code}"];
        for field in fields {
            arguments.extend(["-H", field]);
        }
        arguments.push(&url);
        curl(&arguments)
    };
    assert_eq!(status(&["X-Api-Key: k", "X-Api-Key: r"]), "400");
    assert_eq!(status(&["Cookie: sid=a", "Cookie: sid=b"]), "400");
    assert_eq!(status(&["Cookie: a=b", "Cookie: sid=b"]), "200");
    assert_eq!(status(&["Cookie: a=b; sid=b"]), "429");
}

#[test]
fn an_ambiguous_key_is_explained_like_any_other_refusal() {
    let origin = Origin::start();
    let weir = limited(&origin, "key: $http_x_api_key");
    let mut client = Client::connect(weir.address());
    client.send("GET /x HTTP/1.1\r\nHost: a\r\nX-Api-Key: k\r\nX-Api-Key: r\r\n\r\n");
    let response = client.response();
    assert_eq!(response.status, 400);
    assert!(
        !response.text().contains("slow down"),
        "the body is that of an excess"
    );
    for field in ["retry-after", "ratelimit", "ratelimit-policy"] {
        assert_eq!(response.head.get(field), None, "no waiting helps");
    }
    assert_eq!(ask(&weir, "/dry", "X-Api-Key: k\r\nX-Api-Key: r\r\n"), 200);
    weir.error_line("limiting requests, ambiguous key by zone \"one\"");
    weir.error_line("limiting requests, dry run, ambiguous key by zone \"one\"");
    weir.access_line("/x|400|REJECTED|");
    weir.access_line("/dry|200|REJECTED_DRY_RUN|");
    let refused = metric(
        &weir,
        "weir_limit_verdicts_total{zone=\"one\",verdict=\"refuse\"}",
    );
    assert_eq!(refused, 2);
    let api = Api(weir.admin_address());
    let all = api.get("/api/refusals");
    for (index, dry_run) in [(0, false), (1, true)] {
        let refusal = &all["refusals"][index];
        for (field, expected) in [
            ("reason", json!("ambiguous_key")),
            ("key", Value::Null),
            ("status", json!(400)),
            ("dry_run", json!(dry_run)),
        ] {
            assert_eq!(refusal[field], expected, "{field} of {refusal}");
        }
    }
    let asked = json!({ "path": "/x", "host": "a", "headers": { "x-api-key": ["k", "r"] } });
    let answer = api.change("POST", "/api/explain", &asked);
    assert_eq!(
        (&answer["verdict"], &answer["status"]),
        (&json!("refuse"), &json!(400))
    );
    assert_eq!(answer["rules"][0]["key"], Value::Null);
}

#[test]
fn other_rules_are_not_charged_for_an_ambiguous_key() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "workers: 1
limit_req_zones:
  perip: { key: $binary_remote_addr, size: 1m, rate: 1r/m }
  perkey: { key: $http_x_api_key, size: 1m, rate: 1r/m }
limit_conn_zones: { places: { key: $http_x_api_key, size: 1m } }
servers:
- listen: LISTEN
  proxy_pass: http://ORIGIN
  locations:
  - { path: /, limit_req: [{ zone: perip }, { zone: perkey }] }
  - { path: /places, limit_conn: { zone: places, limit: 1 } }
  - { path: /shadow, shadow: { zone: perkey } }
",
    );
    let twice = "X-Api-Key: k\r\nX-Api-Key: r\r\n";
    assert_eq!(ask(&weir, "/", twice), 400);
    assert_eq!(ask(&weir, "/", "X-Api-Key: k\r\n"), 200);
    assert_eq!(ask(&weir, "/places", twice), 400);
    weir.error_line("limiting connections, ambiguous key by zone \"places\"");
    assert_eq!(ask(&weir, "/shadow", twice), 200);
    weir.error_line("limiting requests, shadow, by zone \"perkey\"");
}

#[test]
fn a_price_given_twice_is_ambiguous_too() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "workers: 1
maps: { $price: { map: $arg_op, default: 1, values: { export: 100 } } }
limit_req_zones:
  perip: { key: $binary_remote_addr, size: 1m, rate: 1r/m }
  perkey: { key: $http_x_api_key, size: 1m, rate: 1r/m }
servers:
- listen: LISTEN
  proxy_pass: http://ORIGIN
  locations:
  - { path: /, limit_req: { zone: perip, burst: 50, nodelay: true, cost: $price } }
  - { path: /key, limit_req: { zone: perkey, burst: 50, nodelay: true, cost: $price } }
",
    );
    assert_eq!(ask(&weir, "/?op=x&op=export", ""), 400);
    assert_eq!(ask(&weir, "/?op=export", ""), 429);
    assert_eq!(ask(&weir, "/?op=%65xport", ""), 429);
    assert_eq!(ask(&weir, "/?op=x", ""), 200);
    assert_eq!(
        ask(&weir, "/key?op=x&op=export", ""),
        200,
        "it is not limited there"
    );
}
