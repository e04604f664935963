//! Deployments of Redis: a cluster, sentinels and a failover, TLS, a unix socket, an ACL user.

use std::ops::{Deref, DerefMut};
use std::process::Command;

use super::{degraded, gateway, passed, slots};
use crate::support::ports::Port;
use crate::support::redis::Redis;
use crate::support::{Certs, Origin, Weir, eventually, get, wanted};

const RULE: &str = "burst: 8, nodelay: true";

/// Nodes that share the keys, and the ports that they talk to each other on.
pub(super) struct Cluster {
    nodes: Vec<Redis>,
    _buses: Vec<Port>,
}

impl Deref for Cluster {
    type Target = [Redis];

    fn deref(&self) -> &[Redis] {
        &self.nodes
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut [Redis] {
        &mut self.nodes
    }
}

/// Three masters.
pub(super) fn cluster() -> Cluster {
    cluster_with(0)
}

/// The same, each with so many replicas.
pub(super) fn cluster_with(replicas: usize) -> Cluster {
    let options = [
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        "2000",
        "--cluster-port",
    ];
    let buses: Vec<_> = (0..3 * (replicas + 1)).map(|_| Port::claim()).collect();
    let nodes: Vec<_> = buses
        .iter()
        .map(|bus| Redis::with(&[&options[..], &[&bus.number().to_string()]].concat()))
        .collect();
    let addresses: Vec<_> = nodes
        .iter()
        .map(|node| node.address().to_string())
        .collect();
    let created = Command::new("redis-cli")
        .args(["--cluster", "create"])
        .args(&addresses)
        .args(["--cluster-replicas", &replicas.to_string(), "--cluster-yes"])
        .output()
        .expect("redis-cli is installed");
    assert!(created.status.success(), "{created:?}");
    for node in &nodes {
        eventually("the cluster is whole", || {
            node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
        });
    }
    Cluster {
        nodes,
        _buses: buses,
    }
}

pub(super) fn urls(nodes: &[Redis]) -> String {
    let urls: Vec<_> = nodes
        .iter()
        .map(|node| format!("'{}'", node.url()))
        .collect();
    format!("[{}]", urls.join(", "))
}

#[test]
fn a_cluster_counts_as_one() {
    let nodes = cluster();
    let store = format!("redis: {}, timeout: 1s", urls(&nodes));
    let (one, two) = (
        gateway(&store, "rate: 1r/m", RULE),
        gateway(&store, "rate: 1r/m", RULE),
    );
    assert_eq!(passed(&[&one, &two], 30), 9);
    assert!(!degraded(&one) && !degraded(&two));
}

/// Those who run clusters for others give one address.
#[test]
fn one_address_can_be_that_of_a_cluster() {
    let nodes = cluster();
    let address = |node: &Redis| format!("redis: '{}', timeout: 1s", node.url());
    let clustered = |node: &Redis| format!("{}, cluster: true", address(node));
    let (one, two) = (
        gateway(&clustered(&nodes[0]), "rate: 1r/m", RULE),
        gateway(&clustered(&nodes[1]), "rate: 1r/m", RULE),
    );
    assert_eq!(passed(&[&one, &two], 30), 9);
    assert!(!degraded(&one) && !degraded(&two));
    // Two of three nodes do not have what is asked for.
    let unaware = [&nodes[0], &nodes[1]].map(|node| gateway(&address(node), "rate: 1r/m", RULE));
    eventually("who is not told says so", || {
        passed(&[&unaware[0], &unaware[1]], 2);
        let said = unaware.iter().map(Weir::stderr).collect::<String>();
        said.contains("it is a node of a cluster, which `cluster: true` has to say")
    });
}

/// Keys of several zones lie on several nodes; what one took is given back when another refuses.
#[test]
fn zones_on_several_nodes_are_charged_together_or_not_at_all() {
    let nodes = cluster();
    let zones = ["a", "b", "c", "d"];
    let lines = |line: &dyn Fn(&str) -> String| zones.map(line).concat();
    let weir = Weir::start(&format!(
        "stores: {{ shared: {{ redis: {}, timeout: 1s }} }}
limit_req_zones:
{}servers:
- listen: LISTEN
  locations:
  - path: /all
    limit_req:
{}    return: {{ status: 200 }}
{}",
        urls(&nodes),
        lines(&|zone| format!("  {zone}: {{ key: $host, rate: 1r/m, store: shared }}\n")),
        lines(&|zone| {
            let burst = if zone == "c" { 3 } else { 9 };
            format!("    - {{ zone: {zone}, burst: {burst}, nodelay: true }}\n")
        }),
        lines(&|zone| format!(
            "  - {{ path: /{zone}/, limit_req: {{ zone: {zone}, burst: 9, nodelay: true }}, return: {{ status: 200 }} }}\n"
        )),
    ));
    let passed = |path: &str| {
        (0..20)
            .filter(|_| get(weir.address(), path).status == 200)
            .count()
    };
    assert_eq!(passed("/all"), 4);
    for zone in zones {
        assert_eq!(passed(&format!("/{zone}/")), 6, "{zone}");
    }
    let homes = zones.map(|zone| {
        let key = format!("weir:{{{zone}:localhost}}");
        nodes[0]
            .cli(&["CLUSTER", "KEYSLOT", &key])
            .trim()
            .parse::<u32>()
            .unwrap()
            / 5462
    });
    assert!(
        homes.iter().any(|home| *home != homes[0]),
        "they lie apart: {homes:?}"
    );
}

#[test]
fn tls_is_checked_and_spoken() {
    let certs = Certs::new();
    certs.issue("server", &wanted(&["localhost"]));
    let tls = Port::claim();
    let number = tls.number().to_string();
    let path = |name: &str| certs.path(name).display().to_string();
    let redis = Redis::with(&[
        "--tls-port",
        &number,
        "--tls-cert-file",
        &path("server.pem"),
        "--tls-key-file",
        &path("server.key"),
        "--tls-auth-clients",
        "no",
    ]);
    let url = format!("redis: 'rediss://localhost:{number}', timeout: 1s");
    let trusting = gateway(
        &format!("{url}, trusted_certificate: '{}'", path("ca.pem")),
        "rate: 1r/m",
        // For as many as come before a slow machine has shaken hands.
        "burst: 100000, nodelay: true",
    );
    eventually("a slow machine has shaken hands, too", || {
        !degraded(&trusting)
    });
    eventually("its threads have, too", || {
        passed(&[&trusting], 1) == 1 && redis.cli(&["KEYS", "weir:{one*"]).contains("weir:{one")
    });
    let wary = gateway(&url, "rate: 1r/m", RULE);
    eventually("the certificate is not trusted", || degraded(&wary));
    assert!(wary.error_line("is away").contains("certificate"));
}

#[test]
fn a_socket_a_user_and_a_database() {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let socket = directory.path().join("redis.sock").display().to_string();
    let redis = Redis::with(&["--unixsocket", &socket]);
    let rights = "+evalsha +eval +ping +time +get +set +del +pexpire +zadd +zrem +zremrangebyscore +zrange +hset +hdel +hgetall +select +zcount +zscore";
    let mut user = vec!["ACL", "SETUSER", "weir", "on", ">p@ss", "~weir:*"];
    user.extend(rights.split(' '));
    assert_eq!(redis.cli(&user).trim(), "OK");
    let named = format!(
        "redis: 'redis://weir:p%40ss@{}/2', timeout: 1s",
        redis.address()
    );
    let named = gateway(&named, "rate: 1r/m", RULE);
    assert_eq!(passed(&[&named], 20), 9);
    assert!(!degraded(&named), "{}", named.stderr());
    assert!(
        redis
            .cli(&["-n", "2", "KEYS", "*"])
            .contains("weir:{one:localhost}")
    );
    let local = gateway(
        &format!("redis: 'unix:{socket}', timeout: 1s"),
        "rate: 1r/m",
        RULE,
    );
    assert_eq!(passed(&[&local], 20), 9, "another database");
    assert!(!degraded(&local));
    let origin = Origin::start();
    let store = format!(
        "redis: 'redis://weir:p%40ss@{}', timeout: 1s",
        redis.address()
    );
    let conn = slots::gateway(&store, origin.address(), "limit: 1");
    for _ in 0..9 {
        assert_eq!(get(conn.address(), "/ok").status, 200);
    }
    assert!(!degraded(&conn), "{}", conn.stderr());
}
