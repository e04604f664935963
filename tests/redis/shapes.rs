//! The ways a Redis can be reached: a cluster, sentinels and a failover, TLS, a unix socket, an ACL user.

use std::process::Command;

use super::{degraded, gateway, passed};
use crate::support::ports::Port;
use crate::support::process::Process;
use crate::support::redis::{Redis, cli};
use crate::support::{Certs, Weir, eventually, get, wanted};

const RULE: &str = "burst: 8, nodelay: true";

/// Three masters that share the keys.
pub(super) fn cluster() -> Vec<Redis> {
    let options = [
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        "2000",
        "--cluster-port",
    ];
    let nodes: Vec<_> = (0..3)
        .map(|_| {
            let bus = Port::claim().number().to_string();
            Redis::with(&[&options[..], &[&bus]].concat())
        })
        .collect();
    let addresses: Vec<_> = nodes
        .iter()
        .map(|node| node.address().to_string())
        .collect();
    let created = Command::new("redis-cli")
        .args(["--cluster", "create"])
        .args(&addresses)
        .args(["--cluster-replicas", "0", "--cluster-yes"])
        .output()
        .expect("redis-cli is installed");
    assert!(created.status.success(), "{created:?}");
    for node in &nodes {
        eventually("the cluster is whole", || {
            node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
        });
    }
    nodes
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
fn after_a_failover_the_new_master_is_asked() {
    let mut master = Redis::start();
    let port = master.port().to_string();
    let replica = Redis::with(&["--replicaof", "127.0.0.1", &port]);
    eventually("the replica follows", || {
        replica
            .cli(&["INFO", "replication"])
            .contains("master_link_status:up")
    });
    let watch = Port::claim();
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let config = directory.path().join("sentinel.conf");
    let text = format!(
        "port {}\ndir {}\nsentinel monitor main 127.0.0.1 {port} 1\nsentinel down-after-milliseconds main 1000\n\
         sentinel failover-timeout main 5000\n",
        watch.number(),
        directory.path().display(),
    );
    std::fs::write(&config, text).expect("the directory can be written");
    let mut command = Command::new("redis-server");
    command.arg(&config).arg("--sentinel");
    let mut sentinel = Process::spawn("sentinel", command, directory);
    assert!(
        sentinel.accepts(watch.address()),
        "the sentinel does not start"
    );
    eventually("the sentinel knows the replica", || {
        cli(watch.number(), &["SENTINEL", "REPLICAS", "main"]).contains(&replica.port().to_string())
    });
    let store = format!(
        "redis: 'redis://{}', sentinel_master: main, timeout: 1s",
        watch.address()
    );
    let weir = gateway(&store, "rate: 1r/m", RULE);
    assert_eq!(passed(&[&weir], 4), 4);
    eventually("it is replicated", || {
        replica.cli(&["KEYS", "weir:{one*"]).contains("weir:{one")
    });
    master.kill();
    assert_eq!(passed(&[&weir], 3), 3, "nobody notices");
    eventually("the outage is noticed", || {
        weir.stderr().contains("is away")
    });
    eventually("the replica is asked", || !degraded(&weir));
    // Of nine it has seen four.
    eventually("this thread asks it, too", || passed(&[&weir], 1) == 0);
    let kept = replica.cli(&["GET", "weir:{one:localhost}"]);
    assert!(!kept.trim().is_empty(), "{kept}");
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
        RULE,
    );
    eventually("a slow machine has shaken hands, too", || {
        !degraded(&trusting)
    });
    eventually("its threads have, too", || {
        passed(&[&trusting], 1) == 1 && redis.cli(&["KEYS", "weir:{one*"]).contains("weir:{one")
    });
    let wary = gateway(&url, "rate: 1r/m", RULE);
    eventually("nobody knows who that is", || degraded(&wary));
    assert!(wary.error_line("is away").contains("certificate"));
}

#[test]
fn a_socket_a_user_and_a_database() {
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let socket = directory.path().join("redis.sock").display().to_string();
    let redis = Redis::with(&["--unixsocket", &socket]);
    let rights = "+evalsha +eval +ping +time +get +set +del +pexpire +zadd +zrem +zremrangebyscore +zrange +select";
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
}
