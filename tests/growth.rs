//! A request costs the same whether there is one of everything in the configuration or thousands.
//!
//! Counted in instructions like the budgets, with the same request to a small configuration and to a large one: what
//! is more in the second, growth has cost.

use std::fmt::Write;
use std::net::SocketAddr;

use super::instructions::Measured;

/// How much of everything there is.
#[derive(Debug, Clone, Copy)]
struct Size {
    names: usize,
    locations: usize,
    zones: usize,
    servers: usize,
    keepalive: usize,
}

const SMALL: Size = Size {
    names: 1,
    locations: 1,
    zones: 1,
    servers: 1,
    keepalive: 16,
};

/// The keys of the zones, in turn.
const KEYS: [&str; 4] = [
    "$binary_remote_addr",
    "$server_name",
    "$server_name$uri",
    "$http_x_api_key",
];

/// It finds the last server and the last location.
const REQUEST: &str = "GET /api/service0/list HTTP/1.1\r\nHost: host0.example.com\r\nUser-Agent: growth\r\n\
                       Accept: */*\r\nX-Api-Key: 0123456789abcdef0123456789abcdef\r\n\r\n";

/// The most that all of it may cost, in thousandths of the request with little; a zone may cost so much each.
const MOST: u64 = 20;

impl Size {
    fn yaml(self, listen: SocketAddr, backend: SocketAddr) -> String {
        let mut text = String::from(
            "workers: 1\nlog: { level: error, access: off }\nkeepalive_timeout: 600s\n\
             keepalive_requests: 1000000\nlimit_req_zones:\n",
        );
        let mut limits = String::new();
        for zone in 0..self.zones {
            let key = KEYS[zone % KEYS.len()];
            let _written = writeln!(
                text,
                "  z{zone}: {{ key: \"{key}\", size: 1m, rate: 1000000r/s }}"
            );
            let _written = write!(
                limits,
                "{{ zone: z{zone}, burst: 100000, nodelay: true }}, "
            );
        }
        let _written = writeln!(
            text,
            "upstreams:\n  backend:\n    keepalive: {}\n    keepalive_requests: 1000000\n    servers:",
            self.keepalive
        );
        for _ in 0..self.servers {
            let _written = writeln!(text, "      - {{ address: \"{backend}\" }}");
        }
        text.push_str("servers:\n");
        for name in (0..self.names).rev() {
            let _written = writeln!(
                text,
                "  - listen: \"{listen}\"\n    server_name: host{name}.example.com\n    locations:\n      \
                 - {{ path: /, return: 404 }}"
            );
        }
        for location in (0..self.locations).rev() {
            let _written = writeln!(
                text,
                "      - {{ path: /api/service{location}/, limit_req: [{limits}], proxy_pass: backend }}"
            );
        }
        text
    }

    /// Instructions for one request.
    fn cost(self) -> u64 {
        Measured {
            yaml: &|listen, backend| self.yaml(listen, backend),
            request: REQUEST,
            status: 200,
            requests: 1_000,
        }
        .cost()
    }
}

/// Over many servers no connection is kept long enough to be used again; so none is kept with few either.
const FEW_SERVERS: Size = Size {
    servers: 2,
    keepalive: 0,
    ..SMALL
};

/// What grows from what, and by how many of it.
fn grown() -> [(&'static str, Size, Size, u64); 4] {
    let names = Size {
        names: 10_000,
        ..SMALL
    };
    let locations = Size {
        locations: 1_000,
        ..SMALL
    };
    let zones = Size { zones: 8, ..SMALL };
    let servers = Size {
        servers: 10_000,
        ..FEW_SERVERS
    };
    [
        ("10,000 server names", SMALL, names, 1),
        ("1,000 locations", SMALL, locations, 1),
        ("8 zones, each of the 7 more", SMALL, zones, 7),
        ("10,000 upstream servers", FEW_SERVERS, servers, 1),
    ]
}

#[test]
#[ignore = "needs valgrind and the release binary: tests/instructions runs it"]
fn a_request_costs_the_same_however_much_is_configured() {
    let (small, few_servers) = (SMALL.cost(), FEW_SERVERS.cost());
    let mut dear = Vec::new();
    for (what, from, to, share) in grown() {
        let before = if from.keepalive > 0 {
            small
        } else {
            few_servers
        };
        let more = to.cost().saturating_sub(before) / share;
        let thousandths = more * 1000 / before;
        let (whole, part) = (thousandths / 10, thousandths % 10);
        println!("{what}: {more} instructions more than {before}, {whole}.{part} %");
        if thousandths > MOST {
            dear.push(what);
        }
    }
    let (whole, part) = (MOST / 10, MOST % 10);
    assert!(
        dear.is_empty(),
        "more than {whole}.{part} % of a request: {}",
        dear.join("; ")
    );
}
