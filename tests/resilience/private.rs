//! A stale response is not served to another client where it may have been private.

use super::{ask, before};
use crate::support::{Certs, Origin, Weir, wanted};

/// Where every answer may be kept, as far as its backend says.
const ME: &str = "/fields?cache-control=public,s-maxage=60";

/// The statuses that a stranger and the same client get when the backend is away, after a client with these fields
/// was answered.
fn after(weir: &Weir, origin: &Origin, path: &str, fields: &str) -> [u16; 2] {
    origin.recover();
    assert_eq!(ask(weir, "GET", path, fields).status, 200, "{fields}");
    origin.behave("/reset");
    [
        ask(weir, "GET", path, "").status,
        ask(weir, "GET", path, fields).status,
    ]
}

#[test]
fn responses_to_credentials_are_not_stored() {
    let origin = Origin::start();
    let weir = before(
        &[&origin],
        "keepalive: 0",
        "fallback: { stale: 10m }
  proxy_pass: app",
    );
    for fields in [
        "Authorization: Bearer alice\r\n",
        "Cookie: session=alice\r\n",
        "Proxy-Authorization: Basic YTpi\r\n",
        "X-Api-Key: alice\r\n",
        "X-Auth-Token: alice\r\n",
        "X-Session-Id: alice\r\n",
    ] {
        assert_eq!(after(&weir, &origin, ME, fields), [502, 502], "{fields}");
    }
    // A response that does not depend on its client is for all, with or without credentials.
    let plain = "User-Agent: a\r\nAccept: */*\r\nSec-Fetch-User: ?1\r\n";
    assert_eq!(after(&weir, &origin, ME, plain), [200, 200]);
    let known = ask(&weir, "GET", ME, "Cookie: session=alice\r\n");
    assert_eq!(known.status, 200);
    // Nor does a client with credentials push out what was kept for all.
    let unkept = "/fields?cache-control=public";
    assert_eq!(after(&weir, &origin, unkept, ""), [200, 200]);
    origin.recover();
    origin.script(unkept, "/fields?cache-control=no-store");
    let cookie = "Cookie: session=alice\r\n";
    assert_eq!(ask(&weir, "GET", unkept, cookie).status, 200);
    origin.behave("/reset");
    assert_eq!(ask(&weir, "GET", unkept, "").status, 200);
}

/// The keys of limits and headers count as credentials, directly or through a map.
#[test]
fn keys_of_limits_count_as_credentials() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "maps:
  $tenant: { map: $http_x_tenant, default: none, values: { '~.': some } }
  $near: { geo: $remote_addr, default: 0, values: { 127.0.0.9/32: 1 } }
limit_req_zones:
  customers: { key: $http_x_customer, rate: 1000r/s }
  tenants: { key: $tenant, rate: 1000r/s }
  all: { key: $binary_remote_addr$request_uri, rate: 1000r/s }
limit_conn_zones:
  orders: { key: $arg_order }
servers:
- listen: LISTEN
  proxy_pass: http://ORIGIN
  fallback: { stale: 10m }
  locations:
  - { path: /customer/, limit_req: { zone: customers, burst: 100 } }
  - { path: /tenant/, limit_req: { zone: tenants, burst: 100 } }
  - { path: /shadow/, shadow: { zone: customers, burst: 100 } }
  - { path: /order/, limit_conn: { zone: orders, limit: 100 } }
  - { path: /header/, proxy_set_header: { X-For: 'a $http_x_customer' } }
  - { path: /mapped/, proxy_set_header: { X-For: $tenant } }
  - { path: /near/, proxy_set_header: { X-Near: $near } }
  - { path: /open/, limit_req: { zone: all, burst: 100 }, proxy_set_header: { Host: $http_host, X-Agent: $http_user_agent, X-Real-IP: $remote_addr } }
",
    );
    let customer = "X-Customer: alice\r\n";
    for (path, fields) in [
        ("/customer", customer),
        ("/shadow", customer),
        ("/header", customer),
        ("/tenant", "X-Tenant: alice\r\n"),
        ("/mapped", "X-Tenant: alice\r\n"),
    ] {
        let path = format!("{path}{ME}");
        assert_eq!(after(&weir, &origin, &path, fields), [502, 502], "{path}");
        assert_eq!(after(&weir, &origin, &path, ""), [200, 200], "{path}");
    }
    let order = format!("/order{ME}&order=alice");
    assert_eq!(after(&weir, &origin, &order, ""), [502, 502]);
    let open = format!("/open{ME}");
    assert_eq!(
        after(&weir, &origin, &open, "User-Agent: a\r\n"),
        [200, 200]
    );
    // What a backend is told of a client's address is no credential, but its answers may differ by it.
    let near = format!("/near{ME}");
    assert_eq!(after(&weir, &origin, &near, ""), [200, 200]);
    let elsewhere = crate::support::get_from([127, 0, 0, 9], weir.address(), &near);
    assert_eq!(elsewhere.status, 502);
}

#[test]
fn a_client_certificate_is_a_credential() {
    let origin = Origin::start();
    let certs = Certs::new();
    certs.issue("a", &wanted(&["a.example"]));
    certs.issue("alice", &wanted(&["alice"]));
    certs.issue("bob", &wanted(&["bob"]));
    let weir = Weir::before(
        &origin,
        &certs.filled(
            "servers:
- listen: { address: LISTEN, tls: true }
  server_name: a.example
  tls: { certificate: CERTS/a.pem, key: CERTS/a.key, client_ca: CERTS/ca.pem, verify_client: optional }
  proxy_pass: http://ORIGIN
  fallback: { stale: 10m }
  locations:
  - path: /own/
    fallback: { stale: { max_age: 10m, key: $ssl_client_fingerprint, private: true } }
",
        ),
    );
    let fetch = |path: &str, client: Option<&str>| {
        let url = format!("https://a.example:{}{path}", weir.port());
        let files = client.map(|name| [format!("CERTS/{name}.pem"), format!("CERTS/{name}.key")]);
        let mut arguments = vec!["--output", "/dev/null", "--write-out", "%{http_code}", &url];
        if let Some([cert, key]) = &files {
            arguments.extend(["--cert", cert, "--key", key]);
        }
        certs.fetch(&arguments)
    };
    let own = format!("/own{ME}");
    assert_eq!(fetch(ME, Some("alice")), "200");
    assert_eq!(fetch(&own, Some("alice")), "200");
    origin.behave("/reset");
    for client in [None, Some("bob"), Some("alice")] {
        assert_eq!(fetch(ME, client), "502", "{client:?}");
    }
    assert_eq!(fetch(&own, None), "502");
    assert_eq!(fetch(&own, Some("bob")), "502");
    assert_eq!(fetch(&own, Some("alice")), "200");
}

#[test]
fn stale_responses_with_a_key_by_client_are_private() {
    let origin = Origin::start();
    let weir = before(
        &[&origin],
        "keepalive: 0",
        "fallback: { stale: { key: $host$http_x_api_key$cookie_session, private: true } }
  proxy_pass: app",
    );
    for says in ["private", "private,max-age=60", "public"] {
        let me = format!("/fields?cache-control={says}");
        let alice = "X-Api-Key: alice\r\n";
        assert_eq!(after(&weir, &origin, &me, alice), [502, 200], "{says}");
        for other in [
            "X-Api-Key: bob\r\n",
            "X-Api-Key: alic\r\nCookie: session=e\r\n",
            "X-Api-Key: al\r\nCookie: session=ice\r\n",
            "Cookie: session=alice\r\n",
            "Authorization: Bearer alice\r\n",
        ] {
            assert_eq!(ask(&weir, "GET", &me, other).status, 502, "{other}");
        }
    }
    // Without a value for the key nothing tells clients apart: as without `private`.
    let me = "/fields?cache-control=private,max-age=5";
    assert_eq!(after(&weir, &origin, me, ""), [502, 502]);
    let known = "Authorization: Bearer alice\r\n";
    assert_eq!(after(&weir, &origin, ME, known), [502, 502]);
    assert_eq!(after(&weir, &origin, ME, ""), [200, 200]);
    for says in ["private,no-store", "private,no-cache", "immutable"] {
        let me = format!("/fields?cache-control={says}");
        let alice = "X-Api-Key: alice\r\n";
        assert_eq!(after(&weir, &origin, &me, alice), [502, 502], "{says}");
    }
}
