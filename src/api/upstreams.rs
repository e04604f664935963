//! Upstreams and their servers, circuit breakers, degrade groups.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Word;

/// An upstream: one of `GET /api/upstreams`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Upstream {
    /// The upstream's name.
    pub name: String,
    /// Its servers.
    pub servers: Vec<Backend>,
}

/// A server of an upstream.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Server")]
pub struct Backend {
    /// Its address; percent-encoded it is the server's name in a path.
    pub address: String,
    /// Whether it gets requests: nothing speaks against it.
    pub up: bool,
    /// Whether it counts as down.
    pub down: bool,
    /// Whether it gets no new requests.
    pub draining: bool,
    /// Whether it is used only where no other server is available.
    pub backup: bool,
    /// Its weight.
    pub weight: u64,
    /// Requests at it now.
    pub active: u64,
    /// Requests it has responded to, or failed to.
    pub requests: u64,
    /// Of these, those with a status of 500 and above.
    pub errors: u64,
    /// Connections opened to it.
    pub connections: u64,
    /// Requests over a kept connection.
    pub reused: u64,
    /// null where it is not checked.
    pub healthy: Option<bool>,
    /// The state of its breaker; null where it has none.
    #[schemars(extend("enum" = ["closed", "half_open", "open", null]))]
    pub breaker: Option<Word>,
    /// The state that an operator has forced its breaker into.
    #[schemars(extend("enum" = ["closed", "open", null]))]
    pub forced: Option<Word>,
    /// How often it has failed since its last good response.
    pub failures: u64,
    /// How many requests took no longer than that, until the response headers; growing.
    pub latency: Vec<LatencyBucket>,
}

/// How many requests took no longer than that, until the response headers.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct LatencyBucket {
    /// null for however long.
    pub seconds: Option<f64>,
    /// How many.
    pub count: u64,
}

/// The body of `PATCH /api/upstreams/{upstream}/servers/{server}`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ServerChange", extend("minProperties" = 1))]
pub struct BackendChange {
    /// Whether it gets requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<BackendState>,
    /// What its breaker is to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerForce>,
}

words! {
    /// What an operator wants of a server.
    pub enum BackendState {
        /// As drain, and it counts as down.
        Down = "down",
        /// No new requests; those in progress continue.
        Drain = "drain",
        /// It receives requests again.
        Up = "up",
    }
}

words! {
    /// What an operator wants of a breaker.
    pub enum BreakerForce {
        /// It decides by its own counts.
        Auto = "auto",
        /// Closed, whatever happens.
        Closed = "closed",
        /// Open, whatever happens.
        Open = "open",
    }
}

/// The breaker of a location: one of `GET /api/breakers`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Breaker")]
pub struct LocationBreaker {
    /// The server's first name, or nothing.
    pub server: String,
    /// The location as it is written.
    pub location: String,
    /// The state it is in.
    #[schemars(extend("enum" = ["closed", "half_open", "open"]))]
    pub state: Word,
    /// The state that an operator has forced it into.
    #[schemars(extend("enum" = ["closed", "open", null]))]
    pub forced: Option<Word>,
    /// How often it has opened.
    pub opened: u64,
}

/// The body of `PATCH /api/breakers`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BreakerChange {
    /// The server's first name, or nothing.
    pub server: String,
    /// The location as it is written.
    pub location: String,
    /// What its breaker is to be.
    pub breaker: BreakerForce,
}

/// A group of locations that are degraded together: one of `GET /api/groups`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Group")]
pub struct DegradeGroup {
    /// The group's name.
    pub name: String,
    /// What holds for it.
    #[schemars(extend("enum" = ["auto", "off", "on"]))]
    pub mode: Word,
}

/// The body of `PATCH /api/groups/{group}`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "GroupChange")]
pub struct DegradeChange {
    /// What is to hold for it.
    pub mode: DegradeMode,
}

words! {
    /// Whether the locations of a group respond without their backend.
    pub enum DegradeMode {
        /// When the backend fails.
        Auto = "auto",
        /// Never.
        Off = "off",
        /// Always.
        On = "on",
    }
}
