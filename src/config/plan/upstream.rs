//! Groups of servers to forward to.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Breaker, HealthCheck, Resolver, Template};

/// A group of servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Its name, or host and port where `proxy_pass` gave an address.
    pub name: Box<str>,
    /// How one is picked.
    pub balance: Balance,
    /// Idle connections kept open, per event loop.
    pub keepalive: usize,
    /// How long an idle one is kept.
    pub keepalive_timeout: Duration,
    /// How many requests one connection carries.
    pub keepalive_requests: u64,
    /// Where requests wait when every server has its `max_conns`.
    pub queue: Option<UpstreamQueue>,
    /// How many requests may be sent again.
    pub retry_budget: Option<RetryBudget>,
    /// `health_check`
    pub health_check: Option<HealthCheck>,
    /// `breaker`: of each of its servers.
    pub breaker: Option<Breaker>,
    /// Who is asked for the addresses of those of its servers that are looked up again; the system where it is none.
    pub resolver: Option<Arc<Resolver>>,
    /// At least one.
    pub servers: Vec<UpstreamServer>,
}

/// How many requests may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryBudget {
    /// Of a hundred requests.
    pub percent: u32,
    /// In a second, whatever came.
    pub least: u32,
    /// When all servers may be asked once more after all have failed.
    pub backoff: Option<Backoff>,
}

/// How long to wait before servers that have failed are asked again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// At most so long for the first time, twice as long for the next, and so on.
    pub base: Duration,
    /// Never longer.
    pub max: Duration,
}

/// A waiting line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamQueue {
    /// How many may wait.
    pub size: u32,
    /// For how long.
    pub timeout: Duration,
    /// Who goes first.
    pub order: QueueOrder,
    /// What tells those apart who take turns.
    pub fair: Option<Template>,
}

/// Who of those who wait goes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum QueueOrder {
    /// Who has come last, and is likeliest to be there still.
    NewestFirst,
    /// Who has come first.
    #[default]
    OldestFirst,
}

impl Upstream {
    /// A group of these servers with every setting at its default.
    #[must_use]
    pub fn of(name: &str, servers: Vec<UpstreamServer>) -> Self {
        Self {
            name: name.into(),
            balance: Balance::RoundRobin,
            keepalive: 64,
            keepalive_timeout: Duration::from_secs(60),
            keepalive_requests: 1000,
            queue: None,
            retry_budget: None,
            health_check: None,
            breaker: None,
            resolver: None,
            servers,
        }
    }
}

/// How a server is picked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Balance {
    /// By a key, on a ring: one server more or less moves few keys.
    ConsistentHash(Template),
    /// By a key.
    Hash(Template),
    /// By the client's address.
    IpHash,
    /// Whoever has the least to do.
    LeastConn,
    /// The less loaded of two drawn by lot.
    Random,
    /// Smooth weighted round robin, nginx's own.
    #[default]
    RoundRobin,
}

impl Balance {
    /// Whether somebody can wait until no other can be asked.
    #[must_use]
    pub fn has_backups(&self) -> bool {
        matches!(self, Self::LeastConn | Self::RoundRobin)
    }
}

/// One server of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamServer {
    /// As it was written: where a consistent hash puts it depends on nothing else.
    pub name: Box<str>,
    /// Where it is.
    pub address: UpstreamAddress,
    /// Its share.
    pub weight: u32,
    /// After how many failures it is left alone; 0 for never.
    pub max_fails: u32,
    /// Within which they are counted, and for how long it is then left alone.
    pub fail_timeout: Duration,
    /// How many requests it gets at once; 0 for any number.
    pub max_conns: u32,
    /// How long its weight takes to grow when it has come back; zero for no time.
    pub slow_start: Duration,
    /// How often its name is looked up again; never for an address.
    pub resolve: Option<Duration>,
    /// Only asked when no other can be.
    pub backup: bool,
    /// Never asked.
    pub down: bool,
}

impl UpstreamServer {
    /// A server with every setting at its default, nginx's.
    #[must_use]
    pub fn at(address: UpstreamAddress) -> Self {
        Self {
            name: match &address {
                UpstreamAddress::Tcp { host, port } => format!("{host}:{port}").into(),
                UpstreamAddress::Unix(path) => format!("unix:{}", path.display()).into(),
            },
            address,
            weight: 1,
            max_fails: 1,
            fail_timeout: Duration::from_secs(10),
            max_conns: 0,
            slow_start: Duration::ZERO,
            resolve: None,
            backup: false,
            down: false,
        }
    }
}

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum UpstreamAddress {
    /// A name or an address, and a port; a name with several addresses is several servers.
    Tcp {
        /// Name or address, an IPv6 one without brackets.
        host: Box<str>,
        /// Port.
        port: u16,
    },
    /// A unix socket.
    Unix(PathBuf),
}
