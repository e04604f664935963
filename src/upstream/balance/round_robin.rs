//! nginx's smooth weighted round robin. The same weights give nginx's sequence.
//!
//! As in nginx, one pass over all servers for every pick: some ten instructions for each available server.

#[cfg(test)]
#[path = "tests/naive.rs"]
mod naive;
#[cfg(test)]
#[path = "tests/round_robin.rs"]
mod tests;

use super::peers::Balance;

/// `balance: round_robin`. The weights it counts with are the peers' own: the other balancers fall back on it.
#[derive(Debug, Default)]
pub(super) struct RoundRobin;

impl Balance for RoundRobin {}
