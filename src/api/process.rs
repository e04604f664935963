//! The process itself: its status, the stores it shares, and reloads.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Word;
use super::zones::VerdictCounts;

/// The process at a glance: `GET /api/status`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// weir's version.
    pub version: String,
    /// The process's id.
    pub pid: u32,
    /// Milliseconds since the Unix epoch.
    pub time: u64,
    /// Seconds.
    pub uptime: f64,
    /// Whether traffic should be sent here.
    pub ready: bool,
    /// 1, and one more for every reload.
    pub generation: u64,
    /// The event loops.
    pub loops: Vec<LoopLag>,
    /// Client connections.
    pub connections: ConnectionCounts,
    /// Requests.
    pub requests: RequestCounts,
    /// All zones together.
    pub limits: VerdictCounts,
    /// Refusals since the start that were counted and not recorded.
    pub refusals_skipped: u64,
    /// Log lines that came faster than they could be written, or could not be written.
    pub log_lines_lost: u64,
    /// Whether anything can be changed through this API: there is an admin.token.
    pub changes: bool,
}

impl Status {
    /// How late the latest of its event loops is.
    #[must_use]
    pub fn lag(&self) -> Option<f64> {
        self.loops.iter().filter_map(|one| one.lag).reduce(f64::max)
    }

    /// How late the latest has been in the last minute.
    #[must_use]
    pub fn worst_lag(&self) -> Option<f64> {
        let worst = self.loops.iter().filter_map(|one| one.worst);
        worst.reduce(f64::max)
    }
}

/// How late an event loop is.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct LoopLag {
    /// How late the loop was at its latest tick, in seconds; null until it has ticked.
    pub lag: Option<f64>,
    /// The latest it has been in the last minute, in seconds.
    pub worst: Option<f64>,
}

/// Client connections.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct ConnectionCounts {
    /// Open now.
    pub active: u64,
    /// Accepted since the start.
    pub accepted: u64,
}

/// Requests since the start.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct RequestCounts {
    /// All of them.
    pub total: u64,
    /// By class of status, as `2xx`; `none` where the client got no response.
    pub by_status: BTreeMap<Word, u64>,
}

/// A store shared with other gateways: one of `GET /api/store`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Store {
    /// The store's name.
    pub name: String,
    /// Whether it is away and its zones go on without it.
    pub degraded: bool,
    /// What is wrong, while it is degraded.
    pub why: Option<String>,
    /// Which of the gateways this is.
    pub gateway: String,
    /// All that share it.
    pub gateways: Vec<FleetMember>,
    /// The zones that it counts for.
    pub zones: Vec<String>,
    /// Requests of this gateway that hold places of its limit_conn zones.
    pub places: u64,
    /// Decisions it was asked for.
    pub asked: u64,
    /// Decisions it did not give in time, or not at all.
    pub missed: u64,
    /// Questions that no request waited for.
    pub asked_behind: u64,
    /// Decisions made without asking it.
    pub decided_here: u64,
    /// Requests that were leased.
    pub leased: u64,
    /// Leased requests that were given back.
    pub returned: u64,
}

/// A gateway that shares a store.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Gateway")]
pub struct FleetMember {
    /// The gateway's name.
    pub name: String,
    /// Milliseconds since it was last seen.
    pub seen_ago_ms: u64,
    /// What it had in hand when it last reported.
    pub leases: Vec<ZoneLease>,
}

/// What a gateway has in hand of one zone.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Lease")]
pub struct ZoneLease {
    /// The zone.
    pub zone: String,
    /// For how many keys something is in hand.
    pub keys: u64,
    /// How much that is together.
    pub requests: f64,
    /// Of how many keys so much is wanted that they are decided about without asking.
    pub local_keys: u64,
}

/// A reload that succeeded: the new configuration is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Reloaded")]
pub struct ReloadReport {
    /// Number of the configuration in force; the one that weir was started with is 1.
    pub generation: u64,
    /// What is doubtful about it, a line each.
    pub warnings: Vec<String>,
}

/// A reload that failed: everything is as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "NotReloaded")]
pub struct ReloadFailure {
    /// That it was not done.
    pub error: Word,
    /// What is wrong, a line each.
    pub problems: Vec<String>,
    /// The same with the lines of the files it is about, where it is about lines.
    pub report: String,
}
