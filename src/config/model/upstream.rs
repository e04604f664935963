//! `upstreams`: groups of servers to forward to.

use super::health::{Breaker, HealthCheck};
use super::values::{Failures, Flag, Idle, QueueSize, RequestCount, Time, Weight};
use crate::config::decode::{
    Field, HasShorthand, List, OrOff, Required, Shorthand, Text, choice, number, record, scalar,
};
use crate::config::plan;
use crate::config::units::{self, ParseError};

record! {
    /// A group of servers.
    pub struct Upstream {
        /// How one is picked: round_robin, least_conn, ip_hash, random, or { hash: KEY, consistent: true }, all as
        /// nginx computes them. Default: round_robin.
        balance: Field<Shorthand<Balance>>,
        /// Idle connections kept open, per worker. Default: 64.
        keepalive: Field<Idle>,
        /// How long an idle one is kept. Default: 60s.
        keepalive_timeout: Field<Time>,
        /// How many requests one connection carries. Default: 1000.
        keepalive_requests: Field<RequestCount>,
        /// Where requests wait when every server has its max_conns. Default: they get 502 at once.
        queue: Field<UpstreamQueue>,
        /// How many requests may be sent again to another server, as a share of all: `20%`. Default: any number, as
        /// proxy_next_upstream allows.
        retry_budget: Field<Shorthand<RetryBudget>>,
        /// Asks every server again and again whether it is well; a path alone will do. Default: none.
        health_check: Field<Shorthand<HealthCheck>>,
        /// Leaves a server alone for a while that fails too often; `{}` for one with all defaults. Default: off.
        breaker: Field<OrOff<Breaker>>,
        /// How often the names of its servers are looked up again. Default: they are not.
        resolve: Field<Time>,
        /// The servers; each may be written as its address alone.
        servers: Required<List<Shorthand<UpstreamServer>>>,
    }
}

record! {
    /// How a server is picked.
    pub struct Balance {
        /// By turns, load, address or lot.
        method: Field<BalanceMethod>,
        /// By the hash of this text of variables.
        hash: Field<Text>,
        /// Whether one server more or less moves only its share of the keys. Default: false.
        consistent: Field<Flag>,
    }
}

record! {
    /// A waiting line before an upstream.
    pub struct UpstreamQueue {
        /// How many may wait, in all workers together.
        size: Required<QueueSize>,
        /// For how long. Default: 60s.
        timeout: Field<Time>,
        /// Who goes first: oldest_first or newest_first. Default: oldest_first.
        order: Field<UpstreamQueueOrder>,
        /// A text of variables; those for whom it is different take turns, and when the line is full the longest
        /// of their lines loses its last. Default: none, all stand in one line.
        fair: Field<Text>,
    }
}

record! {
    /// How many requests may be sent again.
    pub struct RetryBudget {
        /// The share of the requests of the last ten seconds: `20%`.
        share: Required<RequestShare>,
        /// How many a second in any case, over the same ten seconds. Default: 3.
        min_per_second: Field<Most>,
        /// When all servers have failed, all are asked again, up to proxy_next_upstream_tries in all: after a random
        /// part of this time, twice of it the next time, and so on. Default: they are not.
        backoff: Field<Time>,
        /// What that grows to at most. Default: 1s.
        backoff_max: Field<Time>,
    }
}

scalar! {
    /// A share of a hundred.
    pub struct RequestShare(u32);
    "a share such as `20%`",
    |text| match text.strip_suffix('%') {
        Some(number) => units::whole(number, "a share", 0, 100).map(|share| u32::try_from(share).unwrap_or(100)),
        None => Err(ParseError::new(format!("`{text}` is not a share")).help("expected a share such as `20%`")),
    },
    { "description": "A share of a hundred, with % behind it.", "type": "string", "pattern": r"^[0-9]{1,3}%$" }
}

choice! {
    /// Who goes first.
    pub struct UpstreamQueueOrder(plan::QueueOrder) = "an order" {
        "oldest_first" => plan::QueueOrder::OldestFirst,
        "newest_first" => plan::QueueOrder::NewestFirst,
    }
}

choice! {
    /// Who is picked.
    pub struct BalanceMethod(plan::Balance) = "a way to pick a server" {
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
        address: Required<Text>,
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
        /// How often its name is looked up again; each of its addresses is a server. Default: as the upstream says.
        resolve: Field<Time>,
        /// Only asked when no other can be. Default: false.
        backup: Field<Flag>,
        /// Never asked. Default: false.
        down: Field<Flag>,
    }
}

impl HasShorthand for Balance {
    const KEY: &'static str = "method";
}

impl HasShorthand for RetryBudget {
    const KEY: &'static str = "share";
}

impl HasShorthand for UpstreamServer {
    const KEY: &'static str = "address";
}
