//! `upstreams`: groups of servers to forward to.

use super::health::{Breaker, HealthCheck};
use super::values::{Balance, Failures, Flag, Idle, NotYet, Requests, Time, Weight};
use crate::config::decode::{Brief, Field, HasBrief, List, Needed, OrOff, Text, record};

record! {
    /// A group of servers.
    pub struct Upstream {
        /// How one is picked. Default: round_robin, smooth and weighted as nginx's.
        balance: Field<Balance>,
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
        /// How many requests it gets at once; only 0, any number, in this version.
        max_conns: Field<NotYet>,
        /// Only asked when no other can be. Default: false.
        backup: Field<Flag>,
        /// Never asked. Default: false.
        down: Field<Flag>,
    }
}

impl HasBrief for UpstreamServer {
    const KEY: &'static str = "address";
}
