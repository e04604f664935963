//! The same requests to nginx and to weir with the same servers: each has to go to the same server.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::support::ports::Port;
use crate::support::{Client, Nginx, Origin, Weir, eventually, get_from};

/// nginx and weir before the same servers.
struct Both {
    nginx: Nginx,
    weir: Weir,
    origins: Vec<Origin>,
    /// Reserved ports without a server.
    _unused: Vec<Port>,
}

/// A server of the group: its settings in nginx's words.
#[derive(Clone, Copy)]
enum Server {
    /// One that answers.
    Up(&'static str),
    /// No server listens there.
    Absent(&'static str),
}

impl Both {
    fn start(nginx: &str, weir: &str, servers: &[Server]) -> Self {
        let mut origins = Vec::new();
        let (mut for_nginx, mut for_weir) = (String::new(), String::new());
        let mut unused = Vec::new();
        for (number, server) in servers.iter().enumerate() {
            let (address, words) = match server {
                Up(words) => {
                    let origin = Origin::named(&format!("s{number}"));
                    let address = origin.address();
                    origins.push(origin);
                    (address, words)
                }
                Absent(words) => {
                    let port = Port::claim();
                    let address = port.address();
                    unused.push(port);
                    (address, words)
                }
            };
            let settings: String = words
                .split_whitespace()
                .map(|word| match word.split_once('=') {
                    Some((key, value)) => format!(", {key}: {value}"),
                    None => format!(", {word}: true"),
                })
                .collect();
            for_nginx.push_str(&format!("server {address} {words};\n"));
            for_weir.push_str(&format!("{{ address: '{address}' {settings} }}, "));
        }
        let first = &origins[0];
        Self {
            nginx: Nginx::before(
                first,
                &format!(
                    "upstream app {{ {nginx} {for_nginx} }}
                    server {{ listen LISTEN; location / {{ proxy_pass http://app; }} }}"
                ),
            ),
            weir: Weir::before(
                first,
                &format!(
                    "workers: 1
upstreams: {{ app: {{ balance: {weir}, servers: [ {for_weir} ] }} }}
servers: [ {{ listen: LISTEN, locations: [ {{ path: /, proxy_pass: app }} ] }} ]
"
                ),
            ),
            origins,
            _unused: unused,
        }
    }

    /// Who answers each of these, asked one after the other; the two have to agree.
    fn agree(&self, asks: &[(IpAddr, String)]) -> Vec<String> {
        let asked = |address: SocketAddr| -> Vec<String> {
            asks.iter()
                .map(|(source, path)| {
                    let response = get_from(*source, address, path);
                    match response.get("x-origin") {
                        Some(origin) => origin.to_owned(),
                        None => response.status.to_string(),
                    }
                })
                .collect()
        };
        let (weir, nginx) = (asked(self.weir.address()), asked(self.nginx.address()));
        assert_eq!(weir, nginx, "weir on the left, nginx on the right");
        weir
    }

    fn agree_on_keys(&self, count: usize) -> BTreeMap<String, usize> {
        let home = IpAddr::from(Ipv4Addr::LOCALHOST);
        let asks: Vec<_> = (0..count)
            .map(|key| (home, format!("/ok?key=user-{key}")))
            .collect();
        shares(self.agree(&asks))
    }

    fn agree_on_addresses(&self) -> BTreeMap<String, usize> {
        let asks: Vec<_> = (0..120u8)
            .map(|number| {
                let address = Ipv4Addr::new(127, number / 10, number % 10 * 25, 1 + number);
                (address.into(), "/ok".to_owned())
            })
            .collect();
        shares(self.agree(&asks))
    }
}

fn shares(answers: Vec<String>) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for answer in answers {
        *shares.entry(answer).or_default() += 1;
    }
    shares
}

use Server::{Absent, Up};

/// Groups that differ in what stands in the way of a key.
const GROUPS: [&[Server]; 5] = [
    &[Up(""), Up(""), Up("")],
    &[Up("weight=5"), Up("weight=2"), Up(""), Up("weight=3")],
    &[Up("weight=2"), Up("down"), Up("weight=3"), Up("")],
    // Found out by the first who is sent there, then left alone.
    &[Up(""), Absent("weight=4 fail_timeout=1h"), Up("weight=2")],
    // Nearly every hash picks a server that is down: after twenty failed picks, round robin is used.
    &[Up(""), Up("weight=60 down"), Absent("max_fails=0"), Up("")],
];

#[test]
fn a_key_is_sent_to_the_server_that_nginx_sends_it_to() {
    for servers in GROUPS {
        let both = Both::start("hash $arg_key;", "{ hash: $arg_key }", servers);
        let shares = both.agree_on_keys(120);
        assert!(
            shares.len() > 1 && !shares.contains_key("502"),
            "{shares:?}"
        );
    }
}

#[test]
fn a_key_on_the_ring_is_sent_to_the_server_that_nginx_sends_it_to() {
    for servers in GROUPS {
        let both = Both::start(
            "hash $arg_key$uri consistent;",
            "{ hash: $arg_key$uri, consistent: true }",
            servers,
        );
        let shares = both.agree_on_keys(120);
        assert!(
            shares.len() > 1 && !shares.contains_key("502"),
            "{shares:?}"
        );
    }
}

#[test]
fn an_address_is_sent_to_the_server_that_nginx_sends_it_to() {
    for servers in GROUPS {
        let both = Both::start("ip_hash;", "ip_hash", servers);
        let shares = both.agree_on_addresses();
        assert!(
            shares.len() > 1 && !shares.contains_key("502"),
            "{shares:?}"
        );
    }
}

#[test]
fn without_a_key_servers_take_turns_as_in_nginx() {
    for consistent in ["", " consistent"] {
        let method = format!("hash $arg_key{consistent};");
        let own = format!(
            "{{ hash: $arg_key, consistent: {} }}",
            !consistent.is_empty()
        );
        let both = Both::start(&method, &own, &[Up("weight=2"), Up(""), Up("weight=3")]);
        let home = IpAddr::from(Ipv4Addr::LOCALHOST);
        let answers = both.agree(&vec![(home, "/ok".to_owned()); 12]);
        assert_eq!(shares(answers)["s2"], 6);
    }
}

/// What is done with requests that take their time.
#[derive(Clone, Copy)]
enum Step {
    /// One more, which is held.
    Begin,
    /// The one that was begun as this number is let go.
    End(usize),
}

#[test]
fn the_least_loaded_server_is_nginxs() {
    use Step::{Begin, End};
    let script: Vec<Step> = [Begin; 9]
        .into_iter()
        .chain([End(1), End(4), Begin, Begin, End(0), End(2), End(3), End(7)])
        .chain([Begin; 5])
        .chain([End(8), Begin, End(9), Begin])
        .collect();
    for servers in [
        &[Up(""), Up(""), Up("")][..],
        &[Up("weight=3"), Up(""), Up("weight=2")],
        &[
            Up("weight=5"),
            Up("max_conns=1"),
            Up("weight=2 max_conns=3"),
        ],
        &[Up("weight=2"), Absent("fail_timeout=1h weight=9"), Up("")],
        &[Up("max_conns=2"), Up("weight=2 backup"), Up("backup")],
    ] {
        let both = Both::start("least_conn;", "least_conn", servers);
        let answers = both.agree(&vec![
            (IpAddr::from(Ipv4Addr::LOCALHOST), "/ok".to_owned());
            7
        ]);
        assert_eq!(answers.len(), 7);
        let [weir, nginx] = [both.weir.address(), both.nginx.address()].map(|address| {
            let mut held: Vec<Option<(Client, usize)>> = Vec::new();
            let mut sent = Vec::new();
            for step in &script {
                match step {
                    Begin => {
                        let gate = format!("{}-{}", address.port(), held.len());
                        let (client, at) = begin(&both.origins, address, &gate);
                        sent.push(at);
                        held.push(Some((client, at)));
                    }
                    End(number) => {
                        let gate = format!("{}-{number}", address.port());
                        let (mut client, at) = held[*number].take().expect("it is held");
                        both.origins[at].gates().open(&gate);
                        assert_eq!(client.response().status, 200);
                    }
                }
            }
            // The other one must not find the servers busy.
            for (number, left) in held.iter_mut().enumerate() {
                if let Some((client, at)) = left {
                    let gate = format!("{}-{number}", address.port());
                    both.origins[*at].gates().open(&gate);
                    assert_eq!(client.response().status, 200);
                }
            }
            sent
        });
        assert_eq!(weir, nginx, "weir on the left, nginx on the right");
    }
}

/// Sends a request that is held, and finds out where.
fn begin(origins: &[Origin], address: SocketAddr, gate: &str) -> (Client, usize) {
    let client = Client::connect(address);
    client.get(&format!("/hold?gate={gate}"));
    let mut at = None;
    eventually("the request reaches a server", || {
        at = origins
            .iter()
            .position(|origin| origin.gates().waiting(gate) > 0);
        at.is_some()
    });
    (client, at.expect("it has been found"))
}
