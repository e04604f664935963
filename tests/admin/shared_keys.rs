//! Keys of zones that several gateways share.

use serde_json::json;

use crate::support::api::TOKEN;
use crate::support::redis::Redis;
use crate::support::{Api, Weir, get};

fn gateway(redis: &Redis) -> Weir {
    Weir::start(&format!(
        "workers: 1
admin: {{ listen: ADMIN, token: {TOKEN} }}
stores: {{ shared: {{ redis: '{}', timeout: 1s }} }}
limit_req_zones: {{ one: {{ key: $binary_remote_addr, size: 1m, store: shared, rate: 1r/h }} }}
servers:
- listen: LISTEN
  locations:
  - {{ path: /, limit_req: {{ zone: one, burst: 2, nodelay: true }}, return: 204 }}
",
        redis.url()
    ))
}

#[test]
fn a_key_is_forgotten_in_the_store_too() {
    let redis = Redis::start();
    let (one, other) = (gateway(&redis), gateway(&redis));
    let asked = |weir: &Weir| get(weir.address(), "/").status;
    while asked(&one) == 204 {}
    assert_eq!(asked(&other), 429, "it is one count");
    let api = Api(one.admin_address());
    let path = "/api/zones/one/keys/127.0.0.1";
    assert_eq!(api.get(path)["shared"], true);
    assert_eq!(api.get("/api/zones/one")["store"], "shared");
    assert_eq!(api.delete(path)["forgotten"], true);
    assert_eq!(asked(&one), 204);
    api.change("PUT", &format!("{path}/block"), &json!({}));
    assert_eq!(asked(&one), 429);
    drop(redis);
    let (status, value) = api.call("DELETE", path, None);
    assert_eq!(status, 503, "{value}");
}
