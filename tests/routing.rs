//! Servers and locations: the same hosts and paths to the real nginx and to weir, where each rule returns its name.

use std::net::{Ipv4Addr, SocketAddr};

use crate::support::client::Response;
use crate::support::{Client, Nginx, Origin, Weir, get, get_from};

fn ask(address: SocketAddr, host: &str, path: &str) -> Response {
    let mut client = Client::connect(address);
    client.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    client.response()
}

/// What a rule said, or the status where none did.
fn said(response: &Response) -> String {
    match response.status {
        200 => response.text(),
        status => status.to_string(),
    }
}

/// nginx and weir with the same servers: their names, and their locations.
fn both(servers: &[(&[&str], &[&str])]) -> (Nginx, Weir) {
    let mut nginx = String::new();
    let mut weir = String::from("servers:\n");
    for (number, (names, paths)) in servers.iter().enumerate() {
        let quoted: Vec<_> = names.iter().map(|name| format!("'{name}'")).collect();
        let server_name = match quoted.is_empty() {
            true => String::new(),
            false => format!("server_name {};", quoted.join(" ")),
        };
        let locations: String = (paths.iter().enumerate())
            .map(|(index, path)| {
                let modifier = ["= ", "^~ ", "~ ", "~* "]
                    .into_iter()
                    .find(|m| path.starts_with(m));
                let modifier = modifier.unwrap_or_default();
                let rest = path.trim_start_matches(modifier);
                format!("location {modifier} '{rest}' {{ return 200 '{number}.{index} $uri'; }}\n")
            })
            .collect();
        nginx += &format!("server {{ listen LISTEN; {server_name} {locations} }}\n");
        let locations: Vec<_> = (paths.iter().enumerate())
            .map(|(index, path)| {
                format!(
                    "{{ path: '{path}', return: {{ status: 200, body: '{number}.{index} $uri' }} }}"
                )
            })
            .collect();
        weir += &format!(
            "- {{ listen: LISTEN, server_name: [{}], locations: [ {} ] }}\n",
            quoted.join(", "),
            locations.join(", ")
        );
    }
    (Nginx::before(&Origin::start(), &nginx), Weir::start(&weir))
}

fn agree(nginx: &Nginx, weir: &Weir, hosts: &[&str], paths: &[&str]) {
    for host in hosts {
        for path in paths {
            let expected = said(&ask(nginx.address(), host, path));
            let found = said(&ask(weir.address(), host, path));
            assert_eq!(found, expected, "{host} {path}: weir left, nginx right");
        }
    }
}

#[test]
fn servers_are_found_by_name_as_nginx_finds_them() {
    let (nginx, weir) = both(&[
        (&["default.test"], &["/"]),
        (&["a.test", "www.a.test"], &["/"]),
        (&["*.a.test"], &["/"]),
        (&["*.deep.a.test"], &["/"]),
        (&["mail.*"], &["/"]),
        (&["mail.a.*"], &["/"]),
        (&[".b.test"], &["/"]),
        (&["~^www[0-9]+[.]test$"], &["/"]),
        (&["~^www1[.]"], &["/"]),
        (&["www2.test"], &["/"]),
    ]);
    let hosts = [
        "default.test",
        "a.test",
        "www.a.test",
        "x.a.test",
        "x.y.a.test",
        "x.deep.a.test",
        "deep.a.test",
        "mail.a.test",
        "mail.a.org",
        "mail.org",
        "mail.b.test",
        "b.test",
        "x.b.test",
        "xb.test",
        "www1.test",
        "www2.test",
        "www33.test",
        "WWW.A.TEST",
        "a.test.",
        "a.test:8080",
        "unknown",
        "127.0.0.1",
        "[::1]:80",
        "a.test..",
        "a..test",
        "a/test",
        "",
    ];
    agree(&nginx, &weir, &hosts, &["/"]);
}

#[test]
fn locations_are_found_by_path_as_nginx_finds_them() {
    let (nginx, weir) = both(&[(
        &["a.test"],
        &[
            "/",
            "= /",
            "/images/",
            "^~ /images/raw/",
            "~ [.]jpg$",
            "~* [.]png$",
            "~ ^/images/.*[.]gif$",
            "= /exact",
            "/exact",
            "/exact/sub",
            "/docs",
            "/docs/",
            "~ ^/docs/.*x",
            "/with space",
        ],
    )]);
    let paths = [
        "/",
        "/index",
        "//",
        "/images",
        "/images/",
        "/images/a",
        "/images/a.jpg",
        "/images/raw/a.jpg",
        "/images/rawer/a.jpg",
        "/a.jpg",
        "/a.JPG",
        "/a.PNG",
        "/a.png?x",
        "/images/a.gif",
        "/exact",
        "/exact?q",
        "/exact/",
        "/exact/sub/x",
        "/exactly",
        "/docs",
        "/docs/x",
        "/docs/a",
        "/docsx",
        "/with%20space/x",
        "/Exact",
    ];
    agree(&nginx, &weir, &["a.test"], &paths);
}

#[test]
fn paths_are_normalised_as_nginx_normalises_them() {
    let (nginx, weir) = both(&[(&["a.test"], &["/", "/private/", "= /exact", "~ /x/y$"])]);
    let paths = [
        "/private/../public",
        "/public/../private/x",
        "/%70rivate/x",
        "/private%2fx",
        "/private%2Fx",
        "//private//x",
        "/./private/./x",
        "/%2e/private/x",
        "/a/%2e%2e/private/x",
        "/a/..%2fprivate/x",
        "/..",
        "/../x",
        "/a/../../x",
        "/%2e%2e/x",
        "/a/b/../..",
        "/a/b/...",
        "/a/.../b",
        "/a/..b/c",
        "/a/.b",
        "/a/b/.",
        "/exact/.",
        "/exact/..",
        "/%65xact",
        "/exact%20",
        "/exact%3fq",
        "/exact%23",
        "/a%00b",
        "/a%zz",
        "/a%2",
        "/a%",
        "/x//y",
        "/x/y/",
        "/?/../private/",
        "/a?/../b",
        "/a;b/../c",
        "/caf%C3%A9",
        "/a\\b",
        "/private/..",
        "/a+b",
    ];
    agree(&nginx, &weir, &["a.test"], &paths);
}

#[test]
fn where_no_location_matches_it_is_a_404() {
    let weir = Weir::start(
        "servers:
- listen: LISTEN
  locations: [ { path: /only/, return: { status: 200, body: here } } ]
",
    );
    assert_eq!(get(weir.address(), "/only/x").text(), "here");
    assert_eq!(get(weir.address(), "/").status, 404);
}

#[test]
fn a_server_can_be_the_default_and_listen_on_several_addresses() {
    let weir = Weir::start(
        "servers:
- { listen: LISTEN, server_name: first.test, return: { status: 200, body: first } }
- listen: [ { address: LISTEN, default_server: true }, LISTEN2 ]
  server_name: second.test
  return: { status: 200, body: second }
",
    );
    assert_eq!(ask(weir.address(), "first.test", "/").text(), "first");
    assert_eq!(ask(weir.address(), "unknown", "/").text(), "second");
    assert_eq!(
        ask(weir.second_address(), "first.test", "/").text(),
        "second"
    );
}

#[test]
fn clients_are_let_in_by_address() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "servers:
- listen: LISTEN
  deny: 127.0.0.3
  locations:
  - { path: /, proxy_pass: 'http://ORIGIN' }
  - { path: /some/, allow: [ 127.0.0.8/30, 127.0.0.2 ], deny: all, proxy_pass: 'http://ORIGIN' }
  - { path: /few/, allow: 127.0.0.2, proxy_pass: 'http://ORIGIN' }
",
    );
    for (number, path, expected) in [
        (1, "/ok", 200),
        (3, "/ok", 403),
        (1, "/some/ok", 403),
        (2, "/some/ok", 200),
        (8, "/some/ok", 200),
        (11, "/some/ok", 200),
        (12, "/some/ok", 403),
        (2, "/few/ok", 200),
        (1, "/few/ok", 403),
    ] {
        let response = get_from(Ipv4Addr::new(127, 0, 0, number), weir.address(), path);
        assert_eq!(response.status, expected, "127.0.0.{number} {path}");
    }
    let line = weir.error_line("access forbidden by rule");
    assert!(line.contains("client: 127.0.0.3"), "{line}");
    assert!(line.contains("request: \"GET /ok HTTP/1.1\""), "{line}");
    assert_eq!(origin.count(), 5, "who is denied never reaches the backend");
}

#[test]
fn a_redirect_has_the_configured_location() {
    let weir = Weir::start(
        "servers:
- listen: LISTEN
  server_name: a.test
  locations:
  - { path: /moved/, return: { status: 301, url: 'https://$host$request_uri' } }
  - { path: /brief, return: '302 https://b.test/' }
  - { path: /gone, return: 410 }
  - { path: /silent, return: 444 }
",
    );
    let response = ask(weir.address(), "a.test", "/moved/x?y=%20z");
    assert_eq!(response.status, 301);
    assert_eq!(
        response.get("location"),
        Some("https://a.test/moved/x?y=%20z")
    );
    let response = ask(weir.address(), "a.test", "/brief");
    assert_eq!(
        (response.status, response.get("location")),
        (302, Some("https://b.test/"))
    );
    assert_eq!(ask(weir.address(), "a.test", "/gone").status, 410);
    let mut client = Client::connect(weir.address());
    client.get("/silent");
    assert!(client.is_closed());
}

#[test]
fn maps_become_what_nginxs_become() {
    let nginx = Nginx::before(
        &Origin::start(),
        "map $http_x_name $byname { hostnames; default none; example.com exact; *.example.com sub;
            .dotted.com dotted; www.prefix.* prefix; }
        map $arg_t $tier { default 'free of $arg_t'; gold first; ~^g 'starts with g'; ~*^SILVER silver; '' empty; }
        geo $remote_addr $net { default outside; 127.0.0.0/8 wide; 127.0.0.8/29 narrow; 127.0.0.9 one; }
        server { listen LISTEN; location / { return 200 '$byname|$tier|$net'; } }",
    );
    let weir = Weir::start(
        "maps:
  $byname: { map: $http_x_name, hostnames: true, default: none, values: { example.com: exact, '*.example.com': sub,
    .dotted.com: dotted, 'www.prefix.*': prefix } }
  $tier: { map: $arg_t, default: 'free of $arg_t', values: { gold: first, '~^g': starts with g, '~*^SILVER': silver,
    '': empty } }
  $net: { geo: $remote_addr, default: outside, values: { 127.0.0.0/8: wide, 127.0.0.8/29: narrow, 127.0.0.9: one } }
servers:
- { listen: LISTEN, locations: [ { path: /, return: { status: 200, body: '$byname|$tier|$net' } } ] }
",
    );
    let said = |address, number, name: &str, tier: &str| {
        let mut client = Client::connect_from(Ipv4Addr::new(127, 0, 0, number), address);
        client.send(format!(
            "GET /?t={tier} HTTP/1.1\r\nHost: a\r\nX-Name: {name}\r\n\r\n"
        ));
        client.response().text()
    };
    let names = [
        "example.com",
        "EXAMPLE.com",
        "a.example.com",
        "dotted.com",
        "a.dotted.com",
        "www.prefix.org",
        "other",
        "",
    ];
    let tiers = ["gold", "Gold", "green", "Green", "silver9", "bronze", ""];
    for number in [1, 8, 9, 15, 16] {
        for (name, tier) in names.iter().zip(tiers.iter().cycle()) {
            let expected = said(nginx.address(), number, name, tier);
            let found = said(weir.address(), number, name, tier);
            assert_eq!(found, expected, "127.0.0.{number} {name} {tier}");
        }
    }
}
