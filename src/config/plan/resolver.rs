//! Whom to ask for the addresses of names.

use std::net::SocketAddr;
use std::time::Duration;

/// DNS servers, and how they are asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolver {
    /// Asked in turn; at least one.
    pub servers: Vec<SocketAddr>,
    /// How long an answer holds; as it says itself where this is none.
    pub valid: Option<Duration>,
    /// How long a look-up may take.
    pub timeout: Duration,
    /// Whether IPv4 addresses are asked for.
    pub ipv4: bool,
    /// Whether IPv6 addresses are asked for.
    pub ipv6: bool,
}
