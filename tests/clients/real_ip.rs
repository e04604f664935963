//! `real_ip` beside the real nginx, and what follows from it for keys, logs and backends.

use std::net::{Ipv4Addr, SocketAddr};

use crate::support::{Client, Nginx, Origin, Weir};

/// Servers by name, each with its own way of finding out; all trust 127.0.0.1, 10.0.0.0/8 and 2001:db8::/32.
const HEADERS: [(&str, &str, bool); 5] = [
    ("xff", "X-Forwarded-For", false),
    ("xff-recursive", "X-Forwarded-For", true),
    ("real", "X-Real-IP", false),
    ("real-recursive", "X-Real-IP", true),
    ("cdn", "CF-Connecting-IP", true),
];

fn nginx(origin: &Origin) -> Nginx {
    let servers: String = HEADERS
        .iter()
        .map(|(name, header, recursive)| {
            let recursive = if *recursive { "on" } else { "off" };
            format!(
                "server {{
                    listen LISTEN; server_name {name};
                    set_real_ip_from 127.0.0.1; set_real_ip_from 10.0.0.0/8; set_real_ip_from 2001:db8::/32;
                    real_ip_header {header}; real_ip_recursive {recursive};
                    return 200 '$remote_addr|$remote_port|$realip_remote_addr';
                }}"
            )
        })
        .collect();
    Nginx::before(origin, &servers)
}

fn weir() -> Weir {
    let servers: String = HEADERS
        .iter()
        .map(|(name, header, recursive)| {
            format!(
                "- listen: LISTEN
  server_name: {name}
  real_ip: {{ header: {header}, recursive: {recursive} }}
  return: {{ body: '$remote_addr|$remote_port|$realip_remote_addr' }}
"
            )
        })
        .collect();
    Weir::start(&format!(
        "real_ip: {{ from: [127.0.0.1, 10.0.0.0/8, '2001:db8::/32'] }}
servers:
{servers}"
    ))
}

/// What a server of this name says of a request with these fields.
fn told(address: SocketAddr, source: [u8; 4], name: &str, fields: &str) -> String {
    let mut client = Client::connect_from(Ipv4Addr::from(source), address);
    client.send(format!(
        "GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n{fields}\r\n"
    ));
    let answer = client.response();
    assert_eq!(answer.status, 200, "{fields}");
    answer.text()
}

/// Lines of one header, put together at random from what may and what may not stand in them.
fn lines(header: &str, random: &mut fastrand::Rng) -> String {
    const WORDS: [&str; 16] = [
        "1.1.1.1",
        "2.2.2.2:8080",
        "10.0.0.1",
        "10.0.0.2:81",
        "127.0.0.1",
        "2001:4860::7",
        "[2001:4860::7]:443",
        "[2001:4860::7]",
        "2001:db8::1",
        "[2001:DB8::0:1]:5",
        "unknown",
        "unix:",
        "1.2.3",
        "3.3.3.3:99999",
        "\"4.4.4.4\"",
        "",
    ];
    const BETWEEN: [&str; 6] = [", ", ",", " ", " , ", ",,", ";"];
    let mut text = String::new();
    for _ in 0..random.usize(..4) {
        text += header;
        text += ": ";
        for _ in 0..random.usize(..5) {
            text += random.choice(WORDS).expect("there are some");
            text += random.choice(BETWEEN).expect("there are some");
        }
        text += random.choice(WORDS).expect("there are some");
        text += "\r\n";
    }
    text
}

#[test]
fn the_client_address_is_the_one_nginx_finds() {
    let origin = Origin::start();
    let (nginx, weir) = (nginx(&origin), weir());
    let mut random = fastrand::Rng::with_seed(7239);
    let mut named = 0;
    for round in 0..1200 {
        let (name, header, _) = HEADERS[round % HEADERS.len()];
        let fields = lines(header, &mut random);
        let source = if round % 7 == 0 {
            [127, 0, 0, 9]
        } else {
            [127, 0, 0, 1]
        };
        let by_nginx = told(nginx.address(), source, name, &fields);
        let by_weir = told(weir.address(), source, name, &fields);
        let [nginx_client, nginx_port, nginx_peer] = parts(&by_nginx);
        let [client, port, peer] = parts(&by_weir);
        assert_eq!(
            (client, peer),
            (nginx_client, nginx_peer),
            "{name}: {fields:?}"
        );
        // That of a connection is another for each of them.
        if client == peer {
            assert_eq!(port.is_empty(), nginx_port.is_empty(), "{name}: {fields:?}");
        } else {
            named += 1;
            assert_eq!(port, nginx_port, "{name}: {fields:?}");
        }
    }
    assert!(named > 300, "only {named} of them named a client");
}

fn parts(told: &str) -> [&str; 3] {
    let parts: Vec<_> = told.split('|').collect();
    parts.try_into().expect("three parts")
}

#[test]
fn forwarded_is_read_too() {
    let weir = Weir::start(
        "real_ip: { from: 127.0.0.0/24, header: Forwarded, recursive: on }
servers:
- listen: LISTEN
  return: { body: '$remote_addr|$remote_port|$realip_remote_addr' }
",
    );
    let of = |fields| told(weir.address(), [127, 0, 0, 1], "any", fields);
    assert_eq!(
        of(
            "Forwarded: for=9.9.9.9, for=\"[2001:db8::7]:4711\";proto=https\r\nForwarded: for=127.0.0.3\r\n"
        ),
        "2001:db8::7|4711|127.0.0.1"
    );
    let unknown = of("Forwarded: for=unknown\r\nX-Forwarded-For: 1.1.1.1\r\n");
    assert!(unknown.starts_with("127.0.0.1|"), "{unknown}");
}

/// A client may send a line of its own; the trusted proxy adds one below it.
#[test]
fn a_line_above_the_proxys_does_not_choose_the_address() {
    let origin = Origin::start();
    let server = |name: &str, header: &str, recursive: &str| {
        format!(
            "- {{ listen: LISTEN, server_name: {name}, real_ip: {{ header: {header}, recursive: {recursive} }}, proxy_pass: 'http://ORIGIN' }}\n"
        )
    };
    let weir = Weir::before(
        &origin,
        &format!(
            "real_ip: {{ from: 127.0.0.1 }}
proxy_set_header: {{ X-Client: $remote_addr, X-Chain: $proxy_add_x_forwarded_for }}
servers:
{}{}{}{}",
            server("xff", "X-Forwarded-For", "off"),
            server("xff-recursive", "X-Forwarded-For", "on"),
            server("forwarded", "Forwarded", "off"),
            server("forwarded-recursive", "Forwarded", "on"),
        ),
    );
    let url = format!("http://{}/ok", weir.address());
    for name in ["xff", "xff-recursive", "forwarded", "forwarded-recursive"] {
        for version in ["--http1.1", "--http2-prior-knowledge"] {
            let host = format!("Host: {name}");
            let lines = match name.starts_with("xff") {
                true => ["X-Forwarded-For: 6.6.6.6", "X-Forwarded-For: 1.1.1.1"],
                false => ["Forwarded: for=6.6.6.6", "Forwarded: for=1.1.1.1"],
            };
            let asked = std::process::Command::new("curl")
                .args(["--silent", "--max-time", "15", version, &url])
                .args(["-H", &host, "-H", lines[0], "-H", lines[1]])
                .output()
                .expect("curl can be run");
            assert_eq!(asked.stdout, b"ok", "{name} {version}: {asked:?}");
            let seen = origin.seen();
            let head = &seen.last().expect("it was asked").head;
            assert_eq!(head.get("x-client"), Some("1.1.1.1"), "{name} {version}");
            if name.starts_with("xff") {
                let chain = Some("6.6.6.6, 1.1.1.1, 1.1.1.1");
                assert_eq!(head.get("x-chain"), chain, "{name} {version}");
            }
        }
    }
}

/// One connection of a trusted proxy carries the requests of many.
#[test]
fn clients_on_one_connection_are_kept_apart() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "log: { access: { format: '$remote_addr $realip_remote_addr $status' } }
real_ip: { from: 127.0.0.1, header: X-Forwarded-For }
limit_req_zones: { one: { key: $binary_remote_addr, rate: 1r/d } }
servers:
- listen: LISTEN
  locations:
  - { path: /, limit_req: { zone: one }, deny: 6.6.6.6, proxy_pass: 'http://ORIGIN',
      proxy_set_header: { X-Seen: $remote_addr, X-Chain: $proxy_add_x_forwarded_for } }
",
    );
    let mut proxy = Client::connect(weir.address());
    let mut statuses = Vec::new();
    for client in [
        "1.1.1.1", "2.2.2.2", "1.1.1.1", "6.6.6.6", "2.2.2.2", "3.3.3.3",
    ] {
        proxy.send(format!(
            "GET /ok HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\n\r\n"
        ));
        statuses.push((client, proxy.response().status));
    }
    // Without a named client it is the proxy's own request.
    proxy.get("/ok");
    statuses.push(("127.0.0.1", proxy.response().status));
    let expected = [
        ("1.1.1.1", 200),
        ("2.2.2.2", 200),
        ("1.1.1.1", 429),
        ("6.6.6.6", 403),
        ("2.2.2.2", 429),
        ("3.3.3.3", 200),
        ("127.0.0.1", 200),
    ];
    assert_eq!(statuses, expected);
    let seen: Vec<_> = origin
        .seen()
        .iter()
        .map(|seen| {
            let field = |name| seen.head.get(name).unwrap_or_default().to_owned();
            [field("x-seen"), field("x-chain"), field("x-forwarded-for")]
        })
        .collect();
    let chain = |client: &str| {
        let chain = format!("{client}, {client}");
        [client.to_owned(), chain.clone(), chain]
    };
    let own = ["127.0.0.1"; 3].map(str::to_owned);
    let expected_seen = [chain("1.1.1.1"), chain("2.2.2.2"), chain("3.3.3.3"), own];
    assert_eq!(seen, expected_seen);
    weir.access_line("127.0.0.1 127.0.0.1 200");
    let lines: Vec<_> = weir.stdout().lines().map(str::to_owned).collect();
    let written = expected.map(|(client, status)| format!("{client} 127.0.0.1 {status}"));
    assert_eq!(lines, written);
}

/// Without trust a forged header changes neither a key nor a log line nor what the backend is told.
#[test]
fn a_client_cannot_pose_as_another() {
    const FORGED: &str = "X-Forwarded-For: 1.1.1.1\r\nX-Real-IP: 1.1.1.1\r\nForwarded: for=1.1.1.1\r\n\
        CF-Connecting-IP: 1.1.1.1\r\nX-Forwarded-Port: 1\r\nX-Forwarded-Ssl: on\r\nX-Client-IP: 1.1.1.1\r\n\
        True-Client-IP: 1.1.1.1\r\nX-Cluster-Client-IP: 1.1.1.1\r\nX-Original-Forwarded-For: 1.1.1.1\r\n\
        X-SSL-Client-Verify: SUCCESS\r\nX-Forwarded-Client-Cert: By=me\r\nX_Client_IP: 1.1.1.1\r\n";
    for real_ip in [
        "",
        "real_ip: { from: 10.0.0.0/8, header: X-Forwarded-For, recursive: on }\n",
        "real_ip: { from: [10.0.0.0/8, 'unix:'], header: Forwarded }\n",
        "real_ip: { from: 10.0.0.0/8, header: CF-Connecting-IP }\n",
        "real_ip: { from: 10.0.0.0/8, header: proxy_protocol }\n",
    ] {
        let origin = Origin::start();
        let weir = Weir::before(
            &origin,
            &format!(
                "{real_ip}limit_req_zones: {{ one: {{ key: $remote_addr, rate: 1r/d }} }}
servers:
- listen: LISTEN
  locations: {{ path: /, limit_req: {{ zone: one }}, proxy_pass: 'http://ORIGIN' }}
"
            ),
        );
        let mut client = Client::connect(weir.address());
        for status in [200, 429] {
            client.send(format!("GET /ok HTTP/1.1\r\nHost: a\r\n{FORGED}\r\n"));
            assert_eq!(client.response().status, status, "{real_ip}");
        }
        let head = origin.only().head;
        let names = head.all("x-forwarded-for").collect::<Vec<_>>();
        assert_eq!(names, ["127.0.0.1"], "{real_ip}");
        let told: Vec<_> = head.fields.iter().map(|(name, _)| name.as_str()).collect();
        let ours = ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"];
        let forged = FORGED.lines().filter_map(|line| line.split(':').next());
        for name in forged.map(str::to_ascii_lowercase) {
            let expected = ours.contains(&name.as_str());
            assert_eq!(told.contains(&name.as_str()), expected, "{real_ip} {name}");
        }
        assert!(!weir.access_line(" 429 ").contains("1.1.1.1"), "{real_ip}");
        assert!(!weir.stderr().contains("client: 1.1.1.1"));
    }
}

/// A trusted proxy may set all of them, and so may the configuration.
#[test]
fn headers_of_trusted_proxies_and_of_the_configuration_are_forwarded() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "servers:
- listen: LISTEN
  proxy_pass: http://ORIGIN
  locations:
  - { path: /believed, real_ip: { from: 127.0.0.1 } }
  - { path: /set, proxy_set_header: { X-Client-IP: $remote_addr, True-Client-IP: $http_true_client_ip } }
",
    );
    for (path, own, theirs) in [
        ("/", None, None),
        ("/believed", Some("1.1.1.1"), Some("2.2.2.2")),
        ("/set", Some("127.0.0.1"), Some("2.2.2.2")),
    ] {
        let mut client = Client::connect(weir.address());
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nX-Client-IP: 1.1.1.1\r\nTrue-Client-IP: 2.2.2.2\r\n\r\n"
        ));
        client.response();
        let seen = origin.seen();
        let head = &seen.last().expect("it was asked").head;
        assert_eq!(head.get("x-client-ip"), own, "{path}");
        assert_eq!(head.get("true-client-ip"), theirs, "{path}");
    }
}

/// A location may trust other headers than its server; the address that the server found stands.
#[test]
fn a_location_finds_the_client_when_its_server_has_not() {
    let weir = Weir::start(
        "servers:
- listen: LISTEN
  real_ip: { from: 127.0.0.1, header: X-Real-IP }
  return: { body: $remote_addr }
  locations:
  - { path: /cdn, real_ip: { header: CF-Connecting-IP } }
  - { path: /deaf, real_ip: { from: [] } }
",
    );
    let ask = |path: &str, fields: &str| {
        let mut client = Client::connect(weir.address());
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        client.response().text()
    };
    assert_eq!(ask("/", "CF-Connecting-IP: 2.2.2.2\r\n"), "127.0.0.1");
    assert_eq!(ask("/cdn", "CF-Connecting-IP: 2.2.2.2\r\n"), "2.2.2.2");
    let both = "CF-Connecting-IP: 2.2.2.2\r\nX-Real-IP: 1.1.1.1\r\n";
    assert_eq!(ask("/cdn", both), "1.1.1.1");
    assert_eq!(ask("/deaf", both), "1.1.1.1");
}

/// Behind a balancer that speaks TLS, the backend has to know that the client did.
#[test]
fn the_scheme_and_host_from_a_trusted_proxy_are_forwarded() {
    for (from, protocol, host) in [
        ("127.0.0.1", "https", "shop.example"),
        ("10.0.0.0/8", "http", "a"),
    ] {
        let origin = Origin::start();
        let weir = Weir::before(
            &origin,
            &format!(
                "real_ip: {{ from: {from}, header: X-Forwarded-For }}
servers: [{{ listen: LISTEN, proxy_pass: 'http://ORIGIN' }}]
"
            ),
        );
        let mut client = Client::connect(weir.address());
        client.send(
            "GET /ok HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: shop.example\r\n\r\n",
        );
        assert_eq!(client.response().status, 200);
        let head = &origin.seen()[0].head;
        assert_eq!(head.get("x-forwarded-proto"), Some(protocol));
        assert_eq!(head.get("x-forwarded-host"), Some(host));
    }
}
