//! `overrides`: an address names a client, whatever the key is made of.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::keys::{ask, limited, send};
use crate::support::redis::Redis;
use crate::support::{Api, Client, Origin, Weir, get_from};

/// `overrides` with every kind of key: 127.0.0.66 is unlimited, 127.0.0.64/28 may ask three times.
#[test]
fn an_override_applies_to_the_client_it_names() {
    let origin = Origin::start();
    for key in [
        "$binary_remote_addr",
        "$remote_addr",
        "$limit_key",
        "$server_name",
        "$http_x_api_key",
        "'$server_name|$binary_remote_addr'",
        "'$binary_remote_addr$uri', on_empty_key: address",
        "$cookie_none, on_empty_key: address",
    ] {
        let weir = Weir::before(
            &origin,
            &format!(
                "workers: 1
maps: {{ $limit_key: {{ geo: $remote_addr, default: $binary_remote_addr, values: {{ 10.0.0.0/8: '' }} }} }}
limit_req_zones:
  one: {{ key: {key}, size: 1m, rate: 1r/m, overrides: {{ 127.0.0.66: {{ rate: unlimited }}, 127.0.0.64/28: {{ rate: 1r/m, burst: 2 }} }} }}
servers:
- listen: LISTEN
  server_name: front
  limit_req: {{ zone: one, nodelay: true }}
  proxy_pass: http://ORIGIN
"
            ),
        );
        let passed = |last: u8| {
            let from = Ipv4Addr::new(127, 0, 0, last);
            let asked = || {
                let client = Client::connect_from(from, weir.address());
                send(client, "/", "X-Api-Key: k\r\n")
            };
            (0..5).filter(|_| asked() == 200).count()
        };
        assert_eq!(passed(65), 3, "{key}: numbers of its own");
        assert_eq!(passed(66), 5, "{key}: unlimited");
        assert_eq!(passed(1), 1, "{key}: no other client pays for 127.0.0.65");
    }
}

#[test]
fn an_override_names_the_client_that_a_proxy_names() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "workers: 1
real_ip: { from: 127.0.0.1, header: X-Forwarded-For }
limit_req_zones:
  one: { key: $http_x_api_key, size: 1m, rate: 1r/m, overrides: { '2001:DB8:0::7': { rate: unlimited } } }
servers:
- { listen: LISTEN, limit_req: { zone: one }, proxy_pass: 'http://ORIGIN' }
",
    );
    let partner = "X-Api-Key: k\r\nX-Forwarded-For: 2001:db8::7\r\n";
    assert_eq!([0; 3].map(|_| ask(&weir, "/", partner)), [200; 3]);
    let other = "X-Api-Key: k\r\nX-Forwarded-For: 2001:db8::8\r\n";
    assert_eq!([0; 2].map(|_| ask(&weir, "/", other)), [200, 429]);
}

#[test]
fn operators_see_which_override_applies() {
    let origin = Origin::start();
    let weir = limited(
        &origin,
        "key: $http_x_api_key, overrides: {
          127.0.0.66: { rate: unlimited }, 127.0.0.64/28: { rate: 7r/m, burst: 3 }, gold: { rate: 9r/m } }",
    );
    let api = Api(weir.admin_address());
    let explain = |from: &str, key: &str| {
        let asked = json!({ "host": "a", "remote_addr": from, "headers": { "x-api-key": key } });
        api.change("POST", "/api/explain", &asked)["rules"][0].take()
    };
    for (from, key, name, rate, burst) in [
        ("127.0.0.65", "k", json!("127.0.0.64/28"), "7r/m", 3.0),
        ("127.0.0.65", "gold", json!("gold"), "9r/m", 0.0),
        ("127.0.0.1", "k", Value::Null, "1r/m", 0.0),
    ] {
        let rule = explain(from, key);
        assert_eq!(rule["override"], name, "{rule}");
        assert_eq!(
            (&rule["rate"], &rule["burst"]),
            (&json!(rate), &json!(burst)),
            "{rule}"
        );
    }
    let free = explain("127.0.0.66", "k");
    assert_eq!(free["override"], "127.0.0.66");
    assert!(
        free["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("unlimited")),
        "{free}"
    );
    // Its bucket is one of its own, and can be looked up by the name it is shown under.
    let client = Client::connect_from(Ipv4Addr::new(127, 0, 0, 65), weir.address());
    assert_eq!(send(client, "/", "X-Api-Key: k\r\n"), 200);
    let shown = explain("127.0.0.65", "k")["key"].take();
    assert_eq!(shown, "(127.0.0.64/28) k");
    let found = api.get("/api/zones/one/keys/(127.0.0.64%2F28)%20k");
    assert_eq!(
        (&found["key"], &found["known"]),
        (&shown, &json!(true)),
        "{found}"
    );
    assert_eq!(
        get_from(Ipv4Addr::LOCALHOST, weir.address(), "/").status,
        200
    );
}

/// Two gateways that share a zone: clients of an override are counted together, and apart from all others.
#[test]
fn an_override_by_address_is_shared_like_the_zone() {
    let redis = Redis::start();
    let gateway = || {
        Weir::start(&format!(
            "workers: 1
stores: {{ shared: {{ redis: '{}', timeout: 1s }} }}
limit_req_zones:
  one:
    key: $http_x_api_key
    size: 1m
    store: shared
    rate: 1r/m
    overrides: {{ 127.0.0.66: {{ rate: unlimited }}, 127.0.0.64/28: {{ rate: 1r/m, burst: 2 }} }}
servers:
- {{ listen: LISTEN, limit_req: {{ zone: one, nodelay: true }}, return: 204 }}
",
            redis.url()
        ))
    };
    let gateways = [gateway(), gateway()];
    let passed = |last: u8| {
        let from = Ipv4Addr::new(127, 0, 0, last);
        let mut each = gateways.iter().cycle();
        let mut asked = || {
            let client = Client::connect_from(from, each.next()?.address());
            Some(send(client, "/", "X-Api-Key: k\r\n"))
        };
        (0..6).filter(|_| asked() == Some(204)).count()
    };
    assert_eq!(passed(65), 3, "numbers of its own");
    assert_eq!(passed(66), 6, "unlimited");
    assert_eq!(passed(1), 1, "no other client pays for 127.0.0.65");
    let twice = "X-Api-Key: k\r\nX-Api-Key: r\r\n";
    assert_eq!(ask(&gateways[0], "/", twice), 400);
}
