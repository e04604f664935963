//! `upstreams`: groups of servers to forward to.

use super::health::{Breaker, HealthCheck};
use super::values::{Failures, Flag, Idle, Requests, Time, Weight};
use crate::config::decode::{
    Brief, Field, HasBrief, List, Needed, OrOff, Text, choice, number, record,
};
use crate::config::plan;

record! {
    /// A group of servers.
    pub struct Upstream {
        /// How one is picked: round_robin, least_conn, ip_hash, random, or { hash: KEY, consistent: true }, all as
        /// nginx computes them. Default: round_robin.
        balance: Field<Brief<Balance>>,
        /// Idle connections kept open, per worker. Default: 64.
        keepalive: Field<Idle>,
        /// How long an idle one is kept. Default: 60s.
        keepalive_timeout: Field<Time>,
        /// How many requests one connection carries. Default: 1000.
        keepalive_requests: Field<Requests>,
        /// Asks every server again and again whether it is well; a path alone will do. Default: none.
        health_check: Field<Brief<HealthCheck>>,
        /// Leaves a server alone for a while that fails too often; `{}` for one with all defaults. Default: off.
        breaker: Field<OrOff<Breaker>>,
        /// The servers; each may be written as its address alone.
        servers: Needed<List<Brief<UpstreamServer>>>,
    }
}

record! {
    /// How a server is picked.
    pub struct Balance {
        /// By turns, load, address or lot.
        method: Field<Method>,
        /// By the hash of this text of variables.
        hash: Field<Text>,
        /// Whether one server more or less moves only its share of the keys. Default: false.
        consistent: Field<Flag>,
    }
}

choice! {
    /// Who is picked.
    pub struct Method(plan::Balance) = "a way to pick a server" {
        "round_robin" => plan::Balance::RoundRobin,
        "least_conn" => plan::Balance::LeastConn,
        "ip_hash" => plan::Balance::IpHash,
        "random" => plan::Balance::Random,
    }
}

number! {
    /// How many requests at once; 0 for any number.
    pub struct Most(u32) = "a number of requests", 0..=1_000_000
}

record! {
    /// One server of a group.
    pub struct UpstreamServer {
        /// Where it is: `127.0.0.1:9001`, `host:port` or `unix:/run/app.sock`.
        address: Needed<Text>,
        /// Its share. Default: 1.
        weight: Field<Weight>,
        /// After how many failures within `fail_timeout` it is left alone; 0 for never. Default: 1.
        max_fails: Field<Failures>,
        /// Within which failures are counted, and for how long it is then left alone. Default: 10s.
        fail_timeout: Field<Time>,
        /// How many requests it gets at once, counted over all workers; 0 for any number. Default: 0.
        max_conns: Field<Most>,
        /// How long its weight takes to grow from nothing when it has come back; with round_robin and least_conn.
        /// Default: no time.
        slow_start: Field<Time>,
        /// Only asked when no other can be. Default: false.
        backup: Field<Flag>,
        /// Never asked. Default: false.
        down: Field<Flag>,
    }
}

impl HasBrief for Balance {
    const KEY: &'static str = "method";
}

impl HasBrief for UpstreamServer {
    const KEY: &'static str = "address";
}
