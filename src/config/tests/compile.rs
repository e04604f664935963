//! What a configuration comes to mean.

use std::time::Duration;

use http::StatusCode;

use crate::algorithm::{AlgorithmParams, Delay, Excess, Rate};
use crate::config::load_text;
use crate::config::plan::{
    AccessRules, ClientMatch, Content, LocationConf, MapLookup, MaxTries, OverrideKey,
    OverrideLimits, Part, Plan, ProxyPass, ReturnBody, SocketAddress, TlsVersion, UpstreamAddress,
    Variable,
};

fn plan(text: &str) -> Plan {
    match load_text("weir.yaml", text, |_| None) {
        Ok((plan, _)) => plan,
        Err(report) => panic!("{report}"),
    }
}

/// The plan of one server with these lines.
fn server(lines: &str) -> Plan {
    let zones = "limit_req_zones: { a: { key: $host, rate: 1r/s }, b: { key: $uri, rate: 2r/m } }\n\
                 limit_conn_zones: { c: { key: $host } }\n\
                 upstreams: { app: { servers: [127.0.0.1:9001, 127.0.0.1:9002] } }\n";
    plan(&format!("{zones}servers:\n  - listen: 8080\n{lines}"))
}

fn location(plan: &Plan, index: usize) -> &LocationConf {
    &plan.servers[0].locations[index].conf
}

fn proxy_pass(conf: &LocationConf) -> &ProxyPass {
    match &conf.action {
        Content::ProxyPass(proxy_pass) => proxy_pass,
        other => panic!("not sent on: {other:?}"),
    }
}

#[test]
fn no_tls_protocols_are_all_of_them() {
    for given in ["", "protocols: \"\", ", "protocols: [], "] {
        let plan = plan(&format!(
            "servers: {{ listen: {{ address: 443, tls: true }}, \
             tls: {{ {given}certificate: a.pem, key: a.key }}, proxy_pass: http://127.0.0.1:9001 }}"
        ));
        let tls = plan.servers[0].tls.as_ref().unwrap();
        assert_eq!(tls.protocols, TlsVersion::ALL, "{given}");
    }
}

#[test]
fn what_is_not_given_is_as_in_nginx_but_for_429() {
    let plan = plan("servers: { proxy_pass: http://127.0.0.1:9001 }");
    assert_eq!(plan.shutdown_timeout, Duration::from_secs(30));
    assert!(plan.admin.is_none());
    assert!(plan.log.access.is_some());
    assert_eq!(
        plan.listeners[0].address,
        SocketAddress::Tcp("0.0.0.0:80".parse().unwrap())
    );
    let server = &plan.servers[0];
    assert_eq!(server.max_head, 32 * 1024);
    assert_eq!(server.header_timeout, Duration::from_secs(60));
    assert_eq!(
        server.client.keepalive_timeout,
        Some(Duration::from_secs(75))
    );
    assert_eq!(server.client.keepalive_requests, 1000);
    let conf = &server.fallback;
    assert_eq!(conf.limits.limit_req_status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        conf.limits.limit_conn_status,
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(conf.client.client_max_body_size, 1 << 20);
    let proxy_pass = proxy_pass(conf);
    assert!(proxy_pass.settings.via);
    assert_eq!(
        proxy_pass.settings.proxy_read_timeout,
        Duration::from_secs(60)
    );
    assert!(proxy_pass.next_upstream.error && proxy_pass.next_upstream.timeout);
    assert_eq!(proxy_pass.next_upstream.tries, MaxTries::Each);
    let upstream = &plan.upstreams[proxy_pass.upstream];
    assert_eq!(upstream.keepalive, 64);
    assert_eq!(upstream.servers[0].max_fails, 1);
}

#[test]
fn a_list_of_limits_is_inherited_only_where_the_inner_level_gives_none() {
    let plan = server(
        "    limit_req: [{ zone: a, burst: 5 }, { zone: b, nodelay: true }]
    limit_conn: { zone: c, limit: 3, queue: { size: 9, timeout: 2s } }
    return: 204
    locations:
      - { path: /all }
      - { path: /own, limit_req: { zone: b, burst: 2, delay: 1 } }
      - { path: /none, limit_req: off, limit_conn: [] }
",
    );
    let all = location(&plan, 0);
    assert_eq!(all.limit_req.len(), 2);
    assert_eq!(all.limit_req[0].burst, Excess::requests(5));
    assert_eq!(all.limit_req[0].delay, Delay::After(Excess(0)));
    assert_eq!(all.limit_req[1].delay, Delay::Never);
    assert_eq!(all.limit_conn[0].queue.map(|queue| queue.size), Some(9));
    let own = location(&plan, 1);
    assert_eq!(own.limit_req.len(), 1);
    assert_eq!(own.limit_req[0].zone, 1);
    assert_eq!(own.limit_req[0].delay, Delay::After(Excess::requests(1)));
    assert_eq!(own.limit_conn.len(), 1);
    let none = location(&plan, 2);
    assert!(none.limit_req.is_empty() && none.limit_conn.is_empty());
}

#[test]
fn single_settings_are_inherited_one_by_one() {
    let plan = plan(
        "proxy_read_timeout: 5s
client_max_body_size: 0
servers:
  - proxy_pass: http://127.0.0.1:1
    proxy_read_timeout: 6s
    via: off
    locations:
      - { path: /a, proxy_send_timeout: 7s, client_max_body_size: 2k }
",
    );
    let conf = location(&plan, 0);
    assert_eq!(
        proxy_pass(conf).settings.proxy_read_timeout,
        Duration::from_secs(6)
    );
    assert_eq!(
        proxy_pass(conf).settings.proxy_send_timeout,
        Duration::from_secs(7)
    );
    assert!(!proxy_pass(conf).settings.via);
    assert_eq!(conf.client.client_max_body_size, 2048);
    assert_eq!(plan.servers[0].fallback.client.client_max_body_size, 0);
}

/// Only a machine behind `https://` is asked for by its own name: it may serve many, and no other of ours.
#[test]
fn the_host_sent_on_depends_on_what_proxy_pass_names() {
    for (pass, host) in [
        ("app", Variable::PassedHost),
        ("http://app", Variable::PassedHost),
        ("https://app", Variable::PassedHost),
        ("http://example.com", Variable::PassedHost),
        ("https://127.0.0.1:8443", Variable::PassedHost),
        ("https://example.com", Variable::ProxyHost),
    ] {
        let text = format!(
            "upstreams: {{ app: {{ servers: \"127.0.0.1:1\" }} }}\nservers: [{{ proxy_pass: \"{pass}\" }}]"
        );
        let plan = plan(&text);
        let sent = &proxy_pass(&plan.servers[0].fallback).set_headers[0];
        assert_eq!(sent.value.as_variable(), Some(&host), "{pass}");
    }
}

#[test]
fn headers_of_our_own_stand_under_those_of_the_user() {
    let plan = server(
        "    proxy_set_header: { Host: $host, X-Forwarded-For: \"\", X-Tag: a-$uri, Connection: \"\" }
    proxy_pass: app
    locations: { path: /x, proxy_set_header: { X-Other: 1 } }
",
    );
    let names = |conf| -> Vec<_> {
        proxy_pass(conf)
            .set_headers
            .iter()
            .map(|header| header.name.to_string())
            .collect()
    };
    let conf = &plan.servers[0].fallback;
    assert_eq!(
        names(conf),
        [
            "host",
            "x-forwarded-proto",
            "x-forwarded-host",
            "x-forwarded-for",
            "x-real-ip",
            "forwarded",
            "x-tag"
        ]
    );
    let headers = &proxy_pass(conf).set_headers;
    assert_eq!(headers[0].value.as_variable(), Some(&Variable::Host));
    assert_eq!(headers[3].value.as_literal(), Some(""));
    assert_eq!(
        headers[6].value.parts[..],
        [Part::Text("a-".into()), Part::Variable(Variable::Uri)]
    );
    let inner = location(&plan, 0);
    assert_eq!(names(inner).last().map(String::as_str), Some("x-other"));
    assert_eq!(
        proxy_pass(inner).set_headers[0].value.as_variable(),
        Some(&Variable::PassedHost)
    );
}

#[test]
fn proxy_pass_takes_the_forms_of_nginx() {
    let plan = server(
        "    proxy_pass: app
    locations:
      - { path: /a/, proxy_pass: 'http://app/b/' }
      - { path: = /c, proxy_pass: 'http://127.0.0.1:9009' }
      - { path: /d, proxy_pass: '127.0.0.1:9009' }
      - { path: /e, proxy_pass: 'http://unix:/run/app.sock:/f' }
      - { path: /g, proxy_pass: 'http://Example.com' }
      - { path: ~ ^/h }
",
    );
    let of = |index| proxy_pass(location(&plan, index));
    assert_eq!(
        (of(0).upstream, of(0).uri.as_deref(), of(0).replaces),
        (0, Some("/b/"), 3)
    );
    assert_eq!(&*of(0).host, "app");
    assert_eq!(of(1).uri, None);
    assert_eq!(of(1).upstream, of(2).upstream);
    assert_eq!(&*of(1).host, "127.0.0.1:9009");
    assert_eq!(
        (&*of(3).host, of(3).uri.as_deref()),
        ("localhost", Some("/f"))
    );
    assert_eq!(
        plan.upstreams[of(3).upstream].servers[0].address,
        UpstreamAddress::Unix("/run/app.sock".into())
    );
    assert_eq!(
        (&*of(4).host, &*plan.upstreams[of(4).upstream].name),
        ("Example.com", "example.com:80")
    );
    assert_eq!((of(5).upstream, of(5).replaces), (0, 1));
}

#[test]
fn servers_share_an_address_and_one_answers_for_strangers() {
    let plan = plan(
        "servers:
  - { listen: [8080, 8081], server_name: a.com, return: 204 }
  - { listen: '*:8080', return: 204 }
  - { listen: { address: 8081, default_server: true }, server_name: b.com, return: 204 }
  - { listen: 8082, server_name: c.com, return: 204 }
",
    );
    let seen: Vec<_> = plan
        .listeners
        .iter()
        .map(|listener| (&listener.servers[..], listener.default_server))
        .collect();
    assert_eq!(seen, [(&[0, 1][..], 1), (&[0, 2][..], 2), (&[3][..], 3)]);
    assert_eq!(&*plan.servers[0].name, "a.com");
    assert_eq!(&*plan.servers[1].name, "");
}

#[test]
fn returns_are_written_in_words_or_in_parts() {
    let plan = server(
        "    return: 204
    locations:
      - { path: /1, return: 301 https://$host/x }
      - { path: /2, return: 200 all is well }
      - { path: /3, return: 'https://a.example/' }
      - { path: /4, return: { body: '{}', content_type: application/json } }
      - { path: /5, return: { url: 'https://a.example/', status: 308 } }
      - { path: /6, return: 444 }
",
    );
    let shown = |index| match &location(&plan, index).action {
        Content::Return(answer) => (
            answer.status,
            match &answer.body {
                ReturnBody::Location(to) => format!("to {}", to.parts.len()),
                ReturnBody::Page => "page".to_owned(),
                ReturnBody::Text { text, content_type } => {
                    format!("{content_type} {}", text.text.as_literal().unwrap())
                }
            },
        ),
        other => panic!("{other:?}"),
    };
    assert_eq!(shown(0), (301, "to 3".into()));
    assert_eq!(shown(1), (200, "text/plain all is well".into()));
    assert_eq!(shown(2), (302, "to 1".into()));
    assert_eq!(shown(3), (200, "application/json {}".into()));
    assert_eq!(shown(4), (308, "to 1".into()));
    assert_eq!(shown(5), (444, "page".into()));
}

#[test]
fn access_is_searched_by_the_longest_prefix() {
    let plan = server(
        "    return: 204
    allow: 10.0.0.0/8
    locations:
      - { path: /inherits }
      - { path: /own, allow: [10.1.0.0/16, 'unix:'], deny: [all, 10.1.2.3, 10.1.0.0/16] }
",
    );
    let texts = |access: &AccessRules| -> Vec<_> {
        access
            .networks
            .iter()
            .map(|(network, permits)| match network {
                ClientMatch::Ip(net) => format!("{net} {permits}"),
                ClientMatch::Unix => format!("unix {permits}"),
            })
            .collect()
    };
    assert_eq!(texts(&location(&plan, 0).access), ["10.0.0.0/8 true"]);
    assert!(location(&plan, 0).access.refuse_others);
    assert_eq!(
        texts(&location(&plan, 1).access),
        [
            "10.1.2.3/32 false",
            "unix true",
            "10.1.0.0/16 false",
            "10.1.0.0/16 true",
            "0.0.0.0/0 false",
            "::/0 false"
        ]
    );
}

#[test]
fn zones_keep_their_numbers() {
    let leaky = |rate| AlgorithmParams::LeakyBucket { rate };
    let plan = plan(
        "limit_req_zones:
  a:
    key: $limit_key
    rate: 0.5r/s
    ipv6_prefix: 64
    on_empty_key: refuse
    overrides: { 10.0.0.0/8: { rate: unlimited }, gold: { burst: 7 }, 192.0.2.7: { rate: 9r/m } }
maps:
  $limit_key: { geo: $remote_addr, default: $binary_remote_addr, values: { 10.0.0.0/8: gold } }
limit_req: { zone: a }
servers: { return: 204 }
",
    );
    let zone = &plan.req_zones[0];
    assert_eq!(
        (zone.algorithm, zone.size, zone.ipv6_prefix),
        (leaky(Rate::per_second(500)), 10 << 20, 64)
    );
    assert_eq!(zone.key.as_variable(), Some(&Variable::Map(0)));
    assert_eq!(zone.overrides[0].own, None);
    assert_eq!(zone.overrides[1].key, OverrideKey::Text("gold".into()));
    let own = |algorithm, burst| Some(OverrideLimits { algorithm, burst });
    assert_eq!(
        zone.overrides[1].own,
        own(zone.algorithm, Some(Excess::requests(7)))
    );
    assert_eq!(
        zone.overrides[2].own,
        own(leaky(Rate::per_minute(9000)), None)
    );
    assert!(matches!(&plan.maps[0].lookup, MapLookup::Geo(geo) if geo.values.len() == 1));
}

#[test]
fn anchors_and_merge_keys_save_writing() {
    let plan = plan(
        "servers:
  - &first { listen: 8080, server_name: a, return: 204, send_timeout: 5s }
  - { <<: *first, server_name: b }
",
    );
    assert_eq!(plan.servers[1].client.send_timeout, Duration::from_secs(5));
    assert_eq!(plan.listeners[0].servers, [0, 1]);
}

/// What later versions have more of is accepted where it says what this one does anyway.
#[test]
fn words_for_what_is_so_anyway_are_accepted() {
    let plan = plan(
        "log: { level: debug, access: off }
admin: {}
limit_req_zones: { a: { key: $host, rate: 1, algorithm: leaky_bucket, store: local } }
upstreams:
  app:
    balance: round_robin
    servers: [{ address: '127.0.0.1:1', weight: 5, max_conns: 0, backup: false, down: false }]
servers:
  - listen: ['0.0.0.0:8080', { address: '0.0.0.0:8443', tls: false, proxy_protocol: off }]
    limit_req: { zone: a, burst: 0, nodelay: false }
    proxy_next_upstream: off
    large_client_header_buffers: { number: 2, size: 4k }
    proxy_pass: app
",
    );
    assert!(plan.log.access.is_none());
    assert_eq!(plan.admin.map(|admin| admin.listen.port()), Some(9900));
    assert_eq!(plan.servers[0].max_head, 8192);
    let next = &proxy_pass(&plan.servers[0].fallback).next_upstream;
    assert!(!next.error && !next.timeout && next.statuses.is_empty());
}
