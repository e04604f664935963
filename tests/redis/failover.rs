//! Failover: masters that die, their successors, and sentinels.

use std::process::Command;

use super::deployments::{cluster_with, urls};
use super::slots;
use super::{degraded, gateway, metric, missed, passed};
use crate::support::ports::Port;
use crate::support::process::Process;
use crate::support::redis::{Redis, cli};
use crate::support::{Origin, eventually, get};

const RULE: &str = "burst: 8, nodelay: true";

/// A sentinel that watches one master by the name `main`.
struct Sentinel {
    port: Port,
    _process: Process,
}

impl Sentinel {
    fn start(master: &Redis, more: &str) -> Self {
        let port = Port::claim();
        let directory = tempfile::tempdir().expect("the temporary directory can be written");
        let config = directory.path().join("sentinel.conf");
        let text = format!(
            "port {}\ndir {}\nsentinel monitor main 127.0.0.1 {} 1\nsentinel down-after-milliseconds main 1000\n\
             sentinel failover-timeout main 5000\n{more}\n",
            port.number(),
            directory.path().display(),
            master.port(),
        );
        std::fs::write(&config, text).expect("the directory can be written");
        let mut command = Command::new("redis-server");
        command.arg(&config).arg("--sentinel");
        let mut process = Process::spawn("sentinel", command, directory);
        assert!(
            process.accepts(port.address()),
            "the sentinel does not start"
        );
        Self {
            port,
            _process: process,
        }
    }

    fn store(&self, more: &str) -> String {
        let address = self.port.address();
        format!("redis: 'redis://{address}', sentinel_master: main, timeout: 1s{more}")
    }
}

fn follows(replica: &Redis) {
    eventually("the replica follows", || {
        replica
            .cli(&["INFO", "replication"])
            .contains("master_link_status:up")
    });
}

#[test]
fn after_a_failover_the_new_master_is_asked() {
    fail_over("exact");
}

#[test]
fn after_a_failover_leases_come_from_the_new_master() {
    fail_over("leased");
}

fn fail_over(mode: &str) {
    let mut master = Redis::start();
    let port = master.port().to_string();
    let replica = Redis::with(&["--replicaof", "127.0.0.1", &port]);
    follows(&replica);
    let sentinel = Sentinel::start(&master, "");
    eventually("the sentinel knows the replica", || {
        cli(sentinel.port.number(), &["SENTINEL", "REPLICAS", "main"])
            .contains(&replica.port().to_string())
    });
    let weir = gateway(
        &sentinel.store(&format!(", mode: {mode}")),
        "rate: 1r/m",
        RULE,
    );
    assert_eq!(passed(&[&weir], 4), 4);
    eventually("it is replicated", || {
        replica.cli(&["KEYS", "weir:{one*"]).contains("weir:{one")
    });
    master.kill();
    assert_eq!(passed(&[&weir], 3), 3, "no client notices");
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
fn sentinels_may_want_a_password_of_their_own() {
    let master = Redis::with(&["--requirepass", "masters"]);
    let sentinel = Sentinel::start(
        &master,
        "requirepass sentinels\nsentinel auth-pass main masters",
    );
    eventually("the sentinel knows the master", || {
        let asked = ["-a", "sentinels", "SENTINEL", "MASTER", "main"];
        let answer = cli(sentinel.port.number(), &asked);
        answer.lines().any(|line| line == "master")
    });
    let address = sentinel.port.address();
    let store = |own: &str| {
        format!("redis: 'redis://:masters@{address}', sentinel_master: main, timeout: 1s{own}")
    };
    let weir = gateway(&store(", sentinel_password: sentinels"), "rate: 1r/m", RULE);
    assert_eq!(passed(&[&weir], 20), 9);
    assert!(!degraded(&weir), "{}", weir.stderr());
    let ignorant = gateway(&store(""), "rate: 1r/m", RULE);
    eventually("it is not let in", || degraded(&ignorant));
    let mistaken = gateway(&store(", sentinel_password: hunter2"), "rate: 1r/m", RULE);
    eventually("nor is this one", || degraded(&mistaken));
    assert!(
        !mistaken.stderr().contains("hunter2"),
        "{}",
        mistaken.stderr()
    );
}

/// Whether all replicas of a master have heard all that it said.
fn is_replicated(master: &Redis) -> bool {
    let told = format!("offset={},", master.info("master_repl_offset"));
    let answer = master.cli(&["INFO", "replication"]);
    let mut replicas = answer.lines().filter(|line| line.contains("state=online"));
    replicas.next().is_some_and(|line| line.contains(&told))
        && replicas.all(|line| line.contains(&told))
}

/// Of three masters and their replicas, the one dies that has the key; requests go on coming all the while.
#[test]
fn a_replica_takes_over_the_state_of_its_cluster_master() {
    let mut nodes = cluster_with(1);
    let store = format!("redis: {}, timeout: 1s", urls(&nodes));
    // Nothing drains during the election.
    let weir = gateway(&store, "rate: 1r/h", "burst: 19, nodelay: true");
    let is_owner = |node: &Redis| {
        node.cli(&["ROLE"]).starts_with("master")
            && node.cli(&["KEYS", "weir:{one*"]).contains("weir:{one")
    };
    assert_eq!(passed(&[&weir], 4), 4);
    let (mut left, mut owner) = (16, None);
    eventually("one has the key", || {
        left -= passed(&[&weir], 1);
        owner = nodes.iter().position(is_owner);
        owner.is_some()
    });
    let owner = owner.expect("one has the key");
    let asked = metric(&weir, "weir_store_asked_total{store=\"shared\"}");
    let known = asked - missed([&weir]);
    eventually("it is replicated", || is_replicated(&nodes[owner]));
    nodes[owner].kill();
    // No other status than 200 and 429.
    assert!(passed(&[&weir], 30) <= left);
    let others: Vec<_> = (0..6).filter(|index| *index != owner).collect();
    eventually("a replica has taken over", || {
        others.iter().any(|index| is_owner(&nodes[*index]))
    });
    eventually("the cluster is asked", || !degraded(&weir));
    assert!(passed(&[&weir], 30) as u64 <= 20 - known);
    eventually(
        "nothing is left, and it is the replica that says so",
        || get(weir.address(), "/").status == 429 && !degraded(&weir),
    );
}

/// Places, too, are known to who takes over.
#[test]
fn after_a_failover_places_are_still_taken() {
    let (mut master, origin) = (Redis::start(), Origin::start());
    let port = master.port().to_string();
    let replica = Redis::with(&["--replicaof", "127.0.0.1", &port]);
    follows(&replica);
    let sentinel = Sentinel::start(&master, "");
    eventually("the sentinel knows the replica", || {
        cli(sentinel.port.number(), &["SENTINEL", "REPLICAS", "main"])
            .contains(&replica.port().to_string())
    });
    let weir = slots::gateway(&sentinel.store(""), origin.address(), "limit: 1");
    let mut held = slots::hold(&weir, &origin, "g");
    master.kill();
    eventually("the outage is noticed", || degraded(&weir));
    assert_eq!(get(weir.address(), "/no").status, 503);
    eventually("the replica is asked", || !degraded(&weir));
    eventually("it knows of the place", || slots::taken(&replica) == 1);
    assert_eq!(get(weir.address(), "/no").status, 503);
    origin.gates().open("g");
    assert_eq!(held.response().status, 200);
    eventually("it is given back", || slots::taken(&replica) == 0);
}
