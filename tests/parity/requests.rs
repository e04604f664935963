//! `limit_req`, at rates so slow (1r/m) that a whole script fits into one period.

use super::{Pair, ask};

/// `http` zones and the inside of one server; refusals are 429 on both sides.
fn pair(nginx_zones: &str, nginx_server: &str, weir_zones: &str, weir_server: &str) -> Pair {
    Pair::start(
        &format!(
            "{nginx_zones} limit_req_status 429;
            server {{ listen LISTEN; {nginx_server} location / {{ proxy_pass http://ORIGIN; }} }}"
        ),
        &format!(
            "{weir_zones}\nservers:\n- listen: LISTEN\n{weir_server}\n  - {{ path: /, proxy_pass: 'http://ORIGIN' }}\n"
        ),
    )
}

const NGINX_PER_ADDRESS: &str = "limit_req_zone $binary_remote_addr zone=one:1m rate=1r/m;";
const WEIR_PER_ADDRESS: &str =
    "limit_req_zones: { one: { key: $binary_remote_addr, size: 1m, rate: 1r/m } }";

#[test]
fn burst_with_nodelay_admits_one_more_than_its_number() {
    let pair = pair(
        NGINX_PER_ADDRESS,
        "location /l/ { limit_req zone=one burst=5 nodelay; proxy_pass http://ORIGIN; }",
        WEIR_PER_ADDRESS,
        "  locations:
  - { path: /l/, limit_req: { zone: one, burst: 5, nodelay: true }, proxy_pass: 'http://ORIGIN' }",
    );
    let verdicts = pair.verdicts(&ask("/l/ok").times(10));
    assert_eq!(verdicts, [200, 200, 200, 200, 200, 200, 429, 429, 429, 429]);
    assert_eq!(pair.origins[1].count(), 6);
    // Nothing is limited elsewhere, whatever this client has done.
    assert_eq!(pair.verdicts(&ask("/ok").times(3)), [200, 200, 200]);
}

#[test]
fn without_burst_only_the_first_passes() {
    let pair = pair(
        NGINX_PER_ADDRESS,
        "location /l/ { limit_req zone=one; proxy_pass http://ORIGIN; }
        location /delay/ { limit_req zone=one delay=3; proxy_pass http://ORIGIN; }",
        WEIR_PER_ADDRESS,
        "  locations:
  - { path: /l/, limit_req: { zone: one }, proxy_pass: 'http://ORIGIN' }
  - { path: /delay/, limit_req: { zone: one, delay: 3 }, proxy_pass: 'http://ORIGIN' }",
    );
    assert_eq!(pair.verdicts(&ask("/l/ok").times(3)), [200, 429, 429]);
    let other = ask("/delay/ok").from(2);
    assert_eq!(pair.verdicts(&other.times(3)), [200, 429, 429]);
}

#[test]
fn every_address_has_a_bucket_of_its_own() {
    let pair = pair(
        NGINX_PER_ADDRESS,
        "location /l/ { limit_req zone=one burst=1 nodelay; proxy_pass http://ORIGIN; }",
        WEIR_PER_ADDRESS,
        "  locations:
  - { path: /l/, limit_req: { zone: one, burst: 1, nodelay: true }, proxy_pass: 'http://ORIGIN' }",
    );
    let asks: Vec<_> = [2, 3, 2, 4, 2, 3, 3, 4, 4, 5]
        .map(|number| ask("/l/ok").from(number))
        .into();
    assert_eq!(
        pair.verdicts(&asks),
        [200, 200, 200, 200, 429, 200, 429, 200, 429, 200]
    );
}

#[test]
fn two_locations_share_a_zone_each_with_its_own_burst() {
    let pair = pair(
        NGINX_PER_ADDRESS,
        "location /a/ { limit_req zone=one burst=4 nodelay; proxy_pass http://ORIGIN; }
        location /b/ { limit_req zone=one burst=1 nodelay; proxy_pass http://ORIGIN; }",
        WEIR_PER_ADDRESS,
        "  locations:
  - { path: /a/, limit_req: { zone: one, burst: 4, nodelay: true }, proxy_pass: 'http://ORIGIN' }
  - { path: /b/, limit_req: { zone: one, burst: 1, nodelay: true }, proxy_pass: 'http://ORIGIN' }",
    );
    let asks: Vec<_> = [
        "/a/ok", "/b/ok", "/b/ok", "/a/ok", "/a/ok", "/b/ok", "/a/ok", "/a/ok",
    ]
    .map(ask)
    .into();
    assert_eq!(
        pair.verdicts(&asks),
        [200, 200, 429, 200, 200, 429, 200, 429]
    );
}

#[test]
fn a_refusal_by_the_second_zone_does_not_charge_the_first() {
    let pair = pair(
        "limit_req_zone $binary_remote_addr zone=first:1m rate=1r/m;
        limit_req_zone $arg_k zone=second:1m rate=1r/m;",
        "location /l/ {
            limit_req zone=first burst=3 nodelay; limit_req zone=second; proxy_pass http://ORIGIN;
        }",
        "limit_req_zones:
  first: { key: $binary_remote_addr, size: 1m, rate: 1r/m }
  second: { key: $arg_k, size: 1m, rate: 1r/m }",
        "  locations:
  - path: /l/
    limit_req: [ { zone: first, burst: 3, nodelay: true }, { zone: second } ]
    proxy_pass: 'http://ORIGIN'",
    );
    let asks: Vec<_> = ["a", "a", "a", "a", "b", "b", "c", "d", "e", ""]
        .map(|key| ask(&format!("/l/ok?k={key}")))
        .into();
    assert_eq!(
        pair.verdicts(&asks),
        [200, 429, 429, 429, 200, 429, 200, 200, 429, 429]
    );
}

#[test]
fn a_refusal_by_the_first_zone_does_not_charge_the_second() {
    let pair = pair(
        "limit_req_zone $arg_a zone=first:1m rate=1r/m; limit_req_zone $arg_b zone=second:1m rate=1r/m;",
        "location /l/ { limit_req zone=first; limit_req zone=second; proxy_pass http://ORIGIN; }",
        "limit_req_zones:
  first: { key: $arg_a, size: 1m, rate: 1r/m }
  second: { key: $arg_b, size: 1m, rate: 1r/m }",
        "  locations:
  - { path: /l/, limit_req: [ { zone: first }, { zone: second } ], proxy_pass: 'http://ORIGIN' }",
    );
    let asks: Vec<_> = [
        "a=1&b=1", "a=1&b=2", "a=2&b=2", "a=3", "a=3&b=3", "b=3", "b=3", "",
    ]
    .map(|query| ask(&format!("/l/ok?{query}")))
    .into();
    assert_eq!(
        pair.verdicts(&asks),
        [200, 429, 200, 200, 429, 200, 429, 200]
    );
}

#[test]
fn a_list_is_inherited_only_where_the_inner_level_gives_none() {
    let pair = pair(
        "limit_req_zone $binary_remote_addr zone=outer:1m rate=1r/m;
        limit_req_zone $binary_remote_addr zone=inner:1m rate=1r/m;",
        "limit_req zone=outer burst=1 nodelay;
        location /inherits/ { proxy_pass http://ORIGIN; }
        location /own/ { limit_req zone=inner; limit_req_status 420; proxy_pass http://ORIGIN; }",
        "limit_req_zones:
  outer: { key: $binary_remote_addr, size: 1m, rate: 1r/m }
  inner: { key: $binary_remote_addr, size: 1m, rate: 1r/m }",
        "  limit_req: { zone: outer, burst: 1, nodelay: true }
  locations:
  - { path: /inherits/, proxy_pass: 'http://ORIGIN' }
  - { path: /own/, limit_req: { zone: inner }, limit_req_status: 420, proxy_pass: 'http://ORIGIN' }",
    );
    let asks: Vec<_> = [
        "/own/ok",
        "/own/ok",
        "/inherits/ok",
        "/ok",
        "/inherits/ok",
        "/ok",
        "/own/ok",
    ]
    .map(ask)
    .into();
    assert_eq!(pair.verdicts(&asks), [200, 420, 200, 200, 429, 429, 420]);
}

#[test]
fn a_dry_run_charges_requests_and_refuses_none() {
    let pair = pair(
        NGINX_PER_ADDRESS,
        "location /dry/ {
            limit_req zone=one burst=2; limit_req_dry_run on; proxy_pass http://ORIGIN;
        }
        location /wet/ { limit_req zone=one burst=3 nodelay; proxy_pass http://ORIGIN; }",
        WEIR_PER_ADDRESS,
        "  locations:
  - { path: /dry/, limit_req: { zone: one, burst: 2 }, limit_req_dry_run: true, proxy_pass: 'http://ORIGIN' }
  - { path: /wet/, limit_req: { zone: one, burst: 3, nodelay: true }, proxy_pass: 'http://ORIGIN' }",
    );
    // Three are charged (two of them would have waited), the next two would have been refused and are not.
    assert_eq!(pair.verdicts(&ask("/dry/ok").times(5)), [200; 5]);
    assert_eq!(pair.verdicts(&ask("/wet/ok").times(2)), [200, 429]);
    assert_eq!(pair.verdicts(&ask("/dry/ok").times(2)), [200; 2]);
}

#[test]
fn an_empty_key_is_not_limited() {
    let pair = pair(
        "geo $remote_addr $outside { default 1; 127.0.0.8/30 0; 127.0.0.9 1; }
        map $outside $limited { 1 $binary_remote_addr; default ''; }
        map $http_x_tier $tier { ~*^gold '' ; default $binary_remote_addr; }
        limit_req_zone $limited zone=geo:1m rate=1r/m;
        limit_req_zone $tier zone=map:1m rate=1r/m;",
        "location /geo/ { limit_req zone=geo; proxy_pass http://ORIGIN; }
        location /map/ { limit_req zone=map; proxy_pass http://ORIGIN; }",
        "maps:
  $outside: { geo: $remote_addr, default: '1', values: { 127.0.0.8/30: '0', 127.0.0.9: '1' } }
  $limited: { map: $outside, default: '', values: { '1': $binary_remote_addr } }
  $tier: { map: $http_x_tier, default: $binary_remote_addr, values: { '~*^gold': '' } }
limit_req_zones:
  geo: { key: $limited, size: 1m, rate: 1r/m }
  map: { key: $tier, size: 1m, rate: 1r/m }",
        "  locations:
  - { path: /geo/, limit_req: { zone: geo }, proxy_pass: 'http://ORIGIN' }
  - { path: /map/, limit_req: { zone: map }, proxy_pass: 'http://ORIGIN' }",
    );
    let from = |number| ask("/geo/ok").from(number).times(2);
    let asks = [from(7), from(8), from(9), from(10), from(11), from(12)].concat();
    assert_eq!(
        pair.verdicts(&asks),
        [200, 429, 200, 200, 200, 429, 200, 200, 200, 200, 200, 429]
    );
    let tier = |name: &str| ask("/map/ok").field(&format!("X-Tier: {name}")).times(2);
    let asks = [tier("GOLDEN"), tier("silver"), tier("gold"), tier("")].concat();
    assert_eq!(
        pair.verdicts(&asks),
        [200, 200, 200, 429, 200, 200, 429, 429]
    );
}

#[test]
fn keys_may_be_made_of_any_variables() {
    let pair = Pair::start(
        "limit_req_zone $server_name zone=server:1m rate=1r/m;
        limit_req_zone $http_x_key$cookie_user zone=text:1m rate=1r/m;
        limit_req_zone $request_method$uri zone=uri:1m rate=1r/m;
        limit_req_status 429;
        server { listen LISTEN; server_name a.test b.test;
            location /server/ { limit_req zone=server; proxy_pass http://ORIGIN; }
            location /text/ { limit_req zone=text; proxy_pass http://ORIGIN; }
            location /uri/ { limit_req zone=uri; proxy_pass http://ORIGIN; } }
        server { listen LISTEN; server_name c.test;
            location / { limit_req zone=server; proxy_pass http://ORIGIN; } }",
        "limit_req_zones:
  server: { key: $server_name, size: 1m, rate: 1r/m }
  text: { key: $http_x_key$cookie_user, size: 1m, rate: 1r/m }
  uri: { key: $request_method$uri, size: 1m, rate: 1r/m }
servers:
- listen: LISTEN
  server_name: [a.test, b.test]
  locations:
  - { path: /server/, limit_req: { zone: server }, proxy_pass: 'http://ORIGIN' }
  - { path: /text/, limit_req: { zone: text }, proxy_pass: 'http://ORIGIN' }
  - { path: /uri/, limit_req: { zone: uri }, proxy_pass: 'http://ORIGIN' }
- listen: LISTEN
  server_name: c.test
  locations: [ { path: /, limit_req: { zone: server }, proxy_pass: 'http://ORIGIN' } ]
",
    );
    let hosts: Vec<_> = ["a.test", "b.test", "c.test", "C.TEST", "unknown"]
        .map(|host| ask("/server/ok").host(host))
        .into();
    assert_eq!(pair.verdicts(&hosts), [200, 429, 200, 429, 429]);
    let text = |key: &str, user: &str| {
        ask("/text/ok")
            .field(&format!("X-Key: {key}"))
            .field(&format!("Cookie: a=b; user={user}"))
    };
    let asks = [
        text("a", "b"),
        text("a", "b"),
        text("ab", ""),
        text("b", "b"),
        text("", "ab"),
    ];
    assert_eq!(pair.verdicts(&asks), [200, 429, 429, 200, 429]);
    let uris: Vec<_> = [
        "/uri/ok",
        "/uri/%6fk",
        "/uri//ok?q",
        "/uri/../uri/./ok",
        "/uri/OK",
    ]
    .map(ask)
    .into();
    assert_eq!(pair.verdicts(&uris), [200, 429, 429, 429, 200]);
}

#[test]
fn refusals_are_logged_in_nginxs_words() {
    let pair = pair(
        NGINX_PER_ADDRESS,
        "location /l/ { limit_req zone=one; proxy_pass http://ORIGIN; }
        location /dry/ { limit_req zone=one; limit_req_dry_run on; proxy_pass http://ORIGIN; }",
        WEIR_PER_ADDRESS,
        "  locations:
  - { path: /l/, limit_req: { zone: one }, proxy_pass: 'http://ORIGIN' }
  - { path: /dry/, limit_req: { zone: one }, limit_req_dry_run: true, proxy_pass: 'http://ORIGIN' }",
    );
    pair.verdicts(&[ask("/l/ok"), ask("/l/ok"), ask("/dry/ok")]);
    for (before, after) in [
        (
            "limiting requests, excess: ",
            " by zone \"one\", client: 127.0.0.1",
        ),
        (
            "limiting requests, dry run, excess: ",
            " by zone \"one\", client: 127.0.0.1",
        ),
    ] {
        let line = pair.weir.error_line(before);
        assert!(line.contains(after), "{line}");
        assert!(line.contains("request: \"GET /"), "{line}");
        let nginx = pair.nginx.log();
        let line = nginx.lines().find(|line| line.contains(before)).unwrap();
        assert!(line.contains(after), "{line}");
    }
}
