//! The cost of a request does not grow with the configuration.
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
    balance: &'static str,
    /// Whether each has an address of its own, of which the last bytes are its number.
    distinct: bool,
    keepalive: usize,
}

const SMALL: Size = Size {
    names: 1,
    locations: 1,
    zones: 1,
    servers: 1,
    balance: "round_robin",
    distinct: false,
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
            "upstreams:\n  backend:\n    balance: {}\n    keepalive: {}\n    keepalive_requests: 1000000\n    servers:",
            self.balance, self.keepalive
        );
        for number in 0..self.servers {
            let port = backend.port();
            let address = match self.distinct {
                true => format!("127.1.{}.{}:{port}", number / 256, number % 256),
                false => backend.to_string(),
            };
            let _written = writeln!(text, "      - {{ address: \"{address}\" }}");
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
            requests: 4_000,
        }
        .cost()
    }
}

/// A connection is kept to each of a hundred servers.
const FEW_SERVERS: Size = Size {
    servers: 2,
    keepalive: 100,
    ..SMALL
};

/// Something that grows.
struct Growth {
    what: &'static str,
    from: Size,
    to: Size,
    /// How many of it are added one by one; 1 where only all of them together count.
    by: u64,
    /// The most instructions it may cost, each.
    // In instructions, not in hundredths of a request: a request that gets cheaper makes nothing here dearer. With room
    // for what a connection more or less in time makes of the loop's work, far from what a pass over all would cost.
    most: u64,
}

impl Growth {
    /// How much dearer a request gets, each. Seeds are drawn at every start, and what they make of a start with ten
    /// thousand of something is left in the difference of two runs: who seems too dear is counted again.
    fn more_than(&self, before: u64) -> u64 {
        let counted = (0..TRIES).map(|_| self.to.cost().saturating_sub(before) / self.by);
        let mut least = u64::MAX;
        for more in counted {
            least = least.min(more);
            if least <= self.most {
                break;
            }
        }
        least
    }
}

/// How often something is counted at most.
const TRIES: usize = 4;

const GROWTHS: [Growth; 8] = [
    Growth {
        what: "10,000 server names",
        from: SMALL,
        to: Size {
            names: 10_000,
            ..SMALL
        },
        by: 1,
        most: 450,
    },
    Growth {
        what: "1,000 locations",
        from: SMALL,
        to: Size {
            locations: 1_000,
            ..SMALL
        },
        by: 1,
        most: 450,
    },
    Growth {
        what: "7 more zones, each",
        from: SMALL,
        to: Size { zones: 8, ..SMALL },
        by: 7,
        // Emulated, requests are so few in a second that all are noted among the busiest keys, which is half of it; of many
        // one in sixteen is.
        most: 950,
    },
    many_balanced("100 upstream servers", "round_robin", 1_600),
    // Two passes over all, for the least load and for the turn of those that have it.
    many_balanced("100 upstream servers by load", "least_conn", 4_500),
    many_balanced("100 upstream servers by lot", "random", 2_500),
    many_balanced("100 upstream servers by hash", "{ hash: $uri }", 2_500),
    many_balanced(
        "100 upstream servers on a ring",
        "{ hash: $uri, consistent: true }",
        2_500,
    ),
];

/// Many servers of which one is picked in this way, against two that take turns. Each has an address of its own: on a
/// ring, servers at one address are one.
const fn many_balanced(what: &'static str, balance: &'static str, most: u64) -> Growth {
    Growth {
        what,
        from: FEW_SERVERS,
        to: Size {
            servers: 100,
            balance,
            distinct: true,
            ..FEW_SERVERS
        },
        by: 1,
        most,
    }
}

#[test]
#[ignore = "needs valgrind and the release binary: tests/instructions runs it"]
fn a_request_costs_the_same_however_much_is_configured() {
    let (small, few_servers) = (SMALL.cost(), FEW_SERVERS.cost());
    let mut dear = Vec::new();
    for growth in &GROWTHS {
        let before = match growth.from.keepalive {
            100 => few_servers,
            _ => small,
        };
        let more = growth.more_than(before);
        let thousandths = more * 1000 / before;
        let (whole, part) = (thousandths / 10, thousandths % 10);
        let Growth { what, most, .. } = growth;
        println!(
            "{what}: {more} instructions more than {before}, {whole}.{part} %; at most {most}"
        );
        if more > *most {
            dear.push(*what);
        }
    }
    assert!(dear.is_empty(), "too dear: {}", dear.join(", "));
}
